"""The topology of edge servers: each aggregates the updates of its clients, and the cloud the models of the edges."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from fedskew.algorithms.contract import Cohort, base_weights
from fedskew.algorithms.edges_of_clients import (
    edges_by_labels,
    edges_in_file,
    edges_in_order,
)
from fedskew.algorithms.topologies import EdgeServers
from fedskew.core.streams import Floats, Ints, Stream
from fedskew.core.trees import Tensors, size_in_bytes
from fedskew.engine.job import Start
from fedskew.engine.plan import Plan
from fedskew.fleet.machines import Fleet, Machines
from fedskew.topology.client_table import ClientTable, Column
from fedskew.topology.cloud import Cloud
from fedskew.topology.collector import Arrived, Combined, UpdateCollector
from fedskew.topology.context import RoundClients, RoundContext
from fedskew.topology.outcome import RoundOutcome
from fedskew.topology.parallel import Observe, ParallelRounds
from fedskew.topology.participation import Assignment, Probed
from fedskew.topology.run_state import RunState, group_of, grouped
from fedskew.topology.shards import train_and_add

_CLOUD = "cloud"  # the group of a checkpoint with the state of the last round of the cloud


@dataclass(frozen=True)
class Learnt:
    """What the clients of one edge have learnt in a round."""

    edge: "EdgeServer"
    start: Start
    plan: Plan
    collector: UpdateCollector
    arrived: list[Arrived]


class EdgeServer(ParallelRounds):
    """One edge: it does what the method's server does, with a model of its own and the updates of its own clients."""

    def __init__(
        self, parent: "HierarchicalRounds", state: RunState, number: int, members: Ints
    ) -> None:
        super().__init__(parent.context, state, parent.clients, parent.observe)
        self.number = number
        self.members = len(members)
        sizes = self.context.trained_on.sizes[members]
        self.total = float(base_weights(sizes, self.context.weights).sum())
        self.weight = 0.0  # of the updates that it has added up since the last round of the cloud
        self.clock = 0.0  # when it has done its last round

    def learn(self, plan: Plan, lr: float) -> Learnt:
        """Let clients of this edge train from its model, and collect their updates."""
        context = self.context
        start = self.start(plan, lr, {})
        collector = self.collector()
        arrived = train_and_add(context.engine, context.job, start, plan, collector, self.observe)
        return Learnt(self, start, plan, collector, arrived)

    def _cohort(self, combined: Combined) -> Cohort:
        """Return what the method learns of the clients of this edge."""
        context = self.context
        share = self.members / context.trained_on.clients
        return replace(
            super()._cohort(combined),
            total=self.total,
            expected=max(1, round(context.per_round * share)),
            stream=Stream(context.settings.seed, "server", self.state.round, self.number),
        )


