"""The features of a batch: the input of a model's head, under any weights."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from fedskew.core.trees import Tensors
from fedskew.models.layout import head_module


def class_sums(features: Tensor, labels: Tensor, classes: int, real: Tensor) -> Tensors:
    """Return the sum, the number and the sum of squared lengths of the features of each class.

    These are over the rows that are ``real`` (1, and not 0).

    >>> import torch
    >>> rows, labels = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([1, 1, 0])
    >>> sums = class_sums(rows, labels, 2, torch.tensor([1.0, 1.0, 0.0]))
    >>> sums["sum"].tolist(), sums["count"].tolist(), sums["square"].tolist()
    ([[0.0], [3.0]], [0.0, 2.0], [0.0, 5.0])
    """
    chosen = (labels[:, None] == torch.arange(classes, device=labels.device)).to(features.dtype)
    chosen = chosen * real.to(features.dtype)[:, None]
    flat = features.flatten(1)
    return {
        "sum": chosen.T @ flat,
        "count": chosen.sum(0),
        "square": chosen.T @ flat.square().sum(1),
    }


def no_class_sums(like: Tensor, classes: int, width: int, *clients: int) -> Tensors:
    """Return such sums of no rows, for one client or stacked."""
    return {
        "sum": like.new_zeros(*clients, classes, width),
        "count": like.new_zeros(*clients, classes),
        "square": like.new_zeros(*clients, classes),
    }


def features_of(
    worker: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the features and the targets of batches of inputs and targets, in one pass of the model as it is."""
    tap = Tap(worker)
    try:
        for x, y in batches:
            worker(x)
            yield tap.features, y
    finally:
        tap.remove()


class Tap:
    """Stores the input of the head at every forward pass of a model."""

    features: Tensor

    def __init__(self, model: nn.Module, head: nn.Module | None = None) -> None:
        self._handle = (head or head_module(model)).register_forward_pre_hook(self._keep)

    def _keep(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self.features = inputs[0]

    def remove(self) -> None:
        """Remove the hook from the model."""
        self._handle.remove()
