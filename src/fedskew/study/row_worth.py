"""How much one test row changes a score: what rounding to whole rows hides, and how wide a zone has to be."""

import math
from typing import NamedTuple

import numpy as np

from fedskew.core.streams import Floats, Ints
from fedskew.data.federation import Federation
from fedskew.runs.goals import Goal

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
    if goal == "shared":
        if not len(fed.test):
            return RowWorth(0.0, 0.0)
        counts = np.array([len(fed.test)])[None]
        if _goes_by_class(fed, metric):
            counts = np.bincount(fed.test.y, minlength=len(fed.data.classes))[None]
        return RowWorth(float(_of_each(counts)[0]), 1 / len(fed.test))
    if fed.tested_on is None:
        return RowWorth(0.0, 0.0)
    rows, split = fed.tested_on
    clients = np.flatnonzero(split.sizes)
    if not len(clients):
        return RowWorth(0.0, 0.0)
    sizes = split.sizes[clients]
    counts = sizes[:, None]
    if _goes_by_class(fed, metric):
        counts = split.counts(rows.y, len(fed.data.classes), clients)
    # The score is the mean over the clients, whose roundings have nothing to do with each other
    rounding = math.sqrt(float((_of_each(counts) ** 2).sum())) / len(clients)
    return RowWorth(rounding, 1 / (float(np.median(sizes)) * math.sqrt(len(clients))))


def _goes_by_class(fed: Federation, metric: str) -> bool:
    return fed.data.target == "class" and metric not in _COUNTED


def _of_each(counts: Ints) -> Floats:
    """Return what rounding to whole rows does to the mean over classes, for every client: client x class in.

    >>> _of_each(np.array([[10, 0], [5, 5]])).round(3).tolist()
    [0.1, 0.141]
    """
    there = counts > 0
    squares = np.where(there, 1 / np.maximum(counts, 1) ** 2, 0.0).sum(1)
    found: Floats = np.sqrt(squares) / there.sum(1)
    return found
