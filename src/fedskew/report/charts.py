"""Charts as options of ECharts: what is drawn, without colours that depend on the theme, which the page sets.

Curves name the columns of a table of the page; a chart with ``axis`` can be drawn against any of its x columns.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from fedskew.core.streams import Floats, Ints
from fedskew.heterogeneity.fairness import Numbers
from fedskew.plots.drawing import PALETTE
from fedskew.plots.forest import ForestRow
from fedskew.server.score_names import CLIENT_NAMES, NAMES

Option = dict[str, Any]
LINE_STYLES = ("solid", "dashed", "dotted")  # in turn, so that no curve hides another one
MOST_BARS = 250  # one bar a client up to here, a histogram above
MOST_CLASSES = 100  # columns of a matrix
# Names below an axis: up to how many all are shown, and up to how many characters they are not aslant
_MOST_NAMES, _MOST_CHARACTERS = 20, 40
_POINTS = 200  # of a Lorenz curve
# Colours that colour-blind readers can distinguish (Okabe and Ito).
COLOURS = {
    "train": "#999999",
    "validation": "#009E73",
    "test": "#0072B2",
    "own_test": "#D55E00",
    "trained_test": "#CC79A7",
    "calibrated_test": "#E69F00",
    "client_test": "#56B4E9",
    "client_validation": "#8C6BB1",
}
FATES = {  # columns of the table of rounds, by name and colour
    "answered": ("answered", "#56B4E9"),
    "late": ("late", "#E69F00"),
    "dropped": ("dropped out", "#D55E00"),
    "excluded": ("NaN or infinite", "#CC79A7"),
}
# Metrics up to 1
SHARES = ("accuracy", "balanced_accuracy", "macro_f1", "auc", "average_precision")
# Metrics that readers see in per cent
IN_PERCENT = (*SHARES, "ece", "precision", "recall", "f1", "majority_rate", "one_class_rate")


def frame(x: str, y: str, *, x_type: str = "value", **more: Any) -> Option:
    """Return the parts that all charts with two axes have."""
    named: Option = {"nameLocation": "middle"}
    return {
        "color": PALETTE,
        "grid": {
            "left": 8,
            "right": 20,
            "top": 36,
            "bottom": 8,
            "outerBoundsMode": "same",
            "outerBoundsContain": "all",
        },
        "tooltip": {"trigger": "axis", "confine": True},
        "legend": {"type": "scroll", "top": 0},
        "xAxis": {"type": x_type, "name": x, **named, "nameGap": 26},
        "yAxis": {"type": "value", "name": y, **named, "nameGap": 42, "scale": True},
        **more,
    }


def _line(table: int, column: str, name: str, **more: Any) -> Option:
    look = {
        "showSymbol": False,
        "connectNulls": True,
        "lineStyle": {"width": 2},
        "emphasis": {"focus": "series"},
    }
    return {
        "type": "line",
        "datasetIndex": table,
        "name": name,
        "encode": {"y": column},
        **look,
        **more,
    }


def curves(table: Mapping[str, Sequence[Any]], metric: str, title: str, best: bool) -> Option:
    """The metric of the global and of the clients' models, with the best round marked."""
    option = frame("", title, axis=True, dataset=["rounds"])
    option["series"] = []
    for part, title in {**NAMES, **CLIENT_NAMES}.items():
        column = f"{part}_{metric}"
        if column in table:
            name = title.removeprefix("global model, ")
            evaluations = len(table[column]) - table[column].count(None)
            too_few_for_a_line = evaluations < 2
            line = _line(0, column, name, color=COLOURS[part], showSymbol=too_few_for_a_line)
            option["series"].append(line)
    if best:
        mark = {
            "type": "scatter",
            "datasetIndex": 0,
            "name": "best round",
            "encode": {"y": "best round"},
        }
        option["series"].append(
            {**mark, "symbol": "diamond", "symbolSize": 13, "color": COLOURS["test"], "z": 5}
        )
    return _of_metric(option, metric)


def _of_metric(option: Option, metric: str) -> Option:
    """Let the y axis of a share be in per cent, and end at 1 where 1 is best."""
    if metric in IN_PERCENT:
        option["yAxis"]["percent"] = True
    if metric in SHARES:
        option["yAxis"]["max"] = 1
    return option


