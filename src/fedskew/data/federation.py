"""A federation: a data set and its partition, on which runs train."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from fedskew.core.errors import unknown
from fedskew.core.notebook import few, one_line, rows_as_html
from fedskew.core.streams import Ints
from fedskew.data.dataset import Dataset, Rows
from fedskew.data.partition import Partition
from fedskew.data.stored_rows import AnyRows, StoredRows
from fedskew.data.targets import DEFAULT_BINS, Targets, bins_of

_SAMPLED_VALUES = 1 << 20
MOST_LISTED = 50  # names of clients in an error
_MOST_CLIENTS = 250  # rows of a picture of who holds what
_SHOWN = 10  # clients and classes in a notebook


@dataclass(frozen=True)
class LabelColumns:
    """Columns of a picture of who holds what: what they are, their names, and the column of every row.

    Of several labels per row, ``of`` is the matrix, and a row counts in several columns.
    """

    title: str
    names: tuple[str, ...]
    of: Targets

    def counts(self, partition: Partition, clients: Ints) -> Ints:
        """Return how many rows of each column these clients hold: client x column."""
        if self.of.ndim == 2:
            counts = []
            for client in clients:
                own = self.of[partition.of(int(client))]
                counts.append(own.sum(axis=0, dtype=np.int64))
            return np.stack(counts)
        return partition.counts(self.of, len(self.names), clients)


@dataclass(frozen=True)
class Federation:
    """Clients with their training rows. ``held_out`` are rows that each client keeps for testing its own model.

    ``client_validation`` are rows that each client sets aside to choose numbers by. Nobody trains on either.
    ``unseen`` are further clients, which take no part in training and are scored after it.

    ``treated`` are the rows of ``data.train`` after treatments (noise, relabel). ``data`` stays as it was read, so
    that it can be partitioned again. ``train`` returns the rows to train on.

    ``recipe`` has the settings that reproduce the federation. It is empty when the data or the partition are Python
    objects.
    """

    data: Dataset
    partition: Partition
    held_out: Partition | None = None
    recipe: Mapping[str, Any] = field(default_factory=dict)
    treated: Rows | None = None
    client_validation: Partition | None = None
    unseen: "Federation | None" = None

    def __repr__(self) -> str:
        return one_line("Federation", self._said)

    def _repr_html_(self) -> str:
        columns = self.label_columns
        shown = np.arange(min(self.clients, _SHOWN))
        counts = columns.counts(self.partition, shown)
        rows: list[list[Any]] = []
        for client in shown.tolist():
            name = self.client_names[client]
            size = int(self.partition.sizes[client])
            rows.append([name, size, *counts[client, :_SHOWN].tolist()])
        if self.clients > _SHOWN:
            rows.append([f"… and {self.clients - _SHOWN:,} more"])
        title = f"{self._said}; rows by {columns.title}"
        return rows_as_html(title, ["client", "rows", *few(columns.names, _SHOWN)], rows)

    @property
    def _said(self) -> str:
        skew = self.recipe.get("skew")
        if isinstance(skew, Mapping):
            skew = skew["name"]
        name = self.data.name
        if skew:
            name = f"{name}, {skew}"
        rows = f"{len(self.partition.rows):,} training rows at {self.clients:,} clients, {self.partition.spread} each"
        return f"{name}: {rows}"

    @property
    def train(self) -> Rows:
        """Return the training rows of all clients, after treatments."""
        if self.treated is None:
            return self.data.train
        return self.treated

    @property
    def test(self) -> Rows:
        """Return the test rows, which no client has."""
        return self.data.test

    @property
    def validation(self) -> Rows | None:
        """Return the rows for choosing hyper-parameters, if some were set aside."""
        return self.data.validation

    @cached_property
    def tested_on(self) -> "tuple[Rows, Partition] | None":
        """The rows that clients hold out to be tested on, and which of them each has; None if they hold none out.

        Without ``held_out`` these are the test rows of each client, where the data comes with its clients.
        """
        if self.held_out is not None:
            return self.train, self.held_out
        if not self.data.silos or not self.named or self.test.group is None:
            return None
        pieces = []
        for name in self.client_names:
            pieces.append(np.flatnonzero(self.test.group == self.data.groups.index(name)))
        return self.test, Partition.from_lists(pieces)

    @property
    def clients(self) -> int:
        """Return the number of clients."""
        return self.partition.clients

    @property
    def named(self) -> bool:
        """Return whether clients have names: where each is one group of the data."""
        return self._group_of is not None

    @cached_property
    def client_names(self) -> tuple[str, ...]:
        """Return the names of the clients: of their groups, where each is one, or else their numbers."""
        if self._group_of is None:
            return tuple(map(str, range(self.clients)))
        return tuple(self.data.groups[group] for group in self._group_of)

    @cached_property
    def _group_of(self) -> Ints | None:
        """The group that each client is, if each is one and another than the others."""
        group = self.data.train.group
        sizes = self.partition.sizes
        if group is None or not sizes.all():
            return None
        held = group[self.partition.rows]
        first = held[self.partition.offsets[:-1]]
        if len(np.unique(first)) < len(first):
            return None
        if not np.array_equal(held, np.repeat(first, sizes)):
            return None
        return first

    def client_number(self, client: int | str) -> int:
        """Return the number of a client that is given by its name or its number."""
        if isinstance(client, str) and client in self.client_names:
            return self.client_names.index(client)
        if isinstance(client, int) and 0 <= client < self.clients:
            return client
        raise unknown("client", str(client), self.client_names[:MOST_LISTED])

    @cached_property
    def label_columns(self) -> "LabelColumns":
        """What a picture of who holds what has as columns: classes, labels, or bins of the target."""
        rows = self.train
        if not rows.labelled and rows.target == "labels":
            return LabelColumns("label", self.data.classes, rows.y)
        title = {
            "class": "class",
            "number": "bin of the target",
            "labels": "combination of labels",
            "numbers": "rows",
            "tokens": "rows",
        }[rows.target]
        if rows.labelled:
            return LabelColumns(title, self.data.label_names, rows.labels)
        if rows.target in ("numbers", "tokens"):
            return LabelColumns(title, ("all",), rows.kinds)
        bins = bins_of(rows.y, DEFAULT_BINS)
        return LabelColumns(title, bins.names, bins.of)

    @cached_property
    def fingerprint(self) -> str:
        """Return a hash of the rows of all clients (labels in full, features by a sample)."""
        parts = hashlib.sha256(self.partition.digest.encode())
        for rows in (self.train, self.test, self.validation):
            if rows is not None:
                parts.update(repr(rows.x.shape).encode())
                parts.update(np.ascontiguousarray(rows.y).tobytes())
                parts.update(_sampled(rows.x))
        if self.client_validation is not None:
            parts.update(self.client_validation.digest.encode())
        if self.unseen is not None:
            parts.update(self.unseen.partition.digest.encode())
        return parts.hexdigest()


def _sampled(x: AnyRows) -> bytes:
    """Return about a million values of all features, or those of a few hundred stored rows."""
    if isinstance(x, StoredRows):
        return x.fingerprint()
    values = x.reshape(-1)
    step = max(1, len(values) // _SAMPLED_VALUES)
    return np.ascontiguousarray(values[::step]).tobytes()


def shown_clients(clients: int) -> Ints:
    """Return the clients that a picture of who holds what has: all, or some at even steps where there are many."""
    return np.unique(np.linspace(0, clients - 1, min(clients, _MOST_CLIENTS)).astype(np.int64))
