"""The default engine: the round's clients stacked on a new first axis and trained all at once with ``torch.func``.

Clients are sorted by their number of steps, so that those still at work are always a prefix of the stack and a finished client
costs nothing. Short batches are padded and masked, BatchNorm included. Stacks are cut so that their memory stays in a budget.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from fedskew.algorithms.base import Report, Tensors, Tree, View
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
        if self.mode == "loop" or (self.mode == "auto" and not stacking_pays(cost, job.x.device.type, len(plan.clients))):
            yield from Sequential(channels_last=job.x.device.type == "cpu").train(job, start, plan)
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


def stacking_pays(cost: Cost, device: str, clients: int) -> bool:
    """The measured rule (benchmarks/rule.py): on a GPU always; on a CPU while a step is mostly overhead."""
    if clients == 1:
        return False
    return device != "cpu" or (not cost.convolutions and cost.multiplications_per_step < 5e6)


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
        """One step of the first ``active`` clients, in place."""
        head = slice(active)
        params = {name: value[head] for name, value in self.params.items()}
        buffers = {name: value[head] for name, value in self.buffers.items()}
        begin = {name: value if self.begin_dims[name] is None else value[head] for name, value in self.begin.items()}
        numbers = {name: value[head] for name, value in self.numbers.items()}
        real_dim = None if real is None else 0
        dims: Any = (0, 0, self.begin_dims, 0, 0, 0, 0, real_dim)
        work = vmap(self._one_client, in_dims=dims, randomness="different")
        x, y = (data.index_select(0, batch.flatten()).view(*batch.shape, *data.shape[1:]) for data in (self.job.x, self.job.y))
        inputs = (params, buffers, begin, rows_of(self.memo, head), numbers, x, y, real)
        grads, loss, correct, moved = work(*inputs)
        self.job.optimizer.step_(params, grads, rows_of(self.optimizer_state, head), self.lr)
        for name, value in buffers.items():
            value.copy_(moved[name])
        return loss, correct

    def _one_client(
        self,
        params: Tensors,
        buffers: Tensors,
        begin: Tensors,
        memo: Tree,
        numbers: Tensors,
        x: Tensor,
        y: Tensor,
        real: Tensor | None,
    ) -> tuple[Tensors, Tensor, Tensor, Tensors]:
        """Gradient, loss, right answers and new buffers of one client on one batch; runs under ``vmap``."""

        def objective(params: Tensors, buffers: Tensors) -> tuple[Tensor, tuple[Tensor, Tensor, Tensors]]:
            everything = {**params, **buffers}
            self.mask.rows = real
            logits = functional_call(self.model, everything, (x,))
            # Cross-entropy written out: half the operations of F.cross_entropy under vmap.
            losses = logits.logsumexp(1) - logits.gather(1, y[:, None]).squeeze(1)
            right = logits.argmax(1) == y
            loss = losses.mean() if real is None else (losses * real).sum() / real.sum()
            correct = right.sum() if real is None else (right * real).sum()
            moved = {name: everything[name] for name in buffers}  # functional_call leaves new buffers in its dictionary
            return self.job.algorithm.objective(loss, self.view(params, begin, memo, numbers)), (loss, correct, moved)

        grads, (loss, correct, moved) = grad(objective, has_aux=True)(params, buffers)
        return self.job.algorithm.correct(grads, self.view(params, begin, memo, numbers)), loss, correct, moved

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
