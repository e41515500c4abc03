"""The commands split and measure: write a partition as files for real nodes, and measure its heterogeneity."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from fedskew.cli.command import Once
from fedskew.core.errors import FedskewError
from fedskew.core.registry import Choice, parse

if TYPE_CHECKING:
    from fedskew.data.federation import Federation
    from fedskew.heterogeneity.result import Heterogeneity
    from fedskew.heterogeneity.study import Convention
    from fedskew.nodes.split_folder import Files, Origin


def _option(name: str, metavar: str, text: str) -> Any:
    """Return an option that is not there unless it is given."""
    return typer.Option(name, metavar=metavar, help=text, show_default=False)


Data = Annotated[
    list[str] | None,
    _option(
        "--data",
        "SPEC",
        "a CSV, Parquet or NPZ file, a folder of images, or a data set; a pattern or a folder of files, or several "
        "--data, are one client a file",
    ),
]
Label = Annotated[str | None, _option("--label", "COL", "column with the class")]
Group = Annotated[
    str | None,
    _option("--group", "COL", "column with the group of a row, such as a user or a site"),
]
Drop = Annotated[str | None, _option("--drop", "A+B", "columns that are not used as features")]
Skew = Annotated[str | None, _option("--skew", "SPEC", "how to partition (fedskew list skews)")]
Clients = Annotated[
    int | None,
    _option("--clients", "N", "number of clients; by default 10, or one per group with natural"),
]
Target = Annotated[
    str | None,
    _option(
        "--target",
        "DISTANCE=X",
        "level of heterogeneity to reach by the skew's parameter: hellinger=0.6, features.wasserstein=0.1",
    ),
]
Bins = Annotated[
    int | None, _option("--bins", "N", "where targets are no classes, bins that stand in for them")
]
Sweep = Annotated[
    str | None, _option("--sweep", "OPTION=A+B", "several values of an option of the skew")
]
Picture = Annotated[
    Path | None, _option("--picture", "FILE", "figure to draw: a .png or .svg file")
]
ConventionOption = Annotated[
    str,
    typer.Option(
        "--convention",
        metavar="TEXT",
        help="mean over pairs (mean), or as in FedArtML and MFedBN (fedartml)",
    ),
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="seed of the partition")]
Json = Annotated[bool, typer.Option("--json", help="print the result as JSON")]


def add_to(app: typer.Typer) -> None:
    """Add ``split`` and ``measure`` to the command line."""
    app.command(cls=Once)(split)
    app.command(cls=Once)(measure)


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
    svg: Annotated[bool, typer.Option("--svg", help="also draw the figure as SVG")] = False,
    as_json: Json = False,
) -> None:
    """Partition a data set into one file per client, in the format of the input.

    All rows of your own file go to clients; with --data FILE:test=0.2 test rows are set aside and written as well.

    \b
    fedskew split --data my.csv --label y --skew dirichlet:alpha=0.3 --clients 4 --out nodes
    fedskew split --data my.csv --label y --skew dirichlet --target hellinger=0.6 --clients 4 --out nodes
    """
    from fedskew.nodes.split_folder import must_not_exist, save_split
    from fedskew.plots.split_figure import draw_split

    if index and npz:
        raise FedskewError("--index and --npz clash: give one of them")
    must_not_exist(out)
    if index:
        files: Files = "index"
    elif npz:
        files = "arrays"
    else:
        files = "same"
    origin, fed, made_by = _partition(
        _data(data, label, group, drop), skew, clients, seed, client_test, target, bins
    )

    def draw(fed: "Federation", found: "Heterogeneity", ending: str) -> bytes:
        return draw_split(
            fed, found, f"{fed.data.name} partitioned by {made_by['skew']}, seed {seed}", ending
        )

    found = save_split(
        out,
        origin,
        fed,
        made_by,
        files=files,
        pictures=("png", "svg") if svg else ("png",),
        draw=draw,
    )
    _print_split(out, fed, found, made_by, as_json)


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
    bins: Bins = None,
    seed: Seed = 0,
    sweep: Sweep = None,
    convention: ConventionOption = "mean",
    picture: Picture = None,
    as_json: Json = False,
) -> None:
    """Measure the heterogeneity: a verdict, every client and column against the others, distances, all defined.

    \b
    fedskew measure nodes
    fedskew measure --data my.csv --label y --skew vop --clients 4
    fedskew measure --data digits --skew dirichlet --sweep alpha=0.01+0.1+1+10 --picture page.png
    """
    _check_picture(picture)
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
        _measure_folder(folder, convention, picture, as_json)
    elif sweep is not None:
        _measure_sweep(
            _data(data, label, group, drop),
            skew or "dirichlet",
            sweep,
            clients,
            seed,
            convention,
            picture,
            as_json,
            bins,
        )
    else:
        _, fed, made_by = _partition(
            _data(data, label, group, drop), skew, clients, seed, 0.0, target, bins
        )
        _show(
            fed,
            f"{fed.data.name} partitioned by {made_by['skew']}, seed {seed}",
            made_by,
            convention,
            picture,
            as_json,
        )


# -- shared by both commands -------------------------------------------------------------------------------------------


def _data(
    data: list[str] | None, label: str | None, group: str | None, drop: str | None
) -> dict[str, Any]:
    """Return ``--data`` merged with the options --label, --group and --drop."""
    if not data:
        raise FedskewError(
            "--data is missing: give --data FILE --label COL, or the name of a data set (fedskew data list)"
        )
    from fedskew.data.catalogue import together

    whole = together(data)
    if isinstance(whole, str):
        choice = parse(whole, "data set")
    else:
        choice = Choice(whole.pop("name"), whole)
    own = {"label": label, "group": group, "drop": drop}
    given = {name: value for name, value in own.items() if value is not None}
    for name in given:
        if name in choice.options:
            raise FedskewError(
                f"--{name} {given[name]} and --data {' '.join(data)}: {name} is given twice"
            )
    return {"name": choice.name, **choice.options, **given}


def _partition(
    data: Mapping[str, Any],
    skew: str | None,
    clients: int | None,
    seed: int,
    client_test: float,
    target: str | None,
    bins: int | None,
) -> "tuple[Origin, Federation, dict[str, Any]]":
    from fedskew import api
    from fedskew.nodes.split_folder import read_origin
    from fedskew.runs.choices import spell
    from fedskew.runs.federate import DEFAULT_CLIENTS, usual_skew
    from fedskew.skew.target import Target as Wanted
    from fedskew.skew.target import find

    if target is None:
        wanted = None
    else:
        wanted = Wanted.parse(target)
    if wanted is None and skew is not None:
        spell("skew", skew)
    origin = read_origin(data)
    skew = skew or usual_skew(origin.data)
    made_by: dict[str, Any] = {"skew": skew, "seed": seed, "client_test": client_test}
    if bins is None:
        made_by |= {}
    else:
        made_by |= {"bins": bins}
    if wanted is not None:
        cut = origin.data.with_bins(bins)
        names = len(cut.label_names) or None
        found = find(skew, cut.train, clients or DEFAULT_CLIENTS, seed, wanted, classes=names)
        made_by |= {"skew": found.spec, "target": str(wanted), "level": found.level}
    fed = api.split(
        origin.data, made_by["skew"], clients, seed=seed, client_test=client_test, bins=bins
    )
    return origin, fed, made_by


def _print_split(
    out: Path, fed: "Federation", found: "Heterogeneity", made_by: Mapping[str, Any], as_json: bool
) -> None:
    from fedskew.nodes.split_folder import unassigned_rows
    from fedskew.runs.folder import to_json

    if as_json:
        print(to_json({"folder": str(out), **made_by, "heterogeneity": found.as_dict()}))
        return
    sizes = fed.partition.sizes
    print(
        f"{fed.clients} clients of {sizes.min():,} … {sizes.max():,} rows, "
        f"partitioned by {made_by['skew']}, seed {made_by['seed']}"
    )
    if "target" in made_by:
        print(f"target {made_by['target']}, reached {made_by['level']:.4f}")
    for view in ("labels", "features"):
        means = "  ".join(
            f"{name} {spread.mean:.3f}" for name, spread in found.views.get(view, {}).items()
        )
        if not means and view == "labels":
            means = "not measured: the targets are no classes (--bins 5)"
        print(f"{view + ', mean of all pairs':28}{means}")
    unheld = len(unassigned_rows(fed))
    if unheld:
        print(f"{unheld:,} rows of no client are in nobody.*")
    if any(out.glob("test.*")):
        print(f"{len(fed.test):,} test rows are in test.*")
    print(f"folder: {out}")


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


def _measure_folder(folder: Path, convention: str, picture: Path | None, as_json: bool) -> None:
    from fedskew.nodes.split_folder import load_split

    fed = load_split(folder)
    _show(fed, f"{folder}", {"folder": str(folder)}, convention, picture, as_json)


def _show(
    fed: "Federation",
    title: str,
    facts: Mapping[str, Any],
    convention: str,
    picture: Path | None,
    as_json: bool,
) -> None:
    from fedskew.core.notebook import few
    from fedskew.core.writing import write_atomically
    from fedskew.heterogeneity.heterogeneity import measure as measured
    from fedskew.plots.split_figure import draw_split
    from fedskew.runs.folder import to_json

    # measure raises an error for an unknown convention
    found = measured(fed, convention=cast("Convention", convention), each=True)
    if picture is not None:
        write_atomically(picture, draw_split(fed, found, title, picture.suffix[1:]))
    different = fed.data.differences
    if as_json:
        print(
            to_json(
                {**facts, **found.as_dict(), **({"differences": different} if different else {})}
            )
        )
        return
    print("\n".join([title, *(f"difference: {line}" for line in few(different)), str(found)]))


def _measure_sweep(
    data: Mapping[str, Any],
    skew: str,
    sweep: str,
    clients: int | None,
    seed: int,
    convention: str,
    picture: Path | None,
    as_json: bool,
    bins: int | None,
) -> None:
    """Print one row per value of the option, and draw all matrices on one page."""
    from fedskew import api
    from fedskew.core.writing import write_atomically
    from fedskew.heterogeneity.heterogeneity import measure as measured
    from fedskew.nodes.split_folder import read_origin
    from fedskew.plots.split_figure import draw_sweep
    from fedskew.runs.choices import spell
    from fedskew.runs.folder import to_json

    specs = _sweep(skew, sweep)
    for spec in specs.values():
        spell("skew", spec)
    source = read_origin(data).data
    feds = {}
    for title, spec in specs.items():
        feds[title] = api.split(source, spec, clients, seed=seed, bins=bins)
    chosen = cast("Convention", convention)  # measure raises an error for an unknown one
    found = {}
    for title, fed in feds.items():
        found[title] = measured(fed, chance=False, convention=chosen)
    if picture is not None:
        name = f"{source.name} partitioned by {skew}, seed {seed}"
        write_atomically(picture, draw_sweep(feds, found, name, picture.suffix[1:]))
    if as_json:
        print(to_json({title: result.as_dict() for title, result in found.items()}))
        return
    first = next(iter(found.values())).views
    if "labels" in first:
        view = "labels"
    else:
        view = "features"
    print(f"{f'mean over pairs, {view}':28}" + "".join(f"{name:>17}" for name in first[view]))
    for title, result in found.items():
        print(
            f"{title:28}"
            + "".join(f"{result.views[view][name].mean:17.4f}" for name in first[view])
        )


def _sweep(skew: str, sweep: str) -> dict[str, str]:
    """Return the title of each partition of a sweep -> its skew."""
    option, equals, values = sweep.partition("=")
    if not equals or not option.strip() or not values.strip():
        raise FedskewError(f"--sweep {sweep!r}: write option=a+b+c, such as alpha=0.01+0.1+1+10")
    base, plus, treatments = skew.partition(" + ")
    if ":" in base:
        joint = ","
    else:
        joint = ":"
    result: dict[str, str] = {}
    for value in values.split("+"):
        result[f"{option.strip()}={value.strip()}"] = (
            f"{base}{joint}{option.strip()}={value.strip()}{plus}{treatments}"
        )
    return result
