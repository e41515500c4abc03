"""What a command prints at the end of a training: the table of results, what went wrong, and where the files are."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedskew.cli.console.run_progress import LOSSES
from fedskew.cli.console.summary_table import print_table
from fedskew.cli.console.terminal import console_for, escape

if TYPE_CHECKING:
    from fedskew.cli.console.summary_table import Kind
    from fedskew.runs.summary import Row


def print_summary(
    methods: Sequence[str],
    summaries: "Sequence[Row]",
    folder: Path,
    result: Mapping[str, Any],
    as_json: bool,
    varied: "Sequence[Mapping[str, Any]] | None" = None,
    notes: Sequence[str] | None = None,
    first: str = "",
) -> None:
    """Print the table of results, failures, lost updates, the folder and its page; with ``as_json`` the result as JSON.

    ``varied`` are the hyper-parameters and conditions that have a column, in which the runs of a comparison differ,
    ``first`` is a sentence before the table, and ``notes`` are those after it; by default, why cells are empty.
    """
    from fedskew.runs.folder import PAGE, to_json
    from fedskew.runs.summary import without_shared_score
    from fedskew.study.overview import warnings_of

    console = console_for(stderr=as_json)
    kinds, done, failures = _by_outcome(methods, summaries, varied)
    names = [method for method, _ in kinds]
    if first:
        console.print(escape(first), soft_wrap=True)
    if done:
        failed_kinds = []
        if varied:
            failed_kinds = _without_result(methods, varied, kinds)
        print_table(console, kinds, _with_bytes(done), failed_kinds)
    if notes is None:
        notes = without_shared_score(names, done)
    for text in (*notes, *failures, *warnings_of(names, done), *_lost_updates(done)):
        console.print(f"\n{escape(text)}", soft_wrap=True)
    console.print(f"\nrun folder: {escape(str(folder))}", soft_wrap=True)
    if (folder / PAGE).is_file():
        console.print(f"report: {escape(str(folder / PAGE))}", soft_wrap=True)
    if as_json:
        print(to_json({**result, "folder": str(folder)}))


def _by_outcome(
    methods: Sequence[str],
    summaries: "Sequence[Row]",
    varied: "Sequence[Mapping[str, Any]] | None",
) -> "tuple[list[Kind], list[Row], list[str]]":
    """Return the kinds of the runs that ended well, their summaries, and why the others failed."""
    kinds: list[Kind] = []
    done = []
    failures = []
    options_of_runs = varied or [{}] * len(methods)
    for method, options, row in zip(methods, options_of_runs, summaries, strict=True):
        if "failed" in row:
            failures.append(f"failed: {row['failed']}")
        else:
            kinds.append((method, options))
            done.append(row)
    return kinds, done, failures


def _without_result(
    methods: Sequence[str], varied: "Sequence[Mapping[str, Any]]", done: "Sequence[Kind]"
) -> "list[Kind]":
    """Return the kinds of which no run ended well, each of them once."""
    without: list[Kind] = []
    for kind in zip(methods, varied, strict=True):
        if kind not in done and kind not in without:
            without.append(kind)
    return without


def _with_bytes(summaries: "Sequence[Row]") -> "list[Row]":
    """Return the summaries with the bytes of both ways."""
    rows = []
    for row in summaries:
        rows.append({**row, "bytes": row["bytes_down"] + row["bytes_up"]})
    return rows


def _lost_updates(summaries: "Sequence[Row]") -> list[str]:
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
