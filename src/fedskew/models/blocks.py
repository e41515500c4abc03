"""Layers that several models use; all work under ``torch.func`` (nothing in place, no branching on values)."""

from typing import Literal, TypeAlias

from torch import Tensor, nn

Norm: TypeAlias = Literal["batch", "group"]
Activation: TypeAlias = Literal["relu", "leaky_relu", "elu", "gelu", "silu", "tanh"]

_ACTIVATIONS: dict[Activation, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}

_CHANNELS_A_GROUP = 16  # Wu and He 2018, table 3: as good as 32 groups, and safe for narrow layers


def groups_of(channels: int) -> int:
    """Return the number of groups of a GroupNorm: at least 16 channels in each, if there are 16.

    A group of one channel over one pixel would normalise every value to zero; a fixed number of groups comes to that.

    >>> [groups_of(channels) for channels in (4, 16, 64, 512)]
    [1, 1, 4, 32]
    """
    most = max(1, channels // _CHANNELS_A_GROUP)
    return next(groups for groups in range(most, 0, -1) if channels % groups == 0)


def normaliser(norm: Norm, channels: int, *, image: bool = True) -> nn.Module:
    """Return the normalisation layer of that kind, for images or for flat features."""
    if norm == "group":
        return nn.GroupNorm(groups_of(channels), channels)
    if image:
        return nn.BatchNorm2d(channels)
    return nn.BatchNorm1d(channels)


def nonlinear(activation: Activation, dropout: float = 0.0) -> list[nn.Module]:
    """Return the activation of that name with PyTorch's defaults, then drop-out; with a share of 0 no drop-out layer.

    >>> nonlinear("relu"), nonlinear("tanh", 0.5)
    ([ReLU()], [Tanh(), Dropout(p=0.5, inplace=False)])
    """
    layers = [_ACTIVATIONS[activation]()]
    if dropout:
        return [*layers, nn.Dropout(dropout)]
    return layers


def conv_norm(
    inputs: int, outputs: int, norm: Norm, stride: int = 1, kernel: int = 3
) -> list[nn.Module]:
    """Return a convolution without bias, which the normalisation would cancel, and its normalisation."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
    return [conv, normaliser(norm, outputs)]


class Residual(nn.Module):
    """A residual block: ``after(shortcut(x) + body(x))``."""

    def __init__(
        self, body: nn.Module, shortcut: nn.Module | None = None, after: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut or nn.Identity()
        self.after = after or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of both branches."""
        total: Tensor = self.after(self.shortcut(x) + self.body(x))
        return total


class GlobalMax(nn.Module):
    """A layer that returns the largest value of each channel."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, channels, height, width) to (batch, channels)."""
        return x.amax((2, 3))


class GlobalMean(nn.Module):
    """A layer that returns the mean of each channel."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, channels, height, width) to (batch, channels)."""
        return x.mean((2, 3))


class Factor(nn.Module):
    """A fixed factor on every value."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """Return the values times the factor."""
        return x * self.factor
