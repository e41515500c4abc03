"""Units of time, of size and of scores, for numbers that people read."""

from collections.abc import Mapping
from dataclasses import dataclass

# In ascending order; the largest unit with a value of at least two is used.
TIMES = {"s": 1.0, "min": 60.0, "h": 3600.0, "days": 86400.0}
SIZES = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}


@dataclass(frozen=True)
class ScoreUnit:
    """How scores and their differences are written.

    Args:
        factor: by which they are multiplied
        of_scores: what stands after a score
        of_differences: what stands after a difference of two scores
    """

    factor: float = 1.0
    of_scores: str = ""
    of_differences: str = ""


AS_IT_IS = ScoreUnit()
PERCENT = ScoreUnit(100.0, "\u00a0%", " points")


def unit_for(most: float, units: Mapping[str, float]) -> str:
    """Return the largest unit in which this value is at least two, or else the smallest.

    >>> unit_for(90.0, TIMES), unit_for(1e7, SIZES)
    ('s', 'MB')
    """
    found, *larger = units
    for name in larger:
        if 2 * units[name] <= most:
            found = name
    return found
