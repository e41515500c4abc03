"""The figure of a paper's table: curves over rounds by case, or values over cases that are numbers on an axis."""

import io
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from fedskew.plots.drawing import OKABE_ITO, Curve, only_point

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DASHES = ("-", "--", ":")  # with more curves than colours, dashes differ
MOST_PANELS = 6
_ACROSS = 3  # panels beside each other
_MOST_BYTES = 200_000  # of an SVG file; above that, a PNG
_WIDE = 50  # ratio of largest to smallest from which a y-axis is logarithmic


@dataclass(frozen=True)
class Panel:
    """A panel with a curve for each method, and with error bars if its x-axis has cases at even steps (``ticks``)."""

    title: str
    x: str
    y: str
    curves: Mapping[str, Curve]
    ticks: Sequence[float] = ()

    @property
    def has_points(self) -> bool:
        """Return whether there is something to draw."""
        return any(curve.x for curve in self.curves.values())


def draw_panels(groups: Iterable[Sequence[Panel]], methods: Sequence[str]) -> "Figure | None":
    """Draw the first panels of each group that have points, with the methods in the legend; nothing without any.

    Panels of a group share their y-axis. Groups of several begin on a row of their own.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = _with_points(groups)
    if not drawn:
        return None
    alone = all(len(group) == 1 for group in drawn)
    rows = _rows(drawn, alone)
    across = max(len(row) for row in rows)
    legend_rows = -(-len(methods) // 4)
    figure = Figure(
        figsize=(max(3.4 * across, 6.8), 2.7 * len(rows) + 0.25 * legend_rows + 0.2),
        layout="constrained",
        dpi=110,
    )
    FigureCanvasAgg(figure)
    grid: Any = figure.subplots(len(rows), across, squeeze=False)
    places = iter(_places(grid, rows))
    for group in drawn:
        _draw_group(group, list(islice(places, len(group))))
    if not alone:
        for axes in grid[:, 1:].flat:
            axes.tick_params(labelleft=False)
            axes.set_ylabel("")
    _add_legend(figure, methods)
    return figure


def _with_points(groups: Iterable[Sequence[Panel]]) -> list[list[Panel]]:
    """Return the panels to draw, without groups that have none."""
    found = []
    for group in groups:
        panels = [panel for panel in group if panel.has_points]
        if panels:
            found.append(panels[:MOST_PANELS])
    return found


def _rows(groups: Sequence[Sequence[Panel]], alone: bool) -> list[Sequence[Panel]]:
    """Return the panels of each row of the figure; those that are alone in their groups follow each other."""
    stacks = groups
    if alone:
        stacks = [[group[0] for group in groups]]
    most = max(len(stack) for stack in stacks)
    across = min(most, _ACROSS)
    if most == 4:
        across = 2  # twice two, and not three and one
    rows = []
    for stack in stacks:
        for first in range(0, len(stack), across):
            rows.append(stack[first : first + across])
    return rows


def _places(grid: Any, rows: Sequence[Sequence[Panel]]) -> "list[Axes]":
    """Return the axes of all panels in their order, and hide those without a panel."""
    places = []
    for line, row in zip(grid, rows, strict=True):
        places += list(line[: len(row)])
        for axes in line[len(row) :]:
            axes.set_visible(False)
    return places


def _draw_group(group: Sequence[Panel], places: "Sequence[Axes]") -> None:
    """Draw panels with the same y-axis, logarithmic if their numbers have a wide range."""
    means: list[float] = []
    for panel in group:
        for curve in panel.curves.values():
            means += curve.means
    logarithmic = min(means, default=0) > 0 and max(means) >= _WIDE * min(means)
    for panel, axes in zip(group, places, strict=True):
        if axes is not places[0]:
            axes.sharey(places[0])
        _draw_panel(axes, panel, logarithmic)


def _draw_panel(axes: "Axes", panel: Panel, logarithmic: bool) -> None:
    for number, (name, curve) in enumerate(panel.curves.items()):
        if not curve.x:
            continue
        look = {
            "color": OKABE_ITO[number % len(OKABE_ITO)],
            "linestyle": _DASHES[number // len(OKABE_ITO) % len(_DASHES)],
            "linewidth": 1.4,
            "label": name,
        }
        if panel.ticks:
            _draw_error_bars(axes, curve, look)
        else:
            _draw_band(axes, curve, look)
    if panel.ticks:
        axes.set_xticks(range(len(panel.ticks)), [f"{number:g}" for number in panel.ticks])
    else:
        axes.locator_params(axis="x", nbins=5, integer=True)
    if logarithmic:
        axes.set_yscale("log", nonpositive="mask")
    else:
        axes.locator_params(axis="y", nbins=7)
    axes.set_title(textwrap.fill(panel.title, 42), fontsize=9)
    axes.set_xlabel(panel.x, fontsize=9)
    axes.set_ylabel(panel.y, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_error_bars(axes: "Axes", curve: Curve, look: Mapping[str, Any]) -> None:
    axes.errorbar(
        curve.x, curve.means, curve.deviations, marker="o", markersize=4, capsize=3, **look
    )


def _draw_band(axes: "Axes", curve: Curve, look: Mapping[str, Any]) -> None:
    """Draw a curve with a band of one standard deviation."""
    low, high = [], []
    for mean, deviation in zip(curve.means, curve.deviations, strict=True):
        low.append(mean - deviation)
        high.append(mean + deviation)
    axes.plot(curve.x, curve.means, marker=only_point(curve.x), **look)
    axes.fill_between(curve.x, low, high, color=look["color"], alpha=0.15, linewidth=0)


def _add_legend(figure: "Figure", methods: Sequence[str]) -> None:
    """Add the methods that are drawn somewhere, in their order."""
    drawn: dict[str, Artist] = {}
    for axes in figure.axes:
        handles, names = axes.get_legend_handles_labels()
        for name, handle in zip(names, handles, strict=True):
            drawn[name] = handle
    shown = [name for name in methods if name in drawn]
    figure.legend(
        [drawn[name] for name in shown],
        shown,
        frameon=False,
        fontsize=9,
        ncols=4,
        loc="outside lower center",
    )


# -- files -------------------------------------------------------------------------------------------------------------


def figure_file(figure: "Figure") -> tuple[str, bytes]:
    """Return the ending and the bytes of a figure's file, the same for the same figure: a PNG if an SVG is large."""
    from matplotlib import rc_context

    content = io.BytesIO()
    with rc_context({"svg.hashsalt": "fedskew"}):
        figure.savefig(content, format="svg", metadata={"Date": None})
    if content.tell() <= _MOST_BYTES:
        return ("svg", content.getvalue())
    return ("png", _small_png(figure))


def _small_png(figure: "Figure") -> bytes:
    """Return the figure as a PNG of 128 colours, a fourth of the size that all would take."""
    from PIL import Image

    drawn = io.BytesIO()
    content = io.BytesIO()
    figure.savefig(drawn, format="png")
    colours = Image.open(drawn).convert("RGB").quantize(128, dither=Image.Dither.NONE)
    colours.save(content, format="png", optimize=True)
    return content.getvalue()
