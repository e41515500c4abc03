"""From the tables of a run to the few numbers that sum it up; a metric is always named: whose, on what, last or best.

What is said of accuracy in classification is said of the task's first metric, its headline, in any other task.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fedskew.core.streams import Floats
from fedskew.engine.job import WHOLE
from fedskew.heterogeneity.fairness import gini, rounds_to_share, worst_share_mean
from fedskew.tasks.classification import Classification
from fedskew.tasks.task import Headline, Task

Row = dict[str, Any]

# Whose scores the table of rounds has, and on which rows
NAMES = {
    "train": "global model, training rows",
    "validation": "global model, validation rows",
    "test": "global model, test rows",
    "own_test": "clients' own models, test rows",
    "trained_test": "clients' models after local training, test rows",
    "calibrated_test": "global model with a new head, test rows",
}
SHARED_MODEL = "shared_model"  # whether clients share a whole model: ``whole``, or why they do not
ONE_CLASS = 0.99  # share of the rows from which on a model is said to predict one class
_NOISE = 1e-14  # share of a mean below which a deviation is that of the last bits
LATE_ROUNDS = 15  # over which late oscillation is measured


def mean_and_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and the standard deviation (n - 1) of some numbers; of a single one there is no deviation.

    What the rounding of the mean explains is none either.

    >>> mean_and_std([1.0, 3.0, 5.0]), mean_and_std([7.0]), mean_and_std([0.1, 0.1, 0.1])[1]
    ((3.0, 2.0), (7.0, None), 0.0)
    """
    with np.errstate(invalid="ignore"):  # of numbers that are not finite there is none either
        mean = float(np.mean(values))
        if len(values) > 1:
            std = float(np.std(values, ddof=1))
        else:
            std = None
        return mean, 0.0 if std is not None and std <= _NOISE * abs(mean) else std


def summarise(
    rounds: Sequence[Row],
    clients: Iterable[Row],
    final: Sequence[Row],
    population: int,
    held_out: bool,
    task: Task | None = None,
    metric: str | None = None,
) -> Row:
    """Return the summary of a run with at least one round; ``population`` is the number of clients.

    ``metric`` is the headline, by default the task's first metric.
    """
    task = task or Classification()
    headline = task.headline(metric)
    result: Row = {"rounds": len(rounds)}
    for part in NAMES:
        result |= _last_and_best(rounds, part, task, headline)
    result |= _late_oscillation(rounds, headline.name)
    for part in ("test", "calibrated_test") if headline.sign > 0 else ():
        result |= _until_90_percent(rounds, part, headline.name)
    result |= _over_clients(final, held_out, task, headline)
    result["gini_of_client_weights"] = float(gini(_accumulated(clients, population)))
    result["updates"] = sum(row["clients"] for row in rounds)
    for fate in ("excluded", "dropped", "late"):
        result[f"{fate}_updates"] = sum(row[fate] for row in rounds)
    for name in ("bytes_down", "bytes_up"):
        result[name] = sum(row[name] for row in rounds)
    result["simulated_seconds"] = rounds[-1]["clock"]
    if known := [
        row["backdoor_success"] for row in rounds if row.get("backdoor_success") is not None
    ]:
        result["backdoor_success_last"] = known[-1]
    return result


def _last_and_best(rounds: Sequence[Row], part: str, task: Task, headline: Headline) -> Row:
    """The headline in the last and in the best round, and the other metrics and the loss in the last."""
    others = [name for name in task.metric_names if name != headline.name]
    column = f"{part}_{headline.name}"
    sign = headline.sign
    scored = [row for row in rounds if row.get(column) is not None]
    if not scored:
        return {}

    def good(row: Row) -> float:
        value = sign * float(row[column])
        if math.isnan(value):
            return -math.inf
        return value

    last = scored[-1]
    best = max(scored, key=good)
    result = {
        f"{column}_last": last[column],
        f"{column}_best": best[column],
        f"{column}_best_round": best["round"],
    }
    return result | {
        f"{part}_{n}_last": last[f"{part}_{n}"] for n in (*others, "loss") if f"{part}_{n}" in last
    }


def _late_oscillation(rounds: Sequence[Row], metric: str) -> Row:
    """The standard deviation (n - 1) of the test metric over the last rounds; None where too few were scored."""
    late = []
    for row in rounds[-LATE_ROUNDS:]:
        if row.get(f"test_{metric}") is not None:
            late.append(row[f"test_{metric}"])
    return {
        f"test_{metric}_std_of_last_{LATE_ROUNDS}_rounds": float(np.std(late, ddof=1))
        if len(late) > 2
        else None
    }


