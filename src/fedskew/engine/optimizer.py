"""The local optimisers, on named tensors: one client's, or the same tensors stacked over clients."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedskew.core.trees import Tensors, Tree

ADAM_BETAS = (0.9, 0.999)
ADAM_EPSILON = 1e-8


@dataclass(frozen=True)
class Optimizer:
    """SGD (momentum, weight decay, Nesterov) or Adam, with PyTorch's update rules; state is a tree, the step is in place."""

    name: Literal["sgd", "adam"] = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def init(self, params: Tensors, stacked: bool) -> Tree:
        """State before the first step; ``stacked`` params have clients on their first axis."""
        if self.name == "adam":
            first = next(iter(params.values()))
            count = torch.zeros(first.shape[:1] if stacked else (), dtype=first.dtype, device=first.device)
            return {"mean": _zeros(params), "square": _zeros(params), "adam": {"step": count}}
        return {"momentum": _zeros(params)} if self.momentum else {}

    @torch.no_grad()
    def step_(self, params: Tensors, grads: Tensors, state: Tree, lr: Tensor) -> None:
        """Move ``params`` and ``state`` in place; ``lr`` is a scalar tensor, so that a captured graph can change it."""
        weights, directions = list(params.values()), [grads[name] for name in params]
        if self.weight_decay:
            directions = list(torch._foreach_add(directions, weights, alpha=self.weight_decay))
        if self.name == "adam":
            directions = self._adam_(params, directions, state)
        elif self.momentum:
            velocity = [state["momentum"][name] for name in params]
            torch._foreach_mul_(velocity, self.momentum)
            torch._foreach_add_(velocity, directions)
            directions = list(torch._foreach_add(directions, velocity, alpha=self.momentum)) if self.nesterov else velocity
        torch._foreach_sub_(weights, torch._foreach_mul(directions, lr))

    def _adam_(self, params: Tensors, grads: list[Tensor], state: Tree) -> list[Tensor]:
        count = state["adam"]["step"].add_(1)
        correction = [1 - beta**count for beta in ADAM_BETAS]
        directions = []
        for name, grad in zip(params, grads, strict=True):
            mean = state["mean"][name].lerp_(grad, 1 - ADAM_BETAS[0])
            square = state["square"][name].mul_(ADAM_BETAS[1]).addcmul_(grad, grad, value=1 - ADAM_BETAS[1])
            mean_part, square_part = (c.view(c.shape + (1,) * (grad.dim() - c.dim())) for c in correction)
            directions.append(mean / mean_part / ((square / square_part).sqrt() + ADAM_EPSILON))
        return directions


def _zeros(params: Tensors) -> Tensors:
    return {name: torch.zeros_like(value) for name, value in params.items()}
