"""BatchNorm with statistics shared among the clients of a round at every layer of a step (FedTAN), for both engines.

The shared statistic is the plain mean over the clients, and backward the plain mean of the gradients. Numbers that
are not finite are ignored, so that a diverged client does not affect the others.
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

_TRIPS = 4  # of a layer: the mean, the variance around the shared mean, and the gradient of each


def clients_share(model: nn.Module, policy: BatchNormPolicy, steps: Ints) -> bool:
    """Return whether clients with so many steps must train side by side, because they share statistics at any step."""
    shared = (policy.shares_statistics(step) for step in range(int(steps.max())))
    return len(steps) > 1 and has_batch_norm(model) and any(shared)


def exchange(model: nn.Module, policy: BatchNormPolicy, steps: Ints, number_bytes: int) -> Meeting:
    """Return the messages of clients with so many steps for shared statistics and their gradients."""
    shared = [policy.shares_statistics(step) for step in range(int(steps.max(initial=0)))]
    layers = 0
    channels = 0
    # A layer that is named twice is used twice.
    for _, layer in model.named_modules(remove_duplicate=False):
        if isinstance(layer, _BatchNorm):
            layers += 1
            channels += layer.num_features
    if not any(shared) or not layers:
        return Meeting(np.zeros_like(steps), 0, 0)
    shared_before = np.concatenate([[0], np.cumsum(shared)])
    return Meeting(shared_before[steps], _TRIPS * layers, _TRIPS * channels * number_bytes)


def mean_of_sound(values: Tensor) -> Tensor:
    """Return the mean over the first axis of the rows with finite numbers only; NaN where there are none.

    >>> mean_of_sound(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, torch.inf]]))
    tensor([2., 3.])
    """
    sound = torch.isfinite(values).flatten(1).all(1)
    kept = torch.where(sound.view(-1, *(1,) * (values.dim() - 1)), values, 0)
    return kept.sum(0) / sound.sum()


def settle_with(meet: Meet, mine: Tensor) -> Tensor:
    """Return what ``meet`` makes of all clients' statistics, and backward of their gradients; in a client's thread."""
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
    """Return the mean over the stack inside ``vmap``; outside, for a single client, its own statistic."""
    found: Tensor = _Stacked.apply(mine)  # type: ignore[no-untyped-call]
    return found


class _Stacked(torch.autograd.Function):
    """A function with its own ``vmap`` rule, which gets the whole stack of clients."""

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
    """The mean of the finite rows for every row, and the same for gradients.

    For finite numbers that is the gradient of the sum of all clients' losses: a row is 1 / n of each statistic.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return mean_of_sound(values).expand_as(values)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return mean_of_sound(grads[0]).expand_as(grads[0])
