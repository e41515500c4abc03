"""What a method does to the model's head after the last round, from sums that every client sends."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from fedskew.core.streams import Stream
from fedskew.core.trees import Tensors, Tree


@dataclass(frozen=True)
class Calibrator:
    """A new head for the model from class statistics of all clients; ``every`` also scores a copy after so many rounds."""

    every: int | None = None

    def class_statistics(self, features: Tensor, labels: Tensor, classes: int) -> Tree:
        """Return sums over some rows of a client, which must add up over rows; ``features`` are the inputs of the head."""
        raise NotImplementedError

    def calibrate(
        self, head: Tensors, statistics: Tree, loss: Callable[[Tensors, Tensor, Tensor], Tensor], stream: Stream
    ) -> Tensors:
        """Return a new head from the sum of all clients' statistics; ``loss(head, features, labels)`` is the mean loss."""
        raise NotImplementedError