class HierarchicalRounds(ParallelRounds):
    """Rounds of the edges, after some of which the cloud combines their models.

    The state of the run is what the cloud would have if it combined them after every round.
    """

    in_halves = False

    def __init__(
        self,
        context: RoundContext,
        state: RunState,
        clients: RoundClients,
        observe: Observe,
        topology: EdgeServers,
    ) -> None:
        super().__init__(context, state, clients, observe)
        self.topology = topology
        self.last = _copy(state)  # the state of the last round of the cloud
        self.cloud = Cloud(topology.rule, context.mirrored, context.job.unsent)
        self.lines = context.participation.fleet  # to the cloud
        context.participation.fleet = nearer(self.lines, topology.nearer)

    @cached_property
    def edge_of(self) -> Ints:
        """The edge of every client."""
        topology = self.topology
        trained_on = self.context.trained_on
        everyone = np.arange(trained_on.clients)
        if topology.by == "order":
            return edges_in_order(everyone, topology.edges)
        if topology.by == "network":
            return edges_in_order(self.lines.machines(everyone).down, topology.edges)
        if topology.by == "labels":
            job = self.context.job
            counts = trained_on.counts(job.y.cpu().numpy(), job.classes)
            return edges_by_labels(counts, topology.edges)
        return edges_in_file(topology.by, trained_on.clients, topology.edges)

    @cached_property
    def edges(self) -> list[EdgeServer]:
        """The edges, at first with the state of the cloud."""
        made = []
        for number in range(self.topology.edges):
            members = np.flatnonzero(self.edge_of == number)
            made.append(EdgeServer(self, _copy(self.last), number, members))
        return made

    def run(self, lr: float) -> RoundOutcome:
        """Run one round of the edges and, where it is due, of the cloud."""
        round = self.state.round
        down = self._begin(first=round % self.topology.every == 0)
        nobody = np.zeros(0, dtype=np.int64)
        assignment = self._invite(lr, 0, self._clients_wanted(), nobody)
        assert assignment, "a client is free where none is busy"
        learnt = self._learn(assignment.arrived(), lr)
        arrived = []
        for one in learnt:
            arrived += one.arrived
        combined = _together(self._combine(learnt))
        up, ended = self._end(assignment, last=(round + 1) % self.topology.every == 0)
        assignment = replace(assignment, ended=ended)
        self._record_participation(assignment, arrived, combined)
        outcome = self._outcome(assignment, arrived, combined)
        return replace(
            outcome,
            client_rows=self._with_edges(outcome.client_rows),
            bytes_down=outcome.bytes_down + down,
            bytes_up=outcome.bytes_up + up,
            metrics={**outcome.metrics, "cloud_bytes_down": down, "cloud_bytes_up": up},
        )

    def probe(self, plan: Plan, lr: float) -> Probed:
        """Return what the clients of a plan measure, each with the model of its edge."""
        probed: dict[str, Floats] = {}
        for kind in self.context.participation.selection.probe:
            probed[kind] = np.zeros(len(plan.clients))
        for edge, places in self._by_edge(plan):
            for name, values in edge.probe(plan.only(places), lr).items():
                probed[name][places] = values
        return probed

    def checkpoint(self) -> Tensors:
        """Return the states of all edges, what they count by, and when each has done its last round."""
        groups = {_CLOUD: self.last.flat()}
        weights = []
        clocks = []
        for edge in self.edges:
            groups[str(edge.number)] = edge.state.flat()
            weights.append(edge.weight)
            clocks.append(edge.clock)
        flat: Tensors = {}
        for name, value in grouped(groups).items():
            flat[name] = value.clone()  # edges share tensors, and a file has each once
        return {
            **flat,
            "edge_of": torch.from_numpy(self.edge_of),
            "weights": torch.tensor(weights, dtype=torch.float64),
            "clocks": torch.tensor(clocks, dtype=torch.float64),
        }

    def restore(self, saved: Tensors) -> None:
        """Restore what ``checkpoint`` returned: a resumed run keeps the edges with which it began."""
        device = self.context.job.x.device
        round = {"round": torch.tensor(self.state.round)}
        self.edge_of = saved["edge_of"].cpu().numpy()
        self.last.restore({**group_of(saved, _CLOUD), **round}, device)
        for edge in self.edges:
            edge.state.restore({**group_of(saved, str(edge.number)), **round}, device)
            edge.weight = float(saved["weights"][edge.number])
            edge.clock = float(saved["clocks"][edge.number])

    def _begin(self, first: bool) -> int:
        """Let the edges begin a round; in the ``first`` of a period the cloud sends them its model.

        Returns the bytes that they receive.
        """
        now = self.context.participation.clock
        if first:
            now += self._seconds(self._bytes_down)
        delay = now - max(edge.clock for edge in self.edges)
        for edge in self.edges:
            edge.state.round = self.state.round
            if first:
                edge.clock = now
            else:
                edge.clock += delay  # where something else has taken time since the last round
        if not first:
            return 0
        return self._bytes_down * len(self.edges)

    def _learn(self, plan: Plan, lr: float) -> list[Learnt]:
        """Return what the clients of each edge have learnt."""
        learnt = []
        total = 0.0
        for edge, places in self._by_edge(plan):
            one = edge.learn(plan.only(places), lr)
            total += one.collector.total
            learnt.append(one)
        self._check_valid(plan, total, lr)
        return learnt

    def _by_edge(self, plan: Plan) -> list[tuple[EdgeServer, Ints]]:
        """Return the edges that have clients in a plan, and the places of these."""
        edge_of = self.edge_of[plan.clients]
        return [(self.edges[edge], np.flatnonzero(edge_of == edge)) for edge in np.unique(edge_of)]

    def _combine(self, learnt: list[Learnt]) -> list[tuple[Combined, float]]:
        """Let every edge update its model; returns what each has combined, and its weight."""
        results = []
        for one in learnt:
            self.clients.train_personal(one.start, one.plan)
            if combined := one.edge.combine(one.collector, one.arrived):
                one.edge.weight += one.collector.total
                results.append((combined, one.collector.total))
        return results

    def _end(self, assignment: Assignment, last: bool) -> tuple[int, float]:
        """Combine the models of the edges; returns the bytes that they send, and when the round ends.

        In the ``last`` round of a period all edges wait for the cloud, and go on with its model.
        """
        weights = np.array([edge.weight for edge in self.edges])
        totals = np.array([edge.total for edge in self.edges])
        states = [edge.state for edge in self.edges]
        whole = self.cloud.combined(self.last, states, weights, totals)
        self.state.params = whole.params
        self.state.buffers = whole.buffers
        self.state.server_state = whole.server_state
        ended = self._clock(assignment)
        if not last:
            return 0, ended
        self.last = _copy(self.state)
        for edge in self.edges:
            edge.state = _copy(self.state)
            edge.weight = 0.0
        return self._bytes_up * int((weights > 0).sum()), ended + self._seconds(self._bytes_up)

    def _clock(self, assignment: Assignment) -> float:
        """Advance the clocks of the edges, each by the slowest of its clients; returns the time of the last edge."""
        outcome = assignment.outcome
        if assignment.sent > assignment.began:  # the server has waited for clients
            for edge in self.edges:
                edge.clock = max(edge.clock, assignment.sent)
        for edge, places in self._by_edge(assignment.plan):
            seconds = float(outcome.seconds[places].max())
            if outcome.late[places].any():
                assert self.lines.deadline is not None
                seconds = self.lines.deadline
            edge.clock += seconds
        ended = max(edge.clock for edge in self.edges)
        if not len(assignment.plan.clients):
            ended = max(ended, assignment.ended)
        return ended

    def _with_edges(self, rows: ClientTable) -> ClientTable:
        """Return the table of clients with the edge of each."""
        edges = Column(self.edge_of[rows.columns["client"].values])
        return ClientTable({**rows.columns, "edge": edges})

    @cached_property
    def _bytes_down(self) -> int:
        """The bytes that the cloud sends an edge: the model, and what the method keeps on its servers."""
        leaving = self.state.leaving(self.context.job.local_names)
        return size_in_bytes({"weights": leaving}) + size_in_bytes(self.state.server_state)

    @cached_property
    def _bytes_up(self) -> int:
        """The bytes that an edge sends the cloud, without what no client changes."""
        leaving = self.state.leaving(self.context.job.unsent)
        return size_in_bytes({"weights": leaving}) + size_in_bytes(self.state.server_state)

    def _seconds(self, size: int) -> float:
        """Return how long a message between an edge and the cloud takes."""
        return self.topology.latency + 8e-6 * size / self.topology.mbit


def nearer(fleet: Fleet, factor: float) -> Fleet:
    """Return the fleet with lines that are ``factor`` times as fast, and messages that arrive as much sooner."""

    def draw(clients: Ints) -> Machines:
        machines = fleet.machines(clients)
        return replace(
            machines,
            down=machines.down * factor,
            up=machines.up * factor,
            latency=machines.latency / factor,
        )

    return replace(fleet, draw=draw)


def _copy(state: RunState) -> RunState:
    return RunState(state.params, state.buffers, state.server_state, state.round)


def _together(parts: list[tuple[Combined, float]]) -> Combined | None:
    """Return whose updates all edges have combined, for the tables, with the share of each in the round."""
    if not parts:
        return None
    total = sum(weight for _, weight in parts)
    clients = np.concatenate([combined.clients for combined, _ in parts])
    shares = np.concatenate([combined.shares * (weight / total) for combined, weight in parts])
    agreement = np.concatenate([combined.agreement for combined, _ in parts])
    order = np.argsort(clients)
    if len(agreement):
        agreement = agreement[order]
    weights = np.concatenate([combined.weights for combined, _ in parts])
    return Combined({}, {}, {}, clients[order], shares[order], weights, agreement)
