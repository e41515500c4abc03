"""The buffered topology: the server aggregates as soon as its buffer is full, while other clients go on training."""

from dataclasses import replace

import numpy as np

from fedskew.algorithms.topologies import Buffered
from fedskew.core.trees import Tensors
from fedskew.engine.job import Updates
from fedskew.engine.plan import Plan
from fedskew.topology.collector import Arrived, UpdateCollector
from fedskew.topology.outcome import RoundOutcome, RoundServer
from fedskew.topology.parallel import ParallelRounds
from fedskew.topology.participation import Assignment
from fedskew.topology.pending import PendingClients, each, joined


class BufferedRounds(ParallelRounds):
    """Rounds that end when ``buffer_size`` updates have arrived; ``per_round`` clients train at any time."""

    extra_columns = ("staleness",)

    def __init__(self, server: RoundServer, topology: Buffered) -> None:
        super().__init__(server)
        self.buffer_size = min(topology.buffer_size, server.per_round)
        self.pending = PendingClients(server.participation, server.per_round)

    def state(self) -> Tensors:
        """Return the clients that are still training, with their updates."""
        return self.pending.state()

    def restore(self, state: Tensors) -> None:
        """Restore what ``state`` returned."""
        no_clients = np.zeros(0, dtype=np.int64)
        server = self.server
        plan = Plan(server.settings.seed, 0, *(no_clients,) * 4, server.least)
        self.pending.restore(state, plan, server.job.x.device)

    def run(self, lr: float) -> RoundOutcome:
        """Collect updates until the buffer is full, while other clients go on training, and aggregate them."""
        collector = self._collector()
        return self._aggregate(collector, *self._collect(lr, collector))

    def _collect(self, lr: float, collector: UpdateCollector) -> tuple[Assignment, list[Arrived]]:
        """Return the updates that arrived before the buffer was full, added to the collector."""
        server = self.server
        participation = self.server.participation
        began = participation.clock
        arrived, assignments = self.pending.collect(
            self.buffer_size, lambda turn, count, busy: self._invite(lr, turn, count, busy)
        )
        everyone = [*arrived, *self.pending.clients]
        fresh = []
        for client in everyone:
            if client.answers and not client.update:
                fresh.append(client.plan)
        answers: dict[int, Updates] = {}
        if fresh:  # all of them start from the current weights, so they can train together
            plan = Plan.together(fresh)
            for updates in server.engine.train(server.job, server.start(plan, lr), plan):
                answers |= {int(one.report.clients[0]): one for one in each(updates)}
        asked = set()
        for one in fresh:
            for number in one.clients:
                asked.add(int(number))
        done = []
        for client in everyone:
            done.append(
                replace(client, update=answers[client.number])
                if client.number in answers
                else client.dropped()
                if client.number in asked
                else client
            )
        self.pending.clients, arrived = done[len(arrived) :], done[: len(arrived)]
        stacks = []
        for client in arrived:
            if client.update:
                staleness = {"staleness": np.array([float(server.round - client.plan.round)])}
                report = replace(
                    client.update.report, numbers={**client.update.report.numbers, **staleness}
                )
                stacks.append(collector.add(replace(client.update, report=report)))
        plan = Plan.together([client.plan for client in arrived])
        down, up = (
            np.concatenate([getattr(client, name) for client in arrived])
            for name in ("bytes_down", "bytes_up")
        )
        others = (
            sum(one.others_down for one in assignments),
            sum(one.others_up for one in assignments),
        )
        outcome = joined([client.outcome for client in arrived])
        return Assignment(
            plan, outcome, began, began, participation.clock, down, up, None, *others
        ), stacks
