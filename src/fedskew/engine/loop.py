"""The reference engine: one client at a time, in plain PyTorch, as a textbook would write it."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedskew.algorithms.contract import Batch, Probe, Report, View, pulled
from fedskew.batchnorm.exact import lockstep_step
from fedskew.batchnorm.masked import maskable
from fedskew.batchnorm.shared import mean_of_sound, settle_with, shares_norm
from fedskew.batchnorm.turns import Meet, in_turn
from fedskew.core.streams import Floats
from fedskew.core.trees import Tensors, Tree, unsqueezed, without
from fedskew.engine.device import random_layers
from fedskew.engine.features import Tap
from fedskew.engine.inference import row_scores
from fedskew.engine.job import MEMO, OPTIMIZER, Course, Job, Start, Updates, Walked, parts, prefixed
from fedskew.engine.plan import Plan
from fedskew.engine.scheduled import walk
from fedskew.label_privacy.secure_sum import Dealer, Masks
from fedskew.models.parameters import trainable
from fedskew.topology.sample_schedule import Walk

GRADIENTS_AT_ONCE = 64 << 20  # bytes of the gradients of single rows that are held together


@dataclass(frozen=True)
class Sequential:
    """One client at a time; ``channels_last`` lays images out as CPU convolutions like them."""

    channels_last: bool = False

    def train(self, job: Job, start: Start, plan: Plan) -> Iterator[Updates]:
        """Yield the plan's clients one by one, in its order."""
        if shares_norm(job, plan):
            yield from _train_together(job, start, plan)
            return
        worker = copy.deepcopy(job.model).train()
        if self.channels_last and job.x.dim() == 4:
            worker = worker.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        for i in range(len(plan.clients)):
            yield train_client(worker, job, start, _own(start, i), plan.only(np.array([i])))

    def walk(self, job: Job, course: Course, path: Walk, resets: bool) -> Walked:
        """Where several clients share a step, each does its part by itself, and they exchange sums as bytes."""
        ends = path.ends[:-1]
        apart = np.flatnonzero(np.diff(path.clients)) + 1
        if not len(np.setdiff1d(apart, ends)):
            return walk(job, course, path, resets)
        with random_layers(job.x.device, job.seed, course.round, 0):
            return _walk_together(job, course, path)

    def probe(self, job: Job, start: Start, plan: Plan, what: tuple[Probe, ...]) -> dict[str, Floats]:
        """One client after the other, and for the variance of gradients one row after the other."""
        worker = copy.deepcopy(job.model).eval()
        found = [
            probe_client(worker, job, start, _own(start, i), plan.only(np.array([i])), what) for i in range(len(plan.clients))
        ]
        return {name: np.array([measured[name] for measured in found]) for name in what}


def _walk_together(job: Job, course: Course, path: Walk) -> Walked:
    """Every step of a walk in lock-step, party by party."""
    params = {name: value.clone() for name, value in course.params.items()}
    buffers = {name: value.clone() for name, value in course.buffers.items()}
    state = {part: {name: value.clone() for name, value in tensors.items()} for part, tensors in course.optimizer.items()}
    lr = torch.tensor(course.lr, dtype=job.x.dtype, device=job.x.device)
    losses, right = np.zeros(len(path.rows)), np.zeros(len(path.rows))
    masks = _masks(job, path) if job.secure else {}
    for number, (first, last) in enumerate(pairwise([0, *path.ends.tolist()])):
        clients, rows = path.clients[first:last], torch.from_numpy(path.rows[first:last]).to(job.y.device)
        parties = np.unique(clients)
        mine = [rows[torch.from_numpy(clients == client).to(rows.device)] for client in parties]
        batches = [(job.x[some], job.y[some]) for some in mine]
        ends = [masks[client] for client in parties.tolist()] if masks else None
        step = lockstep_step(job.model, {**params, **buffers}, batches, ends, number)
        buffers = step.buffers
        job.optimizer.step_(params, step.grads, state, lr)
        # Where scores are summed in secret, only the mean of all parties is known.
        losses[first:last], right[first:last] = float(step.loss_sum) / len(clients), float(step.correct) / len(clients)
        for client, (loss, correct) in zip(parties, step.scores, strict=not job.secure):
            at = first + np.flatnonzero(clients == client)  # a party tells sums; each of its rows gets the mean
            losses[at], right[at] = loss / len(at), correct / len(at)
    return Walked(params, buffers, state, losses, right)


def _masks(job: Job, path: Walk) -> dict[int, Masks]:
    """An end of secure sums for every client of the path, with seeds for this walk alone."""
    dealer, clients = Dealer(), job.partition.clients
    return {client: Masks(client, dealer.seeds(client, clients)) for client in np.unique(path.clients).tolist()}


def _own(start: Start, i: int) -> Tree:
    return {part: {name: value[i] for name, value in tensors.items()} for part, tensors in start.own.items()}


