"""The server's records of all clients, and the pool of those that it may select."""

import mmap
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedskew.algorithms.selection import RECORDS, ClientPool, SelectionTotals
from fedskew.core.streams import Floats, Ints
from fedskew.fleet.availability import Members

_BLOCK = 64  # clients whose standing is computed together
_GROUP = 1024  # blocks whose standing is added up together
_RECORD = np.dtype(
    [
        ("selected", np.int64),
        ("completed", np.int64),
        ("seconds", np.float64),
        ("agreement", np.float64),
    ]
)


class AvailablePool(ClientPool):
    """A pool of those clients that are available; it makes its arrays only if a method reads them, as few do."""

    def __init__(self, everyone: ClientPool, members: Members) -> None:
        plain = ("round", "sampling", "batch_size", "epochs", "lessons", "all_clients")
        vars(self).update(
            {name: getattr(everyone, name) for name in plain}, everyone=everyone, members=members
        )
        vars(self)["capacity"] = lambda positions: everyone.capacity(members[positions])

    def __getattr__(self, name: str) -> Any:
        if name not in ("sizes", "profile", *RECORDS):
            raise AttributeError(f"a pool of clients has no {name}")
        vars(self).update({**vars(self.everyone.at(self.members.numbers())), **vars(self)})
        return vars(self)[name]

    def __len__(self) -> int:
        return len(self.members)

    def at(self, positions: Ints) -> ClientPool:
        """Return the pool with only the clients at these positions."""
        pool: ClientPool = self.everyone.at(self.members[positions])
        return pool


class Records:
    """What the server records of every client, and the standing of all of them.

    The standing of blocks of clients is kept, and computed anew only for blocks in which something has changed: it
    depends on the records alone, and not on how they came about. Groups of blocks are added up likewise, so that a
    round costs what its clients cost.
    """

    def __init__(self, clients: int) -> None:
        blocks = -(-clients // _BLOCK)
        self._whole = zeros_on_demand(blocks * _BLOCK, _RECORD)
        self.arrays = {name: self._whole[name][:clients] for name in RECORDS}
        nobody = vars(self._of(np.zeros(1, dtype=np.int64)))
        groups = -(-blocks // _GROUP)
        self._blocks = _repeated(nobody, groups * _GROUP)
        self._groups = _repeated(nobody, groups)
        self._changed: set[int] = set()
        self._touched = np.zeros(blocks, dtype=bool)
        self._all = self._together(self._groups)

    def add(self, clients: Ints, **more: "Floats | int") -> None:
        """Add to the records of different clients."""
        for name, values in more.items():
            self.arrays[name][clients] += values
        blocks = clients // _BLOCK
        self._touched[blocks] = True
        self._changed.update(blocks.tolist())

    def known(self) -> Ints:
        """Return the clients that were ever selected."""
        blocks = np.flatnonzero(self._touched)
        selected = self._whole["selected"].reshape(-1, _BLOCK)[blocks]
        block, place = np.nonzero(selected)
        return np.asarray(blocks[block] * _BLOCK + place)

    def standing(self) -> SelectionTotals:
        """Return the standing of all clients."""
        if self._changed:
            blocks = np.array(sorted(self._changed))
            _put(self._blocks, blocks, self._of(blocks))
            groups = np.unique(blocks // _GROUP)
            of_groups = {}
            for name, values in vars(self._blocks).items():
                of_groups[name] = values.reshape(-1, _GROUP)[groups]
            _put(self._groups, groups, self._together(SelectionTotals(**of_groups)))
            self._changed = set()
            self._all = self._together(self._groups)
        return self._all

    def _together(self, parts: SelectionTotals) -> SelectionTotals:
        """Return the standing of clients from that of their parts, along the last axis."""
        combine = {"shortest": np.min, "longest": np.max}
        together = {}
        for name, values in vars(parts).items():
            together[name] = combine.get(name, np.sum)(values, axis=-1)
        return SelectionTotals(**together)

    def _of(self, blocks: Ints) -> SelectionTotals:
        """Return the standing of each of these blocks, from the records of its clients."""
        return SelectionTotals.of(
            *(self._whole[name].reshape(-1, _BLOCK)[blocks] for name in RECORDS)
        )


def zeros_on_demand(count: int, dtype: Any) -> NDArray[Any]:
    """Return records of zeros that take memory only where one is written, a page of 4 KiB each."""
    size = count * dtype.itemsize
    if not size or not hasattr(mmap, "MADV_NOHUGEPAGE"):
        return np.zeros(count, dtype=dtype)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages has none to leave out
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype=dtype)


def _repeated(one: Mapping[str, Any], count: int) -> SelectionTotals:
    """Return the same standing so many times."""
    return SelectionTotals(**{name: np.repeat(value, count) for name, value in one.items()})


def _put(all_of_them: SelectionTotals, places: Ints, some: SelectionTotals) -> None:
    """Replace the standing at some places."""
    for name, values in vars(some).items():
        getattr(all_of_them, name)[places] = values
