"""Residual networks for small images: ResNet-9, ResNet-18 and ResNet-20, with BatchNorm or GroupNorm."""

from typing import Annotated

import torch
from torch import Tensor, nn

from fedskew.core.registry import AtLeastOne, Positive
from fedskew.models.blocks import Factor, GlobalMax, GlobalMean, Norm, Residual, conv_norm
from fedskew.models.network import Network, Shape, image_shape, models


def _conv(inputs: int, outputs: int, norm: Norm) -> nn.Sequential:
    return nn.Sequential(*conv_norm(inputs, outputs, norm), nn.ReLU())


def _twice(channels: int, norm: Norm) -> Residual:
    return Residual(nn.Sequential(_conv(channels, channels, norm), _conv(channels, channels, norm)))


@models.register("resnet9")
def resnet9(
    shape: Shape,
    classes: int,
    /,
    *,
    width: Annotated[int, AtLeastOne] = 64,
    norm: Norm = "batch",
    logits: Annotated[float, Positive] = 1.0,
) -> Network:
    """ResNet-9 of the DAWNBench entries, the CIFAR net of Stratify (with BatchNorm, and with GroupNorm in table VI).

    Convolutions of 64, 128, 256 and 512 channels, the last three halved by max-pooling, with a residual pair after the
    second and the fourth; global maximum; head.

    >>> sum(p.numel() for p in resnet9((3, 32, 32), 10).parameters())
    6573130

    Args:
        width: channels of the first convolution; the others are multiples of it
        norm: kind of normalisation
        logits: fixed factor on the inputs of the head, and so on the logits but for its bias; 0.125 in those entries,
            which allows larger learning rates
    """
    channels, _, _ = image_shape("resnet9", shape, 8)
    last: list[nn.Module] = [GlobalMax()]
    if logits != 1:
        last.append(Factor(logits))
    features = nn.Sequential(
        _conv(channels, width, norm),
        _conv(width, 2 * width, norm),
        nn.MaxPool2d(2),
        _twice(2 * width, norm),
        _conv(2 * width, 4 * width, norm),
        nn.MaxPool2d(2),
        _conv(4 * width, 8 * width, norm),
        nn.MaxPool2d(2),
        _twice(8 * width, norm),
        *last,
    )
    return Network(features, 8 * width, classes)


class _Subsample(nn.Module):
    """The shortcut A of He et al.: every second pixel, with zeros in the new channels; it has no weights."""

    def __init__(self, more: int) -> None:
        super().__init__()
        self.more = more

    def forward(self, x: Tensor) -> Tensor:
        kept = x[:, :, ::2, ::2]
        return torch.nn.functional.pad(kept, (0, 0, 0, 0, 0, self.more))


def _basic(inputs: int, outputs: int, norm: Norm, *, project: bool) -> Residual:
    """Return the basic block of He et al.; it halves the image where the channels grow."""
    stride = 1
    if inputs != outputs:
        stride = 2
    body = nn.Sequential(
        *conv_norm(inputs, outputs, norm, stride), nn.ReLU(), *conv_norm(outputs, outputs, norm)
    )
    if inputs == outputs:
        return Residual(body, after=nn.ReLU())
    # Made in any case: its weights are drawn before those of the layers that follow
    projection = nn.Sequential(*conv_norm(inputs, outputs, norm, stride, kernel=1))
    if project:
        return Residual(body, projection, nn.ReLU())
    return Residual(body, _Subsample(outputs - inputs), nn.ReLU())


def _stages(
    channels: int, widths: tuple[int, ...], depth: int, norm: Norm, *, project: bool
) -> nn.Sequential:
    """Return a 3x3 stem, ``depth`` basic blocks for each width, and the global mean."""
    layers: list[nn.Module] = [_conv(channels, widths[0], norm)]
    before = widths[0]
    for width in widths:
        for _ in range(depth):
            layers.append(_basic(before, width, norm, project=project))
            before = width
    return nn.Sequential(*layers, GlobalMean())


@models.register("resnet18")
def resnet18(
    shape: Shape,
    classes: int,
    /,
    *,
    width: Annotated[int, AtLeastOne] = 64,
    norm: Norm = "batch",
) -> Network:
    """ResNet-18 for small images: a 3x3 stem of stride 1 and no max-pooling (Stratify's Tiny-ImageNet net).

    He et al. 2016, four stages of two basic blocks with projection shortcuts.

    >>> sum(p.numel() for p in resnet18((3, 32, 32), 10).parameters())
    11173962

    Args:
        width: channels of the first stage; they double at each of the next three
        norm: kind of normalisation
    """
    channels, _, _ = image_shape("resnet18", shape, 4)
    features = _stages(channels, (width, 2 * width, 4 * width, 8 * width), 2, norm, project=True)
    return Network(features, 8 * width, classes)


@models.register("resnet20")
def resnet20(
    shape: Shape,
    classes: int,
    /,
    *,
    width: Annotated[int, AtLeastOne] = 16,
    norm: Norm = "batch",
) -> Network:
    """ResNet-20 of He et al. 2016 (section 4.2) for CIFAR; used in Stratify's comparison with FedTAN.

    Three stages of three basic blocks with shortcuts that have no weights (their option A).

    >>> sum(p.numel() for p in resnet20((3, 32, 32), 10).parameters())
    269722

    Args:
        width: channels of the first stage; they double at each of the next two
        norm: kind of normalisation
    """
    channels, _, _ = image_shape("resnet20", shape, 4)
    features = _stages(channels, (width, 2 * width, 4 * width), 3, norm, project=False)
    return Network(features, 4 * width, classes)
