"""The command ``fedskew predict``: apply the model of a run to new rows."""

from pathlib import Path
from typing import Annotated

import typer

from fedskew.cli.command import Once
from fedskew.core.errors import FedskewError


def add_to(app: typer.Typer) -> None:
    """Add ``predict`` to the command line."""
    app.command(cls=Once)(predict)


def predict(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="folder of a finished run")],
    file: Annotated[
        Path,
        typer.Argument(
            help="new rows: CSV or Parquet or, if the data were arrays, NPZ with x, NPY or a folder with x.npy; say "
            "how a CSV file is written if fedskew does not recognise it, new.csv:separator=semicolon:decimal=comma"
        ),
    ],
    client: Annotated[
        str | None,
        typer.Option(
            "--client", metavar="NAME", help="use this client's model; by default the global one"
        ),
    ] = None,
    proba: Annotated[
        bool,
        typer.Option(
            "--proba",
            help="also write the probability of each class; not calibrated after class weights",
        ),
    ] = False,
    safe_csv: Annotated[
        bool,
        typer.Option(
            "--safe-csv",
            help="put a quote before texts that a spreadsheet would take for a formula",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="new CSV file; by default, to stdout"),
    ] = None,
) -> None:
    """Apply the trained model of a run to new rows.

    The rows are prepared as the training rows were. A file that does not fit is refused with the name of the column.

    \b
    fedskew predict runs/NAME new.csv --out predictions.csv
    fedskew predict runs/NAME new.csv --client hospital_D --proba
    """
    from fedskew.inference.prediction import predict_file
    from fedskew.runs.run import open_run

    if out is not None and out.exists():
        raise FedskewError(f"--out {out} exists already: remove it or choose another")
    content = predict_file(open_run(folder), file, client, proba, safe_csv)
    if out is None:
        print(content, end="")
        return
    from fedskew.core.writing import write_atomically

    write_atomically(out, content.encode())
