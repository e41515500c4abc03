"""Metrics that follow from the order of scores: AUC and average precision, both from one sort, and concordance."""

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedskew.core.streams import Floats

Flags: TypeAlias = NDArray[np.bool_]
_PAIRS = 1 << 22  # of rows that are compared at a time


class Ranked(NamedTuple):
    """AUC and average precision of some rows.

    The AUC is the chance that a positive row scores above a negative one, where ties are half. The average precision
    is the mean, over the positive rows, of the precision at the score of each: the area under the steps of the
    precision-recall curve, without interpolation. Rows of equal score are taken together.

    The AUC is NaN without positive or without negative rows, the average precision without positive ones (scikit-learn
    returns 0 with a warning), and both with a score that is NaN.
    """

    auc: float
    average_precision: float


def ranked(scores: Floats, positive: Flags) -> Ranked:
    """Return AUC and average precision of scores, given which rows are positive.

    >>> ranked(np.array([0.1, 0.4, 0.4, 0.8]), np.array([False, False, True, True]))
    Ranked(auc=0.875, average_precision=0.8333333333333333)
    """
    ordered = np.sort(scores)
    mine = np.sort(scores[positive])
    rows = len(scores)
    hits = len(mine)
    if not hits or np.isnan(ordered[-1]):  # NaN is sorted to the end
        return Ranked(np.nan, np.nan)
    # Of every positive row, how many rows score less, and how many no more: whole numbers, so the sum is exact
    below = np.searchsorted(ordered, mine, "left")
    not_above = np.searchsorted(ordered, mine, "right")
    hits_below = np.searchsorted(mine, mine, "left")
    precision = (hits - hits_below) / (rows - below)
    pairs = hits * (rows - hits)
    area = np.nan
    if pairs:
        area = (int((below + not_above).sum()) - hits**2) / 2 / pairs
    return Ranked(area, float(precision.mean()))


def mean_ranked(columns: Floats, positive: Flags) -> Ranked:
    """Return the means of both over columns, each a row of ``columns`` and ``positive``."""
    each = []
    for column, hits in zip(columns, positive, strict=True):
        each.append(ranked(column, hits))
    areas, precisions = np.array(each).reshape(-1, 2).T
    return Ranked(float(np.mean(areas)), float(np.mean(precisions)))


def concordance(risks: Floats, times: Floats, events: Flags) -> float:
    """Return Harrell's concordance index: how often, of two rows, the one with the earlier event has the larger risk.

    Equal risks are half. A pair is comparable if one row has an event, and the other has a later time, or the same one
    without an event. NaN without comparable pairs, and with a risk that is NaN.

    >>> concordance(np.array([3.0, 1.0, 2.0]), np.array([1.0, 2.0, 3.0]), np.array([True, True, False]))
    0.6666666666666666
    """
    if np.isnan(risks).any():
        return np.nan
    won = tied = pairs = 0
    happened = np.flatnonzero(events)
    step = max(1, _PAIRS // max(len(risks), 1))
    for first in range(0, len(happened), step):
        some = happened[first : first + step, None]
        comparable = (times > times[some]) | ((times == times[some]) & ~events)
        pairs += int(comparable.sum())
        won += int((comparable & (risks < risks[some])).sum())
        tied += int((comparable & (risks == risks[some])).sum())
    if not pairs:
        return np.nan
    return (won + tied / 2) / pairs
