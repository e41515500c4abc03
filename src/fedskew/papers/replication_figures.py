"""The figure of a table: curves over rounds by case, or values over cases that are numbers on an axis."""

import io
import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedskew.papers.comparison import Measured
from fedskew.papers.distribution_figure import draw_distributions
from fedskew.papers.paper_tables import Value
from fedskew.runs.summary import mean_and_std

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours that colour-blind readers can distinguish (Okabe and Ito); with more lines than colours, dashes differ.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
_DASHES = ("-", "--", ":")
_MOST_PANELS = 6
_ACROSS = 3  # panels beside each other
_MOST_BYTES = 200_000  # of an SVG file; above that, a PNG
_WIDE = 50  # ratio of largest to smallest from which a y-axis is logarithmic


@dataclass(frozen=True)
class _Line:
    """Means and standard deviations over seeds."""

    x: Sequence[float]
    means: Sequence[float]
    stds: Sequence[float]


@dataclass(frozen=True)
class _Panel:
    """A panel with a line for each method, and with error bars if its x-axis has cases at even steps."""

    title: str
    x: str
    y: str
    lines: dict[str, _Line]
    ticks: Sequence[float] = ()

    @property
    def has_lines(self) -> bool:
        """Return whether there is something to draw."""
        return any(line.x for line in self.lines.values())


def draw_table(found: Measured) -> tuple[str, bytes] | None:
    """Return the ending and the bytes of the figure, the same for the same results; nothing if nothing can be drawn."""
    from matplotlib import rc_context

    if found.table.kind == "distribution":
        figure = draw_distributions(found)
    else:
        figure = figure_of(found)
    if figure is None:
        return None
    content = io.BytesIO()
    with rc_context({"svg.hashsalt": "fedskew"}):
        figure.savefig(content, format="svg", metadata={"Date": None})
    if content.tell() <= _MOST_BYTES:
        return ("svg", content.getvalue())
    return ("png", _small_png(figure))


def figure_of(found: Measured) -> "Figure | None":
    """Return the figure: a panel for each curve and case, or for each value over the cases."""
    table = found.table
    cases = [case.name for case in table.cases]
    methods = [method.name for method in table.methods]
    groups = []
    if any(run.curves for cell in found.cells.values() for run in cell.runs):
        for column in table.curves:
            drawn = {}
            for case in cases:
                drawn[case] = {method: _curve(found, case, method, column) for method in methods}
            groups.append(
                [
                    _Panel(case, "round", column.replace("_", " "), lines)
                    for case, lines in drawn.items()
                ]
            )
    elif axis := numbers_of(cases):
        over, numbers = axis
        places = {}
        for number, case in sorted(zip(numbers, cases, strict=True)):
            places[case] = number
        for value in table.values[:_MOST_PANELS]:
            lines = {}
            for method in methods:
                lines[method] = _over_cases(found, list(places), method, value)
            groups.append([_Panel("", over, value.name, lines, list(places.values()))])
    shown = []
    for group in groups:
        shown.append([panel for panel in group if panel.has_lines][:_MOST_PANELS])
    if any(shown):
        return _draw([group for group in shown if group], methods)
    return None


def numbers_of(names: Sequence[str]) -> tuple[str, list[float]] | None:
    """Return what the names have in common and their numbers; nothing for names that differ in more than a number.

    >>> numbers_of(["alpha 0.1", "alpha 1", "alpha 10"])
    ('alpha', [0.1, 1.0, 10.0])
    >>> numbers_of(["IID", "alpha 1", "alpha 10"])
    """
    found = []
    for name in names:
        found.append(re.fullmatch(r"(\D*?)(-?\d+(?:\.\d+)?(?:e-?\d+)?)(\D*)", name))
    parts = [match.groups() for match in found if match]
    common = {(before.strip(" =:"), after.strip()) for before, _, after in parts}
    if len(parts) < max(3, len(names)) or len(common) > 1:
        return None
    return " ".join(filter(None, common.pop())) or "case", [float(number) for _, number, _ in parts]


def _curve(found: Measured, case: str, method: str, column: str) -> _Line:
    """Return a curve over the rounds that all seeds have."""
    drawn = [run.curves for run in found.cell(case, method).runs if run.curves]
    runs = []
    for points in drawn:
        runs.append(
            {p["round"]: p[column] for p in points if math.isfinite(p.get(column, math.nan))}
        )
    if runs:
        rounds = sorted(set.intersection(*map(set, runs)))
    else:
        rounds = []
    return _line(rounds, [[run[one] for run in runs] for one in rounds])


