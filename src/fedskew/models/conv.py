"""Small convolutional models: for images, for FEMNIST as in LEAF, for sensor signals, and for the rows of a table."""

from typing import Annotated

from torch import nn

from fedskew.core.errors import FedskewError
from fedskew.core.registry import AtLeastOne, NonNegative, PartialShare
from fedskew.models.blocks import Activation, nonlinear
from fedskew.models.network import Network, Shape, image_shape, models, signal_shape


def _dense(
    inputs: int, units: int, activation: Activation, dropout: float
) -> tuple[list[nn.Module], int]:
    """Return the layers between the flattened channels and the head, and the width after them.

    That is a dense layer with its activation and drop-out; without units it is drop-out alone.
    """
    if units:
        return [nn.Linear(inputs, units), *nonlinear(activation, dropout)], units
    if dropout:
        return [nn.Dropout(dropout)], inputs
    return [], inputs


def _image_network(
    name: str,
    shape: Shape,
    classes: int,
    kernel: int,
    width: int,
    hidden: int,
    activation: Activation,
    dropout: float,
) -> Network:
    """Return two convolutions of ``width`` and ``2 * width`` channels, each activated and then halved in size."""
    channels, height, across = image_shape(name, shape, 4)
    dense, last = _dense(2 * width * (height // 4) * (across // 4), hidden, activation, dropout)
    features = nn.Sequential(
        nn.Conv2d(channels, width, kernel, padding=kernel // 2),
        *nonlinear(activation),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, kernel, padding=kernel // 2),
        *nonlinear(activation),
        nn.MaxPool2d(2),
        nn.Flatten(),
        *dense,
    )
    return Network(features, last, classes)


def _signal_network(
    first: list[nn.Module],
    signal: tuple[int, int],
    classes: int,
    kernel: int,
    width: int,
    hidden: int,
    activation: Activation,
    dropout: float,
) -> Network:
    """Return the same in one dimension, after the ``first`` layers; ``signal`` has channels and a length."""
    channels, length = signal
    dense, last = _dense(2 * width * (length // 4), hidden, activation, dropout)
    features = nn.Sequential(
        *first,
        nn.Conv1d(channels, width, kernel, padding=kernel // 2),
        *nonlinear(activation),
        nn.MaxPool1d(2),
        nn.Conv1d(width, 2 * width, kernel, padding=kernel // 2),
        *nonlinear(activation),
        nn.MaxPool1d(2),
        nn.Flatten(),
        *dense,
    )
    return Network(features, last, classes)


@models.register("cnn")
def cnn(
    shape: Shape,
    classes: int,
    /,
    *,
    width: Annotated[int, AtLeastOne] = 32,
    hidden: Annotated[int, NonNegative] = 0,
    activation: Activation = "relu",
    dropout: Annotated[float, PartialShare] = 0.0,
) -> Network:
    """Two 3x3 convolutions with ReLU and max-pooling, then one dense layer: the CIFAR-10 net of AFL-CP.

    The paper gives no widths and says "a fully connected dense layer": read as the head itself, after 32 and 64
    channels.

    >>> sum(p.numel() for p in cnn((3, 32, 32), 10).parameters())
    60362

    Args:
        width: channels of the first convolution; the second has twice as many
        hidden: units of another dense layer before the head, 0 for none
        activation: what follows each convolution and the dense layer before the head
        dropout: share of the head's inputs that is dropped at a training step, 0 for no drop-out layer
    """
    return _image_network("cnn", shape, classes, 3, width, hidden, activation, dropout)


@models.register("leaf-cnn")
def leaf_cnn(
    shape: Shape,
    classes: int,
    /,
    *,
    width: Annotated[int, AtLeastOne] = 32,
    hidden: Annotated[int, AtLeastOne] = 2048,
    activation: Activation = "relu",
    dropout: Annotated[float, PartialShare] = 0.0,
) -> Network:
    """LEAF's FEMNIST net: two 5x5 convolutions (32, 64) with max-pooling, 2,048 dense units, the head.

    Caldas et al. 2018, ``models/femnist/cnn.py`` of their repository; the net that AFL-CP names for FEMNIST. Theirs has
    no drop-out.

    >>> sum(p.numel() for p in leaf_cnn((1, 28, 28), 62).parameters())
    6603710

    Args:
        width: channels of the first convolution; the second has twice as many
        hidden: units of the dense layer before the head
        activation: what follows each convolution and the dense layer before the head
        dropout: share of the head's inputs that is dropped at a training step, 0 for no drop-out layer
    """
    return _image_network("leaf-cnn", shape, classes, 5, width, hidden, activation, dropout)


@models.register("har-cnn")
def har_cnn(
    shape: Shape,
    classes: int,
    /,
    *,
    width: Annotated[int, AtLeastOne] = 32,
    hidden: Annotated[int, NonNegative] = 128,
    activation: Activation = "relu",
    dropout: Annotated[float, PartialShare] = 0.0,
) -> Network:
    """Two convolutions of length 9 along time with ReLU and max-pooling, a dense layer, the head: for sensor windows.

    UCI-HAR's raw windows are (9, 128): nine signals, 128 readings.

    >>> sum(p.numel() for p in har_cnn((9, 128), 6).parameters())
    284166

    Args:
        width: channels of the first convolution; the second has twice as many
        hidden: units of the dense layer before the head, 0 for none
        activation: what follows each convolution and the dense layer before the head
        dropout: share of the head's inputs that is dropped at a training step, 0 for no drop-out layer
    """
    signal = signal_shape("har-cnn", shape, 4)
    return _signal_network([], signal, classes, 9, width, hidden, activation, dropout)


@models.register("tabular-cnn")
def tabular_cnn(
    shape: Shape,
    classes: int,
    /,
    *,
    width: Annotated[int, AtLeastOne] = 32,
    hidden: Annotated[int, NonNegative] = 128,
    activation: Activation = "relu",
    dropout: Annotated[float, PartialShare] = 0.0,
) -> Network:
    """Two convolutions of length 3 along a row's features with ReLU and max-pooling, a dense layer, the head.

    Stratify trains "simple CNN models" on Covertype (section V) and says no more of them: this is a reading. It has no
    BatchNorm, so that single samples can train it.

    >>> sum(p.numel() for p in tabular_cnn((54,), 7).parameters())
    113863

    Args:
        width: channels of the first convolution; the second has twice as many
        hidden: units of the dense layer before the head, 0 for none
        activation: what follows each convolution and the dense layer before the head
        dropout: share of the head's inputs that is dropped at a training step, 0 for no drop-out layer
    """
    if len(shape) != 1 or shape[0] < 4:
        raise FedskewError(
            f"model tabular-cnn needs rows of shape (features,) with features >= 4, got {shape}: "
            "choose mlp, which takes any shape"
        )
    first: list[nn.Module] = [nn.Unflatten(1, (1, shape[0]))]
    signal = (1, shape[0])
    return _signal_network(first, signal, classes, 3, width, hidden, activation, dropout)
