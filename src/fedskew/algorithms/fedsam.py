"""FedSAM: local steps follow the gradient at nearby weights of larger loss, which leads to flat minima."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch

from fedskew.algorithms.contract import View, algorithms
from fedskew.algorithms.fedavg import FedAvg
from fedskew.core.registry import NonNegative
from fedskew.core.trees import Tensors


@algorithms.register("fedsam")
@dataclass(frozen=True)
class FedSAM(FedAvg):
    """FedAvg with sharpness-aware local steps (Qu et al. 2022, Algorithm 1).

    A local step follows the gradient at ``w + rho g / ||g||`` on the same batch, where ``g`` is the gradient at ``w``
    and the norm is over all parameters. Every step takes two forward and backward passes. ``rho = 0`` is FedAvg.

    Args:
        rho: distance at which the second gradient is taken

    >>> view = View({"w": torch.tensor([1.0])}, {}, {}, {}, {}, 0.0, gradient_at=lambda weights: weights)
    >>> FedSAM(rho=0.5).correct_gradients({"w": torch.tensor([-2.0])}, view)  # at 1 + 0.5 * (-1)
    {'w': tensor([0.5000])}
    """

    requires = frozenset({"gradient_at"})
    cost_per_row: ClassVar[float] = 2.0

    rho: Annotated[float, NonNegative] = 0.05

    def correct_gradients(self, grads: Tensors, view: View) -> Tensors:
        """Return the gradients at the perturbed weights."""
        norm = torch.stack([grad.square().sum() for grad in grads.values()]).sum().sqrt()
        step = self.rho / norm.clamp_min(1e-12)
        return view.gradient_at(
            {name: view.params[name] + step * grad for name, grad in grads.items()}
        )
