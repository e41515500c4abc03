"""The Plan: which of its rows every chosen client sees at every step of a round. All engines execute the same plan."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedskew.streams import Ints, bits


@dataclass(frozen=True, eq=False)
class Plan:
    """One round of local work. Positions count a client's own rows from 0, so a client can draw its plan without the others.

    Client i visits ``order[offsets[i]:offsets[i + 1]]``, ``epochs[i]`` shuffles of its ``sizes[i]`` rows, in batches of
    ``batch[i]``. The last batch of an epoch may be short; one with fewer than ``least`` rows (BatchNorm needs 2) is left out.
    The order is drawn only where it is used: a server that sends the work out never pays for it.
    """

    seed: int
    round: int
    clients: Ints
    sizes: Ints
    batch: Ints
    epochs: Ints
    least: int = 1

    @classmethod
    def draw(cls, seed: int, round: int, clients: Ints, sizes: Ints, batch: Ints, epochs: Ints, least: int = 1) -> "Plan":
        """The plan of a round; no batch is larger than its client."""
        return cls(seed, round, clients, sizes, np.minimum(batch, sizes), epochs, least)

    @cached_property
    def order(self) -> Ints:
        """All shuffles; what a client gets depends on its own number and size only, never on who else is chosen."""
        # One segment for each (client, epoch); a stable sort by (segment, hash of the position) shuffles all of them at once.
        segment_client = np.repeat(np.arange(len(self.clients)), self.epochs)
        segment_epoch = np.arange(len(segment_client)) - np.repeat(np.cumsum(self.epochs) - self.epochs, self.epochs)
        lengths = self.sizes[segment_client]
        starts = np.cumsum(lengths) - lengths
        segment = np.repeat(np.arange(len(lengths)), lengths)
        position = np.arange(int(lengths.sum())) - np.repeat(starts, lengths)
        words = bits(self.seed, "batches", self.round, self.clients[segment_client][segment], segment_epoch[segment], position)
        key = (segment.astype(np.uint64) << np.uint64(40)) | (words >> np.uint64(24))
        return position[np.argsort(key, kind="stable")]

    @property
    def offsets(self) -> Ints:
        """Where each client's part of ``order`` begins, and the end."""
        return np.concatenate([[0], np.cumsum(self.sizes * self.epochs)])

    @property
    def steps(self) -> Ints:
        """Local steps of each client."""
        return self.epochs * self._steps_per_epoch()

    def _steps_per_epoch(self) -> Ints:
        full, rest = np.divmod(self.sizes, self.batch)
        return full + (rest >= self.least) * (rest > 0)

    def only(self, members: Ints) -> "Plan":
        """The plan of some of the clients, in the order given."""
        parts = (self.clients[members], self.sizes[members], self.batch[members], self.epochs[members])
        return Plan(self.seed, self.round, *parts, self.least)

    def table(self) -> tuple[Ints, Ints]:
        """Positions ``[step, client, slot]`` and rows in each batch ``[step, client]``, 0 once a client has finished.

        Slots past the end of a batch repeat its first row, so that whatever is computed there and masked away is finite.
        """
        per_epoch, steps = self._steps_per_epoch(), self.steps
        step = np.arange(int(steps.max()))[:, None]
        epoch, within = np.divmod(step, per_epoch)
        count = np.where(step < steps, np.minimum(self.batch, self.sizes - within * self.batch), 0)
        start = self.offsets[:-1] + np.where(count > 0, epoch * self.sizes + within * self.batch, 0)
        slot = np.arange(int(self.batch.max()))
        return self.order[start[..., None] + np.where(slot < count[..., None], slot, 0)], count
