"""The curves of a comparison's figure: the metric on test rows over rounds, by condition and method."""

from collections.abc import Sequence

from fedskew.plots.drawing import Curve
from fedskew.runs.summary import mean_and_std
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
    title = f"test {found.rows.metric}"
    if _column(found).startswith("own_"):
        return f"{title} (mean of own models)"
    return title


def _column(found: Comparison) -> str:
    """Return the one column that is drawn: of the shared model, unless there is only the mean of the clients' own."""
    shared = f"test_{found.rows.metric}"
    if any(_has(run, shared) for run in found.rows.runs.runs):
        return shared
    return f"own_test_{found.rows.metric}"


def _has(run: RunData, column: str) -> bool:
    return any(value is not None for value in run.rounds.get(column, []))


def _runs_with_curves(found: Comparison, column: str) -> dict[str, dict[str, list[RunData]]]:
    """Return the runs that have this column, by condition and method."""
    by_condition: dict[str, dict[str, list[RunData]]] = {}
    for run, setting in zip(found.rows.runs.runs, found.rows.runs.settings, strict=False):
        if _has(run, column):
            title = ", ".join(str(setting.values.get(name)) for name in found.rows.conditions)
            by_method = by_condition.setdefault(title, {})
            by_method.setdefault(found.rows.runs.label_of(setting, False), []).append(run)
    return by_condition


def _curve(runs: Sequence[RunData], column: str) -> Curve:
    """Return a curve over the rounds in which all runs have a number; with a single run there is no deviation."""
    rounds, means, deviations = [], [], []
    for at in range(min(len(run.rounds["round"]) for run in runs)):
        values = [run.rounds[column][at] for run in runs]
        if None in values:
            continue
        mean, deviation = mean_and_std(values)
        rounds.append(runs[0].rounds["round"][at])
        means.append(mean)
        deviations.append(deviation or 0.0)
    if len(runs) == 1:
        return Curve(rounds, means)
    return Curve(rounds, means, deviations)
