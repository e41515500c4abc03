"""Metrics from sums over rows: what several machines can report of their own rows, and what the sums amount to.

Metrics that need all predictions side by side (the area under a curve) cannot be had in this way.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedskew.core.errors import FedskewError
from fedskew.core.streams import Floats
from fedskew.data.targets import Target
from fedskew.tasks.task import Task

Sums: TypeAlias = dict[str, Floats]
COUNTED = ("confusion", "hits", "missing", "extra", "exact")  # sums that are numbers of rows
OUTCOMES = ("hits", "missing", "extra")  # of these, a row is one at most, for each label
# Sums of numbers that are not below 0
SIZES = ("absolute", "squared", "squared_targets", "surprise")


@dataclass(frozen=True)
class _Additive:
    """How a kind of target is summed up, and the metrics that follow from the sums."""

    sums: Callable[[Task, Tensor, Tensor, int], Sums]  # of what evaluation keeps of rows
    metrics: Callable[[Sums], dict[str, float]]
    names: tuple[str, ...]


def additive_metrics(task: Task) -> tuple[str, ...]:
    """Return the metrics of a task that follow from sums over rows.

    >>> from fedskew.tasks.regression import Regression
    >>> additive_metrics(Regression())
    ('mae', 'rmse', 'r2')
    """
    if task.target not in _KINDS:
        raise FedskewError(
            f"task {task.label()}: its metrics do not follow from sums over the rows of each client, and no server has "
            "all rows in one place here: train it in one process"
        )
    return _KINDS[task.target].names


def sums_over(task: Task, kept: Tensor, losses: Tensor, targets: Tensor, classes: int) -> Sums:
    """Return the number of rows, the sum of their losses and what the metrics need of what evaluation keeps."""
    total = float(losses.double().sum())
    counted = {"rows": np.array(float(len(targets))), "loss": np.array(total)}
    return counted | _KINDS[task.target].sums(task, kept, targets, classes)


def added(parts: "list[Sums]") -> Sums:
    """Return the sums over the rows of all parts."""
    result: Sums = {}
    for name in parts[0]:
        result[name] = sum((part[name] for part in parts[1:]), parts[0][name])
    return result


def metrics_from(task: Task, sums: Mapping[str, Floats]) -> dict[str, float]:
    """Return the mean loss and the metrics that follow from the sums; NaN without rows."""
    kind = _KINDS[task.target]
    if not sums["rows"]:
        return dict.fromkeys(("loss", *kind.names), float("nan"))
    return {"loss": float(sums["loss"] / sums["rows"]), **kind.metrics(dict(sums))}


def _confused(task: Task, outputs: Tensor, targets: Tensor, classes: int) -> Sums:
    cells = targets.long() * classes + task.predict(outputs).long()
    return {
        "confusion": torch.bincount(cells, minlength=classes**2)
        .view(classes, classes)
        .double()
        .cpu()
        .numpy()
    }


def _of_classes(sums: Sums) -> dict[str, float]:
    matrix = sums["confusion"]
    hits = np.diagonal(matrix)
    true = matrix.sum(1)
    predicted = matrix.sum(0)
    both = true + predicted
    return {
        "accuracy": float(hits.sum() / matrix.sum()),
        "balanced_accuracy": float((hits[true > 0] / true[true > 0]).mean()),
        "macro_f1": float((2 * hits[both > 0] / both[both > 0]).mean()),
    }


def _missed(task: Task, outputs: Tensor, targets: Tensor, classes: int) -> Sums:
    wanted = targets.double()
    found = outputs.reshape(len(outputs)).double()
    numbers = {"absolute": (found - wanted).abs(), "squared": (found - wanted).square()}
    numbers |= {"targets": wanted, "squared_targets": wanted.square()}
    result: Sums = {}
    for name, values in numbers.items():
        result[name] = np.array(float(values.sum()))
    return result


def _of_numbers(sums: Sums) -> dict[str, float]:
    rows = sums["rows"]
    total = sums["squared_targets"] - sums["targets"] ** 2 / rows
    squared = float(sums["squared"])
    known = total > 0
    return {
        "mae": float(sums["absolute"] / rows),
        "rmse": float(np.sqrt(squared / rows)),
        "r2": float(1 - squared / total) if known else float("nan"),
    }


def _labelled(task: Task, outputs: Tensor, targets: Tensor, classes: int) -> Sums:
    found = task.predict(outputs).bool()
    wanted = targets.bool()
    columns = {"hits": found & wanted, "missing": wanted & ~found, "extra": found & ~wanted}
    counted = {}
    for name, values in columns.items():
        counted[name] = values.double().sum(0).cpu().numpy()
    return counted | {"exact": np.array(float((found == wanted).all(1).sum()))}


def _of_labels(sums: Sums) -> dict[str, float]:
    hits = sums["hits"]
    wrong = sums["missing"] + sums["extra"]
    with np.errstate(invalid="ignore"):
        each = np.where(hits + wrong > 0, 2 * hits / (2 * hits + wrong), 0.0)
        whole = 2 * hits.sum() / (2 * hits.sum() + wrong.sum())
    return {
        "accuracy": float(1 - wrong.sum() / (sums["rows"] * len(hits))),
        "exact_match": float(sums["exact"] / sums["rows"]),
        "macro_f1": float(each.mean()),
        "micro_f1": 0.0 if np.isnan(whole) else float(whole),
    }


def _told(task: Task, kept: Tensor, targets: Tensor, classes: int) -> Sums:
    totals = kept.double().sum(0).cpu().numpy()
    counted: Sums = {}
    for name, total in zip(task.row_sums, totals, strict=True):
        counted[name] = np.array(float(total))
    return counted


def _of_tokens(sums: Sums) -> dict[str, float]:
    tokens = sums["tokens"]
    return {
        "accuracy": float(sums["right"] / tokens),
        "perplexity": float(np.exp(sums["surprise"] / tokens)),
    }


_KINDS: dict[Target, _Additive] = {
    "class": _Additive(_confused, _of_classes, ("accuracy", "balanced_accuracy", "macro_f1")),
    "number": _Additive(_missed, _of_numbers, ("mae", "rmse", "r2")),
    "labels": _Additive(_labelled, _of_labels, ("accuracy", "exact_match", "macro_f1", "micro_f1")),
    "tokens": _Additive(_told, _of_tokens, ("accuracy", "perplexity")),
}
