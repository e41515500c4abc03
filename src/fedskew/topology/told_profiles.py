"""What clients have told about themselves, where they tell their profiles in rounds."""

from typing import Any

import numpy as np
import torch

from fedskew.algorithms.selection import Telling
from fedskew.core.streams import Floats, Ints
from fedskew.core.trees import Tensors
from fedskew.fleet.clock import Flags
from fedskew.topology.records import zeros_on_demand


class ToldProfiles:
    """The last profile that each client told, when, and how often it has told one.

    Memory is taken where a client has told something, a page of 4 KiB at a time.
    """

    def __init__(self, telling: Telling, clients: int) -> None:
        self.telling = telling
        fields: list[tuple[str, Any]] = [("times", np.int64), ("round", np.int64)]
        for part in telling.parts:
            fields.append((part, np.float64))
        self._whole = zeros_on_demand(clients, np.dtype(fields))

    def times(self, clients: Ints) -> Ints:
        """Return how often these clients have told their profiles."""
        return np.asarray(self._whole["times"][clients])

    def due(self, clients: Ints, round: int) -> Flags:
        """Return which of these clients are to tell their profiles in a round."""
        telling = self.telling
        times = self.times(clients)
        due = times == 0
        if telling.refresh is not None:
            due |= round - self._whole["round"][clients] >= telling.refresh
        if telling.most is not None:
            due &= times < telling.most
        return np.asarray(due)

    def keep(self, clients: Ints, round: int, told: dict[str, Floats]) -> None:
        """Keep what these clients tell in a round."""
        self._whole["times"][clients] += 1
        self._whole["round"][clients] = round
        for part, values in told.items():
            self._whole[part][clients] = values

    def of(self, clients: Ints) -> dict[str, Floats]:
        """Return what these clients have told last."""
        last = {}
        for part in self.telling.parts:
            last[part] = self._whole[part][clients]
        return last

    def known(self) -> Ints:
        """Return the clients that have told a profile."""
        return np.flatnonzero(self._whole["times"])

    def state(self) -> Tensors:
        """Return what was told, for the clients that have told something."""
        known = self.known()
        state = {"told/clients": torch.from_numpy(known)}
        for name in self._whole.dtype.names or ():
            state[f"told/{name}"] = torch.from_numpy(self._whole[name][known])
        return state

    def restore(self, state: Tensors) -> None:
        """Restore what ``state`` returned."""
        known = state["told/clients"].cpu().numpy()
        self._whole = zeros_on_demand(len(self._whole), self._whole.dtype)
        for name in self._whole.dtype.names or ():
            self._whole[name][known] = state[f"told/{name}"].cpu().numpy()
