"""The stratified label schedule: how often each placeholder is used in an epoch, and in which order."""

from typing import Literal

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.streams import Ints, Stream


def frequencies(
    counts: Ints,
    *,
    frequency: Literal["uniform", "proportional"],
    per_label: int | None = None,
    cap: int | None = None,
    reuse: bool = False,
) -> Ints:
    """Return how often each placeholder is used in an epoch: ``f_l`` of Stratify, section III-A.

    With uniform frequencies every placeholder that has rows is used equally often, so that ``P(l) = 1/L`` exactly
    (III-B). A sample is used at most once per epoch, so the frequency is at most the rows of the rarest; with
    ``reuse`` samples are used repeatedly, and it may be any number.

    >>> frequencies(np.array([10, 2, 0, 6]), frequency="uniform").tolist()
    [2, 2, 0, 2]
    >>> frequencies(np.array([10, 2, 0, 6]), frequency="uniform", reuse=True).tolist()
    [6, 6, 0, 6]
    >>> frequencies(np.array([10, 2, 0, 6]), frequency="proportional", cap=5).tolist()
    [5, 2, 0, 5]

    Args:
        counts: rows of each placeholder, all clients together
        frequency: uniform: all equally often; proportional: each as often as it has rows
        per_label: frequency with uniform; by default the rows of the rarest, with reuse the rounded mean of all
        cap: largest frequency with proportional; by default no limit
        reuse: whether rows may be used repeatedly within an epoch, where uniform needs more than there are
    """
    _require_one("per_label", per_label)
    _require_one("cap", cap)
    if frequency == "proportional":
        if cap is None:
            return counts.copy()
        return np.minimum(counts, cap)
    held = counts[counts > 0]
    if not len(held):
        return np.zeros_like(counts)
    if reuse:
        return (counts > 0) * (per_label or round(held.mean()))
    least = int(held.min())
    if per_label is not None and per_label > least:
        raise FedskewError(
            f"per_label={per_label} is more than the {least} rows of the rarest label: use per_label={least} or fewer, "
            "reuse=true to use rows again within an epoch, or frequency=proportional"
        )
    return (counts > 0) * (per_label or least)


def _require_one(name: str, value: int | None) -> None:
    """Raise an error if a frequency is given that is less than one."""
    if value is not None and value < 1:
        raise FedskewError(
            f"{name}={value} leaves no label to train on: use 1 or more, or leave it out"
        )


def label_schedule(frequencies: Ints, stream: Stream) -> Ints:
    """Return every placeholder as often as its frequency, shuffled.

    >>> sorted(label_schedule(np.array([2, 0, 3]), Stream(0, "demo")).tolist())
    [0, 0, 2, 2, 2]
    """
    order = stream.permutation(int(frequencies.sum()))
    return np.repeat(np.arange(len(frequencies)), frequencies)[order]
