"""How to partition a data set, as options of the commands split and measure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedskew.core.errors import FedskewError
from fedskew.core.registry import Choice, parse

if TYPE_CHECKING:
    from fedskew.data.federation import Federation
    from fedskew.nodes.split_folder import Origin
    from fedskew.skew.target import Target as Level


def optional(name: str, metavar: str, text: str) -> Any:
    """Return an option that is not there unless it is given."""
    return typer.Option(name, metavar=metavar, help=text, show_default=False)


Data = Annotated[
    list[str] | None,
    optional(
        "--data",
        "SPEC",
        "a CSV, Parquet or NPZ file, a folder of images, or a data set; a pattern or a folder of files, or several "
        "--data, make one client per file",
    ),
]
Label = Annotated[str | None, optional("--label", "COL", "column with the class")]
Group = Annotated[
    str | None,
    optional("--group", "COL", "column with the group of a row, such as a user or a site"),
]
Drop = Annotated[str | None, optional("--drop", "A+B", "columns that are not used as features")]
Duplicates = Annotated[
    str | None,
    optional(
        "--duplicates",
        "drop|keep",
        "what becomes of rows that equal an earlier one of their file; by default they are kept and counted",
    ),
]
Skew = Annotated[str | None, optional("--skew", "SPEC", "how to partition (fedskew list skews)")]
Clients = Annotated[
    int | None,
    optional("--clients", "N", "number of clients; by default 10, or one per group with natural"),
]
Target = Annotated[
    str | None,
    optional(
        "--target",
        "DISTANCE=X",
        "level of heterogeneity to reach by the skew's parameter: hellinger=0.6, features.wasserstein=0.1, "
        "features-given-label.hellinger=0.3",
    ),
]
Bins = Annotated[
    int | None,
    optional("--bins", "N", "bins that stand in for classes, where targets are not classes"),
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="seed of the partition")]
Json = Annotated[bool, typer.Option("--json", help="print the result as JSON")]


def data_with_columns(
    data: list[str] | None,
    label: str | None,
    group: str | None,
    drop: str | None,
    duplicates: str | None = None,
) -> dict[str, Any]:
    """Return the data set of ``--data`` with what --label, --group, --drop and --duplicates say."""
    if not data:
        raise FedskewError(
            "--data is missing: give --data FILE --label COL, or the name of a data set (fedskew data list)"
        )
    from fedskew.data.catalogue import together

    spec = together(data)
    if isinstance(spec, str):
        choice = parse(spec, "data set")
    else:
        choice = Choice(spec.pop("name"), spec)
    columns = {"label": label, "group": group, "drop": drop, "duplicates": duplicates}
    given = {name: value for name, value in columns.items() if value is not None}
    for name in given:
        if name in choice.options:
            raise FedskewError(
                f"--{name} {given[name]} and --data {' '.join(data)}: {name} is given twice"
            )
    return {"name": choice.name, **choice.options, **given}


@dataclass(frozen=True)
class PartitionOptions:
    """The partition that the options of a command ask for.

    Args:
        data: the data set with its options
        skew: how to partition it; by default what is usual for these data
        clients: how many clients
        seed: seed of the partition
        bins: bins that stand in for classes, where targets are not classes
        target: level of heterogeneity to reach by the skew's parameter
        client_test: share of each client's rows that is held out
    """

    data: Mapping[str, Any]
    skew: str | None
    clients: int | None
    seed: int
    bins: int | None
    target: str | None = None
    client_test: float = 0.0

    def partition(self) -> "tuple[Origin, Federation, dict[str, Any]]":
        """Return the data as they were read, their clients, and how these were made."""
        from fedskew.nodes.split_folder import read_origin
        from fedskew.skew.federate import split, usual_skew
        from fedskew.skew.skews import skews
        from fedskew.skew.target import Target as Level

        level = None
        if self.target is not None:
            level = Level.parse(self.target)
        elif self.skew is not None:
            skews.choose(self.skew)
        origin = read_origin(self.data)
        made_by: dict[str, Any] = {
            "skew": self.skew or usual_skew(origin.data),
            "seed": self.seed,
            "client_test": self.client_test,
        }
        if self.bins is not None:
            made_by["bins"] = self.bins
        if level is not None:
            made_by |= self._reached(origin, made_by["skew"], level)
        fed = split(
            origin.data,
            made_by["skew"],
            self.clients,
            seed=self.seed,
            client_test=self.client_test,
            bins=self.bins,
        )
        return origin, fed, made_by

    def _reached(self, origin: "Origin", skew: str, level: "Level") -> dict[str, Any]:
        """Return the skew whose partition comes nearest to a level of heterogeneity, and the level that it has."""
        from fedskew.skew.federate import DEFAULT_CLIENTS
        from fedskew.skew.target import find

        binned = origin.data.with_bins(self.bins)
        classes = len(binned.label_names) or None
        clients = self.clients or DEFAULT_CLIENTS
        nearest = find(skew, binned.train, clients, self.seed, level, classes=classes)
        return {"skew": nearest.spec, "target": str(level), "level": nearest.level}
