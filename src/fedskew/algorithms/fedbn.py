"""FedBN and MFedBN: BatchNorm stays with each client, the rest is averaged, at once or in small steps."""

from dataclasses import dataclass
from typing import Annotated, Literal

from fedskew.algorithms.contract import Cohort, algorithms
from fedskew.algorithms.fedavg import FedAvg
from fedskew.batchnorm.policy import BatchNormPolicy
from fedskew.core.registry import Positive
from fedskew.core.trees import Tensors, Tree


@algorithms.register("fedbn")
@dataclass(frozen=True)
class FedBN(FedAvg):
    """FedAvg of all but BatchNorm (Li, Jiang et al. 2021, Algorithm 1; the baseline of MFedBN).

    Scale, shift and running statistics stay with their client; the global model keeps its initial ones, so the
    clients' own models are the result. Without BatchNorm in the model it is FedAvg.

    >>> from fedskew.models.build import build
    >>> from fedskew.models.layout import layout
    >>> sorted(FedBN().batchnorm.local_names(layout(build("tabular:hidden=4", (3,), 2, seed=0))))[:3]
    ['features.2.bias', 'features.2.num_batches_tracked', 'features.2.running_mean']
    """

    @property
    def batchnorm(self) -> BatchNormPolicy:
        """Return the policy that keeps parameters and running statistics with their client."""
        return BatchNormPolicy(local="everything")


@algorithms.register("mfedbn")
@dataclass(frozen=True)
class MFedBN(FedBN):
    """FedBN with a learning rate on the server (MFedBN, section 4): ``w <- w + eta sum_k (n_k / n) (w_k - w)``.

    Of BatchNorm the paper says two things. Its introduction preserves "local Batch Normalization statistics", as
    FedBN does: ``norm=local``, where ``eta = 1`` is FedBN. Section 4, word for word, has clients start from the
    global weights, and "the BN parameters from the previous global model are retained": ``norm=global``. Scale, shift
    and running statistics of the global model then keep their initial values, clients start from them in every
    round, and the clients' values are discarded, so here they are not sent. Clients then have no own models, and the
    global one normalises by its initial statistics.

    The paper tries 0.00001 to 0.1 and names no best; the default is its largest, the only one at which the global
    model moves much in its 10 rounds. Own models are as in FedBN, the global one with the client's BatchNorm, and
    move no more than that; what the paper reaches with a smaller ``eta`` can only be of models straight after local
    training.

    Args:
        eta: learning rate of the server
        norm: BatchNorm stays with each client (local, the introduction), or the global model's keeps its initial
            values and clients start from it in every round (global, section 4 to the letter)

    >>> import numpy as np
    >>> import torch
    >>> mean, cohort = {"delta": {"w": torch.tensor([2.0])}}, Cohort(np.ones(2), total=4.0)
    >>> MFedBN(eta=0.25).server_update({"w": torch.tensor([1.0])}, {}, mean, cohort)
    ({'w': tensor([1.5000])}, {})
    """

    eta: Annotated[float, Positive] = 0.1
    norm: Literal["local", "global"] = "local"

    @property
    def batchnorm(self) -> BatchNormPolicy:
        """Return the policy that keeps BatchNorm with each client, or keeps the global model's as initialised."""
        if self.norm == "local":
            return super().batchnorm
        return BatchNormPolicy(frozen=True)

    def server_update(
        self, weights: Tensors, server_state: Tree, mean: Tree, cohort: Cohort
    ) -> tuple[Tensors, Tree]:
        """Return the weights moved towards the mean by ``eta`` of the distance."""
        return {
            name: weight + self.eta * mean["delta"][name] for name, weight in weights.items()
        }, server_state
