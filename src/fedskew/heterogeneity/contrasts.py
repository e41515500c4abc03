"""Each client against all others, one column at a time: what differs most where, in which direction, by what factor."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np

from fedskew.core.streams import Floats, Ints, Stream
from fedskew.data.cells import MISSING
from fedskew.data.dataset import Dataset, Features, Rows
from fedskew.data.differences import factor_between
from fedskew.data.partition import Partition
from fedskew.data.schema import Categories, Numeric, Pipeline, Scaling, Schema
from fedskew.data.stored_rows import whole
from fedskew.heterogeneity.effects import (
    LEVEL,
    Effect,
    Sample,
    cramers_v,
    cramers_v_interval,
    hedges_g,
)

Kind: TypeAlias = Literal["number", "category"]
Strength: TypeAlias = Literal["no", "weak", "medium", "strong"]
# Cohen (1988): small, medium and large effects of means (d) and of categories (w, which is V of two rows).
COHEN: dict[Kind, tuple[float, float, float]] = {
    "number": (0.2, 0.5, 0.8),
    "category": (0.1, 0.3, 0.5),
}
STRENGTHS: tuple[Strength, ...] = ("no", "weak", "medium", "strong")
LEAST_ROWS = 20  # of a client whose median and spread are compared with those of others


def strength_of(effect: float, kind: Kind) -> Strength:
    """Return how strong an effect is called.

    >>> strength_of(-0.6, "number"), strength_of(0.6, "category")
    ('medium', 'strong')
    """
    return STRENGTHS[sum(abs(effect) >= limit for limit in COHEN[kind])]


@dataclass(frozen=True)
class Contrast:
    """One column of one client against the rows of all others.

    Args:
        client: number of the client
        column: name of the column
        kind: number, with Hedges' g as the effect (positive: higher here), or category, with Cramér's V
        effect: the effect, with ``low`` and ``high`` as the ends of its 95 % interval
        surely: the effect that is there at least, at a level for all columns of all clients together; 0 if none is
        here: the client's median; of a category, the share of ``category``, whose shares differ most
        others: the same for the rows of all others
        factor: by what numbers are multiplied here, where median and spread agree on it
        category: see ``here``
    """

    client: int
    column: str
    kind: Kind
    effect: float
    low: float
    high: float
    surely: float
    here: float
    others: float
    factor: float | None = None
    category: str | None = None

    @property
    def strength(self) -> Strength:
        """Return how strong the effect is at least."""
        return strength_of(self.surely, self.kind)

    @property
    def size(self) -> float:
        """Return how large the effect is, so that those of numbers and of categories can be ordered together."""
        if np.isnan(self.effect):
            return 0.0
        return abs(self.effect) / COHEN[self.kind][-1]

    def as_dict(self, names: Sequence[str]) -> dict[str, Any]:
        """Return it as plain values, with the client's name."""
        return {**asdict(self), "name": names[self.client], "strength": self.strength}

    def words(self) -> str:
        """Return the difference in a few words, without the names of client and column."""
        if self.factor is not None:
            medians = f"median {self.here:.4g} against {self.others:.4g}"
            return f"{self.factor:.3g} times the others' ({medians}; another unit?)"
        if self.kind == "number":
            way = "lower"
            if self.effect > 0:
                way = "higher"
            return f"{way} (median {self.here:.4g} against {self.others:.4g})"
        way = "less"
        if self.here > self.others:
            way = "more"
        return f"{way} often {self.category!r} ({self.here:.1%} against {self.others:.1%})"


@dataclass(frozen=True)
class Variable:
    """A column of all rows, which are in the order of their clients: numbers, or the numbers of named categories.

    Missing entries are NaN.
    """

    name: str
    values: Floats
    categories: tuple[str, ...] = ()

    @property
    def kind(self) -> Kind:
        """Return what it holds."""
        if self.categories:
            return "category"
        return "number"


