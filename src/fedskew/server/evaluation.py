"""Evaluation of the global model and of clients' own: loss and metrics on all rows, a sample or a client's rows."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from fedskew.algorithms.backdoor import Backdoor
from fedskew.core.streams import Floats, Ints, Stream
from fedskew.core.trees import Tensors
from fedskew.data.dataset import Rows
from fedskew.data.federation import Federation
from fedskew.data.partition import Partition
from fedskew.engine.input_rows import placed
from fedskew.engine.job import Job
from fedskew.server.evaluated_rows import (
    EvaluatedRows,
    Found,
    ModelRunner,
    OwnModel,
    Score,
    joined,
    means_of,
    on_host,
    own_columns,
    sizes_of,
)
from fedskew.server.final_evaluation import FinalClients, FinalEvaluation, confusion_of
from fedskew.server.rows_of_clients import ClientRows
from fedskew.server.score_names import CLIENT_TEST, CLIENT_VALIDATION
from fedskew.tasks.task import BuiltIn, Task
from fedskew.tasks.thresholds import Threshold, ThresholdMetric, choose_threshold

OWN_TESTED = 20  # clients of a round whose own models are evaluated on the whole test set
# The cheap metrics that every evaluation reports, if the task has them
ROUND_METRICS = ("accuracy", "balanced_accuracy")


@dataclass(frozen=True)
class RoundModels:
    """The models that are evaluated after a round.

    Args:
        common: the global model; None where clients share no whole model
        own: returns the model that a client uses; None where all use the global one
        invited: the clients whose models are evaluated on their own rows, in order
        rows: the rows of each client on which that happens
        trained: models of clients right after local training, by their numbers
    """

    common: Tensors | None
    own: OwnModel | None
    invited: Ints
    rows: Partition
    trained: Mapping[int, Tensors]


@dataclass(frozen=True)
class RoundScores:
    """The scores of ``RoundModels``.

    Args:
        parts: by part of the data, those of the global model and the means of clients' models on test rows
        own: the ``own_columns`` of the invited clients
        trained: the ``own_columns`` of the models right after local training, in the order of the clients' numbers
        backdoor: the share of triggered test rows that the global model takes for the target of a backdoor
        clients: by part of clients' own rows, the means over clients of the model that each uses; see ``client_parts``
        rows: by part of the data, over how many rows the scores of the global model are; see ``counted_parts``
    """

    parts: dict[str, Score | None]
    own: dict[str, Floats]
    trained: dict[str, Floats] = field(default_factory=dict)
    backdoor: float | None = None
    clients: dict[str, Score] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)


class Evaluation(Protocol):
    """What evaluates the models of a run, wherever the rows are."""

    names: tuple[str, ...]  # of the loss and the metrics of every evaluation
    # The parts of clients' own rows on which nobody trains, and on which every evaluation scores the models in use
    client_parts: tuple[str, ...]
    counted_parts: tuple[
        str, ...
    ]  # of the data whose rows may be missing, as clients may not answer

    @property
    def holds_out(self) -> bool:
        """Return whether clients are evaluated, at the end, on rows that they do not train on."""
        ...

    def parts(self, common: bool, personal: bool, trained: bool) -> list[str]:
        """Return the parts of the data with scores: up to three of a global model, the test rows of clients' models."""
        ...

    def evaluate(self, models: RoundModels) -> RoundScores:
        """Return the scores of the models of a round."""
        ...

    def scores(self, state: Tensors) -> dict[str, Score]:
        """Return the scores of the global model on each part of the data."""
        ...

    def all_scores(self, state: Tensors) -> dict[str, Score]:
        """Return all metrics of the global model on validation and test rows."""
        ...

    def confusion(self, state: Tensors) -> Ints | None:
        """Return how many test rows of each class (down) were predicted as each (across); None for other tasks."""
        ...

    def threshold(
        self, state: Tensors, metric: ThresholdMetric
    ) -> tuple[Threshold, dict[str, Score]] | None:
        """Return the threshold that is best on the validation rows, and its scores on validation and test rows.

        None where nobody has the predictions for all rows in one place.
        """
        ...

    def final(self, state: Tensors | None, own: OwnModel | None) -> FinalClients:
        """Return one row for each client with the scores of its final model on its rows."""
        ...


def round_metrics(task: Task) -> tuple[str, ...]:
    """Return the metrics that every evaluation reports: a few cheap ones, or all where a task has none of these.

    For a user-defined task all of its metrics are reported.
    """
    if not isinstance(task, BuiltIn):
        return task.metric_names
    cheap = tuple(name for name in ROUND_METRICS if name in task.metric_names)
    return cheap or task.metric_names


def evaluated_metrics(task: Task, headline: str | None, wanted: Iterable[str]) -> tuple[str, ...]:
    """Return the metrics of every evaluation of a run: its headline, the usual ones and those that are wanted."""
    names = [*round_metrics(task), *wanted]
    if headline is not None:
        names.insert(0, headline)
    return tuple(dict.fromkeys(names))


