"""HierFAVG: edge servers between clients and the cloud, as an addition to methods whose clients train apart."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from fedskew.aggregation.mean import Aggregator
from fedskew.algorithms.contract import Algorithm, algorithms
from fedskew.algorithms.edges_of_clients import NAMED, edges_in_file
from fedskew.algorithms.topologies import EdgeServers, Parallel
from fedskew.core.errors import FedskewError
from fedskew.core.registry import AtLeastOne, NonNegative, Positive


@algorithms.register("hierarchical")
@dataclass(frozen=True)
class Hierarchical(Algorithm):
    """Clients, edge servers and the cloud (HierFAVG, Liu et al. 2020, Algorithm 1).

    Training is that of the method it is added to, FedAvg when alone. Every client has one edge server. In each round
    an edge sends its model to those of its clients that take part, and does with their updates what the method's
    server does. After ``every`` rounds the cloud takes the weighted mean of the edges' models, and of what the
    method keeps on its servers, and sends it back to all edges. A round is one of the edges, the paper's
    ``kappa_2 = every``. With ``every=1`` the weights are those of the method without edges, for FedAvg and every
    method whose server takes a linear step.

    Between two rounds of the cloud the global model, which is scored, is the mean that the cloud would make then. An
    edge counts by the weights of the updates that it has added up since the last round of the cloud: with all clients
    in every round these are its rows, as in the paper. An edge without updates keeps its model.

    Edges do not wait for each other between rounds of the cloud. A client's line to its edge is ``nearer`` times as
    fast as the fleet's, which leads to the cloud (the paper's cloud is ten times as far away as an edge); the line of
    an edge to the cloud has ``mbit`` and ``latency``. Robust rules that are written before hierarchical are those of
    the edges, rules after it those of the cloud: ``fedavg + krum + hierarchical + median``.

    Args:
        edges: how many edge servers there are
        every: after how many rounds the cloud aggregates
        by: which clients share an edge: neighbours by number (order), by how fast they receive in the fleet (network),
            by clusters of their label shares (labels), or a file with the numbers of a client and its edge per line
        nearer: how many times as fast and near a client's edge is as the fleet's server
        mbit: bandwidth between an edge and the cloud in Mbit/s, both ways
        latency: seconds until a message between an edge and the cloud arrives

    >>> topology = Hierarchical(edges=2, every=3).topology(0)
    >>> topology.edges, topology.every
    (2, 3)
    """

    addition: ClassVar[bool] = True
    read_by_part: ClassVar[frozenset[str]] = frozenset(
        {"edges", "every", "by", "nearer", "mbit", "latency"}
    )

    edges: Annotated[int, AtLeastOne] = 2
    every: Annotated[int, AtLeastOne] = 5
    by: str = "order"
    nearer: Annotated[float, Positive] = 10.0
    mbit: Annotated[float, Positive] = 100.0
    latency: Annotated[float, NonNegative] = 0.05

    def check_clients(self, clients: int) -> None:
        """Raise an error for more edges than clients, and for a file that does not give every client an edge."""
        super().check_clients(clients)
        mine = self.own(Hierarchical)
        if mine.edges > clients:
            raise FedskewError(
                f"hierarchical with edges={mine.edges} needs as many clients, and there are {clients}: use fewer edges"
            )
        if mine.by not in NAMED:
            edges_in_file(mine.by, clients, mine.edges)

    def topology(self, round: int) -> EdgeServers:
        """Return the edge servers; raise an error for a method whose clients do not all train apart in a round."""
        if type(super().topology(round)) is not Parallel:
            raise FedskewError(
                f"algorithm {self.label()}: hierarchical is for methods in which clients train apart and a server "
                "waits for all of them: leave it out"
            )
        mine = self.own(Hierarchical)
        return EdgeServers(
            mine.edges,
            mine.every,
            mine.by,
            mine.nearer,
            mine.mbit,
            mine.latency,
            super().aggregator,
        )

    @property
    def aggregator(self) -> Aggregator:
        """Return how an edge combines updates: rules that are written after this addition are the cloud's."""
        rule = super().aggregator
        if rule.needs_all:
            return Aggregator()
        return rule
