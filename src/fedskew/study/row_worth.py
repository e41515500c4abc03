"""How much one test row changes a score: what rounding to whole rows hides, and how wide a zone has to be."""

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from fedskew.core.streams import Ints
from fedskew.data.federation import Federation
from fedskew.runs.goals import Goal
from fedskew.study.judge import usual_zone

# Metrics that count rows; in all others the rows of a class count together
_COUNTED = ("accuracy", "exact_match", "micro_f1")


class RowWorth(NamedTuple):
    """How much one row changes a score.

    Args:
        rounding: as far as rounding to whole rows goes: its root mean square over classes and clients
        typical: a row of the test set or, of the goal own, of the median client over the root of the number of clients
    """

    rounding: float
    typical: float


def row_worth(fed: Federation, goal: Goal, metric: str) -> RowWorth:
    """Return how much one row changes the score of a goal on the rows of a federation; 0 without rows."""
    by_class = fed.data.target == "class" and goes_by_class(metric)
    classes = len(fed.data.classes)
    if goal == "shared":
        if by_class:
            return worth_of(np.bincount(fed.test.y, minlength=classes)[None])
        return worth_of(np.array([[len(fed.test)]]))
    if fed.tested_on is None:
        return RowWorth(0.0, 0.0)
    rows, split = fed.tested_on
    if by_class:
        return worth_of(split.counts(rows.y, classes, np.arange(split.clients)))
    return worth_of(split.sizes[:, None])


def goes_by_class(metric: str) -> bool:
    """Return whether a metric is not a plain share of the rows: then the rows of a class count together."""
    return metric not in _COUNTED


def worth_of(counts: Ints) -> RowWorth:
    """Return how much one row changes a mean over clients of means over classes, from the rows of each.

    One client stands for the test rows that all share.

    >>> [round(number, 3) for number in worth_of(np.array([[10, 0], [5, 5], [0, 0]]))]
    [0.087, 0.071]
    """
    sizes = counts.sum(1)
    there = counts[sizes > 0]
    if not len(there):
        return RowWorth(0.0, 0.0)
    classes = there > 0
    squares = np.where(classes, 1 / np.maximum(there, 1) ** 2, 0.0).sum(1)
    # The roundings of classes and of clients have nothing to do with each other
    of_each = np.sqrt(squares) / classes.sum(1)
    rounding = math.sqrt(float((of_each**2).sum())) / len(there)
    typical = 1 / (float(np.median(sizes[sizes > 0])) * math.sqrt(len(there)))
    return RowWorth(rounding, typical)


def row_and_zone(worth: Sequence[RowWorth], given: float | None) -> tuple[float, float | None]:
    """Return what rounding to whole rows hides at most in a block, and the zone: as given, or of the median block.

    >>> row_and_zone([RowWorth(0.01, 0.01), RowWorth(0.03, 0.02), RowWorth(0.02, 0.02)], None)
    (0.03, 0.04)
    """
    rounding, typical = zip(*worth, strict=True)
    zone = given
    if zone is None:
        zone = usual_zone(median(typical))
    return max(rounding), zone
