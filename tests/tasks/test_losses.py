"""Losses, row scores and predictions of the built-in tasks: against torch, by hand, and one row at a time."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad, vmap

from fedskew.core.errors import FedskewError
from fedskew.tasks.binary import Binary
from fedskew.tasks.classification import Classification
from fedskew.tasks.multilabel import Multilabel
from fedskew.tasks.regression import Regression
from fedskew.tasks.task import Task, choice_of, resolve, tasks

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]
CLASSES = 4
ALL = [
    "classification",
    "classification:label_smoothing=0.1",
    "classification:class_weights=1+2+0.5+3",
    "classification:label_smoothing=0.1,class_weights=1+2+0.5+3",
    "binary",
    "binary:label_smoothing=0.2,class_weights=1+5",
    "multilabel",
    "multilabel:class_weights=1+2+0.5+3",
    "regression",
    "regression:loss=mae",
    "regression:loss=huber,delta=0.5",
    "own",
]


def made(spec: str) -> Task:
    if spec == "own":
        return Task(
            lambda out, y: (out - y) ** 4, {"worst": lambda out, y: abs(out - y).max()}, "number"
        )
    return resolve(spec)


def data(
    task: Task, *shape: int, dtype: torch.dtype = torch.float32, seed: int = 0
) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    classes = {"class": 2 if task.outputs == 1 else CLASSES, "labels": CLASSES, "number": 0}[
        task.target
    ]
    outputs = torch.randn(*shape, task.width(classes), generator=draw, dtype=dtype)
    if task.target == "class":
        return outputs, torch.randint(classes, shape, generator=draw)
    if task.target == "number":
        return outputs, torch.randn(*shape, generator=draw)
    return outputs, torch.randint(2, (*shape, CLASSES), generator=draw).float()


def test_all_of_them():
    assert list(tasks) == [
        "binary",
        "classification",
        "multilabel",
        "next-token",
        "regression",
        "sequence-regression",
        "survival",
    ]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_plain_classification_is_torchs_cross_entropy_to_the_bit(reduction, dtype, device):
    task = Classification()
    for seed in range(5):
        outputs, targets = (part.to(device) for part in data(task, 37, dtype=dtype, seed=seed))
        found, expected = (outputs.clone().requires_grad_() for _ in range(2))
        ours, theirs = (
            task.losses(found, targets, reduction),
            F.cross_entropy(expected, targets, reduction=reduction),
        )
        assert torch.equal(ours, theirs)
        ours.sum().backward()
        theirs.sum().backward()
        assert torch.equal(found.grad, expected.grad)


def test_a_stack_of_classifications_is_flattened_and_folded_to_the_bit():
    outputs, targets = data(Classification(), 3, 5)
    expected = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none").view_as(
        targets
    )
    assert torch.equal(Classification().losses(outputs, targets, "none"), expected)
    assert torch.equal(Classification().row_scores(outputs, targets), outputs.argmax(2) == targets)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("spec", ALL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_reductions_agree_and_are_plain_means_and_sums_of_rows(spec, dtype, device):
    task = made(spec)
    outputs, targets = (part.to(device) for part in data(task, 23, dtype=dtype))
    each = task.losses(outputs, targets, "none")
    assert each.shape == (23,)
    assert each.dtype == dtype
    torch.testing.assert_close(task.losses(outputs, targets, "sum"), each.sum())
    torch.testing.assert_close(task.losses(outputs, targets, "mean"), each.mean())
    assert torch.equal(task.losses(outputs, targets), task.losses(outputs, targets, "mean"))
    rows = [task.losses(outputs[row : row + 1], targets[row : row + 1]) for row in range(23)]
    torch.testing.assert_close(each, torch.stack(rows))


@pytest.mark.parametrize("spec", ALL)
def test_axes_in_front_of_the_rows_are_kept(spec):
    task = made(spec)
    outputs, targets = data(task, 2, 3, 5)
    each = task.losses(outputs, targets, "none")
    assert each.shape == (2, 3, 5)
    for first in range(2):
        for second in range(3):
            torch.testing.assert_close(
                each[first, second],
                task.losses(outputs[first, second], targets[first, second], "none"),
            )
            if task.row_metric:
                found = task.row_scores(outputs, targets)[first, second]
                torch.testing.assert_close(
                    found, task.row_scores(outputs[first, second], targets[first, second])
                )
    torch.testing.assert_close(task.losses(outputs, targets), each.mean())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("spec", ALL)
def test_vmap_and_grad_are_the_loop(spec, device):
    task = made(spec)
    outputs, targets = (part.to(device) for part in data(task, 3, 6))
    model = torch.nn.Linear(5, outputs.shape[-1]).to(device)
    x = torch.randn(3, 6, 5, generator=torch.Generator().manual_seed(1)).to(device)
    stack = {
        name: torch.stack([value + 0.1 * client for client in range(3)])
        for name, value in model.named_parameters()
    }

    def mean(weights, x, y):
        return task.losses(functional_call(model, weights, (x,)), y)

    def rows(weights, x, y):
        return task.losses(functional_call(model, weights, (x,)), y, "none")

    def scores(weights, x, y):
        return task.row_scores(functional_call(model, weights, (x,)), y)

    found, each = vmap(grad(mean))(stack, x, targets), vmap(rows)(stack, x, targets)
    for client in range(3):
        weights = {name: value[client].detach().requires_grad_() for name, value in stack.items()}
        loss = mean(weights, x[client], targets[client])
        for name, expected in zip(
            weights, torch.autograd.grad(loss, list(weights.values())), strict=True
        ):
            torch.testing.assert_close(found[name][client], expected)
        torch.testing.assert_close(each[client], rows(weights, x[client], targets[client]))
        if task.row_metric:
            expected = scores(weights, x[client], targets[client])
            torch.testing.assert_close(vmap(scores)(stack, x, targets)[client], expected)
    row_by_row = vmap(grad(mean), in_dims=(None, 0, 0))(weights, x[0][:, None], targets[0][:, None])
    torch.testing.assert_close(
        row_by_row["bias"].mean(0), grad(mean)(weights, x[0], targets[0])["bias"]
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_weighted_rows_are_torchs_and_their_mean_is_plain(smoothing):
    weights = (1.0, 2.0, 0.5, 3.0)
    task = Classification(label_smoothing=smoothing, class_weights=weights)
    outputs, targets = data(task, 31)
    options = {"weight": torch.tensor(weights), "label_smoothing": smoothing}
    torch.testing.assert_close(
        task.losses(outputs, targets, "none"),
        F.cross_entropy(outputs, targets, reduction="none", **options),
    )
    torch.testing.assert_close(
        task.losses(outputs, targets, "sum"),
        F.cross_entropy(outputs, targets, reduction="sum", **options),
    )
    by_hand = []
    for row, label in zip(outputs.log_softmax(1).tolist(), targets.tolist(), strict=True):
        share = [smoothing / 4 + (1 - smoothing) * (label == place) for place in range(4)]
        by_hand.append(-sum(w * q * p for w, q, p in zip(weights, share, row, strict=True)))
    assert float(task.losses(outputs, targets)) == pytest.approx(sum(by_hand) / 31, rel=1e-5)
    theirs = F.cross_entropy(outputs, targets, **options)  # torch's mean is another one
    assert abs(float(task.losses(outputs, targets)) - float(theirs)) > 0.05


def test_the_mean_of_clients_of_one_size_is_the_mean_over_all_rows_also_with_weights():
    task = Classification(class_weights=(1.0, 10.0, 1.0, 1.0))
    outputs, targets = data(task, 8)
    parts = [task.losses(outputs[half], targets[half]) for half in (slice(4), slice(4, 8))]
    torch.testing.assert_close(torch.stack(parts).mean(), task.losses(outputs, targets))


def test_smoothing_alone_is_torchs_mean_to_the_bit():
    task = Classification(label_smoothing=0.1)
    outputs, targets = data(task, 19)
    assert torch.equal(
        task.losses(outputs, targets), F.cross_entropy(outputs, targets, label_smoothing=0.1)
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"label_smoothing": 0.2},
        {"class_weights": (0.5, 4.0)},
        {"label_smoothing": 0.1, "class_weights": (2, 3)},
    ],
)
def test_binary_is_classification_with_a_zero_beside_its_logit(options):
    logits, targets = data(Binary(), 40, dtype=torch.float64)
    logits[0], logits[1], logits[2] = 300.0, -300.0, 0.0
    both = torch.cat([torch.zeros_like(logits), logits], 1)
    binary, other = Binary(**options), Classification(**options)
    torch.testing.assert_close(
        binary.losses(logits, targets, "none"), other.losses(both, targets, "none")
    )
    assert torch.equal(binary.predict(logits), other.predict(both))
    assert torch.equal(binary.row_scores(logits, targets), other.row_scores(both, targets))
    found, expected = (
        task.evaluate(out.numpy(), targets.numpy())
        for task, out in ((binary, logits), (other, both))
    )
    assert found == expected
    assert (
        binary.confusion(logits.numpy(), targets.numpy())
        == other.confusion(both.numpy(), targets.numpy(), 2)
    ).all()


def test_a_single_output_may_come_without_its_axis():
    logits, targets = torch.tensor([[0.5], [-0.5], [2.0]]), torch.tensor([1, 1, 0])
    for outputs in (logits, logits[:, 0]):
        assert Binary().predict(outputs).tolist() == [1, 0, 1]
        assert Binary().row_scores(outputs, targets).tolist() == [True, False, False]
        torch.testing.assert_close(
            Binary().losses(outputs, targets), Binary().losses(logits, targets)
        )
        assert Binary().evaluate(outputs.numpy(), targets.numpy())["accuracy"] == pytest.approx(
            1 / 3
        )
        Binary().check(outputs, targets)
    assert Binary().predict(logits.expand(4, 3, 1)).shape == (4, 3)


def test_multilabel_is_a_mean_of_binaries():
    task = Multilabel(class_weights=(1.0, 2.0, 0.5, 3.0))
    outputs, targets = data(task, 12)
    each = torch.stack(
        [
            Binary().losses(outputs[:, [place]], targets[:, place].long(), "none")
            for place in range(4)
        ],
        1,
    )
    torch.testing.assert_close(Multilabel().losses(outputs, targets, "none"), each.mean(1))
    torch.testing.assert_close(
        task.losses(outputs, targets, "none"), (each * torch.tensor([1, 2, 0.5, 3])).mean(1)
    )
    for kind in (torch.bool, torch.int64, torch.float64):
        assert torch.equal(task.losses(outputs, targets.to(kind)), task.losses(outputs, targets))
        assert torch.equal(
            task.row_scores(outputs, targets.to(kind)), task.row_scores(outputs, targets)
        )


def test_multilabel_scores_the_share_of_labels_that_are_right():
    outputs, targets = torch.tensor([[1.0, -1.0, 0.0, 2.0]]), torch.tensor([[1.0, 1.0, 0.0, 1.0]])
    assert Multilabel().row_scores(outputs, targets).tolist() == [0.75]
    assert Multilabel().predict(outputs).tolist() == [[1, 0, 0, 1]]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.25, 4.0]),
        ({"loss": "mae"}, [0.5, 2.0]),
        ({"loss": "huber"}, [0.125, 1.5]),
        ({"loss": "huber", "delta": 0.5}, [0.125, 0.875]),
    ],
)
def test_regression_by_hand(options, expected):
    task, targets = Regression(**options), torch.tensor([1.0, -1.0])
    for outputs in (torch.tensor([[1.5], [1.0]]), torch.tensor([1.5, 1.0])):
        assert task.losses(outputs, targets, "none").tolist() == expected
        assert task.row_scores(outputs, targets).tolist() == [0.5, 2.0]
    assert task.predict(torch.tensor([[1.5], [1.0]])).tolist() == [1.5, 1.0]


@pytest.mark.parametrize("spec", ALL[:-1])
def test_built_in_tasks_are_values_and_pass_their_own_check(spec):
    task = made(spec)
    assert (
        copy.deepcopy(task)
        == task
        == resolve(str(task))
        == resolve(choice_of(task))
        == resolve(task)
    )
    assert hash(resolve(spec)) == hash(task)
    task.check(*data(task, 30))
    assert task.row_metric in task.metric_names
    assert task.higher_is_better == (task.target != "number")


@pytest.mark.parametrize(
    ("task", "outputs", "targets", "message"),
    [
        (
            Classification(),
            torch.zeros(2, 3),
            torch.tensor([0, 3]),
            "the loss failed: IndexError: Target 3 is out of bounds",
        ),
        (
            Classification(class_weights=(1, 2)),
            torch.zeros(2, 3),
            torch.tensor([0, 1]),
            "the loss failed: RuntimeError: weight",
        ),
        (Classification(), torch.zeros(2, 3), torch.tensor([0.0, 1.0]), "takes whole numbers"),
        (Multilabel(), torch.zeros(2, 3), torch.zeros(2, 4), "the loss failed: ValueError"),
        (Regression(), torch.zeros(2, 1), torch.tensor([0, 1]), "takes floating-point numbers"),
        (
            Regression(),
            torch.zeros(2, 3),
            torch.zeros(2),
            r"gave Tensor of shape \[2, 3\] \(float32\), and the task has one output",
        ),
        (
            Binary(),
            torch.zeros(2, 2),
            torch.tensor([0, 1]),
            r"gave Tensor of shape \[2, 2\] \(float32\), and the task has one output",
        ),
        (
            Binary(),
            torch.zeros(2, 1),
            torch.tensor([0, 2]),
            "takes the classes 0 and 1 as targets, got 2",
        ),
    ],
)
def test_a_check_names_what_does_not_fit(task, outputs, targets, message):
    with pytest.raises(FedskewError, match=message):
        task.check(outputs, targets)


def test_the_class_stands_for_its_defaults():
    assert resolve(Regression) == Regression()
    with pytest.raises(FedskewError, match="Task is not a task by itself"):
        resolve(Task)


def test_outputs_for_data():
    assert Classification().width(7) == Multilabel().width(7) == 7
    assert Binary().width(2) == Regression().width(0) == 1


@pytest.mark.parametrize(
    ("task", "classes", "message"),
    [
        (Binary(), 3, "learns 2 classes, and these data have 3: use task=classification"),
        (Binary(), 1, "have 1"),
        (Binary(), 0, "these data have none: use task=regression"),
        (Classification(), 0, "learns classes, and these data have none"),
        (Multilabel(), 0, "learns several labels per row, and these data have none"),
        (Regression(), 3, "learns numbers, and the targets of these data are 3 classes"),
        (
            Classification(class_weights=(1, 2)),
            3,
            "class_weights has 2 numbers for 3 classes: give one for each",
        ),
        (Multilabel(class_weights=(1, 2)), 3, "class_weights has 2 numbers for 3 labels"),
    ],
)
def test_data_of_another_kind_are_refused(task, classes, message):
    with pytest.raises(FedskewError, match=message):
        task.width(classes)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("clasification", "did you mean 'classification'"),
        ("classification:label_smoothing=1", "out of range, it must be >= 0 and < 1"),
        ("classification:class_weights=1+0", "out of range, it must be > 0"),
        (
            "classification:class_weights=balance",
            "is not a list of a number .* or one of balanced or none",
        ),
        ("multilabel:class_weights=balanced", "is not a list of a number"),
        ("binary:class_weights=1+2+3", "class_weights has 3 numbers for 2 classes"),
        ("regression:loss=rmse", "is not one of mse, mae, huber"),
        ("regression:loss=huber,delta=0", "out of range"),
        ("regression:delta=2", "delta=2 is an option of loss=huber, not of loss=mse"),
    ],
)
def test_bad_options_are_refused(spec, message):
    with pytest.raises(FedskewError, match=message):
        resolve(spec)


def test_options_are_checked_in_python_too():
    with pytest.raises(FedskewError, match="label_smoothing=2 is out of range"):
        Classification(label_smoothing=2)
    assert Classification(class_weights=[1, 2]).class_weights == (1.0, 2.0)
    with pytest.raises(FedskewError, match="unknown reduction 'max'"):
        Classification().losses(torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64), "max")


def test_every_option_has_help():
    for name in tasks:
        assert tasks.summary(name)
        assert all(option.help for option in tasks.options(name).values()), name


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("spec", ALL)
def test_losses_can_be_captured_in_a_cuda_graph(spec):
    task = made(spec)
    outputs, targets = (part.cuda() for part in data(task, 16))
    outputs.requires_grad_()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.autograd.grad(task.losses(outputs, targets), outputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (found,) = torch.autograd.grad(task.losses(outputs, targets), outputs)
    graph.replay()
    torch.testing.assert_close(
        found, torch.autograd.grad(task.losses(outputs, targets), outputs)[0]
    )
