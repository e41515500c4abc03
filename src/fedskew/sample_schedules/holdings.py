"""Holdings: the rows of each client by placeholder. A placeholder stands for a label unknown to the server."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.streams import Floats, Ints
from fedskew.data.partition import Partition


@dataclass(frozen=True, eq=False)
class Holdings:
    """The rows by client and placeholder: ``counts[client, placeholder]``; ``flat`` has the rows in that order.

    Where the server gets shares of the placeholders' rows and no counts, it draws by ``shares``. Where it gets the
    clients of each placeholder and its rows over all clients, available or not, it schedules by ``totals``.

    >>> partition = Partition.from_owner(np.array([1, 0, 1, 1]), clients=2)
    >>> held = Holdings.of(partition, np.array([0, 1, 1, 0]), placeholders=2)
    >>> held.counts.tolist(), held.rows(1, 0).tolist()
    ([[0, 1], [2, 1]], [0, 3])
    """

    counts: Ints
    flat: Ints
    shares: Floats | None = None
    totals: Ints | None = None

    @classmethod
    def of(cls, partition: Partition, placeholder_of_row: Ints, placeholders: int) -> "Holdings":
        """Return the holdings of a partition; the rows of one placeholder are in the partition's order."""
        kinds = placeholder_of_row[partition.rows]
        if len(kinds) and not 0 <= kinds.min() <= kinds.max() < placeholders:
            bad = int(np.argmax((kinds < 0) | (kinds >= placeholders)))
            raise FedskewError(
                f"row {partition.rows[bad]} has placeholder {kinds[bad]}, but the placeholders are 0 … "
                f"{placeholders - 1}"
            )
        cells = np.repeat(np.arange(partition.clients), partition.sizes) * placeholders + kinds
        counts = partition.counts(placeholder_of_row, placeholders)
        return cls(counts, partition.rows[np.argsort(cells, kind="stable")])

    @cached_property
    def offsets(self) -> Ints:
        """Return where the rows of each cell (client * placeholders + placeholder) begin in ``flat``, and the end."""
        return np.concatenate([[0], np.cumsum(self.counts)])

    def rows(self, client: int, placeholder: int) -> Ints:
        """Return the rows of a client and placeholder."""
        cell = client * self.counts.shape[1] + placeholder
        return self.flat[self.offsets[cell] : self.offsets[cell + 1]]

    def without(self, absent: Ints) -> "Holdings":
        """Return the holdings with these clients' rows removed."""
        there = np.ones(len(self.counts), dtype=bool)
        there[absent] = False
        flat = self.flat[np.repeat(there, self.counts.sum(axis=1))]
        return replace(self, counts=self.counts * there[:, None], flat=flat)

    @property
    def known(self) -> Ints:
        """Return the rows of each placeholder that some client here has, as far as the server knows them."""
        counts: Ints = self.counts.sum(axis=0)
        if self.totals is None:
            return counts
        return np.where(counts > 0, self.totals, 0)

    @property
    def weights(self) -> Ints:
        """Return the weights of weighted selection: the counts, or the shares in thousandths."""
        if self.shares is None:
            return self.counts
        return np.maximum(np.rint(1000 * self.shares).astype(np.int64), self.counts > 0)
