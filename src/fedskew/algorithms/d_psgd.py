"""D-PSGD and gossip: no server; clients mix their models with those of their neighbours on a graph."""

from dataclasses import dataclass
from typing import Annotated
from zlib import crc32

import numpy as np
import torch

from fedskew.algorithms.client_models import MODELS, ClientModels, mean_model
from fedskew.algorithms.contract import Cohort, algorithms
from fedskew.algorithms.graphs import graph_of, matching, mixing_weights
from fedskew.algorithms.initial_weights import InitialWeights
from fedskew.algorithms.topologies import Graph, Links
from fedskew.core.errors import FedskewError
from fedskew.core.registry import Bounds, NonNegative
from fedskew.core.streams import Ints, Stream
from fedskew.core.trees import Tensors, Tree


@algorithms.register("d-psgd")
@dataclass(frozen=True)
class DPSGD(ClientModels):
    """Decentralised parallel SGD (Lian et al. 2017, Algorithm 1).

    Every client has a model ``x_i``. In a round it trains this as in FedAvg, to ``y_i``, and sends it to its neighbours
    on the graph. Its new model is ``x_i = sum_j W_ij y_j`` over itself and these, with the Metropolis weights
    ``W_ij = 1 / (1 + max(d_i, d_j))`` of clients with so many neighbours. The client uses its own model.
    ``consensus_distance`` in the table of rounds is the root mean square, over clients, of the distance to their mean.
    On the complete graph, with all clients in every round, D-PSGD is FedAvg with ``weights=uniform``.

    Readings: Algorithm 1 mixes models before the gradient step and allows the other order, which is used here: then
    clients may take many steps between two mixings. A neighbour whose model does not arrive is left out of the mixture
    on both sides. The graph is symmetric and must be connected.

    Args:
        graph: ring, torus, complete, random, or a file with two client numbers per line
        degree: number of neighbours of most clients of a random graph, which is made of circles; even
        graph_seed: draws the random graph, the same one for all seeds of a study

    >>> DPSGD(graph="ring").links(4, Stream(0, "server", 0)).sum(1).tolist()
    [2, 2, 2, 2]
    """

    requires = frozenset({"single_updates", "answer_in_use"})

    graph: str = "ring"
    degree: Annotated[int, Bounds(2, 1000)] = 4
    graph_seed: Annotated[int, NonNegative] = 0

    def check_clients(self, clients: int) -> None:
        """Raise an error for a graph that cannot be made for so many clients."""
        if self.degree % 2:
            raise FedskewError(
                f"{self.label()} makes random graphs of circles, got degree={self.degree}: use an even number"
            )
        if self.graph == "random" and self.degree >= clients:
            raise FedskewError(
                f"graph=random with degree={self.degree} needs at least {self.degree + 1} clients, and there are "
                f"{clients}: use a smaller degree, or graph=complete"
            )
        graph_of.cache_clear()  # a file may have changed since the last run
        self._graph(clients)

    def _graph(self, clients: int) -> Links:
        return graph_of(self.graph, clients, self.degree, self.graph_seed)

    def links(self, clients: int, stream: Stream) -> Links:
        """Return who exchanges models with whom in a round."""
        return self._graph(clients)

    def topology(self, round: int) -> Graph:
        """Return the graph."""
        return Graph(self.links)

    def init_server_state(self, weights: InitialWeights) -> Tree:
        """Return the initial weights for every client, and a checksum of the graph, which must stay the same."""
        links = self._graph(weights.clients)
        return {
            **super().init_server_state(weights),
            "graph": {"checksum": torch.tensor(crc32(links.tobytes()))},
        }

    def answer(self, server_state: Tree, clients: Ints) -> Tree:
        """Return each client's own model."""
        models: Tensors = {}
        for name, value in server_state[MODELS].items():
            models[name] = value[torch.from_numpy(clients).to(value.device)]
        return {"model": models}

    def server_update(
        self, weights: Tensors, server_state: Tree, mean: Tree, cohort: Cohort
    ) -> tuple[Tensors, Tree]:
        """Return the models, those of the round's clients mixed with their neighbours'."""
        if not len(cohort.clients):
            return weights, server_state
        _, state = super().server_update(weights, server_state, mean, cohort)
        self._check_same(state)
        clients = cohort.clients
        models = state[MODELS]
        links = self.links(len(state["known"][""]), cohort.stream)
        shares = torch.from_numpy(mixing_weights(links[np.ix_(clients, clients)]))
        mixed: Tensors = {}
        for name, value in models.items():
            here = torch.from_numpy(clients).to(value.device)
            mixture = torch.tensordot(shares.to(value), value[here], dims=1)
            mixed[name] = value.index_copy(0, here, mixture)
        return mean_model(mixed), {**state, MODELS: mixed}

    def _check_same(self, server_state: Tree) -> None:
        """Raise an error if a resumed run has another graph than when it began."""
        links = self._graph(len(server_state["known"][""]))
        if crc32(links.tobytes()) != int(server_state["graph"]["checksum"]):
            raise FedskewError(
                f"graph={self.graph} has other links than when the run began: put the file back, or start a new run"
            )

    def metrics(self, server_state: Tree) -> dict[str, float]:
        """Return how far clients' models are from their mean."""
        squares = 0.0
        for value in server_state[MODELS].values():
            apart = value - value.mean(0)
            squares += float(apart.double().square().sum()) / len(value)
        return {"consensus_distance": squares**0.5}

    def client_model(self, shared: Tensors, kept: Tree) -> Tensors:
        """Return the client's own model."""
        return {**super().client_model(shared, kept), **kept["answer.model"]}


@algorithms.register("gossip")
@dataclass(frozen=True)
class Gossip(DPSGD):
    """Randomised gossip (Boyd et al. 2006) between rounds of local training: D-PSGD in which a client meets one other.

    In every round pairs of neighbours on the graph are drawn at random, no client in two, until no two neighbours are
    left. Both clients of a pair take the mean of their models. A client without a partner, or whose partner takes no
    part in the round, keeps its own.

    >>> Gossip(graph="ring").links(4, Stream(0, "server", 0)).sum(1).tolist()
    [1, 1, 1, 1]
    """

    def links(self, clients: int, stream: Stream) -> Links:
        """Return the pairs of a round."""
        return matching(self._graph(clients), stream)