def lines(columns: Mapping[str, str], title: str) -> Option:
    """Columns of the table of rounds, by name, with what they are called."""
    option = frame("", title, axis=True, dataset=["rounds"])
    return {**option, "series": [_line(0, column, name) for column, name in columns.items()]}


def overlaid(
    tables: Mapping[str, Mapping[str, Sequence[Any]]],
    names: Mapping[str, str],
    column: str,
    metric: str,
    title: str,
) -> Option:
    """A metric of several methods, by their names: the mean over seeds, and a band of one standard deviation."""
    option = frame("", title, axis=True, dataset=list(tables), series=[])
    for number, (label, table) in enumerate(tables.items()):
        if column not in table:
            continue
        colour = PALETTE[number % len(PALETTE)]
        dashed = {"width": 2, "type": LINE_STYLES[number % len(LINE_STYLES)]}
        option["series"].append(_line(number, column, names[label], color=colour, lineStyle=dashed))
        if f"{column} low" in table:
            band = {
                "type": "custom",
                "band": [f"{column} low", f"{column} high"],
                "clip": True,
                "silent": True,
            }
            option["series"].append(
                {**band, "datasetIndex": number, "name": names[label], "color": colour, "z": 1}
            )
    return _of_metric(option, metric)


def forest(rows: Sequence[ForestRow], zone: float | None, reach: float, x: str) -> Option:
    """Differences to a control with their intervals, one line per method with its verdict; the zone is shaded.

    The axis goes as far as ``reach`` on both sides, so that panels of several skews can be compared.
    """
    option = frame(x, "", legend={"show": False})
    names = [f"{row.name}: {row.verdict}" for row in rows]
    option["yAxis"] = {
        "type": "category", "data": names, "inverse": True,
        "axisLabel": {"width": 150, "overflow": "break", "lineHeight": 14, "interval": 0},
    }  # fmt: skip
    option["xAxis"] |= {"min": -reach, "max": reach, "splitNumber": 4}
    option["xAxis"]["axisLabel"] = {"hideOverlap": True}
    option["tooltip"] = {"trigger": "item", "confine": True}
    option["grid"] |= {"top": 12}
    plain: Option = {
        "type": "line",
        "showSymbol": False,
        "color": PALETTE[0],
        "silent": True,
        "lineStyle": {"width": 3},
    }
    option["series"] = []
    points = []
    for place, row in enumerate(rows):
        if row.low is not None and row.high is not None:
            ends = [[row.low, place], [row.high, place]]
            option["series"].append({**plain, "data": ends})
        points.append([round(row.mean, 6), place])
    mark: Option = {
        "type": "scatter",
        "name": "difference",
        "symbolSize": 11,
        "color": PALETTE[1],
        "data": points,
        "z": 5,
        "markLine": {
            "silent": True,
            "symbol": "none",
            "label": {"show": False},
            "lineStyle": {"type": "solid", "width": 1, "color": "#888888"},
            "data": [{"xAxis": 0}],
        },
    }
    if zone:
        mark["markArea"] = {
            "silent": True,
            "itemStyle": {"color": "#8884", "borderWidth": 0},
            "data": [[{"xAxis": -zone}, {"xAxis": zone}]],
        }
    option["series"].append(mark)
    return option


def fates(table: Mapping[str, Sequence[Any]]) -> Option:
    """The outcomes of the clients of each round."""
    counts = {fate: np.array(table[fate]) for fate in FATES if fate != "answered"}
    counts["answered"] = np.array(table["clients"]) - sum(counts.values())
    option = frame("round", "clients", x_type="category")
    option["xAxis"]["data"] = [str(number) for number in table["round"]]
    option["yAxis"] |= {"scale": False, "minInterval": 1}
    look: Option = {"type": "bar", "stack": "fates", "barCategoryGap": "0%"}
    option["series"] = []
    for fate, (name, colour) in FATES.items():
        if counts[fate].any():
            bar = {**look, "name": name, "color": colour, "data": counts[fate].tolist()}
            option["series"].append(bar)
    return option


def bars(names: Sequence[str], values: Sequence[float], x: str, y: str) -> Option:
    """One bar for each name."""
    option = frame(x, y, x_type="category")
    option["xAxis"]["data"] = list(names)
    option["yAxis"] |= {"scale": False, "minInterval": 1}
    option["grid"]["top"] = 12
    series = {"type": "bar", "name": y, "data": list(values), "barMaxWidth": 60}
    return {**option, "legend": {"show": False}, "series": [series]}


