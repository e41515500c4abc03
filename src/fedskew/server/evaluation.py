"""Evaluation of the global model and of clients' own: loss and metrics on all rows, a sample or a client's rows."""

import copy
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from fedskew.algorithms.backdoor import Backdoor
from fedskew.core.streams import Floats, Ints, Stream
from fedskew.core.trees import Tensors
from fedskew.data.dataset import Rows
from fedskew.data.federation import Federation
from fedskew.data.partition import Partition
from fedskew.engine.cost import measure_cost
from fedskew.engine.inference import Inference
from fedskew.engine.job import Job
from fedskew.engine.stacked import can_be_stacked
from fedskew.tasks.task import BuiltIn, Task
from fedskew.tasks.thresholds import Threshold, ThresholdMetric, choose_threshold

OWN_TESTED = 20  # clients of a round whose own models are evaluated on the whole test set
FINAL_TESTED = 200  # likewise after the last round
STACKED_BYTES = 256 << 20  # of clients' own models that are evaluated together
FINAL_CLIENTS = 10_000  # clients evaluated on their own rows after the last round

OwnModel: TypeAlias = Callable[[int], Tensors]
Score: TypeAlias = dict[str, float]  # the loss and metrics over some rows
RATES = ("majority_rate", "one_class_rate")  # columns of shares of rows, where targets are classes
# Of a task that has them, what is reported after every evaluation
ROUND_METRICS = ("accuracy", "balanced_accuracy")


def round_metrics(task: Task) -> tuple[str, ...]:
    """Return the metrics that every evaluation reports: a few cheap ones, or all where a task has none of these.

    For a user-defined task all of its metrics are reported.
    """
    if isinstance(task, BuiltIn):
        cheap = tuple(name for name in ROUND_METRICS if name in task.metric_names)
    else:
        cheap = ()
    return cheap or task.metric_names


class Found(NamedTuple):
    """What a model makes of some rows, on the device: the output and the loss of each, and the targets."""

    outputs: Tensor
    losses: Tensor
    targets: Tensor

    def score(self, task: Task, names: Iterable[str]) -> Score:
        """Return the mean loss and these metrics over the rows."""
        metrics = task.evaluate(self.outputs.cpu().numpy(), self.targets.cpu().numpy(), names)
        return {"loss": float(self.losses.double().mean()), **metrics}


class FinalClients(NamedTuple):
    """The clients at the end: one row for each, and the sum of their own models' confusion matrices on test rows."""

    table: list[dict[str, Any]]
    confusion: Ints | None


def one_class_rate(confusion: Ints) -> float:
    """Return the largest share of the rows for which one and the same class is predicted; NaN without rows.

    >>> one_class_rate(np.array([[6, 0], [3, 1]]))
    0.9
    """
    if confusion.any():
        return float(confusion.sum(0).max() / confusion.sum())
    return float("nan")


def _means(losses: Floats, scores: Floats, sizes: Ints) -> tuple[Floats, Floats]:
    """Return mean loss and score of each client from those of its rows; NaN for a client without rows."""
    owner = np.repeat(np.arange(len(sizes)), sizes)
    with np.errstate(invalid="ignore"):
        loss, score = (
            np.bincount(owner, weights=each, minlength=len(sizes)) / sizes
            for each in (losses, scores)
        )
    return loss, score


def own_columns(personal: bool, common: bool, metric: str | None) -> tuple[str, ...]:
    """Return the columns for a client's own rows: of the model it uses, then of the global one if that differs."""
    names = ("loss", metric) if metric else ("loss",)
    return (*names, *(f"global_{name}" for name in names)) if personal and common else names


