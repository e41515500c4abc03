"""The stratified label schedule: how often each placeholder is trained on in an epoch, and in which order."""

from typing import Literal

import numpy as np

from fedskew.errors import FedskewError
from fedskew.streams import Ints, Stream


def frequencies(
    counts: Ints, *, frequency: Literal["uniform", "proportional"], per_label: int | None = None, cap: int | None = None
) -> Ints:
    """How often each placeholder comes in an epoch: f_l of paper 002, III-A.

    Never more often than it has rows, for a sample is used at most once an epoch: with uniform frequencies a placeholder with
    fewer rows than the others comes as often as it has rows.

    >>> frequencies(np.array([10, 2, 0, 6]), frequency="uniform").tolist()
    [6, 2, 0, 6]
    >>> frequencies(np.array([10, 2, 0, 6]), frequency="proportional", cap=5).tolist()
    [5, 2, 0, 5]

    Args:
        counts: rows of each placeholder, all clients together
        frequency: uniform: all equally often; proportional: each as often as it has rows
        per_label: how often with uniform; the mean count of the placeholders that have rows, rounded, when left out
        cap: how often at most with proportional; no limit when left out
    """
    for name, value in (("per_label", per_label), ("cap", cap)):
        if value is not None and value < 1:
            raise FedskewError(f"{name}={value} leaves no label to train on: use 1 or more, or leave it out")
    if frequency == "proportional":
        return counts.copy() if cap is None else np.minimum(counts, cap)
    held = counts[counts > 0]
    return np.minimum(counts, per_label or round(held.sum() / max(len(held), 1)))


def label_schedule(frequencies: Ints, stream: Stream) -> Ints:
    """Every placeholder as often as its frequency says, shuffled.

    >>> sorted(label_schedule(np.array([2, 0, 3]), Stream(0, "demo")).tolist())
    [0, 0, 2, 2, 2]
    """
    return np.repeat(np.arange(len(frequencies)), frequencies)[stream.permutation(int(frequencies.sum()))]
