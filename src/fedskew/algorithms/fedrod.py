"""FedRoD: a shared head for balanced classes, and a head of its own that fits each client's label shares."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedskew.algorithms.contract import TRAINED, View, algorithms
from fedskew.algorithms.fedavg import FedAvg
from fedskew.algorithms.fedlc import ABSENT
from fedskew.algorithms.initial_weights import InitialWeights
from fedskew.core.trees import Tensors, Tree


@algorithms.register("fedrod")
@dataclass(frozen=True)
class FedRoD(FedAvg):
    """Robust decoupling of the generic and the personalised model (Chen and Chao 2022, eqs. 5-8, "linear").

    A client trains the shared model with the balanced softmax, the loss of ``f_c(x) + log n_c`` with ``n_c`` its rows
    of class c, so that the shared head ``G`` stays fit for equal classes. Beside it the client trains a head ``P`` of
    its own, with the plain loss of ``G(z) + P(z)``, where the features ``z`` and ``G`` are held fixed. The shared
    model is scored as it is; a client uses ``G + P``, which for linear heads is one head with the sum of their
    weights. ``P`` never leaves the client. The recorded loss is the plain one of the shared model.

    Readings: ``P`` begins at 0, so that a client begins with the shared model, and has a local optimiser of its own,
    with the run's settings. A class that the client does not have counts as 1e-8 rows, as in ``fedlc``. The paper's
    other version, in which a hypernetwork makes ``P`` of the label shares, is left out.

    >>> FedRoD().balanced(torch.zeros(1, 2), torch.tensor([1.0, 100.0]))
    tensor([[0.0000, 4.6052]])
    """

    requires = frozenset({"class_counts", "features", "linear_head"})

    def balanced(self, logits: Tensor, counts: Tensor) -> Tensor:
        """Return the logits plus the log of the client's rows of each class."""
        return logits + counts.clamp_min(ABSENT).log()

    def init_client_state(self, weights: InitialWeights) -> Tree:
        """Return a head of zeros."""
        return {TRAINED: {name: torch.zeros_like(weights[name]) for name in sorted(weights.head)}}

    def objective(self, loss: Tensor, view: View) -> Tensor:
        """Return the balanced loss of the shared model plus that of both heads, which trains the client's own alone."""
        batch = view.batch
        assert batch is not None
        assert view.class_counts is not None
        outputs = batch.logits.detach()
        for value in view.client_state[TRAINED].values():
            if value.dim() == 2:
                outputs = outputs + batch.features.detach() @ value.T
            else:
                outputs = outputs + value
        return batch.loss(self.balanced(batch.logits, view.class_counts)) + batch.loss(outputs)

    def client_model(self, shared: Tensors, kept: Tree) -> Tensors:
        """Return the model with the sum of both heads."""
        model = dict(super().client_model(shared, kept))
        for name, value in kept[f"state.{TRAINED}"].items():
            model[name] = model[name] + value
        return model
