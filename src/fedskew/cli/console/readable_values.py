"""Values as people read them: metrics, times, amounts and small curves."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedskew.runs.folder import Row

_BLOCKS = "▁▂▃▄▅▆▇█"


def headline(row: "Row", part: str) -> "tuple[str, float | None]":
    """Return the task's first metric on this part: the column after that of the loss."""
    for column, value in row.items():
        if column.startswith(f"{part}_") and column != f"{part}_loss":
            return column.removeprefix(f"{part}_"), value
    return "", None


def metric_value(metric: str, value: float) -> str:
    """Return the value of a metric: an accuracy in per cent."""
    if metric == "accuracy":
        return f"{value:.1%}"
    return f"{value:.4g}"


def duration(seconds: float | None) -> str:
    """Return seconds as they are read on a clock.

    >>> duration(75), duration(3700), duration(None)
    ('1:15', '1:01:40', '-:--')
    """
    if seconds is None:
        return "-:--"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d}"
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def in_units(value: float, units: Mapping[str, float]) -> str:
    """Return an amount in the unit that suits it."""
    from fedskew.core.units import unit_for

    unit = unit_for(value, units)
    number = value / units[unit]
    if number >= 100:
        return f"{number:,.0f} {unit}"
    return f"{number:.3g} {unit}"


def sparkline(values: Sequence[float], width: int) -> str:
    """Return a curve of block characters from the lowest to the highest value; with many, some at even steps.

    >>> sparkline([0, 1, 2, 3], 10), sparkline(range(100), 3), sparkline([5, 5], 3)
    ('▁▃▅█', '▁▄█', '▁▁')
    """
    known = [value for value in values if math.isfinite(value)]
    if len(known) > width:
        last = len(known) - 1
        known = [known[round(place * last / (width - 1))] for place in range(width)]
    low = min(known, default=0.0)
    high = max(known, default=0.0)
    spread = (high - low) or 1
    blocks = ""
    for value in known:
        height = (value - low) / spread
        blocks += _BLOCKS[int(height * (len(_BLOCKS) - 1))]
    return blocks
