"""What hostile clients do to their rows before the first round."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.streams import Ints
from fedskew.data.dataset import Rows
from fedskew.data.partition import Partition


@dataclass(frozen=True)
class Poison:
    """Base of what hostile clients do to their rows.

    Args:
        hostile: who they are, from the seed of the run and the number of clients
    """

    hostile: Callable[[int, int], Ints]

    def poisoned(
        self, rows: Rows, partition: Partition, classes: Sequence[str], seed: int
    ) -> tuple[Rows, Partition]:
        """Return the rows with those of hostile clients changed, and which rows each client has."""
        return rows, partition


@dataclass(frozen=True)
class FlippedLabels(Poison):
    """Hostile clients give all of their rows other labels: y becomes classes - 1 - y."""

    def poisoned(
        self, rows: Rows, partition: Partition, classes: Sequence[str], seed: int
    ) -> tuple[Rows, Partition]:
        """Return the rows with other labels at hostile clients, and the same partition."""
        y = rows.y.copy()
        clients_of_rows = np.bincount(partition.rows, minlength=len(rows))
        for client in self.hostile(seed, partition.clients).tolist():
            held = partition.of(client)
            if (clients_of_rows[held] > 1).any():
                raise FedskewError(
                    "attack:kind=label-flip changes the labels of rows, and hostile clients share rows with others "
                    "(overlap=true): leave overlap out"
                )
            y[held] = len(classes) - 1 - y[held]
        return replace(rows, y=y), partition
