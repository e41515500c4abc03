"""The default engine: the round's clients stacked on a new first axis and trained all at once with ``torch.func``.

Clients are sorted by their number of steps, so that those still at work are always a prefix of the stack and a finished client
costs nothing. Short batches are padded and masked, BatchNorm included. Stacks are cut so that their memory stays in a budget.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedskew.algorithms.base import Algorithm, Report, Tensors, Tree, View
from fedskew.engine.cost import Cost, measure_cost
from fedskew.engine.device import random_layers
from fedskew.engine.job import MEMO, OPTIMIZER, Job, Start, Updates, parts, prefixed
from fedskew.engine.norm import maskable
from fedskew.engine.plan import Plan
from fedskew.engine.sequential import Sequential
from fedskew.engine.trees import rows_of, stacked, without


@dataclass(frozen=True)
class Stacked:
    """Clients of a round in stacks of at most ``memory`` bytes; ``mode`` overrides the measured choice of stack or loop."""

    memory: int = 2 << 30
    mode: Literal["auto", "stack", "loop"] = "auto"

    def train(self, job: Job, start: Start, plan: Plan) -> Iterator[Updates]:
        """Yield the plan's clients in stacks, those with most steps first."""
        cost = measure_cost(job.model, job.x, int(plan.batch.max()))
        if self.mode == "loop" or (self.mode == "auto" and not self._stack_is_better(job, cost, len(plan.clients))):
            channels_last = job.x.device.type == "cpu" and cost.channels_last()
            yield from Sequential(channels_last).train(job, start, plan)
            return
        by_steps = np.argsort(-plan.steps, kind="stable")
        room = max(1, self.memory // cost.bytes_per_client)
        for first in range(0, len(by_steps), room):
            members = by_steps[first : first + room]
            index = torch.from_numpy(members).to(job.y.device)
            stack = _Stack(job, start, rows_of(start.own, index), plan.only(members))
            with random_layers(job.x.device, job.seed, plan.round, int(plan.clients[members[0]])):
                done = stack.run()
            yield done

    @staticmethod
    def _stack_is_better(job: Job, cost: Cost, clients: int) -> bool:
        """On a GPU always; on a CPU by the measured rule; never for a model that cannot be stacked."""
        return (job.x.device.type != "cpu" or cost.stacking_pays(clients)) and can_be_stacked(job.model, job.x)


_stackable: "WeakKeyDictionary[nn.Module, bool]" = WeakKeyDictionary()


def can_be_stacked(model: nn.Module, x: Tensor) -> bool:
    """Whether all layers run under ``vmap`` without falling back to a slow path (an LSTM does not); tried once a model."""
    if model not in _stackable:
        rows = x[:1].expand(2, 2, *x.shape[1:])
        copied, _ = maskable(model)
        tensors = stacked({**dict(copied.named_parameters()), **dict(copied.named_buffers())}, 2)
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
                warnings.simplefilter("error")
                vmap(lambda tensors, x: functional_call(copied, tensors, (x,)), randomness="different")(tensors, rows)
            _stackable[model] = True
        except (RuntimeError, NotImplementedError, UserWarning):
            _stackable[model] = False
    return _stackable[model]


def _overridden(algorithm: Algorithm, hook: str) -> bool:
    """Whether a method says something of its own here; the default costs nothing then."""
    return getattr(getattr(algorithm, hook), "__func__", None) is not getattr(Algorithm, hook)


class _Stack:
    """Some clients of a round, all with the same step number at any time."""

    def __init__(self, job: Job, start: Start, own: Tree, plan: Plan) -> None:
        self.job, self.start, self.own, self.plan = job, start, own, plan
        self.model, self.mask = maskable(job.model)
        self.model.train()
        count, kept = len(plan.clients), own.get("kept", {})
        both = {**start.params, **start.buffers}
        every = {name: kept[name].clone() if name in kept else value for name, value in both.items()}
        self.params = {n: every[n] if n in kept else stacked({n: every[n]}, count)[n] for n in start.params}
        self.buffers = {n: every[n] if n in kept else stacked({n: every[n]}, count)[n] for n in start.buffers}
        # Anchors are shared by the stack, except those that each client kept for itself.
        self.begin = {name: self.params[name].clone() if name in kept else start.params[name] for name in start.params}
        self.begin_dims = {name: 0 if name in kept else None for name in start.params}
        self.memo = parts(own, MEMO)
        self.optimizer_state = {
            part: {name: value.clone() for name, value in tensors.items()} for part, tensors in parts(own, OPTIMIZER).items()
        } or job.optimizer.init(self.params, stacked=True)
        self.lr = torch.tensor(start.lr, dtype=job.x.dtype, device=job.x.device)
        self.numbers = {
            "size": torch.from_numpy(plan.sizes).to(self.lr),
            "steps": torch.from_numpy(plan.steps).to(self.lr),
            "lr": self.lr.expand(count),
        }

    def view(self, params: Tensors, begin: Tensors, memo: Tree, numbers: Tensors) -> View:
        """One client as the hooks see it; called inside ``vmap``."""
        return View(params, begin, self.start.server, memo, numbers, self.job.optimizer.momentum)

    def run(self) -> Updates:
        """All steps of the plan."""
        positions, counts = self.plan.table()
        rows, real_rows = self.job.rows(self.plan.clients, positions), torch.from_numpy(counts).to(self.job.y.device)
        slots = torch.arange(positions.shape[2], device=self.job.y.device)
        device, clients = self.job.y.device, len(self.plan.clients)
        loss_sum = torch.zeros(clients, dtype=torch.float64, device=device)
        correct_sum = torch.zeros(clients, dtype=torch.float64, device=device)
        for step, count in enumerate(counts):
            active, widest = int((count > 0).sum()), int(count.max())
            batch = rows[step, :active, :widest]
            full = bool((count[:active] == widest).all())
            real = None if full else (slots[:widest] < real_rows[step, :active, None]).to(self.job.x.dtype)
            loss, correct = self._step(active, batch, real)
            loss_sum[:active] += loss * real_rows[step, :active]
            correct_sum[:active] += correct
        seen = torch.from_numpy(counts.sum(0)).to(device)
        return self._finish((loss_sum / seen).cpu(), (correct_sum / seen).cpu())

    def _step(self, active: int, batch: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
        """One step of the first ``active`` clients, in place; returns each one's loss and right answers.

        Only the model runs under ``vmap``. A client's loss depends on its own slice of the stacked weights alone, so the
        gradient of the sum of all losses is the stack of their gradients, and plain autograd finds it.
        """
        algorithm, head = self.job.algorithm, slice(active)
        params = {name: value[head].detach().requires_grad_() for name, value in self.params.items()}
        x, y = (data.index_select(0, batch.flatten()).view(*batch.shape, *data.shape[1:]) for data in (self.job.x, self.job.y))
        buffers = {name: value[head] for name, value in self.buffers.items()}
        logits, moved = self._predict(params, buffers, x, real)
        losses = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view_as(y)
        loss = losses.mean(1) if real is None else (losses * real).sum(1) / real.sum(1)
        total = self._hook(algorithm.objective, loss, params, active) if _overridden(algorithm, "objective") else loss
        found = torch.autograd.grad(total.sum(), list(params.values()), materialize_grads=True)
        with torch.no_grad():
            grads = dict(zip(params, found, strict=True))
            if _overridden(algorithm, "correct"):
                grads = self._hook(algorithm.correct, grads, params, active)
            for old, new in zip(buffers.values(), moved, strict=True):
                old.copy_(new)
            moving = {name: value[head] for name, value in self.params.items()}
            self.job.optimizer.step_(moving, grads, rows_of(self.optimizer_state, head), self.lr)
            right = logits.argmax(2) == y
            return loss.detach(), right.sum(1) if real is None else (right * real).sum(1)

    def _predict(self, params: Tensors, buffers: Tensors, x: Tensor, real: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        """Logits of every client's batch, and its new buffers. Arguments of ``vmap`` go flat: trees cost it much time."""
        names = [*params, *buffers]

        def one_client(x: Tensor, real: Tensor | None, *values: Tensor) -> tuple[Tensor, ...]:
            everything = dict(zip(names, values, strict=True))
            self.mask.rows = real
            logits = functional_call(self.model, everything, (x,))
            # functional_call leaves reassigned buffers in its dictionary.
            return logits, *(everything[name] for name in buffers)

        dims = (0, None if real is None else 0, *(0 for _ in names))
        logits, *moved = vmap(one_client, in_dims=dims, randomness="different")(x, real, *params.values(), *buffers.values())
        return logits, moved

    def _hook(self, hook: Callable[[Any, View], Any], value: Any, params: Tensors, active: int) -> Any:
        """A hook of the algorithm on each of the first ``active`` clients."""
        head = slice(active)
        begin = {name: kept if self.begin_dims[name] is None else kept[head] for name, kept in self.begin.items()}
        numbers = {name: number[head] for name, number in self.numbers.items()}

        def one_client(value: Any, params: Tensors, begin: Tensors, memo: Tree, numbers: Tensors) -> Any:
            return hook(value, self.view(params, begin, memo, numbers))

        return vmap(one_client, in_dims=(0, 0, self.begin_dims, 0, 0))(value, params, begin, rows_of(self.memo, head), numbers)

    def _finish(self, loss: Tensor, accuracy: Tensor) -> Updates:
        job, plan, algorithm = self.job, self.plan, self.job.algorithm

        def leave(params: Tensors, begin: Tensors, memo: Tree, numbers: Tensors) -> tuple[Tree, Tree]:
            view = self.view(params, begin, memo, numbers)
            return algorithm.payload(view), algorithm.memo(view)

        payload, memo = vmap(leave, in_dims=(0, self.begin_dims, 0, 0))(self.params, self.begin, self.memo, self.numbers)
        everything = {**self.params, **self.buffers}
        own: Tree = prefixed(memo, MEMO)
        if job.kept:
            own["kept"] = {name: everything[name] for name in sorted(job.kept)}
        if algorithm.keeps_optimizer:
            own |= prefixed(self.optimizer_state, OPTIMIZER)
        report = Report(plan.clients, plan.sizes, plan.steps, loss.numpy(), accuracy.numpy())
        sent = {name: value for name, value in self.buffers.items() if name not in job.kept}
        return Updates(report, without(payload, job.kept), sent, own)
