"""The reference engine: one client at a time, in plain PyTorch."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedskew.algorithms.contract import Batch, Report, View, corrected, overridden
from fedskew.algorithms.selection import Probe
from fedskew.batchnorm.exact import Parties
from fedskew.batchnorm.masked import maskable
from fedskew.batchnorm.shared import clients_share, mean_of_sound, settle_with
from fedskew.batchnorm.turns import Meet, in_turn
from fedskew.core.streams import Floats
from fedskew.core.trees import Tensors, Tree, copied, unsqueezed, without
from fedskew.engine.augment import augment, draw_moves, schedule_moves
from fedskew.engine.device import products_in, random_layers
from fedskew.engine.features import Tap
from fedskew.engine.inference import row_losses
from fedskew.engine.job import (
    LOCAL,
    OPTIMIZER,
    STATE,
    Job,
    ModelState,
    ScheduleResult,
    Start,
    Updates,
    parts,
    prefixed,
)
from fedskew.engine.plan import Plan
from fedskew.engine.scheduled import run_schedule
from fedskew.label_privacy.secure_sum import Dealer, Masks
from fedskew.models.parameters import load_weights, trainable
from fedskew.sample_schedules.sample_schedule import SampleSchedule
from fedskew.tasks.task import Task

GRADIENTS_AT_ONCE = 64 << 20  # bytes of per-row gradients that are in memory together


@dataclass(frozen=True)
class Loop:
    """Trains one client at a time; ``channels_last`` selects the memory layout that CPU convolutions prefer."""

    channels_last: bool = False

    def train(self, job: Job, start: Start, plan: Plan) -> Iterator[Updates]:
        """Yield the plan's clients one by one, in its order."""
        if clients_share(job.model, job.algorithm.batchnorm, plan.steps):
            yield from _train_together(job, start, plan)
            return
        worker = copy.deepcopy(job.model).train()
        if self.channels_last and job.x.dim() == 4:
            worker = worker.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        for i in range(len(plan.clients)):
            yield train_client(worker, job, start, _kept(start, i), plan.only(np.array([i])))

    def run_schedule(
        self, job: Job, state: ModelState, schedule: SampleSchedule, reset_optimizer: bool
    ) -> ScheduleResult:
        """Train on the schedule; clients that share a step compute separately and exchange sums as bytes."""
        ends = schedule.ends[:-1]
        apart = np.flatnonzero(np.diff(schedule.clients)) + 1
        if not len(np.setdiff1d(apart, ends)):
            return run_schedule(job, state, schedule, reset_optimizer)
        with random_layers(job.x.device, job.seed, state.round, 0):
            return _synchronous_steps(job, state, schedule)

    def probe(
        self, job: Job, start: Start, plan: Plan, what: tuple[Probe, ...]
    ) -> dict[str, Floats]:
        """Measure one client after the other, and for the variance of gradients one row after the other."""
        worker = copy.deepcopy(job.model).eval()
        found = []
        for i in range(len(plan.clients)):
            found.append(
                probe_client(worker, job, start, _kept(start, i), plan.only(np.array([i])), what)
            )
        result: dict[str, Floats] = {}
        for name in what:
            result[name] = np.array([measured[name] for measured in found])
        return result


