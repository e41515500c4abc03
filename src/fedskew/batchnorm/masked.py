"""BatchNorm among clients: masked batches for the stacked engine, and exact merging of running statistics.

Averaging running variances ignores that the clients' means differ. The variance of a mixture is the mean of the second
moments less the square of the mean; ``encode`` and ``decode`` compute that by a weighted mean.
"""

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedskew.core.errors import FedskewError
from fedskew.core.trees import Tensors


class Mask:
    """State of the current step that the masked layers of a model share.

    ``rows`` are the real rows of the batch; None if all are. ``agree`` makes one shared statistic of those of the
    clients; None where each client uses its own.
    """

    rows: Tensor | None = None
    agree: Callable[[Tensor], Tensor] | None = None


class MaskedBatchNorm(nn.Module):
    """A BatchNorm layer that can ignore rows of the batch; same parameters and buffers, same result without a mask."""

    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(self, layer: _BatchNorm, mask: Mask) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(layer, name))
        self.momentum = layer.momentum
        self.eps = layer.eps
        self.mask = mask

    def forward(self, x: Tensor) -> Tensor:
        """Normalise with the statistics of the real rows, and update the running ones; in evaluation mode use these.

        Inputs of a lower precision are normalised in that of the weights; vmap has no BatchNorm of bfloat16 on a GPU.
        """
        if self.weight is not None:
            x = x.to(self.weight.dtype)
        if not self.training and self.running_mean is not None:
            return F.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
            )
        if self.mask.rows is None and self.mask.agree is None and self.momentum is not None:
            if self.num_batches_tracked is not None:
                self.num_batches_tracked = self.num_batches_tracked + 1
            statistics = (self.running_mean, self.running_var)
            return F.batch_norm(
                x, *statistics, self.weight, self.bias, True, self.momentum, self.eps
            )
        return self._masked(x)

    def _masked(self, x: Tensor) -> Tensor:
        over = [0, *range(2, x.dim())]
        channels = (1, -1) + (1,) * (x.dim() - 2)
        real = self.mask.rows
        if real is None:
            real = torch.ones_like(x.flatten(1)[:, 0])
        real = real.view(-1, *(1,) * (x.dim() - 1))
        count = real.sum() * x[0, 0].numel()
        agree = self.mask.agree or (lambda statistic: statistic)
        mean = agree((x * real).sum(over) / count)
        centred = x - mean.view(channels)
        variance = agree((centred.square() * real).sum(over) / count)
        if self.mask.agree:
            variance = variance.clamp_min(0)  # whatever other clients have brought
        self._track(mean.detach(), variance.detach() * count / (count - 1))
        result = centred * torch.rsqrt(variance + self.eps).view(channels)
        if self.weight is not None:
            result = result * self.weight.view(channels)
        if self.bias is not None:
            result = result + self.bias.view(channels)
        return result

    def _track(self, mean: Tensor, variance: Tensor) -> None:
        if (
            self.running_mean is None
            or self.running_var is None
            or self.num_batches_tracked is None
        ):
            return
        self.num_batches_tracked = self.num_batches_tracked + 1
        share: float | Tensor
        if self.momentum is None:
            share = 1 / self.num_batches_tracked.to(mean.dtype)
        else:
            share = self.momentum
        self.running_mean = self.running_mean + share * (mean - self.running_mean)
        self.running_var = self.running_var + share * (variance - self.running_var)


def maskable(model: nn.Module) -> tuple[nn.Module, Mask]:
    """Return a copy of the model whose BatchNorm layers take a mask, and that mask."""
    mask = Mask()

    def masked(layer: _BatchNorm) -> nn.Module:
        return MaskedBatchNorm(layer, mask)

    return replace_batch_norms(copy.deepcopy(model), masked), mask


def replace_batch_norms(model: nn.Module, make: Callable[[_BatchNorm], nn.Module]) -> nn.Module:
    """Replace every BatchNorm layer in the model itself; return the model, or the new layer for a single layer."""
    if isinstance(model, _BatchNorm):
        return make(model)
    replaced: dict[nn.Module, nn.Module] = {}  # a layer that is used in two places stays one layer
    for parent in list(model.modules()):
        # named_children would skip the second place
        for name, child in list(parent._modules.items()):
            if isinstance(child, _BatchNorm):
                if child not in replaced:
                    replaced[child] = make(child)
                setattr(parent, name, replaced[child])
    return model


def has_batch_norm(model: nn.Module) -> bool:
    """Return whether any layer normalises over the batch."""
    return any(isinstance(module, _BatchNorm) for module in model.modules())


def check_layers(model: nn.Module) -> None:
    """Raise an error for the one normalisation whose running statistics cannot be masked."""
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats:
            raise FedskewError(
                f"layer {name!r}: InstanceNorm with running statistics is not supported, set track_running_stats=False"
            )


def encode(buffers: Tensors) -> Tensors:
    """Return buffers in a form for weighted means: variances as second moments, counters as numbers.

    They are float64, because a second moment less a squared mean loses digits when the mean is large.
    """
    encoded = {}
    for name, value in buffers.items():
        partner = _mean_beside(name)
        wide = value.to(torch.float64)
        if partner in buffers:
            wide = wide + buffers[partner].to(torch.float64).square()
        encoded[name] = wide
    return encoded


def decode(mean: Tensors, like: Tensors) -> Tensors:
    """Return buffers from the weighted mean of encoded ones, in the dtypes of ``like``."""
    decoded = {}
    for name, value in mean.items():
        partner = _mean_beside(name)
        if partner in mean:
            value = (value - mean[partner].square()).clamp_min(0)
        if not like[name].is_floating_point():
            value = value.round()
        decoded[name] = value.to(like[name].dtype)
    return decoded


def _mean_beside(name: str) -> str:
    """Return the running mean of a running variance; for all else a name that no buffer has."""
    if name.endswith("running_var"):
        return name.removesuffix("running_var") + "running_mean"
    return ""
