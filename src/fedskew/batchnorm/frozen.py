"""BatchNorm that is not trained: it normalises with the statistics it came with, during training too.

A pretrained layer whose scale and shift do not change would otherwise still follow the clients' rows with its running
statistics, and send them.
"""

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedskew.batchnorm.masked import replace_batch_norms
from fedskew.core.errors import FedskewError

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class FrozenBatchNorm(nn.Module):
    """A BatchNorm layer in evaluation mode for good; same names and numbers.

    Its statistics are parameters without gradient and no buffers, so that they neither travel nor are copied for each
    client: it treats every row alone, like any layer with fixed weights.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    running_mean: nn.Parameter
    running_var: nn.Parameter

    def __init__(self, layer: _BatchNorm) -> None:
        super().__init__()
        self.eps = layer.eps
        for name in ("weight", "bias", *STATISTICS):
            value = getattr(layer, name)
            if value is not None:
                value = nn.Parameter(value.detach(), requires_grad=False)
            self.register_parameter(name, value)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise with the statistics; inputs of a lower precision in that of the statistics."""
        x = x.to(self.running_mean.dtype)
        return F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
        )


def freeze_batch_norms(model: nn.Module, every: bool) -> nn.Module:
    """Freeze BatchNorm layers in the model itself: those whose parameters are all frozen, or every one.

    Returns the model, or the new layer for a single layer.
    """

    def frozen(layer: _BatchNorm) -> nn.Module:
        if layer.running_mean is None:
            if every:
                raise FedskewError(
                    "norm=frozen needs running statistics to normalise by, and a BatchNorm layer of the model has "
                    "none: set track_running_stats=True, or use norm=local"
                )
            return layer
        if every or _all_frozen(layer):
            return FrozenBatchNorm(layer)
        return layer

    return replace_batch_norms(model, frozen)


def _all_frozen(layer: nn.Module) -> bool:
    """Return whether a layer has parameters, and none that is trained."""
    parameters = list(layer.parameters())
    return bool(parameters) and not any(value.requires_grad for value in parameters)
