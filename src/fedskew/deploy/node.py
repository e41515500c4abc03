"""A node: one client's rows and what it keeps, and the work that a server asks of it."""

import copy
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from fedskew.algorithms.contract import Algorithm
from fedskew.batchnorm.exact import Party
from fedskew.core.config import Settings
from fedskew.core.errors import FedskewError
from fedskew.core.streams import Ints
from fedskew.core.trees import Tensors, Tree, flat_names, from_flat, one_client
from fedskew.core.writing import write_atomically
from fedskew.data.dataset import Rows
from fedskew.data.federation import Federation
from fedskew.data.partition import Partition
from fedskew.deploy.requests import (
    FRESH,
    CountRows,
    Evaluate,
    Measure,
    Refusal,
    RowCounts,
    Scored,
    Statistics,
    Step,
    Train,
    Version,
    Visit,
    Waiting,
    from_bytes,
    in_tensor,
    out_of_tensor,
    to_bytes,
)
from fedskew.engine.before_use import Adapter
from fedskew.engine.device import computing
from fedskew.engine.job import (
    ANSWER,
    CANDIDATE,
    LOCAL,
    Job,
    ScheduleResult,
    Start,
    Updates,
    fresh_client,
    make_job,
    model_in_use,
    prefixed,
)
from fedskew.engine.loop import Loop, train_client, train_meeting
from fedskew.engine.scheduled import run_schedule
from fedskew.engine.sharing import WHOLE
from fedskew.sample_schedules.sample_schedule import SampleSchedule
from fedskew.server.calibration import statistics_of
from fedskew.server.clients import jobs_of
from fedskew.server.evaluated_rows import OwnModel, Score
from fedskew.server.evaluation import Evaluator
from fedskew.server.final_evaluation import TEST_ROWS
from fedskew.server.models_in_use import chosen_candidates
from fedskew.server.score_names import CLIENT_TEST
from fedskew.tasks.additive import Sums, sums_over
from fedskew.tasks.task import Task


class _Paused(BaseException):
    """Ends a computation that needs an exchange; it begins anew when the result is there."""

    def __init__(self, sent: Any) -> None:
        super().__init__()
        self.sent = sent


class Replay:
    """Stands in for the other clients of an exchange: gives the results known so far, and pauses at the next one."""

    def __init__(self, known: list[Any]) -> None:
        self._known = iter(known)

    def __call__(self, sent: Any) -> Any:
        """Return what all clients made of what this one and the others sent."""
        try:
            return next(self._known)
        except StopIteration:
            raise _Paused(sent) from None


class Files:
    """What a client keeps, one file for each round that it took part in and each of its models."""

    def __init__(self, folder: Path, fresh: list[Tree]) -> None:
        self.folder, self.fresh = folder, fresh

    def load(self, job: int, version: Version, mirrored: tuple[str, ...]) -> Tree:
        """Return what the client kept in that version; ``mirrored`` parts are those of another round."""
        kept = self._read(job, version.round)
        if version.mirrored == version.round or not mirrored:
            return kept
        kept = dict(kept)
        for part, tensors in self._read(job, version.mirrored).items():
            if part in mirrored:
                kept[part] = tensors
        return kept

    def save(self, job: int, round: int, kept: Tree, oldest: int) -> None:
        """Write what the client keeps after a round, and remove what no server will ask for again."""
        if not kept:
            return
        path = self._path(job, round)
        self._check_numbers(job, oldest)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, save(flat_names(kept)))
        for older in self.folder.glob(f"{job}-*.safetensors"):
            if int(older.stem.split("-")[1]) < oldest:
                older.unlink(missing_ok=True)

    def _path(self, job: int, round: int) -> Path:
        self._check_numbers(job, round)
        return self.folder / f"{job}-{round}.safetensors"

    def _check_numbers(self, job: int, round: int) -> None:
        """Refuse what could name a file elsewhere: models and rounds have numbers, and these come from a server."""
        whole = type(job) is int and type(round) is int
        if not whole or not 0 <= job < len(self.fresh) or round < FRESH:
            raise FedskewError(
                f"{job!r:.80} and {round!r:.80} are not numbers of a model and a round: start a new run"
            )

    def _read(self, job: int, round: int) -> Tree:
        self._check_numbers(job, round)
        fresh = self.fresh[job]
        if round == FRESH or not fresh:
            return fresh
        path = self._path(job, round)
        if not path.exists():
            raise FedskewError(
                f"{path} is gone: this client's state of round {round} was there or belongs to another run; start anew"
            )
        return from_flat(load_file(path), fresh)


