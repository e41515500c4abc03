"""Models that flatten their input: logistic regression, the multi-layer perceptron, and the table net of MFedBN."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Annotated

from torch import nn

from fedskew.core.registry import AtLeastOne, PartialShare
from fedskew.models.blocks import Activation, Norm, nonlinear, normaliser
from fedskew.models.network import Network, Shape, models


def _network(
    shape: Shape, hidden: Sequence[int], classes: int, layer: Callable[[int, int], list[nn.Module]]
) -> Network:
    """Return a network that flattens its input and has one ``layer`` from each width to the next."""
    widths = [math.prod(shape), *hidden]
    layers = []
    for inputs, outputs in pairwise(widths):
        for part in layer(inputs, outputs):
            layers.append(part)
    return Network(nn.Sequential(nn.Flatten(), *layers), widths[-1], classes)


@models.register("logreg")
def logreg(shape: Shape, classes: int, /) -> Network:
    """Logistic regression: one linear layer on the flattened row.

    >>> sum(p.numel() for p in logreg((1, 28, 28), 10).parameters())
    7850
    """
    return _network(shape, (), classes, lambda inputs, outputs: [])


@models.register("mlp")
def mlp(
    shape: Shape,
    classes: int,
    /,
    *,
    hidden: Annotated[tuple[int, ...], AtLeastOne] = (128, 64),
    activation: Activation = "relu",
    dropout: Annotated[float, PartialShare] = 0.0,
) -> Network:
    """Linear layers with ReLU between them, on the flattened row.

    >>> sum(p.numel() for p in mlp((561,), 6).parameters())  # 561-128-64-6
    80582

    Args:
        hidden: width of each hidden layer
        activation: what follows each hidden layer
        dropout: share of each hidden layer's units that is dropped at a training step, 0 for no drop-out layers
    """
    return _network(
        shape,
        hidden,
        classes,
        lambda inputs, outputs: [nn.Linear(inputs, outputs), *nonlinear(activation, dropout)],
    )


@models.register("tabular")
def tabular(
    shape: Shape,
    classes: int,
    /,
    *,
    hidden: Annotated[tuple[int, ...], AtLeastOne] = (1024, 512, 256, 128, 64),
    norm: Norm = "batch",
    activation: Activation = "relu",
    dropout: Annotated[float, PartialShare] = 0.0,
) -> Network:
    """Linear layers with normalisation and ReLU: the table net of MFedBN (section 5), 1024-512-256-128-64.

    The paper tried several activations and drop-out rates and does not say which its tables have: ReLU and none
    here, unless ``activation`` and ``dropout`` say otherwise.

    Args:
        hidden: width of each hidden layer
        norm: kind of normalisation
        activation: what follows each normalisation
        dropout: share of each hidden layer's units that is dropped at a training step, 0 for no drop-out layers
    """
    return _network(
        shape,
        hidden,
        classes,
        lambda inputs, outputs: [
            nn.Linear(inputs, outputs, bias=False),
            normaliser(norm, outputs, image=False),
            *nonlinear(activation, dropout),
        ],
    )
