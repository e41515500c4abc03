"""A partition among very many clients, of which nothing is stored per client: each has the rows of one of a few."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import FedskewError
from fedskew.core.streams import Ints, bits
from fedskew.data.partition import Partition

_AT_ONCE = 1 << 20  # clients


@dataclass(frozen=True, eq=False)
class Drawn:
    """Numbers of very many clients, each that of the known client it was drawn to be; found when they are asked for."""

    values: NDArray[Any]
    clients: int
    seed: int

    def __len__(self) -> int:
        return self.clients

    def __getitem__(self, clients: Ints) -> NDArray[Any]:
        """Return the numbers of these clients."""
        return np.asarray(self.values[known_client(clients, len(self.values), self.seed)])

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
        return np.asarray(self[np.arange(self.clients)], dtype=dtype)

    def min(self) -> Any:
        """Return the least number of a known client."""
        return self.values.min()

    def max(self) -> Any:
        """Return the largest number of a known client."""
        return self.values.max()


def known_client(clients: Ints, known: int, seed: int) -> Ints:
    """Return which of so many known clients each client was drawn to be."""
    return (bits(seed, "drawn clients", clients) % np.uint64(known)).astype(np.int64)


@dataclass(frozen=True, eq=False)
class DrawnPartition(Partition):
    """``count`` clients with the rows of the clients of ``known``, drawn by seed and number.

    Rows belong to many clients: it is for simulations of more clients than any data set has rows. It is never written
    to a run folder.

    >>> few = Partition.from_lists([np.array([0, 1]), np.array([2])])
    >>> many = DrawnPartition.of_clients(few, 10**9, seed=0)
    >>> many.clients, many.sizes[np.array([5, 10**8])].tolist(), many.of(5).tolist()
    (1000000000, [2, 2], [0, 1])
    """

    known: Partition = field(default_factory=lambda: Partition.from_lists([np.arange(1)]))
    count: int = 1
    seed: int = 0

    @classmethod
    def of_clients(cls, known: Partition, count: int, seed: int) -> "DrawnPartition":
        """Return so many clients drawn from those of a partition."""
        return cls(
            known.rows,
            Drawn(known.offsets[:-1], count, seed),  # type: ignore[arg-type]
            known=known,
            count=count,
            seed=seed,
        )

    @property
    def clients(self) -> int:
        """Return the number of clients."""
        return self.count

    @property
    def distinct(self) -> Partition:
        """Return the partition from whose clients all are drawn."""
        return self.known

    def of_everyone(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the numbers of all clients from those of the known ones."""
        return Drawn(values, self.count, self.seed)  # type: ignore[return-value]

    @cached_property
    def sizes(self) -> Ints:
        """Return the number of rows of each client, which is found when it is asked for."""
        return Drawn(self.known.sizes, self.count, self.seed)  # type: ignore[return-value]

    @cached_property
    def total(self) -> int:
        """Return how many rows all clients have together, those that several have counted for each."""
        total = 0
        for first in range(0, self.count, _AT_ONCE):
            total += int(self.sizes[np.arange(first, min(first + _AT_ONCE, self.count))].sum())
        return total

    def of(self, client: int) -> Ints:
        """Return the rows of one client."""
        return self.known.of(
            int(known_client(np.array([client]), self.known.clients, self.seed)[0])
        )

    @property
    def digest(self) -> str:
        """Return a name of the content."""
        return f"{self.known.digest}-{self.count}-{self.seed}"

    def save(self, path: Path) -> None:
        """Refuse: it would have a line for every client."""
        raise FedskewError(
            f"{path}: a partition that is drawn for {self.count:,} clients is not written: train with folder=False"
        )