def _synchronous_steps(job: Job, model: ModelState, schedule: SampleSchedule) -> ScheduleResult:
    """Take every step of a synchronous schedule, client by client."""
    params = {name: value.clone() for name, value in model.params.items()}
    buffers = {name: value.clone() for name, value in model.buffers.items()}
    state = copied(model.optimizer)
    lr = torch.tensor(model.lr, dtype=job.x.dtype, device=job.x.device)
    losses = np.zeros(len(schedule.rows))
    scores = np.zeros(len(schedule.rows))
    if job.secure:
        masks = _masks(job, schedule)
    else:
        masks = {}
    simulated = Parties(job.model, job.task)
    moves = schedule_moves(job.augment, job.seed, model.round, len(schedule.rows), job.x.device)
    for number, (first, last) in enumerate(pairwise([0, *schedule.ends.tolist()])):
        clients = schedule.clients[first:last]
        rows = torch.from_numpy(schedule.rows[first:last]).to(job.y.device)
        if moves is None:
            x = job.x[rows]
        else:
            x = augment(job.x[rows], *moves[:, first:last])
        parties = np.unique(clients)
        mine = []
        for client in parties:
            mine.append(torch.from_numpy(np.flatnonzero(clients == client)).to(rows.device))
        batches = [(x[some], job.y[rows[some]]) for some in mine]
        if masks:
            ends = [masks[client] for client in parties.tolist()]
        else:
            ends = None
        step = simulated.step({**params, **buffers}, batches, ends, number)
        buffers = step.buffers
        job.optimizer.step_(params, step.grads, state, lr)
        # With secure sums only the mean score of all clients is known.
        losses[first:last], scores[first:last] = (
            float(step.loss_sum) / len(clients),
            float(step.score_sum) / len(clients),
        )
        for client, (loss, score) in zip(parties, step.scores, strict=not job.secure):
            # A client reports sums; each of its rows gets the mean
            at = first + np.flatnonzero(clients == client)
            losses[at], scores[at] = loss / len(at), score / len(at)
    return ScheduleResult(params, buffers, state, losses, scores)


def _masks(job: Job, schedule: SampleSchedule) -> dict[int, Masks]:
    """Return the masks of secure sums for every client of the schedule, with seeds for this round only."""
    dealer = Dealer()
    clients = job.partition.clients
    result: dict[int, Masks] = {}
    for client in np.unique(schedule.clients).tolist():
        result[client] = Masks(client, dealer.seeds(client, clients))
    return result


def _kept(start: Start, i: int) -> Tree:
    result: Tree = {}
    for part, tensors in start.kept.items():
        result[part] = {name: value[i] for name, value in tensors.items()}
    return result


def probe_client(
    worker: nn.Module, job: Job, start: Start, kept: Tree, plan: Plan, what: tuple[Probe, ...]
) -> dict[Probe, float]:
    """Return what the plan's only client measures on its first batch; ``worker`` is a model in evaluation mode."""
    _load(worker, start, kept)
    positions, counts = plan.first()
    batch = job.rows(plan.clients, positions)[0, : counts[0]]
    found: dict[Probe, float] = {}
    if set(what) - {"gradient_variance"}:
        losses = row_losses(worker, job.x, job.y, job.task, batch)
        found |= {"loss": float(losses.mean()), "loss_variance": float(losses.var())}
    if "gradient_variance" in what:
        found["gradient_variance"] = _gradient_variance(worker, job, batch)
    return found


