"""Distances between distributions for many pairs: Hellinger, Jensen-Shannon, total variation, 1-Wasserstein."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedskew.core.streams import Floats, Ints

# The order of the rows of every result
DISTANCES = ("hellinger", "jensen-shannon", "total-variation", "wasserstein")

_CELLS_AT_ONCE = 1 << 18  # 2 MB per array, so that it stays in the cache


@dataclass(frozen=True)
class Profiles:
    """Distributions of one variable, one per line.

    ``shares`` are the shares of its bins. ``areas`` are the areas under the cumulative distribution, by steps of the
    variable, which is scaled to [0, 1]: the 1-Wasserstein distance of two distributions is the area between
    their cumulative distributions.
    """

    shares: Floats
    areas: Floats

    @cached_property
    def _roots(self) -> Floats:
        return np.sqrt(self.shares)

    @cached_property
    def entropy(self) -> Floats:
        """Return the entropy of the shares of each line, in bits."""
        bits: Floats = np.abs(_x_log_x(self.shares).sum(axis=1))
        return bits

    def take(self, lines: Ints) -> "Profiles":
        """Return these lines, in this order."""
        return Profiles(self.shares[lines], self.areas[lines])

    def between(self, first: Ints, second: Ints) -> Floats:
        """Return the four distances (in the order of ``DISTANCES``) between lines ``first[p]`` and ``second[p]``."""
        distances = np.empty((len(DISTANCES), len(first)))
        for part in _blocks(len(first), max(self.shares.shape[1], self.areas.shape[1])):
            one = first[part]
            two = second[part]
            middle = 0.5 * (self.entropy[one] + self.entropy[two])
            apart = self._roots[one] - self._roots[two]
            shares = (self.shares[one], self.shares[two])
            distances[0, part] = np.einsum("pb,pb->p", apart, apart)
            distances[1, part] = -_x_log_x(0.5 * (shares[0] + shares[1])).sum(axis=1) - middle
            distances[2, part] = 0.5 * np.abs(shares[0] - shares[1]).sum(axis=1)
            distances[3, part] = np.abs(self.areas[one] - self.areas[two]).sum(axis=1)
        distances[0] *= 0.5
        distances[:2] = np.sqrt(np.maximum(distances[:2], 0.0))
        return np.minimum(distances, 1.0)  # rounding may exceed it


def between(left: Profiles, right: Profiles) -> Floats:
    """Return the four distances from each line of ``left`` to the same line of ``right``, or to its only line."""
    count = len(left.shares)
    both = Profiles(
        np.concatenate([left.shares, right.shares]), np.concatenate([left.areas, right.areas])
    )
    other = np.zeros(count, dtype=np.int64)
    if len(right.shares) == count:
        other = np.arange(count)
    return both.between(np.arange(count), count + other)


def _x_log_x(shares: Floats) -> Floats:
    result: Floats = np.log2(np.maximum(shares, np.finfo(np.float64).tiny))
    result *= shares
    return result


def _blocks(count: int, width: int) -> Iterator[slice]:
    step = max(_CELLS_AT_ONCE // max(width, 1), 1)
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))
