"""The local optimisers on named tensors, those of one client or stacked over clients."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fedskew.core.trees import Tensors, Tree

ADAM_BETAS = (0.9, 0.999)
ADAM_EPSILON = 1e-8
ADADELTA_RHO = 0.9
ADADELTA_EPSILON = 1e-6
_SMALLEST_PIECE = 2048  # numbers
CLIP_EPSILON = 1e-6  # of torch.nn.utils.clip_grad_norm_


@dataclass(frozen=True)
class Optimizer:
    """SGD (momentum, weight decay, Nesterov), Adam, AdamW or Adadelta, with PyTorch's update rules and defaults.

    The state is a tree of tensors, and a step changes weights and state in place. ``clip_norm`` is the largest L2 norm
    that a client's gradient may have at a step, over all of its parameters; None leaves gradients as they are.
    ``weight_decay`` is added to the gradient, after clipping; in AdamW it shrinks the weights instead.
    """

    name: Literal["sgd", "adam", "adamw", "adadelta"] = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    clip_norm: float | None = None

    def init(self, params: Tensors, stacked: bool) -> Tree:
        """Return the state before the first step; ``stacked`` params have clients on their first axis."""
        if self.name in ("adam", "adamw"):
            first = next(iter(params.values()))
            count = torch.zeros(
                first.shape[:1] if stacked else (), dtype=first.dtype, device=first.device
            )
            return {"mean": _zeros(params), "square": _zeros(params), "adam": {"step": count}}
        if self.name == "adadelta":
            return {"square": _zeros(params), "change": _zeros(params)}
        if self.momentum:
            return {"momentum": _zeros(params)}
        return {}

    @torch.no_grad()
    def step_(
        self, params: Tensors, grads: Tensors, state: Tree, lr: Tensor, stacked: bool = False
    ) -> None:
        """Update ``params`` and ``state`` in place; ``lr`` is a tensor, so that a captured graph can change it.

        ``stacked`` tensors have clients on their first axis; ``clip_norm`` is each client's, and ``lr`` may be.
        """
        if self.clip_norm is not None:
            grads = clipped(grads, self.clip_norm, stacked)
        weights, directions = list(params.values()), [grads[name] for name in params]
        if self.name == "sgd" and _fusable(weights, directions, lr):
            velocity = [state["momentum"][name] for name in params] if self.momentum else []
            if lr.is_cuda:
                weights, directions, velocity = (
                    _in_pieces(tensors) for tensors in (weights, directions, velocity)
                )
            torch._fused_sgd_(
                weights, directions, velocity, weight_decay=self.weight_decay, momentum=self.momentum,
                lr=lr if lr.is_cuda else float(lr), dampening=0.0, nesterov=self.nesterov, maximize=False,
                is_first_step=False,
            )  # fmt: skip
            return
        if self.weight_decay and self.name == "adamw":
            torch._foreach_mul_(weights, _for_each(1 - lr * self.weight_decay, weights))
        elif self.weight_decay:
            directions = list(torch._foreach_add(directions, weights, alpha=self.weight_decay))
        if self.name in ("adam", "adamw"):
            directions = self._adam_(params, directions, state)
        elif self.name == "adadelta":
            directions = self._adadelta_(params, directions, state)
        elif self.momentum:
            velocity = [state["momentum"][name] for name in params]
            torch._foreach_mul_(velocity, self.momentum)
            torch._foreach_add_(velocity, directions)
            ahead = (
                torch._foreach_add(directions, velocity, alpha=self.momentum)
                if self.nesterov
                else velocity
            )
            directions = list(ahead)
        torch._foreach_sub_(weights, torch._foreach_mul(directions, _for_each(lr, weights)))

    def _adam_(self, params: Tensors, grads: list[Tensor], state: Tree) -> list[Tensor]:
        count = state["adam"]["step"].add_(1)
        correction = [1 - beta**count for beta in ADAM_BETAS]
        directions = []
        for name, grad in zip(params, grads, strict=True):
            mean = state["mean"][name].lerp_(grad, 1 - ADAM_BETAS[0])
            square = (
                state["square"][name]
                .mul_(ADAM_BETAS[1])
                .addcmul_(grad, grad, value=1 - ADAM_BETAS[1])
            )
            mean_part, square_part = (_beside(c, grad) for c in correction)
            directions.append(mean / mean_part / ((square / square_part).sqrt() + ADAM_EPSILON))
        return directions

    def _adadelta_(self, params: Tensors, grads: list[Tensor], state: Tree) -> list[Tensor]:
        squares, changes = ([state[part][name] for name in params] for part in ("square", "change"))
        torch._foreach_mul_(squares, ADADELTA_RHO)
        torch._foreach_addcmul_(squares, grads, grads, value=1 - ADADELTA_RHO)
        directions = torch._foreach_add(changes, ADADELTA_EPSILON)
        torch._foreach_sqrt_(directions)
        lengths = torch._foreach_add(squares, ADADELTA_EPSILON)
        torch._foreach_sqrt_(lengths)
        torch._foreach_div_(directions, lengths)
        torch._foreach_mul_(directions, grads)
        torch._foreach_mul_(changes, ADADELTA_RHO)
        torch._foreach_addcmul_(changes, directions, directions, value=1 - ADADELTA_RHO)
        return list(directions)


def clipped(grads: Tensors, most: float, stacked: bool) -> Tensors:
    """Return gradients scaled down to an L2 norm of at most ``most`` over all tensors, like clip_grad_norm_ of PyTorch.

    ``stacked`` gradients have clients on their first axis, and each client has a norm of its own. The given tensors are
    only read. A gradient that is not finite stays so: the caller sees that the client has diverged.
    """
    tensors = list(grads.values())
    if stacked:
        norms = torch.stack(
            [torch.linalg.vector_norm(value.reshape(len(value), -1), dim=1) for value in tensors]
        )
    else:
        norms = torch.stack(torch._foreach_norm(tensors))
    scale = (most / (torch.linalg.vector_norm(norms, dim=0) + CLIP_EPSILON)).clamp(max=1.0)
    return {name: value * _beside(scale, value) for name, value in grads.items()}


def _fusable(weights: list[Tensor], directions: list[Tensor], lr: Tensor) -> bool:
    """Return whether PyTorch's fused step takes these: one layout for both, one rate, and on a GPU in float32."""
    one_layout = all(w.stride() == d.stride() for w, d in zip(weights, directions, strict=True))
    return one_layout and not lr.dim() and (not lr.is_cuda or lr.dtype == torch.float32)


def _in_pieces(tensors: list[Tensor]) -> list[Tensor]:
    """Return the tensors in about 40 pieces: a fused step works on pieces side by side, and starts few at a time."""
    size = max(_SMALLEST_PIECE, sum(value.numel() for value in tensors) // 40)
    result: list[Tensor] = []
    for value in tensors:
        for piece in torch.split(value.view(-1), size):
            result.append(piece)
    return result


def _for_each(numbers: Tensor, tensors: list[Tensor]) -> Any:
    """Return what multiplies a list of tensors: one number for all, or a factor for each tensor with one per client."""
    if numbers.dim():
        return [_beside(numbers, value) for value in tensors]
    return numbers


def _beside(numbers: Tensor, value: Tensor) -> Tensor:
    """Return ``numbers`` with as many axes as ``value``: one number for all, or one per entry of the first axis."""
    return numbers.view(numbers.shape + (1,) * (value.dim() - numbers.dim()))


def _zeros(params: Tensors) -> Tensors:
    return {name: torch.zeros_like(value) for name, value in params.items()}
