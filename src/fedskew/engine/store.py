"""What clients keep between rounds, on the host: a row in growing tensors for every client that was ever chosen."""

import numpy as np
import torch
from torch import Tensor

from fedskew.algorithms.base import Tensors, Tree
from fedskew.streams import Ints


class ClientStore:
    """One tree a client. A client that is not there yet has the tree that everybody starts with."""

    def __init__(self, fresh: Tree) -> None:
        self.fresh = fresh
        self._slot: dict[int, int] = {}
        self._held: Tree = {part: {name: value[None][:0].cpu() for name, value in ts.items()} for part, ts in fresh.items()}

    def __bool__(self) -> bool:
        return bool(self.fresh)

    @property
    def clients(self) -> list[int]:
        """Those that have something of their own, in order of arrival."""
        return list(self._slot)

    def get(self, clients: Ints) -> Tree:
        """Their trees stacked, on the device of the fresh one."""
        known = np.array([self._slot.get(int(client), -1) for client in clients])
        old, slots = torch.from_numpy(np.flatnonzero(known >= 0)), torch.from_numpy(known[known >= 0])

        def gather(start: Tensor, held: Tensor) -> Tensor:
            result = start.expand(len(clients), *start.shape).clone()
            result[old] = held[slots].to(start.device)
            return result

        return {
            part: {name: gather(value, self._held[part][name]) for name, value in ts.items()} for part, ts in self.fresh.items()
        }

    def put(self, clients: Ints, tree: Tree) -> None:
        """Replace their trees."""
        if not self or not len(clients):
            return
        for client in clients.tolist():
            self._slot.setdefault(client, len(self._slot))
        slots = torch.tensor([self._slot[client] for client in clients.tolist()])
        for part, tensors in tree.items():
            for name, value in tensors.items():
                held = self._held[part][name]
                if len(held) < len(self._slot):  # grow by half, so that rounds stay cheap
                    room = torch.empty((len(self._slot) * 3 // 2, *held.shape[1:]), dtype=held.dtype)
                    room[: len(held)] = held
                    self._held[part][name] = held = room
                held[slots] = value.to("cpu")

    def state(self) -> Tensors:
        """Everything as flat named tensors, for a checkpoint."""
        if not self._slot:
            return {}
        used = len(self._slot)
        flat = {f"{part}/{name}": value[:used].clone() for part, ts in self._held.items() for name, value in ts.items()}
        return {"clients": torch.tensor(self.clients), **flat}

    def restore(self, state: Tensors) -> None:
        """The inverse of ``state``."""
        if state:
            self._slot = {client: slot for slot, client in enumerate(state["clients"].tolist())}
            self._held = {part: {name: state[f"{part}/{name}"].cpu().clone() for name in ts} for part, ts in self.fresh.items()}
