"""The command ``fedskew measure``: how heterogeneous the clients of a partition are."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

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
    from fedskew.heterogeneity.study import Convention

Sweep = Annotated[
    str | None, optional("--sweep", "OPTION=A+B", "several values of an option of the skew")
]
Picture = Annotated[
    Path | None, optional("--picture", "FILE", "figure to draw: a .png or .svg file")
]
ConventionOption = Annotated[
    str,
    typer.Option(
        "--convention",
        metavar="TEXT",
        help="mean over pairs (mean), or as in FedArtML and MFedBN (fedartml)",
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add ``measure`` to the command line."""
    app.command(cls=Once)(measure)


def measure(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="folder written by fedskew split", show_default=False),
    ] = None,
    data: Data = None,
    label: Label = None,
    skew: Skew = None,
    clients: Clients = None,
    target: Target = None,
    group: Group = None,
    drop: Drop = None,
    duplicates: Duplicates = None,
    bins: Bins = None,
    seed: Seed = 0,
    sweep: Sweep = None,
    convention: ConventionOption = "mean",
    picture: Picture = None,
    as_json: Json = False,
) -> None:
    """Measure how clients differ: a verdict in words, each client and column against the others, and distances.

    \b
    fedskew measure nodes
    fedskew measure --data my.csv --label y --skew vop --clients 4
    fedskew measure --data digits --skew dirichlet --sweep alpha=0.01+0.1+1+10 --picture page.png
    """
    _check_picture(picture)
    # The cast is safe: to measure by an unknown convention is an error.
    output = _Output(cast("Convention", convention), picture, as_json)
    if folder is not None:
        _refuse_beside_folder(
            data=data,
            label=label,
            skew=skew,
            clients=clients,
            target=target,
            group=group,
            drop=drop,
            sweep=sweep,
            bins=bins,
        )
        _measure_folder(folder, output)
        return
    whole = data_with_columns(data, label, group, drop, duplicates)
    options = PartitionOptions(whole, skew, clients, seed, bins, target)
    if sweep is not None:
        _measure_sweep(options, sweep, output)
    else:
        _measure_partition(options, output)


@dataclass(frozen=True)
class _Output:
    """What to do with what was measured: by which convention, on which picture, and whether as JSON."""

    convention: "Convention"
    picture: Path | None
    as_json: bool


def _refuse_beside_folder(**given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise FedskewError(
                f"--{name} clashes with a folder, which has its own partition: give the folder alone, or --data"
            )


def _check_picture(picture: Path | None) -> None:
    if picture is None:
        return
    if picture.suffix not in (".png", ".svg"):
        raise FedskewError(f"--picture {picture}: give a file that ends in .png or .svg")
    if picture.exists():
        raise FedskewError(f"--picture {picture} exists already: remove it or choose another")


def _measure_folder(folder: Path, output: _Output) -> None:
    from fedskew.nodes.split_folder import load_split

    fed = load_split(folder)
    _show(fed, str(folder), {"folder": str(folder)}, output)


def _measure_partition(options: PartitionOptions, output: _Output) -> None:
    _, fed, made_by = options.partition()
    title = f"{fed.data.name} partitioned by {made_by['skew']}, seed {options.seed}"
    _show(fed, title, made_by, output)


def _show(fed: "Federation", title: str, facts: Mapping[str, Any], output: _Output) -> None:
    """Print the heterogeneity of one partition, and draw it."""
    from fedskew.core.notebook import few
    from fedskew.core.writing import write_atomically
    from fedskew.heterogeneity.heterogeneity import measure as measured
    from fedskew.plots.split_figure import draw_split
    from fedskew.runs.folder import to_json

    heterogeneity = measured(fed, convention=output.convention, each=True)
    if output.picture is not None:
        ending = output.picture.suffix[1:]
        write_atomically(output.picture, draw_split(fed, heterogeneity, title, ending))
    differences = fed.data.differences
    if output.as_json:
        content = {**facts, **heterogeneity.as_dict()}
        if differences:
            content["differences"] = differences
        if fed.data.doubts:
            content["doubts"] = fed.data.doubts
        print(to_json(content))
        return
    print(title)
    for line in fed.data.doubts:
        print(f"note: {line}")
    for line in few(differences):
        print(f"difference: {line}")
    print(heterogeneity)


def _measure_sweep(options: PartitionOptions, sweep: str, output: _Output) -> None:
    """Print one row per value of the option, and draw all matrices on one page."""
    from fedskew.core.writing import write_atomically
    from fedskew.heterogeneity.heterogeneity import measure as measured
    from fedskew.nodes.split_folder import read_origin
    from fedskew.plots.split_figure import draw_sweep
    from fedskew.runs.folder import to_json
    from fedskew.skew.federate import split
    from fedskew.skew.skews import skews

    skew = options.skew or "dirichlet"
    specs = _swept_skews(skew, sweep)
    for spec in specs.values():
        skews.choose(spec)
    source = read_origin(options.data).data
    feds = {}
    found = {}
    for title, spec in specs.items():
        feds[title] = split(source, spec, options.clients, seed=options.seed, bins=options.bins)
    for title, fed in feds.items():
        found[title] = measured(fed, chance=False, convention=output.convention)
    if output.picture is not None:
        name = f"{source.name} partitioned by {skew}, seed {options.seed}"
        ending = output.picture.suffix[1:]
        write_atomically(output.picture, draw_sweep(feds, found, name, ending))
    if output.as_json:
        print(to_json({title: one.as_dict() for title, one in found.items()}))
    else:
        _print_sweep(found)


def _print_sweep(found: "Mapping[str, Heterogeneity]") -> None:
    """Print the mean of each distance, one partition a line."""
    views = next(iter(found.values())).views
    view = "features"
    if "labels" in views:
        view = "labels"
    heading = f"mean over pairs, {view}"
    line = f"{heading:28}"
    for distance in views[view]:
        line += f"{distance:>17}"
    print(line)
    for title, heterogeneity in found.items():
        line = f"{title:28}"
        for distance in views[view]:
            line += f"{heterogeneity.views[view][distance].mean:17.4f}"
        print(line)


def _swept_skews(skew: str, sweep: str) -> dict[str, str]:
    """Return the skew of each partition of a sweep, by the title of the partition."""
    option, equals, values = sweep.partition("=")
    if not equals or not option.strip() or not values.strip():
        raise FedskewError(f"--sweep {sweep!r}: write option=a+b+c, such as alpha=0.01+0.1+1+10")
    base, plus, treatments = skew.partition(" + ")
    joint = ":"
    if ":" in base:
        joint = ","
    skews = {}
    for value in values.split("+"):
        title = f"{option.strip()}={value.strip()}"
        skews[title] = f"{base}{joint}{title}{plus}{treatments}"
    return skews
