"""Charts of the map of the atlas: points with names, and curves over a number of tries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedskew.plots.drawing import PALETTE
from fedskew.report.charts import Option, frame

_NATURAL, _MADE = "diamond", "circle"
_SHAPES = ("solid", "dashed", "dotted")


@dataclass(frozen=True)
class MapPoint:
    """A method in a cell: how heterogeneous its clients are, what it gained there, and the name of the cell."""

    heterogeneity: float
    gain: float
    cell: str
    natural: bool


def scatter(points: Mapping[str, Sequence[MapPoint]], x: str, y: str) -> Option:
    """Points by method; those of natural federations are diamonds."""
    option = frame(x, y)
    option["tooltip"] = {"trigger": "item", "confine": True}
    option["xAxis"] |= {"min": 0}
    option["series"] = []
    for number, (method, ones) in enumerate(points.items()):
        data = []
        for point in ones:
            symbol = _MADE
            if point.natural:
                symbol = _NATURAL
            data.append(
                {
                    "name": f"{method}, {point.cell}",
                    "value": [round(point.heterogeneity, 4), round(point.gain, 3)],
                    "symbol": symbol,
                }
            )
        option["series"].append(
            {
                "type": "scatter",
                "name": method,
                "symbolSize": 10,
                "color": PALETTE[number % len(PALETTE)],
                "data": data,
                "markLine": _zero(),
            }
        )
    return option


def _zero() -> Option:
    """Return the line of no gain."""
    return {
        "silent": True,
        "symbol": "none",
        "label": {"show": False},
        "lineStyle": {"type": "solid", "width": 1, "color": "#888888"},
        "data": [{"yAxis": 0}],
    }


def over_tries(curves: Mapping[str, Sequence[float]], x: str, y: str) -> Option:
    """A curve per method over 1, 2, ... tries."""
    option = frame(x, y, x_type="category")
    most = max(map(len, curves.values()))
    option["xAxis"]["data"] = list(map(str, range(1, most + 1)))
    option["series"] = []
    for number, (method, gains) in enumerate(curves.items()):
        shape = _SHAPES[number // len(PALETTE) % len(_SHAPES)]
        option["series"].append(
            {
                "type": "line",
                "name": method,
                "color": PALETTE[number % len(PALETTE)],
                "lineStyle": {"width": 2, "type": shape},
                "symbolSize": 6,
                "data": np.round(gains, 3).tolist(),
            }
        )
    return option
