"""Rows on which models are evaluated, and what models make of them: outputs, losses and scores of each row."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from fedskew.core.streams import Floats, Ints
from fedskew.core.trees import Tensors
from fedskew.data.partition import Partition
from fedskew.engine.cost import measure_cost
from fedskew.engine.inference import Inference
from fedskew.engine.input_rows import Inputs
from fedskew.engine.stacked import can_be_stacked
from fedskew.tasks.task import Task

STACKED_BYTES = 256 << 20  # for clients' own models that are evaluated in one stack

OwnModel: TypeAlias = Callable[[int], Tensors]
Score: TypeAlias = dict[str, float]  # the loss and metrics over some rows


class Found(NamedTuple):
    """What a model makes of some rows, on the device: what the task keeps of each, the loss of each, and the targets.

    A task that keeps no outputs needs no targets either: they have a row for each, and no column.
    """

    kept: Tensor
    losses: Tensor
    targets: Tensor

    def arrays(self) -> tuple[Any, Any]:
        """Return what is kept, and the targets, on the host."""
        return self.kept.cpu().numpy(), self.targets.cpu().numpy()

    def score(self, task: Task, names: Iterable[str]) -> Score:
        """Return the mean loss and these metrics over the rows."""
        metrics = task.measured(*self.arrays(), names)
        return {"loss": float(self.losses.double().mean()), **metrics}


def own_columns(personal: bool, common: bool, metric: str | None) -> tuple[str, ...]:
    """Return the columns for a client's own rows: of the model it uses, then of the global one if that differs."""
    names: tuple[str, ...] = ("loss",)
    if metric:
        names = ("loss", metric)
    if personal and common:
        return (*names, *(f"global_{name}" for name in names))
    return names


