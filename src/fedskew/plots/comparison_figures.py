"""The figures of a comparison, as wide as one or two columns of a paper: curves, and a forest plot."""

import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedskew.algorithms.titles import title_of
from fedskew.plots.drawing import (
    PALETTE,
    Curve,
    all_shortened,
    as_written,
    shortened,
)
from fedskew.plots.forest import Forest, ForestRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN, PAGE = 8.5 / 2.54, 17 / 2.54  # inches
_FEW = 6  # methods in one column
_LONGEST = 34  # characters of a name in a legend
_SIZE = 7  # points
_CHARACTER, _CAPITAL = 0.058, 0.066  # inches, of this size
# Curves are told apart in grey as well: by lines and markers, whose numbers have no common factor
_STYLES = ("-", "--", ":", "-.")
_MARKERS = ("o", "s", "^", "D", "v", "x", "P")
_INK: dict[str, Any] = {"color": "black", "linewidth": 0.7, "solid_capstyle": "butt"}
Panels = Mapping[str, Mapping[str, Curve]]  # by title, then by the label of the method


# -- curves ------------------------------------------------------------------------------------------------------------


@as_written
def draw_curves(panels: Panels, y_title: str, at_most_one: bool) -> dict[str, bytes]:
    """A metric over rounds, mean and one standard deviation over seeds; ``at_most_one`` ends the y-axis at 1.

    Where there is one panel of few methods, their names stand at the ends of the curves; otherwise in a legend.
    """
    if not panels:
        return {}
    labels = _labels(panels)
    if len(panels) == 1 and len(labels) <= _FEW:
        (curves,) = panels.values()
        return _draw_with_names(curves, labels, y_title, at_most_one)
    width, across, height = PAGE, 1, 2.1
    if len(panels) > 1:
        across, height = min(len(panels), 3), 1.75
    down = math.ceil(len(panels) / across)
    columns = _legend_columns(labels, width)
    tall = height * down + 0.14 * math.ceil(len(labels) / columns) + 0.15
    figure = _figure(width, tall, layout="constrained")
    for number, (title, curves) in enumerate(panels.items()):
        axes = figure.add_subplot(down, across, number + 1)
        _draw_panel(axes, curves, labels, at_most_one)
        if len(panels) > 1:
            axes.set_title(shortened(title, _LONGEST), fontsize=_SIZE)
        if number % across == 0:
            axes.set_ylabel(y_title, fontsize=_SIZE)
    _add_legend(figure, labels, columns)
    return _saved(figure)


def _draw_with_names(
    curves: Mapping[str, Curve], labels: Sequence[str], y_title: str, at_most_one: bool
) -> dict[str, bytes]:
    """Draw one panel as wide as a column, with the names of the curves at their ends."""
    height = 2.1
    figure = _figure(COLUMN, height + 0.15, layout="constrained")
    axes = figure.add_subplot()
    _draw_panel(axes, curves, labels, at_most_one)
    axes.set_ylabel(y_title, fontsize=_SIZE)
    _name_ends(axes, curves, labels, height)
    return _saved(figure)


def _draw_panel(
    axes: "Axes", curves: Mapping[str, Curve], labels: Sequence[str], at_most_one: bool
) -> None:
    """Draw the curves of one panel."""
    for label, curve in curves.items():
        _draw_curve(axes, curve, labels.index(label), label)
    if at_most_one:
        axes.set_ylim(top=min(1.0, axes.get_ylim()[1]))
    _tidy(axes)


def _name_ends(
    axes: "Axes", curves: Mapping[str, Curve], labels: Sequence[str], height: float
) -> None:
    """Write the name of every curve at its end, moved up or down so that no two names overlap."""
    low, high = axes.get_ylim()
    line = (high - low) * (_SIZE + 1.5) / 72 / (0.78 * height)  # of text, in units of the axis
    ends = []
    for label, curve in curves.items():
        if len(curve.means):
            ends.append((float(curve.means[-1]), label))
    ends.sort()
    values = []
    for end, _ in ends:
        values.append(end)
    right = axes.get_xlim()[1]
    for (end, label), place in zip(ends, _apart(values, line), strict=True):
        colour = PALETTE[labels.index(label) % len(PALETTE)]
        axes.annotate(
            shortened(label, _LONGEST),
            (right, end),
            xytext=(right + 0.06 * (right - axes.get_xlim()[0]), place),
            fontsize=_SIZE,
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": colour,
                "linewidth": 0.8,
                "relpos": (0.0, 0.5),
                "shrinkA": 1,
                "shrinkB": 2,
            },
        )


def _apart(ends: Sequence[float], least: float) -> list[float]:
    """Return places that are at least so far apart, as near to their ends as that allows; ends are in order.

    >>> _apart([0.0, 0.5, 5.0], 1.0)
    [-0.25, 0.75, 5.0]
    """
    groups: list[list[float]] = []
    for end in ends:
        groups.append([end])
        while (
            len(groups) > 1
            and _middle(groups[-1]) - _middle(groups[-2])
            < least * (len(groups[-1]) + len(groups[-2])) / 2
        ):
            last = groups.pop()
            groups[-1] += last
    places = []
    for group in groups:
        first = _middle(group) - least * (len(group) - 1) / 2
        for number in range(len(group)):
            places.append(first + least * number)
    return places


