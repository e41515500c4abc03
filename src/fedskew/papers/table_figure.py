"""What the figure of a table shows: curves over rounds, values over cases with numbers, or class distributions."""

import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedskew.core.streams import Floats
from fedskew.papers.comparison import Measured
from fedskew.papers.paper_claims import Value
from fedskew.papers.results import Result
from fedskew.plots.distribution_figure import draw_distributions
from fedskew.plots.drawing import Curve
from fedskew.plots.replication_figures import MOST_PANELS, Panel, draw_panels, figure_file
from fedskew.runs.summary_reading import mean_and_std

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NUMBERED = re.compile(r"(\D*?)(-?\d+(?:\.\d+)?(?:e-?\d+)?)(\D*)")
_ROWS_OF_CLASS = re.compile(r"rows_(\d+)_(\d+)")  # of a client


def draw_table(found: Measured) -> tuple[str, bytes] | None:
    """Return the ending and the bytes of the figure, the same for the same results; nothing if nothing can be drawn."""
    figure = figure_of(found)
    if figure is None:
        return None
    return figure_file(figure)


def figure_of(found: Measured) -> "Figure | None":
    """Return the figure: distributions, or a panel for each curve and case, or for each value over the cases."""
    table = found.table
    if table.kind == "distribution":
        return draw_distributions(_class_counts(found))
    if any(run.curves for run in found.runs):
        return draw_panels(_panels_over_rounds(found), table.method_names)
    axis = numbers_of(table.case_names)
    if axis is None:
        return None
    return draw_panels(_panels_over_cases(found, *axis), table.method_names)


# -- curves over rounds ------------------------------------------------------------------------------------------------


def _panels_over_rounds(found: Measured) -> list[list[Panel]]:
    """Return for every column of the curves a panel for each case."""
    groups = []
    for column in found.table.curves:
        panels = []
        for case in found.table.case_names:
            curves = {}
            for method in found.table.method_names:
                curves[method] = _over_rounds(found.cell(case, method).runs, column)
            panels.append(Panel(case, "round", column.replace("_", " "), curves))
        groups.append(panels)
    return groups


def _over_rounds(runs: Iterable[Result], column: str) -> Curve:
    """Return a curve over the rounds that all seeds have."""
    drawn = [_points(run, column) for run in runs if run.curves]
    if not drawn:
        return Curve([], [])
    rounds = sorted(set.intersection(*map(set, drawn)))
    numbers = []
    for at in rounds:
        numbers.append([points[at] for points in drawn])
    return _curve(rounds, numbers)


def _points(run: Result, column: str) -> dict[float, float]:
    """Return the finite numbers of a run's curve, by round."""
    points = {}
    for row in run.curves:
        if math.isfinite(row.get(column, math.nan)):
            points[row["round"]] = row[column]
    return points


# -- values over cases -------------------------------------------------------------------------------------------------


def numbers_of(names: Sequence[str]) -> tuple[str, list[float]] | None:
    """Return what the names have in common and their numbers; nothing for names that differ in more than a number.

    >>> numbers_of(["alpha 0.1", "alpha 1", "alpha 10"])
    ('alpha', [0.1, 1.0, 10.0])
    >>> numbers_of(["IID", "alpha 1", "alpha 10"])
    """
    if len(names) < 3:
        return None
    numbers = []
    common = set()
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match is None:
            return None
        before, number, after = match.groups()
        common.add((before.strip(" =:"), after.strip()))
        numbers.append(float(number))
    if len(common) > 1:
        return None
    before, after = common.pop()
    return f"{before} {after}".strip() or "case", numbers


def _panels_over_cases(found: Measured, x: str, numbers: Sequence[float]) -> list[list[Panel]]:
    """Return a panel for each value, alone in its group, with the cases in the order of their numbers."""
    ticks, cases = [], []
    for number, case in sorted(zip(numbers, found.table.case_names, strict=True)):
        ticks.append(number)
        cases.append(case)
    groups = []
    for value in found.table.values[:MOST_PANELS]:
        curves = {}
        for method in found.table.method_names:
            curves[method] = _over_cases(found, cases, method, value)
        groups.append([Panel("", x, value.name, curves, ticks)])
    return groups


def _over_cases(found: Measured, cases: Sequence[str], method: str, value: Value) -> Curve:
    """Return a value over the places of the cases that have one."""
    places = []
    numbers = []
    for place, case in enumerate(cases):
        of_case = list(found.cell(case, method).numbers(value).values())
        if of_case:
            places.append(place)
            numbers.append(of_case)
    return _curve(places, numbers)


def _curve(x: Sequence[float], numbers: Iterable[Sequence[float]]) -> Curve:
    """Return means and standard deviations of the numbers at every place."""
    means = []
    deviations = []
    for of_place in numbers:
        mean, deviation = mean_and_std(of_place)
        means.append(mean)
        deviations.append(deviation or 0.0)
    return Curve(x, means, deviations)


# -- class distributions -----------------------------------------------------------------------------------------------


def _class_counts(found: Measured) -> dict[str, Floats]:
    """Return the rows of every client (down) and class (across) for each case, of its first seed."""
    counts = {}
    for (case, _), cell in found.cells.items():
        first = min(cell.runs, key=lambda run: run.seed)
        counts[case] = matrix_of(first)
    return counts


def matrix_of(run: Result) -> Floats:
    """Return the rows of every client (down) and class (across) that a run has recorded."""
    rows = {}
    for name, number in run.numbers.items():
        match = _ROWS_OF_CLASS.fullmatch(name)
        if match:
            rows[int(match[1]), int(match[2])] = number
    matrix = np.zeros(np.max(list(rows), axis=0) + 1)
    for place, number in rows.items():
        matrix[place] = number
    return matrix