def _over_cases(found: Measured, cases: Sequence[str], method: str, value: Value) -> _Line:
    """Return a value over the cases that have one."""
    numbers = {}
    for place, case in enumerate(cases):
        numbers[place] = list(found.cell(case, method).numbers(value).values())
    drawn = [place for place, some in numbers.items() if some]
    return _line(drawn, [numbers[place] for place in drawn])


def _line(x: Sequence[float], numbers: Sequence[Sequence[float]]) -> _Line:
    pairs = [mean_and_std(some) for some in numbers]
    return _Line(x, [mean for mean, _ in pairs], [std or 0.0 for _, std in pairs])


# -- drawing -----------------------------------------------------------------------------------------------------------


def _draw(groups: Sequence[Sequence[_Panel]], methods: Sequence[str]) -> "Figure":
    """Draw panels in rows; those of a group share their y-axis, and groups of several begin on a row of their own."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    alone = all(len(group) == 1 for group in groups)
    stacks = [[panel for group in groups for panel in group]] if alone else groups
    most = max(map(len, stacks))
    across = 2 if most == 4 else min(most, _ACROSS)
    rows = [stack[at : at + across] for stack in stacks for at in range(0, len(stack), across)]
    names = -(-len(methods) // 4)  # rows of the legend
    figure = Figure(
        figsize=(max(3.4 * across, 6.8), 2.7 * len(rows) + 0.25 * names + 0.2),
        layout="constrained",
        dpi=110,
    )
    FigureCanvasAgg(figure)
    grid: Any = figure.subplots(len(rows), across, squeeze=False)
    place = {id(panel): grid[i, j] for i, row in enumerate(rows) for j, panel in enumerate(row)}
    for axes in set(grid.flat) - set(place.values()):
        axes.set_visible(False)
    for group in groups:
        means = [mean for panel in group for line in panel.lines.values() for mean in line.means]
        logarithmic = min(means, default=0) > 0 and max(means) >= _WIDE * min(means)
        for panel in group:
            axes = place[id(panel)]
            if panel is not group[0]:
                axes.sharey(place[id(group[0])])
            _draw_panel(axes, panel, logarithmic)
            if axes not in grid[:, 0] and not alone:
                axes.tick_params(labelleft=False)
                axes.set_ylabel("")
    handles = {
        name: handle
        for axes in grid.flat
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    shown = [name for name in methods if name in handles]
    figure.legend(
        [handles[n] for n in shown],
        shown,
        frameon=False,
        fontsize=9,
        ncols=4,
        loc="outside lower center",
    )
    return figure


def _draw_panel(axes: "Axes", panel: _Panel, logarithmic: bool) -> None:
    for number, (name, line) in enumerate(panel.lines.items()):
        if not line.x:
            continue
        dash = _DASHES[number // len(_COLOURS) % len(_DASHES)]
        colour = _COLOURS[number % len(_COLOURS)]
        if panel.ticks:
            axes.errorbar(line.x, line.means, line.stds, color=colour, linestyle=dash, label=name, marker="o",
                          markersize=4, linewidth=1.4, capsize=3)  # fmt: skip
            continue
        low, high = (
            [mean + sign * std for mean, std in zip(line.means, line.stds, strict=True)]
            for sign in (-1, 1)
        )
        if len(line.x) == 1:
            marker = "o"
        else:
            marker = ""
        axes.plot(
            line.x,
            line.means,
            color=colour,
            linestyle=dash,
            linewidth=1.4,
            label=name,
            marker=marker,
        )
        axes.fill_between(line.x, low, high, color=colour, alpha=0.15, linewidth=0)
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


def _small_png(figure: "Figure") -> bytes:
    """Return the figure as a PNG of 128 colours, a fourth of the size that all would take."""
    from PIL import Image

    drawn = io.BytesIO()
    content = io.BytesIO()
    figure.savefig(drawn, format="png")
    colours = Image.open(drawn).convert("RGB").quantize(128, dither=Image.Dither.NONE)
    colours.save(content, format="png", optimize=True)
    return content.getvalue()
