"""The default engine: a round's clients are stacked on a new first axis and trained together with ``torch.func``.

Clients are sorted by their number of steps, so that the active ones are always a prefix of the stack and a finished
client costs nothing. Short batches are padded and masked, BatchNorm included. The size of a stack is limited by a
memory budget.
"""

import copy
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedskew.algorithms.contract import Batch, Report, View, overridden
from fedskew.algorithms.selection import Probe
from fedskew.batchnorm.masked import maskable
from fedskew.batchnorm.shared import clients_share, settle_in_stack
from fedskew.core.errors import FedskewError
from fedskew.core.streams import Floats
from fedskew.core.trees import Tensors, Tree, copied, rows_of, stacked, without
from fedskew.engine.augment import augment, draw_moves
from fedskew.engine.cost import Cost, measure_cost
from fedskew.engine.device import random_layers
from fedskew.engine.features import Tap
from fedskew.engine.job import LOCAL, OPTIMIZER, STATE, Job, ModelState, ScheduleResult, Start, Updates, parts, prefixed
from fedskew.engine.loop import GRADIENTS_AT_ONCE, Loop
from fedskew.engine.plan import Plan
from fedskew.engine.probe import StackedProbe
from fedskew.engine.scheduled import run_schedule
from fedskew.schedules.sample_schedule import SampleSchedule


