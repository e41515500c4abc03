"""The contract of calibration: a new head for the model after the last round, made from sums that clients send."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from fedskew.core.streams import Stream
from fedskew.core.trees import Tensors, Tree


@dataclass(frozen=True)
class Calibrator:
    """Makes a new head from the class statistics of all clients.

    With ``every``, a copy of the model is calibrated and evaluated after each ``every`` rounds.
    """

    every: int | None = None

    def class_statistics(self, features: Tensor, labels: Tensor, classes: int) -> Tree:
        """Return sums over some rows of a client, which must be additive over rows.

        ``features`` are the inputs of the head.
        """
        raise NotImplementedError

    def add_statistics(self, total: Tree, features: Tensor, labels: Tensor, classes: int) -> None:
        """Add the ``class_statistics`` of some rows to ``total`` in place; override it where statistics are large."""
        for part, tensors in self.class_statistics(features, labels, classes).items():
            sums = total.setdefault(part, {})
            for name, value in tensors.items():
                if name in sums:
                    sums[name] = sums[name].add_(value)
                else:
                    sums[name] = value

    def check_statistics(self, statistics: Tree, rows: Tensor) -> None:
        """Raise an error for finite numbers that are no statistics of a client with so many ``rows`` of each class."""

    def calibrate(
        self,
        head: Tensors,
        statistics: Tree,
        loss: Callable[[Tensors, Tensor, Tensor], Tensor],
        stream: Stream,
    ) -> Tensors:
        """Return a new head from the sum of all clients' statistics.

        ``loss(head, features, labels)`` is the mean loss.
        """
        raise NotImplementedError
