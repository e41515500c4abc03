"""Training the clients of several runs in one stack: runs of one method, with other partitions, seeds and numbers.

A client's numbers do not depend on the others in its stack, except in their last bits: batches are padded to the
widest one of a step, and sums over padded rows may be added in another order.
"""

import hashlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fedskew.algorithms.contract import Algorithm, overridden
from fedskew.core.registry import options_of
from fedskew.core.streams import Ints
from fedskew.core.trees import Tensors, Tree, rows_of
from fedskew.data.partition import Partition
from fedskew.engine.input_rows import Inputs, joined
from fedskew.engine.job import Job, Start, Updates
from fedskew.engine.joint_plan import OPTION, JointPlan
from fedskew.engine.plan import Plan
from fedskew.engine.stacked import Stacked
from fedskew.models.parameters import frozen


def numeric_options(algorithm: Algorithm) -> dict[str, float]:
    """Return the options in which runs of one stack may differ: numbers that only hooks of one client read."""
    if overridden(algorithm, "trainable"):  # it is asked for all clients at once
        return {}
    known = options_of(type(algorithm))
    numbers: dict[str, float] = {}
    for name, value in algorithm.options().items():
        if known[name].type is float:
            numbers[name] = value
    return numbers


@dataclass(frozen=True)
class Asked:
    """What one of several runs asks for in its next round: the training of a plan's clients."""

    run: int
    start: Start
    plan: Plan


@dataclass
class Together:
    """Trains the clients of several runs together, as many runs at a time as fit in memory.

    Args:
        jobs: those of the runs by number, with rows of the same shape, and the same model, kind of method and optimiser
        engine: what trains a stack
        tables: of every run, what names the rows that it trains on: runs on the same rows share them
    """

    jobs: Mapping[int, Job]
    engine: Stacked
    tables: Mapping[int, Hashable]
    _ways: list[Callable[[Asked], object]] = field(init=False)
    _fixed: dict[int, Hashable] = field(init=False)

    def __post_init__(self) -> None:
        self._fixed = {}
        for run, job in self.jobs.items():
            self._fixed[run] = _fixed(job)
        self._options = _varied_options(self.jobs)
        self._job, self._begins = _joint_job(self.jobs, self.tables)
        # Runs in one stack: all; else those with the same options, which are then the same for all clients of a stack.
        self._ways = [lambda asked: None]
        if any(self._options.values()):
            self._ways.append(lambda asked: tuple(self._options[asked.run].values()))

    def train(self, asked: Sequence[Asked]) -> dict[int, Updates]:
        """Return what the clients of each run have learnt; runs that are not in it are to be trained on their own.

        These are runs whose clients would not be stacked either, or with layers that draw random numbers, and all
        where hooks do not run with tensors as options, on which they branch, for example.
        """
        fit = []
        for one in asked:
            if len(one.plan.clients) and self.engine.in_one_stack(self.jobs[one.run], one.plan):
                fit.append(one)
        while self._ways:
            try:
                updates: dict[int, Updates] = {}
                for some in self._stacks(fit):
                    updates |= self._train(some)
                return updates
            except Exception:
                # A hook's, for example; if it is an error, runs on their own have it too.
                del self._ways[0]
        return {}

    def _stacks(self, asked: Sequence[Asked]) -> Iterator[list[Asked]]:
        """Yield the runs of each stack."""
        key = self._ways[0]
        rooms = [self.engine.room(self.jobs[one.run], one.plan) for one in asked]
        room = min(rooms, default=1)
        kinds: dict[object, list[Asked]] = {}
        for one in asked:
            kinds.setdefault((key(one), self._fixed[one.run]), []).append(one)
        for alike in kinds.values():
            some: list[Asked] = []
            clients = 0
            for one in alike:
                clients += len(one.plan.clients)
                if some and clients > room:
                    yield some
                    some = []
                    clients = len(one.plan.clients)
                some.append(one)
            yield some

    def _train(self, asked: Sequence[Asked]) -> dict[int, Updates]:
        """Train the clients of these runs in one stack."""
        if len(asked) < 2:
            return {}
        begins = [self._begins[one.run] for one in asked]
        starts = [one.start for one in asked]
        lrs = [start.lr for start in starts]
        options = [self._options[one.run] for one in asked]
        if all(one == options[0] for one in options):
            options = [{}] * len(asked)  # the method's own are right for every client
        whole = JointPlan.of([one.plan for one in asked], begins, lrs, options)
        by_steps = np.argsort(-whole.steps, kind="stable")
        plan = whole.only(by_steps)
        first = self.jobs[asked[0].run]
        job = replace(self._job, algorithm=first.algorithm)
        if self._fixed[asked[0].run] is not None:
            job = replace(job, model=first.model)
        updates = self.engine.train_joint(job, _joint_start(starts, plan.member, by_steps), plan)
        if updates is None:
            return {}
        of_runs: dict[int, Updates] = {}
        for i, one in enumerate(asked):
            of_runs[one.run] = _of_run(updates, np.flatnonzero(plan.member == i))
        return of_runs


