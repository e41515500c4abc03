"""Metrics from the sums of several parts are those of all rows together."""

import numpy as np
import pytest
import torch

from fedskew.tasks.additive import Sums, added, additive_metrics, metrics_from, sums_over
from fedskew.tasks.binary import Binary
from fedskew.tasks.classification import Classification
from fedskew.tasks.multilabel import Multilabel
from fedskew.tasks.next_token import NextToken
from fedskew.tasks.regression import Regression
from fedskew.tasks.task import Task

DRAW = torch.Generator().manual_seed(0)


def made(task: Task, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    outputs = torch.randn(50, max(1, task.width(classes)), generator=DRAW)
    if task.target == "tokens":
        return torch.randn(50, 4, classes, generator=DRAW), torch.randint(
            0, classes, (50, 4), generator=DRAW
        )
    if task.target == "number":
        return outputs + 100, torch.randn(50, generator=DRAW) + 100
    if task.target == "labels":
        return outputs, torch.randint(0, 2, (50, classes), generator=DRAW).float()
    return outputs, torch.randint(
        0, max(2, classes - 1), (50,), generator=DRAW
    )  # of several classes the last is absent


def summed(task: Task, outputs: torch.Tensor, targets: torch.Tensor, classes: int) -> Sums:
    losses = task.losses(outputs, targets, "none")
    return sums_over(task, task.kept(outputs, targets), losses, targets, classes)


@pytest.mark.parametrize(
    ("task", "classes"),
    [(Classification(), 4), (Binary(), 2), (Multilabel(), 3), (Regression(), 0), (NextToken(), 6)],
    ids=lambda x: str(x),
)
def test_parts_add_up_to_the_metrics_of_all_rows(task: Task, classes: int):
    outputs, targets = made(task, classes)
    parts = [
        summed(task, outputs[a:b], targets[a:b], classes)
        for a, b in ((0, 7), (7, 7), (7, 30), (30, 50))
    ]
    found, names = metrics_from(task, added(parts)), additive_metrics(task)
    assert len(names) >= 2
    for name, value in task.evaluate(outputs.numpy(), targets.numpy(), names).items():
        assert found[name] == pytest.approx(value, abs=1e-9), name
    assert found["loss"] == pytest.approx(float(task.losses(outputs, targets)), rel=1e-6)


def test_without_rows_there_is_no_metric():
    task = Classification()
    found = metrics_from(task, summed(task, torch.zeros(0, 3), torch.zeros(0, dtype=torch.long), 3))
    assert found.keys() == {"loss", *additive_metrics(task)}
    assert all(np.isnan(value) for value in found.values())
