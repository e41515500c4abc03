"""An engine whose clients are nodes: requests instead of rows."""

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedskew.algorithms.selection import Probe
from fedskew.batchnorm.exact import Hub, SynchronousStep
from fedskew.batchnorm.shared import clients_share, exchange
from fedskew.core.errors import FedskewError
from fedskew.core.streams import Floats, Ints
from fedskew.core.trees import Tree, copied, rows_of
from fedskew.deploy.checks import (
    check_part_of_step,
    checked_update,
    checked_visit,
    expected_update,
    fits,
    in_range,
    most_bytes,
)
from fedskew.deploy.remote_clients import Kinds, Nodes, Versions
from fedskew.deploy.requests import Measure, Step, Train, Visit, Waiting, in_tensor, out_of_tensor
from fedskew.deploy.update_norms import check_norm, warn_of_far_norms
from fedskew.engine.job import Job, ModelState, ScheduleResult, Start, Updates
from fedskew.engine.loop import settled
from fedskew.engine.plan import Plan
from fedskew.sample_schedules.sample_schedule import SampleSchedule
from fedskew.tasks.scores import Range
from fedskew.tasks.task import Task
from fedskew.topology.collector import BUFFERS

_USES = 16  # of a BatchNorm layer in one step, at most: a client that waits more often never ends


@dataclass
class _Training:
    """A round of training on nodes: what each was asked, what its answer is like, and how often it may wait."""

    task: Task
    max_norm: float | None = None
    requests: dict[int, Train] = field(default_factory=dict)
    like: dict[int, Updates] = field(default_factory=dict)
    trips: dict[int, int] = field(default_factory=dict)

    @property
    def most_bytes(self) -> int:
        """Return how large an answer may be."""
        return max(map(most_bytes, self.like.values()), default=0)

    def check(self, client: int, answer: Any) -> Any:
        """Return an update that can be used, or statistics with which a client waits for others."""
        if not isinstance(answer, Waiting):
            update = checked_update(answer, self.like[client], self.task)
            check_norm(update.payload, self.max_norm)
            return update
        if len(self.requests[client].met) >= self.trips[client]:
            raise FedskewError("it still waits for an exchange after all that its steps can have")
        sent = _sent_tensor(answer)
        if not sent.is_floating_point() or not sent.dim():
            raise FedskewError(
                f"it exchanges {sent.dtype} of shape {tuple(sent.shape)}, expected statistics"
            )
        return answer

    def go_on(self, waiting: Iterable[int], met: Tensor) -> None:
        """Ask those who wait to go on with what all of them together have; nobody else is asked again."""
        requests = {}
        for client in waiting:
            request = self.requests[client]
            requests[client] = replace(request, met=[*request.met, met])
        self.requests = requests


def _alone(start: Start, i: int) -> Start:
    """Return from where one client of a plan starts: what it kept is with it, and the answer is for it alone."""
    return replace(start, kept=rows_of(start.kept, slice(i, i + 1)))


