"""The figures of a comparison, as wide as one or two columns of a paper: curves, and a critical-difference diagram."""

import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedskew.plots.drawing import (
    PALETTE,
    Curve,
    all_shortened,
    as_written,
    only_point,
    shortened,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN, PAGE = 8.5 / 2.54, 17 / 2.54  # inches
_FEW = 6  # methods in one column
_LONGEST = 34  # characters of a name in a legend
_SIZE = 7  # points
_CHARACTER = 0.058  # inches, of this size
_STYLES = ("-", "--", ":", "-.")
_INK: dict[str, Any] = {"color": "black", "linewidth": 0.7, "solid_capstyle": "butt"}
Panels = Mapping[str, Mapping[str, Curve]]  # by title, then by the label of the method


# -- curves ------------------------------------------------------------------------------------------------------------


@as_written
def draw_curves(panels: Panels, y_title: str, at_most_one: bool) -> dict[str, bytes]:
    """A metric over rounds, mean and one standard deviation over seeds; ``at_most_one`` ends the y-axis at 1."""
    if not panels:
        return {}
    labels = _labels(panels)
    if len(panels) == 1 and len(labels) <= _FEW:
        width, across, height = COLUMN, 1, 2.1
    elif len(panels) == 1:
        width, across, height = PAGE, 1, 2.1
    else:
        width, across, height = PAGE, min(len(panels), 3), 1.75
    down = math.ceil(len(panels) / across)
    columns = _legend_columns(labels, width)
    tall = height * down + 0.14 * math.ceil(len(labels) / columns) + 0.15
    figure = _figure(width, tall, layout="constrained")
    for number, (title, curves) in enumerate(panels.items()):
        axes = figure.add_subplot(down, across, number + 1)
        for label, curve in curves.items():
            _draw_curve(axes, curve, labels.index(label), label)
        if len(panels) > 1:
            axes.set_title(shortened(title, _LONGEST), fontsize=_SIZE)
        if number % across == 0:
            axes.set_ylabel(y_title, fontsize=_SIZE)
        if at_most_one:
            axes.set_ylim(top=min(1.0, axes.get_ylim()[1]))
        _tidy(axes)
    _add_legend(figure, labels, columns)
    return _saved(figure)


def _labels(panels: Panels) -> list[str]:
    """Return the labels of all panels, each once, in the order in which they occur."""
    labels: dict[str, None] = {}
    for curves in panels.values():
        labels |= dict.fromkeys(curves)
    return list(labels)


def _legend_columns(labels: Sequence[str], width: float) -> int:
    """Return how many names have room beside each other."""
    longest = max(map(len, all_shortened(labels, _LONGEST)))
    room = int(width / (longest * _CHARACTER + 0.42))
    return max(1, min(len(labels), room))


def _draw_curve(axes: "Axes", curve: Curve, number: int, label: str) -> None:
    """Draw a curve with its band, in the colour and the line style of its number."""
    colour = PALETTE[number % len(PALETTE)]
    axes.plot(
        curve.x,
        curve.means,
        color=colour,
        linestyle=_STYLES[number // len(PALETTE) % len(_STYLES)],
        linewidth=1.1,
        marker=only_point(curve.x),
        markersize=3,
        label=label,
    )
    if len(curve.deviations):
        means = np.array(curve.means)
        deviations = np.array(curve.deviations)
        low, high = means - deviations, means + deviations
        axes.fill_between(curve.x, low, high, color=colour, alpha=0.15, linewidth=0)


def _tidy(axes: "Axes") -> None:
    axes.set_xlabel("round", fontsize=_SIZE)
    axes.locator_params(axis="x", integer=True, nbins=6)
    axes.margins(x=0.01)
    axes.tick_params(labelsize=_SIZE, width=0.6, length=2.5)
    axes.grid(alpha=0.25, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _add_legend(figure: "Figure", labels: Sequence[str], columns: int) -> None:
    handles = {}
    for axes in figure.axes:
        for line in axes.lines:
            handles[line.get_label()] = line
    figure.legend(
        [handles[label] for label in labels],
        all_shortened(labels, _LONGEST),
        frameon=False,
        fontsize=_SIZE,
        ncols=columns,
        loc="outside lower center",
        handlelength=1.8,
        columnspacing=1.0,
        borderaxespad=0.1,
    )


# -- the critical-difference diagram -----------------------------------------------------------------------------------


class _RankAxis:
    """The places of a critical-difference diagram, in inches: ranks from left to right, names on both sides."""

    top = 0.62  # of the axis
    row = 0.165  # of a name
    bar = 0.085  # of the bar of a group

    def __init__(self, names: Sequence[str], levels: int) -> None:
        self.count = len(names)
        self.left = math.ceil(self.count / 2)  # names on the left
        self.width = COLUMN
        if self.count > _FEW or max(map(len, names)) > 18:
            self.width = PAGE
        longest = max(map(len, all_shortened(names, _LONGEST)))
        self.aside = min(longest * _CHARACTER + 0.18, 0.37 * self.width)  # for names
        self.first_row = self.top + self.bar * (levels + 1)
        self.height = self.first_row + self.row * self.left + 0.06

    def at(self, rank: float) -> float:
        """Return where a rank is on the axis."""
        return self.aside + (rank - 1) / (self.count - 1) * (self.width - 2 * self.aside)


@as_written
def draw_ranks(
    means: Mapping[str, float], distance: float, groups: Sequence[Sequence[str]]
) -> dict[str, bytes]:
    """A critical-difference diagram: bars join methods whose mean ranks do not differ (Demšar 2006).

    Args:
        means: the mean rank of every method, best first
        distance: the critical difference
        groups: methods, best first, among which no two differ by more
    """
    levels = _levels(means, groups)
    axis = _RankAxis(list(means), len(set(levels)))
    figure = _figure(axis.width, axis.height)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_xlim(0, axis.width)
    axes.set_ylim(axis.height, 0)
    axes.axis("off")
    _draw_axis(axes, axis)
    _draw_distance(axes, axis, distance)
    for place, (name, rank) in enumerate(means.items()):
        _draw_name(axes, axis, place, name, rank)
    for level, group in zip(levels, groups, strict=True):
        y = axis.top + axis.bar * (level + 1)
        ends = [axis.at(means[group[0]]) - 0.03, axis.at(means[group[-1]]) + 0.03]
        axes.plot(ends, [y, y], color="black", linewidth=2.2, solid_capstyle="butt")
    return _saved(figure)


def _draw_axis(axes: "Axes", axis: _RankAxis) -> None:
    """Draw the axis of the ranks with its ticks."""
    top = axis.top
    axes.plot([axis.at(1), axis.at(axis.count)], [top, top], **_INK)
    step = math.ceil(axis.count / 20)  # so that the numbers of many methods do not overlap
    for tick in range(1, axis.count + 1, step):
        x = axis.at(tick)
        axes.plot([x, x], [top - 0.06, top], **_INK)
        axes.text(x, top - 0.08, str(tick), ha="center", va="bottom", fontsize=_SIZE)


def _draw_distance(axes: "Axes", axis: _RankAxis, distance: float) -> None:
    """Draw the critical difference above the axis, as long as it is on it."""
    start = axis.at(1)
    reach = axis.at(1 + distance) - start
    axes.plot([start, start + reach], [0.2, 0.2], **_INK)
    for end in (start, start + reach):
        axes.plot([end, end], [0.16, 0.24], **_INK)
    text = f"critical difference {distance:.2f}"
    axes.text(start + reach / 2, 0.12, text, ha="center", fontsize=_SIZE)


def _draw_name(axes: "Axes", axis: _RankAxis, place: int, name: str, rank: float) -> None:
    """Draw a name on its side with a line to its rank; the better half is on the left, the best ones on top."""
    if place < axis.left:
        row, side = place, "right"
        end = axis.aside - 0.08
        beside = end - 0.04
    else:
        row, side = axis.count - 1 - place, "left"
        end = axis.width - axis.aside + 0.08
        beside = end + 0.04
    y = axis.first_row + axis.row * row + axis.row / 2
    x = axis.at(rank)
    axes.plot([x, x, end], [axis.top, y, y], **_INK)
    most = max(4, int((axis.aside - 0.1) / _CHARACTER))
    axes.text(beside, y, shortened(name, most), ha=side, va="center", fontsize=_SIZE)


def _levels(means: Mapping[str, float], groups: Sequence[Sequence[str]]) -> list[int]:
    """Return for every group the lowest level at which its bar touches no other."""
    ends = list[float]()
    levels = list[int]()
    for group in groups:
        first = means[group[0]]
        free = [level for level, end in enumerate(ends) if end < first - 0.05]
        level = min(free, default=len(ends))
        ends[level : level + 1] = [means[group[-1]]]
        levels.append(level)
    return levels


# -- files -------------------------------------------------------------------------------------------------------------


def _figure(width: float, tall: float, **more: Any) -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(width, tall), **more)


def _saved(figure: "Figure") -> dict[str, bytes]:
    """Return the figure as SVG and PDF, by the endings of their files; the same figure has the same bytes."""
    from matplotlib import rc_context

    files = {}
    with rc_context({"svg.hashsalt": "fedskew", "pdf.fonttype": 42}):
        for ending, nothing in (("svg", {"Date": None}), ("pdf", {"CreationDate": None})):
            content = io.BytesIO()
            figure.savefig(content, format=ending, metadata=nothing)
            files[ending] = content.getvalue()
            figure.set_layout_engine("none")  # the second file has the layout of the first
    return files
