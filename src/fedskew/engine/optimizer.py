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
            shape: tuple[int, ...] = ()
            if stacked:
                shape = first.shape[:1]
            count = torch.zeros(shape, dtype=first.dtype, device=first.device)
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
        weights = list(params.values())
        directions = [grads[name] for name in params]
        if self.name == "sgd" and _fusable(weights, directions, lr):
            self._fused_sgd_(weights, directions, self._velocity(params, state), lr)
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
            directions = self._momentum_(directions, self._velocity(params, state))
        torch._foreach_sub_(weights, torch._foreach_mul(directions, _for_each(lr, weights)))

    def _velocity(self, params: Tensors, state: Tree) -> list[Tensor]:
        """Return the momentum of each parameter; there is none in SGD without momentum."""
        if not self.momentum:
            return []
        return [state["momentum"][name] for name in params]

    def _fused_sgd_(
        self,
        weights: list[Tensor],
        directions: list[Tensor],
        velocity: list[Tensor],
        lr: Tensor,
    ) -> None:
        """Take a step of SGD in PyTorch's fused kernel."""
        rate: Any = lr
        if lr.is_cuda:
            weights = _in_pieces(weights)
            directions = _in_pieces(directions)
            velocity = _in_pieces(velocity)
        else:
            rate = float(lr)
        torch._fused_sgd_(
            weights,
            directions,
            velocity,
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            lr=rate,
            dampening=0.0,
            nesterov=self.nesterov,
            maximize=False,
            is_first_step=False,
        )

    def _momentum_(self, grads: list[Tensor], velocity: list[Tensor]) -> list[Tensor]:
        torch._foreach_mul_(velocity, self.momentum)
        torch._foreach_add_(velocity, grads)
        if self.nesterov:
            return list(torch._foreach_add(grads, velocity, alpha=self.momentum))
        return velocity

    def _adam_(self, params: Tensors, grads: list[Tensor], state: Tree) -> list[Tensor]:
        mean_beta, square_beta = ADAM_BETAS
        count = state["adam"]["step"].add_(1)
        mean_correction = 1 - mean_beta**count
        square_correction = 1 - square_beta**count
        directions = []
        for name, grad in zip(params, grads, strict=True):
            mean = state["mean"][name]
            mean.lerp_(grad, 1 - mean_beta)
            square = state["square"][name]
            square.mul_(square_beta).addcmul_(grad, grad, value=1 - square_beta)
            unbiased_mean = mean / _beside(mean_correction, grad)
            unbiased_square = square / _beside(square_correction, grad)
            directions.append(unbiased_mean / (unbiased_square.sqrt() + ADAM_EPSILON))
        return directions

    def _adadelta_(self, params: Tensors, grads: list[Tensor], state: Tree) -> list[Tensor]:
        squares = [state["square"][name] for name in params]
        changes = [state["change"][name] for name in params]
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
        each = []
        for value in tensors:
            each.append(torch.linalg.vector_norm(value.reshape(len(value), -1), dim=1))
        norms = torch.stack(each)
    else:
        norms = torch.stack(torch._foreach_norm(tensors))
    scale = (most / (torch.linalg.vector_norm(norms, dim=0) + CLIP_EPSILON)).clamp(max=1.0)
    return {name: value * _beside(scale, value) for name, value in grads.items()}


def state_of(names: frozenset[str], state: Tree, params: Tensors) -> Tree:
    """Return the state of some of the parameters, and what belongs to no parameter, like Adam's count of steps."""
    some: Tree = {}
    for part, tensors in state.items():
        some[part] = {}
        for name, value in tensors.items():
            if name in names or name not in params:
                some[part][name] = value
    return some


def _fusable(weights: list[Tensor], directions: list[Tensor], lr: Tensor) -> bool:
    """Return whether PyTorch's fused step takes these: one layout for both, one rate, and on a GPU in float32."""
    one_layout = all(w.stride() == d.stride() for w, d in zip(weights, directions, strict=True))
    return one_layout and not lr.dim() and (not lr.is_cuda or lr.dtype == torch.float32)


def _in_pieces(tensors: list[Tensor]) -> list[Tensor]:
    """Return the tensors in about 40 pieces: a fused step works on pieces side by side, and starts few at a time."""
    size = max(_SMALLEST_PIECE, sum(value.numel() for value in tensors) // 40)
    pieces: list[Tensor] = []
    for value in tensors:
        pieces.extend(torch.split(value.view(-1), size))
    return pieces


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
