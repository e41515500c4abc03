"""Evaluation of the global model and of clients' own: loss and metrics on all rows, a sample or a client's rows."""

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from fedskew.core.streams import Floats, Ints, Stream
from fedskew.core.trees import Tensors
from fedskew.data.dataset import Rows
from fedskew.data.federation import Federation
from fedskew.data.partition import Partition
from fedskew.engine.inference import outputs_of
from fedskew.engine.job import Job
from fedskew.tasks.task import BuiltIn, Task

OWN_TESTED = 20  # clients of a round whose own models are evaluated on the whole test set
FINAL_TESTED = 200  # likewise after the last round
FINAL_CLIENTS = 10_000  # clients evaluated on their own rows after the last round

OwnModel: TypeAlias = Callable[[int], Tensors]
Score: TypeAlias = dict[str, float]  # the loss and metrics over some rows
ROUND_METRICS = ("accuracy", "balanced_accuracy")  # of a task that has them, what is reported after every evaluation


def round_metrics(task: Task) -> tuple[str, ...]:
    """Return the metrics that every evaluation reports: a few cheap ones, or all where a task has none of these.

    For a user-defined task all of its metrics are reported.
    """
    cheap = tuple(name for name in ROUND_METRICS if name in task.metric_names) if isinstance(task, BuiltIn) else ()
    return cheap or task.metric_names


@torch.no_grad()
def row_scores(
    model: nn.Module, tensors: Tensors, x: Tensor, y: Tensor, task: Task, rows: Tensor | None = None
) -> tuple[Floats, Floats]:
    """Return loss and score of every row (of all, or those at ``rows``), in evaluation mode."""
    losses, scores = [], []
    for outputs, chosen in outputs_of(model, tensors, x, rows):
        losses.append(task.losses(outputs, y[chosen], "none"))
        scores.append(task.row_scores(outputs, y[chosen]))
    return torch.cat(losses).double().cpu().numpy(), torch.cat(scores).double().cpu().numpy()


@torch.no_grad()
def score(
    model: nn.Module,
    tensors: Tensors,
    x: Tensor,
    y: Tensor,
    task: Task,
    rows: Tensor | None = None,
    names: Iterable[str] | None = None,
) -> Score:
    """Return the mean loss and the metrics over the rows: those of these names, or the usual ones."""
    found = [(outputs, task.losses(outputs, y[some], "none")) for outputs, some in outputs_of(model, tensors, x, rows)]
    losses = torch.cat([losses for _, losses in found]).double().cpu().numpy()
    outputs = torch.cat([outputs for outputs, _ in found]).cpu().numpy()
    targets = (y if rows is None else y[rows]).cpu().numpy()
    return {"loss": float(losses.mean()), **task.evaluate(outputs, targets, names or round_metrics(task))}


def client_scores(
    model: nn.Module, tensors: Tensors, x: Tensor, y: Tensor, task: Task, rows_by_client: Iterable[Ints]
) -> tuple[Floats, Floats]:
    """Return mean loss and score of one model on each client's rows; NaN for a client without rows."""
    pieces = list(rows_by_client)
    sizes = np.array([len(piece) for piece in pieces])
    if sizes.sum() == 0:
        return np.full(len(pieces), np.nan), np.full(len(pieces), np.nan)
    losses, right = row_scores(model, tensors, x, y, task, torch.from_numpy(np.concatenate(pieces)).to(y.device))
    owner = np.repeat(np.arange(len(pieces)), sizes)
    with np.errstate(invalid="ignore"):
        loss, mean = (np.bincount(owner, weights=values, minlength=len(pieces)) / sizes for values in (losses, right))
    return loss, mean


