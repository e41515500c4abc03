"""Profiles of clients: what a client tells about itself, with which noise, and what the server makes of it.

What is known of clients is a mapping from names to arrays, one entry for each client: the ``entropy`` of its labels,
its ``reliability``, the mean ``seconds`` of its training, and its ``consistency``. An unknown entry is NaN. A client
that was selected and never completed a round has infinite seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedskew.algorithms.selection import ClientPool, SelectionTotals
from fedskew.core.streams import Bits, Floats, Ints, bits

# Clients whose entropies are computed together, so that memory suffices for millions
_AT_ONCE = 100_000
# Standard deviations from the mean time at which a client has the highest or the lowest speed, by moments
_REACH = 2.0
# How strongly learnt weights are pulled to the fixed ones: as much as so many updates
_RIDGE = 1.0


@dataclass(frozen=True)
class Noise:
    """Laplace noise on what clients tell, so that all tellings of a client together are epsilon-differentially private.

    Basic composition: each of the ``parts`` of each of ``tellings`` has an equal share of ``epsilon``.

    >>> Noise(epsilon=6.0, tellings=2, parts=3).share
    1.0
    """

    epsilon: float
    tellings: int
    parts: int

    @property
    def share(self) -> float:
        """Return the epsilon of one number."""
        return self.epsilon / (self.tellings * self.parts)

    def added(self, values: Floats, lowest: float, highest: float, words: Bits) -> Floats:
        """Return the values, clipped to their declared range, with noise by random words, and clipped again.

        Entries that are not finite stay: the server knows by itself who was never selected, or never completed a round.
        """
        clipped = np.clip(values, lowest, highest)
        noisy = clipped + (highest - lowest) * laplace(words) / self.share
        return np.where(np.isfinite(values), np.clip(noisy, lowest, highest), values)


def words_of(seed: int, part: int, times: Ints, clients: Ints) -> Bits:
    """Return the random words of clients for a part of a profile, by how often each has told it before."""
    return bits(seed, "profile", part, times, clients)


def laplace(words: Bits) -> Floats:
    """Return Laplace noise of scale 1: the inverse distribution function at uniform numbers."""
    uniform = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
    uniform = np.maximum(uniform, 2.0**-54)  # 0 has no finite inverse
    noise: Floats = np.where(uniform < 0.5, np.log(2 * uniform), -np.log(2 * (1 - uniform)))
    return noise


def label_entropy(counts: Ints) -> Floats:
    """Return the entropy of each row of counts divided by its maximum: 0 for a single label, 1 for equal counts."""
    entropy = np.empty(len(counts))
    for first in range(0, len(counts), _AT_ONCE):
        some = counts[first : first + _AT_ONCE]
        rows = np.maximum(some.sum(1), 1)
        nats = np.log(rows) - (some * np.log(np.maximum(some, 1))).sum(1) / rows
        entropy[first : first + _AT_ONCE] = np.clip(
            nats / np.log(max(counts.shape[1], 2)), 0.0, 1.0
        )
    return entropy


def from_records(pool: ClientPool) -> dict[str, Floats]:
    """Return what follows of the clients of a pool from their entropies and the records of past rounds."""
    rounds = np.maximum(pool.completed, 1)
    chosen = pool.selected > 0
    completed = pool.completed > 0
    never = np.where(chosen, np.inf, np.nan)
    found = {
        "entropy": pool.profile["entropy"],
        "reliability": np.where(chosen, pool.completed / np.maximum(pool.selected, 1), np.nan),
        "seconds": np.where(completed, pool.seconds / rounds, never),
    }
    if len(pool.agreement):
        found["consistency"] = np.where(completed, pool.agreement / rounds, np.nan)
    return found


def totals_of(known: Mapping[str, Floats]) -> SelectionTotals:
    """Return the totals of what clients have told."""
    nothing = np.full(len(next(iter(known.values()))), np.nan)
    reliability = known.get("reliability", nothing)
    seconds = known.get("seconds", nothing)
    consistency = known.get("consistency", nothing)
    chosen = ~np.isnan(reliability) | ~np.isnan(seconds)
    completed = np.isfinite(seconds) | ~np.isnan(consistency)
    timed = seconds[np.isfinite(seconds)]
    return SelectionTotals(
        selected=chosen.sum(),
        completed=completed.sum(),
        reliability=np.nansum(reliability),
        seconds=timed.sum(),
        squares=(timed**2).sum(),
        shortest=timed.min(initial=np.inf),
        longest=timed.max(initial=-np.inf),
        agreement=np.nansum(consistency),
    )


def parts_of(
    known: Mapping[str, Floats], totals: SelectionTotals, moments: bool
) -> dict[str, Floats]:
    """Return the parts of scores, each in [0, 1]; an unknown part is the mean of the known ones, 1 if there is none."""
    parts = {}
    for name, values in known.items():
        if name == "seconds":
            spread = _by_extremes
            if moments:
                spread = _by_moments
            speed, total = spread(values, totals)
            speed = np.where(np.isfinite(values), speed, 0.0)
            parts["speed"] = _filled(speed, np.isnan(values), total, totals.selected)
        elif name == "reliability":
            parts[name] = _filled(values, np.isnan(values), totals.reliability, totals.selected)
        elif name == "consistency":
            parts[name] = _filled(values, np.isnan(values), totals.agreement, totals.completed)
        else:
            parts[name] = values
    return parts


def _by_extremes(time: Floats, totals: SelectionTotals) -> tuple[Floats, float]:
    """Return 1 for the shortest known time, 0 for the longest, linear in between, and the sum of all known ones.

    All are 1 where the known times are equal.
    """
    shortest = float(totals.shortest)
    longest = float(totals.longest)
    count = int(totals.completed)
    # Means of the same time over other numbers of rounds differ in their last bits.
    if not count or longest - shortest <= 1e-9 * longest:
        return np.ones(len(time)), count
    return (longest - time) / (longest - shortest), (count * longest - float(totals.seconds)) / (
        longest - shortest
    )


def _by_moments(time: Floats, totals: SelectionTotals) -> tuple[Floats, float]:
    """Return 1/2 for the mean time, 1 and 0 for two standard deviations less and more, and the sum of all known ones.

    The sum is that before clipping to [0, 1]. All are 1 where the known times are equal.
    """
    count = int(totals.completed)
    if not count:
        return np.ones(len(time)), count
    mean = float(totals.seconds) / count
    deviation = max(float(totals.squares) / count - mean**2, 0.0) ** 0.5
    # The difference of two sums has half of the digits.
    if deviation <= 1e-6 * mean:
        return np.ones(len(time)), count
    return np.clip(0.5 + (mean - time) / (2 * _REACH * deviation), 0.0, 1.0), count / 2


def _filled(
    values: Floats, unknown: NDArray[np.bool_], total: "Floats | float", count: Ints
) -> Floats:
    """Return the values with the mean of all known ones in place of the unknown; 1 if none is known."""
    mean = 1.0
    if count:
        mean = float(total / count)
    filled: Floats = np.where(unknown, mean, values)
    return filled


def ridge(lessons: Floats, fixed: Floats) -> Floats:
    """Return an intercept and weights of the parts: the ridge regression of usefulness that is pulled to ``fixed``.

    ``lessons`` are the normal equations of past rounds, ``X'X`` with ``X'y`` as its last column.

    >>> rows, useful = np.array([[1.0, 0.0], [1.0, 1.0]]), np.array([0.0, 1.0])
    >>> ridge(np.column_stack([rows.T @ rows, rows.T @ useful]), np.array([0.0, 1.0])).tolist()
    [0.0, 1.0]
    """
    if not len(lessons):
        return fixed
    size = len(fixed)
    squares = lessons[:, :size] + _RIDGE * np.eye(size)
    return np.asarray(np.linalg.solve(squares, lessons[:, size] + _RIDGE * fixed), dtype=np.float64)