@dataclass
class RemoteEngine:
    """An engine whose clients are nodes; positions of rows are sent, and never rows."""

    nodes: Nodes
    versions: list[Versions]
    mirrored: tuple[str, ...] = ()
    job: Job | None = None  # of the method; any other job is that of clients' own models
    # Of each row among those of its client, see ``positions_of``
    positions: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    sent: Tree = field(default_factory=dict)  # what the method lets a client send, and the buffers
    # Numbers that the method has a client report, and how large each may be
    reported: Mapping[str, float] = field(default_factory=dict)

    def train(self, job: Job, start: Start, plan: Plan) -> Iterator[Updates]:
        """Yield the updates of the clients that answer, in the order of the plan."""
        self.nodes.begin_round(plan.round)
        number = int(job is not self.job)  # 0 for the method, 1 for clients' own models
        together = clients_share(job.model, job.algorithm.batchnorm, plan.steps)
        training = _Training(job.task, self.nodes.max_norm)
        for i, client in enumerate(plan.clients.tolist()):
            mine = plan.only(np.array([i]))
            version = self.versions[number].of(client)
            training.requests[client] = Train(
                number, _alone(start, i), mine, version, self.mirrored, [], together
            )
            training.like[client] = self._expected(number, mine)
        meeting = exchange(job.model, job.algorithm.batchnorm, plan.steps, 0)
        most_trips = (_USES * meeting.trips * meeting.steps).tolist()
        training.trips = dict(zip(plan.clients.tolist(), most_trips, strict=True))
        answers = self._answers(training, together)
        warn_of_far_norms(answers, {client: self.nodes.name(client) for client in answers})
        for client in plan.clients.tolist():
            if client in answers:
                yield answers[client]

    def _answers(self, training: _Training, together: bool) -> dict[int, Any]:
        """Return the updates of the clients that answer; where they share statistics, they wait for each other."""
        kinds: Kinds = Updates
        if together:
            kinds = (Updates, Waiting)
        check, most = training.check, training.most_bytes
        answers = _without_odd_statistics(self.nodes.ask(training.requests, kinds, check, most))
        while waiting := _waiting(answers):
            met = settled([answer.sent for answer in waiting.values()])
            training.go_on(waiting, met)
            done = {}
            for client, answer in answers.items():
                if client not in waiting:
                    done[client] = answer
            needed = not done
            further = self.nodes.ask(training.requests, kinds, check, most, needed=needed)
            answers = done | _without_odd_statistics(further)
        return answers

    def _expected(self, number: int, plan: Plan) -> Updates:
        """Return what a client answers; a model that it trains for itself does not leave it."""
        if number == 0:
            return expected_update(plan, self.sent, self.reported)
        return expected_update(plan, _KEPT, {})

    def probe(
        self, job: Job, start: Start, plan: Plan, what: tuple[Probe, ...]
    ) -> dict[str, Floats]:
        """Return what each client measures; masked for one that does not answer."""
        self.nodes.begin_round(plan.round)
        requests = {}
        for i, client in enumerate(plan.clients.tolist()):
            mine = plan.only(np.array([i]))
            version = self.versions[0].of(client)
            requests[client] = Measure(_alone(start, i), mine, version, what, self.mirrored)
        like = {name: np.zeros(1) for name in what}

        def check(client: int, answer: Any) -> Any:
            fits(answer, like, "measurement")
            for name, (value,) in answer.items():
                low = 0.0
                if name == "loss":
                    low = job.task.range_of("loss").low
                if np.isfinite(value):  # of a model that has diverged, it is not
                    in_range(float(value), Range(low), f"measurement/{name}")
            return answer

        answers = self.nodes.ask(requests, dict, check, most_bytes(like))
        silent = np.array([client not in answers for client in requests])
        measured: dict[str, Floats] = {}
        for name in what:
            values = np.zeros(len(requests))
            for i, client in enumerate(requests):
                if client in answers:
                    values[i] = answers[client][name][0]
            measured[name] = np.ma.array(values, mask=silent)
        return measured

    def run_schedule(
        self, job: Job, state: ModelState, schedule: SampleSchedule, reset_optimizer: bool
    ) -> ScheduleResult:
        """Train one model on a sample schedule: it travels from client to client, or clients meet at every step."""
        self.nodes.wait_for_all()
        ends = schedule.ends[:-1]
        changes_of_client = np.flatnonzero(np.diff(schedule.clients)) + 1
        changes_within_batches = np.setdiff1d(changes_of_client, ends)
        if len(changes_within_batches):
            return self._synchronous(job, state, schedule)
        return self._sequential(job, state, schedule, reset_optimizer)

    def _sequential(
        self, job: Job, state: ModelState, schedule: SampleSchedule, reset_optimizer: bool
    ) -> ScheduleResult:
        losses = np.zeros(len(schedule.rows))
        scores = np.zeros(len(schedule.rows))
        stops = sorted({0, *schedule.visits.tolist(), len(schedule.rows)})
        for first, last in pairwise(stops):
            client = int(schedule.clients[first])
            rows = self.positions[schedule.rows[first:last]]
            within = (schedule.ends > first) & (schedule.ends <= last)
            request = Visit(state, rows, schedule.ends[within] - first, reset_optimizer)
            seen = np.zeros(last - first)
            like = ScheduleResult(state.params, state.buffers, state.optimizer, seen, seen)
            check = partial(_checked_visit, like, job.task, self.nodes.max_norm)
            visit = self.nodes.one(client, request, ScheduleResult, check, most_bytes(like))
            state = replace(
                state, params=visit.params, buffers=visit.buffers, optimizer=visit.optimizer
            )
            losses[first:last] = visit.losses
            scores[first:last] = visit.scores
        return ScheduleResult(state.params, state.buffers, state.optimizer, losses, scores)

    def _synchronous(self, job: Job, state: ModelState, schedule: SampleSchedule) -> ScheduleResult:
        params = {name: value.clone() for name, value in state.params.items()}
        buffers = {name: value.clone() for name, value in state.buffers.items()}
        optimizer = copied(state.optimizer)
        lr = torch.tensor(state.lr, dtype=job.scalar.dtype, device=job.x.device)
        losses = np.zeros(len(schedule.rows))
        scores = np.zeros(len(schedule.rows))
        firsts = [0, *schedule.ends[:-1].tolist()]
        for number, (first, last) in enumerate(zip(firsts, schedule.ends.tolist(), strict=True)):
            clients = schedule.clients[first:last]
            rows = self.positions[schedule.rows[first:last]]
            parties = np.unique(clients).tolist()
            hub = Hub(job.model, {**params, **buffers}, len(parties), number)
            rows_of = {party: rows[clients == party] for party in parties}
            step = self._joint_step(hub, rows_of, job.task)
            buffers = step.buffers
            job.optimizer.step_(params, step.grads, optimizer, lr)
            for party, (loss, score) in zip(parties, step.scores, strict=True):
                at = first + np.flatnonzero(clients == party)
                losses[at] = loss / len(at)
                scores[at] = score / len(at)
        return ScheduleResult(params, buffers, optimizer, losses, scores)

    def _joint_step(self, hub: Hub, rows: Mapping[int, Ints], task: Task) -> SynchronousStep:
        """Return a step over the rows of some clients, who exchange messages until each has its part of it."""
        opening = in_tensor(hub.opening())
        requests = {party: Step(opening, mine, []) for party, mine in rows.items()}
        answers = self._ask_parties(requests, task)
        while _waiting(answers):
            sent = [out_of_tensor(answers[party].sent) for party in rows]
            reply = in_tensor(hub.add(sent))
            for party, request in requests.items():
                requests[party] = replace(request, answers=[*request.answers, reply])
            answers = self._ask_parties(requests, task)
        return hub.finish([out_of_tensor(answers[party]) for party in rows])

    def _ask_parties(self, requests: Mapping[int, Step], task: Task) -> dict[int, Any]:
        """Return the answers of all parties of a step, without which there is no sum."""

        def check(client: int, answer: Any) -> Any:
            message = answer
            if isinstance(answer, Waiting):
                message = _sent_tensor(answer)
            if message.dtype != torch.uint8 or message.dim() != 1:
                raise FedskewError("its part of the step is not a message")
            check_part_of_step(out_of_tensor(message), len(requests[client].rows), task)
            return answer

        answers = self.nodes.ask(requests, (Tensor, Waiting), check)
        missing = requests.keys() - answers.keys()
        if missing:
            raise FedskewError(
                f"clients {sorted(missing)} do not answer in a step over all its clients: start again"
            )
        if 0 < len(_waiting(answers)) < len(answers):
            raise FedskewError(
                "some clients have ended a step in which others wait for them: start again"
            )
        return answers


