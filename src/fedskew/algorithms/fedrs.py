"""FedRS: the logits of classes that a client does not have are scaled down."""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedskew.algorithms.contract import View, algorithms
from fedskew.algorithms.fedavg import FedAvg
from fedskew.core.registry import Share


@algorithms.register("fedrs")
@dataclass(frozen=True)
class FedRS(FedAvg):
    """Restricted softmax against label skew (Li and Zhan 2021, eqs. 5-6).

    A client minimises the loss of ``a_c f_c(x)`` in place of its logits ``f_c(x)``, where ``a_c`` is 1 for the classes
    that it has rows of and ``alpha`` for the others: rows of its own classes then push the weights of absent classes
    away less. The recorded loss is the plain one, and the model is used with its plain logits. ``alpha = 1`` is FedAvg.

    Reading: the paper's logits are ``w_c' h`` without a bias; here the whole logit is scaled, bias included.

    Args:
        alpha: factor of the logits of classes that the client does not have

    >>> FedRS(alpha=0.5).restricted(torch.tensor([[2.0, 2.0]]), torch.tensor([3.0, 0.0]))
    tensor([[2., 1.]])
    """

    requires = frozenset({"class_counts"})

    alpha: Annotated[float, Share] = 0.5

    def restricted(self, logits: Tensor, counts: Tensor) -> Tensor:
        """Return the logits with those of absent classes scaled."""
        return torch.where(counts > 0, logits, self.alpha * logits)

    def objective(self, loss: Tensor, view: View) -> Tensor:
        """Return the loss of the restricted logits."""
        assert view.batch is not None
        assert view.class_counts is not None
        return view.batch.loss(self.restricted(view.batch.logits, view.class_counts))
