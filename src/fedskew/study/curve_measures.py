"""What a curve over rounds comes to in one number: how smoothly a loss falls, how far it ends above its lowest."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise


def rising_share(numbers: Sequence[float]) -> float:
    """Return which share of a curve's movement goes up: 0 for one that only falls, 1/2 for one that goes to and fro.

    >>> rising_share([3.0, 1.0, 2.0, 1.0])
    0.25
    """
    up = 0.0
    down = 0.0
    for before, after in pairwise(numbers):
        up += max(after - before, 0.0)
        down += max(before - after, 0.0)
    if up + down == 0:
        return 0.0
    return up / (up + down)


def above_lowest(numbers: Sequence[float]) -> float:
    """Return how far a curve ends above its lowest point: of a test loss, how much overfitting has cost.

    >>> above_lowest([3.0, 1.0, 1.5])
    0.5
    """
    return numbers[-1] - min(numbers)


CURVE_MEASURES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "rising_share": rising_share,
    "above_lowest": above_lowest,
}
