"""The buffered topology: the server aggregates as soon as its buffer is full, while other clients go on training."""

from dataclasses import replace

import numpy as np

from fedskew.core.trees import Tensors
from fedskew.engine.job import Updates
from fedskew.engine.plan import Plan
from fedskew.topology.collector import Arrived, UpdateCollector
from fedskew.topology.context import RoundClients, RoundContext
from fedskew.topology.outcome import RoundOutcome
from fedskew.topology.parallel import Observe, ParallelRounds, with_numbers
from fedskew.topology.participation import Assignment
from fedskew.topology.payload import NUMBERS
from fedskew.topology.pending import PendingClient, PendingClients, each, joined
from fedskew.topology.run_state import RunState


class BufferedRounds(ParallelRounds):
    """Rounds that end when ``buffer_size`` updates have arrived; ``per_round`` clients train at any time."""

    extra_columns = ("staleness",)
    in_halves = False

    def __init__(
        self,
        context: RoundContext,
        state: RunState,
        clients: RoundClients,
        observe: Observe,
        buffer_size: int,
    ) -> None:
        super().__init__(context, state, clients, observe)
        self.buffer_size = min(buffer_size, context.per_round)
        self.pending = PendingClients(context.participation, context.per_round)

    def checkpoint(self) -> Tensors:
        """Return the clients that are still training, with their updates."""
        return self.pending.state()

    def restore(self, saved: Tensors) -> None:
        """Restore what ``checkpoint`` returned."""
        context = self.context
        nobody = np.zeros(0, dtype=np.int64)
        plan = Plan(context.settings.seed, 0, nobody, nobody, nobody, nobody, context.least)
        self.pending.restore(saved, plan, context.job.x.device)

    def run(self, lr: float) -> RoundOutcome:
        """Collect updates until the buffer is full, while other clients go on training, and aggregate them."""
        began = self.context.participation.clock
        arrived, assignments = self.pending.collect(
            self.buffer_size, lambda turn, count, busy: self._invite(lr, turn, count, busy)
        )
        trained = self._trained([*arrived, *self.pending.clients], lr)
        self.pending.clients = trained[len(arrived) :]
        arrived = trained[: len(arrived)]
        collector = self.collector()
        stacks = self._add(collector, arrived)
        return self._aggregate(collector, self._assignment(began, arrived, assignments), stacks)

    def _trained(self, everyone: list[PendingClient], lr: float) -> list[PendingClient]:
        """Return the clients with their updates: those that were invited in this round compute them now."""
        plans = []
        asked = set()
        for client in everyone:
            if client.answers and not client.update:
                plans.append(client.plan)
                asked.add(client.number)
        answers = self._answers(plans, lr)
        trained = []
        for client in everyone:
            if client.number in answers:
                trained.append(replace(client, update=answers[client.number]))
            elif client.number in asked:
                trained.append(client.dropped())
            else:
                trained.append(client)
        return trained

    def _answers(self, plans: list[Plan], lr: float) -> dict[int, Updates]:
        """Return the updates of these clients: all start from the current weights, so they can train together."""
        answers: dict[int, Updates] = {}
        if not plans:
            return answers
        plan = Plan.together(plans)
        sent = dict(self._answers_to(plan.clients))  # a copy, as one part is taken out
        plan = with_numbers(plan, sent.pop(NUMBERS, {}))
        start = self.start(plan, lr, sent)
        for updates in self.context.engine.train(self.context.job, start, plan):
            for update in each(updates):
                answers[int(update.report.clients[0])] = update
        return answers

    def _add(self, collector: UpdateCollector, arrived: list[PendingClient]) -> list[Arrived]:
        """Add the updates that arrived, and report how old the weights are from which each was trained."""
        stacks = []
        for client in arrived:
            if not client.update:
                continue
            report = client.update.report
            staleness = np.array([float(self.state.round - client.plan.round)])
            report = replace(report, numbers={**report.numbers, "staleness": staleness})
            stacks.append(collector.add(replace(client.update, report=report)))
        return stacks

    def _assignment(
        self, began: float, arrived: list[PendingClient], assignments: list[Assignment]
    ) -> Assignment:
        """Return the clients that are done as if they had been invited together."""
        return Assignment(
            Plan.together([client.plan for client in arrived]),
            joined([client.outcome for client in arrived]),
            began,
            began,
            self.context.participation.clock,
            np.concatenate([client.bytes_down for client in arrived]),
            np.concatenate([client.bytes_up for client in arrived]),
            None,
            sum(assignment.others_up for assignment in assignments),
            sum(assignment.others_down for assignment in assignments),
        )
