"""The command ``fedskew export``: write the model of a run as a program that needs no fedskew."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from fedskew.cli.command import Once
from fedskew.cli.partition_options import Json
from fedskew.core.errors import unknown

if TYPE_CHECKING:
    from fedskew.inference.exported_model import Format


def add_to(app: typer.Typer) -> None:
    """Add ``export`` to the command line."""
    app.command(cls=Once)(export)


def export(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="folder of a finished run")],
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="new file", show_default=False)
    ],
    format: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="TEXT",
            help="torch (torch.export) or onnx (needs fedskew\\[onnx])",
        ),
    ] = "torch",
    client: Annotated[
        str | None,
        typer.Option(
            "--client", metavar="NAME", help="the model of this client; by default the global one"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the trained model of a run, with its preprocessing, as a program for use without fedskew.

    The program is compared with the model on made-up rows before it is written.

    \b
    fedskew export runs/NAME --format torch --out model.pt2
    fedskew export runs/NAME --format onnx --out model.onnx
    """
    if format not in ("torch", "onnx"):
        raise unknown("format", format, ("torch", "onnx"))
    from fedskew.inference.exported_model import export_model
    from fedskew.runs.run import open_run

    done = export_model(open_run(folder), out, cast("Format", format), client)
    if as_json:
        found = {"file": str(out), "difference": done.difference, **done.described}
        print(json.dumps(found))
        return
    for entry in done.described["inputs"]:
        line = f"input   {entry['name']} {entry['type']} {entry['shape']}"
        if entry.get("columns"):
            line += f": {', '.join(_column_names(entry['columns']))}"
        print(line)
    print(f"output  {done.described['output']}")
    print(f"checked on made rows: differs from the model by at most {done.difference:.1e}")
    print(f"file: {out}")


def _column_names(columns: Sequence[str | Mapping[str, Any]]) -> list[str]:
    """Return the names of columns, of which one with categories is described by more than its name."""
    names = []
    for column in columns:
        if isinstance(column, str):
            names.append(column)
        else:
            names.append(column["name"])
    return names
