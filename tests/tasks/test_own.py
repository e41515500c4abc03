"""A user-defined task: its functions are used, and errors name what does not fit."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedskew.core.errors import FedskewError
from fedskew.tasks.task import Task, choice_of


def distance(out, y):
    return (out - y).abs()


def mean_distance(out, y):
    return np.abs(out - y).mean()


def own(**changed) -> Task:
    return Task(
        **{"loss": distance, "metrics": {"mae": mean_distance}, "target": "number", **changed}
    )


OUTPUTS, NUMBERS = torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([1.0, 2.0, 3.0])


def test_functions_of_one_output_get_vectors():
    task = own(row_metric="mae", row_score=distance, higher_is_better=False)
    task.check(OUTPUTS, NUMBERS)
    assert task.losses(OUTPUTS, NUMBERS, "none").tolist() == [0, 1, 2]
    assert float(task.losses(OUTPUTS, NUMBERS)) == 1
    assert float(task.losses(OUTPUTS, NUMBERS, "sum")) == 3
    assert task.row_scores(OUTPUTS, NUMBERS).tolist() == [0, 1, 2]
    assert task.row_scores(OUTPUTS.expand(2, 3, 1), NUMBERS.expand(2, 3)).tolist() == [
        [0, 1, 2],
        [0, 1, 2],
    ]
    assert task.evaluate(OUTPUTS.numpy(), NUMBERS.numpy()) == {"mae": 1.0}
    assert task.predict(OUTPUTS).tolist() == [1, 3, 5]
    assert task.width(0) == 1
    assert not task.higher_is_better
    assert str(choice_of(task)) == "Task:loss=distance,metrics=mae,target=number,outputs=none"


def test_several_outputs_for_a_number():
    def gaussian(out, y):
        return out[:, 1] + (out[:, 0] - y).square() / out[:, 1].exp()

    task = own(
        loss=gaussian,
        outputs=2,
        metrics={"mae": lambda out, y: abs(out[:, 0] - y).mean()},
        predict=lambda out: out[:, 0],
    )
    outputs = torch.tensor([[1.0, 0.0], [3.0, 1.0], [5.0, 2.0]])
    task.check(outputs, NUMBERS)
    assert task.width(0) == 2
    assert task.evaluate(outputs.numpy(), NUMBERS.numpy()) == {"mae": 1.0}
    assert task.predict(outputs).tolist() == [1, 3, 5]


def test_classes_of_ones_own_and_their_predictions():
    focal = Task(
        lambda out, y: (
            (1 - F.softmax(out, 1).gather(1, y[:, None])[:, 0]) ** 2
            * F.cross_entropy(out, y, reduction="none")
        ),
        {"wrong": lambda out, y: (out.argmax(1) != y).mean()},
        higher_is_better=False,
    )
    outputs, targets = torch.tensor([[2.0, 0.0], [3.0, 1.0]]), torch.tensor([0, 1])
    focal.check(outputs, targets)
    assert focal.width(5) == 5
    assert focal.predict(outputs).tolist() == [0, 0]
    assert focal.evaluate(outputs.numpy(), targets.numpy()) == {"wrong": 0.5}
    hinge = Task(
        lambda out, y: F.relu(1 - out * (2 * y - 1)),
        {"a": lambda out, y: ((out > 0) == y).mean()},
        outputs=1,
    )
    hinge.check(outputs[:, :1], targets)
    assert hinge.predict(torch.tensor([[0.5], [-0.5]])).tolist() == [1, 0]
    assert hinge.width(2) == 1


def test_one_label_keeps_its_axis():
    task = Task(
        lambda out, y: (out - y).square().sum(-1),
        {"a": lambda out, y: float(out.shape == y.shape)},
        "labels",
    )
    outputs, targets = torch.tensor([[0.5], [-0.5]]), torch.tensor([[1.0], [0.0]])
    task.check(outputs, targets)
    assert task.evaluate(outputs.numpy(), targets.numpy()) == {"a": 1.0}
    assert task.predict(outputs).tolist() == [[1], [0]]


def test_no_rows_give_nan_and_unknown_metrics_are_named():
    assert math.isnan(own().evaluate(np.zeros((0, 1)), np.zeros(0))["mae"])
    with pytest.raises(FedskewError, match="unknown metric of task Task 'mea': did you mean 'mae'"):
        own().evaluate(np.zeros((1, 1)), np.zeros(1), ["mea"])
    with pytest.raises(FedskewError, match="2 outputs for 1 targets"):
        own().evaluate(np.zeros((2, 1)), np.zeros(1))
    task = own()
    losses = task.losses(OUTPUTS, NUMBERS, "none")
    assert torch.equal(task.row_scores(OUTPUTS, NUMBERS), losses)  # engines ask for some score


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"loss": lambda out, y: distance(out, y).mean()},
            r"loss returned Tensor of shape \[\] \(float32\), not one number for each of 3",
        ),
        ({"loss": lambda out, y: out[:, None] - y}, r"loss returned Tensor of shape \[3, 3\]"),
        ({"loss": lambda out, y: 1.5}, "loss returned float 1.5"),
        ({"loss": lambda out, y: y * 2}, "the loss has no gradient"),
        ({"loss": lambda out, y: out.nothing}, "the loss failed: AttributeError"),
        (
            {"loss": lambda out, y: distance(out, y) * (2 if out.sum() > 0 else 1)},
            "the loss under torch.func.vmap .no if",
        ),
        (
            {"metrics": {"mae": lambda out, y: abs(out - y)}},
            r"metric mae returned ndarray of shape \[3\] \(float64\), not a number",
        ),
        (
            {"metrics": {"mae": lambda out, y: None}},
            "metric mae returned NoneType None, not a number",
        ),
        ({"metrics": {"mae": lambda out, y: 1 / 0}}, "metric mae failed: ZeroDivisionError"),
        (
            {"row_metric": "mae", "row_score": lambda out, y: out.mean()},
            r"row_score returned Tensor of shape \[\]",
        ),
        (
            {"predict": lambda out: out.mean()},
            r"predict returned Tensor of shape \[\] \(float32\), not one prediction",
        ),
    ],
)
def test_functions_that_do_not_fit_are_refused_when_tried(changed, message):
    with pytest.raises(FedskewError, match=message):
        own(**changed).check(OUTPUTS, NUMBERS)


def test_a_loss_of_the_wrong_shape_is_refused_in_training_too():
    with pytest.raises(FedskewError, match=r"loss returned Tensor of shape \[\]"):
        own(loss=lambda out, y: distance(out, y).mean()).losses(OUTPUTS, NUMBERS)


@pytest.mark.parametrize(
    ("target", "outputs", "targets", "message"),
    [
        (
            "number",
            OUTPUTS,
            torch.tensor([1, 2, 3]),
            r"takes floating-point numbers, one per row as targets, got Tensor of shape \[3\] \(int64\)",
        ),
        (
            "class",
            OUTPUTS,
            NUMBERS,
            r"takes whole numbers, one class per row as targets, got Tensor of shape \[3\] \(float32\)",
        ),
        ("labels", OUTPUTS, NUMBERS[:, None], "takes a matrix of 0 and 1"),
        ("labels", OUTPUTS, torch.tensor([1, 0, 1]), "takes a matrix of 0 and 1"),
        (
            "number",
            OUTPUTS[:2],
            NUMBERS,
            r"the model gave Tensor of shape \[2, 1\] \(float32\) for 3 rows",
        ),
        ("number", OUTPUTS.long(), NUMBERS, "the model gave Tensor"),
    ],
)
def test_targets_and_outputs_of_another_kind_are_refused(target, outputs, targets, message):
    with pytest.raises(FedskewError, match=message):
        own(target=target).check(outputs, targets)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"target": "nomber"}, "unknown target of a task 'nomber': did you mean 'number'"),
        ({"outputs": 0}, "outputs=0 is not a whole number from 1"),
        ({"metrics": {}}, "metrics needs at least one function"),
        ({"metrics": {"loss": mean_distance}}, "'loss' cannot name a metric"),
        ({"metrics": {"a b": mean_distance}}, "'a b' cannot name a metric"),
        ({"metrics": {"mae": 3}}, "metric mae is 3, not a function"),
        ({"loss": None}, "loss is None, not a function"),
        ({"row_metric": "mae"}, "row_metric .* and row_score .* go together"),
    ],
)
def test_a_task_that_cannot_be_is_refused(changed, message):
    with pytest.raises(FedskewError, match=message):
        own(**changed)
