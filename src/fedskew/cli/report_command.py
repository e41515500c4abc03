"""The command ``fedskew report``: one page about a run, or about several."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fedskew.cli.command import Once
from fedskew.cli.partition_options import Json


def add_to(app: typer.Typer) -> None:
    """Add ``report`` to the command line."""
    app.command(cls=Once)(report)


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="folders of finished runs, or of a comparison"),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="HTML file; by default report.html in the folder"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write one HTML page about a run, or about several side by side. It needs no network and no other file.

    \b
    fedskew report runs/NAME
    fedskew report runs/A runs/B --out comparison.html
    """
    from fedskew.report.page import report as write_report

    page = write_report(folders, out)
    if as_json:
        print(json.dumps({"report": str(page)}))
        return
    print(f"report: {page}")
