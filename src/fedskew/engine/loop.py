"""The reference engine: one client at a time, in plain PyTorch."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

import numpy as np
import torch
from torch import Tensor, nn

from fedskew.algorithms.contract import TRAINED, Report, View, corrected, overridden
from fedskew.algorithms.selection import Probe
from fedskew.batchnorm.masked import maskable
from fedskew.batchnorm.shared import clients_share, mean_of_sound, settle_with
from fedskew.batchnorm.turns import Meet, in_turn
from fedskew.core.streams import Floats
from fedskew.core.trees import Tensors, Tree, copied, leaves, unsqueezed, without
from fedskew.engine.augment import augment, draw_moves
from fedskew.engine.device import products_in, random_layers
from fedskew.engine.features import class_sums, features_of, no_class_sums
from fedskew.engine.inference import row_losses
from fedskew.engine.input_rows import Inputs
from fedskew.engine.job import (
    ANSWER,
    CHOSEN,
    LOCAL,
    OPTIMIZER,
    RECEIVED,
    STATE,
    Job,
    ModelState,
    ScheduleResult,
    Start,
    Updates,
    candidates_of,
    number_of_candidates,
    parts,
    prefixed,
)
from fedskew.engine.observer import BatchObserver
from fedskew.engine.optimizer import state_of
from fedskew.engine.plan import Plan
from fedskew.engine.read_ahead import read_ahead
from fedskew.engine.scheduled import run_schedule
from fedskew.engine.synchronous_steps import synchronous_steps
from fedskew.models.parameters import copied_model, load_weights, trainable
from fedskew.sample_schedules.sample_schedule import SampleSchedule

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
        worker = copied_model(job.model).train()
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
            return synchronous_steps(job, state, schedule)

    def probe(
        self, job: Job, start: Start, plan: Plan, what: tuple[Probe, ...]
    ) -> dict[str, Floats]:
        """Measure one client after the other, and for the variance of gradients one row after the other."""
        worker = copied_model(job.model).eval()
        found: dict[str, Floats] = {name: np.zeros(len(plan.clients)) for name in what}
        for i in range(len(plan.clients)):
            alone = plan.only(np.array([i]))
            measured = probe_client(worker, job, start, _kept(start, i), alone, what)
            for name in what:
                found[name][i] = measured[name]
        return found


def _kept(start: Start, i: int) -> Tree:
    """Return what one of the clients has kept."""
    kept: Tree = {}
    for part, tensors in start.kept.items():
        kept[part] = {name: value[i] for name, value in tensors.items()}
    return kept


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
        found["loss"] = float(losses.mean())
        found["loss_variance"] = float(losses.var())
    if "gradient_variance" in what:
        found["gradient_variance"] = _gradient_variance(worker, job, batch)
    return found


def _gradient_variance(worker: nn.Module, job: Job, batch: Tensor) -> float:
    """Return ``mean_i ||g_i - mean g||^2`` over the rows of a batch, for many gradients in pieces and two passes."""
    weights = list(trainable(worker).values())
    room = max(1, GRADIENTS_AT_ONCE // sum(8 * value.numel() for value in weights))

    def gradients(some: Tensor) -> Tensor:
        each = []
        for row in some[:, None]:
            loss = job.task.losses(worker(job.x[row]), job.y[row])
            grads = torch.autograd.grad(loss, weights, materialize_grads=True)
            each.append(torch.cat([grad.flatten() for grad in grads]))
        return torch.stack(each).double()

    if len(batch) <= room:
        rows = gradients(batch)
        return float((rows - rows.mean(0)).square().sum(1).mean())
    pieces = torch.split(batch, room)
    mean = reduce(torch.add, (gradients(some).sum(0) for some in pieces)) / len(batch)
    squares = reduce(torch.add, ((gradients(some) - mean).square().sum() for some in pieces))
    return float(squares / len(batch))


def _load(worker: nn.Module, start: Start, kept: Tree) -> Tensors:
    """Load the weights and buffers that a client starts with into the worker, and return them."""
    own = {**kept.get(RECEIVED, {}), **kept.get(LOCAL, {})}
    begin = {**start.params, **start.buffers, **own}
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

    def settle(given: dict[int, Tensor]) -> Tensor:
        return settled(list(given.values()))

    clients = [partial(client, i) for i in range(len(plan.clients))]
    # All of them share one stream of random numbers, in a fixed order of clients.
    with random_layers(job.x.device, job.seed, plan.round, int(plan.clients[0])):
        return in_turn(clients, settle)


def train_meeting(job: Job, start: Start, kept: Tree, plan: Plan, meet: Meet) -> Updates:
    """Train the plan's only client, which shares statistics of BatchNorm with others by ``meet``."""
    policy = job.algorithm.batchnorm
    worker, mask = maskable(job.model)

    def enter(step: int) -> None:
        mask.agree = None
        if policy.shares_statistics(step):
            mask.agree = partial(settle_with, meet)

    return _Client(worker.train(), job, start, kept, plan).train(enter)


