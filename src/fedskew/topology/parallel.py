"""The parallel topology: clients train copies of the model separately, and the server aggregates their updates."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
import torch

from fedskew.algorithms.contract import Cohort
from fedskew.batchnorm.masked import has_batch_norm
from fedskew.batchnorm.shared import exchange
from fedskew.core.errors import DivergedError
from fedskew.core.streams import Floats, Ints, Stream
from fedskew.core.trees import Tensors, Tree, rows_of
from fedskew.engine.job import ANSWER, RECEIVED, Start, Updates, prefixed
from fedskew.engine.plan import Plan
from fedskew.fleet.clock import Meeting
from fedskew.models.low_rank import truncated
from fedskew.topology.client_rows import client_rows
from fedskew.topology.collector import Arrived, Combined, UpdateCollector
from fedskew.topology.context import RoundClients, RoundContext
from fedskew.topology.outcome import RoundOutcome
from fedskew.topology.participation import Assignment, Probed, Traffic
from fedskew.topology.payload import (
    NUMBERS,
    bytes_by_rank,
    bytes_down,
    bytes_up,
    reported,
    reported_bytes,
)
from fedskew.topology.run_state import RunState
from fedskew.topology.shards import train_and_add

Observe: TypeAlias = Callable[[Updates], None]


@dataclass(frozen=True)
class Invited:
    """What is known of a round before its clients train: who does, from where, and with which learning rate."""

    assignment: Assignment
    plan: Plan  # of the clients whose updates will arrive
    start: Start
    lr: float


class ParallelRounds:
    """Rounds in which all invited clients train from the same weights, and the server waits for all of them.

    ``observe`` sees the updates of clients right after local training.
    """

    # Columns of the table of clients, beside those that the method asks for
    extra_columns: tuple[str, ...] = ()
    # Whether a round has two halves, so that its clients may be trained together with those of other runs
    in_halves = True

    def __init__(
        self, context: RoundContext, state: RunState, clients: RoundClients, observe: Observe
    ) -> None:
        self.context = context
        self.state = state
        self.clients = clients
        self.observe = observe

    def run(self, lr: float) -> RoundOutcome:
        """Run one round and return its outcome."""
        return self.complete(self.invite(lr))

    def invite(self, lr: float) -> Invited:
        """Invite clients and return what they are to do: the first half of a round."""
        nobody = np.zeros(0, dtype=np.int64)
        assignment = self._invite(lr, 0, self._clients_wanted(), nobody)
        assert assignment, "a client is free where none is busy"
        answers = dict(
            self._answers_to(assignment.plan.clients)
        )  # a copy, as one part is taken out
        if numbers := answers.pop(NUMBERS, {}):
            assignment = replace(assignment, plan=with_numbers(assignment.plan, numbers))
        plan = assignment.arrived()
        if plan is not assignment.plan:
            answers = rows_of(answers, torch.from_numpy(np.flatnonzero(assignment.outcome.arrived)))
        return Invited(assignment, plan, self.start(plan, lr, answers), lr)

    def complete(self, invited: Invited, learnt: Updates | None = None) -> RoundOutcome:
        """Aggregate what the invited clients have learnt, here if not elsewhere: the second half of a round."""
        context = self.context
        plan = invited.plan
        collector = self.collector()
        arrived = list[Arrived]()
        if learnt:
            arrived.append(collector.add(learnt))
            self.observe(learnt)
        elif len(plan.clients):
            arrived = train_and_add(
                context.engine, context.job, invited.start, plan, collector, self.observe
            )
        assignment = invited.assignment.without(silent(plan, arrived))
        self._check_valid(plan, collector.total, invited.lr)
        if len(plan.clients):
            self.clients.train_personal(invited.start, plan)
        return self._aggregate(collector, assignment, arrived)

    def checkpoint(self) -> Tensors:
        """Return the state that the topology keeps between rounds."""
        return {}

    def restore(self, saved: Tensors) -> None:
        """Restore what ``checkpoint`` returned."""

    def _clients_wanted(self) -> int:
        """Return how many clients are to take part in the round."""
        selection = self.context.participation.selection
        return selection.clients_wanted(self.state.server_state, self.context.per_round)

    def _answers_to(self, clients: Ints) -> Tree:
        """Return what the server sends each of these clients alone."""
        return self.context.algorithm.answer(self.state.server_state, clients)

    def start(self, plan: Plan, lr: float, answers: Tree) -> Start:
        """Return the state from which the clients of a plan start, with the server's answers to them."""
        state = self.state
        sent_along = self.context.algorithm.broadcast(state.server_state)
        kept = {**self.clients.kept(plan.clients), **prefixed(answers, ANSWER)}
        adapters = self.context.algorithm.adapters
        if adapters is not None and adapters.ranks:
            kept[RECEIVED] = truncated(state.params, adapters.ranks_of(plan.clients))
        return Start(state.params, state.buffers, sent_along, kept, lr)

    def collector(self) -> UpdateCollector:
        """Return what collects the updates of a round."""
        context = self.context
        return UpdateCollector(context.algorithm, context.weights, context.mirrored)

    def _check_valid(self, plan: Plan, total: float, lr: float) -> None:
        """Raise an error if no client of a plan has sent finite numbers; ``total`` is the weight of those that have."""
        if len(plan.clients) and total <= 0:
            raise DivergedError(
                f"round {self.state.round + 1}: all {len(plan.clients)} clients sent NaN or infinite updates; "
                f"lower lr (now {lr:g}) or check the data"
            )

    def _aggregate(
        self, collector: UpdateCollector, assignment: Assignment, arrived: list[Arrived]
    ) -> RoundOutcome:
        """Update the model with the collected updates, and record what the clients did."""
        combined = self.combine(collector, arrived)
        self._record_participation(assignment, arrived, combined)
        return self._outcome(assignment, arrived, combined)

    def combine(self, collector: UpdateCollector, arrived: list[Arrived]) -> Combined | None:
        """Update the model with the collected updates; returns None if these are too few for the method's rule."""
        least = self.context.algorithm.aggregator.least_updates
        combined = None
        counted = np.zeros(0, dtype=np.int64)
        if collector.total > 0 and len(collector) >= least:
            combined = collector.result()
            counted = combined.counted
            self._update(combined)
            self.state.buffers = combined.merged_buffers(self.state.buffers)
        elif not least:
            self._update(self._nothing())
        for stack in arrived:
            self.clients.keep(stack, counted)
        return combined

    def _nothing(self) -> Combined:
        """Return the updates of no client: no weight changes."""
        shared = self.state.shared(self.context.job.unsent)
        payload = {"delta": {name: torch.zeros_like(value) for name, value in shared.items()}}
        nobody = np.zeros(0, dtype=np.int64)
        return Combined(payload, payload, {}, nobody, np.zeros(0), np.zeros(0))

    def _update(self, combined: Combined) -> None:
        """Let the method change weights and server state."""
        context = self.context
        state = self.state
        cohort = self._cohort(combined)
        moved, state.server_state = context.algorithm.server_update(
            state.shared(context.job.unsent), state.server_state, combined.payload, cohort
        )
        buffers = {name: moved.pop(name) for name in state.buffers.keys() & moved}
        state.params = {**state.params, **moved}
        state.buffers = {**state.buffers, **buffers}

    def _cohort(self, combined: Combined) -> Cohort:
        """Return what the method learns of the clients whose updates were combined."""
        context = self.context
        return Cohort(
            combined.weights,
            context.total_weight,
            combined.mean,
            context.per_round,
            Stream(context.settings.seed, "server", self.state.round),
            combined.clients,
            combined.updates,
        )

    def _invite(self, lr: float, turn: int, count: int, busy: Ints) -> Assignment | None:
        """Invite clients to train on the current weights."""
        context = self.context
        participation = context.participation
        round = self.state.round

        def probe(plan: Plan) -> Probed:
            return self.probe(plan, lr)

        turns: tuple[int, ...] = (round,)
        if turn:
            turns = (round, turn)
        return participation.invite(round, count, probe, self._traffic_now(), turns, busy)

    def probe(self, plan: Plan, lr: float) -> Probed:
        """Return what the clients of a plan measure before they train."""
        context = self.context
        start = self.start(plan, lr, self._answers_to(plan.clients))
        wanted = context.participation.selection.probe
        return context.engine.probe(context.job, start, plan, wanted)

    def _traffic_now(self) -> Traffic:
        """Return the traffic of one client in the present round."""
        return self._traffic

    @cached_property
    def _traffic(self) -> Traffic:
        """The bytes that one client receives and sends; as names and shapes never change, neither do these."""
        job = self.context.job
        down = bytes_down(self.context, self.state)
        up = bytes_up(self.context, self.state)
        ranked = bytes_by_rank(self.context, self.state)
        if not has_batch_norm(job.model):
            return Traffic(down, up, None, ranked=ranked)

        def meeting(plan: Plan) -> Meeting:
            return exchange(job.model, job.algorithm.batchnorm, plan.steps, job.x.element_size())

        return Traffic(down, up, meeting, ranked=ranked)

    def _record_participation(
        self, assignment: Assignment, arrived: list[Arrived], combined: Combined | None
    ) -> None:
        participation = self.context.participation
        if rest := assignment.only_measured():
            participation.record_missed(rest.clients[rest.late])
        valid = [np.zeros(0, dtype=np.int64)]
        for stack in arrived:
            valid.append(stack.valid)
        participation.record_outcome(
            assignment.ended,
            assignment.plan.clients,
            np.concatenate(valid),
            assignment.outcome.training,
        )
        if combined and len(combined.agreement):
            participation.record_agreement(combined.clients, combined.agreement)
            if participation.selection.learns_from:
                participation.learn(_numbers_of(combined.clients, arrived), combined.agreement)

    def _outcome(
        self, assignment: Assignment, arrived: list[Arrived], combined: Combined | None
    ) -> RoundOutcome:
        algorithm = self.context.algorithm
        extra = [*reported(algorithm), *self.extra_columns]
        outcome = assignment.outcome
        missed = 0
        if rest := assignment.only_measured():
            missed = int(rest.late.sum())
        metrics = {}
        if self.context.participation.selection.probe:
            metrics["measured"] = 0
            if assignment.measured:
                metrics["measured"] = len(assignment.measured.clients)
        valid = 0
        for stack in arrived:
            valid += len(stack.valid)
        return RoundOutcome(
            client_rows(assignment, arrived, combined, extra, reported_bytes(algorithm)),
            assignment.plan.clients,
            assignment.began,
            assignment.ended,
            clients=len(assignment.plan.clients) + missed,
            excluded=int(outcome.arrived.sum()) - valid,
            dropped=int(outcome.dropped.sum()),
            late=int(outcome.late.sum()) + missed,
            bytes_down=assignment.others_down,
            bytes_up=assignment.others_up,
            metrics=metrics,
        )


