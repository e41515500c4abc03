"""The parallel topology: clients train copies of the model separately, and the server aggregates their updates."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from fedskew.algorithms.contract import Cohort, View
from fedskew.batchnorm.masked import has_batch_norm
from fedskew.batchnorm.shared import exchange
from fedskew.core.errors import DivergedError
from fedskew.core.streams import Floats, Ints, Stream
from fedskew.core.trees import Tensors, Tree, size_in_bytes, without
from fedskew.engine.job import STATE, Start, Updates, parts
from fedskew.engine.plan import Plan
from fedskew.fleet.clock import Meeting
from fedskew.topology.client_rows import client_rows
from fedskew.topology.collector import BUFFERS, Arrived, Combined, UpdateCollector
from fedskew.topology.outcome import RoundOutcome, RoundServer
from fedskew.topology.participation import NUMBER, Assignment, Probed, Traffic
from fedskew.topology.shards import train_and_add


@dataclass(frozen=True)
class Invited:
    """What is known of a round before its clients train: who does, from where, and with which learning rate."""

    assignment: Assignment
    plan: Plan  # of the clients whose updates will arrive
    start: Start
    lr: float


class ParallelRounds:
    """Rounds in which all invited clients train from the same weights, and the server waits for all of them."""

    # Of the table of clients, in addition to those of the method
    extra_columns: tuple[str, ...] = ()

    def __init__(self, server: RoundServer) -> None:
        self.server = server

    def run(self, lr: float) -> RoundOutcome:
        """Run one round and return its outcome."""
        return self.complete(self.invite(lr))

    def invite(self, lr: float) -> Invited:
        """Invite clients and return what they are to do: the first half of a round."""
        server = self.server
        assignment = self._invite(lr, 0, server.per_round, np.zeros(0, dtype=np.int64))
        assert assignment, "a client is free where none is busy"
        plan = assignment.arrived()
        return Invited(assignment, plan, server.start(plan, lr), lr)

    def complete(self, invited: Invited, learnt: Updates | None = None) -> RoundOutcome:
        """Aggregate what the invited clients have learnt, here if not elsewhere: the second half of a round."""
        server = self.server
        plan = invited.plan
        start = invited.start
        collector = self._collector()
        arrived = list[Arrived]()
        if learnt:
            arrived.append(collector.add(learnt))
            server.observe(learnt)
        elif len(plan.clients):
            arrived = train_and_add(
                server.engine, server.job, start, plan, collector, server.observe
            )
        assignment = invited.assignment.without(_silent(plan, arrived))
        if len(plan.clients) and collector.total <= 0:
            raise DivergedError(
                f"round {server.round + 1}: all {len(plan.clients)} clients sent NaN or infinite updates; "
                f"lower lr (now {invited.lr:g}) or check the data"
            )
        if len(plan.clients):
            server.train_personal(start, plan)
        return self._aggregate(collector, assignment, arrived)

    def _collector(self) -> UpdateCollector:
        return UpdateCollector(self.server.algorithm, self.server.weights, self.server.mirrored)

    def _aggregate(
        self, collector: UpdateCollector, assignment: Assignment, arrived: list[Arrived]
    ) -> RoundOutcome:
        """Update the model with the collected updates, and record what the clients did."""
        server = self.server
        least = server.algorithm.aggregator.least_updates
        if collector.total > 0 and len(collector) >= least:
            combined = collector.result()
        else:
            combined = None
        if combined:
            self._update(combined.payload, combined.mean, combined.weights)
            server.buffers = combined.merged_buffers(server.buffers)
        elif not least:
            nothing = {
                "delta": {name: torch.zeros_like(value) for name, value in server.shared().items()}
            }
            self._update(nothing, nothing, np.zeros(0))
        if combined:
            counted = combined.counted
        else:
            counted = np.zeros(0, dtype=np.int64)
        for stack in arrived:
            server.keep(stack, counted)
        self._record_participation(assignment, arrived, combined)
        return self._outcome(assignment, arrived, combined)

    def _update(self, payload: Tree, mean: Tree, weights: Floats) -> None:
        """Let the method change weights and server state."""
        server = self.server
        stream = Stream(server.settings.seed, "server", server.round)
        cohort = Cohort(weights, server.total_weight, mean, server.per_round, stream)
        moved, server.server_state = server.algorithm.server_update(
            server.shared(), server.server_state, payload, cohort
        )
        server.params = {**server.params, **moved}

    def state(self) -> Tensors:
        """Return the state that the topology keeps between rounds, for a checkpoint."""
        return {}

    def restore(self, state: Tensors) -> None:
        """Restore what ``state`` returned."""

    def _invite(self, lr: float, turn: int, count: int, busy: Ints) -> Assignment | None:
        """Invite clients to train on the current weights."""
        server = self.server

        def probe(plan: Plan) -> Probed:
            return server.engine.probe(
                server.job, server.start(plan, lr), plan, server.participation.selection.probe
            )

        turns = (server.round, turn) if turn else (server.round,)
        return server.participation.invite(server.round, count, probe, self._traffic, turns, busy)

    @cached_property
    def _traffic(self) -> Traffic:
        """Return what one client receives and sends; names and shapes, and so the bytes, never change."""
        server, job = self.server, self.server.job
        leaving = {}
        for name, value in server.state().items():
            if name not in job.local_names:
                leaving[name] = value
        sent_along = server.algorithm.broadcast(server.server_state)
        down = size_in_bytes({"weights": leaving}) + size_in_bytes(sent_along)

        def meeting(plan: Plan) -> Meeting:
            return exchange(job.model, job.algorithm.batchnorm, plan.steps, job.x.element_size())

        return Traffic(down, self._bytes_up(), meeting if has_batch_norm(job.model) else None)

    def _bytes_up(self) -> int:
        """Return the bytes that one client will send; the clock needs them before training to find late clients."""
        return self.server.algorithm.channel.bytes(self.sample_payload()) + self._reported_bytes()

    @torch.no_grad()
    def sample_payload(self) -> Tree:
        """Return a payload, with the buffers that are sent, of the names and shapes of those that clients will send."""
        server, job = self.server, self.server.job
        one = torch.ones((), dtype=job.x.dtype, device=job.x.device)
        kept = parts(server.fresh_client, STATE)
        sent_along = server.algorithm.broadcast(server.server_state)
        view = View(
            server.params, server.params, sent_along, kept, _Ones(one=one), server.settings.momentum,
            class_counts=one.expand(job.classes), full_gradient=server.params,
        )  # fmt: skip
        buffers = {}
        for name, value in server.buffers.items():
            if name not in job.unsent:
                buffers[name] = value
        payload = without(server.algorithm.payload(view), job.unsent)
        return {**payload, BUFFERS: buffers}

    def reported(self) -> list[str]:
        """Return the numbers that the method requires clients to report with their updates."""
        result: list[str] = []
        for name in ("loss_before", "loss_after"):
            if name in self.server.algorithm.requires:
                result.append(name)
        return result

    def _reported_bytes(self) -> int:
        return len(self.reported()) * NUMBER

    def _record_participation(
        self, assignment: Assignment, arrived: list[Arrived], combined: Combined | None
    ) -> None:
        if rest := assignment.only_measured():
            self.server.participation.record_missed(rest.clients[rest.late])
        valid = np.concatenate([np.zeros(0, dtype=np.int64), *(stack.valid for stack in arrived)])
        self.server.participation.record_outcome(
            assignment.ended, assignment.plan.clients, valid, assignment.outcome.training
        )
        if combined and len(combined.agreement):
            self.server.participation.record_agreement(combined.clients, combined.agreement)

    def _outcome(
        self, assignment: Assignment, arrived: list[Arrived], combined: Combined | None
    ) -> RoundOutcome:
        extra = [*self.reported(), *self.extra_columns]
        outcome = assignment.outcome
        rest = assignment.only_measured()
        if rest:
            missed = int(rest.late.sum())
        else:
            missed = 0
        metrics = {}
        if self.server.participation.selection.probe:
            if assignment.measured:
                metrics["measured"] = len(assignment.measured.clients)
            else:
                metrics["measured"] = 0
        return RoundOutcome(
            client_rows(assignment, arrived, combined, extra, self._reported_bytes()),
            assignment.plan.clients,
            assignment.began,
            assignment.ended,
            clients=len(assignment.plan.clients) + missed,
            excluded=int(outcome.arrived.sum()) - sum(len(stack.valid) for stack in arrived),
            dropped=int(outcome.dropped.sum()),
            late=int(outcome.late.sum()) + missed,
            bytes_down=assignment.others_down,
            bytes_up=assignment.others_up,
            metrics=metrics,
        )


def _silent(plan: Plan, arrived: list[Arrived]) -> Ints:
    """Return the clients of a plan that did not answer, as only clients on machines of their own may do."""
    answered = [stack.report.clients for stack in arrived]
    return np.setdiff1d(plan.clients, np.concatenate(answered) if answered else plan.clients)


class _Ones(dict[str, torch.Tensor]):
    """Returns 1 for every number that a hook may read."""

    def __missing__(self, name: str) -> torch.Tensor:
        return self["one"]
