"""FedProto: clients share the mean features of each class, and no weights."""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedskew.algorithms.contract import Cohort, View, Weighting, algorithms
from fedskew.algorithms.fedavg import FedAvg
from fedskew.algorithms.initial_weights import InitialWeights
from fedskew.core.errors import FedskewError
from fedskew.core.registry import NonNegative
from fedskew.core.trees import Tensors, Tree
from fedskew.models.layout import Layout


@algorithms.register("fedproto")
@dataclass(frozen=True)
class FedProto(FedAvg):
    """Prototypes of classes across clients (Tan et al. 2022, eqs. 3-7, Algorithm 1).

    Every client trains a model of its own, and no weight leaves it. After local training it passes over all its rows in
    evaluation mode and sends, for each class that it has, the sum and the number of their features ``z``, the inputs of
    the head. The server's prototype of a class is the mean over the rows of the clients of a round that have it; a
    class that none of them has keeps its old one. A client minimises its loss plus ``lam`` times the mean over its rows
    of ``||z - C_y||^2 / d``, where ``C_y`` is the prototype of the row's class, of width d, as it was sent; a class
    without one has no such term. ``lam = 0`` is ``local``.

    Readings: eq. 6 divides by the number of clients as well as by that of rows, which would shrink prototypes; here
    they are means over rows. With ``weights=uniform`` a client counts in a class by the share of its rows that are of
    it; the authors' code takes the plain mean of the clients' prototypes. The distance is the mean square of
    single rows, as in the authors' code, where eq. 7 has the client's mean. A client predicts with its head, not by the
    nearest prototype. Its optimiser is kept from round to round, as in ``local``.

    Args:
        lam: strength of the pull towards the prototypes

    >>> prototypes = {"mean": torch.tensor([[1.0, 1.0], [9.0, 9.0]]), "known": torch.tensor([1.0, 0.0])}
    >>> FedProto.distances(torch.zeros(2, 2), torch.tensor([0, 1]), prototypes)
    tensor([1., 0.])
    """

    requires = frozenset({"classes", "features", "class_features", "optimizer_state"})

    lam: Annotated[float, NonNegative] = 1.0

    @property
    def weighting(self) -> Weighting:
        """Return the weighting of clients in prototypes; no weights are averaged."""
        return Weighting(by=self.weights, name="prototypes: {base}")

    def local_names(self, layout: Layout) -> frozenset[str]:
        """Return every parameter and buffer; a model without layers before its head is refused."""
        if layout.head and not layout.parameters - layout.head:
            raise FedskewError(
                "fedproto shares features, the inputs of the head, and here these are the rows themselves: use a model "
                "with layers before its head, such as mlp"
            )
        return layout.parameters | layout.buffers

    def init_server_state(self, weights: InitialWeights) -> Tree:
        """Return no prototype of any class."""
        classes, width = weights.head_shape
        like = weights.any_tensor
        means = like.new_zeros(classes, width)
        return {"prototypes": {"mean": means, "known": like.new_zeros(classes)}}

    def broadcast(self, server_state: Tree) -> Tree:
        """Return the prototypes."""
        return server_state

    @staticmethod
    def distances(features: Tensor, labels: Tensor, prototypes: Tensors) -> Tensor:
        """Return how far each row is from the prototype of its class; 0 where there is none."""
        apart = (features.flatten(1) - prototypes["mean"][labels]).square().mean(-1)
        return prototypes["known"][labels] * apart

    def objective(self, loss: Tensor, view: View) -> Tensor:
        """Return the loss plus the pull towards the prototypes."""
        batch = view.batch
        assert batch is not None
        apart = self.distances(batch.features, batch.labels, view.server["prototypes"])
        return loss + self.lam * batch.mean(apart)

    def payload(self, view: View) -> Tree:
        """Return sums and numbers of the features of each class, over the client's rows."""
        share: Tensors = {}
        for name in ("sum", "count"):
            share[name] = view.class_features[name] / view.numbers["size"]
        return {**super().payload(view), "prototypes": share}

    def server_update(
        self, weights: Tensors, server_state: Tree, mean: Tree, cohort: Cohort
    ) -> tuple[Tensors, Tree]:
        """Return the prototypes of this round; where a class is absent, the old one."""
        if "prototypes" not in mean:  # a round without updates
            return weights, server_state
        return weights, {"prototypes": self.renewed(server_state["prototypes"], mean["prototypes"])}

    @staticmethod
    def renewed(old: Tensors, features: Tensors) -> Tensors:
        """Return the prototypes of new sums and numbers of features; where a class is absent, the old one."""
        count = features["count"]
        here = count > 0
        new = features["sum"] / torch.where(here, count, 1.0)[:, None]
        known = torch.where(here, 1.0, old["known"])
        means = torch.where(here[:, None], new.to(old["mean"]), old["mean"])
        return {"mean": means, "known": known.to(old["known"])}
