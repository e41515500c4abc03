"""The common part of the sequential and the synchronous topology: one model is trained on a sample schedule."""

from dataclasses import replace

import numpy as np
import torch

from fedskew.algorithms.topologies import Scheduled, Synchronous
from fedskew.core.errors import DivergedError
from fedskew.core.streams import Ints, Stream
from fedskew.core.trees import Tensors, Tree, flat_names, from_flat
from fedskew.engine.job import ModelState, ScheduleResult
from fedskew.fleet.clock import Flags
from fedskew.topology.client_table import ClientTable, Column
from fedskew.topology.outcome import RoundOutcome, RoundServer
from fedskew.topology.schedule_cost import NO_SAMPLES, ScheduleCost, per_client
from fedskew.topology.sequential import SequentialSteps
from fedskew.topology.synchronous import SynchronousSteps


class ScheduledRounds:
    """Rounds in which one model is trained with one optimiser on the samples of all clients."""

    def __init__(self, server: RoundServer) -> None:
        self.server = server
        self.optimizer: Tree = server.job.optimizer.init(server.params, stacked=False)

    def state(self) -> Tensors:
        """Return the optimiser's state, for a checkpoint."""
        return flat_names(self.optimizer)

    def restore(self, state: Tensors) -> None:
        """Restore what ``state`` returned."""
        self.optimizer = from_flat(state, self.optimizer)

    def run(self, lr: float) -> RoundOutcome:
        """Run one round and return its outcome."""
        server, participation = self.server, self.server.participation
        topology = server.algorithm.topology(server.round)
        assert isinstance(topology, Scheduled)
        steps = SynchronousSteps() if isinstance(topology, Synchronous) else SequentialSteps()
        holdings = server.holdings
        began = participation.clock if server.round else 0.0
        clock, pool, clients, lost = participation.gather(server.round, server.per_round)
        all_clients, present = np.arange(server.trained_on.clients), clients[~lost]
        holdings = holdings.without(np.setdiff1d(all_clients, present))
        stream = Stream(server.settings.seed, "walk", server.round)
        wanted = (
            topology.schedule_samples(holdings, pool, stream)
            if holdings.counts.any()
            else NO_SAMPLES
        )
        wanted = steps.prepare(wanted, server)
        cost = steps.cost(wanted, server, topology.label_access, present, self.optimizer)
        scale = 1 / pool.batch_size if topology.lr_scale is None else topology.lr_scale
        model = ModelState(server.params, server.buffers, self.optimizer, lr * scale, server.round)
        resets = "optimizer_state" not in server.algorithm.requires
        result = server.engine.run_schedule(
            server.job, model, cost.schedule, reset_optimizer=resets
        )
        if not all(bool(torch.isfinite(value).all()) for value in result.params.values()):
            raise DivergedError(
                f"round {server.round + 1}: the model became NaN or infinite in a round of {len(present)} "
                f"clients; lower lr (now {lr:g}) or check the data"
            )
        server.params, server.buffers, self.optimizer = (
            result.params,
            result.buffers,
            result.optimizer,
        )
        outcome = self._outcome(cost, result, clients, lost, (began, clock))
        participation.record_outcome(outcome.ended, clients, present, cost.computing[clients])
        return replace(outcome, metrics={**outcome.metrics, "returned": wanted.returned})

    def _outcome(
        self,
        cost: ScheduleCost,
        result: ScheduleResult,
        clients: Ints,
        lost: Flags,
        when: tuple[float, float],
    ) -> RoundOutcome:
        schedule = cost.schedule
        population = len(cost.visits)
        samples = np.bincount(schedule.clients, minlength=population)
        step = np.repeat(np.arange(len(schedule.ends)), np.diff(schedule.ends, prepend=0))
        steps = np.bincount(
            np.unique(step * population + schedule.clients) % population, minlength=population
        )
        here = np.flatnonzero(samples[clients])  # the clients that had samples
        used = clients[here]
        loss, score = (
            Column.at(
                here,
                per_client(schedule.clients, seen, population)[used] / samples[used],
                len(clients),
            )
            for seen in (result.losses, result.scores)
        )
        columns = {
            "client": clients,
            "rows": self.server.trained_on.sizes[clients],
            "steps": steps[clients].astype(np.float64),
            "seconds": cost.busy[clients],
            "training_seconds": cost.computing[clients],
            "dropped": lost.astype(np.int64),
            "late": np.zeros_like(clients),
            "bytes_down": cost.bytes_down[clients],
            "bytes_up": cost.bytes_up[clients],
            "weight": samples[clients] / max(1, len(schedule.rows)),
        }
        counts = {"samples": samples, "visits": cost.visits}
        began, sent = when
        return RoundOutcome(
            ClientTable(
                {name: Column(values) for name, values in columns.items()}
                | {"local_loss": loss, "local_accuracy": score}
                | {
                    name: Column(values[clients].astype(np.float64))
                    for name, values in counts.items()
                }
            ),
            clients,
            began,
            sent + cost.duration,
            clients=len(clients),
            excluded=0,
            dropped=int(lost.sum()),
            late=0,
            metrics={"transfers": cost.transfers, "run_length": cost.run_length},
        )
