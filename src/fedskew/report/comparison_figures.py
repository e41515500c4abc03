"""The figures of a comparison, as wide as one or two columns of a paper: curves, and a critical-difference diagram."""

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedskew.plots.drawing import as_written
from fedskew.report.charts import PALETTE, SHARES
from fedskew.runs.summary import mean_and_std
from fedskew.study.comparison_table import Comparison
from fedskew.study.run_data import RunData
from fedskew.study.significance import Ranks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN, PAGE = 8.5 / 2.54, 17 / 2.54  # inches
_FEW = 6  # methods in one column
_LONGEST = 34  # characters of a name in a legend
_SIZE = 7  # points
_CHARACTER = 0.058  # inches, of this size
_STYLES = ("-", "--", ":", "-.")
_PANELS = 6  # conditions that are drawn


@as_written
def draw_curves(found: Comparison) -> dict[str, bytes]:
    """The metric on test rows over rounds, mean and one standard deviation over seeds; a panel for each condition."""
    panels = _panels(found)
    if not panels:
        return {}
    labels = list(dict.fromkeys(label for curves in panels.values() for label in curves))
    if len(labels) <= _FEW and len(panels) == 1:
        width = COLUMN
    else:
        width = PAGE
    across = min(len(panels), 1 if width == COLUMN else 3)
    down = math.ceil(len(panels) / across)
    names = [_short(label) for label in labels]
    columns = max(1, min(len(names), int(width / (max(map(len, names)) * _CHARACTER + 0.42))))
    tall = (2.1 if across == 1 else 1.75) * down + 0.14 * math.ceil(len(names) / columns) + 0.15
    figure = _figure(width, tall, layout="constrained")
    for number, (title, curves) in enumerate(panels.items()):
        axes = figure.add_subplot(down, across, number + 1)
        for label, runs in curves.items():
            _draw_curve(axes, runs, _column(found), labels.index(label), label)
        if len(panels) > 1:
            axes.set_title(_short(title), fontsize=_SIZE)
        axes.set_xlabel("round", fontsize=_SIZE)
        axes.set_ylabel(_title(found) if number % across == 0 else "", fontsize=_SIZE)
        if found.rows.metric in SHARES:
            axes.set_ylim(top=min(1.0, axes.get_ylim()[1]))
        axes.locator_params(axis="x", integer=True, nbins=6)
        axes.margins(x=0.01)
        _tidy(axes)
    handles = {line.get_label(): line for axes in figure.axes for line in axes.lines}
    figure.legend(
        [handles[label] for label in labels], names, frameon=False, fontsize=_SIZE, ncols=columns,
        loc="outside lower center", handlelength=1.8, columnspacing=1.0, borderaxespad=0.1,
    )  # fmt: skip
    return _saved(figure)


def _panels(found: Comparison) -> dict[str, dict[str, list[RunData]]]:
    """Return the runs with curves by condition and method."""
    result: dict[str, dict[str, list[RunData]]] = {}
    column = _column(found)
    for run, setting in zip(found.rows.runs.runs, found.rows.runs.settings, strict=False):
        if _has(run, column):
            title = ", ".join(str(setting.values.get(name)) for name in found.rows.conditions)
            result.setdefault(title, {}).setdefault(
                found.rows.runs.label_of(setting, False), []
            ).append(run)
    return dict(list(result.items())[:_PANELS])


def _column(found: Comparison) -> str:
    """Return the one column that is drawn: of the shared model, unless there is only the mean of the clients' own."""
    shared = f"test_{found.rows.metric}"
    own = f"own_test_{found.rows.metric}"
    if any(_has(run, shared) for run in found.rows.runs.runs):
        return shared
    return own


def _has(run: RunData, column: str) -> bool:
    return any(value is not None for value in run.rounds.get(column, []))


def _title(found: Comparison) -> str:
    return f"test {found.rows.metric}" + (
        " (mean of own models)" if _column(found).startswith("own_") else ""
    )


