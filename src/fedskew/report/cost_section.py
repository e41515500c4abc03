"""The section of a comparison's page about costs: what each method sends and how long it takes, against its gain."""

from collections.abc import Mapping
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from fedskew.core.units import SIZES, TIMES, unit_for
from fedskew.plots.drawing import PALETTE
from fedskew.report.charts import Option, frame
from fedskew.report.html_page import Page, grid
from fedskew.report.markup import Markup, table
from fedskew.study.comparison_rows import Configuration

if TYPE_CHECKING:
    from fedskew.study.comparison_table import Comparison


class _Cost(NamedTuple):
    """A cost by which methods differ: its name in the rows, its titles in the page and at an axis, and its units."""

    key: str
    title: str
    axis: str
    units: Mapping[str, float]


_COSTS = (
    _Cost("bytes", "bytes sent", "sent, both ways", SIZES),
    _Cost("simulated_seconds", "simulated time", "simulated time", TIMES),
)


def add_costs(page: Page, found: "Comparison") -> None:
    """Add a chart for every cell and cost; nothing without a control, as there is no gain then."""
    if found.rows.rules.control is None:
        return
    figures = []
    for number, cell in enumerate(found.judgement.families):
        for cost in _COSTS:
            figures += _figure(page, found, cell, cost, number)
    if figures:
        page.section("costs", "Cost against gain", grid(*figures))


def _gains(found: "Comparison", cell: str) -> dict[str, tuple[Configuration, float]]:
    """Return the mean gain of every judged method of a cell over the control, in the unit of the page."""
    gains = {}
    factor = found.rows.sign * found.judgement.unit.factor
    for one in found.judgement.competing:
        if one.cell != cell:
            continue
        contrast = found.judgement.contrast_of(one)
        if one.label == found.rows.rules.control:
            gains[one.label] = (one, 0.0)
        elif contrast is not None and contrast.mean is not None:
            gains[one.label] = (one, factor * contrast.mean)
    return gains


def _figure(page: Page, found: "Comparison", cell: str, cost: _Cost, number: int) -> list[Markup]:
    """Return the chart of a cost; none where fewer than two methods have it."""
    spent = {}
    for label, (one, gain) in _gains(found, cell).items():
        values = one.values(cost.key)
        if values:
            spent[label] = (fmean(values), gain)
    most = max((value for value, _ in spent.values()), default=0.0)
    if len(spent) < 2 or not most:
        return []
    unit = unit_for(most, cost.units)
    points = {}
    rows = []
    for label, (value, gain) in spent.items():
        points[label] = (value / cost.units[unit], gain)
        rows.append([label, f"{value / cost.units[unit]:.3g}", f"{gain:+.{found.digits}f}"])
    x = f"{cost.axis} ({unit})"
    y = f"gain over {found.rows.rules.control}"
    mark = found.judgement.unit.of_differences.strip()
    if mark:
        y += f" ({mark})"
    title = f"Gain against {cost.title}"
    if cell:
        title += f", {cell}"
    says = "Each point is the mean of a method over its blocks; up and to the left is better."
    name = f"cost-{cost.key.replace('_', '-')}-{number}"
    numbers = table(title, ["method", x, y], rows)
    return [page.chart(name, title, _scatter(points, x, y), says, numbers)]


def _scatter(points: Mapping[str, tuple[float, float]], x: str, y: str) -> Option:
    """Return one point with its name for every method, and the line of no gain."""
    option = frame(x, y)
    option["tooltip"] = {"trigger": "item", "confine": True}
    option["xAxis"] |= {"min": 0, "scale": False}
    option["series"] = []
    shapes = ("circle", "diamond", "triangle", "rect")
    for number, (label, (cost, gain)) in enumerate(points.items()):
        series: Option = {
            "type": "scatter",
            "name": label,
            "symbol": shapes[number % len(shapes)],
            "symbolSize": 14,
            "itemStyle": {"opacity": 0.7},
            "color": PALETTE[number % len(PALETTE)],
            "data": [[float(f"{cost:.4g}"), round(gain, 4)]],
        }
        if number == 0:
            series["markLine"] = {
                "silent": True,
                "symbol": "none",
                "label": {"show": False},
                "lineStyle": {"type": "solid", "width": 1, "color": "#888888"},
                "data": [{"yAxis": 0}],
            }
        option["series"].append(series)
    return option
