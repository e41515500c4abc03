"""The command ``fedskew merge``: shards of a comparison, from several machines, as one."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedskew.cli.command import Once
from fedskew.cli.compare_command import print_comparison


def add_to(app: typer.Typer) -> None:
    """Add ``merge`` to the command line."""
    app.command(cls=Once)(merge)


def merge(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="SHARD...", help="folders of shards of one comparison"),
    ],
    out: Annotated[Path, typer.Option("--out", help="new folder of the whole comparison")],
    as_json: Annotated[
        bool, typer.Option("--json", help="print the summary as JSON in the last line of stdout")
    ] = False,
) -> None:
    """Merge the shards of a comparison that ran in folders of their own, and judge the whole.

    The shards stay as they are.

    \b
    fedskew merge shard-1 shard-2 shard-3 --out study
    """
    from fedskew.report.comparison_files import write_comparison
    from fedskew.runs.folder import resume_command, to_json
    from fedskew.study.merge import merge as merge_shards

    outcome = merge_shards(folders, out, write_comparison)
    if outcome.left:
        again = resume_command(out)
        print(f"merged; {outcome.left} runs are left, run them with: {again}", file=sys.stderr)
        if as_json:
            print(to_json({"folder": str(out), "left": outcome.left}))
        return
    print_comparison(outcome, as_json)