def _until_90_percent(rounds: Sequence[Row], part: str, metric: str) -> Row:
    """What it took until the global model first had 90 % of its last, and of its best, score; bytes are both ways."""
    column = f"{part}_{metric}"
    scored = [row for row in rounds if row.get(column) is not None]
    values = [row[column] for row in scored]
    result: Row = {}
    if not scored and part != "test":
        return result
    for which, goal in (("last", values[-1:]), ("best", [max(values)] if values else [])):
        # No share of less than nothing
        if not goal or goal[0] >= 0:
            place = rounds_to_share(values, 0.9, *goal)
        else:
            place = None
        spent: Row = dict.fromkeys(("rounds", "simulated_seconds", "bytes"))
        if place is not None:
            reached = scored[place - 1]
            sent = sum(
                row["bytes_down"] + row["bytes_up"]
                for row in rounds
                if row["round"] <= reached["round"]
            )
            spent = {
                "rounds": reached["round"],
                "simulated_seconds": reached["clock"],
                "bytes": sent,
            }
        for what, value in spent.items():
            result[f"{what}_to_90_percent_of_{which}_{column}"] = value
    return result


def _over_clients(final: Sequence[Row], held_out: bool, task: Task, headline: Headline) -> Row:
    """Return means over the clients of every metric, and over the worst of them for the row metric and the headline."""
    result: Row = {}
    metric = task.row_metric or "loss"
    if task.row_metric and task.higher_is_better:
        sign = 1
    else:
        sign = -1
    worst = {headline.name: headline.sign, metric: sign}
    for name in dict.fromkeys((metric, *task.metric_names, "majority_rate", "one_class_rate")):
        known = _known(final, name)
        shared = _known(final, f"global_{name}")
        if len(known):
            result[f"client_{name}_mean"] = float(known.mean())
        if len(known) and name in worst:
            result[f"client_{name}_worst_10_percent"] = worst[name] * float(
                worst_share_mean(worst[name] * known, 0.1)
            )
        if len(known) and name == metric:
            result[f"client_{name}_rows"] = (
                f"{'held-out' if held_out else 'training'} rows of each client"
            )
        if len(shared):
            result[f"client_{name}_of_global_model_mean"] = float(shared.mean())
    for name in (f"own_test_{name}" for name in (*task.metric_names, "one_class_rate")):
        own = [row[name] for row in final if row.get(name) is not None]
        if own:
            result[f"{name}_mean"] = float(np.mean(own))
    return result


def _known(final: Sequence[Row], name: str) -> Floats:
    """Return the finite values of a column."""
    values = np.array([row[name] for row in final if row.get(name) is not None], dtype=np.float64)
    return values[np.isfinite(values)]


def predictions_of_one_class(summary: Row) -> list[str]:
    """Return a warning for models that predict nearly always the same class, while the rows have others."""
    majority = summary.get("test_majority_rate")
    own = "own_test_one_class_rate_mean" in summary
    rate = summary.get("own_test_one_class_rate_mean" if own else "test_one_class_rate")
    if majority is None or rate is None or rate < ONE_CLASS or rate <= majority:
        return []
    method = summary["algorithm"]
    accuracy = summary["own_test_accuracy_mean" if own else "test_accuracy_last"]
    if own:
        who = f"the clients' own models of {method} predict"
    else:
        who = f"{method} predicts"
    if own:
        which = ""
    else:
        which = f", {summary['test_one_class']},"
    return [
        f"{who} one class{which} for {math.floor(1000 * rate) / 10:g} % of the test rows: the accuracy of "
        f"{accuracy:.1%} says nothing more (the most frequent class: {majority:.1%}); judge by "
        "metric=balanced_accuracy, and try class_weights=balanced"
    ]


def without_shared_score(methods: Iterable[str], summaries: Iterable[Row]) -> list[str]:
    """Return why cells of a shared model are empty: a line for methods whose clients share no whole model.

    >>> without_shared_score(["fedavg", "fedper"], [{"shared_model": "whole"}, {"shared_model": "all keep a part"}])
    ['There is no shared score of fedper: all keep a part.']
    """
    found: dict[str, list[str]] = {}
    for method, row in zip(methods, summaries, strict=True):
        reason = row.get(SHARED_MODEL, WHOLE)
        if reason != WHOLE and method not in found.setdefault(reason, []):
            found[reason].append(method)
    return [
        f"There is no shared score of {', '.join(names)}: {reason}."
        for reason, names in found.items()
    ]


def _accumulated(
    clients: Iterable[Row], population: int
) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Return each client's sum of weights over all rounds, 0 for those never chosen."""
    total = np.zeros(population)
    for row in clients:
        total[row["client"]] += row["weight"]
    return total
