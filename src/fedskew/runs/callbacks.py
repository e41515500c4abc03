"""Callbacks: they are called before the first round, after every round and at the end of a run, and may stop it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from fedskew.core.errors import FedskewError
from fedskew.runs.folder import Row
from fedskew.runs.run import Run
from fedskew.server.score_names import CLIENT_VALIDATION
from fedskew.server.scorer import RoundResult
from fedskew.server.server import Server


class Callback:
    """Base class of callbacks: override what you need. A function is a callback with ``on_round_end`` alone."""

    def on_run_start(self, server: Server, folder: Path | None, rows: Sequence[Row]) -> None:
        """Called once before the first round, with the run's folder and the earlier rounds of a resumed run."""

    def on_round_end(self, result: RoundResult, rounds: int) -> bool | None:
        """Called after every round with its rows and the number of rounds. Returning True stops the run."""

    def on_run_end(self, run: Run) -> None:
        """Called once with the finished run."""


CallbackSpec: TypeAlias = "Callback | Callable[[RoundResult, int], bool | None]"


class _Function(Callback):
    """A callback from a function that is called after every round."""

    def __init__(self, function: Callable[[RoundResult, int], bool | None]) -> None:
        self.function = function

    def on_round_end(self, result: RoundResult, rounds: int) -> bool | None:
        return self.function(result, rounds)


def as_callbacks(given: Any) -> list[Callback]:
    """Return a list of callbacks; ``given`` is a callback or a function, or several of them."""
    if isinstance(given, Callback) or callable(given):
        given = [given]
    callbacks: list[Callback] = []
    for callback in given:
        if isinstance(callback, Callback):
            callbacks.append(callback)
        elif callable(callback):
            callbacks.append(_Function(callback))
        else:
            kind = type(callback).__name__
            raise FedskewError(
                f"a callback is a fedskew.Callback or a function of (result, rounds), got {kind}"
            )
    return callbacks


def _check_shared_validation(server: Server) -> None:
    """Refuse to watch the global model where there is none, or no rows for it."""
    patience = server.settings.stop_after
    if server.fed.validation is None:
        raise FedskewError(
            f"stop_after={patience} needs validation rows, and there are none: add validation=0.2 for the global model "
            "or client_validation=0.2 for those that clients use, or leave it out"
        )
    if not server.has_common_model:
        raise FedskewError(
            f"stop_after={patience} needs a global model, and {server.job.shared_model}: add client_validation=0.2, or "
            "leave it out"
        )


class EarlyStopping(Callback):
    """A callback that stops a run when the validation metric has not improved for ``patience`` rounds.

    It is that of the models that clients use where these have validation rows of their own, and otherwise that of the
    global model.

    ``rows`` are the earlier rounds of a resumed run: it stops where it would have stopped without the interruption.
    """

    def __init__(self, server: Server, rows: Sequence[Row]) -> None:
        self.patience = server.settings.stop_after
        self.column = f"validation_{server.headline.name}"
        if CLIENT_VALIDATION in server.evaluator.client_parts:
            self.column = f"{CLIENT_VALIDATION}_{server.headline.name}"
        elif self.patience:
            _check_shared_validation(server)
        self.sign = server.headline.sign
        self.best = -float("inf")
        self.best_round = 0
        self.stopped = False
        for row in rows:
            if self._stops(row):
                self.stopped = True

    def on_round_end(self, result: RoundResult, rounds: int) -> bool | None:
        """Return True if the last rounds brought no improvement."""
        return self._stops(result.round)

    def _stops(self, row: Row) -> bool:
        value = row.get(self.column)
        if value is not None and self.sign * value > self.best:
            self.best = self.sign * value
            self.best_round = row["round"]
        if not self.patience or value is None:
            return False
        return bool(row["round"] - self.best_round >= self.patience)
