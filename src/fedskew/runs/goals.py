"""What a run is judged by: the shared model on common test rows, or the model that a client uses on its own rows."""

from collections.abc import Container
from typing import Any, Literal, TypeAlias

from fedskew.engine.sharing import WHOLE
from fedskew.server.server import Server

Goal: TypeAlias = Literal["shared", "own"]
GOAL, SCORE = (
    "goal",
    "score",
)  # entries of a summary: what a run is judged by, and which entry that is


def usual_goal(server: Server) -> Goal | None:
    """Return the goal of a single run: ``own`` where clients hold rows out, ``shared`` where they share a whole model.

    Where data comes with its clients and their test rows, the shared model, if there is one, is scored on all of them.
    None where clients share no whole model and hold nothing out: their scores on training rows are no goal.
    """
    if server.fed.held_out is not None:
        return "own"
    if server.job.shared_model == WHOLE:
        return "shared"
    if server.evaluator.holds_out:
        return "own"
    return None


def score_name(goal: Goal, metric: str, summary: Container[str]) -> str:
    """Return which entry of a summary a goal means; with a new head after the last round, that is what is used.

    >>> score_name("own", "accuracy", {})
    'client_accuracy_mean'
    >>> score_name("shared", "accuracy", {"test_accuracy_last": 0.8, "calibrated_test_accuracy": 0.9})
    'calibrated_test_accuracy'
    """
    if goal == "own":
        return f"client_{metric}_mean"
    calibrated = f"calibrated_test_{metric}"
    if calibrated in summary:
        return calibrated
    return f"test_{metric}_last"


def goal_entries(goal: Goal | None, summary: dict[str, Any]) -> dict[str, str]:
    """Return the entries ``goal`` and ``score`` of a summary; none without a goal, or without rows to score it on.

    >>> goal_entries("shared", {"metric": "accuracy", "test_accuracy_last": 0.8})
    {'goal': 'shared', 'score': 'test_accuracy_last'}
    """
    if goal is None:
        return {}
    name = score_name(goal, summary["metric"], summary)
    if summary.get(name) is None:
        return {}
    return {GOAL: goal, SCORE: name}
