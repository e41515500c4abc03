"""One variable of all rows as bin numbers, and each client's distribution of it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedskew.core.streams import Floats, Ints
from fedskew.data.dataset import Features
from fedskew.heterogeneity.distances import Profiles

STEPS = 256  # of a feature, where it has too many distinct values
# Clients, or pairs of clients, x distinct values up to which the distinct values are the steps
_CELLS_EXACT = 1 << 20
_DISTINCT = 1 << 16  # and never more distinct values than this
_CELLS_AT_ONCE = 1 << 22
_VALUES_AT_ONCE = 1 << 24


@dataclass(frozen=True)
class Coded:
    """The bin and the step (an interval for Wasserstein distances) of every row, rows ordered by group.

    ``beyond`` is the share of its step above a row's value, the part of the step on which the cumulative distribution
    has its jump; None where every value is at the beginning of its step. With ``ranked_shares`` there are no steps:
    see ``as_in_fedartml``.
    """

    bins: Ints
    bin_count: int
    steps: Ints
    widths: Floats
    beyond: Floats | None = None
    ranked_shares: bool = False

    def take(self, rows: "Ints | slice") -> "Coded":
        """Return these rows, in this order."""
        beyond = None
        if self.beyond is not None:
            beyond = self.beyond[rows]
        return replace(self, bins=self.bins[rows], steps=self.steps[rows], beyond=beyond)

    def as_in_fedartml(self) -> "Coded":
        """Return the variable with the Wasserstein distance of FedArtML 0.1.34, ``earth_movers_distance``.

        It takes the K shares of two clients as two samples of K numbers: the distance is the mean difference of the
        shares in their order, largest with largest. Which class or bin a share belongs to does not enter, so that a
        client with only class 0 is at distance 0 from one with only class 9.
        """
        return replace(self, ranked_shares=True)

    def profiles(self, offsets: Ints) -> Profiles:
        """Return the distribution within each group of rows, ``offsets[g]`` up to ``offsets[g + 1]``."""
        sizes = np.diff(offsets)[:, None]
        group = np.repeat(np.arange(len(sizes)), sizes[:, 0])
        shares = _count(group, self.bins, len(sizes), self.bin_count) / sizes
        if self.ranked_shares:
            return Profiles(shares, np.sort(shares, axis=1) / self.bin_count)
        jumps = _count(group, self.steps, len(sizes), len(self.widths))
        areas = np.cumsum(jumps, axis=1)
        if self.beyond is not None:
            areas += _count(group, self.steps, len(sizes), len(self.widths), self.beyond) - jumps
        areas *= self.widths / sizes
        return Profiles(shares, areas)

    def profiles_in_turn(self, offsets: Ints) -> Iterator[tuple[slice, Profiles]]:
        """Yield the same for many groups, some at a time, so that memory does not grow with their number."""
        step = max(_CELLS_AT_ONCE // max(self.bin_count, len(self.widths)), 1)
        for start in range(0, len(offsets) - 1, step):
            groups = slice(start, min(start + step, len(offsets) - 1))
            inner = offsets[groups.start : groups.stop + 1]
            yield groups, self.take(slice(int(inner[0]), int(inner[-1]))).profiles(inner - inner[0])


def _count(
    group: Ints, code: Ints, groups: int, codes: int, weights: Floats | None = None
) -> Floats:
    counted = np.bincount(group * codes + code, weights=weights, minlength=groups * codes)
    return counted.reshape(groups, codes).astype(np.float64, copy=False)


def code_labels(y: Ints, classes: int) -> Coded:
    """Return labels with one bin each, and class k of K at k / (K - 1) of the line."""
    widths = np.full(classes, 1 / max(classes - 1, 1))
    widths[-1] = 0.0
    return Coded(y, classes, y, widths)


def code_feature(scaled: Floats, bins: int, exact_up_to: int) -> Coded:
    """Return a feature scaled to [0, 1]: bins of equal width; steps at its distinct values, or ``STEPS`` equal ones."""
    code = np.minimum((scaled * bins).astype(np.int64), bins - 1)
    distinct = _distinct(scaled, max(exact_up_to, STEPS))
    if distinct is not None:
        return Coded(
            code, bins, np.searchsorted(distinct, scaled), np.diff(distinct, append=distinct[-1])
        )
    line = scaled * STEPS
    steps = np.minimum(line.astype(np.int64), STEPS - 1)
    return Coded(code, bins, steps, np.full(STEPS, 1 / STEPS), steps + 1 - line)


def _distinct(scaled: Floats, most: int) -> Floats | None:
    """Return the distinct values in order, or None if there are more than ``most``; a sample is tried first."""
    glance = scaled[:: max(len(scaled) // (2 * _DISTINCT), 1)]
    if len(np.unique(glance)) > most:
        return None
    distinct: NDArray[np.float64] = np.unique(scaled)
    if len(distinct) <= most:
        return distinct
    return None


@dataclass(frozen=True)
class Columns:
    """The features of the rows, flattened, that are compared; constant ones are omitted."""

    x: Features  # rows x all features
    rows: Ints  # which rows, group by group
    chosen: Ints  # which features
    varying: int  # how many could have been chosen
    low: Floats
    high: Floats

    def scaled(self, columns: "Ints | slice", rows: "Ints | slice" = slice(None)) -> Floats:
        """Return some of the chosen features, one per line, scaled so that all rows together span [0, 1]."""
        values = self.x[self.rows[rows][:, None], self.chosen[columns]].T.astype(
            np.float64, order="C"
        )
        low = self.low[columns][:, None]
        high = self.high[columns][:, None]
        values -= low
        values /= high - low
        return values

    def coded(self, bins: int, load: int) -> Iterator[Coded]:
        """Yield one feature after the other; ``load`` is the number of clients, or pairs of them, per feature."""
        exact_up_to = min(_CELLS_EXACT // max(load, 1), _DISTINCT)
        step = max(_VALUES_AT_ONCE // max(len(self.rows), 1), 1)
        for start in range(0, len(self.chosen), step):
            for scaled in self.scaled(slice(start, start + step)):
                yield code_feature(scaled, bins, exact_up_to)
