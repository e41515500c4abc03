"""The base class of all models by name, features and a linear head, and their registry."""

from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor, nn

from fedskew.core.errors import FedskewError
from fedskew.core.registry import Registry

Shape: TypeAlias = tuple[int, ...]  # of one row's features, without the batch


class Network(nn.Module):
    """A network ``head(features(x))``; the representation that MOON and CCVR use is the input of ``head``.

    Args:
        features: turns a batch of rows into a batch of vectors
        width: length of such a vector
        classes: number of classes
    """

    def __init__(self, features: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.features = features
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch."""
        logits: Tensor = self.head(self.features(x))
        return logits


def image_shape(model: str, shape: Shape, least: int) -> tuple[int, int, int]:
    """Return ``shape`` as (channels, height, width), or raise an error that says what the model needs."""
    if len(shape) != 3 or min(shape[1:]) < least:
        raise FedskewError(
            f"model {model} needs rows of shape (channels, height, width) with height and width >= {least}, got "
            f"{shape}: "
            "reshape the data or choose mlp, which takes any shape"
        )
    return shape[0], shape[1], shape[2]


def signal_shape(model: str, shape: Shape, least: int) -> tuple[int, int]:
    """Return ``shape`` as (channels, length), or raise an error that says what the model needs."""
    if len(shape) != 2 or shape[1] < least:
        raise FedskewError(
            f"model {model} needs rows of shape (channels, length) with length >= {least}, got {shape}: "
            "reshape the data or choose mlp, which takes any shape"
        )
    return shape[0], shape[1]


# (shape: Shape, classes: int, /, *, options) -> Network
Builder: TypeAlias = Callable[..., nn.Module]
models: Registry[Builder] = Registry("model", "fedskew.models")
