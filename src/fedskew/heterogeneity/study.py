"""The input of a measurement: the rows in the order of their clients, the features and the pairs of clients."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias, get_args

import numpy as np

from fedskew.core.errors import FedskewError, unknown
from fedskew.core.streams import Floats, Ints, Stream
from fedskew.data.dataset import Dataset, Features, Rows
from fedskew.data.federation import Federation
from fedskew.data.partition import Partition
from fedskew.data.schema import Schema
from fedskew.data.stored_rows import whole
from fedskew.heterogeneity.coded import Coded, Columns, code_labels
from fedskew.heterogeneity.gaps import TableGaps
from fedskew.heterogeneity.pairs import PAIRS_CONDITIONAL, Pairs, choose_pairs, default_pairs

_VALUES_AT_ONCE = 1 << 22

Convention: TypeAlias = Literal["mean", "fedartml"]
FEDARTML = ("hellinger", "wasserstein")  # the distances that this convention is about


@dataclass(frozen=True)
class Options:
    """The options of ``measure``."""

    features: int | None = 256
    bins: int = 20
    pairs: int | None = None
    min_rows: int = 20
    seed: int = 0
    convention: Convention = "mean"

    def __post_init__(self) -> None:
        if self.convention not in get_args(Convention):
            raise unknown("convention of measure", self.convention, get_args(Convention))
        least = {"features": 1, "bins": 2, "pairs": 1, "min_rows": 1}
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise FedskewError(f"measure: {name}={value} is out of range, it must be >= {low}")


@dataclass(frozen=True)
class Study:
    """Rows in the order of their clients, and what of them is compared; ``classes`` is 0 where rows have no labels."""

    rows: Rows
    partition: Partition
    classes: int
    options: Options
    data: Dataset | None = None  # where names and units are known

    @property
    def label_names(self) -> tuple[str, ...]:
        """Return the names of the classes, or of what stands in for them; their numbers where there are none."""
        if self.data is None:
            return tuple(map(str, range(self.classes)))
        return self.data.label_names

    @cached_property
    def labels(self) -> Coded:
        """Return the label of every row."""
        return self._by_convention(code_labels(self.rows.labels[self.partition.rows], self.classes))

    def features(self, load: int) -> Iterator[Coded]:
        """Yield one feature after the other; ``load`` is the number of clients, or pairs of them, per feature."""
        for coded in self.columns.coded(self.options.bins, load):
            yield self._by_convention(coded)

    def _by_convention(self, coded: Coded) -> Coded:
        if self.options.convention == "fedartml":
            return coded.as_in_fedartml()
        return coded

    @cached_property
    def columns(self) -> Columns:
        """Return the features to compare."""
        x = whole(self.rows.x, "measure").reshape(len(self.rows), -1)
        low, high = _range(x, self.partition.rows)
        varying = np.flatnonzero(high > low)
        wanted = self.options.features
        stream = Stream(self.options.seed, "measure features")
        if wanted is None or len(varying) <= wanted:
            chosen = varying
        else:
            chosen = varying[np.sort(stream.sample(len(varying), wanted))]
        return Columns(x, self.partition.rows, chosen, len(varying), low[chosen], high[chosen])

    @cached_property
    def gaps(self) -> TableGaps | None:
        """Return which entries of a table are filled in; None where none is, or where it is not known."""
        if self.rows.gaps is None or self.data is None:
            return None
        if not isinstance(self.data.schema, Schema):
            return None
        widths = [len(column.features) for column in self.data.schema.columns]
        return TableGaps(
            self.rows.gaps[self.partition.rows], np.repeat(np.arange(len(widths)), widths)
        )

    @cached_property
    def pairs(self) -> Pairs:
        """Return the pairs of clients to compare."""
        clients = self.partition.clients
        most = self.options.pairs or default_pairs(clients)
        return choose_pairs(clients, most, Stream(self.options.seed, "measure pairs"))

    @cached_property
    def few_pairs(self) -> Pairs:
        """Return fewer pairs, for views in which a pair takes many comparisons."""
        most = min(self.options.pairs or PAIRS_CONDITIONAL, PAIRS_CONDITIONAL)
        return choose_pairs(
            self.partition.clients, most, Stream(self.options.seed, "measure conditional pairs")
        )


def study_of(
    data: "Federation | Rows", partition: Partition | None, classes: int | None, options: Options
) -> Study:
    """Return the input of a measurement; raise an error if it cannot be measured."""
    if isinstance(data, Federation):
        if partition is not None:
            raise FedskewError(
                "measure: a federation has its own partition; give rows and a partition, or only the federation"
            )
        known = 0
        if data.train.labelled:
            known = len(data.data.label_names)
        checked = data.partition.check(len(data.train), overlap=True)
        return Study(data.train, checked, known, options, data.data)
    if not isinstance(data, Rows) or partition is None:
        raise FedskewError(
            f"measure needs what fedskew.split returns, or rows and their partition; got {type(data).__name__}"
        )
    partition.check(len(data), overlap=True)
    least = 0
    if data.labelled:
        least = int(data.labels[partition.rows].max()) + 1
    if classes is not None and classes < least:
        raise FedskewError(
            f"measure: {classes} classes, but there is a row of class {least - 1}: use classes={least} or more"
        )
    return Study(data, partition, classes or least, options)


def _range(x: Features, rows: Ints) -> tuple[Floats, Floats]:
    """Return the smallest and the largest value of every feature among these rows."""
    step = max(_VALUES_AT_ONCE // max(x.shape[1], 1), 1)
    low = np.full(x.shape[1], np.inf)
    high = np.full(x.shape[1], -np.inf)
    for start in range(0, len(rows), step):
        part = x[rows[start : start + step]]
        low = np.minimum(low, part.min(axis=0))
        high = np.maximum(high, part.max(axis=0))
    bad = np.flatnonzero(~np.isfinite(low) | ~np.isfinite(high))
    if len(bad):
        raise FedskewError(
            f"measure: feature {bad[0]} holds NaN or infinity: fill or remove such rows first"
        )
    return low, high
