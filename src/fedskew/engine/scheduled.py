"""Training of one model with one optimiser on a sample schedule, at the cost of central training.

In a sequential round the model is at one client at a time, in a synchronous one all clients of a batch hold the same
weights and their summed gradients are divided once. In both the next weights depend on the batch alone, so both are
simulated by one ordinary batch.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from fedskew.core.streams import Ints
from fedskew.core.trees import Tensors, copied, tensors_of
from fedskew.engine.augment import augment, schedule_moves
from fedskew.engine.cost import measure_cost
from fedskew.engine.device import products_in, random_layers
from fedskew.engine.input_rows import Inputs, reads_rows
from fedskew.engine.job import Job, ModelState, ScheduleResult
from fedskew.engine.read_ahead import read_ahead, rows_of_piece
from fedskew.models.parameters import copied_model, load_weights, trainable
from fedskew.sample_schedules.sample_schedule import SampleSchedule

_ROWS_AT_ONCE = 4096  # rows that are gathered ahead of the steps that use them
_STEPS_AT_ONCE = 64  # steps in one CUDA graph


def run_schedule(
    job: Job, state: ModelState, schedule: SampleSchedule, reset_optimizer: bool
) -> ScheduleResult:
    """Take every step of the schedule in order; ``reset_optimizer`` resets the optimiser at the start of each visit."""
    with random_layers(job.x.device, job.seed, state.round, 0):
        return _Trainer(job, state, reset_optimizer).run(schedule)


class _Trainer:
    def __init__(self, job: Job, model: ModelState, reset_optimizer: bool) -> None:
        self.job = job
        self.round = model.round
        self.reset_optimizer = reset_optimizer
        self.worker = copied_model(job.model).train()
        images_on_cpu = job.x.dim() == 4 and job.x.device.type == "cpu"
        if images_on_cpu and measure_cost(job.model, job.x, 1).channels_last():
            self.worker = self.worker.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.params = trainable(self.worker)
        self.buffers = dict(self.worker.named_buffers())
        load_weights(self.worker, {**model.params, **model.buffers})
        self.state = copied(model.optimizer)
        self.lr = torch.tensor(model.lr, dtype=job.scalar.dtype, device=job.x.device)
        self.weights = list(self.params.values())

    def run(self, schedule: SampleSchedule) -> ScheduleResult:
        """Take all steps."""
        self.moves = schedule_moves(
            self.job.augment, self.job.seed, self.round, len(schedule.rows), self.job.x.device
        )
        sizes = np.diff(schedule.ends, prepend=0)
        visits = set(schedule.visits.tolist())
        seen: list[Tensor] = []
        at = 0
        for first, last in _runs(sizes):
            width = int(sizes[first])
            count = last - first
            rows = torch.from_numpy(schedule.rows[at : at + width * count])
            rows = rows.to(self.job.y.device).view(count, width)
            if self._captures(count):
                seen += self._replayed(rows, at, visits)
            else:
                seen += self._eager(rows, at, visits)
            at += width * count
        logits = None
        if seen:
            logits = torch.cat(seen)
        result = self._finish(logits, schedule.rows)
        if self.job.secure:
            return _in_sums(result, sizes)
        return result

    def _captures(self, steps: int) -> bool:
        """Return whether so many steps of one shape are worth a CUDA graph."""
        on_gpu = self.job.x.device.type == "cuda"
        worth_it = on_gpu and steps >= 2 * _STEPS_AT_ONCE and not self.reset_optimizer
        return worth_it and not reads_rows(self.job.x)

    def _eager(self, rows: Tensor, at: int, visits: set[int]) -> list[Tensor]:
        """Take the steps one by one; the rows of many steps are gathered at once, which is faster than row by row."""
        seen: list[Tensor] = []
        width = rows.shape[1]
        # torch.split returns one empty piece, on which momentum would take a step
        if not len(rows):
            return seen
        together = max(1, rows_of_piece(self.job.x, _ROWS_AT_ONCE) // width)
        pieces = [some.flatten() for some in torch.split(rows, together)]
        with read_ahead(self.job.x, pieces) as ahead:
            for some in pieces:
                y = self.job.y[some]
                x = _images(ahead, some, self._moves(at, len(some)))
                for batch, labels in zip(torch.split(x, width), torch.split(y, width), strict=True):
                    if self.reset_optimizer and (at == 0 or at in visits):
                        self.state = self.job.optimizer.init(self.params, stacked=False)
                    seen.append(self._step(batch, labels))
                    at += width
        return seen

    def _step(self, x: Tensor, y: Tensor) -> Tensor:
        with products_in(self.job.precision):
            logits: Tensor = self.worker(x).to(self.lr.dtype)
        loss = self.job.task.losses(logits, y)
        grads = torch.autograd.grad(loss, self.weights, materialize_grads=True)
        named = dict(zip(self.params, grads, strict=True))
        self.job.optimizer.step_(self.params, named, self.state, self.lr)
        return logits.detach()

    def _replayed(self, rows: Tensor, at: int, visits: set[int]) -> list[Tensor]:
        """Take steps by replaying a CUDA graph of many steps; the remaining steps are taken one by one."""
        batch = rows[:_STEPS_AT_ONCE].clone()
        width = rows.shape[1]
        moves = self._moves(at, batch.numel())
        if moves is not None:
            moves = moves.clone()

        def steps() -> Tensor:
            x = torch.split(_images(self.job.x, batch.flatten(), moves), width)
            logits = []
            for inputs, some in zip(x, batch, strict=True):
                logits.append(self._step(inputs, self.job.y[some]))
            return torch.cat(logits)

        graph, logits = self._captured(steps)
        seen = []
        whole = len(rows) // _STEPS_AT_ONCE * _STEPS_AT_ONCE
        for some in torch.split(rows[:whole], _STEPS_AT_ONCE):
            batch.copy_(some)
            next_moves = self._moves(at, batch.numel())
            if moves is not None and next_moves is not None:
                moves.copy_(next_moves)
            graph.replay()
            seen.append(logits.clone())
            at += batch.numel()
        return seen + self._eager(rows[whole:], at, visits)

    def _moves(self, at: int, count: int) -> Tensor | None:
        """Return the moves of the images of some samples."""
        if self.moves is None:
            return None
        return self.moves[:, at : at + count]

    def _captured(self, steps: Callable[[], Tensor]) -> "tuple[torch.cuda.CUDAGraph, Tensor]":
        """Return the graph of these steps; warm-up and capture leave the model and the optimiser unchanged."""
        moving = [*self.weights, *self.buffers.values(), *tensors_of(self.state)]
        before = [value.detach().clone() for value in moving]
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            steps()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = steps()
        with torch.no_grad():
            for value, old in zip(moving, before, strict=True):
                value.copy_(old)
        return graph, logits

    @torch.no_grad()
    def _finish(self, logits: Tensor | None, rows: Ints) -> ScheduleResult:
        losses = scores = self.job.scalar.new_zeros(0)
        if logits is not None:
            labels = self.job.y[torch.from_numpy(rows).to(self.job.y.device)]
            task = self.job.task
            losses = task.losses(logits, labels, "none")
            scores = task.row_scores(logits, labels)
        return ScheduleResult(
            _contiguous_copies(self.params),
            _contiguous_copies(self.buffers),
            self.state,
            losses.double().cpu().numpy(),
            scores.double().cpu().numpy(),
        )


def _contiguous_copies(tensors: Tensors) -> Tensors:
    copies = {}
    for name, value in tensors.items():
        copies[name] = value.detach().clone(memory_format=torch.contiguous_format)
    return copies


def _images(inputs: Inputs, rows: Tensor, moves: Tensor | None) -> Tensor:
    """Return the inputs of these rows, moved if they are augmented."""
    x = inputs[rows]
    if moves is None:
        return x
    return augment(x, *moves)


def _in_sums(result: ScheduleResult, sizes: Ints) -> ScheduleResult:
    """Return the result for a server that learns only sums over a step: every row gets the mean of its step."""
    step = np.repeat(np.arange(len(sizes)), sizes)
    rows = np.bincount(step)
    losses = (np.bincount(step, result.losses) / rows)[step]
    scores = (np.bincount(step, result.scores) / rows)[step]
    return replace(result, losses=losses, scores=scores)


def _runs(sizes: Ints) -> Iterator[tuple[int, int]]:
    """Return the ranges of steps with the same number of rows.

    >>> list(_runs(np.array([4, 4, 4, 2])))
    [(0, 3), (3, 4)]
    """
    cuts = [0, *(np.flatnonzero(np.diff(sizes)) + 1).tolist(), len(sizes)]
    for first, last in pairwise(cuts):
        if last > first:
            yield first, last
