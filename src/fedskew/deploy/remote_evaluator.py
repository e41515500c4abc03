"""Evaluation where rows stay with their clients: nodes are asked for sums over their rows, and these are added up."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedskew.core.config import Settings
from fedskew.core.errors import FedskewError
from fedskew.core.streams import Floats, Ints
from fedskew.core.trees import Tensors, Tree, one_client
from fedskew.data.federation import Federation
from fedskew.deploy.checks import checked_confusion, checked_scores, checked_sums, fits, most_bytes
from fedskew.deploy.remote_engine import RemoteEngine
from fedskew.deploy.requests import Evaluate, Scored
from fedskew.engine.job import CANDIDATES, Job
from fedskew.server.evaluated_rows import OwnModel, Score, own_columns
from fedskew.server.evaluation import (
    RoundModels,
    RoundScores,
    evaluated_metrics,
    mean_score,
)
from fedskew.server.final_evaluation import (
    TEST_ROWS,
    FinalClients,
    final_columns,
    total_confusion,
)
from fedskew.server.models_in_use import chooses
from fedskew.server.rows_of_clients import mean_over_clients
from fedskew.server.score_names import CLIENT_TEST
from fedskew.tasks.additive import Sums, added, additive_metrics, metrics_from, sums_over
from fedskew.tasks.task import Task
from fedskew.tasks.thresholds import ThresholdMetric
from fedskew.topology.run_state import RunState


def sent_metrics(task: Task, settings: Settings) -> tuple[str, ...]:
    """Return the metrics of a run, all of which must follow from sums."""
    known = additive_metrics(task)
    wanted = evaluated_metrics(task, settings.metric, settings.metrics)
    for name in wanted:
        if name not in known:
            raise FedskewError(
                f"metric {name} needs the predictions for all rows in one place, which no server has here: "
                f"choose among {', '.join(known)}"
            )
    return wanted


@dataclass(frozen=True)
class EvaluatedParts:
    """The parts of the data over whose rows clients send sums.

    Args:
        names: the parts of the data beside the training rows that have rows at all
        most: by part, the training rows included, the most rows that each client can have evaluated
        own_rows: how many rows each client's own model is scored on
        held_rows: how many rows each client holds out and is scored on after the last round; None if they hold none out
        everything: whether all have the test rows of all, as in a simulation
    """

    names: list[str]
    most: Mapping[str, Ints]
    own_rows: Ints
    held_rows: Ints | None
    everything: bool

    @classmethod
    def of(cls, fed: Federation, everything: bool) -> "EvaluatedParts":
        """Return the parts of the rows of a federation."""
        names: list[str] = []
        most = {"train": fed.partition.sizes}
        for name, rows in (("validation", fed.validation), ("test", fed.test)):
            if rows is None or not len(rows):
                continue
            names.append(name)
            if everything or rows.group is None:
                most[name] = np.full(fed.clients, len(rows))
            else:
                most[name] = np.bincount(rows.group, minlength=fed.clients)
        held_rows = None
        if fed.held_out is not None:
            held_rows = fed.held_out.sizes
        elif "test" in names and not everything:
            held_rows = most["test"]
        own_rows = (fed.held_out or fed.partition).sizes
        return cls(names, most, own_rows, held_rows, everything)

    @property
    def tested(self) -> bool:
        """Return whether there are test rows."""
        return "test" in self.names

    def without(self, missing: Sequence[int]) -> str:
        """Return what it means for scores on test rows that some clients do not answer."""
        if not self.tested or self.everything:
            return ""
        test_rows = self.most["test"]
        left = int(np.delete(test_rows, missing).sum())
        total = int(test_rows.sum())
        return f"; scores are of {left:,} of {total:,} test rows, not to be compared with those of other rounds"


@dataclass(frozen=True)
class Asked:
    """What nodes were asked to evaluate: a global model, models of their own, and whether it is the end of the run."""

    common: bool
    own: bool
    final: bool = False


class ScoreChecks:
    """Checks what clients answer who have scored a model."""

    def __init__(
        self,
        task: Task,
        metrics: tuple[str, ...],
        parts: EvaluatedParts,
        empty_sums: Sums,
        held_out: tuple[str, ...],
        places: int,
    ) -> None:
        self.task = task
        self.metrics = metrics
        self.parts = parts
        self.empty_sums = empty_sums  # over no rows
        self.held_out = (
            held_out  # the scores on held-out rows that clients are to send after a round
        )
        self.places = places  # where a row may have a token

    def checked(self, client: int, answer: Scored, asked: Asked) -> Scored:
        """Return the answer of a client that has scored a model; an error names the part that cannot be."""
        self._check_sums(client, answer.parts, asked.common)
        if asked.final:
            return self._checked_final(client, answer, asked)
        empty = not self.parts.own_rows[client]
        columns = own_columns(asked.own, asked.common, self.task.row_metric)
        checked_scores(answer.own, columns, self.task, empty, "scores")
        checked_scores(answer.held_out, self.held_out, self.task, empty, "scores on held-out rows")
        if asked.own and self.parts.tested and self.parts.everything:
            names = ("loss", *self.metrics)
            checked_scores(answer.own_test, names, self.task, False, "scores on test rows")
        else:
            fits(answer.own_test, None, "scores on test rows")
        fits(answer.confusion, None, "confusion matrix")
        fits(answer.row, None, "last row")
        return answer

    def _checked_final(self, client: int, answer: Scored, asked: Asked) -> Scored:
        tested = asked.own and self.parts.tested
        fits(answer.own, {}, "scores")
        fits(answer.held_out, {}, "scores on held-out rows")
        fits(answer.own_test, None, "scores on test rows")
        matrix = self.empty_sums.get("confusion")
        if tested and matrix is not None:
            most = int(self.parts.most["test"][client])
            checked_confusion(answer.confusion, matrix.astype(np.int64), most)
        else:
            fits(answer.confusion, None, "confusion matrix")
        empty = not self.parts.own_rows[client]
        columns = final_columns(self.task, self.metrics, asked.own, asked.common, tested)
        fits(answer.row, {"client": 0, "rows": 0, **dict.fromkeys(columns, 0.0)}, "last row")
        assert answer.row is not None
        told = {name: answer.row[name] for name in columns}
        return replace(answer, row=checked_scores(told, columns, self.task, empty, "last row"))

    def _check_sums(self, client: int, told: Any, common: bool) -> None:
        """Raise an error unless there are sums of all parts of the data of which a client has rows."""
        most: dict[str, int] = {}
        if common:
            most = {part: int(sizes[client]) for part, sizes in self.parts.most.items()}
        like = {}
        for part, rows in most.items():
            if rows or part in told:
                like[part] = self.empty_sums
        fits(told, like, "sums")
        for part, sums in told.items():
            least = most[part]
            if self.parts.everything and part != "train":
                least = 0  # all have the same rows, and each sums up a share of them
            checked_sums(sums, least, most[part], self.task, f"sums/{part}", self.places)


class RemoteEvaluator:
    """Evaluates models by asking nodes for sums over their rows, and for the scores of their own models."""

    holds_out = True

    def __init__(
        self,
        fed: Federation,
        job: Job,
        state: RunState,
        settings: Settings,
        engine: RemoteEngine,
        everything: bool,
    ) -> None:
        self.fed = fed
        self.job = job
        self.state = state
        self.engine = engine
        self.task = job.task
        metrics = sent_metrics(self.task, settings)
        self.names = ("loss", *metrics)
        self._parts = EvaluatedParts.of(fed, everything)
        classes = len(fed.data.classes)
        kept = job.scalar.new_zeros(0, len(self.task.row_sums) or self.task.width(classes))
        nothing = job.scalar.new_zeros(0)
        self._empty_sums = sums_over(self.task, kept, nothing, job.y[:0], classes)
        self.client_parts: tuple[str, ...] = ()
        self.counted_parts: tuple[str, ...] = ()
        if not everything:
            self.counted_parts = tuple(self._parts.names)
        held_out: tuple[str, ...] = ()
        if fed.held_out is not None:
            self.client_parts = (CLIENT_TEST,)
            held_out = ("loss", self.task.headline(settings.metric).name)
        places = 1
        if self.task.target == "tokens":
            places = job.y.shape[1]
        self._checks = ScoreChecks(
            self.task, metrics, self._parts, self._empty_sums, held_out, places
        )
        self._last: dict[int, Scored] = {}
        self._scored: Tensors | None = None  # the model that the last answers are about

    def parts(self, common: bool, personal: bool, trained: bool) -> list[str]:
        """Return the parts of the data with scores."""
        scored = []
        if common:
            scored += ["train", *self._parts.names]
        if personal and self._parts.tested and self._parts.everything:
            scored.append("own_test")
        return scored

    def evaluate(self, models: RoundModels) -> RoundScores:
        """Return the scores of the global model on each part, and those of the invited clients' models."""
        common = models.common is not None
        own = models.own is not None
        self._ask(models.common, Asked(common, own))
        parts: dict[str, Score | None] = {}
        rows: dict[str, int] = {}
        if common:
            parts |= self._scores()
            rows = {part: int(self._sums(part)["rows"]) for part in self.counted_parts}
        if own:
            parts["own_test"] = self._mean_on_test(models.invited)
        own_scores: dict[str, Floats] = {}
        invited = models.invited.tolist()
        for name in own_columns(own, common, self.task.row_metric):
            own_scores[name] = np.array([self._own_score(client, name) for client in invited])
        return RoundScores(parts, own_scores, clients=self._client_scores(), rows=rows)

    def _client_scores(self) -> dict[str, Score]:
        """Return the means over the clients that answer of the models that they use, on the rows that they hold out."""
        scores: dict[str, Score] = {}
        for part in self.client_parts:
            scores[part] = {}
            for name in self._checks.held_out:
                values = [scored.held_out[name] for scored in self._last.values()]
                scores[part][name] = mean_over_clients(np.array(values, dtype=np.float64))
        return scores

    def _own_score(self, client: int, name: str) -> float:
        scored = self._last.get(client)
        if scored is None:
            return np.nan
        return scored.own[name]

    def _mean_on_test(self, clients: Ints) -> Score | None:
        """Return the mean score of clients' models on the test rows, where nodes have those of all."""
        tested: list[Score] = []
        for client in clients.tolist():
            scored = self._last.get(client)
            if scored and scored.own_test is not None:
                tested.append(scored.own_test)
        return mean_score(tested, self.names)

    def scores(self, state: Tensors) -> dict[str, Score]:
        """Return the scores of the global model on each part of the data."""
        self._ask_unless_answered(state)
        return self._scores()

    def all_scores(self, state: Tensors) -> dict[str, Score]:
        """Return all metrics of the global model that follow from sums, on validation and test rows."""
        self._ask_unless_answered(state)
        return {part: self._score(part) for part in self._parts.names}

    def confusion(self, state: Tensors) -> Ints | None:
        """Return the confusion matrix of the global model on the test rows."""
        if not self._parts.tested or self.task.target != "class":
            return None
        self._ask_unless_answered(state)
        matrix: Ints = self._sums("test")["confusion"].astype(np.int64)
        return matrix

    def threshold(self, state: Tensors, metric: ThresholdMetric) -> None:
        """Return None: nobody has the predictions for all rows in one place."""
        return

    def final(self, state: Tensors | None, own: OwnModel | None) -> FinalClients:
        """Return one row for each client that answers, and the confusion matrix of clients' models."""
        self._ask(state, Asked(state is not None, own is not None, final=True))
        sizes = self.fed.partition.sizes
        table = []
        matrices = []
        for client, scored in self._last.items():
            entry: dict[str, Any] = {"client": client, "rows": int(sizes[client])}
            if self._parts.held_rows is not None:
                entry[TEST_ROWS] = int(self._parts.held_rows[client])
            table.append({**entry, **(scored.row or {})})
            if scored.confusion is not None:
                matrices.append(scored.confusion)
        return FinalClients(table, total_confusion(matrices))

    def _ask_unless_answered(self, state: Tensors) -> None:
        """Ask nodes for the sums of a model, unless the last answers are those: the very same tensors."""
        known = self._scored
        if known is None or not _same(known, state):
            self._ask(state, Asked(common=True, own=False))

    def _ask(self, state: Tensors | None, asked: Asked) -> None:
        shared = state
        if shared is None:
            shared = self.state.leaving(self.job.local_names)
        algorithm = self.job.algorithm
        server_state = self.state.server_state
        sent_along = algorithm.broadcast(server_state)
        candidates: Tensors = {}
        if asked.own and chooses(self.job, sent_along):
            candidates = sent_along[CANDIDATES]
        requests = {}
        for client in range(self.fed.clients):
            versions = [each.of(client) for each in self.engine.versions]
            answer: Tree = {}
            if asked.own and "answer_in_use" in algorithm.requires:
                answer = one_client(algorithm.answer(server_state, np.array([client])))
            requests[client] = Evaluate(
                shared, versions, asked.final, asked.own, self.state.round, candidates, answer
            )

        def check(client: int, answer: Scored) -> Scored:
            return self._checks.checked(client, answer, asked)

        def without(missing: Sequence[int]) -> str:
            if state is None:
                return ""
            return self._parts.without(missing)

        # Sums over training rows and over every other part, and as much again for clients' own models.
        most = (2 + len(self._parts.names)) * most_bytes(self._empty_sums)
        self._last = self.engine.nodes.ask(requests, Scored, check, most, without=without)
        self._scored = state

    def _scores(self) -> dict[str, Score]:
        scores: dict[str, Score] = {}
        for part in ("train", *self._parts.names):
            score = self._score(part)
            scores[part] = {name: score[name] for name in self.names}
        return scores

    def _score(self, part: str) -> Score:
        return metrics_from(self.task, self._sums(part))

    def _sums(self, part: str) -> Sums:
        """Return the sums over the rows of all clients that have such rows."""
        sums = [self._empty_sums]
        for scored in self._last.values():
            if part in scored.parts:
                sums.append(scored.parts[part])
        return added(sums)


def _same(known: Tensors, state: Tensors) -> bool:
    """Return whether two models are the very same tensors."""
    if known.keys() != state.keys():
        return False
    return all(known[name] is state[name] for name in known)