def probe_client(
    worker: nn.Module, job: Job, start: Start, own: Tree, plan: Plan, what: tuple[Probe, ...]
) -> dict[Probe, float]:
    """What the plan's only client measures on its first batch; ``worker`` is a model to work in, in evaluation mode."""
    _load(worker, start, own)
    positions, counts = plan.first()
    batch = job.rows(plan.clients, positions)[0, : counts[0]]
    found: dict[Probe, float] = {}
    if set(what) - {"gradient_variance"}:
        losses, _ = row_scores(worker, {}, job.x, job.y, batch)
        found |= {"loss": float(losses.mean()), "loss_variance": float(losses.var())}
    if "gradient_variance" in what:
        found["gradient_variance"] = _gradient_variance(worker, job, batch)
    return found


def _gradient_variance(worker: nn.Module, job: Job, batch: Tensor) -> float:
    """``mean_i ||g_i - mean g||^2`` over the rows of a batch; where their gradients are many, in pieces and two passes."""
    weights = list(trainable(worker).values())
    room = max(1, GRADIENTS_AT_ONCE // sum(8 * value.numel() for value in weights))

    def gradients(some: Tensor) -> Tensor:
        losses = (F.cross_entropy(worker(job.x[row]), job.y[row]) for row in some[:, None])
        each = (torch.autograd.grad(loss, weights, materialize_grads=True) for loss in losses)
        return torch.stack([torch.cat([grad.flatten() for grad in grads]) for grads in each]).double()

    if len(batch) <= room:
        rows = gradients(batch)
        return float((rows - rows.mean(0)).square().sum(1).mean())
    pieces = torch.split(batch, room)
    mean = reduce(torch.add, (gradients(some).sum(0) for some in pieces)) / len(batch)
    return float(reduce(torch.add, ((gradients(some) - mean).square().sum() for some in pieces)) / len(batch))


def _load(worker: nn.Module, start: Start, own: Tree) -> Tensors:
    """Give the worker the weights and buffers that a client begins with, and return them."""
    begin = {**start.params, **start.buffers, **own.get("kept", {})}
    with torch.no_grad():
        for name, value in {**trainable(worker), **dict(worker.named_buffers())}.items():
            value.copy_(begin[name])
    return begin


def train_client(worker: nn.Module, job: Job, start: Start, own: Tree, plan: Plan) -> Updates:
    """The work of the plan's only client for one round; ``worker`` is a model to work in, its content does not matter."""
    with random_layers(job.x.device, job.seed, plan.round, int(plan.clients[0])):
        return _train_client(worker, job, start, own, plan)


def _train_together(job: Job, start: Start, plan: Plan) -> list[Updates]:
    """All clients of the plan side by side, each in a model of its own; at BatchNorm layers they wait for each other."""

    def client(i: int, meet: Meet) -> Updates:
        worker, mask = maskable(job.model)

        def enter(step: int) -> None:
            mask.agree = partial(settle_with, meet) if job.algorithm.shares_norm(step) else None

        return _train_client(worker.train(), job, start, _own(start, i), plan.only(np.array([i])), enter)

    def settle(given: dict[int, Tensor]) -> Tensor:
        return mean_of_sound(torch.stack(list(given.values())))

    # One stream of random numbers for all of them: they take turns in a fixed order.
    with random_layers(job.x.device, job.seed, plan.round, int(plan.clients[0])):
        return in_turn([partial(client, i) for i in range(len(plan.clients))], settle)


def _train_client(
    worker: nn.Module, job: Job, start: Start, own: Tree, plan: Plan, enter: Callable[[int], None] = lambda step: None
) -> Updates:
    """``enter`` is told the number of every step before it begins."""
    algorithm, params = job.algorithm, trainable(worker)
    begin = _load(worker, start, own)
    before = _mean_loss(worker, job, plan) if algorithm.measures_fall else None
    full_gradient = _full_gradient(worker, job, plan) if algorithm.needs_full_gradient() else {}
    lr = torch.tensor(start.lr, dtype=job.x.dtype, device=job.x.device)
    numbers = {"size": torch.as_tensor(plan.sizes[0]), "steps": torch.as_tensor(plan.steps[0]), "lr": lr}
    numbers |= {name: torch.as_tensor(values[0]) for name, values in plan.numbers.items()}
    numbers = {name: value.to(lr) for name, value in numbers.items()}
    view = View(params, {name: begin[name] for name in params}, start.server, parts(own, MEMO), numbers, job.optimizer.momentum)
    state = parts(own, OPTIMIZER)
    if not state:
        state = job.optimizer.init(params, stacked=False)
    else:
        state = {part: {name: value.clone() for name, value in tensors.items()} for part, tensors in state.items()}
    loss_sum, correct_sum = torch.zeros((2,), device=lr.device, dtype=torch.float64)
    seen = 0
    positions, counts = plan.table()
    rows = job.rows(plan.clients, positions)
    with torch.no_grad():
        pull = algorithm.pull(view)
    look = _Look(worker) if algorithm.uses_features else None
    for step, count in enumerate(counts[:, 0].tolist()):
        enter(step)
        batch = rows[step, 0, :count]
        labels = job.y[batch]
        logits = worker(job.x[batch])
        loss = F.cross_entropy(logits, labels)
        seen_by_hooks = replace(view, batch=look.batch(job.x[batch])) if look else view
        grads = torch.autograd.grad(algorithm.objective(loss, seen_by_hooks), list(params.values()), materialize_grads=True)
        with torch.no_grad():
            corrected = pulled(algorithm.correct(dict(zip(params, grads, strict=True)), view), params, pull)
            job.optimizer.step_(params, corrected, state, lr)
            loss_sum += loss.double() * count
            correct_sum += (logits.argmax(1) == labels).sum()
        seen += count
    if look:
        look.close()
    with torch.no_grad():
        # The worker's weights go on to the next client; what the hooks make of these must not.
        trained = {name: value.detach().clone() for name, value in params.items()}
        view = replace(view, params=trained, full_gradient=full_gradient)
        numbers_back = dict(plan.numbers)
        if before is not None:
            numbers_back |= {"loss_before": before, "loss_after": _mean_loss(worker, job, plan)}
        loss_mean, correct_mean = (np.array([float(value) / seen]) for value in (loss_sum, correct_sum))
        report = Report(plan.clients, plan.sizes, plan.steps, loss_mean, correct_mean, numbers_back)
        return _finish(job, view, dict(worker.named_buffers()), state, report)


class _Look:
    """What hooks may see of a batch: the representation under the worker's weights, and under others in a second model."""

    def __init__(self, worker: nn.Module) -> None:
        self.worker, self.other = worker, copy.deepcopy(worker)
        self.tap, self.other_tap = Tap(worker), Tap(self.other)

    def batch(self, x: Tensor) -> Batch:
        """Right after the worker has seen ``x``."""
        own = {name: value.detach() for name, value in self.worker.named_parameters()}

        @torch.no_grad()
        def represent(weights: Tensors) -> Tensor:
            moving = {name: value.clone() for name, value in self.worker.named_buffers()}
            functional_call(self.other, {**own, **weights, **moving}, (x.clone(),))  # a model may write to its input
            return self.other_tap.features

        return Batch(self.tap.features, represent, torch.mean)

    def close(self) -> None:
        """Leave the worker as it was."""
        self.tap.remove()


@torch.no_grad()
def _mean_loss(worker: nn.Module, job: Job, plan: Plan) -> Floats:
    """Loss of the worker on all rows of the plan's only client, in evaluation mode."""
    worker.eval()
    total = sum(float(F.cross_entropy(worker(x), y, reduction="sum")) for x, y in _all_rows(job, plan))
    worker.train()
    return np.array([total / plan.sizes[0]])


def _full_gradient(worker: nn.Module, job: Job, plan: Plan) -> Tensors:
    """Gradient of that loss at the worker's weights."""
    weights = trainable(worker)
    total = {name: torch.zeros_like(value) for name, value in weights.items()}
    worker.eval()
    for x, y in _all_rows(job, plan):
        loss = F.cross_entropy(worker(x), y, reduction="sum") / int(plan.sizes[0])
        grads = torch.autograd.grad(loss, list(weights.values()), materialize_grads=True)
        total = {name: old + grad for (name, old), grad in zip(total.items(), grads, strict=True)}
    worker.train()
    return total


def _all_rows(job: Job, plan: Plan) -> Iterator[tuple[Tensor, Tensor]]:
    """All rows of the plan's only client, a batch at a time."""
    rows = job.rows(plan.clients, np.arange(plan.sizes[0])[None])[0]
    return ((job.x[some], job.y[some]) for some in torch.split(rows, int(plan.batch[0])))


def _finish(job: Job, view: View, buffers: dict[str, Tensor], state: Tree, report: Report) -> Updates:
    everything = {**view.params, **buffers}
    own: Tree = prefixed(job.algorithm.memo(view), MEMO)
    if job.kept:
        own["kept"] = {name: everything[name].clone() for name in sorted(job.kept)}
    if job.algorithm.keeps_optimizer:
        own |= prefixed(state, OPTIMIZER)
    payload = without(unsqueezed(job.algorithm.payload(view)), job.unsent)
    sent = {name: value.unsqueeze(0).clone() for name, value in buffers.items() if name not in job.unsent}
    trained = {**view.params, **{name: buffers[name].clone() for name in job.fixed & buffers.keys()}}
    return Updates(report, payload, sent, unsqueezed(own), unsqueezed({"": trained})[""])
