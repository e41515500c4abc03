"""Clients of a round in shards: each is trained and added up apart, in this process or in another one.

The number of shards is fixed, and their sums are added in the order of the shards: the number of processes does not
change a bit of the result.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from fedskew.algorithms.contract import Report, Weights
from fedskew.algorithms.selection import Probe
from fedskew.core.config import SHARDS
from fedskew.core.streams import Floats, Ints
from fedskew.core.trees import Tree, rows_of
from fedskew.engine.device import computing
from fedskew.engine.job import Engine, Job, ModelState, ScheduleResult, Start, Updates
from fedskew.engine.plan import Plan
from fedskew.sample_schedules.sample_schedule import SampleSchedule
from fedskew.topology.collector import Added, Arrived, UpdateCollector
from fedskew.transport.group import Group
from fedskew.transport.messages import packed, sendable, unpacked


def deal(costs: Sequence[int], hands: int) -> list[Ints]:
    """Return which costs each of so many hands gets: the largest first, always to the hand with the least so far.

    >>> [hand.tolist() for hand in deal([5, 1, 3, 3], 2)]
    [[0, 1], [2, 3]]
    """
    least = [(0, hand) for hand in range(hands)]
    owner = np.zeros(len(costs), dtype=np.int64)
    for i in np.argsort(-np.asarray(costs), kind="stable").tolist():
        load, hand = least[0]
        owner[i] = hand
        heapq.heapreplace(least, (load + int(costs[i]), hand))
    return [np.flatnonzero(owner == hand) for hand in range(hands)]


@dataclass(frozen=True)
class Shard:
    """Some clients of a round: their part of the plan, and what they kept."""

    plan: Plan
    kept: Tree

    @property
    def cost(self) -> int:
        """Return the row visits of its clients."""
        return int((self.plan.sizes * self.plan.epochs).sum())


@dataclass(frozen=True)
class Work:
    """What a process is to do with its shards.

    Args:
        what: train clients and send their updates, add these up first, or measure
        job: number of the job: 0 for that of the run, 1 for that of clients' own models, or of a first round
        start: the state from which all clients start, without what they kept
        shards: the shards of this process
        probe: what is measured
        models: whether the models of clients after training are wanted as well
    """

    what: Literal["train", "add", "probe"]
    job: int
    start: Start
    shards: list[Shard]
    probe: tuple[Probe, ...] = ()
    models: bool = False


@dataclass(frozen=True)
class AddedShard:
    """The sums over the clients of a shard, what arrived from each, and with ``models`` their whole updates."""

    added: Added
    arrived: list[Arrived]
    updates: list[Updates]


sendable(Start, Plan, Shard, Work, Report, Updates, Arrived, Added, AddedShard)


@dataclass(frozen=True)
class ShardTrainer:
    """Trains shards in one process; every process of a run has one, and theirs are alike."""

    engine: Engine
    jobs: Sequence[Job]
    weights: Weights

    def perform(self, work: Work) -> list[Any]:
        """Return the result of each shard; one thread, so that bits do not depend on how cores are shared out."""
        with computing(1):
            return [self._result(work, shard) for shard in work.shards]

    def _result(self, work: Work, shard: Shard) -> Any:
        job = self.jobs[work.job]
        start = replace(work.start, kept=shard.kept)
        if work.what == "probe":
            return self.engine.probe(job, start, shard.plan, work.probe)
        if work.what == "train":
            trained = self.engine.train(job, start, shard.plan)
            return [replace(updates, trained={}) for updates in trained]
        collector = UpdateCollector(job.algorithm, self.weights)
        seen = list[Updates]()

        def keep(updates: Updates) -> None:  # the engine may use the memory of its models again
            trained = {name: value.clone() for name, value in updates.trained.items()}
            seen.append(replace(updates, trained=trained))

        observe = None
        if work.models:
            observe = keep
        arrived = train_and_add(self.engine, job, start, shard.plan, collector, observe)
        return AddedShard(collector.added, arrived, seen)


def in_this_process(engine: Engine) -> Engine:
    """Return the engine itself, or the one inside it that divides no clients."""
    if isinstance(engine, Sharded):
        return engine.trainer.engine
    return engine


class Sharded:
    """An engine that deals the clients of a round to shards, and these to the processes of a group.

    ``models`` says whether anybody wants to see the models of clients after training.
    """

    def __init__(self, trainer: ShardTrainer, models: bool) -> None:
        self.trainer, self.models = trainer, models
        self.group: Group | None = None  # without one, this process trains all shards

    def train(self, job: Job, start: Start, plan: Plan) -> Iterator[Updates]:
        """Yield all updates, shard by shard, without the models of clients."""
        for _, updates in self._perform("train", job, start, plan):
            yield from updates

    def train_and_add(self, job: Job, start: Start, plan: Plan) -> Iterator[AddedShard]:
        """Yield the sums of each shard: processes exchange one model a shard, and what its clients keep."""
        for _, shard in self._perform("add", job, start, plan):
            yield shard

    def probe(
        self, job: Job, start: Start, plan: Plan, what: tuple[Probe, ...]
    ) -> dict[str, Floats]:
        """Return what each client measures."""
        probed: dict[str, Floats] = {name: np.zeros(len(plan.clients)) for name in what}
        for members, measured in self._perform("probe", job, start, plan, what):
            for name, values in measured.items():
                probed[name][members] = values
        return probed

    def run_schedule(
        self, job: Job, state: ModelState, schedule: SampleSchedule, reset_optimizer: bool
    ) -> ScheduleResult:
        """Train one model on a sample schedule, which cannot be divided."""
        return self.trainer.engine.run_schedule(job, state, schedule, reset_optimizer)

    def _perform(
        self,
        what: Literal["train", "add", "probe"],
        job: Job,
        start: Start,
        plan: Plan,
        probe: tuple[Probe, ...] = (),
    ) -> Iterator[tuple[Ints, Any]]:
        """Yield the clients of each shard, as places in the plan, and its result."""
        members_of_shards = []
        shards = []
        for members in deal((plan.sizes * plan.epochs).tolist(), SHARDS):
            if len(members):
                members_of_shards.append(members)
                kept = rows_of(start.kept, torch.from_numpy(members))
                shards.append(Shard(plan.only(members), kept))
        job_number = 0
        if job is not self.trainer.jobs[0]:
            job_number = 1
        common = Work(what, job_number, replace(start, kept={}), [], probe, self.models)
        processes = 1
        if self.group:
            processes = self.group.size
        hands = deal([shard.cost for shard in shards], processes)
        works = []
        for hand in hands:
            works.append(replace(common, shards=[shards[i] for i in hand]))
        answers = self._ask(works)
        results = {}
        for hand, answer in zip(hands, answers, strict=True):
            for i, result in zip(hand.tolist(), answer, strict=True):
                results[i] = result
        for i, members in enumerate(members_of_shards):
            yield members, results[i]

    def _ask(self, works: list[Work]) -> list[list[Any]]:
        """Return the results of all processes; the first is this one."""

        def mine() -> list[Any]:
            results: list[Any] = _by_message(self.trainer.perform(_by_message(works[0])))
            return results

        if self.group is None:
            return [mine()]
        own_answer, answers = self.group.ask(works[1:], mine)
        return [own_answer, *answers]


def _by_message(thing: Any) -> Any:
    """Return an object as another process would receive it, so that memory has the same layout everywhere."""
    return unpacked(packed(thing))


def train_and_add(
    engine: Engine,
    job: Job,
    start: Start,
    plan: Plan,
    collector: UpdateCollector,
    observe: Callable[[Updates], None] | None,
) -> list[Arrived]:
    """Train the clients of a plan, add up their updates, and return what arrived; ``observe`` sees the updates."""
    arrived: list[Arrived] = []
    if isinstance(engine, Sharded):
        for shard in engine.train_and_add(job, start, plan):
            collector.merge(shard.added)
            arrived += shard.arrived
            if observe:
                for updates in shard.updates:
                    observe(updates)
        return arrived
    for updates in engine.train(job, start, plan):
        arrived.append(collector.add(updates))
        if observe:
            observe(updates)
    return arrived
