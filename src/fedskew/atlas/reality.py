"""How heterogeneous real clients are: natural federations, measured beside the levels of synthetic partitions."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.streams import Floats, Ints, Stream
from fedskew.core.writing import write_atomically, writing
from fedskew.data.catalogue import load
from fedskew.data.federation import Federation
from fedskew.data.sources.natural_tables import TABLES
from fedskew.heterogeneity.heterogeneity import measure
from fedskew.heterogeneity.result import Heterogeneity
from fedskew.plots.atlas_figures import LevelBar, levels_figure
from fedskew.skew.federate import split

DISTANCE = "hellinger"
BINS = 5  # of targets that are numbers
_RESAMPLES = 2000
_SEED = 0
# Of ten clients that a skew makes of ten classes
MADE = (
    "iid",
    "dirichlet:alpha=5",
    "dirichlet:alpha=1",
    "dirichlet:alpha=0.5",
    "dirichlet:alpha=0.3",
    "dirichlet:alpha=0.1",
    "dirichlet:alpha=0.05",
    "classes:k=5",
    "classes:k=2",
    "classes:k=1",
)
MADE_OF = "digits"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Natural:
    """A natural federation: how it is loaded, what its clients are, and what is predicted."""

    data: str
    clients: str
    label: str


def _tables() -> list[Natural]:
    """Return the tables of R."""
    found = []
    for name, table in TABLES.items():
        found.append(Natural(f"natural:table={name}", table.what, table.label))
    return found


NATURAL = (
    Natural("heart-disease", "hospitals", "disease"),
    Natural("vader", "kinds of text", "sentiment"),
    Natural("uci-har:part=train", "subjects", "activity"),
    Natural("qmnist", "writers", "digit"),
    Natural("pacs:size=32", "domains", "object"),
    *_tables(),
)


@dataclass(frozen=True)
class RealityRow:
    """What was measured of one federation; distances are Hellinger's, between 0 and 1.

    Args:
        data: how it is loaded, and the skew of those that are not natural
        natural: whether its clients came with the data
        clients: what they are
        count: how many clients there are
        rows: of all clients
        median_rows: of a client
        label: what is predicted
        classes: or bins of a number
        size_gini: of the rows per client
        labels: mean distance of the clients' labels
        labels_low: end of its 95 % interval over clients
        labels_high: the other end
        labels_by_chance: that of IID clients of the same sizes
        features: as for labels; and so on for both conditional views
    """

    data: str
    natural: bool
    clients: str
    count: int
    rows: int
    median_rows: int
    label: str
    classes: int
    size_gini: float
    labels: float
    labels_low: float
    labels_high: float
    labels_by_chance: float
    features: float | None
    features_by_chance: float | None
    features_given_label: float | None
    features_given_label_by_chance: float | None
    labels_given_features: float | None
    labels_given_features_by_chance: float | None

    def as_values(self) -> dict[str, Any]:
        """Return the row for JSON or a data frame."""
        return asdict(self)


def measure_reality(say: Say, wanted: Sequence[str] = ()) -> tuple[list[RealityRow], list[str]]:
    """Measure the natural federations that are here, and synthetic ones; return rows, and why others are missing.

    ``wanted`` are data sets to measure, as they are written in ``NATURAL``; by default all of them.
    """
    rows = []
    missing = []
    for natural in NATURAL:
        if wanted and natural.data not in wanted:
            continue
        say(natural.data)
        try:
            data = load(natural.data)
        except FedskewError as problem:
            missing.append(str(problem))
            continue
        bins = None
        if data.target == "number":
            bins = BINS
        rows.append(_row(split(data, "natural", bins=bins), natural))
    made_of = load(MADE_OF)
    for skew in MADE:
        say(skew)
        fed = split(made_of, skew, clients=10, seed=_SEED)
        rows.append(_row(fed, None, skew))
    return rows, missing


def write_reality(rows: Sequence[RealityRow], folder: Path) -> list[Path]:
    """Write the table as CSV and Markdown and the figure as PDF and SVG; return the paths."""
    import pandas as pd

    frame = pd.DataFrame([row.as_values() for row in rows])
    files = {
        "reality.csv": frame.to_csv(index=False).encode(),
        "reality.md": markdown(rows).encode(),
    }
    for ending in ("pdf", "svg"):
        files[f"reality.{ending}"] = levels_figure(
            bars(rows),
            "mean distance of the clients' labels (Hellinger), with 95 % interval over clients",
            "How heterogeneous real clients are",
            ending,
        )
    paths = []
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_atomically(folder / name, content)
        paths.append(folder / name)
    return paths


def _row(fed: Federation, natural: Natural | None, skew: str = "") -> RealityRow:
    """Return what is measured of one federation."""
    found = measure(fed)
    counts = fed.partition.counts(
        fed.train.labels, len(fed.data.label_names), np.arange(fed.clients)
    )
    low, high = interval(label_distances(counts), Stream(_SEED, "reality"))
    spread = found.labels[DISTANCE]
    sizes = fed.partition.sizes
    data, clients, label = f"{MADE_OF}, {skew}", "made", "class"
    if natural is not None:
        data, clients, label = natural.data, natural.clients, natural.label
    return RealityRow(
        data=data,
        natural=natural is not None,
        clients=clients,
        count=fed.clients,
        rows=int(sizes.sum()),
        median_rows=int(np.median(sizes)),
        label=label,
        classes=found.classes,
        size_gini=found.sizes["gini"],
        labels=spread.mean,
        labels_low=low,
        labels_high=high,
        labels_by_chance=spread.by_chance or 0.0,
        features=_mean(found, "features"),
        features_by_chance=_by_chance(found, "features"),
        features_given_label=_mean(found, "features given label"),
        features_given_label_by_chance=_by_chance(found, "features given label"),
        labels_given_features=_mean(found, "labels given features"),
        labels_given_features_by_chance=_by_chance(found, "labels given features"),
    )


def _mean(found: Heterogeneity, view: str) -> float | None:
    """Return the mean distance in a view; None where it was not measured."""
    if view not in found.views:
        return None
    return found.views[view][DISTANCE].mean


def _by_chance(found: Heterogeneity, view: str) -> float | None:
    """Return the distance that chance makes in a view."""
    if view not in found.views:
        return None
    return found.views[view][DISTANCE].by_chance


def label_distances(counts: Ints) -> Floats:
    """Return the Hellinger distance of the labels of every pair of clients, as a matrix.

    >>> label_distances(np.array([[2, 0], [0, 3], [1, 1]])).round(2).tolist()
    [[0.0, 1.0, 0.54], [1.0, 0.0, 0.54], [0.54, 0.54, 0.0]]
    """
    roots = np.sqrt(counts / counts.sum(axis=1, keepdims=True))
    overlap = np.clip(roots @ roots.T, 0, 1)
    np.fill_diagonal(overlap, 1)
    distances: Floats = np.sqrt(1 - overlap)
    return distances


def interval(distances: Floats, stream: Stream) -> tuple[float, float]:
    """Return the 95 % interval of the mean distance over pairs, by resampling clients.

    A client that is drawn twice is no pair with itself.
    """
    clients = len(distances)
    drawn = stream.generator()
    means = []
    for _ in range(_RESAMPLES):
        times = np.bincount(drawn.integers(clients, size=clients), minlength=clients)
        pairs = np.outer(times, times)
        np.fill_diagonal(pairs, 0)
        total = pairs.sum()
        if total:
            means.append(float((pairs * distances).sum() / total))
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def bars(rows: Iterable[RealityRow]) -> list[LevelBar]:
    """Return the lines of the figure, the mildest first."""
    found = []
    for row in sorted(rows, key=lambda one: one.labels):
        name = row.data.removeprefix("natural:table=").partition(":part")[0]
        name = name.removesuffix(":size=32")
        if row.natural:
            name = f"{name} ({row.count} {row.clients})"
        found.append(
            LevelBar(
                name=name,
                mean=row.labels,
                low=row.labels_low,
                high=row.labels_high,
                by_chance=row.labels_by_chance,
                natural=row.natural,
            )
        )
    return found


def markdown(rows: Iterable[RealityRow]) -> str:
    """Return the table: distances, with what chance makes of clients of the same sizes in brackets."""
    lines = [
        "| data | clients | rows; median per client | predicts | labels (by chance) | 95 % | features | features given "
        "label | labels given features | Gini of sizes |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda one: (not one.natural, one.labels)):
        name = row.data.removeprefix("natural:table=")
        cells = [
            f"`{name}`",
            f"{row.count} {row.clients}",
            f"{row.rows:,}; {row.median_rows:,}",
            f"{row.label} ({row.classes})",
            _with_chance(row.labels, row.labels_by_chance),
            f"{row.labels_low:.2f}–{row.labels_high:.2f}",
            _with_chance(row.features, row.features_by_chance),
            _with_chance(row.features_given_label, row.features_given_label_by_chance),
            _with_chance(row.labels_given_features, row.labels_given_features_by_chance),
            f"{row.size_gini:.2f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _with_chance(mean: float | None, by_chance: float | None) -> str:
    """Return a distance with that by chance in brackets.

    >>> _with_chance(0.266, 0.046), _with_chance(None, None)
    ('.27 (.05)', '–')
    """
    if mean is None:
        return "–"
    text = f"{mean:.2f}".removeprefix("0")
    if by_chance is None:
        return text
    return f"{text} ({f'{by_chance:.2f}'.removeprefix('0')})"