def own_columns(personal: bool, common: bool, metric: str | None) -> tuple[str, ...]:
    """Return the columns for a client's own rows: of the model it uses, then of the global one if that differs."""
    names = ("loss", metric) if metric else ("loss",)
    return (*names, *(f"global_{name}" for name in names)) if personal and common else names


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
    ) -> None:
        self.fed, self.model, self.x, self.y, self.task, self.seed = fed, model, job.x, job.y, job.task, seed
        self.metrics = tuple(dict.fromkeys((*round_metrics(job.task), *metrics)))  # of every evaluation
        self.names = ("loss", *self.metrics)
        parts = (("validation", fed.validation), ("test", fed.test))
        self._parts = {name: self._place(rows) for name, rows in parts if rows is not None and len(rows)}
        held = fed.partition.rows
        if eval_rows is not None and eval_rows < len(held):
            held = held[np.sort(Stream(seed, "evaluation").sample(len(held), eval_rows))]
        self._train_rows = torch.from_numpy(held).to(self.y.device)

    def _place(self, rows: Rows) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(rows.x).to(self.x), torch.from_numpy(rows.y).to(self.y)

    def parts(self, common: bool, personal: bool, trained: bool) -> list[str]:
        """Return the parts of the data with scores: up to three of a global model, the test rows of clients' models."""
        clients = [name for name, wanted in (("own_test", personal), ("trained_test", trained)) if wanted]
        return [*(["train", *self._parts] if common else []), *(clients if "test" in self._parts else [])]

    def scores(self, state: Tensors) -> dict[str, Score]:
        """Return the scores of the global model on each part of the data."""
        result = {"train": score(self.model, state, self.x, self.y, self.task, self._train_rows, self.metrics)}
        return result | self.all_scores(state, self.metrics)

    def all_scores(self, state: Tensors, names: Iterable[str] | None = None) -> dict[str, Score]:
        """Return the scores of the global model on validation and test rows: all metrics, or those named."""
        wanted = tuple(self.task.metric_names if names is None else names)
        return {part: score(self.model, state, x, y, self.task, None, wanted) for part, (x, y) in self._parts.items()}

    def confusion(self, state: Tensors) -> Ints | None:
        """Return how many test rows of each class (down) were predicted as each (across); None for other tasks."""
        count = getattr(self.task, "confusion", None)
        if count is None or "test" not in self._parts:
            return None
        x, y = self._parts["test"]
        matrix: Ints = count(self._outputs(state, x), y.cpu().numpy(), len(self.fed.data.classes))
        return matrix

    def _outputs(self, state: Tensors, x: Tensor, rows: Tensor | None = None) -> Floats:
        found = [outputs for outputs, _ in outputs_of(self.model, state, x, rows)]
        return torch.cat(found).double().cpu().numpy()

    def mean_on_test(self, own: OwnModel, clients: Ints) -> Score | None:
        """Return the mean score of up to 20 clients' models on the test rows; None without clients or test rows."""
        if "test" not in self._parts or not len(clients):
            return None
        tested = [self._own_test(own, int(client)) for client in clients[:OWN_TESTED]]
        return {name: float(np.mean([one[name] for one in tested])) for name in self.names}

    def _own_test(self, own: OwnModel, client: int) -> Score:
        return score(self.model, own(client), *self._parts["test"], self.task, None, self.metrics)

    def on_own_rows(
        self, state: Tensors | None, own: OwnModel | None, clients: Ints, split: Partition
    ) -> dict[str, Floats]:
        """Return the ``own_columns``: scores of the model that each client uses, on its rows in ``split``.

        ``state`` is the global model; None where clients share nothing, and each has its ``own``.
        """
        rows = [split.of(int(client)) for client in clients]
        data = (self.x, self.y, self.task)
        scores: tuple[Floats, ...] = client_scores(self.model, state, *data, rows) if state else ()
        if own:
            each = [
                client_scores(self.model, own(int(client)), *data, [mine])
                for client, mine in zip(clients, rows, strict=True)
            ]
            scores = (*np.array(each).reshape(-1, 2).T, *scores)
        if self.task.row_metric is None:
            scores = scores[::2]  # the losses alone
        return dict(zip(own_columns(own is not None, state is not None, self.task.row_metric), scores, strict=True))

    def final(self, state: Tensors | None, own: OwnModel | None) -> list[dict[str, Any]]:
        """Return one row for each client (a random sample above 10,000) with the scores of its final model on its rows.

        See ``on_own_rows``. Up to 200 clients, at even steps, also have all metrics on their own rows, and those of
        their own models on the test rows.
        """
        clients = np.arange(self.fed.clients)
        if len(clients) > FINAL_CLIENTS:
            clients = np.sort(Stream(self.seed, "final").sample(len(clients), FINAL_CLIENTS))
        split = self.fed.held_out or self.fed.partition
        found = self.on_own_rows(state, own, clients, split)
        table: list[dict[str, Any]] = [
            {"client": int(c), "rows": int(self.fed.partition.sizes[c])}
            | {name: float(of[i]) for name, of in found.items()}
            for i, c in enumerate(clients)
        ]
        tested = table if len(table) <= FINAL_TESTED else table[:: -(-len(table) // FINAL_TESTED)]
        names = [name for name in self.task.metric_names if name not in table[0]]
        for entry in tested:
            rows, used = split.of(entry["client"]), own(entry["client"]) if own else state
            assert used is not None
            entry |= self._metrics_on(used, rows, names)
            if own and "test" in self._parts:
                score = self._own_test(own, entry["client"])
                entry |= {f"own_test_{name}": score[name] for name in self.metrics}
        return table

    @torch.no_grad()
    def _metrics_on(self, state: Tensors, rows: Ints, names: list[str]) -> Score:
        """Return these metrics of a model on some training rows; NaN if there are none."""
        if not len(rows):
            return dict.fromkeys(names, float("nan"))
        index = torch.from_numpy(rows).to(self.y.device)
        return self.task.evaluate(self._outputs(state, self.x, index), self.y[index].cpu().numpy(), names)
