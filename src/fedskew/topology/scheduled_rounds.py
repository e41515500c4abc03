"""The common part of the sequential and the synchronous topology: one model is trained on a sample schedule."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import torch

from fedskew.algorithms.selection import ClientPool
from fedskew.algorithms.topologies import Scheduled, Synchronous
from fedskew.core.errors import DivergedError
from fedskew.core.streams import Floats, Ints, Stream
from fedskew.core.trees import Tensors, Tree, flat_names, from_flat, size_in_bytes
from fedskew.engine.job import ModelState, ScheduleResult
from fedskew.fleet.clock import Flags
from fedskew.sample_schedules.holdings import Holdings
from fedskew.sample_schedules.sample_schedule import SampleSchedule
from fedskew.topology.client_table import ClientTable, Column
from fedskew.topology.context import RoundContext
from fedskew.topology.outcome import RoundOutcome
from fedskew.topology.run_state import RunState
from fedskew.topology.schedule_cost import NO_SAMPLES, ModelBytes, ScheduleCost, per_client
from fedskew.topology.sequential import SequentialSteps
from fedskew.topology.synchronous import SynchronousSteps

FindHoldings: TypeAlias = Callable[[], Holdings]


@dataclass(frozen=True)
class Gathered:
    """The clients of a round, which of them drop out, and when on the virtual clock the round began and went on."""

    clients: Ints
    lost: Flags
    began: float
    sent: float

    @property
    def present(self) -> Ints:
        """Return the clients that do not drop out."""
        return self.clients[~self.lost]


class ScheduledRounds:
    """Rounds in which one model is trained with one optimiser on the samples of all clients.

    ``find_holdings`` returns the label holdings of all clients, which may take a protocol between them.
    """

    def __init__(self, context: RoundContext, state: RunState, find_holdings: FindHoldings) -> None:
        self.context = context
        self.state = state
        self.find_holdings = find_holdings
        self.optimizer: Tree = context.job.optimizer.init(state.params, stacked=False)

    def checkpoint(self) -> Tensors:
        """Return the optimiser's state."""
        return flat_names(self.optimizer)

    def restore(self, saved: Tensors) -> None:
        """Restore what ``checkpoint`` returned."""
        self.optimizer = from_flat(saved, self.optimizer)

    def run(self, lr: float) -> RoundOutcome:
        """Run one round and return its outcome."""
        context = self.context
        state = self.state
        topology = context.algorithm.topology(state.round)
        assert isinstance(topology, Scheduled)
        holdings = self.find_holdings()  # before the clock is read, which a protocol advances
        pool, gathered = self._gather()
        steps = _steps_of(topology)
        wanted = self._schedule(topology, holdings, pool, gathered.present)
        wanted = steps.prepare(wanted, context)
        cost = steps.cost(
            wanted, context, topology.label_access, gathered.present, self._model_bytes()
        )
        lr_scale = topology.lr_scale
        if lr_scale is None:
            lr_scale = 1 / pool.batch_size
        resets = "optimizer_state" not in context.algorithm.requires
        if resets and isinstance(topology, Synchronous):
            # At the start of the round: a visit is a single step there
            self.optimizer = context.job.optimizer.init(state.params, stacked=False)
            resets = False
        model = ModelState(state.params, state.buffers, self.optimizer, lr * lr_scale, state.round)
        result = context.engine.run_schedule(
            context.job, model, cost.schedule, reset_optimizer=resets
        )
        if not _finite(result.params):
            raise DivergedError(
                f"round {state.round + 1}: the model became NaN or infinite in a round of {len(gathered.present)} "
                f"clients; lower lr (now {lr:g}) or check the data"
            )
        state.params = result.params
        state.buffers = result.buffers
        self.optimizer = result.optimizer
        outcome = self._outcome(cost, result, gathered)
        context.participation.record_outcome(
            outcome.ended, gathered.clients, gathered.present, cost.computing[gathered.clients]
        )
        return replace(outcome, metrics={**outcome.metrics, "returned": wanted.returned})

    def _gather(self) -> tuple[ClientPool, Gathered]:
        """Return the pool of a round and its clients."""
        participation = self.context.participation
        round = self.state.round
        began = 0.0
        if round:
            began = participation.clock
        clock, pool, clients, lost = participation.gather(round, self.context.per_round)
        return pool, Gathered(clients, lost, began, clock)

    def _schedule(
        self, topology: Scheduled, holdings: Holdings, pool: ClientPool, present: Ints
    ) -> SampleSchedule:
        """Return the samples that the topology wants of the clients that are present."""
        everyone = np.arange(self.context.trained_on.clients)
        holdings = holdings.without(np.setdiff1d(everyone, present))
        if not holdings.counts.any():
            return NO_SAMPLES
        stream = Stream(self.context.settings.seed, "walk", self.state.round)
        return topology.schedule_samples(holdings, pool, stream)

    def _model_bytes(self) -> ModelBytes:
        """Return the size of the model, and of what travels with it from client to client."""
        model = size_in_bytes({"model": self.state.model()})
        if "optimizer_state" in self.context.algorithm.requires:
            return ModelBytes(model, model + size_in_bytes(self.optimizer))
        return ModelBytes(model, model)

    def _outcome(
        self, cost: ScheduleCost, result: ScheduleResult, gathered: Gathered
    ) -> RoundOutcome:
        schedule = cost.schedule
        clients = gathered.clients
        population = len(cost.visits)
        samples = np.bincount(schedule.clients, minlength=population)
        places = np.flatnonzero(samples[clients])  # those of clients that had samples
        used = clients[places]

        def mean(per_sample: Floats) -> Column:
            total = per_client(schedule.clients, per_sample, population)
            return Column.at(places, total[used] / samples[used], len(clients))

        columns = {
            "client": Column(clients),
            "rows": Column(self.context.trained_on.sizes[clients]),
            "steps": Column(_steps_per_client(schedule, population)[clients].astype(np.float64)),
            "seconds": Column(cost.busy[clients]),
            "training_seconds": Column(cost.computing[clients]),
            "dropped": Column(gathered.lost.astype(np.int64)),
            "late": Column(np.zeros_like(clients)),
            "bytes_down": Column(cost.bytes_down[clients]),
            "bytes_up": Column(cost.bytes_up[clients]),
            "weight": Column(samples[clients] / max(1, len(schedule.rows))),
            "local_loss": mean(result.losses),
            "local_accuracy": mean(result.scores),
            "samples": Column(samples[clients].astype(np.float64)),
            "visits": Column(cost.visits[clients].astype(np.float64)),
        }
        known = self.context.participation.selection.client_numbers(
            clients, population, self.state.round, self.context.settings.seed
        )
        for name, values in known.items():
            columns[name] = Column(values)
        return RoundOutcome(
            ClientTable(columns),
            clients,
            gathered.began,
            gathered.sent + cost.duration,
            clients=len(clients),
            excluded=0,
            dropped=int(gathered.lost.sum()),
            late=0,
            metrics={"transfers": cost.transfers, "run_length": cost.run_length},
        )


def _steps_of(topology: Scheduled) -> SynchronousSteps | SequentialSteps:
    if isinstance(topology, Synchronous):
        return SynchronousSteps()
    return SequentialSteps()


def _steps_per_client(schedule: SampleSchedule, population: int) -> Ints:
    """Return in how many steps each client takes part."""
    step = np.repeat(np.arange(len(schedule.ends)), np.diff(schedule.ends, prepend=0))
    pairs = np.unique(step * population + schedule.clients)
    return np.bincount(pairs % population, minlength=population)


def _finite(params: Tensors) -> bool:
    return all(bool(torch.isfinite(value).all()) for value in params.values())