def _waiting(answers: Mapping[int, Any]) -> dict[int, Waiting]:
    """Return the answers of clients that wait for others."""
    waiting = {}
    for client, answer in answers.items():
        if isinstance(answer, Waiting):
            waiting[client] = answer
    return waiting


def _checked_visit(
    like: ScheduleResult, task: Task, max_norm: float | None, client: int, answer: ScheduleResult
) -> ScheduleResult:
    visit = checked_visit(answer, like, task)
    moved = {}
    for name, value in visit.params.items():
        moved[name] = value - like.params[name]
    check_norm({"delta": moved}, max_norm)
    return visit


def _sent_tensor(answer: Waiting) -> Tensor:
    """Return what a client that waits has sent for the exchange; an error if it is no tensor."""
    if not isinstance(answer.sent, Tensor):
        raise FedskewError(f"it exchanges a {type(answer.sent).__name__}, expected a tensor")
    return answer.sent


def _without_odd_statistics(answers: dict[int, Any]) -> dict[int, Any]:
    """Return the answers without those of clients whose statistics have another shape or dtype than most others'."""
    kinds = {}
    for client, waiting in _waiting(answers).items():
        kinds[client] = (tuple(waiting.sent.shape), waiting.sent.dtype)
    if len(set(kinds.values())) < 2:
        return answers
    usual, _ = Counter(kinds.values()).most_common(1)[0]
    odd = [client for client, kind in kinds.items() if kind != usual]
    warnings.warn(
        f"clients {odd} are left out: they exchange statistics of another shape than others",
        stacklevel=2,
    )
    alike: dict[int, Any] = {}
    for client, answer in answers.items():
        if client not in odd:
            alike[client] = answer
    return alike


_KEPT: Tree = {"delta": {}, BUFFERS: {}}  # what a client sends of a model that it trains for itself