def settled(given: list[Tensor]) -> Tensor:
    """Return what clients make of the statistics that each of them has brought."""
    return mean_of_sound(torch.stack(given))


class _Client:
    """The local training of the only client of a plan, in the model ``worker``."""

    def __init__(self, worker: nn.Module, job: Job, start: Start, kept: Tree, plan: Plan) -> None:
        self.worker = worker
        self.job = job
        self.x: Inputs = job.x
        self.plan = plan
        self.params = trainable(worker)
        self.requires = job.algorithm.requires
        self.in_phases = overridden(job.algorithm, "trainable")
        begin = _load(worker, start, kept)
        self.measured: dict[str, Floats] = {}
        if "loss_before" in self.requires:
            self.measured["loss_before"] = self._mean_loss()
        self.full_gradient: Tensors = {}
        if "full_gradient" in self.requires:
            self.full_gradient = self._full_gradient()
        self.lr = torch.tensor(start.lr, dtype=job.scalar.dtype, device=job.x.device)
        known = {"size": plan.sizes, "steps": plan.steps, **plan.numbers, **self.measured}
        numbers = {name: torch.as_tensor(values[0]).to(self.lr) for name, values in known.items()}
        numbers["lr"] = self.lr
        received = {name: begin[name] for name in self.params}
        client_state = parts(kept, STATE)
        self.own: Tensors = {}  # tensors of the client state that are trained too
        self.own_state: Tree = {}
        if TRAINED in client_state:
            self.own = leaves(copied(client_state)[TRAINED])
            client_state[TRAINED] = self.own
            self.own_state = job.optimizer.init(self.own, stacked=False)
        self.view = View(
            self.params,
            received,
            start.server,
            client_state,
            numbers,
            job.optimizer.momentum,
            sent=job.sent,
            answer=parts(kept, ANSWER),
        )
        self._add_required()
        self.state = copied(parts(kept, OPTIMIZER))
        if not self.state:
            self.state = job.optimizer.init(self.params, stacked=False)
        positions, self.counts = plan.table()
        self.rows = job.rows(plan.clients, positions)
        self.second_rows = self.rows[:0]
        if "second_batch" in self.requires:
            self.second_rows = job.rows(plan.clients, plan.second().table()[0])
        self.moves = draw_moves(job.augment, plan, job.x.device)
        self.observer: BatchObserver | None = None
        if self._observes():
            self.observer = BatchObserver(worker, job.task, "features" in self.requires)

    def _add_required(self) -> None:
        """Add what the method requires to the view."""
        if "candidate_losses" in self.requires:
            self.view = replace(self.view, candidate_losses=self._candidate_losses())
        if "class_counts" in self.requires:
            counts = self.job.class_counts(self.plan.clients)[0]
            self.view = replace(self.view, class_counts=counts)

    def _observes(self) -> bool:
        """Return whether the method's hooks see batches."""
        algorithm = self.job.algorithm
        return (
            overridden(algorithm, "objective")
            or overridden(algorithm, "correct_gradients")
            or "gradient_at" in self.requires
            or "second_batch" in self.requires
        )

    def train(self, enter: Callable[[int], None] = lambda step: None) -> Updates:
        """Take all steps of the plan; ``enter`` is called with the number of every step before it begins."""
        algorithm = self.job.algorithm
        task = self.job.task
        if overridden(algorithm, "on_receive"):
            self._receive()
        with torch.no_grad():
            correction = algorithm.linear_correction(self.view)
        loss_sum, score_sum = torch.zeros((2,), device=self.lr.device, dtype=torch.float64)
        counts: list[int] = self.counts[:, 0].tolist()
        with read_ahead(self.x, self._requests(counts)) as self.x:
            for step, count in enumerate(counts):
                enter(step)
                x, labels = self._batch(step, count)
                logits = self._outputs(x)
                loss = task.losses(logits, labels)
                view = self._with_batch(self.view, logits, x, labels)
                if len(self.second_rows):
                    other = self._batch(step, count, second=True)
                    view = replace(
                        view, second_gradient_at=partial(self._gradient_at, view, *other)
                    )
                self._step(step, loss, view, correction)
                with torch.no_grad():
                    loss_sum += loss.double() * count
                    score_sum += task.row_scores(logits, labels).sum()
        if self.observer:
            self.observer.close()
        return self._finish(loss_sum, score_sum)

    def _requests(self, counts: Sequence[int]) -> Iterator[Tensor]:
        """Yield the row numbers of all batches, in the order of their use."""
        for step, count in enumerate(counts):
            yield self.rows[step, 0, :count]
            if len(self.second_rows):
                yield self.second_rows[step, 0, :count]

    def _step(self, step: int, loss: Tensor, view: View, correction: Tree) -> None:
        """Take a step, from the loss of its batch."""
        algorithm = self.job.algorithm
        total = algorithm.objective(loss, view)
        trained = [*self.params.values(), *self.own.values()]
        grads = torch.autograd.grad(total, trained, materialize_grads=True)
        named = dict(zip(self.params, grads, strict=False))
        with torch.no_grad():
            used = algorithm.correct_gradients(named, view)
            self._move(corrected(used, self.params, correction), step)
            if self.own and overridden(algorithm, "objective"):
                of_own = dict(zip(self.own, grads[len(self.params) :], strict=True))
                self.job.optimizer.step_(self.own, of_own, self.own_state, self.lr)

    def _batch(self, step: int, count: int, second: bool = False) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of a step with so many rows, or of its second batch."""
        table = self.rows
        if second:
            table = self.second_rows
        rows = table[step, 0, :count]
        x = self.x[rows]
        if self.moves is not None:
            x = augment(x, *self.moves[:, step, 0, :count])
        return x, self.job.y[rows]

    def _outputs(self, x: Tensor) -> Tensor:
        """Return the outputs of the worker, which may write to a copy of the batch if hooks see it too."""
        if self.observer:
            x = x.clone()
        with products_in(self.job.precision):
            logits: Tensor = self.worker(x).to(self.job.scalar.dtype)
        return logits

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
        at = leaves({**self.params, **weights})
        logits, features = self.observer.forward(at, x)
        batch = self.observer.batch(logits, x, labels, features)
        other = replace(view, params=at, batch=batch)
        total = self.job.algorithm.objective(self.job.task.losses(logits, labels), other)
        grads = torch.autograd.grad(total, list(at.values()), materialize_grads=True)
        return {name: grad.detach() for name, grad in zip(at, grads, strict=True)}

    def _receive(self) -> None:
        """Load the weights from which the method starts local training into the worker."""
        view = self.view
        if self.observer:
            x, labels = self._batch(0, int(self.counts[0, 0]))
            view = replace(view, gradient_at=partial(self._gradient_at, view, x, labels))
        with torch.no_grad():
            weights, client_state = self.job.algorithm.on_receive(view)
            for name, value in weights.items():
                self.params[name].copy_(value)
            for name, value in client_state.get(TRAINED, {}).items():
                self.own[name].copy_(value)
        if self.own:
            client_state = {**client_state, TRAINED: self.own}
        self.view = replace(self.view, client_state=client_state)

    def _move(self, grads: Tensors, step: int) -> None:
        """Take an optimiser step with the parameters that are trained in this epoch."""
        job, params, state = self.job, self.params, self.state
        if self.in_phases:
            epoch = step // int(self.plan.steps_per_epoch[0])
            epochs = int(self.plan.epochs[0])
            names = job.algorithm.trainable(job.layout, epoch, epochs)
            params = {name: value for name, value in params.items() if name in names}
            state = state_of(names, state, self.params)
        if params:
            job.optimizer.step_(params, grads, state, self.lr)

    @torch.no_grad()
    def _finish(self, loss_sum: Tensor, score_sum: Tensor) -> Updates:
        """Return what the client sends and keeps."""
        # The next client reuses the worker, so the results of the hooks must not share its memory.
        trained = {name: value.detach().clone() for name, value in self.params.items()}
        client_state = self.view.client_state
        if self.own:
            client_state = copied({**client_state, TRAINED: self.own})
        view = replace(
            self.view,
            params=trained,
            client_state=client_state,
            full_gradient=self.full_gradient,
        )
        if "class_features" in self.requires:
            view = replace(view, class_features=self._class_features())
        plan = self.plan
        numbers = {**plan.numbers, **self.measured}
        if "loss_after" in self.requires:
            numbers["loss_after"] = self._mean_loss()
        seen = int(self.counts.sum())
        loss = np.array([float(loss_sum) / seen])
        score = np.array([float(score_sum) / seen])
        report = Report(plan.clients, plan.sizes, plan.steps, loss, score, numbers)
        return _updates(self.job, view, dict(self.worker.named_buffers()), self.state, report)

    @torch.no_grad()
    def _mean_loss(self) -> Floats:
        """Return the loss of the worker on all rows of the client, in evaluation mode."""
        self.worker.eval()
        total = 0.0
        for x, y in self._all_rows():
            total += float(self.job.task.losses(self.worker(x), y, "sum"))
        self.worker.train()
        return np.array([total / self.plan.sizes[0]])

    @torch.no_grad()
    def _candidate_losses(self) -> Tensor:
        """Return that loss of the weights that the client received, and of every model that came with them.

        The loss of a model that has diverged, NaN, is infinite, so that nobody chooses it.
        """
        view = self.view
        candidates = candidates_of(view.server, view.answer)
        losses = [self._mean_loss()]
        for i in range(number_of_candidates(candidates) - 1):
            for name, value in candidates.items():
                self.params[name].copy_(value[i])
            losses.append(self._mean_loss())
        for name, value in view.start.items():
            self.params[name].copy_(value)
        found = np.concatenate(losses)
        found = np.where(np.isnan(found), np.inf, found)
        self.measured[CHOSEN] = np.array([float(found.argmin())])
        return torch.from_numpy(found).to(self.lr)

    def _class_features(self) -> Tensors:
        """Return the sums of the features of each class over all rows of the client, in evaluation mode."""
        classes, width = self.job.feature_shape
        total = no_class_sums(self.job.scalar, classes, width)
        self.worker.eval()
        for features, y in features_of(self.worker, self._all_rows()):
            for name, value in class_sums(features, y, classes, torch.ones_like(y)).items():
                total[name] += value
        self.worker.train()
        return total

    def _full_gradient(self) -> Tensors:
        """Return the gradient of that loss at the worker's weights."""
        weights = self.params
        size = int(self.plan.sizes[0])
        total = {name: torch.zeros_like(value) for name, value in weights.items()}
        self.worker.eval()
        for x, y in self._all_rows():
            loss = self.job.task.losses(self.worker(x), y, "sum") / size
            grads = torch.autograd.grad(loss, list(weights.values()), materialize_grads=True)
            for name, grad in zip(total, grads, strict=True):
                total[name] = total[name] + grad
        self.worker.train()
        return total

    def _all_rows(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield all rows of the client, a batch at a time."""
        rows = self.job.rows(self.plan.clients, np.arange(self.plan.sizes[0])[None])[0]
        for some in torch.split(rows, int(self.plan.batch[0])):
            yield self.job.x[some], self.job.y[some]


def _updates(job: Job, view: View, buffers: Tensors, state: Tree, report: Report) -> Updates:
    """Return what a client sends and keeps, as a stack of one."""
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
    trained = dict(view.params)
    for name in job.frozen_names & buffers.keys():
        trained[name] = buffers[name].clone()
    return Updates(report, payload, sent, unsqueezed(kept), unsqueezed({"": trained})[""])