def histogram(values: "Numbers", x: str) -> tuple[Option, list[tuple[str, int]]]:
    """How many clients have values in each of some intervals, as a chart and as rows."""
    numbers = np.asarray(values, np.float64)
    whole = bool((numbers == np.round(numbers)).all())
    if whole:
        step = math.ceil((numbers.max() - numbers.min() + 1) / 20)
        edges = np.arange(numbers.min(), numbers.max() + step + 1, step)
        names = _names_of_whole(edges, step)
    else:
        bins = min(max(math.ceil(math.sqrt(len(numbers))), 5), 20)
        edges = np.histogram_bin_edges(numbers, bins=bins)
        names = [f"{low:.3g} – {high:.3g}" for low, high in pairwise(edges)]
    counts = np.histogram(numbers, edges)[0].tolist()
    option = bars(names, counts, x, "clients")
    option["series"][0]["barCategoryGap"] = "4%"
    return option, list(zip(names, counts, strict=True))


def _names_of_whole(edges: Floats, step: int) -> list[str]:
    """Return the names of intervals of whole numbers."""
    names = []
    for low, high in pairwise(edges):
        if step == 1:
            names.append(f"{low:g}")
        else:
            names.append(f"{low:g} – {high - 1:g}")
    return names


def lorenz(weights: Floats) -> Option:
    """The share of all weights that the clients with the smallest ones have together."""
    total = np.concatenate([[0.0], np.cumsum(np.sort(weights))])
    at = np.unique(np.linspace(0, len(total) - 1, min(len(total), _POINTS + 1)).astype(np.int64))
    if total[-1]:
        share = total / total[-1]
    else:
        share = np.linspace(0, 1, len(total))
    option = frame("share of the clients, smallest weights first", "share of the weights")
    option["xAxis"] |= {"max": 1, "percent": True}
    option["yAxis"] |= {"max": 1, "scale": False, "percent": True}
    plain: Option = {"type": "line", "showSymbol": False}
    points = np.stack([at / (len(total) - 1), share[at]], 1).tolist()
    option["series"] = [
        {**plain, "name": "weights of the clients", "areaStyle": {"opacity": 0.15}, "data": points},
        {
            **plain,
            "name": "equal weights",
            "data": [[0, 0], [1, 1]],
            "lineStyle": {"type": "dashed", "width": 1},
        },
    ]
    return option


def _labels(names: Sequence[str]) -> Option:
    """Return how names stand below an axis: all of them where they are few, and aslant where they are long."""
    if len(names) > _MOST_NAMES:
        return {"hideOverlap": True, "width": 90, "overflow": "truncate"}
    degrees = 0
    if sum(map(len, names)) > _MOST_CHARACTERS:
        degrees = 45
    return {"interval": 0, "rotate": degrees, "width": 130, "overflow": "truncate"}


def heat_map(
    down: Sequence[str], across: Sequence[str], shares: Floats, counts: Ints, y: str, x: str
) -> Option:
    """A matrix: its colours are the shares, and what a reader is told beside them are the counts."""
    option = frame(x, y, x_type="category", legend={"show": False})
    option["xAxis"] |= {"data": list(across), "axisLabel": _labels(across)}
    option["yAxis"] = {
        "type": "category", "name": y, "data": list(down), "inverse": True, "nameLocation": "middle",
        "nameGap": min(70, 7 * max(map(len, down))) + 14,
        "axisLabel": {"interval": -(-len(down) // 25) - 1, "width": 70, "overflow": "truncate"},
    }  # fmt: skip
    option["tooltip"] = {"confine": True, "cells": True}
    option["grid"] |= {"bottom": 40, "top": 10}
    most = max(float(shares.max()), 1e-3)
    look = {
        "min": 0,
        "max": most,
        "orient": "horizontal",
        "left": "center",
        "bottom": 0,
        "dimension": 2,
    }
    option["visualMap"] = {
        **look,
        "precision": 2,
        "text": [f"{100 * most:.0f} % of the row", "0"],
        "itemHeight": 90,
        "itemWidth": 12,
    }
    cells = []
    for i in range(len(down)):
        for j in range(len(across)):
            cells.append([j, i, round(float(shares[i, j]), 4), int(counts[i, j])])
    option["series"] = [
        {"type": "heatmap", "name": "share of the row", "data": cells, "progressive": 0}
    ]
    return option
