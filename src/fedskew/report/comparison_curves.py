"""The curves of a comparison's figure: the metric on test rows over rounds, by condition and method."""

import math
from collections.abc import Sequence

import numpy as np

from fedskew.algorithms.titles import title_of
from fedskew.plots.drawing import Curve
from fedskew.runs.summary_reading import mean_and_std
from fedskew.study.comparison_rows import SCORE
from fedskew.study.comparison_table import Comparison
from fedskew.study.run_data import RunData

_PANELS = 6  # conditions that are drawn


def curve_panels(found: Comparison) -> dict[str, dict[str, Curve]]:
    """Return the mean and the standard deviation over seeds, for the first conditions and each of their methods."""
    column = _column(found)
    panels = {}
    for title, methods in list(_runs_with_curves(found, column).items())[:_PANELS]:
        panels[title] = {label: _curve(runs, column) for label, runs in methods.items()}
    return panels


def curve_title(found: Comparison) -> str:
    """Return what the curves show."""
    return found.columns[SCORE][0]


def _column(found: Comparison) -> str:
    """Return the one column that is drawn: that of the goal."""
    if found.rows.goal == "own":
        return f"client_test_{found.rows.metric}"
    return f"test_{found.rows.metric}"


def _has(run: RunData, column: str) -> bool:
    """Return whether a run has a number in this column in any round."""
    for value in run.rounds.get(column, []):
        if value is not None and math.isfinite(value):
            return True
    return False


def _runs_with_curves(found: Comparison, column: str) -> dict[str, dict[str, list[RunData]]]:
    """Return the runs that have this column, by condition and method."""
    by_condition: dict[str, dict[str, list[RunData]]] = {}
    for run, setting in zip(found.rows.runs.runs, found.rows.runs.settings, strict=False):
        if _has(run, column):
            title = ", ".join(str(setting.values.get(name)) for name in found.rows.conditions)
            by_method = by_condition.setdefault(title, {})
            label = title_of(found.rows.runs.label_of(setting, conditions=False))
            by_method.setdefault(label, []).append(run)
    return by_condition


def _curve(runs: Sequence[RunData], column: str) -> Curve:
    """Return a curve over the rounds in which all runs have a number; with a single run there is no deviation."""
    rounds, means, deviations = [], [], []
    for at in range(min(len(run.rounds["round"]) for run in runs)):
        values = [run.rounds[column][at] for run in runs]
        if None in values or not np.isfinite(values).all():
            continue
        mean, deviation = mean_and_std(values)
        rounds.append(runs[0].rounds["round"][at])
        means.append(mean)
        deviations.append(deviation or 0.0)
    if len(runs) == 1:
        return Curve(rounds, means)
    return Curve(rounds, means, deviations)