def with_numbers(plan: Plan, answered: Tensors) -> Plan:
    """Return a plan with the numbers that the server's answers have for its clients."""
    numbers: dict[str, Floats] = {}
    for name, values in answered.items():
        numbers[name] = values.double().cpu().numpy()
    return replace(plan, numbers={**plan.numbers, **numbers})


def _numbers_of(clients: Ints, arrived: list[Arrived]) -> dict[str, Floats]:
    """Return the numbers with which these clients were selected, from the reports that arrived."""
    columns: dict[str, list[Floats]] = {}
    reported = []
    for stack in arrived:
        reported.append(stack.report.clients)
        for name, values in stack.report.numbers.items():
            columns.setdefault(name, []).append(values)
    order = np.concatenate(reported).argsort(kind="stable")
    places = order[np.searchsorted(np.concatenate(reported)[order], clients)]
    numbers = {}
    for name, stacks in columns.items():
        numbers[name] = np.concatenate(stacks)[places]
    return numbers


def silent(plan: Plan, arrived: list[Arrived]) -> Ints:
    """Return the clients of a plan that did not answer, as only clients on machines of their own may do."""
    if not arrived:
        return np.zeros(0, dtype=np.int64)
    answered = [stack.report.clients for stack in arrived]
    return np.setdiff1d(plan.clients, np.concatenate(answered))
