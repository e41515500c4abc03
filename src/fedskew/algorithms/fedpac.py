"""FedPAC: clients align their features by class, and the server mixes a head for each of them."""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedskew.aggregation.mixing import least_variance_shares
from fedskew.algorithms.contract import Cohort, View, algorithms
from fedskew.algorithms.fedavg import FedAvg
from fedskew.algorithms.fedproto import FedProto
from fedskew.algorithms.initial_weights import InitialWeights
from fedskew.core.errors import FedskewError
from fedskew.core.registry import NonNegative
from fedskew.core.streams import Floats, Ints
from fedskew.core.trees import Tensors, Tree
from fedskew.models.layout import Layout


@algorithms.register("fedpac")
@dataclass(frozen=True)
class FedPAC(FedAvg):
    """Feature alignment and classifier collaboration (Xu, Tong and Huang 2023, Algorithm 1).

    The layers before the head are averaged as in FedAvg. Every client has a head of its own on the server. In the first
    local epoch of a round the client trains its head alone, in the others the layers before it; with one epoch it
    trains both. To its loss it adds ``lam`` times the mean over its rows of ``||z - C_y||^2 / d``: ``z`` is the input
    of the head, of width d, and ``C_y`` the mean feature of the row's class over the clients of the last round that
    had rows of it. A class without one so far has no such term.

    After local training the client sends, by class, the sums and numbers of its features, and the sum of their
    squares. With ``h_i`` the client's sums over its n_i rows and ``v_i = (mean ||z||^2 - ||h_i||^2) / n_i``, the
    client's new head is the mixture of those of the round with the shares a that have the least
    ``sum_j a_j^2 v_j + ||sum_j a_j (h_i - h_j)||^2``, at least 0 and summing to 1. Clients of other rounds keep their
    heads. The model that a client uses has its own head.

    Readings: statistics are of the features after local training; the authors' code takes those for the mixture before
    it. A client without a head of its own so far, such as a newcomer, has the initial one.

    Args:
        lam: strength of the pull towards the mean features

    >>> from fedskew.models.build import build
    >>> from fedskew.models.layout import layout
    >>> sorted(FedPAC().trainable(layout(build("mlp:hidden=4", (3,), 2, seed=0)), epoch=0, epochs=2))
    ['head.bias', 'head.weight']
    """

    requires = frozenset(
        {"classes", "features", "class_features", "single_updates", "answer_in_use"}
    )

    lam: Annotated[float, NonNegative] = 1.0

    @property
    def no_shared_model(self) -> str:
        """Return that heads are clients' own."""
        return "each client has a head of its own"

    def trainable(self, layout: Layout, epoch: int, epochs: int) -> frozenset[str]:
        """Return the head in the first epoch, and the other layers in those after it."""
        if epochs == 1:
            return layout.parameters
        if epoch == 0:
            return layout.parameters & layout.head
        return layout.parameters - layout.head

    def init_server_state(self, weights: InitialWeights) -> Tree:
        """Return the initial head for every client, and no mean feature of any class."""
        heads: Tensors = {}
        for name in sorted(weights.head & weights.keys()):
            value = weights[name]
            heads[name] = value.expand(weights.clients, *value.shape).clone()
        if not heads or not weights.keys() - weights.head:
            raise FedskewError(
                "fedpac shares the layers before the head and mixes heads: use a model with both, such as mlp"
            )
        return {"heads": heads, **FedProto().init_server_state(weights)}

    def broadcast(self, server_state: Tree) -> Tree:
        """Return the mean features by class."""
        return {"prototypes": server_state["prototypes"]}

    def answer(self, server_state: Tree, clients: Ints) -> Tree:
        """Return each client's head."""
        heads: Tensors = {}
        for name, value in server_state["heads"].items():
            heads[name] = value[torch.from_numpy(clients).to(value.device)]
        return {"model": heads}

    def objective(self, loss: Tensor, view: View) -> Tensor:
        """Return the loss plus the pull towards the mean features."""
        batch = view.batch
        assert batch is not None
        apart = FedProto.distances(batch.features, batch.labels, view.server["prototypes"])
        return loss + self.lam * batch.mean(apart)

    def payload(self, view: View) -> Tree:
        """Return the change of the weights, and the statistics of the features."""
        return {**super().payload(view), "features": view.class_features}

    def server_update(
        self, weights: Tensors, server_state: Tree, mean: Tree, cohort: Cohort
    ) -> tuple[Tensors, Tree]:
        """Return the mean of the layers before the head, new heads of the round's clients, and new mean features."""
        if not len(cohort.clients):
            return weights, server_state
        features = {name: value.double() for name, value in cohort.updates["features"].items()}
        index = torch.from_numpy(cohort.clients)
        shares = torch.from_numpy(self._shares(features))
        heads: Tensors = {}
        for name, value in server_state["heads"].items():
            change = cohort.updates["delta"][name]
            here = index.to(value.device)
            trained = value[here] + change
            mixed = torch.tensordot(shares.to(trained), trained, dims=1)
            heads[name] = value.index_copy(0, here, mixed)
        weights, _ = super().server_update(weights, {}, mean, cohort)
        counted = {"sum": features["sum"].sum(0), "count": features["count"].sum(0)}
        prototypes = FedProto.renewed(server_state["prototypes"], counted)
        return weights, {"heads": heads, "prototypes": prototypes}

    def _shares(self, features: Tensors) -> Floats:
        """Return the shares of the round's heads in the new head of each of its clients, a row each."""
        rows = features["count"].sum(1)
        means = features["sum"].flatten(1) / rows[:, None]
        spread = features["square"].sum(1) / rows - means.square().sum(1)
        variances = spread.clamp(min=0) / rows
        return least_variance_shares(means.cpu().numpy(), variances.cpu().numpy())

    def client_model(self, shared: Tensors, kept: Tree) -> Tensors:
        """Return the shared layers with the client's head."""
        return {**super().client_model(shared, kept), **kept["answer.model"]}
