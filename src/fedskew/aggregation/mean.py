"""The weighted mean of updates, and what an aggregation rule must provide."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedskew.core.trees import Tree


def weighted_mean(payloads: Tree, weights: Tensor) -> Tree:
    """Return the sum of stacked payloads, each multiplied by its client's weight."""
    result: Tree = {}
    for part, tensors in payloads.items():
        result[part] = {
            name: torch.tensordot(weights.to(value), value, dims=1)
            for name, value in tensors.items()
        }
    return result


@dataclass(frozen=True)
class Aggregator:
    """The weighted mean, which the server accumulates as updates arrive; rules for robust aggregation derive from it.

    ``name`` is what tables say of the clients' weights under a rule, empty where the weights are the method's own.
    ``needs_all`` says that ``combine`` must see the updates of all clients together. ``least_updates`` is how many
    valid updates a round needs; with fewer, the server leaves its weights as they are.
    """

    name: ClassVar[str] = ""
    needs_all: ClassVar[bool] = False

    @property
    def least_updates(self) -> int:
        """Return how many valid updates a round needs."""
        return 1

    def arrange(self, payloads: Tree) -> Tree:
        """Return the stacked payloads of some clients in the form in which they are added up."""
        return payloads

    def combine(self, payloads: Tree, weights: Tensor) -> tuple[Tree, Tensor]:
        """Return one payload from the stacked payloads of a round's clients, and each client's share in it.

        ``weights`` sum to 1, and so do the shares that are returned; a client with share 0 was excluded.
        """
        return weighted_mean(payloads, weights), weights

    def check(self, updates: int) -> None:
        """Raise an error if the rule is not defined for ``updates`` updates in a round."""