def _draw_curve(
    axes: "Axes", runs: Sequence[RunData], column: str, number: int, label: str
) -> None:
    count = min(len(run.rounds["round"]) for run in runs)
    rows = []
    for i in range(count):
        rows.append((runs[0].rounds["round"][i], [run.rounds[column][i] for run in runs]))
    known = []
    for at, values in rows:
        if None not in values:
            known.append((at, *mean_and_std(values)))
    x = [at for at, *_ in known]
    mean = np.array([m for _, m, _ in known])
    colour = PALETTE[number % len(PALETTE)]
    style = _STYLES[number // len(PALETTE) % len(_STYLES)]
    if len(x) == 1:
        marker = "o"
    else:
        marker = ""
    axes.plot(
        x,
        mean,
        color=colour,
        linestyle=style,
        linewidth=1.1,
        marker=marker,
        markersize=3,
        label=label,
    )
    if len(runs) > 1:
        std = np.array([s or 0.0 for *_, s in known])
        axes.fill_between(x, mean - std, mean + std, color=colour, alpha=0.15, linewidth=0)


@as_written
def draw_ranks(found: Ranks) -> dict[str, bytes]:
    """A critical-difference diagram: bars join methods whose mean ranks do not differ (Demšar 2006)."""
    names = list(found.means)
    count = len(found.means)
    wide = count > _FEW or max(map(len, names)) > 18
    if wide:
        width = PAGE
    else:
        width = COLUMN
    aside = min(max(map(len, map(_short, names))) * _CHARACTER + 0.18, 0.37 * width)
    left = math.ceil(count / 2)
    top, bar, row = 0.62, 0.085, 0.165
    bars = _levels(found)
    first = top + bar * (len(set(bars)) + 1)
    tall = first + row * left + 0.06
    figure = _figure(width, tall)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_xlim(0, width)
    axes.set_ylim(tall, 0)
    axes.axis("off")

    def at(rank: float) -> float:
        return aside + (rank - 1) / (count - 1) * (width - 2 * aside)

    ink: dict[str, Any] = {"color": "black", "linewidth": 0.7, "solid_capstyle": "butt"}
    axes.plot([at(1), at(count)], [top, top], **ink)
    step = math.ceil(count / 20)  # so that the numbers of many methods do not overlap
    for tick in range(1, count + 1, step):
        axes.plot([at(tick)] * 2, [top - 0.06, top], **ink)
        axes.text(at(tick), top - 0.08, str(tick), ha="center", va="bottom", fontsize=_SIZE)
    reach = at(1 + found.distance) - at(1)
    axes.plot([at(1), at(1) + reach], [0.2, 0.2], **ink)
    for end in (at(1), at(1) + reach):
        axes.plot([end, end], [0.16, 0.24], **ink)
    axes.text(
        at(1) + reach / 2,
        0.12,
        f"critical difference {found.distance:.2f}",
        ha="center",
        fontsize=_SIZE,
    )
    for place, (name, rank) in enumerate(found.means.items()):
        mine = place < left
        y = first + row * (place if mine else count - 1 - place) + row / 2
        if mine:
            end = aside - 0.08
        else:
            end = width - aside + 0.08
        axes.plot([at(rank), at(rank), end], [top, y, y], **ink)
        if mine:
            side = "right"
        else:
            side = "left"
        text = _fitting(name, aside - 0.1)
        axes.text(end + (-0.04 if mine else 0.04), y, text, ha=side, va="center", fontsize=_SIZE)
    for level, group in zip(bars, found.groups, strict=True):
        y = top + bar * (level + 1)
        ends = [at(found.means[group[0]]) - 0.03, at(found.means[group[-1]]) + 0.03]
        axes.plot(ends, [y, y], color="black", linewidth=2.2, solid_capstyle="butt")
    return _saved(figure)


def _levels(found: Ranks) -> list[int]:
    """Return for every group the lowest level at which its bar touches no other."""
    ends = list[float]()
    result = list[int]()
    for group in found.groups:
        first = found.means[group[0]]
        last = found.means[group[-1]]
        level = next((i for i, end in enumerate(ends) if end < first - 0.05), len(ends))
        ends[level : level + 1] = [last]
        result.append(level)
    return result


def _fitting(name: str, room: float) -> str:
    most = max(4, int(room / _CHARACTER))
    if len(name) <= most:
        return name
    return name[: most - 1] + "…"


def _short(name: str) -> str:
    if len(name) <= _LONGEST:
        return name
    return name[: _LONGEST - 1] + "…"


def _figure(width: float, tall: float, **more: Any) -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(width, tall), **more)


def _tidy(axes: "Axes") -> None:
    axes.tick_params(labelsize=_SIZE, width=0.6, length=2.5)
    axes.grid(alpha=0.25, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _saved(figure: "Figure") -> dict[str, bytes]:
    """Return the figure as SVG and PDF, by the endings of their files; the same figure has the same bytes."""
    from matplotlib import rc_context

    result = {}
    with rc_context({"svg.hashsalt": "fedskew", "pdf.fonttype": 42}):
        for ending, nothing in (("svg", {"Date": None}), ("pdf", {"CreationDate": None})):
            content = io.BytesIO()
            figure.savefig(content, format=ending, metadata=nothing)
            result[ending] = content.getvalue()
            figure.set_layout_engine("none")  # the second file has the layout of the first
    return result
