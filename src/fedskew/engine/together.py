"""Training the clients of several runs in one stack: runs of one method on the same data, with other seeds and numbers.

A client's numbers do not depend on the others in its stack, except in their last bits: batches are padded to the
widest one of a step, and sums over padded rows may be added in another order.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from fedskew.algorithms.contract import Algorithm, overridden
from fedskew.core.registry import options_of
from fedskew.core.streams import Ints
from fedskew.core.trees import Tensors, Tree, rows_of
from fedskew.data.partition import Partition
from fedskew.engine.job import Job, Start, Updates
from fedskew.engine.joint_plan import OPTION, JointPlan
from fedskew.engine.plan import Plan
from fedskew.engine.stacked import Stacked


def numeric_options(algorithm: Algorithm) -> dict[str, float]:
    """Return the options in which runs of one stack may differ: numbers that only hooks of one client read."""
    if overridden(algorithm, "trainable"):  # it is asked for all clients at once
        return {}
    known = options_of(type(algorithm))
    result: dict[str, float] = {}
    for name, value in algorithm.options().items():
        if known[name].type is float:
            result[name] = value
    return result


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
        jobs: those of the runs by number, with the same data, model, kind of method and optimiser
        engine: what trains a stack
    """

    jobs: Mapping[int, Job]
    engine: Stacked
    _ways: list[Callable[[Asked], object]] = field(init=False)

    def __post_init__(self) -> None:
        jobs = self.jobs.items()
        first = next(iter(self.jobs.values()))
        options = {run: numeric_options(job.algorithm) for run, job in jobs}
        varied = []
        for name in numeric_options(first.algorithm):
            if len({one[name] for one in options.values()}) > 1:
                varied.append(name)
        self._options = {run: {name: one[name] for name in varied} for run, one in options.items()}
        partitions = list({id(job.partition): job.partition for _, job in jobs}.values())
        begins = np.cumsum([0, *(one.clients for one in partitions)]).tolist()
        places = {}
        for one, begin in zip(partitions, begins, strict=False):
            places[id(one)] = begin
        self._begins = {run: places[id(job.partition)] for run, job in jobs}
        self._job = replace(first, partition=_joined(partitions))
        # Runs in one stack: all; else those with the same options, which are then the same for all clients of a stack.
        self._ways = [lambda asked: None]
        if varied:
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
                found: dict[int, Updates] = {}
                for some in self._stacks(fit):
                    found |= self._train(some)
                return found
            except (
                Exception
            ):  # of a hook, for example; if it is an error, runs on their own have it too
                del self._ways[0]
        return {}

    def _stacks(self, asked: Sequence[Asked]) -> Iterator[list[Asked]]:
        """Yield the runs of each stack."""
        key = self._ways[0]
        room = min((self.engine.room(self.jobs[one.run], one.plan) for one in asked), default=1)
        for kind in dict.fromkeys(map(key, asked)):
            some: list[Asked] = []
            clients = 0
            for one in (one for one in asked if key(one) == kind):
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
        plans = [one.plan for one in asked]
        starts = [one.start for one in asked]
        begins = [self._begins[one.run] for one in asked]
        lrs = [one.start.lr for one in asked]
        options = [self._options[one.run] for one in asked]
        same = all(one == options[0] for one in options)
        whole = JointPlan.of(plans, begins, lrs, [{}] * len(asked) if same else options)
        by_steps = np.argsort(-whole.steps, kind="stable")
        plan = whole.only(by_steps)
        job = replace(self._job, algorithm=self.jobs[asked[0].run].algorithm)
        updates = self.engine.train_joint(job, _joint_start(starts, plan.member, by_steps), plan)
        if updates is None:
            return {}
        result: dict[int, Updates] = {}
        for i, one in enumerate(asked):
            result[one.run] = _of_run(updates, np.flatnonzero(plan.member == i))
        return result


def _joined(partitions: Sequence[Partition]) -> Partition:
    """Return a partition with the clients of all partitions of the same rows, one partition after the other."""
    if len(partitions) == 1:
        return partitions[0]
    rows = np.concatenate([one.rows for one in partitions])
    return Partition(
        rows, np.concatenate([[0], np.cumsum(np.concatenate([one.sizes for one in partitions]))])
    )


def _joint_start(starts: Sequence[Start], member: Ints, by_steps: Ints) -> Start:
    """Return where every client starts: weights, buffers and broadcast of its run, and what it has kept itself."""
    run = torch.from_numpy(member)
    order = torch.from_numpy(by_steps)

    def of_runs(each: Sequence[Tensors]) -> Tensors:
        together = {}
        for name in each[0]:
            together[name] = torch.stack([one[name] for one in each])
        result: Tensors = {}
        for name, value in together.items():
            result[name] = value.index_select(0, run.to(value.device))
        return result

    first = starts[0]
    server: Tree = {}
    for part in first.server:
        server[part] = of_runs([start.server[part] for start in starts])
    kept: Tree = {}
    for part, tensors in first.kept.items():
        kept[part] = {
            name: torch.cat([start.kept[part][name] for start in starts]) for name in tensors
        }
    params = of_runs([start.params for start in starts])
    buffers = of_runs([start.buffers for start in starts])
    return Start(params, buffers, server, rows_of(kept, order), first.lr)


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