def final_columns(
    task: Task, metrics: Iterable[str], personal: bool, common: bool, tested: bool
) -> tuple[str, ...]:
    """Return the columns of a client in the last table, after its number and its rows; see ``Evaluator.final``.

    ``tested`` says that clients' own models are also evaluated on test rows, by these ``metrics``.
    """
    majority, one_class = ([rate] if hasattr(task, "confusion") else [] for rate in RATES)
    own = own_columns(personal, common, task.row_metric)
    more = [*(name for name in task.metric_names if name not in own), *one_class]
    if personal and common:
        of_global = [f"global_{name}" for name in more]
    else:
        of_global = []
    if personal and tested:
        on_test = [f"own_test_{name}" for name in (*metrics, *one_class)]
    else:
        on_test = []
    return (*own, *majority, *more, *of_global, *on_test)


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
        self.fed, self.x, self.y, self.task, self.seed = fed, job.x, job.y, job.task, seed
        first = () if headline is None else (headline,)
        # Of every evaluation
        self.metrics = tuple(dict.fromkeys((*first, *round_metrics(job.task), *metrics)))
        self.names = ("loss", *self.metrics)
        parts = (("validation", fed.validation), ("test", fed.test))
        self._parts = {
            name: self._place(rows) for name, rows in parts if rows is not None and len(rows)
        }
        held = fed.partition.rows
        if eval_rows is not None and eval_rows < len(held):
            held = held[np.sort(Stream(seed, "evaluation").sample(len(held), eval_rows))]
        self._train_rows, self._sampled = held, np.zeros(len(self.y), dtype=np.bool_)
        self._sampled[held] = True
        self._inference = Inference(model, self.x)
        self._triggered: Tensor | None = None  # test rows for ``backdoor_success``
        self._cost = measure_cost(model, self.x, 1)
        self._stackable = partial(can_be_stacked, model, self.x)

    def _place(self, rows: Rows) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(rows.x).to(self.x), torch.from_numpy(rows.y).to(self.y)

    def parts(self, common: bool, personal: bool, trained: bool) -> list[str]:
        """Return the parts of the data with scores: up to three of a global model, the test rows of clients' models."""
        clients = []
        for name, wanted in (("own_test", personal), ("trained_test", trained)):
            if wanted:
                clients.append(name)
        return [
            *(["train", *self._parts] if common else []),
            *(clients if "test" in self._parts else []),
        ]

    # -- the global model ----------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def evaluate(
        self, state: Tensors | None, own: OwnModel | None, clients: Ints, split: Partition
    ) -> tuple[dict[str, Score], dict[str, Floats]]:
        """Return ``scores`` and ``on_own_rows`` together: no row is scored twice by the global model."""
        if state is None:
            return {}, self.on_own_rows(state, own, clients, split)
        pieces = [split.of(int(client)) for client in clients]
        mine = np.concatenate([np.empty(0, dtype=np.int64), *pieces])
        fresh = mine[~self._sampled[mine]]
        found = self._on_parts(state)
        train = found["train"]
        other = self._row_scores(state, fresh)
        losses = np.empty(len(self.y))
        scores = np.empty(len(self.y))
        known = train.losses, self.task.row_scores(train.outputs, train.targets)
        for rows, seen in ((self._train_rows, known), (fresh, other)):
            losses[rows], scores[rows] = (values.double().cpu().numpy() for values in seen)
        common = _means(
            losses[mine], scores[mine], np.array([len(piece) for piece in pieces], dtype=np.int64)
        )
        return self._scored(found, self.metrics), self._own_scores(common, own, clients, pieces)

    @torch.inference_mode()
    def scores(self, state: Tensors) -> dict[str, Score]:
        """Return the scores of the global model on each part of the data."""
        return self._scored(self._on_parts(state), self.metrics)

    @torch.inference_mode()
    def all_scores(self, state: Tensors) -> dict[str, Score]:
        """Return all metrics of the global model on validation and test rows."""
        found = {}
        for name, (x, y) in self._parts.items():
            found[name] = self._found(state, x, y)
        return self._scored(found, self.task.metric_names)

    def _on_parts(self, state: Tensors) -> dict[str, Found]:
        return self.found(state, {})

    @torch.inference_mode()
    def found(self, state: Tensors, shares: Mapping[str, Ints]) -> dict[str, Found]:
        """Return what a model makes of each part of the data, or of a share of its rows."""
        train = self._found(state, self.x, self.y, self._train_rows)
        others = {}
        for name, (x, y) in self._parts.items():
            others[name] = self._found(state, x, y, shares.get(name))
        return {"train": train, **others}

    def _scored(self, found: dict[str, Found], names: Iterable[str]) -> dict[str, Score]:
        return {part: rows.score(self.task, names) for part, rows in found.items()}

    def _found(self, state: Tensors, x: Tensor, y: Tensor, rows: Ints | None = None) -> Found:
        """Return what a model makes of all rows, or of those at ``rows``; on a GPU without waiting for it."""
        if rows is None:
            index = torch.arange(len(y), device=y.device)
        else:
            index = torch.from_numpy(rows).to(y.device)
        outputs = torch.cat([each for each, _ in self._inference.outputs(state, x, index)])
        targets = y[index]
        return Found(outputs, self.task.losses(outputs, targets, "none"), targets)

    def _row_scores(self, state: Tensors, rows: Ints) -> tuple[Tensor, Tensor]:
        """Return loss and score of training rows, without keeping the outputs of many rows."""
        losses = [self.x.new_empty(0)]
        scores = [self.x.new_empty(0)]
        for outputs, some in self._inference.outputs(
            state, self.x, torch.from_numpy(rows).to(self.y.device)
        ):
            losses.append(self.task.losses(outputs, self.y[some], "none"))
            scores.append(self.task.row_scores(outputs, self.y[some]))
        return torch.cat(losses), torch.cat(scores)

    @torch.inference_mode()
    def confusion(self, state: Tensors) -> Ints | None:
        """Return how many test rows of each class (down) were predicted as each (across); None for other tasks."""
        if "test" in self._parts and self._classifies:
            return self._confusion(self._on_test(state))
        return None

    @property
    def _classifies(self) -> bool:
        return hasattr(self.task, "confusion")

    def _confusion(self, found: Found) -> Ints:
        count: Callable[..., Ints] = getattr(self.task, "confusion")  # noqa: B009 - tasks of other targets have none
        return count(
            found.outputs.cpu().numpy(), found.targets.cpu().numpy(), len(self.fed.data.classes)
        )

    @torch.inference_mode()
    def threshold(
        self, state: Tensors, metric: ThresholdMetric
    ) -> tuple[Threshold, dict[str, Score]]:
        """Return the threshold that is best on the validation rows, and its scores on validation and test rows."""
        parts = {}
        for name, (x, y) in self._parts.items():
            parts[name] = self._found(state, x, y)
        found = {}
        for name, part in parts.items():
            found[name] = (part.outputs.cpu().numpy(), part.targets.cpu().numpy())
        chosen = choose_threshold(*found["validation"], metric)
        return chosen, {name: chosen.scores(*part) for name, part in found.items()}

    @torch.inference_mode()
    def backdoor_success(self, state: Tensors, poison: Backdoor) -> float | None:
        """Return the share of the test rows of other classes that are taken for the target; None without such rows."""
        if self._triggered is None:
            rows = poison.triggered(self.fed.test, self.fed.train, self.fed.data.classes)
            self._triggered = torch.from_numpy(rows).to(self.x)
        if not len(self._triggered):
            return None
        index = torch.arange(len(self._triggered), device=self.x.device)
        found = []
        for each, _ in self._inference.outputs(state, self._triggered, index):
            found.append(each)
        predicted = self.task.predict(torch.cat(found))
        return float((predicted == poison.target_of(self.fed.data.classes)).double().mean())

    # -- clients' models -----------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def mean_on_test(self, own: OwnModel, clients: Ints) -> Score | None:
        """Return the mean score of up to 20 clients' models on the test rows; None without clients or test rows."""
        if "test" not in self._parts or not len(clients):
            return None
        found = [self._on_test(own(int(client))) for client in clients[:OWN_TESTED]]
        tested = [one.score(self.task, self.metrics) for one in found]
        result = {}
        for name in self.names:
            result[name] = float(np.mean([one[name] for one in tested]))
        return result

    def _on_test(self, state: Tensors) -> Found:
        return self._found(state, *self._parts["test"])

    @torch.inference_mode()
    def on_own_rows(
        self, state: Tensors | None, own: OwnModel | None, clients: Ints, split: Partition
    ) -> dict[str, Floats]:
        """Return the ``own_columns``: scores of the model that each client uses, on its rows in ``split``.

        ``state`` is the global model; None where clients share nothing, and each has its ``own``.
        """
        pieces = [split.of(int(client)) for client in clients]
        if state:
            common: tuple[Floats, ...] = self._client_scores(state, pieces)
        else:
            common = ()
        return self._own_scores(common, own, clients, pieces)

    def _own_scores(
        self, common: tuple[Floats, ...], own: OwnModel | None, clients: Ints, pieces: list[Ints]
    ) -> dict[str, Floats]:
        """Return the ``own_columns``, given the scores of the global model, if there is any."""
        if own:
            scores = (*self._each_own(own, clients, pieces), *common)
        else:
            scores = common
        if self.task.row_metric is None:
            scores = scores[::2]  # the losses alone
        return dict(
            zip(
                own_columns(own is not None, bool(common), self.task.row_metric),
                scores,
                strict=True,
            )
        )

    def _client_scores(self, state: Tensors, pieces: list[Ints]) -> tuple[Floats, Floats]:
        """Return mean loss and score of one model on each client's rows."""
        rows = np.concatenate([np.empty(0, dtype=np.int64), *pieces])
        losses, scores = (values.double().cpu().numpy() for values in self._row_scores(state, rows))
        return _means(losses, scores, np.array([len(piece) for piece in pieces], dtype=np.int64))

    def _each_own(self, own: OwnModel, clients: Ints, pieces: list[Ints]) -> tuple[Floats, Floats]:
        """Return mean loss and score of each client's own model on its rows, in stacks where that is faster."""
        if (self.x.device.type == "cpu" and self._cost.convolutions) or not self._stackable():
            each = []
            for client, mine in zip(clients, pieces, strict=True):
                each.append(self._client_scores(own(int(client)), [mine]))
            loss, score = np.array(each).reshape(-1, 2).T
            return loss, score
        sizes = np.array([len(piece) for piece in pieces])
        loss = np.full(len(clients), np.nan)
        score = np.full(len(clients), np.nan)
        order = np.argsort(-sizes, kind="stable")[: np.count_nonzero(sizes)]
        room = max(1, STACKED_BYTES // self._cost.bytes_per_client)
        for first in range(0, len(order), room):
            some = order[first : first + room]
            models = [own(int(client)) for client in clients[some]]
            loss[some], score[some] = self._in_stack(models, [pieces[i] for i in some])
        return loss, score

    def _in_stack(self, models: list[Tensors], pieces: list[Ints]) -> Floats:
        """Return mean loss and score of these models, each on its own rows; those with the most rows come first."""
        stack = {}
        for name in models[0]:
            stack[name] = torch.stack([model[name] for model in models])
        total = torch.zeros((2, len(models)), dtype=torch.float64, device=self.y.device)
        for outputs, rows, real in self._inference.stacked_outputs(stack, self.x, pieces):
            found = (
                self.task.losses(outputs, self.y[rows], "none"),
                self.task.row_scores(outputs, self.y[rows]),
            )
            for sums, each in zip(total, found, strict=True):
                sums[: len(rows)] += torch.where(real, each.double(), 0).sum(1)
        return total.cpu().numpy() / [len(piece) for piece in pieces]

    @property
    def holds_out(self) -> bool:
        """Return whether clients are evaluated, at the end, on rows that they do not train on."""
        return self.fed.held_out is not None or self._test_split is not None

    @cached_property
    def _test_split(self) -> Partition | None:
        """The test rows of each client, where the data comes with its clients and these hold nothing else out."""
        fed = self.fed
        if (
            fed.held_out is not None
            or not fed.data.silos
            or not fed.named
            or fed.test.group is None
        ):
            return None
        groups = [fed.data.groups.index(name) for name in fed.client_names]
        return Partition.from_lists([np.flatnonzero(fed.test.group == group) for group in groups])

    @torch.inference_mode()
    def final(self, state: Tensors | None, own: OwnModel | None) -> FinalClients:
        """Return one row for each client (a random sample above 10,000) with the scores of its final model on its rows.

        See ``on_own_rows``; where data comes with its clients, these rows are the client's test rows. Up to 200
        clients, at even steps, also have all metrics on their own rows, and those of their own models on the test rows.
        The confusion matrix is the sum over those clients.
        """
        clients = np.arange(self.fed.clients)
        if len(clients) > FINAL_CLIENTS:
            clients = np.sort(Stream(self.seed, "final").sample(len(clients), FINAL_CLIENTS))
        mine, split = self, self.fed.held_out or self.fed.partition
        if self._test_split is not None:
            mine, split = copy.copy(self), self._test_split
            mine.x, mine.y = self._parts["test"]
        found = mine.on_own_rows(state, own, clients, split)
        table: list[dict[str, Any]] = [
            {"client": int(c), "rows": int(self.fed.partition.sizes[c])}
            | {name: float(of[i]) for name, of in found.items()}
            for i, c in enumerate(clients)
        ]
        if self._classifies:
            mine._add_majority_rates(table, split)
        tested = table if len(table) <= FINAL_TESTED else table[:: -(-len(table) // FINAL_TESTED)]
        names = [name for name in self.task.metric_names if name not in table[0]]
        matrices = []
        for entry in tested:
            rows, used = split.of(entry["client"]), own(entry["client"]) if own else state
            assert used is not None
            entry |= mine._metrics_on(used, rows, names)
            if own and state:
                entry |= {
                    f"global_{name}": value
                    for name, value in mine._metrics_on(state, rows, names).items()
                }
            if own and "test" in self._parts:
                on_test = self._on_test(used)
                score = on_test.score(self.task, self.metrics)
                entry |= {f"own_test_{name}": score[name] for name in self.metrics}
                if self._classifies:
                    matrices.append(self._confusion(on_test))
                    entry["own_test_one_class_rate"] = one_class_rate(matrices[-1])
        return FinalClients(table, sum(matrices[1:], matrices[0]) if matrices else None)

    def _add_majority_rates(self, table: list[dict[str, Any]], split: Partition) -> None:
        """Add the share of each client's most frequent class among the rows on which it is evaluated."""
        clients = np.array([entry["client"] for entry in table])
        labels = self.y.cpu().numpy()
        counts = split.counts(labels, len(self.fed.data.classes), clients)
        for entry, most, rows in zip(
            table, counts.max(1).tolist(), counts.sum(1).tolist(), strict=True
        ):
            if rows:
                entry["majority_rate"] = most / rows
            else:
                entry["majority_rate"] = float("nan")

    def _metrics_on(self, state: Tensors, rows: Ints, names: list[str]) -> Score:
        """Return these metrics of a model on some training rows, and how often it predicts one class; NaN for none."""
        if self._classifies:
            more = ["one_class_rate"]
        else:
            more = []
        if not len(rows):
            return dict.fromkeys([*names, *more], float("nan"))
        found = self._found(state, self.x, self.y, rows)
        metrics = self.task.evaluate(
            found.outputs.cpu().numpy(), found.targets.cpu().numpy(), names
        )
        return metrics | {name: one_class_rate(self._confusion(found)) for name in more}
