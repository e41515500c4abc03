"""The Holdings: who holds which placeholder, and its rows of it. A placeholder stands for a label unknown to the server."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.streams import Floats, Ints
from fedskew.data.partition import Partition


@dataclass(frozen=True, eq=False)
class Holdings:
    """``counts[client, placeholder]`` rows each; ``flat`` has the rows themselves, by client and then by placeholder.

    Where the server is told shares of the placeholders' rows and no counts, ``shares`` are what it draws by. Where it is told
    who holds which placeholder and the rows of each over all clients, present or not, ``totals`` are what it schedules by.

    >>> held = Holdings.of(Partition.from_owner(np.array([1, 0, 1, 1]), clients=2), np.array([0, 1, 1, 0]), placeholders=2)
    >>> held.counts.tolist(), held.rows(1, 0).tolist()
    ([[0, 1], [2, 1]], [0, 3])
    """

    counts: Ints
    flat: Ints
    shares: Floats | None = None
    totals: Ints | None = None

    @classmethod
    def of(cls, partition: Partition, placeholder_of_row: Ints, placeholders: int) -> "Holdings":
        """What each client of the partition holds, its rows of one placeholder in the partition's order."""
        kinds = placeholder_of_row[partition.rows]
        if len(kinds) and not 0 <= kinds.min() <= kinds.max() < placeholders:
            bad = int(np.argmax((kinds < 0) | (kinds >= placeholders)))
            raise FedskewError(
                f"row {partition.rows[bad]} has placeholder {kinds[bad]}, but the placeholders are 0 … {placeholders - 1}"
            )
        cells = np.repeat(np.arange(partition.clients), partition.sizes) * placeholders + kinds
        counts = np.bincount(cells, minlength=partition.clients * placeholders)
        return cls(counts.reshape(partition.clients, placeholders), partition.rows[np.argsort(cells, kind="stable")])

    @cached_property
    def offsets(self) -> Ints:
        """Where the rows of each cell (client * placeholders + placeholder) begin in ``flat``, and the end."""
        return np.concatenate([[0], np.cumsum(self.counts)])

    def rows(self, client: int, placeholder: int) -> Ints:
        """The rows that a client has of a placeholder."""
        cell = client * self.counts.shape[1] + placeholder
        return self.flat[self.offsets[cell] : self.offsets[cell + 1]]

    def without(self, absent: Ints) -> "Holdings":
        """The same clients, but these have no rows."""
        there = np.ones(len(self.counts), dtype=bool)
        there[absent] = False
        flat = self.flat[np.repeat(there, self.counts.sum(axis=1))]
        return replace(self, counts=self.counts * there[:, None], flat=flat)

    @property
    def known(self) -> Ints:
        """Rows of each placeholder that somebody here holds, as far as the server knows them."""
        counts: Ints = self.counts.sum(axis=0)
        return counts if self.totals is None else np.where(counts > 0, self.totals, 0)

    @property
    def weights(self) -> Ints:
        """What weighted selection goes by: the counts, or the shares in thousandths."""
        if self.shares is None:
            return self.counts
        return np.maximum(np.rint(1000 * self.shares).astype(np.int64), self.counts > 0)