class Node:
    """One client, and the requests that it answers.

    Args:
        fed: the rows of this client as a federation of one
        job: what it trains, see ``job_of``; the same at all nodes except for the rows
        settings: the settings of the run
        folder: where the client keeps its state
        shares: rows of the test and validation parts that this node scores for the global model; all when left out
        everything: whether the test rows are those of all clients, as only a simulation has them
    """

    def __init__(
        self,
        fed: Federation,
        job: Job,
        settings: Settings,
        folder: Path,
        shares: Mapping[str, Ints] | None = None,
        everything: bool = False,
    ) -> None:
        self.fed = fed
        self.number = job.first
        self.settings = settings
        self.everything = everything
        self.classes = len(fed.data.classes)
        self.shares = dict(shares or {})
        self.jobs = jobs_of(job)
        self.files = Files(folder, [fresh_client(job) for job in self.jobs])

    def answer(self, content: bytes) -> bytes:
        """Return the answer to a request, as bytes; whatever goes wrong is an answer too."""
        try:
            with computing(self.settings.threads or 1):
                return to_bytes(self.do(from_bytes(content)))
        except FedskewError as problem:
            # The paths of this machine are nobody else's business.
            reason = str(problem).replace(f"{self.files.folder}{os.sep}", "")
            return to_bytes(Refusal(reason))

    def do(self, request: Any) -> Any:
        """Return the answer to a request."""
        try:
            match request:
                case Train():
                    return self._train(request)
                case Measure():
                    return self._measure(request)
                case Visit():
                    return self._visit(request)
                case Step():
                    return self._step(request)
                case Evaluate():
                    return self._evaluate(request)
                case Statistics():
                    return self._statistics(request)
                case CountRows():
                    return row_counts_of(self.fed, self.shares)
        except _Paused as paused:
            return Waiting(paused.sent)
        raise FedskewError(
            f"a node cannot answer a {type(request).__name__}: use the same version of fedskew"
        )

    # -- training ------------------------------------------------------------------------------------------------------

    def _train(self, request: Train) -> Updates:
        job = self.jobs[request.job]
        plan = request.plan
        self._check_rows(plan.clients, plan.sizes)
        kept = self.files.load(request.job, request.version, request.mirrored)
        # With the server's answer to this client
        kept = {**kept, **one_client(request.start.kept)}
        if request.together:
            updates = train_meeting(job, request.start, kept, plan, Replay(request.met))
        else:
            updates = train_client(copy.deepcopy(job.model).train(), job, request.start, kept, plan)
        now_kept = one_client(updates.kept)
        self.files.save(request.job, plan.round + 1, now_kept, request.version.oldest)
        return replace(updates, kept={}, trained={})

    def _measure(self, request: Measure) -> dict[str, Any]:
        kept = {}
        for part, tensors in self.files.load(0, request.version, request.mirrored).items():
            kept[part] = {name: value[None] for name, value in tensors.items()}
        start: Start = replace(request.start, kept={**kept, **request.start.kept})
        return Loop().probe(self.jobs[0], start, request.plan, request.what)  # type: ignore[arg-type]

    def _check_rows(self, clients: Ints, sizes: Ints) -> None:
        own = self.fed.partition.sizes
        if clients.tolist() != [self.number] or sizes.tolist() != own.tolist():
            raise FedskewError(
                f"this is client {self.number} with {own[0]} rows, asked as client "
                f"{clients.tolist()} with {sizes.tolist()}: its rows have changed since the run began"
            )

    def _visit(self, request: Visit) -> ScheduleResult:
        rows = self._by_label[request.rows]
        clients = np.full(len(rows), self.number)
        schedule = SampleSchedule(rows, clients, request.ends, visits=request.ends[-1:])
        return run_schedule(self.jobs[0], request.state, schedule, request.reset_optimizer)

    def _step(self, request: Step) -> Tensor:
        job = self.jobs[0]
        rows = torch.from_numpy(self._by_label[request.rows])
        replay = Replay([out_of_tensor(answer) for answer in request.answers])
        party = Party(job.model, lambda message: replay(in_tensor(message)), task=job.task)
        opening = out_of_tensor(request.opening)
        with torch.autograd.set_multithreading_enabled(False):
            return in_tensor(party.step(opening, job.x[rows], job.y[rows]))

    @cached_property
    def _by_label(self) -> Ints:
        """The client's rows in the order of their labels, by which a server numbers rows that it does not see."""
        rows = self._rows
        if self.fed.data.target != "class":
            return rows
        return rows[np.argsort(self.fed.train.y[rows], kind="stable")]

    @property
    def _rows(self) -> Ints:
        return self.fed.partition.rows

    # -- evaluation ----------------------------------------------------------------------------------------------------

    @cached_property
    def _evaluator(self) -> Evaluator:
        settings = self.settings
        job = self.jobs[0]
        return Evaluator(
            self.fed,
            copy.deepcopy(job.model),
            job,
            None,
            settings.seed,
            settings.metrics,
            settings.metric,
        )

    def _evaluate(self, request: Evaluate) -> Scored:
        evaluator = self._evaluator
        state: Tensors | None = None
        parts: dict[str, Sums] = {}
        if self.jobs[0].shared_model == WHOLE:
            state = request.state
            parts = self._sums(state)
        own = self._own_model(request)
        if request.final:
            table, confusion = evaluator.final(state, own)
            table[0].pop(TEST_ROWS, None)  # which the server knows
            return Scored(parts, {}, None, table[0], confusion)
        client = np.zeros(1, dtype=np.int64)
        rows = self.fed.held_out or self.fed.partition
        columns = evaluator.on_own_rows(state, own, client, rows)
        scores = {name: float(values[0]) for name, values in columns.items()}
        on_test = None
        if own is not None and self.everything:
            on_test = evaluator.mean_on_test(own, client)
        held_out: Score = {}
        if self.fed.held_out is not None:
            held_out = evaluator.client_scores(state, own, {CLIENT_TEST: columns})[CLIENT_TEST]
        return Scored(parts, scores, on_test, held_out=held_out)

    def _own_model(self, request: Evaluate) -> OwnModel | None:
        """Return what gives the model that the client uses; None if it is not to be scored."""
        if not request.own:
            return None
        model = self._model(request)
        job = self.jobs[0]
        adaptation = job.algorithm.adaptation
        if adaptation is not None:
            shared = {}
            for name, value in request.state.items():
                if name in job.sent:
                    shared[name] = value
            adapter = Adapter(Loop(), job, adaptation, self.settings)
            clients = np.array([self.number])
            model = adapter.adapt([model], clients, shared, request.round)[self.number]
        return lambda client: model

    def _statistics(self, request: Statistics) -> Tree:
        """Return the class statistics of the client's rows."""
        model = self._model(Evaluate(request.state, [request.version]))
        return statistics_of(self.jobs[0], [(model, self._rows)])

    def _sums(self, state: Tensors) -> dict[str, Sums]:
        """Return the sums of a model over this client's rows, by part of the data."""
        task = self.jobs[0].task
        sums: dict[str, Sums] = {}
        for part, found in self._evaluator.found(state, self.shares).items():
            sums[part] = sums_over(task, found.kept, found.losses, found.targets, self.classes)
        return sums

    def _model(self, request: Evaluate) -> Tensors:
        """Return the model that the client uses, from the global weights that the server sends."""
        last = len(self.jobs) - 1  # that of the client's own model, if the method has one
        version = request.versions[min(last, len(request.versions) - 1)]
        kept = self.files.load(last, version, ())
        kept = {**kept, **prefixed(request.answer, ANSWER)}
        shared = {**self.files.fresh[0].get(LOCAL, {}), **request.state}
        job = self.jobs[0]
        if request.candidates:
            before = {**shared, **kept.get(LOCAL, {})}
            client = np.array([self.number])
            chosen = chosen_candidates(job, lambda _: before, request.candidates, client)
            kept[CANDIDATE] = chosen[self.number]
        return model_in_use(job.algorithm, shared, kept)