def _gradient_variance(worker: nn.Module, job: Job, batch: Tensor) -> float:
    """Return ``mean_i ||g_i - mean g||^2`` over the rows of a batch, for many gradients in pieces and two passes."""
    weights = list(trainable(worker).values())
    room = max(1, GRADIENTS_AT_ONCE // sum(8 * value.numel() for value in weights))

    def gradients(some: Tensor) -> Tensor:
        losses = (job.task.losses(worker(job.x[row]), job.y[row]) for row in some[:, None])
        each = (torch.autograd.grad(loss, weights, materialize_grads=True) for loss in losses)
        return torch.stack(
            [torch.cat([grad.flatten() for grad in grads]) for grads in each]
        ).double()

    if len(batch) <= room:
        rows = gradients(batch)
        return float((rows - rows.mean(0)).square().sum(1).mean())
    pieces = torch.split(batch, room)
    mean = reduce(torch.add, (gradients(some).sum(0) for some in pieces)) / len(batch)
    return float(
        reduce(torch.add, ((gradients(some) - mean).square().sum() for some in pieces)) / len(batch)
    )


def _load(worker: nn.Module, start: Start, kept: Tree) -> Tensors:
    """Load the weights and buffers that a client starts with into the worker, and return them."""
    begin = {**start.params, **start.buffers, **kept.get(LOCAL, {})}
    load_weights(worker, begin)
    return begin


def train_client(worker: nn.Module, job: Job, start: Start, kept: Tree, plan: Plan) -> Updates:
    """Train the plan's only client for one round; ``worker`` is a model whose parameters are overwritten."""
    with random_layers(job.x.device, job.seed, plan.round, int(plan.clients[0])):
        return _Client(worker, job, start, kept, plan).train()


def _train_together(job: Job, start: Start, plan: Plan) -> list[Updates]:
    """Train all clients of the plan in parallel, each in its own model; they synchronise at BatchNorm layers."""

    def client(i: int, meet: Meet) -> Updates:
        return train_meeting(job, start, _kept(start, i), plan.only(np.array([i])), meet)

    # All of them share one stream of random numbers, in a fixed order of clients.
    with random_layers(job.x.device, job.seed, plan.round, int(plan.clients[0])):
        return in_turn(
            [partial(client, i) for i in range(len(plan.clients))],
            lambda given: settled(list(given.values())),
        )


def train_meeting(job: Job, start: Start, kept: Tree, plan: Plan, meet: Meet) -> Updates:
    """Train the plan's only client, which shares statistics of BatchNorm with others by ``meet``."""
    policy = job.algorithm.batchnorm
    worker, mask = maskable(job.model)

    def enter(step: int) -> None:
        if policy.shares_statistics(step):
            mask.agree = partial(settle_with, meet)
        else:
            mask.agree = None

    return _Client(worker.train(), job, start, kept, plan).train(enter)


def settled(given: list[Tensor]) -> Tensor:
    """Return what clients make of the statistics that each of them has brought."""
    return mean_of_sound(torch.stack(given))


class _Client:
    """The local training of the only client of a plan, in the model ``worker``."""

    def __init__(self, worker: nn.Module, job: Job, start: Start, kept: Tree, plan: Plan) -> None:
        self.worker, self.job, self.plan, algorithm = worker, job, plan, job.algorithm
        self.params, self.requires = trainable(worker), algorithm.requires
        self.in_phases = overridden(algorithm, "trainable")
        begin = _load(worker, start, kept)
        self.before = self._mean_loss() if "loss_before" in self.requires else None
        self.full_gradient = self._full_gradient() if "full_gradient" in self.requires else {}
        self.lr = torch.tensor(start.lr, dtype=job.x.dtype, device=job.x.device)
        known = {
            "size": plan.sizes,
            "steps": plan.steps,
            **plan.numbers,
            **self._measured(self.before, "loss_before"),
        }
        numbers = {
            name: torch.as_tensor(values[0]).to(self.lr) for name, values in known.items()
        } | {"lr": self.lr}
        received = {name: begin[name] for name in self.params}
        self.view = View(
            self.params, received, start.server, parts(kept, STATE), numbers, job.optimizer.momentum
        )
        if "class_counts" in self.requires:
            self.view = replace(self.view, class_counts=job.class_counts(plan.clients)[0])
        self.state = copied(parts(kept, OPTIMIZER)) or job.optimizer.init(
            self.params, stacked=False
        )
        positions, self.counts = plan.table()
        self.rows, self.moves = (
            job.rows(plan.clients, positions),
            draw_moves(job.augment, plan, job.x.device),
        )

    @staticmethod
    def _measured(values: Floats | None, name: str) -> dict[str, Floats]:
        if values is None:
            return {}
        return {name: values}

    def train(self, enter: Callable[[int], None] = lambda step: None) -> Updates:
        """Take all steps of the plan; ``enter`` is called with the number of every step before it begins."""
        algorithm, job = self.job.algorithm, self.job
        hooks = ("objective", "correct_gradients")
        observes = (
            any(overridden(algorithm, hook) for hook in hooks) or "gradient_at" in self.requires
        )
        self.observer = (
            _BatchObserver(self.worker, job.task, "features" in self.requires) if observes else None
        )
        if overridden(algorithm, "on_receive"):
            self._receive()
        with torch.no_grad():
            correction = algorithm.linear_correction(self.view)
        loss_sum, score_sum = torch.zeros((2,), device=self.lr.device, dtype=torch.float64)
        for step, count in enumerate(self.counts[:, 0].tolist()):
            enter(step)
            x, labels = self._batch(step, count)
            with products_in(job.precision):
                logits = self.worker(x.clone() if self.observer else x).to(
                    job.x.dtype
                )  # a model may write to its input
            loss = job.task.losses(logits, labels)
            view = self._with_batch(self.view, logits, x, labels)
            total = algorithm.objective(loss, view)
            grads = torch.autograd.grad(total, list(self.params.values()), materialize_grads=True)
            with torch.no_grad():
                found = algorithm.correct_gradients(
                    dict(zip(self.params, grads, strict=True)), view
                )
                self._move(corrected(found, self.params, correction), step)
                loss_sum += loss.double() * count
                score_sum += job.task.row_scores(logits, labels).sum()
        if self.observer:
            self.observer.close()
        return self._finish(loss_sum, score_sum)

    def _batch(self, step: int, count: int) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of a step with so many rows."""
        rows = self.rows[step, 0, :count]
        x = self.job.x[rows]
        return x if self.moves is None else augment(x, *self.moves[:, step, 0, :count]), self.job.y[
            rows
        ]

    def _with_batch(self, view: View, logits: Tensor, x: Tensor, labels: Tensor) -> View:
        """Return the view with the batch, right after the worker has computed its ``logits``."""
        if self.observer is None:
            return view
        view = replace(view, batch=self.observer.batch(logits, x, labels))
        return replace(view, gradient_at=partial(self._gradient_at, view, x, labels))

    @torch.enable_grad()
    def _gradient_at(self, view: View, x: Tensor, labels: Tensor, weights: Tensors) -> Tensors:
        """Return the gradient of the client's objective on this batch, at other weights."""
        assert self.observer
        own = {name: value.detach() for name, value in self.params.items()}
        at = {}
        for name, value in {**own, **weights}.items():
            at[name] = value.detach().requires_grad_()
        logits, features = self.observer.forward(at, x)
        other = replace(view, params=at)
        if view.batch:
            other = replace(other, batch=replace(view.batch, logits=logits, head_inputs=features))
        total = self.job.algorithm.objective(self.job.task.losses(logits, labels), other)
        grads = torch.autograd.grad(total, list(at.values()), materialize_grads=True)
        return {name: grad.detach() for name, grad in zip(at, grads, strict=True)}

    def _receive(self) -> None:
        """Load the weights from which the method starts local training into the worker."""
        view = self.view
        if self.observer:
            view = replace(
                view,
                gradient_at=partial(
                    self._gradient_at, view, *self._batch(0, int(self.counts[0, 0]))
                ),
            )
        with torch.no_grad():
            for name, value in self.job.algorithm.on_receive(view).items():
                self.params[name].copy_(value)

    def _move(self, grads: Tensors, step: int) -> None:
        """Take an optimiser step with the parameters that are trained in this epoch."""
        job, params, state = self.job, self.params, self.state
        if self.in_phases:
            epoch = step // int(self.plan.steps_per_epoch[0])
            epochs = int(self.plan.epochs[0])
            names = job.algorithm.trainable(job.layout, epoch, epochs)
            params = {name: value for name, value in params.items() if name in names}
            state = {
                part: {n: v for n, v in ts.items() if n in names or n not in self.params}
                for part, ts in state.items()
            }
        if params:
            job.optimizer.step_(params, grads, state, self.lr)

    @torch.no_grad()
    def _finish(self, loss_sum: Tensor, score_sum: Tensor) -> Updates:
        """Return what the client sends and keeps."""
        # The next client reuses the worker, so the results of the hooks must not share its memory.
        trained = {name: value.detach().clone() for name, value in self.params.items()}
        view = replace(self.view, params=trained, full_gradient=self.full_gradient)
        plan = self.plan
        numbers = {**plan.numbers, **self._measured(self.before, "loss_before")}
        if "loss_after" in self.requires:
            numbers["loss_after"] = self._mean_loss()
        seen = int(self.counts.sum())
        loss, score = (np.array([float(value) / seen]) for value in (loss_sum, score_sum))
        report = Report(plan.clients, plan.sizes, plan.steps, loss, score, numbers)
        return _updates(self.job, view, dict(self.worker.named_buffers()), self.state, report)

    @torch.no_grad()
    def _mean_loss(self) -> Floats:
        """Return the loss of the worker on all rows of the client, in evaluation mode."""
        self.worker.eval()
        total = sum(
            float(self.job.task.losses(self.worker(x), y, "sum")) for x, y in self._all_rows()
        )
        self.worker.train()
        return np.array([total / self.plan.sizes[0]])

    def _full_gradient(self) -> Tensors:
        """Return the gradient of that loss at the worker's weights."""
        weights = self.params
        size = int(self.plan.sizes[0])
        total = {name: torch.zeros_like(value) for name, value in weights.items()}
        self.worker.eval()
        for x, y in self._all_rows():
            loss = self.job.task.losses(self.worker(x), y, "sum") / size
            grads = torch.autograd.grad(loss, list(weights.values()), materialize_grads=True)
            total = {
                name: old + grad for (name, old), grad in zip(total.items(), grads, strict=True)
            }
        self.worker.train()
        return total

    def _all_rows(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Return all rows of the client, a batch at a time."""
        rows = self.job.rows(self.plan.clients, np.arange(self.plan.sizes[0])[None])[0]
        return (
            (self.job.x[some], self.job.y[some])
            for some in torch.split(rows, int(self.plan.batch[0]))
        )


class _BatchObserver:
    """Makes the batch that hooks see: outputs under the worker's weights, and under other weights in a second model."""

    def __init__(self, worker: nn.Module, task: Task, features: bool) -> None:
        self.worker, self.other, self.task = worker, copy.deepcopy(worker), task
        self.tap = Tap(worker) if features else None
        self.other_tap = Tap(self.other) if features else None

    def forward(self, weights: Tensors, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return logits and features under other weights; running statistics do not change."""
        moving = {name: value.clone() for name, value in self.worker.named_buffers()}
        own = {}
        for name, value in self.worker.named_parameters():
            own[name] = value.detach()
        # A model may write to its input.
        logits: Tensor = functional_call(self.other, {**own, **weights, **moving}, (x.clone(),))
        return logits, self.other_tap.features if self.other_tap else None

    def batch(self, logits: Tensor, x: Tensor, labels: Tensor) -> Batch:
        """Return the batch right after a forward pass of the worker on ``x``."""

        @torch.no_grad()
        def logits_at(weights: Tensors) -> Tensor:
            return self.forward(weights, x)[0]

        @torch.no_grad()
        def features_at(weights: Tensors) -> Tensor:
            features = self.forward(weights, x)[1]
            assert features is not None, "features_at is for methods that require features"
            return features

        if self.tap:
            features = self.tap.features
        else:
            features = None
        return Batch(
            logits,
            labels,
            lambda other: self.task.losses(other, labels),
            torch.mean,
            logits_at,
            features_at,
            features,
        )

    def close(self) -> None:
        """Remove the hook from the worker."""
        if self.tap:
            self.tap.remove()


def _updates(
    job: Job, view: View, buffers: dict[str, Tensor], state: Tree, report: Report
) -> Updates:
    everything = {**view.params, **buffers}
    kept: Tree = prefixed(job.algorithm.client_state(view), STATE)
    if job.local_names:
        kept[LOCAL] = {name: everything[name].clone() for name in sorted(job.local_names)}
    if "optimizer_state" in job.algorithm.requires:
        kept |= prefixed(state, OPTIMIZER)
    payload = without(unsqueezed(job.algorithm.payload(view)), job.unsent)
    sent = {}
    for name, value in buffers.items():
        if name not in job.unsent:
            sent[name] = value.unsqueeze(0).clone()
    trained = {
        **view.params,
        **{name: buffers[name].clone() for name in job.frozen_names & buffers.keys()},
    }
    return Updates(report, payload, sent, unsqueezed(kept), unsqueezed({"": trained})[""])
