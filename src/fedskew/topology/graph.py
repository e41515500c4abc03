"""The topology of a graph: clients train models of their own and exchange them with their neighbours."""

from dataclasses import replace

import numpy as np

from fedskew.algorithms.topologies import Graph
from fedskew.core.streams import Ints, Stream
from fedskew.topology.collector import Arrived, Combined
from fedskew.topology.outcome import RoundOutcome
from fedskew.topology.parallel import ParallelRounds
from fedskew.topology.participation import Assignment, Traffic


class GraphRounds(ParallelRounds):
    """Rounds in which clients send their models to their neighbours in place of a server.

    A model goes to every neighbour that was invited to the round, and one comes from each of them. All wait for the
    slowest client.
    """

    def _traffic_now(self) -> Traffic:
        """Return the traffic of one client per neighbour, and how many neighbours each has."""
        one = self._traffic
        return replace(one, down=one.up, neighbours=self._neighbours)

    def _neighbours(self, clients: Ints) -> Ints:
        """Return with how many of the others each of these clients exchanges models in the present round."""
        context = self.context
        topology = context.algorithm.topology(self.state.round)
        assert isinstance(topology, Graph)
        stream = Stream(context.settings.seed, "server", self.state.round)
        links = topology.links(context.trained_on.clients, stream)
        return np.asarray(links[np.ix_(clients, clients)].sum(1))

    def _outcome(
        self, assignment: Assignment, arrived: list[Arrived], combined: Combined | None
    ) -> RoundOutcome:
        """Return the outcome, with the model that a client sent counted once per neighbour."""
        clients = assignment.plan.clients
        neighbours = self._neighbours(clients)
        counted = []
        for stack in arrived:
            places = clients.searchsorted(stack.report.clients)
            counted.append(replace(stack, bytes=stack.bytes * neighbours[places]))
        return super()._outcome(assignment, counted, combined)
