"""What a command prints of a comparison: the goal, the table, the forest plot as text, the verdicts, and the files."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedskew.cli.console.summary_output import lost_updates
from fedskew.cli.console.summary_table import fitted, grid
from fedskew.cli.console.terminal import console_for, escape

if TYPE_CHECKING:
    from fedskew.study.comparison_table import Comparison

# Titles of columns that are left out of a table that is too wide, the first ones first; the files have all.
_DISPENSABLE = (
    "s", "Gini", "simulated s", "MB to target", "on common rows", "clients", "by rows", "shared model",
    "rounds to target", "worst 10 %", "MB",
)  # fmt: skip


def print_comparison_table(
    found: "Comparison", folder: Path, runs: Mapping[str, Any], as_json: bool
) -> None:
    """Print a comparison; with ``as_json`` on stderr, and all of it as JSON on stdout."""
    from fedskew.report.comparison_files import files_of
    from fedskew.runs.folder import PAGE, to_json
    from fedskew.study.overview import warnings_of

    console = console_for(stderr=as_json)
    console.print(escape(found.judgement.goal_said), soft_wrap=True)
    lines = []
    for line in (found.head(), *found.lines()):
        lines.append([escape(cell) for cell in line])
    shown = fitted(lines, console.width, _DISPENSABLE)
    console.print()
    console.print(grid(shown))
    console.print()
    for text in found.forest.text(console.width):
        console.print(escape(text), soft_wrap=True)
    notes = [*found.findings(), *found.judgement.shared_rows(), *found.judgement.failures()]
    summaries = [run.summary for run in found.rows.runs.runs]
    methods = [str(summary["algorithm"]) for summary in summaries]
    notes += [*warnings_of(methods, summaries), *lost_updates(summaries)]
    notes.append(f"tables and figures: {', '.join(path.name for path in files_of(folder))}")
    for text in notes:
        console.print(f"\n{escape(text)}", soft_wrap=True)
    console.print(f"\nrun folder: {escape(str(folder))}", soft_wrap=True)
    if (folder / PAGE).is_file():
        console.print(f"report: {escape(str(folder / PAGE))}", soft_wrap=True)
    if as_json:
        result = {**runs, "comparison": found.as_dict(), "folder": str(folder)}
        print(to_json(result))
