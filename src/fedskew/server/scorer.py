"""The scorer: evaluates the global model and clients' models, and makes the rows of the tables."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedskew.algorithms.backdoor import Backdoor
from fedskew.core.streams import Ints
from fedskew.core.trees import Tensors
from fedskew.data.federation import Federation
from fedskew.data.partition import Partition
from fedskew.engine.sharing import WHOLE
from fedskew.server.clients import Clients
from fedskew.server.evaluated_rows import OwnModel, Score, own_columns
from fedskew.server.evaluation import RoundModels, RoundScores
from fedskew.server.final_evaluation import FinalClients
from fedskew.server.rows_of_clients import scored_clients
from fedskew.server.trained_models import TrainedModels, evaluation_due
from fedskew.tasks.thresholds import Threshold
from fedskew.topology.client_table import ClientTable, Column, Row
from fedskew.topology.context import RoundContext
from fedskew.topology.outcome import RoundOutcome
from fedskew.topology.run_state import RunState


@dataclass(frozen=True)
class RoundResult:
    """One row for the table of rounds, and one for each of the round's clients."""

    round: Row
    clients: ClientTable


class Scorer:
    """Evaluates the models of a run after its rounds and at the end."""

    def __init__(
        self,
        fed: Federation,
        context: RoundContext,
        state: RunState,
        clients: Clients,
        trained: TrainedModels,
    ) -> None:
        self.fed = fed
        self.context = context
        self.state = state
        self.clients = clients
        self.trained = trained
        self.evaluator = clients.evaluator()

    @property
    def has_common_model(self) -> bool:
        """Return whether clients share a whole model: without one there is no global model to score or to use."""
        return self.context.job.shared_model == WHOLE

    @property
    def personalised(self) -> bool:
        """Return whether clients use models of their own."""
        return self.context.job.personalised

    def common(self) -> Tensors | None:
        """Return the global model, or None if clients share no whole one."""
        if self.has_common_model:
            return self.state.model()
        return None

    def own(self, needed: Ints) -> OwnModel | None:
        """Return what finds the models that these clients use, or None if all use the global one."""
        if self.personalised:
            return self.clients.models(needed)
        return None

    def _scored(self) -> Ints:
        """Return the clients whose models are scored on their own rows, at the end or where they hold rows out."""
        return scored_clients(self.fed.clients, self.context.settings.seed)

    # -- after a round -------------------------------------------------------------------------------------------------

    def result(self, outcome: RoundOutcome, lr: float) -> RoundResult:
        """Return the rows of the tables, with the evaluation of the global model and the clients' models."""
        round = self.state.round
        columns = self._named(outcome.client_rows)
        row: Row = {
            "round": round,
            "clients": outcome.clients,
            "excluded": outcome.excluded,
            "dropped": outcome.dropped,
            "late": outcome.late,
            "lr": lr,
        }
        row |= self._local_means(columns)
        invited = np.sort(outcome.invited)
        trained = self.trained.take()
        scores = None
        if evaluation_due(self.context.settings, round):
            needed = invited
            if self.evaluator.client_parts:
                needed = np.union1d(invited, self._scored())
            scores = self.evaluator.evaluate(
                RoundModels(self.common(), self.own(needed), invited, self._own_rows(), trained)
            )
        columns |= self._own_columns(columns, invited, scores)
        if self.context.settings.test_trained:
            columns |= self._trained_columns(columns, trained, scores)
        row |= self._score_columns(scores)
        row |= self._client_score_columns(scores)
        row |= self._counted_columns(scores)
        row["bytes_down"] = int(columns["bytes_down"].values.sum()) + outcome.bytes_down
        row["bytes_up"] = int(columns["bytes_up"].values.sum()) + outcome.bytes_up
        row["simulated_seconds"] = outcome.ended - outcome.began
        row["clock"] = outcome.ended
        row |= outcome.metrics
        row |= self.context.algorithm.metrics(self.state.server_state)
        if isinstance(self.context.algorithm.poison, Backdoor) and self.has_common_model:
            row["backdoor_success"] = None
            if scores:
                row["backdoor_success"] = scores.backdoor
        number = Column(np.full(len(outcome.client_rows), round))
        return RoundResult(row, ClientTable({"round": number, **columns}))

    def _named(self, clients: ClientTable) -> dict[str, Column]:
        """Return the columns of the table of clients, with their names, and the score under the task's name for it."""
        metric = self.context.job.task.row_metric
        columns = dict(clients.columns)
        numbers = columns.pop("client")
        named = {"client": numbers}
        if self._names is not None:
            named["name"] = Column(self._names[numbers.values])
        for name, column in columns.items():
            if name != "local_accuracy":
                named[name] = column
            elif metric:
                named[f"local_{metric}"] = column
        return named

    @cached_property
    def _names(self) -> NDArray[Any] | None:
        """The names of the clients that train, if they have any."""
        if not self.fed.named or self._pooled:
            return None
        return np.array(self.fed.client_names, dtype=object)

    @property
    def _pooled(self) -> bool:
        """Return whether one client trains on the rows of all."""
        return self.context.trained_on is not self.fed.partition

    def _local_means(self, columns: Mapping[str, Column]) -> Row:
        """Return the mean of what clients report of their own rows, over those that count."""
        weights = columns["weight"].values
        counted = weights > 0
        row: Row = {}
        for name in own_columns(False, True, self.context.job.task.row_metric):
            row[f"local_{name}"] = None
            if counted.any():
                values = columns[f"local_{name}"].values
                row[f"local_{name}"] = float(np.dot(weights[counted], values[counted]))
        return row

    def _own_rows(self) -> Partition:
        """Return the rows on which a client's model is evaluated: its validation rows, or else its training rows."""
        if self._pooled:
            return self.context.trained_on
        return self.fed.held_out or self.fed.partition

    def _own_columns(
        self, columns: Mapping[str, Column], invited: Ints, scores: RoundScores | None
    ) -> dict[str, Column]:
        """Return columns with the scores of the models that clients use; empty where they are not evaluated."""
        metric = self.context.job.task.row_metric
        names = own_columns(self.personalised, self.has_common_model, metric)
        numbers = columns["client"].values
        if scores is None:
            return _empty(names, len(numbers))
        places = np.searchsorted(numbers, invited)
        own = {}
        for name in names:
            own[name] = Column.at(places, scores.own[name], len(numbers))
        return own

    def _trained_columns(
        self,
        columns: Mapping[str, Column],
        trained: Mapping[int, Tensors],
        scores: RoundScores | None,
    ) -> dict[str, Column]:
        """Return columns with the scores of clients' models on their own rows right after local training."""
        names = own_columns(False, True, self.context.job.task.row_metric)
        numbers = columns["client"].values
        if scores is None:
            return _empty([f"trained_{name}" for name in names], len(numbers))
        places = np.searchsorted(numbers, np.array(sorted(trained), dtype=np.int64))
        after_training = {}
        for name in names:
            values = scores.trained[name]
            after_training[f"trained_{name}"] = Column.at(places, values, len(numbers))
        return after_training

    def _score_columns(self, scores: RoundScores | None) -> Row:
        """Return the scores of each part of the data, empty where models are not evaluated."""
        parts = self.evaluator.parts(
            self.has_common_model, self.personalised, self.context.settings.test_trained
        )
        row: Row = {}
        for part in parts:
            score: Score = {}
            if scores:
                score = scores.parts.get(part) or {}
            for name in self.evaluator.names:
                row[f"{part}_{name}"] = score.get(name)
        return row

    def _client_score_columns(self, scores: RoundScores | None) -> Row:
        """Return the means over clients of the models that they use, on rows that they hold out; empty as above."""
        headline = self.context.job.task.headline(self.context.settings.metric).name
        row: Row = {}
        for part in self.evaluator.client_parts:
            score: Score = {}
            if scores:
                score = scores.clients[part]
            for name in ("loss", headline):
                row[f"{part}_{name}"] = score.get(name)
        return row

    def _counted_columns(self, scores: RoundScores | None) -> Row:
        """Return over how many rows scores are, where clients may not answer; empty as above."""
        row: Row = {}
        for part in self.evaluator.counted_parts:
            row[f"scored_{part}_rows"] = None
            if scores:
                row[f"scored_{part}_rows"] = scores.rows.get(part)
        return row

    # -- at the end ----------------------------------------------------------------------------------------------------

    def all_scores(self) -> dict[str, Score]:
        """Return all metrics of the global model on validation and test rows; empty without a global model."""
        common = self.common()
        if not common:
            return {}
        return self.evaluator.all_scores(common)

    def confusion(self) -> Ints | None:
        """Return the confusion matrix of the global model on the test rows, or None without test rows or classes."""
        common = self.common()
        if not common:
            return None
        return self.evaluator.confusion(common)

    def threshold(self) -> tuple[Threshold, dict[str, Score]] | None:
        """Return the threshold that ``thresholds`` asks for, with its scores; see ``Evaluator.threshold``."""
        wanted = self.context.settings.thresholds
        if wanted is None:
            return None
        return self.evaluator.threshold(self.state.model(), wanted)

    def final_clients(self) -> FinalClients:
        """Return one row for each client with the scores of its final model, and their confusion matrix."""
        final = self.evaluator.final(self.common(), self.own(self._scored()))
        if not self.fed.named:
            return final
        names = self.fed.client_names
        table = []
        for row in final.table:
            client = row["client"]
            table.append({"client": client, "name": names[client], **row})
        return FinalClients(table, final.confusion)


def _empty(names: Iterable[str], count: int) -> dict[str, Column]:
    """Return columns without any number."""
    nowhere = np.zeros(0, dtype=np.int64)
    return {name: Column.at(nowhere, np.zeros(0), count) for name in names}