def mean_score(scores: list[Score], names: Iterable[str]) -> Score | None:
    """Return the mean of each of these numbers over some scores; None without scores."""
    if not scores:
        return None
    means = {}
    for name in names:
        means[name] = float(np.mean([score[name] for score in scores]))
    return means


class Evaluator:
    """Evaluates models on the data of a job; ``own`` returns a client's model where parts of it stay with clients."""

    def __init__(
        self,
        fed: Federation,
        model: nn.Module,
        job: Job,
        eval_rows: int | None,
        seed: int,
        metrics: Iterable[str] = (),
        headline: str | None = None,
    ) -> None:
        self.fed = fed
        self.task = job.task
        self.seed = seed
        self.metrics = evaluated_metrics(job.task, headline, metrics)
        self.names = ("loss", *self.metrics)
        self._runner = ModelRunner(model, job.x)
        self._train = EvaluatedRows(self._runner, job.task, job.x, job.y)
        self._parts: dict[str, EvaluatedRows] = {}
        for name, rows in (("validation", fed.validation), ("test", fed.test)):
            if rows is not None and len(rows):
                self._parts[name] = self._placed(rows)
        train_rows = fed.partition.rows
        if eval_rows is not None and eval_rows < len(train_rows):
            sample = Stream(seed, "evaluation").sample(len(train_rows), eval_rows)
            train_rows = train_rows[np.sort(sample)]
        self._train_rows = train_rows
        self._sampled = np.zeros(len(job.y), dtype=np.bool_)  # whether a row is one of these
        self._sampled[train_rows] = True
        self._headline = job.task.headline(headline).name
        self._final = FinalEvaluation(fed, self.metrics, seed, self._train, self._parts.get("test"))
        self._client_rows: dict[str, ClientRows] = {}
        if self._final.holds_out:
            self._client_rows[CLIENT_TEST] = self._final.scored
        if self._final.validation is not None:
            self._client_rows[CLIENT_VALIDATION] = self._final.validation
        self.client_parts = tuple(self._client_rows)
        self.counted_parts: tuple[str, ...] = ()  # all rows are here
        self._backdoor: Backdoor | None = None
        if isinstance(job.algorithm.poison, Backdoor):
            self._backdoor = job.algorithm.poison
        self._triggered: Tensor | None = None  # test rows for ``_backdoor_success``

    def _placed(self, rows: Rows) -> EvaluatedRows:
        like = self._train.x
        x = placed(rows.x, like.dtype, like.device)
        y = torch.from_numpy(rows.y).to(self._train.y)
        return EvaluatedRows(self._runner, self.task, x, y)

    def parts(self, common: bool, personal: bool, trained: bool) -> list[str]:
        """Return the parts of the data with scores: up to three of a global model, the test rows of clients' models."""
        parts = []
        if common:
            parts += ["train", *self._parts]
        if personal and "test" in self._parts:
            parts.append("own_test")
        if trained and "test" in self._parts:
            parts.append("trained_test")
        return parts

    @torch.inference_mode()
    def evaluate(self, models: RoundModels) -> RoundScores:
        """Return the scores of the models of a round."""
        common = models.common
        trained = np.array(sorted(models.trained), dtype=np.int64)
        global_scores, own = self._with_own_rows(models)
        parts: dict[str, Score | None] = {**global_scores, "own_test": None}
        if models.own:
            parts["own_test"] = self.mean_on_test(models.own, models.invited)
        parts["trained_test"] = self.mean_on_test(models.trained.__getitem__, trained)
        backdoor = None
        if self._backdoor and common:
            backdoor = self._backdoor_success(common, self._backdoor)
        on_trained = self._trained_scores(models, trained)
        known: dict[str, dict[str, Floats]] = {}
        for part, mine in self._client_rows.items():
            if models.rows is mine.split and np.array_equal(models.invited, mine.clients):
                known[part] = own
        of_clients = self.client_scores(common, models.own, known)
        return RoundScores(parts, own, on_trained, backdoor, of_clients)

    @torch.inference_mode()
    def client_scores(
        self,
        state: Tensors | None,
        own: OwnModel | None,
        known: Mapping[str, Mapping[str, Floats]] | None = None,
    ) -> dict[str, Score]:
        """Return the scores of ``client_parts``: means over clients of the model that each uses, on its rows.

        ``known`` are, by part, the ``own_columns`` of these clients where they were found already.
        """
        known = known or {}
        scores = {}
        for part, mine in self._client_rows.items():
            scores[part] = mine.mean(state, own, self._headline, known.get(part))
        return scores

    def _with_own_rows(self, models: RoundModels) -> tuple[dict[str, Score], dict[str, Floats]]:
        """Return ``scores`` and ``on_own_rows`` together: no row is scored twice by the global model."""
        state = models.common
        clients = models.invited
        if state is None:
            return {}, self.on_own_rows(state, models.own, clients, models.rows)
        if not self.task.rows_alone:
            own = self.on_own_rows(state, models.own, clients, models.rows)
            return self.scores(state), own
        pieces = [models.rows.of(int(client)) for client in clients]
        found = self.found(state, {})
        train = found["train"]
        # By the number of the row; only rows that are scored are filled in
        losses = np.empty(len(self._sampled))
        scores = np.empty(len(self._sampled))
        losses[self._train_rows] = on_host(train.losses)
        scores[self._train_rows] = on_host(self.task.kept_scores(train.kept, train.targets))
        of_clients = joined(pieces)
        unscored = of_clients[~self._sampled[of_clients]]
        losses[unscored], scores[unscored] = self._train.row_scores(state, unscored)
        common = means_of(losses[of_clients], scores[of_clients], sizes_of(pieces))
        own = self._train.with_own(common, models.own, clients, pieces)
        return self._scored(found, self.metrics), own

    def _trained_scores(self, models: RoundModels, clients: Ints) -> dict[str, Floats]:
        """Return the ``own_columns`` of models right after local training, each on the rows of its client."""
        each = []
        for client in clients:
            state = models.trained[int(client)]
            each.append(self.on_own_rows(state, None, np.array([client]), models.rows))
        columns: dict[str, Floats] = {}
        for name in own_columns(False, True, self.task.row_metric):
            columns[name] = np.array([float(scores[name][0]) for scores in each])
        return columns

    @torch.inference_mode()
    def scores(self, state: Tensors) -> dict[str, Score]:
        """Return the scores of the global model on each part of the data."""
        return self._scored(self.found(state, {}), self.metrics)

    @torch.inference_mode()
    def all_scores(self, state: Tensors) -> dict[str, Score]:
        """Return all metrics of the global model on validation and test rows."""
        found = {name: rows.found(state) for name, rows in self._parts.items()}
        return self._scored(found, self.task.metric_names)

    @torch.inference_mode()
    def found(self, state: Tensors, shares: Mapping[str, Ints]) -> dict[str, Found]:
        """Return what a model makes of each part of the data, or of a share of its rows."""
        found = {"train": self._train.found(state, self._train_rows)}
        for name, rows in self._parts.items():
            found[name] = rows.found(state, shares.get(name))
        return found

    def _scored(self, found: dict[str, Found], names: Iterable[str]) -> dict[str, Score]:
        return {part: rows.score(self.task, names) for part, rows in found.items()}

    @torch.inference_mode()
    def confusion(self, state: Tensors) -> Ints | None:
        """Return how many test rows of each class (down) were predicted as each (across); None for other tasks."""
        if "test" in self._parts and hasattr(self.task, "confusion"):
            found = self._parts["test"].found(state)
            return confusion_of(self.task, found, len(self.fed.data.classes))
        return None

    @torch.inference_mode()
    def threshold(
        self, state: Tensors, metric: ThresholdMetric
    ) -> tuple[Threshold, dict[str, Score]]:
        """Return the threshold that is best on the validation rows, and its scores on validation and test rows."""
        found = {name: rows.found(state).arrays() for name, rows in self._parts.items()}
        chosen = choose_threshold(*found["validation"], metric)
        return chosen, {name: chosen.scores(*part) for name, part in found.items()}

    def _backdoor_success(self, state: Tensors, door: Backdoor) -> float | None:
        """Return the share of the test rows of other classes that are taken for the target; None without such rows."""
        if self._triggered is None:
            rows = door.triggered(self.fed.test, self.fed.train, self.fed.data.classes)
            self._triggered = torch.from_numpy(rows).to(self._train.x.device, self._train.x.dtype)
        x = self._triggered
        if not len(x):
            return None
        triggered = EvaluatedRows(self._runner, self.task, x, self._train.y)
        outputs = triggered.outputs(state, torch.arange(len(x), device=x.device))
        target = door.target_of(self.fed.data.classes)
        return float((self.task.predict(outputs) == target).double().mean())

    @torch.inference_mode()
    def mean_on_test(self, own: OwnModel, clients: Ints) -> Score | None:
        """Return the mean score of up to 20 clients' models on the test rows; None without clients or test rows."""
        if "test" not in self._parts:
            return None
        rows = self._parts["test"]
        found = [rows.found(own(int(client))) for client in clients[:OWN_TESTED]]
        scores = [of_client.score(self.task, self.metrics) for of_client in found]
        return mean_score(scores, self.names)

    @torch.inference_mode()
    def on_own_rows(
        self, state: Tensors | None, own: OwnModel | None, clients: Ints, split: Partition
    ) -> dict[str, Floats]:
        """Return the ``own_columns``: scores of the model that each client uses, on its rows in ``split``.

        ``state`` is the global model; None where clients share nothing, and each has its ``own``.
        """
        return self._train.own_scores(state, own, clients, split)

    @property
    def holds_out(self) -> bool:
        """Return whether clients are evaluated, at the end, on rows that they do not train on."""
        return self._final.holds_out

    @torch.inference_mode()
    def final(self, state: Tensors | None, own: OwnModel | None) -> FinalClients:
        """Return one row for each client with the scores of its final model on its rows; see ``FinalEvaluation``."""
        return self._final.clients(state, own)
