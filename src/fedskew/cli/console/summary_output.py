"""What a command prints at the end of a training: the table of results, what went wrong, and where the files are."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedskew.cli.console.run_progress import LOSSES
from fedskew.cli.console.summary_table import print_table
from fedskew.cli.console.terminal import console_for, escape

if TYPE_CHECKING:
    from fedskew.runs.folder import Row


def print_summary(
    methods: Sequence[str],
    summaries: "Sequence[Row]",
    folder: Path,
    result: Mapping[str, Any],
    as_json: bool,
) -> None:
    """Print the table of results, failures, lost updates, the folder and its page; as JSON if wanted."""
    from fedskew.runs.folder import PAGE, to_json
    from fedskew.runs.summary_reading import without_shared_score
    from fedskew.study.overview import warnings_of

    console = console_for(stderr=as_json)
    names, done, failures = _by_outcome(methods, summaries)
    if done:
        print_table(console, names, _with_bytes(done))
    empty = without_shared_score(names, done)
    for text in (*empty, *failures, *warnings_of(names, done), *lost_updates(done)):
        console.print(f"\n{escape(text)}", soft_wrap=True)
    console.print(f"\nrun folder: {escape(str(folder))}", soft_wrap=True)
    if (folder / PAGE).is_file():
        console.print(f"report: {escape(str(folder / PAGE))}", soft_wrap=True)
    if as_json:
        print(to_json({**result, "folder": str(folder)}))


def _by_outcome(
    methods: Sequence[str], summaries: "Sequence[Row]"
) -> "tuple[list[str], list[Row], list[str]]":
    """Return the methods of the runs that ended well, their summaries, and why the others failed."""
    names = []
    done = []
    failures = []
    for method, row in zip(methods, summaries, strict=True):
        if "failed" in row:
            failures.append(f"failed: {row['failed']}")
        else:
            names.append(method)
            done.append(row)
    return names, done, failures


def _with_bytes(summaries: "Sequence[Row]") -> "list[Row]":
    """Return the summaries with the bytes of both ways."""
    rows = []
    for row in summaries:
        rows.append({**row, "bytes": row["bytes_down"] + row["bytes_up"]})
    return rows


def lost_updates(summaries: "Sequence[Row]") -> list[str]:
    """Return a sentence about how many updates were lost and why; none if none was."""
    counts = {}
    for reason in LOSSES:
        count = sum(row[f"{reason}_updates"] for row in summaries)
        if count:
            counts[reason] = count
    if not counts:
        return []
    reasons = ", ".join(f"{count} {LOSSES[reason]}" for reason, count in counts.items())
    total = sum(row["updates"] for row in summaries)
    lost = sum(counts.values())
    return [f"{lost} of {total} updates were lost: {reasons} ({', '.join(counts)} in rounds.csv)"]