def job_of(
    fed: Federation,
    number: int,
    model: nn.Module,
    algorithm: Algorithm,
    settings: Settings,
    task: Task,
) -> Job:
    """Return what a client trains, here as a federation of one; ``number`` is its place among all clients."""
    classes = len(fed.data.classes)
    return make_job(model, fed.train, fed.partition, algorithm, settings, number, task, classes)


def row_counts_of(fed: Federation, shares: Mapping[str, Ints]) -> RowCounts:
    """Return what a client, here as a federation of one, tells about its rows before the first round."""
    classes = len(fed.data.classes)
    train = _counts(fed.train.take(fed.partition.rows), classes)
    test = _counts(_share(fed.test, shares.get("test")), classes)
    validation = None
    if fed.validation is not None:
        validation = _counts(_share(fed.validation, shares.get("validation")), classes)
    held_out = None
    if fed.held_out is not None:
        held_out = _counts(fed.train.take(fed.held_out.rows), classes)
    return RowCounts(fed.client_names[0], train, test, validation, held_out)


def _share(rows: Rows, share: Ints | None) -> Rows:
    if share is None:
        return rows
    return rows.take(share)


def _counts(rows: Rows, classes: int) -> Ints:
    """Return the number of rows of each class; of other targets, the number of rows."""
    if rows.target == "class":
        return np.bincount(rows.y, minlength=classes)
    return np.array([len(rows)])


def rows_of_client(fed: Federation, client: int) -> Federation:
    """Return one client of a federation as a federation of one, with the test rows of all."""
    trained = fed.partition.of(client)
    kept = trained
    held_out = None
    if fed.held_out is not None:
        held = fed.held_out.of(client)
        kept = np.concatenate([trained, held])
        held_out = Partition.from_lists([len(trained) + np.arange(len(held))])
    rows = fed.train.take(kept)
    validation = fed.validation
    if validation is not None:
        validation = replace(validation, group=None)
    data = replace(
        fed.data,
        train=replace(rows, group=np.zeros(len(rows), dtype=np.int64)),
        test=replace(fed.test, group=None),
        validation=validation,
        groups=(fed.client_names[client],),
        silos=(),
    )
    return Federation(data, Partition.from_lists([np.arange(len(trained))]), held_out)
