"""Rows that are there twice: in the table of one client, at several clients, or for training and for test."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedskew.core.streams import Ints
from fedskew.data.dataset import Dataset, Rows
from fedskew.data.stored_rows import whole

if TYPE_CHECKING:
    from fedskew.data.cells import Frame

Duplicates: TypeAlias = Literal["keep", "drop"]
Hashes: TypeAlias = NDArray[np.uint64]

_LISTED = 5  # clients in a sentence
_SEED = 0xF3D5


def first_of_each(frame: "Frame") -> Ints:
    """Return the numbers of the rows of a table that equal no earlier one in any column."""
    return np.flatnonzero(~frame.duplicated().to_numpy())


def row_hashes(rows: Rows) -> Hashes:
    """Return a number for every row, equal where features and target are."""
    values = np.ascontiguousarray(
        whole(rows.x, "counting of duplicates").reshape(len(rows), -1) + 0.0
    )  # -0.0 becomes 0.0
    targets = np.ascontiguousarray(rows.y.reshape(len(rows), -1).astype(np.float64))
    draw = np.random.default_rng(_SEED)
    hashes: Hashes = np.zeros(len(rows), dtype=np.uint64)
    for part in (values.view(np.uint32), targets.view(np.uint32)):
        for column in part.T:
            factor = draw.integers(1, 2**63, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
            hashes += column.astype(np.uint64) * factor
            hashes ^= hashes >> np.uint64(29)
    return hashes


def duplicates_sentence(data: Dataset) -> str:
    """Return how many rows are there twice, and where; empty if none is."""
    train = row_hashes(data.train)
    said = []
    group = data.train.group
    clients: tuple[str, ...] = data.groups
    if group is None or not data.silos:
        group = np.zeros(len(train), dtype=np.int64)
        clients = ("",)
    within = _repeated_by_client(train, group, len(clients))
    if within.any():
        said.append(
            f"{int(within.sum()):,} training rows equal an earlier one{_where(within, clients)}"
        )
    across = _at_several(train, group)
    if across:
        said.append(f"{across:,} different rows are at several clients")
    for part, rows in (("validation", data.validation), ("test", data.test)):
        if rows is None or not len(rows):
            continue
        seen = int(np.isin(row_hashes(rows), train).sum())
        if seen:
            said.append(f"{seen:,} of {len(rows):,} {part} rows equal a training row")
    if not said:
        return ""
    return f"{', '.join(said)} (in all features and the target)"


def _where(counts: Ints, clients: Sequence[str]) -> str:
    """Return which clients have so many of them."""
    if list(clients) == [""]:
        return ""
    named = []
    for number in np.flatnonzero(counts).tolist():
        named.append(f"{clients[number]} {counts[number]:,}")
    more = ""
    if len(named) > _LISTED:
        more = f" and {len(named) - _LISTED} more clients"
    return f" of the same client ({', '.join(named[:_LISTED])}{more})"


def _repeated_by_client(hashes: Hashes, group: Ints, clients: int) -> Ints:
    """Return how many rows of each client equal an earlier one of it."""
    order = np.lexsort((hashes, group))
    same = (np.diff(hashes[order]) == 0) & (np.diff(group[order]) == 0)
    return np.bincount(group[order][1:][same], minlength=clients)


def _at_several(hashes: Hashes, group: Ints) -> int:
    """Return how many different rows several clients have."""
    order = np.lexsort((group, hashes))
    ordered, owners = hashes[order], group[order]
    joint = (np.diff(ordered) == 0) & (np.diff(owners) != 0)
    return len(np.unique(ordered[1:][joint]))
