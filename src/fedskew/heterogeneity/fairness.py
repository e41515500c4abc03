"""Fairness and convergence: Gini coefficient, the worst clients, rounds to a share of the final value."""

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import FedskewError

Numbers: TypeAlias = Sequence[float] | NDArray[np.floating] | NDArray[np.integer]


def gini(values: Numbers) -> float:
    """Return the Gini coefficient of non-negative numbers: 0 when all are equal, (n-1)/n when one has everything.

    Half the mean absolute difference of all pairs, divided by the mean; over the sorted values that is
    ``sum_i (2i - n - 1) x_i / (n sum x)``. AFL-CP uses each client's total aggregation weight.

    >>> gini([1, 1, 1, 1]), gini([0, 0, 0, 8])
    (0.0, 0.75)
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    if ordered.size == 0:
        raise FedskewError("the Gini coefficient of no values is not defined")
    if not np.all(ordered >= 0) or not math.isfinite(ordered[-1]):
        raise FedskewError(
            f"the Gini coefficient needs finite values >= 0, got {ordered[0]:g} … {ordered[-1]:g}"
        )
    if ordered[-1] == 0:
        return 0.0
    count = ordered.size
    ordered /= ordered[-1]  # so that the sum of very large numbers stays finite
    ranks = 2 * np.arange(1, count + 1) - count - 1
    return float(ranks @ ordered / (count * ordered.sum()))


def worst_share_mean(values: Numbers, share: float = 0.1) -> float:
    """Return the mean over the worst ``share`` of the clients, rounded up to whole clients; NaN without clients.

    Clients with NaN (nothing to measure) are omitted.

    >>> worst_share_mean([0.9, 0.25, 0.8, 0.5], share=0.5)
    0.375
    """
    if not 0 < share <= 1:
        raise FedskewError(f"a share of {share:g} is out of range, it must be > 0 and <= 1")
    numbers = np.asarray(values, dtype=np.float64)
    numbers = numbers[np.isfinite(numbers)]
    # 0.1 * 30 is a little more than 3 in floating point and must not count as 4 clients.
    worst = np.sort(numbers)[: math.ceil(share * numbers.size - 1e-9)]
    if worst.size:
        return float(worst.mean())
    return math.nan


def rounds_to_share(values: Numbers, share: float = 0.9, goal: float | None = None) -> int | None:
    """Return the first round, counted from 1, whose value reaches ``share`` of a goal; None if there is none.

    The default goal is the last value. AFL-CP's convergence speed uses 90 % of the final accuracy (section 4.6) or of
    the maximum (section 2.1). Rounds that were not measured are NaN.

    >>> rounds_to_share([0.1, 0.5, 0.75, 0.7, 0.8])
    3
    """
    if not 0 < share <= 1:
        raise FedskewError(f"a share of {share:g} is out of range, it must be > 0 and <= 1")
    numbers = np.asarray(values, dtype=np.float64)
    goals = numbers[-1:]
    if goal is not None:
        goals = np.array([goal])
    target = share * goals
    # 0.72 reaches 0.9 of 0.8, rounding or not
    reached = np.flatnonzero(numbers >= target - 1e-12 * np.abs(target))
    if reached.size:
        return int(reached[0]) + 1
    return None