class Compared:
    """A variable, divided among clients: the effect of each, and everything about one of them.

    Entries that are missing are left out.
    """

    def __init__(self, variable: Variable, offsets: Ints, clients: Ints) -> None:
        there = ~np.isnan(variable.values)
        self.variable = variable
        self.offsets = offsets
        self.clients = clients
        self.has_gaps = not there.all()
        if self.has_gaps:
            self.variable = replace(variable, values=variable.values[there])
            self.offsets = np.concatenate([[0], np.cumsum(there)])[offsets]

    def is_compared(self, client: int) -> bool:
        """Return whether there is something to compare: entries of the client, and entries of others."""
        if not self.has_gaps:
            return True
        own = int(self.offsets[client + 1] - self.offsets[client])
        return 0 < own < int(self.offsets[-1])

    def _mine(self, client: int) -> slice:
        return slice(int(self.offsets[client]), int(self.offsets[client + 1]))

    @cached_property
    def sizes(self) -> Floats:
        """Return how large the effect is at each of the clients, in large effects."""
        effects = []
        for client in self.clients.tolist():
            if self.variable.categories:
                effects.append(cramers_v(self._against(client)))
            else:
                effects.append(abs(self._effect(client, LEVEL).value))
        return np.array(effects) / COHEN[self.variable.kind][-1]

    def _effect(self, client: int, level: float) -> Effect:
        if self.variable.categories:
            return cramers_v_interval(self._against(client), level)
        return hedges_g(self._samples[client], self._without(self._samples[client]), level)

    def _against(self, client: int) -> Ints:
        """Return the counts of the categories at a client, and at all others."""
        return np.stack([self._counts[client], self._counts.sum(0) - self._counts[client]])

    @cached_property
    def _counts(self) -> Ints:
        codes = self.variable.values.astype(np.int64)
        kinds = len(self.variable.categories)
        owner = np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))
        table = np.bincount(owner * kinds + codes, minlength=(len(self.offsets) - 1) * kinds)
        return table.reshape(-1, kinds)

    @cached_property
    def _centre(self) -> float:
        return Sample.of(self.variable.values).mean

    @cached_property
    def _samples(self) -> dict[int, Sample]:
        """Of each client, about the mean of all rows, so that differences of sums are exact enough."""
        apart = self.variable.values - self._centre
        samples: dict[int, Sample] = {}
        for client in self.clients.tolist():
            samples[client] = Sample.of(apart[self._mine(client)])
        return samples

    @cached_property
    def _all(self) -> Sample:
        return Sample.of(self.variable.values - self._centre)

    def _without(self, mine: Sample) -> Sample:
        """Return all rows but these."""
        size = self._all.size - mine.size
        if not size:
            return Sample(0, 0.0, 0.0)
        mean = (self._all.size * self._all.mean - mine.size * mine.mean) / size
        between = mine.size * size / self._all.size * (mine.mean - mean) ** 2
        return Sample(size, mean, max(self._all.squares - mine.squares - between, 0.0))

    @cached_property
    def _quartiles(self) -> dict[int, tuple[float, float, float]]:
        quartiles: dict[int, tuple[float, float, float]] = {}
        for client in self.clients.tolist():
            values = self.variable.values[self._mine(client)]
            if len(values) >= LEAST_ROWS:
                quartiles[client] = _quartiles(values)
        return quartiles

    def _factor(self, client: int) -> float | None:
        """Return by what factor a client's numbers differ from those of the client whose median is the middle."""
        known = sorted(self._quartiles.values(), key=lambda three: (three[1], three))
        if client not in self._quartiles or len(known) < 2:
            return None
        return factor_between(self._quartiles[client], known[(len(known) - 1) // 2])

    def contrast(self, client: int, simultaneous: float) -> Contrast:
        """Return everything about one client; ``simultaneous`` is the level of intervals for all at once."""
        effect = self._effect(client, LEVEL)
        sure = self._effect(client, simultaneous)
        surely = max(sure.low, -sure.high, 0.0)  # NaN is none of these
        common = (client, self.variable.name, self.variable.kind, *effect, surely)
        if self.variable.categories:
            mine, rest = self._against(client)
            here = mine / max(mine.sum(), 1)
            others = rest / max(rest.sum(), 1)
            most = int(np.argmax(np.abs(here - others)))
            return Contrast(
                *common,
                float(here[most]),
                float(others[most]),
                category=self.variable.categories[most],
            )
        values = self.variable.values
        own = self._mine(client)
        others_values = np.concatenate([values[: own.start], values[own.stop :]])
        return Contrast(*common, _median(values[own]), _median(others_values), self._factor(client))


def _median(values: Floats) -> float:
    """Return the median; NaN of no numbers."""
    if not len(values):
        return math.nan
    return float(np.median(values))


def _quartiles(values: Floats) -> tuple[float, float, float]:
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    return low, middle, high


def variables_of(
    rows: Rows, partition: Partition, data: Dataset | None, most: int | None, seed: int
) -> list[Variable]:
    """Return what clients are compared by: the columns of a table in their own units, or means and spreads of channels.

    Of more than ``most`` columns a random sample. ``data`` has names and units; without it, or where it has none,
    features are numbered, and in the units in which they are stored.
    """
    names: tuple[str, ...] = ()
    pipeline: Pipeline | None = None
    if data:
        names = data.features
        pipeline = data.schema
    if isinstance(pipeline, Schema) and rows.x.ndim == 2:
        chosen = _chosen(len(pipeline.columns), most, seed)
        return list(_of_schema(pipeline, rows, partition, chosen))
    scaling = None
    if isinstance(pipeline, Scaling):
        scaling = pipeline
    variables: list[Variable] = []
    for entry in _chosen(rows.x.shape[1], most, seed).tolist():
        variables.extend(_of_entry(rows, partition, entry, names, scaling))
    return variables


def _chosen(count: int, most: int | None, seed: int) -> Ints:
    """Return the numbers of all columns, or of a random sample of them."""
    if most is None or count <= most:
        return np.arange(count)
    return np.sort(Stream(seed, "measure variables").sample(count, most))


def _of_schema(
    schema: Schema, rows: Rows, partition: Partition, chosen: Ints
) -> Iterator[Variable]:
    widths = [len(column.features) for column in schema.columns]
    starts = np.cumsum([0, *widths]).tolist()
    for place in chosen.tolist():
        column = schema.columns[place]
        part = slice(starts[place], starts[place + 1])
        x = whole(rows.x, "measure")[partition.rows, part]
        if isinstance(column, Numeric):
            values = in_units(x[:, 0], column.mean, column.deviation)
            yield Variable(column.name, _with_gaps(values, rows, partition, place))
        else:
            assert isinstance(column, Categories)
            titles = tuple(feature.removeprefix(f"{column.name}=") for feature in column.features)
            code = np.where(x.any(1), x.argmax(1), len(titles))  # a row may have none of them
            values = _with_gaps(code.astype(np.float64), rows, partition, place)
            yield Variable(column.name, values, (*titles, "none of these"))


def _with_gaps(values: Floats, rows: Rows, partition: Partition, place: int) -> Floats:
    """Return the values of a column, with NaN for entries that were filled in."""
    if rows.gaps is None:
        return values
    return np.where(rows.gaps[partition.rows, place], np.nan, values)


def gap_variables(rows: Rows, partition: Partition, data: Dataset | None) -> list[Variable]:
    """Return for each column of a table with missing entries which these are."""
    if rows.gaps is None or data is None or not isinstance(data.schema, Schema):
        return []
    variables = []
    for place, column in enumerate(data.schema.columns):
        there = ~rows.gaps[partition.rows, place]
        if not there.all():
            variables.append(Variable(column.name, there.astype(np.float64), (MISSING, "there")))
    return variables


def in_units(x: Features, mean: float, deviation: float) -> Floats:
    """Return standardised numbers in the units of their column, without the digits that single precision makes up.

    >>> standardised = ((np.array([0.0, 212.5]) - 198.8) / 109.4).astype(np.float32)
    >>> in_units(standardised, 198.8, 109.4).tolist()
    [0.0, 212.5]
    """
    apart = x.astype(np.float64) * deviation
    values = apart + mean
    largest = float(np.abs(apart).max(initial=0.0))
    if (mean, deviation) == (0.0, 1.0) or not largest:
        return values
    error = largest * float(np.finfo(np.float32).eps)
    rounded = np.round(values, -math.ceil(math.log10(error)))
    return rounded + 0.0  # which makes 0 of -0


def _of_entry(
    rows: Rows, partition: Partition, entry: int, names: Sequence[str], scaling: Scaling | None
) -> Iterator[Variable]:
    """Yield a column of numbers; or the mean and the deviation, over each row, of a channel of images or windows."""
    x = whole(rows.x, "measure")[partition.rows, entry]
    offset = 0.0
    factor = 1.0
    if scaling:
        offset = scaling.offset[entry]
        factor = scaling.factor[entry]
    name = f"channel {entry}"
    if x.ndim == 1:
        name = f"feature {entry}"
    if entry < len(names):
        name = names[entry]
    if x.ndim == 1:
        yield Variable(name, in_units(x, offset, 1 / factor))
        return
    values = x.reshape(len(x), -1)
    yield Variable(f"mean of {name}", values.mean(1, dtype=np.float64) / factor + offset)
    yield Variable(f"deviation of {name}", values.std(1, dtype=np.float64) / abs(factor))


def label_variables(rows: Rows, partition: Partition, names: Sequence[str]) -> list[Variable]:
    """Return the targets as variables: classes, numbers, or several labels with yes and no; none for tokens."""
    if rows.labelled:
        return [Variable("label", rows.labels[partition.rows].astype(np.float64), tuple(names))]
    y = rows.y[partition.rows].astype(np.float64)
    if rows.target == "number":
        return [Variable("target", y)]
    variables: list[Variable] = []
    if rows.target == "tokens":
        return variables
    for place, name in enumerate(names):
        if rows.target == "numbers":
            variables.append(Variable(f"target {name}", y[:, place]))
            continue
        variables.append(Variable(f"label {name}", y[:, place], ("no", "yes")))
    return variables
