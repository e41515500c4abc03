"""The task of predicting several numbers of a row, such as the next values of a series."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal

import numpy as np
from torch import Tensor

from fedskew.core.errors import FedskewError, unknown
from fedskew.core.registry import AtLeastOne
from fedskew.core.streams import Floats, Ints
from fedskew.data.targets import Targets
from fedskew.tasks.scores import NUMBER_RANGES, Range, r2
from fedskew.tasks.task import BuiltIn, Headline, Reduction, reduced, tasks


@tasks.register("sequence-regression")
@dataclass(frozen=True)
class SequenceRegression(BuiltIn):
    """Predict several numbers a row, such as the next steps of a series, from as many outputs.

    The loss of a row is the mean over its numbers.

    Metrics: mae, rmse and r2 of each number over the rows, and of these the plain mean over the numbers, as in
    scikit-learn; mae_1, mae_2 … are the mean absolute errors of the first number, the second …

    Args:
        loss: mse for the squared error, mae for the absolute one
        steps: how many numbers a row has; by default as many as the targets

    >>> import torch
    >>> SequenceRegression().losses(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 5.0]]), "none")
    tensor([4.5000])
    """

    loss: Literal["mse", "mae"] = "mse"
    steps: Annotated[int | None, AtLeastOne] = None

    target = "numbers"
    row_metric = "mae"
    higher_is_better = False
    names = ("mae", "rmse", "r2")

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Return the names of all metrics, the headline first; those of single numbers where their count is known."""
        return (*self.names, *_single_names(self.steps or 0))

    def headline(self, metric: str | None = None) -> Headline:
        """Return the metric that decides what is best: the first, or the one that is asked for."""
        name = metric or self.names[0]
        if name not in self.metric_names:
            raise unknown(f"metric of task {self.label()}", name, self.metric_names)
        if name == "r2":
            return Headline(name, 1)
        return Headline(name, -1)

    def width(self, classes: int) -> int:
        """Return one output for each number."""
        if self.steps not in (None, classes):
            raise FedskewError(
                f"task sequence-regression: steps={self.steps}, and the targets of these data are {classes} numbers a "
                "row: leave it out"
            )
        return super().width(classes)

    def fitted(self, counts: Ints) -> "SequenceRegression":
        """Return the task with the count of its numbers."""
        if self.steps is None:
            return replace(self, steps=len(counts))
        return self

    def range_of(self, name: str) -> Range:
        """Return what the loss or a metric may be."""
        return NUMBER_RANGES.get(name, Range(0))

    def row_scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean absolute error of each row's numbers."""
        return (outputs - targets).abs().mean(-1)

    def _losses(self, outputs: Tensor, targets: Tensor, reduction: Reduction) -> Tensor:
        missed = outputs - targets.to(outputs.dtype)
        if self.loss == "mse":
            return reduced(missed.square().mean(-1), reduction)
        return reduced(missed.abs().mean(-1), reduction)

    def _measures(self, outputs: Floats, targets: Targets) -> Mapping[str, Callable[[], float]]:
        targets = targets.astype(np.float64)
        errors = np.abs(outputs - targets).mean(0)
        measures: dict[str, Callable[[], float]] = {
            "mae": lambda: float(errors.mean()),
            "rmse": lambda: float(np.sqrt(np.square(outputs - targets).mean(0)).mean()),
            "r2": lambda: _mean_r2(outputs, targets),
        }
        for name, error in zip(_single_names(len(errors)), errors, strict=True):
            measures[name] = partial(float, error)
        return measures


def _mean_r2(outputs: Floats, targets: Floats) -> float:
    each = []
    for column, wanted in zip(outputs.T, targets.T, strict=True):
        each.append(r2(column, wanted))
    return float(np.mean(each))


def _single_names(steps: int) -> tuple[str, ...]:
    """Return the names of the mean absolute errors of single numbers."""
    return tuple(f"mae_{number}" for number in range(1, steps + 1))