@dataclass(frozen=True)
class Stacked:
    """Trains clients in stacks of at most ``memory`` bytes; ``mode`` overrides the measured choice of stack or loop."""

    memory: int = 2 << 30
    mode: Literal["auto", "stack", "loop"] = "auto"

    def train(self, job: Job, start: Start, plan: Plan) -> Iterator[Updates]:
        """Yield the plan's clients in stacks, those with the most steps first."""
        cost = measure_cost(job.model, job.x, int(plan.batch.max()))
        room = max(1, self.memory // cost.bytes_per_client)
        if room < len(plan.clients) and clients_share(job.model, job.algorithm.batchnorm, plan.steps):
            needed = math.ceil(10 * len(plan.clients) * cost.bytes_per_client / 2**30) / 10
            raise FedskewError(
                f"{job.algorithm.label()} trains all {len(plan.clients)} clients of a round side by side, but memory "
                f"has room for {room}: use memory={needed:g} or fewer clients (per_round)"
            )
        if self.mode == "loop" or (self.mode == "auto" and not self._stack_is_better(job, cost, len(plan.clients))):
            channels_last = job.x.device.type == "cpu" and cost.channels_last()
            yield from Loop(channels_last).train(job, start, plan)
            return
        by_steps = np.argsort(-plan.steps, kind="stable")
        for first in range(0, len(by_steps), room):
            members = by_steps[first : first + room]
            index = torch.from_numpy(members).to(job.y.device)
            stack = _Stack(job, start, rows_of(start.kept, index), plan.only(members))
            with random_layers(job.x.device, job.seed, plan.round, int(plan.clients[members[0]])):
                done = stack.run()
            yield done

    def run_schedule(
        self, job: Job, state: ModelState, schedule: SampleSchedule, reset_optimizer: bool
    ) -> ScheduleResult:
        """Train on the samples of a step as one batch, whichever clients hold them."""
        return run_schedule(job, state, schedule, reset_optimizer)

    def probe(self, job: Job, start: Start, plan: Plan, what: tuple[Probe, ...]) -> dict[str, Floats]:
        """Measure all clients at once, or as many as fit in memory; a client that does not fit, some rows at a time."""
        widest = int(plan.batch.max())
        of_gradients = "gradient_variance" in what
        if not (self.mode == "stack" or (self.mode == "auto" and self._probes_in_stacks(job, plan, of_gradients))):
            return Loop().probe(job, start, plan, what)
        weights = sum(value.nbytes for value in start.params.values())

        def needed(rows: int) -> int:
            return measure_cost(job.model, job.x, rows).bytes_per_client + 2 * rows * weights * of_gradients

        width = min(max(1, (self.memory - needed(0)) // (needed(1) - needed(0))), widest)
        # Per-row gradients are computed in pieces that fit in the processor's cache if possible.
        room = max(1, (min(self.memory, GRADIENTS_AT_ONCE) if of_gradients else self.memory) // needed(width))
        by_rows = np.argsort(plan.batch, kind="stable")
        found: dict[str, Floats] = {name: np.zeros(len(plan.clients)) for name in what}
        for first in range(0, len(by_rows), room):
            members = by_rows[first : first + room]
            for name, value in StackedProbe(job, start, members, plan.only(members), width).measure(what).items():
                found[name][members] = value.double().cpu().numpy()
        return found

    def _probes_in_stacks(self, job: Job, plan: Plan, of_gradients: bool) -> bool:
        """Return whether to stack a probe; a variance of gradients, with a backward pass per row, always gains."""
        if of_gradients:
            return can_be_stacked(job.model, job.x)
        return self._stack_is_better(job, measure_cost(job.model, job.x, int(plan.batch.max())), len(plan.clients))

    @staticmethod
    def _stack_is_better(job: Job, cost: Cost, clients: int) -> bool:
        """Return whether to stack: always on a GPU, by the measured rule on a CPU, if the model can be stacked."""
        return (job.x.device.type != "cpu" or cost.stacking_pays(clients)) and can_be_stacked(job.model, job.x)


_stackable: "WeakKeyDictionary[nn.Module, bool]" = WeakKeyDictionary()


def can_be_stacked(model: nn.Module, x: Tensor) -> bool:
    """Return whether all layers run under ``vmap`` without a slow fallback (an LSTM does not); tested once a model."""
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
    """Numbers of one client by name, sliced from one tensor when read, because under ``vmap`` each slice costs time."""

    def __init__(self, names: list[str], packed: Tensor) -> None:
        self.names, self.packed = names, packed

    def __missing__(self, name: str) -> Tensor:
        return self.packed[self.names.index(name)]


# logits, features, inputs, targets, which rows are real, and buffers of the clients' batches
_Seen: TypeAlias = "tuple[Tensor | None, Tensor | None, Tensor, Tensor, Tensor | None, Tensors]"


class _Stack:
    """Some clients of a round, which all take the same step at the same time."""

    def __init__(self, job: Job, start: Start, kept: Tree, plan: Plan) -> None:
        self.job, self.start, self.plan, self.requires = job, start, plan, job.algorithm.requires
        hooks = ("objective", "correct_gradients", "trainable")
        self.changes_objective, self.corrects, self.in_phases = (overridden(job.algorithm, hook) for hook in hooks)
        self.model, self.mask = maskable(job.model)
        self.model.train()
        count, local = len(plan.clients), kept.get(LOCAL, {})
        both = {**start.params, **start.buffers}
        every = {name: local[name].clone() if name in local else value for name, value in both.items()}
        self.params = {n: every[n] if n in local else stacked({n: every[n]}, count)[n] for n in start.params}
        self.buffers = {n: every[n] if n in local else stacked({n: every[n]}, count)[n] for n in start.buffers}
        # Start weights are shared by the stack, except those that stay with their client.
        self.begin = {name: self.params[name].clone() if name in local else start.params[name] for name in start.params}
        self.begin_dims = {name: 0 if name in local else None for name in start.params}
        self.own_begin = [name for name in start.params if name in local]
        self.client_state = parts(kept, STATE)
        self.optimizer_state = copied(parts(kept, OPTIMIZER)) or job.optimizer.init(self.params, stacked=True)
        self.lr = torch.tensor(start.lr, dtype=job.x.dtype, device=job.x.device)
        self.numbers = {
            "size": torch.from_numpy(plan.sizes).to(self.lr),
            "steps": torch.from_numpy(plan.steps).to(self.lr),
            "lr": self.lr.expand(count),
            **{name: torch.from_numpy(values).to(self.lr) for name, values in plan.numbers.items()},
        }
        self.class_counts = job.class_counts(plan.clients) if "class_counts" in self.requires else None
        self.measured: dict[str, Floats] = {}
        if "loss_before" in self.requires:
            self.measured["loss_before"] = self._mean_loss()
            self.numbers["loss_before"] = torch.from_numpy(self.measured["loss_before"]).to(self.lr)
        self.full_gradient = self._full_gradient() if "full_gradient" in self.requires else {}
        self.tap = Tap(self.model) if "features" in self.requires else None
        positions, self.counts = plan.table()
        self.rows = job.rows(plan.clients, positions)
        self.real_rows = torch.from_numpy(self.counts).to(job.y.device)
        self.slots = torch.arange(positions.shape[2], device=job.y.device)
        self.moves = draw_moves(job.augment, plan, job.x.device)
        if overridden(job.algorithm, "on_receive"):
            self._receive()
        self.correction = self._linear_correction() if overridden(job.algorithm, "linear_correction") else {}
        names = {name for tensors in self.correction.values() for name in tensors}
        self.scratch = {name: torch.empty_like(value) for name, value in self.params.items() if name in names}

    def view(self, params: Tensors, begin: Tensors, state: Tree, numbers: Tensors, counts: Tensor | None) -> View:
        """Return one client's view for the hooks; called inside ``vmap``."""
        momentum = self.job.optimizer.momentum
        return View(params, begin, self.start.server, state, numbers, momentum, class_counts=counts)

    @torch.no_grad()
    def _linear_correction(self) -> Tree:
        """Return the linear correction of every client, before the first step."""

        def one_client(params: Tensors, begin: Tensors, state: Tree, numbers: Tensors, counts: Tensor | None) -> Tree:
            return self.job.algorithm.linear_correction(self.view(params, begin, state, numbers, counts))

        dims = (0, self.begin_dims, 0, 0, None if self.class_counts is None else 0)
        arguments = (self.params, self.begin, self.client_state, self.numbers, self.class_counts)
        found: Tree = vmap(one_client, in_dims=dims)(*arguments)
        return found

    def _receive(self) -> None:
        """Set the weights from which the method starts local training."""
        batch, real = self._batch_of(0)
        params = {name: value.detach() for name, value in self.params.items()}
        seen = (None, None, *self._gather(0, batch), real, self.buffers)
        with torch.no_grad():

            def hook(given: Tensors, view: View) -> Tensors:
                start = self.job.algorithm.on_receive(view)
                return {name: start.get(name, value) for name, value in given.items()}

            self.params = {
                n: v.clone() for n, v in self._hook(hook, params, params, len(self.plan.clients), seen).items()
            }

    def run(self) -> Updates:
        """Take all steps of the plan."""
        policy, clients = self.job.algorithm.batchnorm, len(self.plan.clients)
        loss_sum = torch.zeros(clients, dtype=torch.float64, device=self.job.y.device)
        score_sum = torch.zeros(clients, dtype=torch.float64, device=self.job.y.device)
        for step, count in enumerate(self.counts):
            active = int((count > 0).sum())
            batch, real = self._batch_of(step)
            self.mask.agree = settle_in_stack if policy.shares_statistics(step) else None
            loss, scores = self._step(step, active, batch, real)
            loss_sum[:active] += loss * self.real_rows[step, :active]
            score_sum[:active] += scores
        seen = torch.from_numpy(self.counts.sum(0)).to(self.job.y.device)
        if "loss_after" in self.requires:
            self.measured["loss_after"] = self._mean_loss()
        mean_loss, score = ((total / seen).cpu().numpy() for total in (loss_sum, score_sum))
        numbers = {**self.plan.numbers, **self.measured}
        return self._finish(Report(self.plan.clients, self.plan.sizes, self.plan.steps, mean_loss, score, numbers))

    def _batch_of(self, step: int) -> tuple[Tensor, Tensor | None]:
        """Return row numbers ``[client, slot]`` of the active clients, and which are real; None where all are."""
        count = self.counts[step]
        active, widest = int((count > 0).sum()), int(count.max())
        batch = self.rows[step, :active, :widest]
        if bool((count[:active] == widest).all()):
            return batch, None
        return batch, (self.slots[:widest] < self.real_rows[step, :active, None]).to(self.job.x.dtype)

    @torch.no_grad()
    def _mean_loss(self) -> Floats:
        """Return the loss of every client's model on all of its rows, in evaluation mode."""
        total = torch.stack([*self._losses(self.params)]).sum(0)
        return total.cpu().numpy() / self.plan.sizes

    def _full_gradient(self) -> Tensors:
        """Return the gradient of that loss at every client's weights."""
        params = {name: value.detach().requires_grad_() for name, value in self.params.items()}
        total = {name: torch.zeros_like(value) for name, value in self.params.items()}
        for losses in self._losses(params):
            loss = (losses / torch.from_numpy(self.plan.sizes).to(losses)).sum()
            grads = torch.autograd.grad(loss, list(params.values()), materialize_grads=True)
            total = {name: old + grad for (name, old), grad in zip(total.items(), grads, strict=True)}
        return total

    def _losses(self, params: Tensors) -> Iterator[Tensor]:
        """Yield the sum of each client's losses in evaluation mode, over all its rows, a batch at a time."""
        model, sizes, width = copy.deepcopy(self.job.model).eval(), self.plan.sizes, int(self.plan.batch.max())

        def losses(tensors: Tensors, x: Tensor, y: Tensor) -> Tensor:
            return self.job.task.losses(functional_call(model, tensors, (x,)), y, "none")

        for first in range(0, int(sizes.max()), width):
            positions = np.arange(first, first + width)
            real = positions < sizes[:, None]
            rows = self.job.rows(self.plan.clients, np.where(real, positions, 0))
            each = vmap(losses)({**params, **self.buffers}, self.job.x[rows], self.job.y[rows])
            yield (each.double() * torch.from_numpy(real).to(each.device)).sum(1)

    def _step(self, step: int, active: int, batch: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
        """Take one step of the first ``active`` clients in place; returns each client's loss and summed scores.

        Only the model runs under ``vmap``. A client's loss depends on its own slice of the stacked weights alone, so
        the gradient of the sum of all losses is the stack of their gradients, and plain autograd finds it.
        """
        algorithm, task, head = self.job.algorithm, self.job.task, slice(active)
        params = {name: value[head].detach().requires_grad_() for name, value in self.params.items()}
        x, y = self._gather(step, batch)
        buffers = {name: value[head] for name, value in self.buffers.items()}
        observes = overridden(algorithm, "objective") or overridden(algorithm, "correct_gradients")
        # A model may write to its input, and hooks run other models on the same rows.
        logits, features, moved = self._predict(params, buffers, x.clone() if observes else x, real)
        losses = task.losses(logits, y, "none")
        loss = losses.mean(1) if real is None else (losses * real).sum(1) / real.sum(1)
        total = loss
        if self.changes_objective:
            seen = (logits, features, x, y, real, buffers)
            total = self._hook(algorithm.objective, loss, params, active, seen)
        found = torch.autograd.grad(total.sum(), list(params.values()), materialize_grads=True)
        with torch.no_grad():
            grads = dict(zip(params, found, strict=True))
            if self.corrects:
                seen = (logits.detach(), None if features is None else features.detach(), x, y, real, buffers)
                grads = self._hook(algorithm.correct_gradients, grads, params, active, seen)
            for old, new in zip(buffers.values(), moved, strict=True):
                old.copy_(new)
            moving = {name: value[head] for name, value in self.params.items()}
            self._move(moving, self._corrected(grads, moving, active), step, active)
            scores = task.row_scores(logits, y)
            return loss.detach(), scores.sum(1) if real is None else (scores * real).sum(1)

    def _gather(self, step: int, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of the rows ``[client, slot]`` of a step."""
        x, y = (
            data.index_select(0, batch.flatten()).view(*batch.shape, *data.shape[1:])
            for data in (self.job.x, self.job.y)
        )
        if self.moves is not None:
            x = augment(x, *self.moves[:, step, : batch.shape[0], : batch.shape[1]])
        return x, y

    def _move(self, params: Tensors, grads: Tensors, step: int, active: int) -> None:
        """Take an optimiser step with the parameters that each client trains in its epoch."""
        head, optimizer = slice(active), self.job.optimizer
        state = rows_of(self.optimizer_state, head)
        if not self.in_phases:
            optimizer.step_(params, grads, state, self.lr, stacked=True)
            return
        phases = list(zip(step // self.plan.steps_per_epoch[head], self.plan.epochs[head], strict=True))
        trained = {p: frozenset(self.job.algorithm.trainable(self.job.layout, *map(int, p))) for p in set(phases)}
        anybody = frozenset().union(*trained.values())
        params = {name: value for name, value in params.items() if name in anybody}
        state = {
            part: {n: v for n, v in ts.items() if n in anybody or n not in self.params} for part, ts in state.items()
        }
        before = (
            {"": {n: v.clone() for n, v in params.items()}, **copied(state)} if len(set(trained.values())) > 1 else {}
        )
        if params:
            optimizer.step_(params, grads, state, self.lr, stacked=True)
        for part, tensors in before.items():
            for name, old in tensors.items():
                if name in params:  # restored for clients that do not train it in their epoch
                    moves = torch.from_numpy(np.array([name in trained[phase] for phase in phases])).to(old.device)
                    now = params[name] if part == "" else state[part][name]
                    now.copy_(torch.where(moves.view(-1, *(1,) * (old.dim() - 1)), now, old))

    def _predict(
        self, params: Tensors, buffers: Tensors, x: Tensor, real: Tensor | None
    ) -> tuple[Tensor, Tensor | None, list[Tensor]]:
        """Return logits of every client's batch, its features if the method requires them, and its new buffers.

        Arguments of ``vmap`` are flat, because trees are slow.
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
        logits, *rest = vmap(one_client, in_dims=dims, randomness="different")(
            x, real, *params.values(), *buffers.values()
        )
        return (logits, rest[0], rest[1:]) if self.tap else (logits, None, rest)

    def _hook(
        self, hook: Callable[[Any, View], Any], value: Tensor | Tensors, params: Tensors, active: int, seen: "_Seen"
    ) -> Any:
        """Return a hook's results for the first ``active`` clients; ``seen`` are their batches.

        Arguments of ``vmap`` are flat here too, with numbers in one tensor; values that all clients share are not
        arguments.
        """
        given = [value] if isinstance(value, Tensor) else list(value.values())
        own = rows_of({"": {name: self.begin[name] for name in self.own_begin}}, slice(active))[""]
        states = [tensor[:active] for tensors in self.client_state.values() for tensor in tensors.values()]
        numbers = torch.stack(list(self.numbers.values()), 1)[:active]
        *of_batch, buffers = seen
        counts = None if self.class_counts is None else self.class_counts[:active]
        optional: list[Any] = [*of_batch, counts]

        def one_client(
            numbers: Tensor, logits: Any, features: Any, x: Any, y: Any, real: Any, counts: Any, *leaves: Tensor
        ) -> Any:
            left = iter(leaves)
            mine = [next(left) for _ in given]
            weights = {name: next(left) for name in params}
            begin = {**self.begin, **{name: next(left) for name in own}}
            old = {part: {name: next(left) for name in tensors} for part, tensors in self.client_state.items()}
            moving = {name: next(left) for name in buffers}
            view = self.view(weights, begin, old, _Numbers(list(self.numbers), numbers), counts)
            view = self._with_batch(view, logits, features, x, y, real, moving)
            if isinstance(value, Tensor):
                return hook(mine[0], view)
            result = hook(dict(zip(value, mine, strict=True)), view)
            return tuple(result[name] for name in value)

        leaves = [*given, *params.values(), *own.values(), *states, *buffers.values()]
        dims = (0, *(None if part is None else 0 for part in optional), *(0 for _ in leaves))
        result = vmap(one_client, in_dims=dims, randomness="different")(numbers, *optional, *leaves)
        return result if isinstance(value, Tensor) else dict(zip(value, result, strict=True))

    def _with_batch(
        self,
        view: View,
        logits: Tensor | None,
        features: Tensor | None,
        x: Tensor,
        y: Tensor,
        real: Tensor | None,
        buffers: Tensors,
    ) -> View:
        """Return the view with the batch of one client; called inside ``vmap``."""
        own = {name: value.detach() for name, value in view.params.items()}

        def forward(weights: Tensors) -> tuple[Tensor, Tensor | None]:
            self.mask.rows = real
            still = {name: value.clone() for name, value in buffers.items()}  # must not change running statistics
            outputs: Tensor = functional_call(self.model, {**own, **weights, **still}, (x.clone(),))
            return outputs, self.tap.features if self.tap else None

        def mean(values: Tensor) -> Tensor:
            return values.mean() if real is None else (values * real).sum() / real.sum()

        @torch.no_grad()
        def logits_at(weights: Tensors) -> Tensor:
            return forward(weights)[0]

        @torch.no_grad()
        def features_at(weights: Tensors) -> Tensor:
            found = forward(weights)[1]
            assert found is not None, "features_at is for methods that require features"
            return found

        def loss(outputs: Tensor) -> Tensor:
            return mean(self.job.task.losses(outputs, y, "none"))

        def minimised(weights: Tensors) -> Tensor:
            outputs, inside = forward(weights)
            other = replace(view, params=weights, batch=Batch(outputs, y, loss, mean, logits_at, features_at, inside))
            return self.job.algorithm.objective(loss(outputs), other)

        def gradient_at(weights: Tensors) -> Tensors:
            found: Tensors = grad(minimised)({**own, **weights})
            return found

        if logits is not None:
            view = replace(view, batch=Batch(logits, y, loss, mean, logits_at, features_at, features))
        return replace(view, gradient_at=gradient_at)

    def _corrected(self, grads: Tensors, params: Tensors, active: int) -> Tensors:
        """Return gradients with each client's linear correction, in scratch memory: a gradient may be a view."""
        scale, offset = self.correction.get("scale", {}), self.correction.get("offset", {})
        result = {}
        for name, found in grads.items():
            if name in scale:
                numbers = scale[name][:active].view(-1, *(1,) * (found.dim() - 1))
                found = torch.addcmul(found, params[name], numbers, out=self.scratch[name][:active])
            if name in offset:
                found = torch.add(found, offset[name][:active], out=self.scratch[name][:active])
            result[name] = found
        return result

    def _finish(self, report: Report) -> Updates:
        job, algorithm = self.job, self.job.algorithm

        def finish(
            params: Tensors, begin: Tensors, state: Tree, numbers: Tensors, full: Tensors, counts: Tensor | None
        ) -> tuple[Tree, Tree]:
            view = replace(self.view(params, begin, state, numbers, counts), full_gradient=full)
            return algorithm.payload(view), algorithm.client_state(view)

        dims = (0, self.begin_dims, 0, 0, 0, None if self.class_counts is None else 0)
        arguments = (self.params, self.begin, self.client_state, self.numbers, self.full_gradient, self.class_counts)
        payload, state = vmap(finish, in_dims=dims)(*arguments)
        everything = {**self.params, **self.buffers}
        kept: Tree = prefixed(state, STATE)
        if job.local_names:
            kept[LOCAL] = {name: everything[name] for name in sorted(job.local_names)}
        if "optimizer_state" in self.requires:
            kept |= prefixed(self.optimizer_state, OPTIMIZER)
        sent = {name: value for name, value in self.buffers.items() if name not in job.unsent}
        trained = {**self.params, **{name: self.buffers[name] for name in job.frozen_names & self.buffers.keys()}}
        return Updates(report, without(payload, job.unsent), sent, kept, trained)
