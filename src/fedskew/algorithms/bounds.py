"""The two ends of every comparison: all data in one place, and no sharing at all."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedskew.algorithms.contract import Algorithm, algorithms
from fedskew.data.partition import Partition
from fedskew.models.layout import Layout


@algorithms.register("central")
@dataclass(frozen=True)
class Central(Algorithm):
    """All data in one place, trained by one optimiser that is never reset: the upper bound.

    One round is ``epochs`` passes over the pooled rows.

    >>> split = Partition(np.array([2, 0, 1]), np.array([0, 1, 3]))
    >>> Central().arrange(split).sizes.tolist()
    [3]
    """

    keeps_optimizer: ClassVar[bool] = True
    weighs_by: ClassVar[str] = "-"

    def arrange(self, partition: Partition) -> Partition:
        """One client with every row, in stored order so that the cut does not matter."""
        return Partition(np.sort(partition.rows), np.array([0, len(partition.rows)]))


@algorithms.register("local")
@dataclass(frozen=True)
class Local(Algorithm):
    """No sharing: every client trains its own model from the common start with its own optimiser: the lower bound.

    The global model stays at its start; what counts are the clients' own models.
    """

    keeps_optimizer: ClassVar[bool] = True
    weighs_by: ClassVar[str] = "-"

    def kept(self, layout: Layout) -> frozenset[str]:
        """Everything."""
        return layout.parameters | layout.buffers