def _middle(group: Sequence[float]) -> float:
    return sum(group) / len(group)


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
        linestyle=_STYLES[number % len(_STYLES)],
        linewidth=1.1,
        marker=_MARKERS[number % len(_MARKERS)],
        markevery=max(1, len(curve.x) // 6),
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


# -- the forest plot ---------------------------------------------------------------------------------------------------


class _ForestPlaces:
    """Where everything is in a forest plot, in inches: names, the axis, verdicts and costs from left to right."""

    row = 0.19  # of a line
    above, below = 0.12, 0.46  # the axis

    def __init__(self, forest: Forest) -> None:
        longest, verdict, costs = 0, 0, 0
        for row in forest.rows:
            longest = max(longest, min(len(title_of(row.name)), _LONGEST))
            verdict = max(verdict, len(row.verdict))
            costs = max(costs, len(row.costs))
        self.left = longest * _CAPITAL + 0.16
        self.right = verdict * _CHARACTER + 0.12
        self.cost = 0.62  # of a column of costs
        beside = self.left + self.right + self.cost * costs
        self.width = COLUMN
        if beside > 0.62 * COLUMN:
            self.width = PAGE
        self.axis = max(self.width - beside, 1.0)
        self.width = beside + self.axis
        self.rows = len(forest.rows)
        for cell in forest.cells:
            self.rows += bool(cell)  # it has a heading
        self.height = self.above + self.row * self.rows + self.below
        self.reach = 1.06 * forest.reach

    @property
    def middle(self) -> float:
        """Return where the axis is, as a share of the width."""
        return self.left / self.width

    def beside(self, column: int) -> float:
        """Return where the verdicts (column 0) and the columns of costs begin, as shares of the axis."""
        at = self.axis + 0.08
        if column:
            at = self.axis + self.right + self.cost * (column - 1) + 0.04
        return at / self.axis


@as_written
def draw_forest(forest: Forest) -> dict[str, bytes]:
    """A forest plot: each difference with its interval, the zone shaded, the verdict at the right, then the costs."""
    if not forest.rows:
        return {}
    places = _ForestPlaces(forest)
    figure = _figure(places.width, places.height)
    shape = (
        places.middle,
        places.below / places.height,
        places.axis / places.width,
        places.row * places.rows / places.height,
    )
    axes = figure.add_axes(shape)
    axes.set_xlim(-places.reach, places.reach)
    axes.set_ylim(places.rows - 0.5, -0.5)
    if forest.zone:
        axes.axvspan(-forest.zone, forest.zone, color="#d9d9d9", linewidth=0)
    axes.axvline(0, color="black", linewidth=0.6)
    at = 0
    for cell in forest.cells:
        if cell:
            _draw_heading(axes, cell, at, places)
            at += 1
        for row in forest.of_cell(cell):
            _draw_row(axes, row, at, places)
            at += 1
    axes.set_yticks([])
    axes.set_xlabel(forest.title, fontsize=_SIZE)
    axes.locator_params(axis="x", nbins=5)
    axes.tick_params(labelsize=_SIZE, width=0.6, length=2.5)
    axes.spines[["top", "right", "left"]].set_visible(False)
    return _saved(figure)


def _draw_heading(axes: "Axes", cell: str, at: int, places: _ForestPlaces) -> None:
    """Draw the name of a cell above its lines."""
    axes.annotate(
        shortened(cell, 2 * _LONGEST),
        (-places.left / places.axis, at),
        xycoords=("axes fraction", "data"),
        fontsize=_SIZE,
        fontweight="bold",
        va="center",
        annotation_clip=False,
    )


def _draw_row(axes: "Axes", row: ForestRow, at: int, places: _ForestPlaces) -> None:
    """Draw one line of a forest plot; a method that is undecided has an open marker."""
    filled = "black"
    if row.verdict.startswith("undecided"):
        filled = "white"
    if row.low is not None and row.high is not None:
        axes.plot([row.low, row.high], [at, at], **_INK)
        for end in (row.low, row.high):
            axes.plot([end, end], [at - 0.16, at + 0.16], **_INK)
    axes.plot(
        row.mean,
        at,
        marker="o",
        markersize=3.6,
        markerfacecolor=filled,
        markeredgecolor="black",
        markeredgewidth=0.7,
    )
    where: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "fontsize": _SIZE}
    where["va"] = "center"
    where["annotation_clip"] = False
    name = shortened(title_of(row.name), _LONGEST)
    axes.annotate(name, (-0.08 / places.axis, at), ha="right", **where)
    axes.annotate(row.verdict, (places.beside(0), at), **where)
    for number, cost in enumerate(row.costs):
        axes.annotate(cost, (places.beside(number + 1), at), color="#555555", **where)


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
