"""MOON: a contrastive term keeps a client's features near the global model's and away from its own previous model's."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch.nn.functional as F
from torch import Tensor

from fedskew.algorithms.contract import View, algorithms
from fedskew.algorithms.fedavg import FedAvg
from fedskew.core.registry import NonNegative, Positive
from fedskew.core.trees import Tensors, Tree


@algorithms.register("moon")
@dataclass(frozen=True)
class Moon(FedAvg):
    """Model-contrastive learning (Li, He and Song 2021, eqs. 2-3).

    A client minimises its loss plus ``mu`` times the mean over its rows of ``-log(e^(sim(z, z_global)/tau) /
    (e^(sim(z, z_global)/tau) + e^(sim(z, z_previous)/tau)))``. ``sim`` is the cosine and ``z`` the input of the head:
    under the current weights, under those at the start of the round, and under those at the end of the client's last
    round. The recorded loss is the plain one. ``mu = 0`` is FedAvg.

    Readings: before a client's first round, its previous model is the initial global one. BatchNorm uses the batch's
    own statistics under all three weights. Parts of the model that never leave the client are in its previous one as
    they are now. The paper's nets have a projection before the head; here it is the model's own last features, so a
    model without hidden layers learns nothing from the contrast.

    Args:
        mu: strength of the contrast
        tau: temperature of the contrast

    >>> import torch
    >>> z, other = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]])
    >>> Moon(tau=0.5).contrast(z, near=z, far=other)  # log(1 + e^-2)
    tensor([0.1269])
    """

    requires = frozenset({"features"})
    # A forward pass of the global model and of the previous one
    cost_per_row: ClassVar[float] = 1 + 2 / 3

    mu: Annotated[float, NonNegative] = 1.0
    tau: Annotated[float, Positive] = 0.5

    def init_client_state(self, weights: Tensors) -> Tree:
        """Return the initial global weights as the client's previous model."""
        return {"previous": weights}

    def objective(self, loss: Tensor, view: View) -> Tensor:
        """Return the loss plus the contrastive term."""
        batch = view.batch
        assert batch is not None
        near = batch.features_at(view.start)
        far = batch.features_at(view.client_state["previous"])
        return loss + self.mu * batch.mean(self.contrast(batch.features, near, far))

    def contrast(self, z: Tensor, near: Tensor, far: Tensor) -> Tensor:
        """Return a number for each row, lowest where ``z`` is similar to ``near`` and dissimilar to ``far``."""
        to_near, to_far = (
            F.cosine_similarity(z.flatten(1), other.flatten(1)) for other in (near, far)
        )
        return -F.logsigmoid((to_near - to_far) / self.tau)

    def client_state(self, view: View) -> Tree:
        """Return the weights that local training ended with."""
        return {"previous": {name: view.params[name] for name in view.client_state["previous"]}}
