"""Effect sizes with confidence intervals: Hedges' g of means, Cramér's V of categories, AUC of a classifier."""

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from fedskew.core.streams import Floats, Ints

LEVEL = 0.95


class Effect(NamedTuple):
    """A value and the ends of its confidence interval."""

    value: float
    low: float
    high: float


def with_interval(effect: Effect) -> str:
    """Return an effect and its interval as text.

    >>> with_interval(Effect(0.5, 0.25, 0.75))
    '0.50 [0.25, 0.75]'
    """
    return f"{effect.value:.2f} [{effect.low:.2f}, {effect.high:.2f}]"


class Sample(NamedTuple):
    """How many numbers there are, their mean, and the sum of squared differences from it."""

    size: int
    mean: float
    squares: float

    @classmethod
    def of(cls, values: Floats) -> "Sample":
        """Return what describes these numbers."""
        if not len(values):
            return cls(0, 0.0, 0.0)
        mean = float(values.mean())
        return cls(len(values), mean, float(np.square(values - mean).sum()))


def z_of(level: float) -> float:
    """Return how many standard errors an interval of this level reaches to either side."""
    return NormalDist().inv_cdf(0.5 + level / 2)


def hedges_g(one: Sample, other: Sample, level: float = LEVEL) -> Effect:
    """Return the standardised difference of two means, with Hedges' correction for small samples (Hedges 1981).

    The interval is that for large samples (Hedges and Olkin 1985): variance (n + m) / (n m) + g^2 / (2 (n + m)). Means
    that differ without any spread are infinitely far apart.

    >>> effect = hedges_g(Sample(10, 1.0, 9.0), Sample(10, 0.0, 9.0))
    >>> [round(value, 3) for value in effect]
    [0.958, 0.032, 1.883]
    """
    n, m = one.size, other.size
    freedom = n + m - 2
    apart = one.mean - other.mean
    if freedom < 1 or not n * m:
        return Effect(math.nan, math.nan, math.nan)
    spread = math.sqrt((one.squares + other.squares) / freedom)
    if spread == 0 or not math.isfinite(apart / spread):
        far = 0.0
        if apart:
            far = math.copysign(math.inf, apart)
        return Effect(far, far, far)
    g = apart / spread * (1 - 3 / (4 * freedom - 1))
    reach = z_of(level) * math.sqrt((n + m) / (n * m) + g * g / (2 * (n + m)))
    return Effect(g, g - reach, g + reach)


class _Table(NamedTuple):
    """A table of counts without empty rows and columns: its chi-square, degrees of freedom, sum and Cramér's V."""

    chi: float
    freedom: int
    total: float
    most: int  # what V is divided by, without the correction
    v: float


def _table_of(counts: Ints) -> _Table:
    table = counts[counts.sum(1) > 0][:, counts.sum(0) > 0].astype(np.float64)
    total = float(table.sum())
    rows, columns = table.shape
    if min(rows, columns) < 2:
        return _Table(0.0, 0, total, 0, 0.0)
    due = table.sum(1, keepdims=True) * table.sum(0, keepdims=True) / total
    chi = float((np.square(table - due) / due).sum())
    freedom = (rows - 1) * (columns - 1)
    surplus = max(0.0, chi / total - freedom / (total - 1))
    room = min(
        rows - 1 - (rows - 1) ** 2 / (total - 1), columns - 1 - (columns - 1) ** 2 / (total - 1)
    )
    v = 0.0
    if room > 0:
        v = min(1.0, math.sqrt(surplus / room))
    return _Table(chi, freedom, total, min(rows, columns) - 1, v)


def cramers_v(counts: Ints) -> float:
    """Return Cramér's V of a table of counts, corrected for bias (Bergsma 2013); 0 where rows have equal shares.

    >>> round(cramers_v(np.array([[30, 10], [10, 30]])), 3)
    0.49
    """
    return _table_of(counts).v


def cramers_v_interval(counts: Ints, level: float = LEVEL) -> Effect:
    """Return Cramér's V with its interval.

    The ends are the noncentralities for which the chi-square of the table lies at either end (Smithson 2003); for the
    upper one it is at least what equal shares give on average.

    >>> [round(value, 3) for value in cramers_v_interval(np.array([[30, 10], [10, 30]]))]
    [0.49, 0.281, 0.719]
    """
    chi, freedom, total, most, v = _table_of(counts)
    if not freedom:
        return Effect(0.0, 0.0, 0.0)
    low = _noncentrality(chi, freedom, 0.5 + level / 2)
    high = _noncentrality(max(chi, freedom), freedom, 0.5 - level / 2)
    low_v = math.sqrt(low / (total * most))
    high_v = math.sqrt(high / (total * most))
    return Effect(v, min(low_v, v), max(min(high_v, 1.0), v))


def _noncentrality(chi: float, freedom: int, probability: float) -> float:
    """Return the noncentrality for which a chi-square is below the given one with this probability; 0 if for none."""
    from scipy.optimize import brentq
    from scipy.stats import chi2, ncx2

    def beyond(centre: float) -> float:
        if centre > 0:
            below = ncx2.cdf(chi, freedom, centre)
        else:
            below = chi2.cdf(chi, freedom)
        return float(below) - probability

    if beyond(0.0) <= 0:
        return 0.0
    high = max(chi, 1.0)
    while beyond(high) > 0:
        high *= 2
    return float(brentq(beyond, 0.0, high, xtol=1e-9 * high))


def auc_interval(auc: float, positive: int, negative: int, level: float = LEVEL) -> Effect:
    """Return an AUC from so many rows of either kind with its interval (Newcombe 2006, method 5).

    The variance is that of Hanley and McNeil (1982) with the mean of both numbers, at the end and not at the estimate,
    so that an AUC of 1 has an interval too.

    >>> [round(value, 3) for value in auc_interval(0.8, 50, 50)]
    [0.8, 0.697, 0.871]
    """
    if math.isnan(auc):
        return Effect(math.nan, math.nan, math.nan)
    z = z_of(level)
    middle = (positive + negative) / 2 - 1

    def reach(end: float) -> float:
        shape = 1 + middle * ((1 - end) / (2 - end) + end / (1 + end))
        return z * math.sqrt(max(end * (1 - end) * shape / (positive * negative), 0.0))

    return Effect(auc, _end(auc, 0.0, reach), _end(auc, 1.0, reach))


def _end(auc: float, limit: float, reach: Callable[[float], float]) -> float:
    """Return the value between the AUC and a limit that is just as far away as its interval reaches."""
    from scipy.optimize import brentq

    def beyond(end: float) -> float:
        return abs(auc - end) - reach(end)

    if beyond(limit) <= 0:
        return limit
    inside = limit + (auc - limit) * (1 - 1e-12)  # at an AUC of 0 or 1 itself there is no spread
    if beyond(inside) < 0:
        return float(brentq(beyond, inside, limit, xtol=1e-9))
    return auc
