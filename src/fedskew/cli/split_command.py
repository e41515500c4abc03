"""The command ``fedskew split``: write a partition as files for real nodes."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedskew.cli.command import Once
from fedskew.cli.partition_options import (
    Bins,
    Clients,
    Data,
    Drop,
    Duplicates,
    Group,
    Json,
    Label,
    PartitionOptions,
    Seed,
    Skew,
    Target,
    data_with_columns,
    optional,
)
from fedskew.core.errors import FedskewError

if TYPE_CHECKING:
    from fedskew.data.federation import Federation
    from fedskew.heterogeneity.result import Heterogeneity
    from fedskew.nodes.split_folder import Files


def add_to(app: typer.Typer) -> None:
    """Add ``split`` to the command line."""
    app.command(cls=Once)(split)


def split(
    out: Annotated[
        Path,
        typer.Option(
            "--out", "--folder", metavar="DIR", help="new folder to write", show_default=False
        ),
    ],
    data: Data = None,
    label: Label = None,
    skew: Skew = None,
    clients: Clients = None,
    target: Target = None,
    group: Group = None,
    drop: Drop = None,
    duplicates: Duplicates = None,
    bins: Bins = None,
    client_test: Annotated[
        float,
        typer.Option(
            "--client-test",
            metavar="X",
            help="share of each client's rows that is held out for testing",
        ),
    ] = 0.0,
    seed: Seed = 0,
    index: Annotated[bool, typer.Option("--index", help="write row numbers only")] = False,
    npz: Annotated[
        bool,
        typer.Option(
            "--npz", help="write the models' input (encoded, scaled, treated) as NPZ arrays"
        ),
    ] = False,
    layout: Annotated[
        str | None,
        optional(
            "--layout",
            "TOOL",
            "write the files that another tool reads instead: pfllib, fl-bench, leaf or fedscale",
        ),
    ] = None,
    svg: Annotated[bool, typer.Option("--svg", help="also draw the figure as SVG")] = False,
    as_json: Json = False,
) -> None:
    """Partition a data set into one file per client, in the format of the input.

    All rows of your own file go to clients. With --data FILE:test=0.2, test rows are set aside and written as well.

    \b
    fedskew split --data my.csv --label y --skew dirichlet:alpha=0.3 --clients 4 --out nodes
    fedskew split --data my.csv --label y --skew dirichlet --target hellinger=0.6 --clients 4 --out nodes
    """
    from fedskew.heterogeneity.heterogeneity import measure
    from fedskew.nodes.other_layouts import save_layout
    from fedskew.nodes.split_folder import must_not_exist, save_split
    from fedskew.plots.split_figure import draw_split

    files = _files_of(index, npz)
    if layout is not None and (files != "same" or svg):
        raise FedskewError(
            "--layout says which files are written: leave --index, --npz and --svg out"
        )
    must_not_exist(out)
    pictures = ["png"]
    if svg:
        pictures.append("svg")
    whole = data_with_columns(data, label, group, drop, duplicates)
    options = PartitionOptions(whole, skew, clients, seed, bins, target, client_test)
    origin, fed, made_by = options.partition()
    if layout is not None:
        save_layout(out, layout, fed, made_by)
        _print_split(out, fed, measure(fed), made_by, as_json)
        return
    title = f"{fed.data.name} partitioned by {made_by['skew']}, seed {seed}"

    def draw(fed: "Federation", found: "Heterogeneity", ending: str) -> bytes:
        return draw_split(fed, found, title, ending)

    found = save_split(out, origin, fed, made_by, files=files, pictures=pictures, draw=draw)
    _print_split(out, fed, found, made_by, as_json)


def _files_of(index: bool, npz: bool) -> "Files":
    """Return in which form the rows of clients are written."""
    if index and npz:
        raise FedskewError("--index and --npz clash: give one of them")
    if index:
        return "index"
    if npz:
        return "arrays"
    return "same"


def _print_split(
    out: Path, fed: "Federation", found: "Heterogeneity", made_by: Mapping[str, Any], as_json: bool
) -> None:
    from fedskew.runs.folder import to_json

    if as_json:
        print(to_json({"folder": str(out), **made_by, "heterogeneity": found.as_dict()}))
        return
    sizes = fed.partition.sizes
    print(
        f"{fed.clients} clients of {sizes.min():,} … {sizes.max():,} rows, "
        f"partitioned by {made_by['skew']}, seed {made_by['seed']}"
    )
    for line in fed.data.doubts:
        print(f"note: {line}")
    if "target" in made_by:
        print(f"target {made_by['target']}, reached {made_by['level']:.4f}")
    for view in ("labels", "features"):
        means = "  ".join(
            f"{name} {spread.mean:.3f}" for name, spread in found.views.get(view, {}).items()
        )
        if not means and view == "labels":
            means = "not measured: the targets are not classes"
            if fed.data.target in ("number", "labels"):
                means += " (--bins 5)"
        print(f"{view + ', mean of all pairs':28}{means}")
    _print_others(out, fed)
    print(f"folder: {out}")


def _print_others(out: Path, fed: "Federation") -> None:
    """Print where the rows are that no client has."""
    from fedskew.nodes.split_folder import unassigned_rows

    unheld = len(unassigned_rows(fed))
    if unheld and any(out.glob("nobody.*")):
        print(f"{unheld:,} rows of no client are in nobody.*")
    elif unheld:
        print(f"{unheld:,} rows of no client are left out")
    if any(out.glob("test.*")):
        print(f"{len(fed.test):,} test rows are in test.*")
