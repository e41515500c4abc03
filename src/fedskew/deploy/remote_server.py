"""A server that has no rows: what the rounds need of clients is asked of nodes, everything else is as in simulation."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from fedskew.algorithms.contract import Algorithm
from fedskew.algorithms.selection import Probe
from fedskew.batchnorm.exact import Hub
from fedskew.batchnorm.shared import clients_share
from fedskew.core.config import Settings
from fedskew.core.errors import FedskewError
from fedskew.core.streams import Floats, Ints
from fedskew.core.trees import Tensors, Tree, copied
from fedskew.data import fitting
from fedskew.data.dataset import Dataset, Rows
from fedskew.data.federation import Federation
from fedskew.data.partition import Partition
from fedskew.data.targets import Target, Targets
from fedskew.deploy.checks import LARGEST, checked_update, expected_update, finite, fits, most_bytes
from fedskew.deploy.requests import (
    FRESH,
    Evaluate,
    Facts,
    Measure,
    Question,
    Refusal,
    Request,
    Scored,
    Statistics,
    Step,
    Train,
    Version,
    Visit,
    Waiting,
    from_bytes,
    to_bytes,
)
from fedskew.engine.job import Job, ModelState, ScheduleResult, Start, Updates
from fedskew.engine.loop import settled
from fedskew.engine.plan import Plan
from fedskew.schedules.sample_schedule import SampleSchedule
from fedskew.server.calibration import statistics_of
from fedskew.server.client_store import ClientStore
from fedskew.server.evaluation import Evaluator, FinalClients, OwnModel, Score, own_columns, round_metrics
from fedskew.server.server import AWAY, OWN, PERSONAL, Server, jobs_of, models_away
from fedskew.tasks.additive import Sums, added, additive_metrics, metrics_from, sums_over
from fedskew.tasks.task import Task
from fedskew.topology.collector import BUFFERS, Arrived
from fedskew.topology.parallel import ParallelRounds

Kinds: TypeAlias = type[Any] | tuple[type[Any], ...]
Check: TypeAlias = Callable[[int, Any], Any]  # a client and its answer -> the answer to use; an error refuses it
CHECKPOINTS = 2  # that stay on a server's disk
VERSIONS = "versions"  # name of what stands for clients' state in a checkpoint


class Transport(Protocol):
    """Carries requests to nodes and their answers back."""

    def ask(self, requests: Mapping[int, bytes], about: Mapping[str, Any]) -> dict[int, bytes]:
        """Return the answers of clients by their numbers; one that does not answer in time has none.

        ``about`` is what every message says of the run.
        """
        ...

    def renumber(self, clients: Sequence[int]) -> None:
        """Give clients other numbers: the first of these is the old number of the new client 0."""
        ...


# -- what a server knows of rows that it does not have -----------------------------------------------------------------


def federation_of(data: Dataset, clients: Sequence[Facts]) -> Federation:
    """Return a federation with the numbers of rows that clients have told, and nothing of what is in them.

    Rows are numbered client by client, and within a client by their labels; their features are zeros that take no
    memory. ``data`` says what all clients agree about: classes, shape of a row, pipeline.
    """
    held = [one.held_out for one in clients]
    parts = [one.train for one in clients] + [counts for counts in held if counts is not None]
    owners = [*range(len(clients)), *(i for i, counts in enumerate(held) if counts is not None)]
    train = _hollow(data, parts, owners)
    ends = np.cumsum([0, *(int(counts.sum()) for counts in parts)])
    ranges = [np.arange(first, last) for first, last in pairwise(ends)]
    own = Partition.from_lists(ranges[len(clients) :]) if len(ranges) > len(clients) else None
    validation = [one.validation for one in clients if one.validation is not None]
    hollow = replace(
        data,
        train=train,
        test=_hollow(data, [one.test for one in clients], range(len(clients))),
        validation=_hollow(data, validation, range(len(clients))) if validation else None,
        groups=tuple(one.name for one in clients),
    )
    return Federation(hollow, Partition.from_lists(ranges[: len(clients)]), own)


def positions_of(fed: Federation) -> Ints:
    """Return the place of every row among those of its client, which a client numbers by their labels.

    A server that has only seen how many rows of each label a client has can name a row in this way.
    """
    rows, sizes = fed.partition.rows, fed.partition.sizes
    labels = fed.train.y[rows] if fed.data.target == "class" else np.zeros(len(rows), dtype=np.int64)
    order = np.lexsort((labels, np.repeat(np.arange(fed.clients), sizes)))
    positions = np.zeros(len(fed.train), dtype=np.int64)
    positions[rows[order]] = np.arange(len(rows)) - np.repeat(fed.partition.offsets[:-1], sizes)
    return positions


def _hollow(data: Dataset, counts: Sequence[Ints], owners: Sequence[int]) -> Rows:
    sizes = [int(one.sum()) for one in counts]
    x = np.lib.stride_tricks.as_strided(
        np.zeros(1, dtype=np.float32), (sum(sizes), *data.shape), (0,) * (1 + len(data.shape)), writeable=True
    )
    labels = [np.repeat(np.arange(len(one)), one) for one in counts]
    group = np.repeat(np.asarray(owners, dtype=np.int64), sizes)
    return Rows(x, hollow_targets(data.target, np.concatenate(labels), len(data.classes)), group)


def hollow_targets(kind: Target, labels: Ints, classes: int) -> Targets:
    """Return targets of a kind for rows of which at most the class is known."""
    if kind == "class":
        return labels.astype(np.int64)
    return np.zeros(len(labels), np.float32) if kind == "number" else np.zeros((len(labels), classes), np.uint8)


# -- what is asked of nodes --------------------------------------------------------------------------------------------


class Versions:
    """Which round's state each client goes on from; the state itself is with the clients.

    They keep what the checkpoints on the server's disk may ask for, and nothing older.
    """

    def __init__(self, clients: int) -> None:
        self.rounds = np.full((2, clients), FRESH, dtype=np.int64)  # of the whole state, and of its mirrored parts
        self._saved: list[Ints] = [self.rounds.copy()]

    def of(self, client: int) -> Version:
        """Return what a client is told."""
        now, mirrored = self.rounds[:, client].tolist()
        return Version(now, mirrored, min(int(saved[:, client].min()) for saved in self._saved))

    def state(self) -> Tensor:
        """Return all of it for a checkpoint, which may be asked for until two more were written."""
        self._saved = [*self._saved, self.rounds.copy()][-1 - CHECKPOINTS :]
        return torch.from_numpy(self.rounds.copy())

    def restore(self, state: Tensor) -> None:
        """Go back to what ``state`` returned."""
        self.rounds = state.cpu().numpy().copy()
        self._saved = [self.rounds.copy()]


class Nodes:
    """The nodes of a run: asks them, and checks what they answer. ``names`` are those of the clients, once known."""

    def __init__(self, transport: Transport | None) -> None:
        self.transport = transport
        self.about: dict[str, Any] = {}
        self.names: Sequence[str] = ()

    def ask(
        self, requests: Mapping[int, Request], kind: Kinds, check: Check | None = None, most: int = LARGEST
    ) -> dict[int, Any]:
        """Return the answers of this kind; one that is missing or not as it should be gives a warning, all an error.

        ``check`` returns the answer of a client, or raises an error; one of more than ``most`` bytes is not even read.
        """
        answers, refusals = self._ask(requests, kind, check, most)
        if requests and not answers:
            why = f": {self._reasons(refusals)}" if refusals else " in time"
            raise FedskewError(f"none of {len(requests)} clients answered{why}")
        if missing := sorted(requests.keys() - answers.keys()):
            reasons = self._reasons({client: refusals.get(client, "no answer in time") for client in missing})
            warnings.warn(f"{len(missing)} of {len(requests)} clients are left out: {reasons}", stacklevel=2)
        return answers

    def everybody(self, requests: Mapping[int, Request], kind: Kinds) -> list[Any]:
        """Return the answers of all clients, in the order of their numbers; an error if one is missing."""
        answers, refusals = self._ask(requests, kind, None, LARGEST)
        if missing := sorted(requests.keys() - answers.keys()):
            why = f": {self._reasons(refusals)}" if refusals else " in time"
            raise FedskewError(f"{len(missing)} of {len(requests)} clients did not answer{why}")
        return list(answers.values())

    def one(self, client: int, request: Request, kind: Kinds, check: Check, most: int) -> Any:
        """Return the answer of one client, without which there is no going on."""
        return self.ask({client: request}, kind, check, most)[client]

    def _ask(
        self, requests: Mapping[int, Request], kind: Kinds, check: Check | None, most: int
    ) -> tuple[dict[int, Any], dict[int, str]]:
        """Return answers, and why others are none."""
        assert self.transport, "a run begins when its nodes are there"
        answers, refusals = dict[int, Any](), dict[int, str]()
        sent = {client: to_bytes(request) for client, request in requests.items()}
        for client, content in sorted(self.transport.ask(sent, self.about).items()):
            try:
                if len(content) > most:
                    raise FedskewError(f"an answer of {len(content):,} bytes, expected at most {most:,}")
                answer = from_bytes(content)
                if isinstance(answer, Refusal):
                    raise FedskewError(answer.reason)
                if not isinstance(answer, kind):
                    raise FedskewError(f"it answered with a {type(answer).__name__}")
                answers[client] = check(client, answer) if check else answer
            except FedskewError as problem:
                refusals[client] = str(problem)
        return answers, refusals

    def _reasons(self, refusals: Mapping[int, str]) -> str:
        return "; ".join(f"client {self._name(client)}: {reason}" for client, reason in refusals.items())

    def _name(self, client: int) -> str:
        return self.names[client] if self.names else str(client)


@dataclass
class RemoteEngine:
    """An engine whose clients are nodes; positions of rows are sent, and never rows."""

    nodes: Nodes
    versions: list[Versions]
    mirrored: tuple[str, ...] = ()
    job: Job | None = None  # of the method; another one is that of clients' own models
    positions: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # see ``positions_of``
    sent: Tree = field(default_factory=dict)  # what the method lets a client send, and the buffers
    reported: tuple[str, ...] = ()  # numbers that it has clients report

    def train(self, job: Job, start: Start, plan: Plan) -> Iterator[Updates]:
        """Yield the updates of the clients that answer, in the order of the plan."""
        number = int(job is not self.job)
        together = clients_share(job.model, job.algorithm.batchnorm, plan.steps)
        start = replace(start, kept={})
        requests = {
            int(client): Train(number, start, plan.only(np.array([i])), self.versions[number].of(int(client)),
                               self.mirrored, [], together)
            for i, client in enumerate(plan.clients)
        }  # fmt: skip
        like = {client: self._expected(number, request.plan) for client, request in requests.items()}

        def check(client: int, answer: Any) -> Any:
            return _waits(answer) if isinstance(answer, Waiting) else checked_update(answer, like[client])

        most = max(map(most_bytes, like.values()), default=0)
        kinds = (Updates, Waiting) if together else Updates
        answers = _alike(self.nodes.ask(requests, kinds, check, most))
        while waiting := {client: answer for client, answer in answers.items() if isinstance(answer, Waiting)}:
            met = settled([answer.sent for answer in waiting.values()])
            requests = {c: replace(requests[c], met=[*requests[c].met, met]) for c in waiting}
            done = {client: answer for client, answer in answers.items() if client not in waiting}
            answers = done | _alike(self.nodes.ask(requests, kinds, check, most))
        for client in plan.clients.tolist():
            if client in answers:
                yield answers[client]

    def _expected(self, number: int, plan: Plan) -> Updates:
        """Return what a client answers; a model that it trains for itself does not leave it."""
        return expected_update(plan, self.sent, self.reported) if number == 0 else expected_update(plan, _KEPT, ())

    def probe(self, job: Job, start: Start, plan: Plan, what: tuple[Probe, ...]) -> dict[str, Floats]:
        """Return what each client measures; NaN for one that does not answer."""
        start = replace(start, kept={})
        requests = {
            int(client): Measure(start, plan.only(np.array([i])), self.versions[0].of(int(client)), what, self.mirrored)
            for i, client in enumerate(plan.clients)
        }
        like = {name: np.zeros(1) for name in what}
        answers = self.nodes.ask(requests, dict, _like(like, "measurement"), most_bytes(like))
        return {
            name: np.array([float(answers[c][name][0]) if c in answers else np.nan for c in plan.clients.tolist()])
            for name in what
        }

    def run_schedule(
        self, job: Job, state: ModelState, schedule: SampleSchedule, reset_optimizer: bool
    ) -> ScheduleResult:
        """Train one model on a sample schedule: it travels from client to client, or clients meet at every step."""
        ends = schedule.ends[:-1]
        apart = np.flatnonzero(np.diff(schedule.clients)) + 1
        if len(np.setdiff1d(apart, ends)):
            return self._synchronous(job, state, schedule)
        return self._sequential(job, state, schedule, reset_optimizer)

    def _sequential(
        self, job: Job, state: ModelState, schedule: SampleSchedule, reset_optimizer: bool
    ) -> ScheduleResult:
        losses, scores = np.zeros(len(schedule.rows)), np.zeros(len(schedule.rows))
        stops = sorted({0, *schedule.visits.tolist(), len(schedule.rows)})
        for first, last in pairwise(stops):
            client = int(schedule.clients[first])
            rows = self.positions[schedule.rows[first:last]]
            within = (schedule.ends > first) & (schedule.ends <= last)
            request = Visit(state, rows, schedule.ends[within] - first, reset_optimizer)
            seen = np.zeros(last - first)
            like = ScheduleResult(state.params, state.buffers, state.optimizer, seen, seen)
            result = self.nodes.one(client, request, ScheduleResult, _like(like, "model"), most_bytes(like))
            state = replace(state, params=result.params, buffers=result.buffers, optimizer=result.optimizer)
            losses[first:last], scores[first:last] = result.losses, result.scores
        return ScheduleResult(state.params, state.buffers, state.optimizer, losses, scores)

    def _synchronous(self, job: Job, state: ModelState, schedule: SampleSchedule) -> ScheduleResult:
        params = {name: value.clone() for name, value in state.params.items()}
        buffers = {name: value.clone() for name, value in state.buffers.items()}
        optimizer = copied(state.optimizer)
        lr = torch.tensor(state.lr, dtype=job.x.dtype, device=job.x.device)
        losses, scores = np.zeros(len(schedule.rows)), np.zeros(len(schedule.rows))
        firsts = [0, *schedule.ends[:-1].tolist()]
        for number, (first, last) in enumerate(zip(firsts, schedule.ends.tolist(), strict=True)):
            clients = schedule.clients[first:last]
            rows = self.positions[schedule.rows[first:last]]
            parties = np.unique(clients).tolist()
            hub = Hub(job.model, {**params, **buffers}, len(parties), number)
            opening = _tensor(hub.opening())
            requests = {party: Step(opening, rows[clients == party], []) for party in parties}
            answers = self._all(requests)
            while any(isinstance(answer, Waiting) for answer in answers.values()):
                reply = _tensor(hub.add([_bytes(answers[party].sent) for party in parties]))
                requests = {party: replace(one, answers=[*one.answers, reply]) for party, one in requests.items()}
                answers = self._all(requests)
            step = hub.finish([_bytes(answers[party]) for party in parties])
            buffers = step.buffers
            job.optimizer.step_(params, step.grads, optimizer, lr)
            for party, (loss, score) in zip(parties, step.scores, strict=True):
                at = first + np.flatnonzero(clients == party)
                losses[at], scores[at] = loss / len(at), score / len(at)
        return ScheduleResult(params, buffers, optimizer, losses, scores)

    def _all(self, requests: Mapping[int, Step]) -> dict[int, Any]:
        """Return the answers of all parties of a step, without which there is no sum."""

        def check(client: int, answer: Any) -> Any:
            message = _waits(answer).sent if isinstance(answer, Waiting) else answer
            if message.dtype != torch.uint8 or message.dim() != 1:
                raise FedskewError("its part of the step is no message")
            return answer

        answers = self.nodes.ask(requests, (Tensor, Waiting), check)
        if missing := requests.keys() - answers.keys():
            raise FedskewError(f"clients {sorted(missing)} do not answer in a step over all its clients: start again")
        if len({type(answer) for answer in answers.values()}) > 1:
            raise FedskewError("some clients have ended a step in which others wait for them: start again")
        return answers


def _like(like: Any, where: str) -> Check:
    """Return a check for answers that are all like this one."""

    def check(client: int, answer: Any) -> Any:
        fits(answer, like, where)
        return answer

    return check


def _waits(answer: Waiting) -> Waiting:
    """Return the answer of a client that waits for an exchange of tensors."""
    if not isinstance(answer.sent, Tensor):
        raise FedskewError(f"it exchanges a {type(answer.sent).__name__}, expected a tensor")
    return answer


def _alike(answers: dict[int, Any]) -> dict[int, Any]:
    """Return the answers without those who wait with statistics of another shape or dtype than most others."""
    kinds = {client: (tuple(a.sent.shape), a.sent.dtype) for client, a in answers.items() if isinstance(a, Waiting)}
    if len(set(kinds.values())) < 2:
        return answers
    usual, _ = Counter(kinds.values()).most_common(1)[0]
    odd = [client for client, kind in kinds.items() if kind != usual]
    warnings.warn(f"clients {odd} are left out: they exchange statistics of another shape than others", stacklevel=2)
    return {client: answer for client, answer in answers.items() if client not in odd}


_KEPT: Tree = {"delta": {}, BUFFERS: {}}  # what a client sends of a model that it trains for itself


class RemoteSilos:
    """The tables of all clients on their own machines, which have described themselves."""

    def __init__(self, nodes: Nodes, described: Sequence[fitting.Description]) -> None:
        self._nodes, self._described = nodes, described

    def describe(self, request: fitting.Request) -> Sequence[fitting.Description]:
        """Say what the tables have."""
        return self._described

    def count(self, intervals: Mapping[str, Sequence[fitting.Interval]]) -> list[dict[str, list[Ints]]]:
        """Count the numbers of some columns in the bins of intervals."""
        return self._ask("count", {title: list(each) for title, each in intervals.items()}, dict)

    def add_up(self, fills: Mapping[str, float]) -> list[dict[str, fitting.Moments]]:
        """Return the moments of some columns."""
        return self._ask("add_up", dict(fills), dict)

    def _ask(self, what: Literal["count", "add_up"], content: Any, kind: type[Any]) -> list[Any]:
        return self._nodes.everybody(dict.fromkeys(range(len(self._described)), Question(what, content)), kind)


class RemoteEvaluator:
    """Evaluates models by asking nodes for sums over their rows, and for the scores of their own models."""

    def __init__(self, server: "RemoteServer", settings: Settings) -> None:
        self.server, self.task = server, server.job.task
        first = () if settings.metric is None else (settings.metric,)
        known = additive_metrics(self.task)
        wanted = dict.fromkeys((*first, *round_metrics(self.task), *settings.metrics))
        if missing := [name for name in wanted if name not in known]:
            raise FedskewError(
                f"metric {missing[0]} needs the predictions for all rows in one place, which no server has here: "
                f"choose among {', '.join(known)}"
            )
        self.metrics = tuple(wanted)
        self.names = ("loss", *self.metrics)
        fed = server.fed
        self._parts = [
            name
            for name, rows in (("validation", fed.validation), ("test", fed.test))
            if rows is not None and len(rows)
        ]
        job, classes = server.job, len(fed.data.classes)
        self._none = sums_over(self.task, job.x.new_zeros(0, self.task.width(classes)), job.y[:0], classes)
        self._last: dict[int, Scored] = {}
        self._state: Tensors | None = None  # of which the last answers are

    holds_out = True

    def parts(self, common: bool, personal: bool, trained: bool) -> list[str]:
        """Return the parts of the data with scores."""
        tested = ["own_test"] if personal and "test" in self._parts and self.server.everything else []
        return [*(["train", *self._parts] if common else []), *tested]

    def evaluate(
        self, state: Tensors | None, own: OwnModel | None, clients: Ints, split: Partition
    ) -> tuple[dict[str, Score], dict[str, Floats]]:
        """Return the scores of the global model on each part, and those of the invited clients' models."""
        self._ask(state, own is not None)
        names = own_columns(own is not None, state is not None, self.task.row_metric)
        found = {name: np.array([self._value(c, name) for c in clients.tolist()]) for name in names}
        return self._scores(state), found

    def _value(self, client: int, name: str) -> float:
        scored = self._last.get(client)
        return np.nan if scored is None else scored.own[name]

    def mean_on_test(self, own: OwnModel, clients: Ints) -> Score | None:
        """Return the mean score of clients' models on the test rows, where nodes have those of all."""
        tested = [s.own_test for c in clients.tolist() if (s := self._last.get(c)) and s.own_test is not None]
        return {name: float(np.mean([one[name] for one in tested])) for name in self.names} if tested else None

    def scores(self, state: Tensors) -> dict[str, Score]:
        """Return the scores of the global model on each part of the data."""
        self._need(state)
        return self._scores(state)

    def all_scores(self, state: Tensors) -> dict[str, Score]:
        """Return all metrics of the global model that follow from sums, on validation and test rows."""
        self._need(state)
        return {part: self._score(part) for part in self._parts}

    def confusion(self, state: Tensors) -> Ints | None:
        """Return the confusion matrix of the global model on the test rows."""
        if "test" not in self._parts or self.task.target != "class":
            return None
        self._need(state)
        matrix: Ints = self._sums("test")["confusion"].astype(np.int64)
        return matrix

    def final(self, state: Tensors | None, own: OwnModel | None) -> FinalClients:
        """Return one row for each client that answers, and the confusion matrix of clients' models."""
        self._ask(state, own is not None, final=True)
        table = [{**(one.row or {}), "client": client} for client, one in self._last.items()]
        matrices = [one.confusion for one in self._last.values() if one.confusion is not None]
        return FinalClients(table, sum(matrices[1:], matrices[0]) if matrices else None)

    def _need(self, state: Tensors) -> None:
        """Ask nodes for the sums of a model, unless the last answers are those: the very same tensors."""
        known = self._state
        if known is None or known.keys() != state.keys() or any(known[name] is not state[name] for name in known):
            self._ask(state, False)

    def _ask(self, state: Tensors | None, own: bool, final: bool = False) -> None:
        server = self.server
        requests = {
            client: Evaluate(state, [versions.of(client) for versions in server.remote.versions], final, own)
            for client in range(server.fed.clients)
        }
        names = () if final else own_columns(own, state is not None, self.task.row_metric)
        parts = {"train", *self._parts}

        def check(client: int, answer: Scored) -> Scored:
            told = answer.parts if isinstance(answer.parts, dict) else {"": answer.parts}
            here = parts & told.keys() if state is not None else set()  # one without test rows has no such sums
            fits(told, dict.fromkeys(here, self._none), "sums")
            fits(answer.own, dict.fromkeys(names, 0.0), "scores")
            if answer.own_test is not None:
                fits(answer.own_test, dict.fromkeys(self.names, 0.0), "scores on test rows")
            row = answer.row if isinstance(answer.row, dict) else {"": answer.row or 0}
            if not all(type(value) in (int, float) for value in row.values()):
                raise FedskewError("its last row has something else than numbers")
            if answer.confusion is not None:
                fits(answer.confusion, self._none.get("confusion", np.zeros(0)).astype(np.int64), "confusion matrix")
            return answer

        most = (2 + len(self._parts)) * most_bytes(self._none)  # training rows, other parts, clients' own models
        self._last, self._state = server.remote.nodes.ask(requests, Scored, check, most), state

    def _scores(self, state: Tensors | None) -> dict[str, Score]:
        if state is None:
            return {}
        return {part: {n: self._score(part)[n] for n in self.names} for part in ("train", *self._parts)}

    def _score(self, part: str) -> Score:
        return metrics_from(self.task, self._sums(part))

    def _sums(self, part: str) -> Sums:
        """Return the sums over the rows of all clients that have such rows."""
        return added([self._none, *(one.parts[part] for one in self._last.values() if part in one.parts)])


