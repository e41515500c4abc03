"""The default engine: the round's clients stacked on a new first axis and trained all at once with ``torch.func``.

Clients are sorted by their number of steps, so that those still at work are always a prefix of the stack and a finished client
costs nothing. Short batches are padded and masked, BatchNorm included. Stacks are cut so that their memory stays in a budget.
"""

import copy
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedskew.algorithms.contract import Batch, Probe, Report, View, overridden
from fedskew.batchnorm.masked import maskable
from fedskew.batchnorm.shared import settle_in_stack, shares_norm
from fedskew.core.errors import FedskewError
from fedskew.core.streams import Floats
from fedskew.core.trees import Tensors, Tree, rows_of, stacked, without
from fedskew.engine.cost import Cost, measure_cost
from fedskew.engine.device import random_layers
from fedskew.engine.features import Tap
from fedskew.engine.job import MEMO, OPTIMIZER, Course, Job, Start, Updates, Walked, parts, prefixed
from fedskew.engine.loop import GRADIENTS_AT_ONCE, Sequential
from fedskew.engine.plan import Plan
from fedskew.engine.probe import StackedProbe
from fedskew.engine.scheduled import walk
from fedskew.topology.sample_schedule import Walk


@dataclass(frozen=True)
class Stacked:
    """Clients of a round in stacks of at most ``memory`` bytes; ``mode`` overrides the measured choice of stack or loop."""

    memory: int = 2 << 30
    mode: Literal["auto", "stack", "loop"] = "auto"

    def train(self, job: Job, start: Start, plan: Plan) -> Iterator[Updates]:
        """Yield the plan's clients in stacks, those with most steps first."""
        cost = measure_cost(job.model, job.x, int(plan.batch.max()))
        room = max(1, self.memory // cost.bytes_per_client)
        if room < len(plan.clients) and shares_norm(job, plan):
            needed = math.ceil(10 * len(plan.clients) * cost.bytes_per_client / 2**30) / 10
            raise FedskewError(
                f"{job.algorithm.label()} trains all {len(plan.clients)} clients of a round side by side, but memory has room "
                f"for {room}: use memory={needed:g} or fewer clients (per_round)"
            )
        if self.mode == "loop" or (self.mode == "auto" and not self._stack_is_better(job, cost, len(plan.clients))):
            channels_last = job.x.device.type == "cpu" and cost.channels_last()
            yield from Sequential(channels_last).train(job, start, plan)
            return
        by_steps = np.argsort(-plan.steps, kind="stable")
        for first in range(0, len(by_steps), room):
            members = by_steps[first : first + room]
            index = torch.from_numpy(members).to(job.y.device)
            stack = _Stack(job, start, rows_of(start.own, index), plan.only(members))
            with random_layers(job.x.device, job.seed, plan.round, int(plan.clients[members[0]])):
                done = stack.run()
            yield done

    def walk(self, job: Job, course: Course, path: Walk, resets: bool) -> Walked:
        """The samples of a step as one batch, whoever's they are."""
        return walk(job, course, path, resets)

    def probe(self, job: Job, start: Start, plan: Plan, what: tuple[Probe, ...]) -> dict[str, Floats]:
        """All clients at once, or as many as fit; of one that does not, some rows at a time."""
        widest = int(plan.batch.max())
        of_gradients = "gradient_variance" in what
        if not (self.mode == "stack" or (self.mode == "auto" and self._probes_in_stacks(job, plan, of_gradients))):
            return Sequential().probe(job, start, plan, what)
        weights = sum(value.nbytes for value in start.params.values())

        def needed(rows: int) -> int:
            return measure_cost(job.model, job.x, rows).bytes_per_client + 2 * rows * weights * of_gradients

        width = min(max(1, (self.memory - needed(0)) // (needed(1) - needed(0))), widest)
        # Gradients of single rows in pieces that stay in a processor's cache as far as they can.
        room = max(1, (min(self.memory, GRADIENTS_AT_ONCE) if of_gradients else self.memory) // needed(width))
        by_rows = np.argsort(plan.batch, kind="stable")
        found: dict[str, Floats] = {name: np.zeros(len(plan.clients)) for name in what}
        for first in range(0, len(by_rows), room):
            members = by_rows[first : first + room]
            for name, value in StackedProbe(job, start, members, plan.only(members), width).measure(what).items():
                found[name][members] = value.double().cpu().numpy()
        return found

    def _probes_in_stacks(self, job: Job, plan: Plan, of_gradients: bool) -> bool:
        """One backward pass for each row is where a stack gains most, whatever the model and the device."""
        if of_gradients:
            return can_be_stacked(job.model, job.x)
        return self._stack_is_better(job, measure_cost(job.model, job.x, int(plan.batch.max())), len(plan.clients))

    @staticmethod
    def _stack_is_better(job: Job, cost: Cost, clients: int) -> bool:
        """On a GPU always; on a CPU by the measured rule; never for a model that cannot be stacked."""
        return (job.x.device.type != "cpu" or cost.stacking_pays(clients)) and can_be_stacked(job.model, job.x)


_stackable: "WeakKeyDictionary[nn.Module, bool]" = WeakKeyDictionary()


def can_be_stacked(model: nn.Module, x: Tensor) -> bool:
    """Whether all layers run under ``vmap`` without falling back to a slow path (an LSTM does not); tried once a model."""
    if model not in _stackable:
        rows = x[:1].repeat(2, 2, *(1,) * (x.dim() - 1))
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


class _Numbers(dict[str, Tensor]):
    """Numbers of one client by name, taken out of one tensor when they are asked for: under ``vmap`` each costs time."""

    def __init__(self, names: list[str], packed: Tensor) -> None:
        self.names, self.packed = names, packed

    def __missing__(self, name: str) -> Tensor:
        return self.packed[self.names.index(name)]


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
        self.own_begin = [name for name in start.params if name in kept]
        self.memo = parts(own, MEMO)
        self.optimizer_state = {
            part: {name: value.clone() for name, value in tensors.items()} for part, tensors in parts(own, OPTIMIZER).items()
        } or job.optimizer.init(self.params, stacked=True)
        self.lr = torch.tensor(start.lr, dtype=job.x.dtype, device=job.x.device)
        self.numbers = {
            "size": torch.from_numpy(plan.sizes).to(self.lr),
            "steps": torch.from_numpy(plan.steps).to(self.lr),
            "lr": self.lr.expand(count),
            **{name: torch.from_numpy(values).to(self.lr) for name, values in plan.numbers.items()},
        }
        self.pull = self._once(job.algorithm.pull) if overridden(job.algorithm, "pull") else {}
        pulls = {name for tensors in self.pull.values() for name in tensors}
        self.scratch = {name: torch.empty_like(value) for name, value in self.params.items() if name in pulls}
        self.tap = Tap(self.model) if job.algorithm.uses_features else None

    def view(self, params: Tensors, begin: Tensors, memo: Tree, numbers: Tensors) -> View:
        """One client as the hooks see it; called inside ``vmap``."""
        return View(params, begin, self.start.server, memo, numbers, self.job.optimizer.momentum)

    @torch.no_grad()
    def _once(self, hook: Callable[[View], Tree]) -> Tree:
        """A hook of the algorithm on every client before the first step."""

        def one_client(params: Tensors, begin: Tensors, memo: Tree, numbers: Tensors) -> Tree:
            return hook(self.view(params, begin, memo, numbers))

        dims, arguments = (0, self.begin_dims, 0, 0), (self.params, self.begin, self.memo, self.numbers)
        found: Tree = vmap(one_client, in_dims=dims)(*arguments)
        return found

    def run(self) -> Updates:
        """All steps of the plan."""
        positions, counts = self.plan.table()
        rows, real_rows = self.job.rows(self.plan.clients, positions), torch.from_numpy(counts).to(self.job.y.device)
        slots = torch.arange(positions.shape[2], device=self.job.y.device)
        numbers = dict(self.plan.numbers)
        if self.job.algorithm.measures_fall:
            numbers["loss_before"] = self._mean_loss()
        full_gradient = self._full_gradient() if self.job.algorithm.needs_full_gradient() else {}
        device, clients = self.job.y.device, len(self.plan.clients)
        loss_sum = torch.zeros(clients, dtype=torch.float64, device=device)
        correct_sum = torch.zeros(clients, dtype=torch.float64, device=device)
        for step, count in enumerate(counts):
            active, widest = int((count > 0).sum()), int(count.max())
            batch = rows[step, :active, :widest]
            full = bool((count[:active] == widest).all())
            real = None if full else (slots[:widest] < real_rows[step, :active, None]).to(self.job.x.dtype)
            self.mask.agree = settle_in_stack if self.job.algorithm.shares_norm(step) else None
            loss, correct = self._step(active, batch, real)
            loss_sum[:active] += loss * real_rows[step, :active]
            correct_sum[:active] += correct
        seen = torch.from_numpy(counts.sum(0)).to(device)
        if self.job.algorithm.measures_fall:
            numbers["loss_after"] = self._mean_loss()
        mean_loss, accuracy = ((total / seen).cpu().numpy() for total in (loss_sum, correct_sum))
        report = Report(self.plan.clients, self.plan.sizes, self.plan.steps, mean_loss, accuracy, numbers)
        return self._finish(report, full_gradient)

    @torch.no_grad()
    def _mean_loss(self) -> Floats:
        """Loss of every client's model on all of its rows, in evaluation mode."""
        total = torch.stack([*self._losses(self.params)]).sum(0)
        return total.cpu().numpy() / self.plan.sizes

    def _full_gradient(self) -> Tensors:
        """Gradient of that loss at every client's weights."""
        params = {name: value.detach().requires_grad_() for name, value in self.params.items()}
        total = {name: torch.zeros_like(value) for name, value in self.params.items()}
        for losses in self._losses(params):
            loss = (losses / torch.from_numpy(self.plan.sizes).to(losses)).sum()
            grads = torch.autograd.grad(loss, list(params.values()), materialize_grads=True)
            total = {name: old + grad for (name, old), grad in zip(total.items(), grads, strict=True)}
        return total

    def _losses(self, params: Tensors) -> Iterator[Tensor]:
        """All rows of every client, a batch at a time: the sum of each client's losses, in evaluation mode."""
        model, sizes, width = copy.deepcopy(self.job.model).eval(), self.plan.sizes, int(self.plan.batch.max())

        def losses(tensors: Tensors, x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(functional_call(model, tensors, (x,)), y, reduction="none")

        for first in range(0, int(sizes.max()), width):
            positions = np.arange(first, first + width)
            real = positions < sizes[:, None]
            rows = self.job.rows(self.plan.clients, np.where(real, positions, 0))
            each = vmap(losses)({**params, **self.buffers}, self.job.x[rows], self.job.y[rows])
            yield (each.double() * torch.from_numpy(real).to(each.device)).sum(1)

    def _step(self, active: int, batch: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
        """One step of the first ``active`` clients, in place; returns each one's loss and right answers.

        Only the model runs under ``vmap``. A client's loss depends on its own slice of the stacked weights alone, so the
        gradient of the sum of all losses is the stack of their gradients, and plain autograd finds it.
        """
        algorithm, head = self.job.algorithm, slice(active)
        params = {name: value[head].detach().requires_grad_() for name, value in self.params.items()}
        x, y = (data.index_select(0, batch.flatten()).view(*batch.shape, *data.shape[1:]) for data in (self.job.x, self.job.y))
        buffers = {name: value[head] for name, value in self.buffers.items()}
        # A model may write to its input, and other models are to see the same rows.
        logits, features, moved = self._predict(params, buffers, x.clone() if self.tap else x, real)
        losses = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view_as(y)
        loss = losses.mean(1) if real is None else (losses * real).sum(1) / real.sum(1)
        total = loss
        if overridden(algorithm, "objective"):
            seen = None if features is None else (features, x, real, buffers)
            total = self._hook(algorithm.objective, loss, params, active, seen)
        found = torch.autograd.grad(total.sum(), list(params.values()), materialize_grads=True)
        with torch.no_grad():
            grads = dict(zip(params, found, strict=True))
            if overridden(algorithm, "correct"):
                grads = self._hook(algorithm.correct, grads, params, active)
            for old, new in zip(buffers.values(), moved, strict=True):
                old.copy_(new)
            moving = {name: value[head] for name, value in self.params.items()}
            grads = self._pulled(grads, moving, active)
            self.job.optimizer.step_(moving, grads, rows_of(self.optimizer_state, head), self.lr)
            right = logits.argmax(2) == y
            return loss.detach(), right.sum(1) if real is None else (right * real).sum(1)

    def _predict(
        self, params: Tensors, buffers: Tensors, x: Tensor, real: Tensor | None
    ) -> tuple[Tensor, Tensor | None, list[Tensor]]:
        """Logits of every client's batch, its representation if asked for, and its new buffers.

        Arguments of ``vmap`` go flat: trees cost it much time.
        """
        names = [*params, *buffers]

        def one_client(x: Tensor, real: Tensor | None, *values: Tensor) -> tuple[Tensor, ...]:
            everything = dict(zip(names, values, strict=True))
            self.mask.rows = real
            logits = functional_call(self.model, everything, (x,))
            extra = (self.tap.features,) if self.tap else ()
            # functional_call leaves reassigned buffers in its dictionary.
            return logits, *extra, *(everything[name] for name in buffers)

        dims = (0, None if real is None else 0, *(0 for _ in names))
        logits, *rest = vmap(one_client, in_dims=dims, randomness="different")(x, real, *params.values(), *buffers.values())
        return (logits, rest[0], rest[1:]) if self.tap else (logits, None, rest)

    def _hook(
        self,
        hook: Callable[[Any, View], Any],
        value: Tensor | Tensors,
        params: Tensors,
        active: int,
        seen: "tuple[Tensor, Tensor, Tensor | None, Tensors] | None" = None,
    ) -> Any:
        """A hook of the algorithm on each of the first ``active`` clients; ``seen`` is what it may see of their batches.

        Arguments of ``vmap`` go flat here too, numbers in one tensor, and what all clients share not at all.
        """
        given = [value] if isinstance(value, Tensor) else list(value.values())
        own, memo = rows_of({"": {name: self.begin[name] for name in self.own_begin}}, slice(active))[""], self.memo
        remembered = [tensor[:active] for tensors in memo.values() for tensor in tensors.values()]
        numbers = torch.stack(list(self.numbers.values()), 1)[:active]
        features, x, real, buffers = seen or (None, None, None, {})

        def one_client(numbers: Tensor, features: Any, x: Any, real: Any, *leaves: Tensor) -> Any:
            left = iter(leaves)
            mine = [next(left) for _ in given]
            weights = {name: next(left) for name in params}
            begin = {**self.begin, **{name: next(left) for name in own}}
            old = {part: {name: next(left) for name in tensors} for part, tensors in memo.items()}
            view = self.view(weights, begin, old, _Numbers(list(self.numbers), numbers))
            if seen:
                view = replace(view, batch=self._batch(weights, features, x, real, {name: next(left) for name in buffers}))
            if isinstance(value, Tensor):
                return hook(mine[0], view)
            result = hook(dict(zip(value, mine, strict=True)), view)
            return tuple(result[name] for name in value)

        leaves = [*given, *params.values(), *own.values(), *remembered, *buffers.values()]
        dims = (0, *(None if part is None else 0 for part in (features, x, real)), *(0 for _ in leaves))
        result = vmap(one_client, in_dims=dims, randomness="different")(numbers, features, x, real, *leaves)
        return result if isinstance(value, Tensor) else dict(zip(value, result, strict=True))

    def _pulled(self, grads: Tensors, params: Tensors, active: int) -> Tensors:
        """Gradients with the pull of each client, in memory of the stack: a gradient may be a view that cannot be changed."""
        scale, offset = self.pull.get("scale", {}), self.pull.get("offset", {})
        result = {}
        for name, found in grads.items():
            if name in scale:
                numbers = scale[name][:active].view(-1, *(1,) * (found.dim() - 1))
                found = torch.addcmul(found, params[name], numbers, out=self.scratch[name][:active])
            if name in offset:
                found = torch.add(found, offset[name][:active], out=self.scratch[name][:active])
            result[name] = found
        return result

    def _batch(self, params: Tensors, features: Tensor, x: Tensor, real: Tensor | None, buffers: Tensors) -> Batch:
        """What hooks may see of one client's batch; called inside ``vmap``."""

        @torch.no_grad()
        def represent(weights: Tensors) -> Tensor:
            assert self.tap
            self.mask.rows = real
            own = {name: value.detach() for name, value in params.items()}
            still = {name: value.clone() for name, value in buffers.items()}  # a look must not move running statistics
            functional_call(self.model, {**own, **weights, **still}, (x.clone(),))
            return self.tap.features

        def mean(values: Tensor) -> Tensor:
            return values.mean() if real is None else (values * real).sum() / real.sum()

        return Batch(features, represent, mean)

    def _finish(self, report: Report, full_gradient: Tensors) -> Updates:
        job, algorithm = self.job, self.job.algorithm

        def leave(params: Tensors, begin: Tensors, memo: Tree, numbers: Tensors, full: Tensors) -> tuple[Tree, Tree]:
            view = replace(self.view(params, begin, memo, numbers), full_gradient=full)
            return algorithm.payload(view), algorithm.memo(view)

        dims, arguments = (0, self.begin_dims, 0, 0, 0), (self.params, self.begin, self.memo, self.numbers, full_gradient)
        payload, memo = vmap(leave, in_dims=dims)(*arguments)
        everything = {**self.params, **self.buffers}
        own: Tree = prefixed(memo, MEMO)
        if job.kept:
            own["kept"] = {name: everything[name] for name in sorted(job.kept)}
        if algorithm.keeps_optimizer:
            own |= prefixed(self.optimizer_state, OPTIMIZER)
        sent = {name: value for name, value in self.buffers.items() if name not in job.unsent}
        trained = {**self.params, **{name: self.buffers[name] for name in job.fixed & self.buffers.keys()}}
        return Updates(report, without(payload, job.unsent), sent, own, trained)
