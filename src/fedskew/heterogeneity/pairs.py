"""The pairs of clients that are compared: all, or a sample with its standard error; by all rows, or by stratum."""

import math
from dataclasses import dataclass, replace

import numpy as np

from fedskew.core.streams import Floats, Ints, Stream
from fedskew.heterogeneity.coded import Coded
from fedskew.heterogeneity.distances import DISTANCES

CLIENTS_EXACT = 500  # up to here, every pair
PAIRS_SAMPLED = 20_000  # beyond
PAIRS_CONDITIONAL = 1_000  # at most, where every pair is compared label by label or cell by cell


@dataclass(frozen=True)
class Pairs:
    """Pairs of different clients, ``first[p]`` and ``second[p]``, out of ``total``."""

    first: Ints
    second: Ints
    total: int

    @property
    def exact(self) -> bool:
        """Return whether these are all pairs."""
        return len(self.first) == self.total


def default_pairs(clients: int) -> int:
    """Return how many pairs are compared by default: all of up to 500 clients, then a sample."""
    if clients <= CLIENTS_EXACT:
        return CLIENTS_EXACT * (CLIENTS_EXACT - 1) // 2
    return PAIRS_SAMPLED


def choose_pairs(clients: int, most: int, stream: Stream) -> Pairs:
    """Return all pairs, or ``most`` of them drawn without repetition, without a clients x clients array.

    >>> pairs = choose_pairs(4, 10, Stream(0, "demo"))
    >>> sorted(zip(pairs.first.tolist(), pairs.second.tolist()))
    [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3), (3, 0)]
    """
    total = clients * (clients - 1) // 2
    if total <= most:
        number = np.arange(total)
    else:
        number = stream.sample(total, most)
    # Client i and the one 1, 2, … places further, cyclically: every pair has exactly one number.
    first = number % max(clients, 1)
    return Pairs(first, (first + number // max(clients, 1) + 1) % max(clients, 1), total)


def standard_error(values: Floats, total: int) -> float:
    """Return the standard error of the mean of ``values``, drawn without repetition from ``total``."""
    count = len(values)
    if count >= total:
        return 0.0
    if count < 2:
        return math.nan
    return float(values.std(ddof=1) / math.sqrt(count) * math.sqrt(1 - count / total))


@dataclass(frozen=True)
class Comparison:
    """Groups of rows, and which are compared: a group is a client, or a client's rows of one stratum.

    ``rows`` are ordered by group (None: all rows as they are). ``pair[c]`` is the pair of clients to which the
    comparison ``c`` of the groups ``first[c]`` and ``second[c]`` belongs; a pair's distance is the mean of its
    comparisons.
    """

    rows: Ints | None
    offsets: Ints
    first: Ints
    second: Ints
    pair: Ints
    pairs: int  # that have a comparison at all
    of: int  # pairs that were compared
    total: int  # all pairs

    def distances(self, coded: Coded) -> Floats:
        """Return the four distances of every pair that has a comparison, for one variable."""
        if not self.pairs:
            return np.empty((len(DISTANCES), 0))
        grouped = coded
        if self.rows is not None:
            grouped = coded.take(self.rows)
        apart = grouped.profiles(self.offsets).between(self.first, self.second)
        if len(self.pair) == self.pairs:
            return apart
        times = np.bincount(self.pair, minlength=self.pairs)
        means = []
        for line in apart:
            means.append(np.bincount(self.pair, weights=line, minlength=self.pairs) / times)
        return np.stack(means)

    @property
    def load(self) -> int:
        """Return how many distributions, or pairs of them, each variable has."""
        return max(len(self.offsets) - 1, len(self.first))

    def error(self, values: Floats) -> float:
        """Return the standard error from sampling pairs; pairs without a comparison count as drawn but missing."""
        share = 1.0
        if self.of:
            share = self.pairs / self.of
        return standard_error(values, max(round(self.total * share), self.pairs))


def whole_clients(offsets: Ints, pairs: Pairs) -> Comparison:
    """Return the comparison of every pair by all rows."""
    needed, ends = np.unique(np.concatenate([pairs.first, pairs.second]), return_inverse=True)
    count = len(pairs.first)
    rows: Ints | None = None
    inner = offsets
    if len(needed) < len(offsets) - 1:
        rows, inner = rows_of(offsets, needed)
    return Comparison(
        rows, inner, ends[:count], ends[count:], np.arange(count), count, count, pairs.total
    )


def within_strata(offsets: Ints, stratum: Ints, pairs: Pairs, min_rows: int) -> Comparison:
    """Return the comparison of every pair by stratum, where both have at least ``min_rows`` rows of it."""
    needed, ends = np.unique(np.concatenate([pairs.first, pairs.second]), return_inverse=True)
    rows, inner = rows_of(offsets, needed)
    strata = int(stratum.max()) + 1
    cell = np.repeat(np.arange(len(needed)), np.diff(inner)) * strata + stratum[rows]
    sizes = np.bincount(cell, minlength=len(needed) * strata)
    enough = sizes >= min_rows
    table = enough.reshape(len(needed), strata)
    count = len(pairs.first)
    one = ends[:count]
    two = ends[count:]
    pair, shared = np.nonzero(table[one] & table[two])
    compared, pair = np.unique(pair, return_inverse=True)
    number = np.cumsum(enough) - 1  # of the cells with enough rows
    if len(compared):
        which = compared[pair]
    else:
        which = pair
    first = number[one[which] * strata + shared]
    second = number[two[which] * strata + shared]
    kept = enough[cell]
    rows = rows[kept][np.argsort(cell[kept], kind="stable")]
    edges = np.concatenate([[0], np.cumsum(sizes[enough])])
    return Comparison(rows, edges, first, second, pair, len(compared), count, pairs.total)


def shuffled(comparison: Comparison, stratum: Ints | None, stream: Stream) -> Comparison:
    """Return the same groups with their rows assigned at random, within each stratum: what chance alone gives."""
    rows = comparison.rows
    if rows is None:
        rows = np.arange(int(comparison.offsets[-1]))
    mixed = rows[stream.permutation(len(rows))]
    if stratum is not None:
        places = np.argsort(stratum[rows], kind="stable")
        by_stratum = mixed[np.argsort(stratum[mixed], kind="stable")]
        mixed = np.empty_like(rows)
        mixed[places] = by_stratum
    return replace(comparison, rows=mixed)


def rows_of(offsets: Ints, clients: Ints) -> tuple[Ints, Ints]:
    """Return the row positions of these clients one after the other, and where each begins."""
    sizes = np.diff(offsets)[clients]
    inner = np.concatenate([[0], np.cumsum(sizes)])
    return np.arange(inner[-1]) + np.repeat(offsets[clients] - inner[:-1], sizes), inner
