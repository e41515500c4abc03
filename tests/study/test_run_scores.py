"""Scores of a run for a goal, and when it counts as collapsed, from hand-made tables."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from fedskew.study.run_scores import (
    collapse_of,
    fails_on_validation,
    holds_out,
    score_of,
    validation_of,
)

HELD_OUT = {"client_accuracy_rows": "held-out rows of each client"}


@dataclass
class Made:
    """A run with these tables."""

    summary: dict[str, Any]
    rounds: dict[str, list[Any]] = field(default_factory=dict)
    final_rows: list[dict[str, Any]] = field(default_factory=list)
    metric: str = "accuracy"
    sign: int = 1


def test_the_last_round_or_the_best_on_validation_rows() -> None:
    columns = {"test_mae": [3.0, 1.0, 2.0], "validation_mae": [9.0, 7.0, 8.0]}
    run = Made({"test_mae_last": 2.0, "validation_mae_last": 8.0}, columns, metric="mae", sign=-1)
    assert score_of(run, "shared", "last") == 2.0
    assert score_of(run, "shared", "validation-best") == 1.0
    assert validation_of(run, "shared", "last") == 8.0
    assert validation_of(run, "shared", "validation-best") == 7.0
    assert score_of(run, "own", "last") is None


def test_a_calibrated_head_is_what_is_scored() -> None:
    summary = {"test_accuracy_last": 0.5, "calibrated_test_accuracy": 0.8}
    assert score_of(Made(summary), "shared", "last") == 0.8
    rounds = {"test_accuracy": [0.5], "validation_accuracy": [0.5]}
    # The rounds are of the head before it was calibrated
    assert score_of(Made(summary, rounds), "shared", "validation-best") is None


def test_training_rows_are_no_score() -> None:
    trained = Made(
        {"client_accuracy_mean": 0.9, "client_accuracy_rows": "training rows of each client"}
    )
    assert not holds_out(trained)
    assert score_of(trained, "own", "last") is None
    assert score_of(Made({"client_accuracy_mean": 0.9, **HELD_OUT}), "own", "last") == 0.9


@pytest.mark.parametrize(
    ("accuracy", "losses", "collapsed"),
    [
        (0.3, [1.0, 2.0], True),  # at the majority rate, and the loss rose
        (0.1, [1.0, float("nan")], True),
        (0.31, [1.0, 2.0], False),
        (0.3, [1.0, 1.0], False),
        (0.3, [2.0], False),
    ],
)
def test_a_loss_that_rose_to_the_majority_rate(
    accuracy: float, losses: list[float], collapsed: bool
) -> None:
    summary = {
        "test_majority_rate": 0.3,
        "test_accuracy_last": accuracy,
        "train_majority_rate": 0.3,
    }
    summary["validation_accuracy_last"] = accuracy
    rounds = {"test_loss": losses, "validation_loss": losses}
    run = Made(summary, rounds)
    assert bool(collapse_of(run, "shared")) is collapsed
    assert fails_on_validation(run, "shared") is collapsed
    only_test = Made({**summary, "validation_accuracy_last": 0.9}, rounds)
    assert not fails_on_validation(only_test, "shared")  # test rows choose nothing


def test_one_class_for_all_rows() -> None:
    summary = {"test_majority_rate": 0.3, "test_accuracy_last": 0.3, "test_one_class_rate": 1.0}
    assert "one class" in collapse_of(Made(summary), "shared")
    assert not collapse_of(Made({**summary, "test_majority_rate": 1.0}), "shared")
    assert not collapse_of(Made({**summary, "test_one_class_rate": 0.99}), "shared")


def client(rows: int, accuracy: float, majority: float, one_class: float) -> dict[str, Any]:
    return {
        "test_rows": rows,
        "accuracy": accuracy,
        "majority_rate": majority,
        "one_class_rate": one_class,
    }


@pytest.mark.parametrize(
    ("clients", "collapsed"),
    [
        ([client(20, 0.5, 0.5, 1.0), client(20, 0.6, 0.6, 1.0)], True),
        ([client(20, 0.5, 0.5, 1.0), client(20, 0.6, 0.6, 0.9)], False),
        ([client(2, 0.5, 0.5, 1.0), client(2, 0.5, 0.5, 1.0)], False),  # too few rows to tell
        ([client(20, 1.0, 1.0, 1.0), client(20, 1.0, 1.0, 1.0)], False),  # they have one class
        ([client(20, 0.5, 0.5, 1.0)], False),  # one client
    ],
)
def test_one_class_at_every_client(clients: list[dict[str, Any]], collapsed: bool) -> None:
    assert bool(collapse_of(Made(dict(HELD_OUT), final_rows=clients), "own")) is collapsed


def test_clients_count_by_their_rows() -> None:
    clients = [client(300, 0.99, 0.5, 0.5), client(300, 0.99, 0.5, 0.5), client(1, 0.0, 1.0, 1.0)]
    rising = {"client_test_loss": [1.0, 2.0]}
    assert not collapse_of(Made(dict(HELD_OUT), rising, clients), "own")
    poor = [client(300, 0.5, 0.5, 0.7), client(300, 0.4, 0.5, 0.7)]
    assert "majority rate" in collapse_of(Made(dict(HELD_OUT), rising, poor), "own")
