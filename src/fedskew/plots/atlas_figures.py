"""Figures of the atlas as PDF: the grid of verdicts, gains over heterogeneity, and how heterogeneous clients are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from fedskew.plots.drawing import OKABE_ITO, as_written

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = {"better": "#9fd8c4", "equal": "#d9d9d9", "worse": "#f3b79a", "undecided": "#ffffff"}
_MARKERS = "osD^vP*X<>"
_MADE, _NATURAL, _CHANCE = "#999999", "#0072B2", "#D55E00"


@dataclass(frozen=True)
class GridSquare:
    """A method in a cell: its gain in points, as it is written, and the verdict."""

    text: str
    verdict: str


@dataclass(frozen=True)
class LevelBar:
    """How far apart clients are: the mean distance with its interval, and what chance makes of it."""

    name: str
    mean: float
    low: float
    high: float
    by_chance: float
    natural: bool


@as_written
def grid_figure(
    cells: Sequence[str],
    methods: Sequence[str],
    squares: Mapping[tuple[str, str], GridSquare],
    title: str,
) -> bytes:
    """Return a table of verdicts as PDF: a row per cell, a column per method."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.6 + 0.85 * len(methods), 1.2 + 0.27 * len(cells)))
    axes = figure.add_subplot()
    for row, cell in enumerate(cells):
        for column, method in enumerate(methods):
            square = squares.get((cell, method))
            colour = "#f7f7f7"
            text = "–"
            if square is not None:
                colour = _COLOURS[square.verdict]
                text = square.text
            axes.add_patch(_box(column, row, colour))
            axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=7)
    axes.set(xlim=(0, len(methods)), ylim=(len(cells), 0), title=title)
    axes.set_xticks(np.arange(len(methods)) + 0.5, methods, fontsize=7, rotation=35, ha="right")
    axes.set_yticks(np.arange(len(cells)) + 0.5, cells, fontsize=7)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return _as_pdf(figure)


def _box(column: int, row: int, colour: str) -> Any:
    """Return the rectangle of one square."""
    from matplotlib.patches import Rectangle

    return Rectangle((column, row), 1, 1, facecolor=colour, edgecolor="white")


@as_written
def gains_figure(
    points: Mapping[str, Sequence[tuple[float, float, bool]]], x: str, y: str, title: str
) -> bytes:
    """Return gains over heterogeneity as PDF: (heterogeneity, gain, natural) by method; natural ones are filled."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.5))
    axes = figure.add_subplot()
    for number, (method, ones) in enumerate(points.items()):
        colour = OKABE_ITO[number % len(OKABE_ITO)]
        marker = _MARKERS[number % len(_MARKERS)]
        label: str | None = method
        for heterogeneity, gain, natural in ones:
            fill = "none"
            if natural:
                fill = colour
            axes.scatter(
                heterogeneity,
                gain,
                s=24,
                marker=marker,
                facecolors=fill,
                edgecolors=colour,
                label=label,
            )
            label = None
    axes.axhline(0, color="#888888", linewidth=0.8)
    axes.set(xlabel=x, ylabel=y, title=title)
    axes.set_xlim(left=0)
    axes.set_yscale("symlog", linthresh=1)
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return _as_pdf(figure)


@as_written
def levels_figure(bars: Sequence[LevelBar], x: str, title: str, ending: str = "pdf") -> bytes:
    """Return how far apart clients are, a line per federation: natural ones, and those that a skew makes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 0.9 + 0.25 * len(bars)))
    axes = figure.add_subplot()
    for row, bar in enumerate(bars):
        colour = _MADE
        if bar.natural:
            colour = _NATURAL
        axes.plot([bar.low, bar.high], [row, row], color=colour, linewidth=1.5)
        axes.plot(bar.mean, row, "o", color=colour, markersize=5)
        axes.plot(bar.by_chance, row, "|", color=_CHANCE, markersize=9, markeredgewidth=1.6)
    axes.set(xlim=(0, 1), ylim=(len(bars) - 0.5, -0.5), xlabel=x, title=title)
    axes.set_yticks(range(len(bars)), [bar.name for bar in bars], fontsize=8)
    axes.grid(axis="x", linewidth=0.4)
    for name, colour, marker in (
        ("natural clients", _NATURAL, "o"),
        ("clients made by a skew", _MADE, "o"),
        ("IID clients of the same sizes", _CHANCE, "|"),
    ):
        axes.plot([], [], marker, color=colour, label=name)
    axes.legend(fontsize=8, loc="upper right")
    return _as_file(figure, ending)


def _as_pdf(figure: "Figure") -> bytes:
    return _as_file(figure, "pdf")


def _as_file(figure: "Figure", ending: str) -> bytes:
    """Return the bytes of a figure, without the time at which it was drawn."""
    content = BytesIO()
    metadata = {"Date": None}
    if ending == "pdf":
        metadata = {"CreationDate": None}
    figure.savefig(content, format=ending, bbox_inches="tight", metadata=metadata)
    return content.getvalue()
