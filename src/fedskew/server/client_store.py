"""What clients keep between rounds: one row in growing tensors for every client that was ever selected."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedskew.core.streams import Ints
from fedskew.core.trees import Tensors, Tree, size_in_bytes

SHARE = 0.25  # of a GPU's free memory that the trees of all clients may take

_HOST = torch.device("cpu")


def home_of(fresh: Tree, clients: int) -> torch.device:
    """Return where to store the trees of so many clients: on the GPU they are used on if it has room, or the host."""
    device = next((value.device for tensors in fresh.values() for value in tensors.values()), _HOST)
    if device.type != "cuda":
        return _HOST
    free, _ = torch.cuda.mem_get_info(device)
    if clients * size_in_bytes(fresh) <= SHARE * free:
        return device
    return _HOST


class ClientStore:
    """Stores one tree for each client on a device; a client without an entry has the initial tree."""

    def __init__(self, fresh: Tree, home: torch.device = _HOST) -> None:
        self.fresh, self.home = fresh, home
        self._slot: dict[int, int] = {}  # the row of each client
        self._changed: set[int] = set()
        self._held = self._empty()  # the rows of all clients, and room for more

    def _empty(self) -> Tree:
        """Return tensors with the shapes of the initial tree, and room for no client yet."""
        empty: Tree = {}
        for part, tensors in self.fresh.items():
            empty[part] = {name: value[None][:0].to(self.home) for name, value in tensors.items()}
        return empty

    def __bool__(self) -> bool:
        return bool(self.fresh)

    @property
    def clients(self) -> list[int]:
        """Return the clients that have an entry, in order of arrival."""
        return list(self._slot)

    @property
    def changed(self) -> list[int]:
        """Return the clients that were put since ``mark_saved``, in order of arrival."""
        return sorted(self._changed, key=self._slot.__getitem__)

    @property
    def row_bytes(self) -> int:
        """Return the size of ``rows`` for one client in bytes."""
        sizes = (value.nbytes for tensors in self.fresh.values() for value in tensors.values())
        return sum(sizes) + torch.int64.itemsize  # and the number of the client

    @property
    def all_bytes(self) -> int:
        """Return the size of ``rows`` for all ``clients`` in bytes."""
        return self.row_bytes * len(self._slot)

    def get(self, clients: Ints) -> Tree:
        """Return the trees of these clients stacked, on the device of the initial tree."""
        if not self:
            return {}
        slot_or_minus_one = [self._slot.get(client, -1) for client in clients.tolist()]
        all_slots = np.array(slot_or_minus_one, dtype=np.int64)
        known = np.flatnonzero(all_slots >= 0)  # the places in ``clients`` of those with an entry
        slots = torch.from_numpy(all_slots[known]).to(self.home)

        def gather(fresh: Tensor, held: Tensor) -> Tensor:
            entries = held.index_select(0, slots).to(fresh.device)
            if len(known) == len(clients):
                return entries
            initial = fresh.expand(len(clients), *fresh.shape)
            return initial.index_copy(0, torch.from_numpy(known).to(fresh.device), entries)

        stacked: Tree = {}
        for part, tensors in self.fresh.items():
            stacked[part] = {}
            for name, fresh in tensors.items():
                stacked[part][name] = gather(fresh, self._held[part][name])
        return stacked

    def put(self, clients: Ints, tree: Tree) -> None:
        """Replace the trees of these clients."""
        if not self or not len(clients):
            return
        numbers = clients.tolist()
        slots = torch.tensor(
            [self._slot.setdefault(client, len(self._slot)) for client in numbers]
        ).to(self.home)
        self._changed.update(numbers)
        for part, tensors in tree.items():
            for name, value in tensors.items():
                held = self._held[part][name]
                # Grow by half, so that the cost per round stays low
                if len(held) < len(self._slot):
                    room = held.new_empty((len(self._slot) * 3 // 2, *held.shape[1:]))
                    room[: len(held)] = held
                    self._held[part][name] = held = room
                held.index_copy_(0, slots, value.to(held))

    def rows(self, clients: Sequence[int]) -> Tensors:
        """Return a copy of these clients' entries as flat named tensors, a row each; ``clients`` are the numbers."""
        slots = torch.tensor([self._slot[client] for client in clients], dtype=torch.int64).to(
            self.home
        )
        flat = {}
        for part, tensors in self._held.items():
            for name, held in tensors.items():
                flat[f"{part}/{name}"] = held[slots]
        return {"clients": torch.tensor(clients, dtype=torch.int64), **flat}

    def add(self, rows: Tensors) -> None:
        """Store what ``rows`` returned."""
        tree = {}
        for part, tensors in self.fresh.items():
            tree[part] = {name: rows[f"{part}/{name}"] for name in tensors}
        self.put(rows["clients"].cpu().numpy(), tree)

    def mark_saved(self) -> None:
        """Reset ``changed``, once the current entries have been saved elsewhere."""
        self._changed.clear()

    def state(self) -> Tensors:
        """Return all entries as flat named tensors, for a checkpoint."""
        if self._slot:
            return self.rows(self.clients)
        return {}

    def restore(self, state: Tensors) -> None:
        """Restore what ``state`` returned."""
        self._slot = {}
        self._changed = set()
        self._held = self._empty()
        if state:
            self.add(state)
