"""The partition: the rows of each client, as one row array and one offset array."""

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import FedskewError
from fedskew.core.files import read_npz
from fedskew.core.notebook import facts_as_html, one_line
from fedskew.core.streams import Ints


@dataclass(frozen=True, eq=False)
class Partition:
    """The rows of each client: client k has ``rows[offsets[k]:offsets[k + 1]]``.

    ``settled`` are options that the skew has chosen itself for these rows and clients. A run records them,
    and they are not part of the partition.

    >>> Partition.from_owner(np.array([1, 0, 1]), clients=2).of(1).tolist()
    [0, 2]
    >>> Partition.from_owner(np.array([1, 0, 1]), clients=2)
    <Partition 3 rows at 2 clients, 1 to 2 each>
    """

    rows: Ints
    offsets: Ints
    settled: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_owner(cls, owner: Ints, clients: int) -> "Partition":
        """Return the partition in which each row belongs to its owner, in stored order within a client."""
        if len(owner) and not 0 <= owner.min() <= owner.max() < clients:
            row = int(np.argmax((owner < 0) | (owner >= clients)))
            raise FedskewError(
                f"row {row} belongs to client {owner[row]}, but the clients are 0 … {clients - 1}"
            )
        sizes = np.bincount(owner, minlength=clients)
        # 8- and 16-bit keys sort several times faster
        narrow = owner.astype(np.min_scalar_type(clients))
        rows = np.argsort(narrow, kind="stable")
        return cls(rows, np.concatenate([[0], np.cumsum(sizes)]))

    @classmethod
    def from_lists(cls, rows_by_client: "list[Ints]") -> "Partition":
        """Return the partition from one array of rows per client."""
        rows = np.concatenate([np.asarray(rows, dtype=np.int64) for rows in rows_by_client])
        sizes = [len(rows) for rows in rows_by_client]
        return cls(rows, np.concatenate([[0], np.cumsum(sizes)]))

    @property
    def clients(self) -> int:
        """Return the number of clients."""
        return len(self.offsets) - 1

    @cached_property
    def sizes(self) -> Ints:
        """Return the number of rows of each client."""
        return np.diff(self.offsets)

    def __repr__(self) -> str:
        return one_line(
            "Partition", f"{len(self.rows):,} rows at {self.clients:,} clients, {self.spread} each"
        )

    def _repr_html_(self) -> str:
        facts = {"clients": self.clients, "rows": len(self.rows), "rows of a client": self.spread}
        return facts_as_html("Partition", {**facts, **self.settled})

    @property
    def distinct(self) -> "Partition":
        """Return the partition of the clients whose rows are stored: all of them."""
        return self

    def of_everyone(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the numbers of all clients from those of the ``distinct`` ones."""
        return values

    @property
    def total(self) -> int:
        """Return how many rows all clients have together."""
        return len(self.rows)

    @property
    def spread(self) -> str:
        """Return in words how many rows clients have."""
        if not self.clients:
            return "none"
        least = self.sizes.min()
        most = self.sizes.max()
        if least == most:
            return f"{least:,}"
        return f"{least:,} to {most:,}"

    def of(self, client: int) -> Ints:
        """Return the rows of one client."""
        return self.rows[self.offsets[client] : self.offsets[client + 1]]

    @property
    def owner(self) -> Ints:
        """Return the client of each row, where every row has one (see ``check``)."""
        owner = np.empty(len(self.rows), dtype=np.int64)
        owner[self.rows] = np.repeat(np.arange(self.clients), self.sizes)
        return owner

    def pooled(self) -> "Partition":
        """Return one client with every row, in stored order, so that the partition before does not matter."""
        return Partition(np.sort(self.rows), np.array([0, len(self.rows)]))

    def only(self, clients: Ints) -> "Partition":
        """Return the partition of some of the clients, in this order."""
        return Partition.from_lists([self.of(int(client)) for client in clients])

    def counts(self, labels: Ints, classes: int, clients: Ints | None = None) -> Ints:
        """Return the client x class matrix: rows of each label at each client, or at each of some ``clients``."""
        if clients is not None:
            return self.only(clients).counts(labels, classes)
        owner = np.repeat(np.arange(self.clients), self.sizes)
        flat = np.bincount(owner * classes + labels[self.rows], minlength=self.clients * classes)
        return flat.reshape(self.clients, classes)

    def check(self, population: int, *, overlap: bool = False, subset: bool = False) -> "Partition":
        """Raise an error for an empty client, an unknown row and, unless ``overlap``, a row with two clients or none.

        With ``subset`` a row may have no client.
        """
        empty = np.flatnonzero(self.sizes == 0)
        if len(empty):
            raise FedskewError(
                f"client {empty[0]} has no rows ({len(empty)} of {self.clients} clients have none): "
                "use fewer clients or a milder skew"
            )
        stray = self.rows[(self.rows < 0) | (self.rows >= population)]
        if len(stray):
            raise FedskewError(
                f"the partition names row {stray[0]}, but the rows are 0 … {population - 1}"
            )
        if overlap:
            return self
        held = np.bincount(self.rows, minlength=population)
        wrong = held != 1
        if subset:
            wrong = held > 1
        if np.any(wrong):
            row = int(np.argmax(wrong))
            raise FedskewError(
                f"row {row} is held by {held[row]} clients; every row must belong to exactly one"
            )
        return self

    @cached_property
    def digest(self) -> str:
        """Return a hash of the content."""
        parts = hashlib.sha256()
        for array in (self.rows, self.offsets):
            parts.update(np.ascontiguousarray(array, dtype="<i8").tobytes())
        return parts.hexdigest()

    def __hash__(self) -> int:
        return int(self.digest[:16], 16)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Partition) and self.digest == other.digest

    def save(self, path: Path) -> None:
        """Write both arrays to a compressed ``.npz`` file."""
        path.write_bytes(self._compressed)

    @cached_property
    def _compressed(self) -> bytes:
        """Return the ``.npz`` file: the runs of a study share partitions, and compressing takes time."""
        content = io.BytesIO()
        np.savez_compressed(content, rows=self.rows, offsets=self.offsets)
        return content.getvalue()

    @classmethod
    def load(cls, path: Path) -> "Partition":
        """Read what ``save`` wrote."""
        if not path.exists():
            raise FedskewError(f"there is no partition file {path}")
        try:
            stored = read_npz(path)
        except FedskewError as problem:
            raise FedskewError(f"{path} is not a partition file: {problem}") from None
        arrays = []
        for name in ("rows", "offsets"):
            array = stored.get(name, np.zeros(0))
            if array.ndim != 1 or array.dtype.kind != "i":
                raise FedskewError(
                    f"{path} is not a partition file: it has no whole numbers as rows and offsets"
                )
            arrays.append(array.astype(np.int64))
        rows, offsets = arrays
        whole = len(offsets) >= 2 and offsets[0] == 0 and offsets[-1] == len(rows)
        if not whole or np.any(np.diff(offsets) < 0):
            raise FedskewError(
                f"{path} is not a partition file: its offsets do not cover its {len(rows)} rows"
            )
        return cls(rows, offsets)