class RemoteServer(Server):
    """A server whose clients are nodes: it sees sums, updates and numbers of rows.

    The transport of the nodes may be set later, before the first round; ``everything`` says that nodes have the test
    rows of all clients, as in a simulation.
    """

    def __init__(
        self,
        fed: Federation,
        model: nn.Module,
        algorithm: Algorithm,
        settings: Settings,
        task: Task | None = None,
        nodes: Nodes | None = None,
        everything: bool = True,
    ) -> None:
        refuse(algorithm, settings)
        self.everything = everything
        self.remote = RemoteEngine(nodes or Nodes(None), [Versions(fed.clients) for _ in range(2)])
        super().__init__(fed, model, algorithm, settings, self.remote, task)
        self.remote.mirrored = tuple(f"state.{name}" for name in sorted(self.mirrored))
        self.remote.job, self.remote.positions = self.job, positions_of(fed)
        self.remote.nodes.names = fed.client_names if fed.named else ()
        if isinstance(self.rounds, ParallelRounds):
            self.remote.sent, self.remote.reported = self.rounds.sample_payload(), tuple(self.rounds.reported())

    def _store(self, fresh: Tree) -> ClientStore:
        return ClientStore({})  # with the clients

    def _evaluator(self) -> Evaluator:
        return RemoteEvaluator(self, self.settings)  # type: ignore[return-value]

    def keep(self, arrived: Arrived, counted: Ints) -> None:
        """Note whose new state counts."""
        versions, now = self.remote.versions[0], self.round + 1
        versions.rounds[0, arrived.valid] = now
        versions.rounds[1, np.intersect1d(arrived.valid, counted)] = now

    def train_personal(self, start: Start, plan: Plan) -> None:
        """Let clients train the models of their own, if the method has any, and note who did."""
        if self.personal is None:
            return
        _, job = jobs_of(self.job)
        for updates in self.engine.train(job, replace(start, server={"weights": self.shared()}), plan):
            self.remote.versions[1].rounds[:, updates.report.clients] = self.round + 1

    def client_model(self, client: int) -> Tensors:
        """Refuse to return what is not here."""
        raise models_away(self.fed.client_names[client])

    def checkpoint_without_stores(self) -> Tensors:
        """Return the checkpoint, in which the versions stand for what clients keep."""
        kept = {f"{VERSIONS}/{i}": versions.state() for i, versions in enumerate(self.remote.versions)}
        store, names = (PERSONAL, self.state().keys()) if self.personal is not None else (OWN, self.job.local_names)
        away = {f"{AWAY}/{store}/{name}": torch.zeros(0) for name in sorted(names)}
        return {**super().checkpoint_without_stores(), **kept, **away}

    def restore(self, flat: Tensors) -> None:
        """Restore what ``checkpoint`` returned; clients go back to the state that they had then."""
        super().restore(flat)
        for i, versions in enumerate(self.remote.versions):
            versions.restore(flat[f"{VERSIONS}/{i}"])

    def _statistics(self) -> Tree:
        requests = {
            client: Statistics(self.state(), self.remote.versions[0].of(client)) for client in range(self.fed.clients)
        }
        like = statistics_of(self.job, [(self.state(), self.fed.partition.rows[:1])])

        def check(client: int, answer: Tree) -> Tree:
            fits(answer, like, "statistics")
            finite(answer, "statistics")
            return answer

        total: Tree = {}
        for answer in self.remote.nodes.ask(requests, dict, check, most_bytes(like)).values():
            for part, tensors in answer.items():
                sums = total.setdefault(part, {})
                for name, value in tensors.items():
                    sums[name] = sums[name] + value if name in sums else value
        return total


def refuse(algorithm: Algorithm, settings: Settings) -> None:
    """Refuse what cannot be done where rows stay with their clients."""
    reasons = {
        f"{algorithm.label()} trains on all rows in one place": "pooled_rows" in algorithm.requires,
        "hostile clients are simulated": algorithm.poison is not None,
        "secure=true simulates the clients' side of the label protocol": settings.secure,
        "test_trained=true evaluates clients' models on the server": settings.test_trained,
        "thresholds need the predictions for all rows in one place": settings.thresholds is not None,
        "workers are processes of a simulation": settings.workers is not None,
    }
    for reason, applies in reasons.items():
        if applies:
            raise FedskewError(f"{reason}, and here rows and models stay with their clients: leave it out")


def _tensor(message: bytes) -> Tensor:
    return torch.frombuffer(bytearray(message), dtype=torch.uint8)


def _bytes(message: Tensor) -> bytes:
    return message.numpy().tobytes()