def _fixed(job: Job) -> Hashable:
    """Return what all clients of a stack share of a model: frozen numbers and adapters; None where there are none.

    The frozen weights of runs with other seeds may be others.
    """
    tensors = frozen(job.model)
    if not tensors:
        return None
    digest = hashlib.sha256()
    for name, value in tensors.items():
        digest.update(name.encode())
        digest.update(
            value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        )
    return digest.hexdigest(), job.algorithm.adapters


def _varied_options(jobs: Mapping[int, Job]) -> dict[int, dict[str, float]]:
    """Return the numeric options in which the runs differ, with the values of each run."""
    options = {run: numeric_options(job.algorithm) for run, job in jobs.items()}
    varied: dict[int, dict[str, float]] = {run: {} for run in options}
    for name in next(iter(options.values())):
        values = {one[name] for one in options.values()}
        if len(values) > 1:
            for run, one in options.items():
                varied[run][name] = one[name]
    return varied


def _joint_job(
    jobs: Mapping[int, Job], tables: Mapping[int, Hashable]
) -> tuple[Job, dict[int, int]]:
    """Return a job with the rows and the clients of all runs, and where the clients of each run begin in it.

    Runs on the same rows share them, and those on the same partition share its clients.
    """
    x: list[Inputs] = []
    y: list[Tensor] = []
    rows = 0
    first_rows: dict[Hashable, int] = {}
    partitions: list[Partition] = []
    clients = 0
    first_clients: dict[tuple[Hashable, int], int] = {}
    begins = {}
    for run, job in jobs.items():
        table = tables[run]
        if table not in first_rows:
            first_rows[table] = rows
            x.append(job.x)
            y.append(job.y)
            rows += len(job.x)
        known = table, id(job.partition)
        if known not in first_clients:
            first_clients[known] = clients
            partitions.append(_moved(job.partition, first_rows[table]))
            clients += job.partition.clients
        begins[run] = first_clients[known]
    first = next(iter(jobs.values()))
    joint = replace(first, partition=_joined(partitions))
    if len(x) > 1:
        joint = replace(joint, x=joined(x), y=torch.cat(y))
    return joint, begins


def _moved(partition: Partition, first: int) -> Partition:
    """Return a partition of rows that begin at ``first`` in a larger table."""
    if not first:
        return partition
    return Partition(partition.rows + first, partition.offsets)


def _joined(partitions: Sequence[Partition]) -> Partition:
    """Return a partition with the clients of all partitions of the same rows, one partition after the other."""
    if len(partitions) == 1:
        return partitions[0]
    rows = np.concatenate([one.rows for one in partitions])
    sizes = np.concatenate([one.sizes for one in partitions])
    return Partition(rows, np.concatenate([[0], np.cumsum(sizes)]))


def _joint_start(starts: Sequence[Start], member: Ints, by_steps: Ints) -> Start:
    """Return where every client starts: weights, buffers and broadcast of its run, and what it has kept itself."""
    run = torch.from_numpy(member)
    first = starts[0]
    server: Tree = {}
    for part in first.server:
        server[part] = _of_clients([start.server[part] for start in starts], run)
    kept: Tree = {}
    for part, tensors in first.kept.items():
        kept[part] = {}
        for name in tensors:
            kept[part][name] = torch.cat([start.kept[part][name] for start in starts])
    params = _of_clients([start.params for start in starts], run)
    buffers = _of_clients([start.buffers for start in starts], run)
    return Start(params, buffers, server, rows_of(kept, torch.from_numpy(by_steps)), first.lr)


def _of_clients(of_runs: Sequence[Tensors], run: Tensor) -> Tensors:
    """Return for every client the tensors of its run."""
    of_clients: Tensors = {}
    for name in of_runs[0]:
        values = torch.stack([one[name] for one in of_runs])
        of_clients[name] = values.index_select(0, run.to(values.device))
    return of_clients


def _of_run(updates: Updates, index: Ints) -> Updates:
    """Return the clients at ``index``, those of one run."""
    here = torch.from_numpy(index)
    report = updates.report
    columns = {}
    for name in ("clients", "sizes", "steps", "loss", "accuracy"):
        columns[name] = getattr(report, name)[index]
    numbers = {}
    for name, values in report.numbers.items():
        if not name.startswith(OPTION):
            numbers[name] = values[index]
    return Updates(
        replace(report, **columns, numbers=numbers),
        rows_of(updates.payload, here),
        rows_of({"": updates.buffers}, here)[""],
        rows_of(updates.kept, here),
        rows_of({"": updates.trained}, here)[""],
    )
