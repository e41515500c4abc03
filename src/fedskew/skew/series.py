"""Rows that belong together: one item in place of each series, and back from items to rows."""

from dataclasses import dataclass

import numpy as np

from fedskew.core.streams import Ints
from fedskew.data.dataset import Features, Rows
from fedskew.data.partition import Partition


@dataclass(frozen=True)
class WholeSeries:
    """``items`` has one row a series; ``item`` is the number of the item that each row belongs to."""

    items: Rows
    item: Ints

    @classmethod
    def of(cls, rows: Rows) -> "WholeSeries":
        """Each series as its commonest label (lowest on a tie), its mean features and its group."""
        assert rows.series is not None
        _, item, sizes = np.unique(rows.series, return_inverse=True, return_counts=True)
        order = np.argsort(item, kind="stable")
        first = np.cumsum(sizes) - sizes
        x: Features = np.empty((len(sizes), *rows.x.shape[1:]), dtype=np.float32)
        y = np.empty(len(sizes), dtype=np.int64)
        for number, (start, size) in enumerate(zip(first.tolist(), sizes.tolist(), strict=True)):
            members = order[start : start + size]
            x[number] = rows.x[members].mean(axis=0, dtype=np.float64)
            y[number] = np.bincount(rows.labels[members]).argmax()
        return cls(Rows(x, y, None if rows.group is None else rows.group[order[first]], unit=rows.unit), item)

    def rows_of(self, items: Partition) -> Partition:
        """Each client's items as their rows, in stored order."""
        order = np.argsort(self.item, kind="stable")
        by_item = np.split(order, np.cumsum(np.bincount(self.item))[:-1])
        none = np.zeros(0, dtype=np.int64)
        held = ([by_item[item] for item in items.of(client).tolist()] for client in range(items.clients))
        return Partition.from_lists([np.sort(np.concatenate([none, *parts])) for parts in held])

    def items_of(self, rows: Partition) -> Partition:
        """The items whose rows each client holds."""
        return Partition.from_lists([np.unique(self.item[rows.of(client)]) for client in range(rows.clients)])
