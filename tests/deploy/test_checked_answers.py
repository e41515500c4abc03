"""What nodes answer, checked by hand: the borders of what may be, and what is said of the rest."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedskew.core.errors import FedskewError
from fedskew.deploy.checks import (
    check_buffers,
    check_part_of_step,
    checked_confusion,
    checked_scores,
    checked_sums,
    checked_visit,
    fits,
    most_bytes,
)
from fedskew.deploy.requests import to_bytes
from fedskew.engine.job import ScheduleResult
from fedskew.tasks.additive import sums_over
from fedskew.tasks.classification import Classification
from fedskew.tasks.regression import Regression
from fedskew.transport.frames import Frame, Kind

TASK = Classification()


def visit(**parts: Any) -> ScheduleResult:
    """Return what a client makes of a model of one number."""
    usual = ScheduleResult(
        params={"w": torch.zeros(1)},
        buffers={"norm.running_var": torch.ones(1)},
        optimizer={"square": {"w": torch.ones(1)}},
        losses=np.array([0.5, 0.25]),
        scores=np.array([1.0, 0.0]),
    )
    return replace(usual, **parts)


def test_a_difference_is_said_as_told_and_expected() -> None:
    with pytest.raises(FedskewError) as problem:
        fits(visit(losses=np.zeros(3)), visit(), "model")
    assert str(problem.value) == (
        "model/losses is float64 of shape (3,), expected float64 of shape (2,)"
    )
    with pytest.raises(FedskewError) as problem:
        fits(visit(params={"w": torch.zeros(1), "v": torch.zeros(1)}), visit(), "model")
    assert str(problem.value) == "model/params has other names than expected: v"
    with pytest.raises(FedskewError) as problem:
        fits({"loss": 1}, {"loss": 1.0}, "scores")
    assert str(problem.value) == "scores/loss is a int, expected a float"


def test_three_odd_names_are_told() -> None:
    with pytest.raises(FedskewError) as problem:
        fits({"d": 0, "c": 0, "b": 0, "a": 0}, {}, "scores")
    assert str(problem.value) == "scores has other names than expected: a, b, c"


def test_numbers_of_another_type_do_not_fit() -> None:
    with pytest.raises(FedskewError, match=r"is float32 of shape \(2,\), expected float64"):
        fits(torch.zeros(2), torch.zeros(2, dtype=torch.float64), "update")


@pytest.mark.parametrize("zeros", ["square", "change"])
def test_an_optimizer_may_begin_with_zeros(zeros: str) -> None:
    fresh = visit(optimizer={zeros: {"w": torch.zeros(1)}})
    assert checked_visit(fresh, fresh, TASK) is fresh
    below = visit(optimizer={zeros: {"w": torch.tensor([-1e-9])}})
    with pytest.raises(FedskewError, match=f"model/optimizer/{zeros} has numbers below 0"):
        checked_visit(below, fresh, TASK)


def test_momentum_may_be_below_0() -> None:
    moved = visit(optimizer={"momentum": {"w": torch.tensor([-1.0])}})
    assert checked_visit(moved, moved, TASK) is moved


@pytest.mark.parametrize("name", ["norm.running_var", "norm.num_batches_tracked"])
def test_variances_and_counts_may_be_0_and_not_below(name: str) -> None:
    check_buffers({name: torch.tensor([0.0, 2.0]), "norm.running_mean": torch.tensor(-1.0)}, "it")
    with pytest.raises(FedskewError, match=f"it/{name} has numbers below 0"):
        check_buffers({name: torch.tensor([3.0, -1.0])}, "it")


@pytest.mark.parametrize(
    "change",
    [
        {"losses": np.array([0.5, -0.1])},
        {"losses": np.array([0.5, math.nan])},
        {"scores": np.array([1.1, 0.0])},
    ],
)
def test_losses_and_scores_of_a_visit_are_some(change: dict[str, Any]) -> None:
    (name,) = change
    with pytest.raises(FedskewError, match=f"model/{name}: told"):
        checked_visit(visit(**change), visit(), TASK)


@pytest.mark.parametrize("prefix", ["", "global_", "own_test_"])
@pytest.mark.parametrize("name", ["majority_rate", "one_class_rate", "accuracy"])
def test_rates_are_shares(prefix: str, name: str) -> None:
    column = f"{prefix}{name}"
    for share in (0.0, 1.0):
        assert checked_scores({column: share}, [column], TASK, False, "it") == {column: share}
    for odd in (1.01, -0.01, math.nan):
        with pytest.raises(FedskewError, match=f"it/{column}: told .* from 0 to 1"):
            checked_scores({column: odd}, [column], TASK, False, "it")
    empty = checked_scores({column: math.nan}, [column], TASK, True, "it")
    assert math.isnan(empty[column])


def test_scores_come_in_the_order_that_was_asked_for() -> None:
    told = {"accuracy": 0.5, "loss": 2.0}
    assert list(checked_scores(told, ["loss", "accuracy"], TASK, False, "it")) == [
        "loss",
        "accuracy",
    ]


@pytest.mark.parametrize(
    ("told", "fine"),
    [
        ([[3, 0], [0, 2]], True),
        ([[5, 0], [0, 0]], True),
        ([[3, 0], [0, 3]], False),
        ([[3, 0], [0, 1]], False),
        ([[6, -1], [0, 0]], False),
        ([[-1, 2], [2, 2]], False),
    ],
)
def test_a_confusion_matrix_is_over_the_rows(told: list[list[int]], fine: bool) -> None:
    like = np.zeros((2, 2), dtype=np.int64)
    if fine:
        checked_confusion(np.array(told), like, 5)
        return
    with pytest.raises(FedskewError, match="expected 5, and none below 0"):
        checked_confusion(np.array(told), like, 5)


def test_no_confusion_matrix_where_there_are_no_classes() -> None:
    checked_confusion(None, None, 5)
    with pytest.raises(FedskewError, match="confusion matrix is a ndarray, expected a NoneType"):
        checked_confusion(np.zeros((2, 2), dtype=np.int64), None, 5)


def test_sums_of_numbers_may_be_below_0_and_sizes_may_not() -> None:
    outputs, targets = torch.tensor([[-2.0], [1.0]]), torch.tensor([-1.0, -3.0])
    losses = Regression().losses(outputs, targets, "none")
    honest = sums_over(Regression(), outputs, losses, targets, 1)
    assert min(float(value.min()) for value in honest.values()) < 0
    assert checked_sums(honest, 2, 2, Regression(), "sums") is honest
    for name in ("absolute", "squared", "squared_targets"):
        lie = {**honest, name: np.full_like(honest[name], -1.0)}
        with pytest.raises(FedskewError, match=f"sums/{name}: told -1.0"):
            checked_sums(lie, 2, 2, Regression(), "sums")


def test_sums_over_no_rows() -> None:
    nothing = torch.zeros(0)
    none = sums_over(TASK, torch.zeros(0, 2), nothing, nothing.long(), 2)
    assert checked_sums(none, 0, 3, TASK, "sums") is none
    with pytest.raises(FedskewError, match="sums are over 0 rows, expected at most 3"):
        checked_sums(none, 1, 3, TASK, "sums")


# -- parts of a synchronous step ---------------------------------------------------------------------------------------


def part(kind: Kind, count: int, *values: float) -> bytes:
    return Frame(0, kind, 2, count, torch.tensor(values, dtype=torch.float64)).pack()


@pytest.mark.parametrize(
    "message",
    [
        part(Kind.GRADIENT, 4, -1.0),
        part(Kind.SCORE, 4, 8.0, 4.0),
        part(Kind.SCORE, 4, 0.0, 0.0),
        part(Kind.SUM, 4, -1.0),
        part(Kind.SUM, 36, -1.0),  # nine values of every row
        part(Kind.SPREAD, 8, 0.0),
        part(Kind.GRADIENT, 4, -1.0) + part(Kind.SPREAD, 4, 1.0),
    ],
)
def test_parts_of_a_step_that_may_be(message: bytes) -> None:
    check_part_of_step(message, 4, TASK)


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (part(Kind.GRADIENT, 4, math.nan), "its gradient 2 has NaN or infinite numbers: lower lr"),
        (part(Kind.GRADIENT, 8, 1.0), "its gradient 2 is over 8 values, expected those of 4 rows"),
        (part(Kind.SCORE, 8, 1.0, 1.0), "its score 2 is over 8 values"),
        (part(Kind.SUM, 6, 1.0), "its sum 2 is over 6 values"),
        (part(Kind.SUM, 0, 1.0), "its sum 2 is over 0 values"),
        (part(Kind.SPREAD, 4, 1.0, -1e-9), "its spread 2 has sums of squares below 0"),
        (part(Kind.SCORE, 4, -1.0, 1.0), "its loss of a row: told -0.25"),
        (part(Kind.SCORE, 4, 1.0, 5.0), "its score of a row: told 1.25"),
        (part(Kind.SUM, 4, 1.0) + part(Kind.SUM, 4, math.inf), "its sum 2 has NaN or infinite"),
    ],
)
def test_parts_of_a_step_that_may_not_be(message: bytes, says: str) -> None:
    with pytest.raises(FedskewError, match=says):
        check_part_of_step(message, 4, TASK)


def test_an_answer_may_be_twice_as_large_and_some() -> None:
    like = {"a": torch.zeros(1000)}
    assert most_bytes(like) == 2 * len(to_bytes(like)) + 65536
