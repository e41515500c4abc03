"""BatchNorm whose statistics the clients of a round settle on together at every layer of a step (FedTAN), for both engines.

What they settle on is the plain mean of what each client found, and backward the plain mean of its gradients. Numbers that are
not finite do not count: a broken client must not break the others.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedskew.batchnorm.masked import has_batch_norm
from fedskew.batchnorm.policy import BatchNormPolicy
from fedskew.batchnorm.turns import Meet
from fedskew.core.streams import Ints
from fedskew.fleet.clock import Meeting

_TRIPS = 4  # of a layer: the mean, the variance around the common mean, and the gradient of each, one after the other


def clients_share(model: nn.Module, policy: BatchNormPolicy, steps: Ints) -> bool:
    """Return whether clients with so many steps must train side by side, because they share statistics at any step."""
    shared = (policy.shares_statistics(step) for step in range(int(steps.max())))
    return len(steps) > 1 and has_batch_norm(model) and any(shared)


def exchange(model: nn.Module, policy: BatchNormPolicy, steps: Ints, number_bytes: int) -> Meeting:
    """Return what clients with so many steps send each other for common statistics and their gradients."""
    shared = [policy.shares_statistics(step) for step in range(int(steps.max(initial=0)))]
    layers = [layer for _, layer in model.named_modules(remove_duplicate=False) if isinstance(layer, _BatchNorm)]
    if not any(shared) or not layers:
        return Meeting(np.zeros_like(steps), 0, 0)
    shared_before = np.concatenate([[0], np.cumsum(shared)])
    channels = sum(layer.num_features for layer in layers)  # a layer that is named twice is used twice
    return Meeting(shared_before[steps], _TRIPS * len(layers), _TRIPS * channels * number_bytes)


def mean_of_sound(values: Tensor) -> Tensor:
    """The mean over the first axis of the rows with finite numbers only; NaN where there are none.

    >>> mean_of_sound(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, torch.inf]]))
    tensor([2., 3.])
    """
    sound = torch.isfinite(values).flatten(1).all(1)
    kept = torch.where(sound.view(-1, *(1,) * (values.dim() - 1)), values, 0)
    return kept.sum(0) / sound.sum()


def settle_with(meet: Meet, mine: Tensor) -> Tensor:
    """In a client's own thread: what ``meet`` makes of its statistic and of everybody's, and backward of the gradients."""
    found: Tensor = _Met.apply(mine, meet)  # type: ignore[no-untyped-call]
    return found


class _Met(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mine: Tensor, meet: Meet) -> Tensor:
        ctx.meet = meet
        settled: Tensor = meet(mine)
        return settled

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.meet(grads[0]), None


def settle_in_stack(mine: Tensor) -> Tensor:
    """Inside ``vmap``: the mean over the stack; outside it, where one client is alone, its own."""
    found: Tensor = _Stacked.apply(mine)  # type: ignore[no-untyped-call]
    return found


class _Stacked(torch.autograd.Function):
    """How a layer under ``vmap`` sees the other clients: a function with a rule of its own is given the whole stack."""

    @staticmethod
    def forward(mine: Tensor) -> Tensor:
        return mine.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], mine: Tensor) -> tuple[Tensor, int]:
        return _MeanOfSound.apply(mine.movedim(in_dims[0], 0)), 0  # type: ignore[no-untyped-call]


class _MeanOfSound(torch.autograd.Function):
    """Every row becomes the mean of the sound ones, and so do gradients.

    Of finite numbers that is the gradient of the sum of all clients' losses: each statistic has 1 / n of a row in it.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return mean_of_sound(values).expand_as(values)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return mean_of_sound(grads[0]).expand_as(grads[0])
