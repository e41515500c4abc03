"""The server's records of all clients, and the pool of those that it may select."""

from typing import Any

import numpy as np

from fedskew.algorithms.selection import RECORDS, ClientPool, SelectionTotals
from fedskew.core.streams import Floats, Ints
from fedskew.fleet.availability import Members

_BLOCK = 64  # clients whose standing is computed together


class AvailablePool(ClientPool):
    """A pool of those clients that are available; it makes its arrays only if a method reads them, as few do."""

    def __init__(self, everyone: ClientPool, members: Members) -> None:
        plain = ("round", "sampling", "batch_size", "epochs", "all_clients")
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
    depends on the records alone, and not on how they came about.
    """

    def __init__(self, clients: int) -> None:
        blocks = -(-clients // _BLOCK)
        kinds = {
            "selected": np.int64,
            "completed": np.int64,
            "seconds": np.float64,
            "agreement": np.float64,
        }
        self._whole = {name: np.zeros(blocks * _BLOCK, dtype=kinds[name]) for name in RECORDS}
        self.arrays = {name: values[:clients] for name, values in self._whole.items()}
        nobody = vars(self._of(np.zeros(1, dtype=np.int64)))
        self._blocks = SelectionTotals(
            **{name: np.repeat(value, blocks) for name, value in nobody.items()}
        )
        self._changed = np.zeros(blocks, dtype=bool)
        self._all = self._together()

    def add(self, clients: Ints, **more: "Floats | int") -> None:
        """Add to the records of different clients."""
        for name, values in more.items():
            self.arrays[name][clients] += values
        self._changed[clients // _BLOCK] = True

    def standing(self) -> SelectionTotals:
        """Return the standing of all clients."""
        blocks = np.flatnonzero(self._changed)
        if len(blocks):
            for name, values in vars(self._of(blocks)).items():
                getattr(self._blocks, name)[blocks] = values
            self._changed[blocks] = False
            self._all = self._together()
        return self._all

    def _together(self) -> SelectionTotals:
        """Return the standing of all clients from that of the blocks."""
        combine = {"shortest": np.min, "longest": np.max}
        together = {}
        for name, values in vars(self._blocks).items():
            together[name] = combine.get(name, np.sum)(values)
        return SelectionTotals(**together)

    def _of(self, blocks: Ints) -> SelectionTotals:
        """Return the standing of each of these blocks, from the records of its clients."""
        return SelectionTotals.of(
            *(self._whole[name].reshape(-1, _BLOCK)[blocks] for name in RECORDS)
        )
