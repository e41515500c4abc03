"""Rows that belong together: one item for each series, and from items back to rows."""

from dataclasses import dataclass

import numpy as np

from fedskew.core.streams import Ints
from fedskew.data.dataset import Features, Rows
from fedskew.data.partition import Partition


@dataclass(frozen=True)
class WholeSeries:
    """Items of whole series: ``items`` has one row per series; ``item`` is the number of each row's item."""

    items: Rows
    item: Ints

    @classmethod
    def of(cls, rows: Rows) -> "WholeSeries":
        """Return each series as its most frequent label (lowest on a tie), its mean features and its group.

        Without labels, it has the targets of its first row, which no skew looks at.
        """
        assert rows.series is not None
        _, item, sizes = np.unique(rows.series, return_inverse=True, return_counts=True)
        order = np.argsort(item, kind="stable")
        first = np.cumsum(sizes) - sizes
        x: Features = np.empty((len(sizes), *rows.x.shape[1:]), dtype=np.float32)
        y = rows.y[order[first]]
        if rows.labelled:
            y = np.empty(len(sizes), dtype=np.int64)
        for number, (start, size) in enumerate(zip(first.tolist(), sizes.tolist(), strict=True)):
            members = order[start : start + size]
            x[number] = rows.x[members].mean(axis=0, dtype=np.float64)
            if rows.labelled:
                y[number] = np.bincount(rows.labels[members]).argmax()
        group = None
        if rows.group is not None:
            group = rows.group[order[first]]
        return cls(Rows(x, y, group, unit=rows.unit), item)

    def rows_of(self, items: Partition) -> Partition:
        """Return each client's items as their rows, in stored order."""
        order = np.argsort(self.item, kind="stable")
        by_item = np.split(order, np.cumsum(np.bincount(self.item))[:-1])
        rows_of_clients = []
        for client in range(items.clients):
            parts = [np.zeros(0, dtype=np.int64)]  # of a client without items
            for item in items.of(client).tolist():
                parts.append(by_item[item])
            rows_of_clients.append(np.sort(np.concatenate(parts)))
        return Partition.from_lists(rows_of_clients)

    def items_of(self, rows: Partition) -> Partition:
        """Return the items of each client's rows."""
        return Partition.from_lists(
            [np.unique(self.item[rows.of(client)]) for client in range(rows.clients)]
        )
