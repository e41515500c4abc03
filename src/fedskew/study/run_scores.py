"""The score of a finished run for a goal, on test and on validation rows, and whether the run collapsed."""

import math
from collections.abc import Sequence
from typing import Protocol

from fedskew.runs.folder import Row
from fedskew.runs.goals import Goal
from fedskew.study.judging import ScoreRule
from fedskew.study.run_curves import Columns

_ENOUGH_ROWS = 10  # of a client, so that a single class predicted for all of them means something
_CALIBRATED = "calibrated_"  # before the names of numbers of a model with a new head


class ScoredRun(Protocol):
    """What scoring needs to know of a run, from its folder or in memory."""

    @property
    def summary(self) -> Row:
        """Return its summary."""

    @property
    def rounds(self) -> Columns:
        """Return its table of rounds by columns."""

    @property
    def final_rows(self) -> Sequence[Row]:
        """Return one row per client about its model at the end."""

    @property
    def metric(self) -> str:
        """Return the metric that decides."""

    @property
    def sign(self) -> int:
        """Return -1 where low values of it are good."""


def score_of(run: ScoredRun, goal: Goal, rule: ScoreRule) -> float | None:
    """Return the score of a run on test rows; None if it has none, as clients share no model or hold out no rows."""
    if rule == "validation-best":
        return _at_best_validation(run, goal)
    if goal == "own":
        if not holds_out(run):
            return None
        return _number(run.summary.get(f"client_{run.metric}_mean"))
    return _last(run, "test")


def validation_of(run: ScoredRun, goal: Goal, rule: ScoreRule) -> float | None:
    """Return the score of a run on validation rows; None without such rows."""
    if rule == "validation-best":
        scores = _known(run.rounds.get(column_on_validation(run, goal), []))
        if not scores:
            return None
        return run.sign * max(run.sign * score for score in scores)
    if goal == "own":
        return _number(run.summary.get(f"client_validation_{run.metric}_mean"))
    return _last(run, "validation")


def column_on_test(run: ScoredRun, goal: Goal) -> str:
    """Return the column of the table of rounds that has the score of a goal on test rows."""
    if goal == "own":
        return f"client_test_{run.metric}"
    return f"{_prefix(run)}test_{run.metric}"


def column_on_validation(run: ScoredRun, goal: Goal) -> str:
    """Return the column of the table of rounds that has the score of a goal on validation rows."""
    if goal == "own":
        return f"client_validation_{run.metric}"
    return f"{_prefix(run)}validation_{run.metric}"


def _prefix(run: ScoredRun) -> str:
    """Return what stands before the columns of the model in use: its head may have been calibrated."""
    if f"calibrated_test_{run.metric}" in run.summary:
        return _CALIBRATED
    return ""


def holds_out(run: ScoredRun) -> bool:
    """Return whether clients were scored on rows that they do not train on."""
    for name in (f"client_{run.metric}_rows", "client_accuracy_rows", "client_loss_rows"):
        if name in run.summary:
            return str(run.summary[name]).startswith("held-out")
    return False


def _last(run: ScoredRun, part: str) -> float | None:
    """Return the metric of the shared model at the end, with its new head if it was calibrated."""
    for name in (f"calibrated_{part}_{run.metric}", f"{part}_{run.metric}_last"):
        if name in run.summary:
            return _number(run.summary[name])
    return None


def _number(value: object) -> float | None:
    """Return a finite number; None for anything else."""
    if isinstance(value, (int, float)) and math.isfinite(value):
        return float(value)
    return None


def _known(column: Sequence[float | None]) -> list[float]:
    """Return the finite numbers of a column."""
    known = []
    for value in column:
        if value is not None and math.isfinite(value):
            known.append(value)
    return known


def _at_best_validation(run: ScoredRun, goal: Goal) -> float | None:
    """Return the score on test rows in the first round that is best on validation rows."""
    on_validation = run.rounds.get(column_on_validation(run, goal), [])
    on_test = run.rounds.get(column_on_test(run, goal), [])
    best_validation = -math.inf
    test_then = None
    for validation, test in zip(on_validation, on_test, strict=False):
        if validation is None or test is None or not math.isfinite(validation):
            continue
        if run.sign * validation > best_validation:
            best_validation = run.sign * validation
            test_then = _number(test)
    return test_then


def collapse_of(run: ScoredRun, goal: Goal) -> str:
    """Return why a run counts as collapsed on test rows; empty if it does not.

    It predicts one class for all rows while there are others. Or its loss ended above that of the first evaluated
    round, and its accuracy is no more than the rate of the most frequent class.
    """
    if goal == "own":
        return _collapse_of_clients(run)
    majority = _number(run.summary.get("test_majority_rate"))
    if majority is None or majority >= 1 or _last(run, "test") is None:
        return ""
    if run.summary.get("test_one_class_rate") == 1:
        return "it predicts one class for all test rows"
    losses = run.rounds.get("test_loss", [])
    return _lost(losses, _number(run.summary.get("test_accuracy_last")), majority)


def fails_on_validation(run: ScoredRun, goal: Goal) -> bool:
    """Return whether a run collapsed by its validation rows alone: numbers are chosen without a look at test rows."""
    if goal == "own":
        accuracy = _number(run.summary.get("client_validation_accuracy_mean"))
        losses = run.rounds.get("client_validation_loss", [])
    else:
        accuracy = _number(run.summary.get("validation_accuracy_last"))
        losses = run.rounds.get("validation_loss", [])
    majority = _number(run.summary.get("train_majority_rate"))
    if majority is None or majority >= 1:
        return False
    return bool(_lost(losses, accuracy, majority))


def _collapse_of_clients(run: ScoredRun) -> str:
    """Return why the models that clients use count as collapsed; empty if they do not.

    Clients count by their rows: of a handful of rows a sound model may well predict one class.
    """
    if not holds_out(run):
        return ""
    scored = []
    for row in run.final_rows:
        if row.get("test_rows") and row.get("majority_rate") is not None and "accuracy" in row:
            scored.append(row)
    if _predict_one_class(scored):
        return "every client's model predicts one class for all its held-out rows"
    rows, correct, frequent = 0.0, 0.0, 0.0
    for row in scored:
        rows += row["test_rows"]
        correct += row["test_rows"] * row["accuracy"]
        frequent += row["test_rows"] * row["majority_rate"]
    if not rows or frequent >= rows:
        return ""
    return _lost(run.rounds.get("client_test_loss", []), correct / rows, frequent / rows)


def _predict_one_class(clients: Sequence[Row]) -> bool:
    """Return whether all models predict one class, of the clients that have several and enough rows to tell."""
    rates = []
    for row in clients:
        has_enough = row["majority_rate"] < 1 and row["test_rows"] >= _ENOUGH_ROWS
        if has_enough and row.get("one_class_rate") is not None:
            rates.append(row["one_class_rate"])
    return len(rates) > 1 and min(rates) == 1


def _lost(losses: Sequence[float | None], accuracy: float | None, majority: float) -> str:
    """Return what is said of a run whose loss rose to no more than the majority rate."""
    evaluated = [loss for loss in losses if loss is not None]
    if accuracy is None or len(evaluated) < 2 or accuracy > majority:
        return ""
    if evaluated[-1] <= evaluated[0]:  # NaN counts as above
        return ""
    return (
        f"its loss rose from {evaluated[0]:.3g} to {evaluated[-1]:.3g}, and its accuracy of {accuracy:.3g} is no more "
        f"than the majority rate of {majority:.3g}"
    )