class ModelRunner:
    """Runs models of one architecture on rows, one by one or many in a stack."""

    def __init__(self, model: nn.Module, x: Inputs) -> None:
        self.inference = Inference(model, x)
        self._model = model
        self._x = x
        self._cost = measure_cost(model, x, 1)

    @property
    def stacks(self) -> bool:
        """Return whether many models run faster in a stack."""
        if self._x.device.type == "cpu" and self._cost.convolutions:
            return False
        return can_be_stacked(self._model, self._x)

    @property
    def room(self) -> int:
        """Return how many models one stack may have."""
        return max(1, STACKED_BYTES // self._cost.bytes_per_client)


class _Collected:
    """Values of many rows, written into one tensor batch by batch.

    Small tensors that stay between the large ones of batches would leave holes in memory, which grow with the rows.
    """

    def __init__(self, rows: int) -> None:
        self.values = torch.empty(0)
        self._rows = rows
        self._at = 0

    def add(self, values: Tensor) -> None:
        """Write the values of the next rows."""
        if not self._at:
            self.values = values.new_empty(self._rows, *values.shape[1:])
        end = self._at + len(values)
        self.values[self._at : end] = values
        self._at = end


class EvaluatedRows:
    """Rows and their targets on the device, with the scores that models have on them."""

    def __init__(self, runner: ModelRunner, task: Task, x: Inputs, y: Tensor) -> None:
        self.runner = runner
        self.task = task
        self.x = x
        self.y = y

    def found(self, state: Tensors, rows: Ints | None = None) -> Found:
        """Return what a model makes of all rows, or of those at ``rows``; on a GPU without waiting for it."""
        if rows is None:
            index = torch.arange(len(self.y), device=self.y.device)
        else:
            index = torch.from_numpy(rows).to(self.y.device)
        if not len(index):
            columns = len(self.task.row_sums) or 1
            return Found(self.x.new_empty(0, columns), self.x.new_empty(0), self.y[:0])
        if self.task.row_sums:
            return self._summed_up(state, index)
        outputs = self.outputs(state, index)
        targets = self.y[index]
        return Found(outputs, self.task.losses(outputs, targets, "none"), targets)

    def _summed_up(self, state: Tensors, index: Tensor) -> Found:
        """Return what a task that keeps no outputs makes of these rows, batch by batch."""
        kept, losses = _Collected(len(index)), _Collected(len(index))
        for outputs, batch in self.runner.inference.outputs(state, self.x, index):
            kept.add(self.task.kept(outputs, self.y[batch]))
            losses.add(self.task.losses(outputs, self.y[batch], "none"))
        return Found(kept.values, losses.values, self.y[index, :0])

    def found_each(self, state: Tensors, pieces: Sequence[Ints]) -> Iterator[Found]:
        """Yield what one model makes of each client's rows, on the host; small clients share a forward pass."""
        if not self.task.rows_alone:
            for piece in pieces:
                yield self.found(state, piece)
            return
        for some in _batches(pieces, self.runner.inference.rows_at_once):
            found = self.found(state, joined(some))
            sizes = sizes_of(some).tolist()
            kept = torch.split(found.kept.cpu(), sizes)
            losses = torch.split(found.losses.cpu(), sizes)
            targets = torch.split(found.targets.cpu(), sizes)
            yield from map(Found, kept, losses, targets)

    def outputs(self, state: Tensors, index: Tensor) -> Tensor:
        """Return the outputs of a model for the rows at an index."""
        every = _Collected(len(index))
        for outputs, _ in self.runner.inference.outputs(state, self.x, index):
            every.add(outputs)
        return every.values

    def row_scores(self, state: Tensors, rows: Ints) -> tuple[Floats, Floats]:
        """Return loss and score of each of these rows, without keeping the outputs of many rows."""
        losses, scores = _Collected(len(rows)), _Collected(len(rows))
        index = torch.from_numpy(rows).to(self.y.device)
        for outputs, batch in self.runner.inference.outputs(state, self.x, index):
            losses.add(self.task.losses(outputs, self.y[batch], "none"))
            scores.add(self.task.row_scores(outputs, self.y[batch]))
        return on_host(losses.values), on_host(scores.values)

    def of_clients(self, state: Tensors, pieces: Sequence[Ints]) -> tuple[Floats, Floats]:
        """Return mean loss and score of one model on each client's rows."""
        if self.task.rows_alone:
            losses, scores = self.row_scores(state, joined(pieces))
            return means_of(losses, scores, sizes_of(pieces))
        each = [np.empty(0)]
        for piece in pieces:
            each.append(on_host(self.found(state, piece).losses))
        losses = np.concatenate(each)
        return means_of(losses, losses, sizes_of(pieces))

    def of_own_models(
        self, own: OwnModel, clients: Ints, pieces: Sequence[Ints]
    ) -> tuple[Floats, Floats]:
        """Return mean loss and score of each client's own model on its rows, in stacks where that is faster."""
        if not self.runner.stacks or not self.task.rows_alone:
            each = []
            for client, mine in zip(clients, pieces, strict=True):
                each.append(self.of_clients(own(int(client)), [mine]))
            loss, score = np.array(each).reshape(-1, 2).T
            return loss, score
        sizes = sizes_of(pieces)
        loss = np.full(len(clients), np.nan)
        score = np.full(len(clients), np.nan)
        # The clients with the most rows first, those without rows left out
        order = np.argsort(-sizes, kind="stable")[: np.count_nonzero(sizes)]
        room = self.runner.room
        for first in range(0, len(order), room):
            places = order[first : first + room]
            models = [own(int(client)) for client in clients[places]]
            loss[places], score[places] = self._in_stack(models, [pieces[i] for i in places])
        return loss, score

    def own_scores(
        self, state: Tensors | None, own: OwnModel | None, clients: Ints, split: Partition
    ) -> dict[str, Floats]:
        """Return the ``own_columns``: scores of the model that each client uses, on its rows in ``split``.

        ``state`` is the global model; None where clients share nothing, and each has its ``own``.
        """
        pieces = [split.of(int(client)) for client in clients]
        common: tuple[Floats, ...] = ()
        if state:
            common = self.of_clients(state, pieces)
        return self.with_own(common, own, clients, pieces)

    def with_own(
        self,
        common: tuple[Floats, ...],
        own: OwnModel | None,
        clients: Ints,
        pieces: Sequence[Ints],
    ) -> dict[str, Floats]:
        """Return the ``own_columns``, given the scores of the global model on these pieces, if there is any."""
        scores = common
        if own:
            scores = (*self.of_own_models(own, clients, pieces), *common)
        if self.task.row_metric is None:
            scores = scores[::2]  # the losses alone
        names = own_columns(own is not None, bool(common), self.task.row_metric)
        return dict(zip(names, scores, strict=True))

    def _in_stack(self, models: Sequence[Tensors], pieces: list[Ints]) -> Floats:
        """Return mean loss and score of these models, each on its own rows; those with the most rows come first."""
        stack = {}
        for name in models[0]:
            stack[name] = torch.stack([model[name] for model in models])
        total = torch.zeros((2, len(models)), dtype=torch.float64, device=self.y.device)
        for outputs, rows, real in self.runner.inference.stacked_outputs(stack, self.x, pieces):
            losses = self.task.losses(outputs, self.y[rows], "none")
            scores = self.task.row_scores(outputs, self.y[rows])
            total[0][: len(rows)] += torch.where(real, losses.double(), 0).sum(1)
            total[1][: len(rows)] += torch.where(real, scores.double(), 0).sum(1)
        return total.cpu().numpy() / sizes_of(pieces)


def _batches(pieces: Sequence[Ints], rows: int) -> Iterator[list[Ints]]:
    """Yield pieces one after the other, as many together as have no more than so many rows, and at least one."""
    some: list[Ints] = []
    count = 0
    for piece in pieces:
        if some and count + len(piece) > rows:
            yield some
            some = []
            count = 0
        some.append(piece)
        count += len(piece)
    if some:
        yield some


def on_host(values: Tensor) -> Floats:
    """Return numbers as float64 on the host."""
    array: Floats = values.double().cpu().numpy()
    return array


def joined(pieces: Sequence[Ints]) -> Ints:
    """Return the rows of all clients, one client after the other."""
    return np.concatenate([np.empty(0, dtype=np.int64), *pieces])


def sizes_of(pieces: Sequence[Ints]) -> Ints:
    """Return how many rows each client has."""
    return np.array([len(piece) for piece in pieces], dtype=np.int64)


def means_of(losses: Floats, scores: Floats, sizes: Ints) -> tuple[Floats, Floats]:
    """Return mean loss and score of each client from those of its rows; NaN for a client without rows."""
    owner = np.repeat(np.arange(len(sizes)), sizes)
    count = len(sizes)
    with np.errstate(invalid="ignore"):
        loss = np.bincount(owner, weights=losses, minlength=count) / sizes
        score = np.bincount(owner, weights=scores, minlength=count) / sizes
    return loss, score
