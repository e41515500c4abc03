"""The Plan: which of its rows every chosen client sees at every step of a round. All engines execute the same plan."""

from dataclasses import dataclass

import numpy as np

from fedskew.streams import Ints, bits


@dataclass(frozen=True)
class Plan:
    """One round of local work. Positions count a client's own rows from 0, so a client can hold its plan without the others.

    Client i visits ``order[offsets[i]:offsets[i + 1]]``, ``epochs[i]`` shuffles of its ``sizes[i]`` rows, in batches of
    ``batch[i]``. The last batch of an epoch may be short; one with fewer than ``least`` rows (BatchNorm needs 2) is left out.
    """

    round: int
    clients: Ints
    sizes: Ints
    batch: Ints
    epochs: Ints
    least: int
    order: Ints
    offsets: Ints

    @classmethod
    def draw(cls, seed: int, round: int, clients: Ints, sizes: Ints, batch: Ints, epochs: Ints, least: int = 1) -> "Plan":
        """The plan of a round; what a client gets depends on its own number and size only, never on who else is chosen."""
        batch = np.minimum(batch, sizes)
        # One segment for each (client, epoch); a stable sort by (segment, hash of the position) shuffles all of them at once.
        segment_client = np.repeat(np.arange(len(clients)), epochs)
        segment_epoch = np.arange(len(segment_client)) - np.repeat(np.cumsum(epochs) - epochs, epochs)
        lengths = sizes[segment_client]
        starts = np.cumsum(lengths) - lengths
        total = int(lengths.sum())
        segment = np.repeat(np.arange(len(lengths)), lengths)
        position = np.arange(total) - np.repeat(starts, lengths)
        words = bits(seed, "batches", round, clients[segment_client][segment], segment_epoch[segment], position)
        key = (segment.astype(np.uint64) << np.uint64(40)) | (words >> np.uint64(24))
        order = position[np.argsort(key, kind="stable")]
        offsets = np.concatenate([[0], np.cumsum(sizes * epochs)])
        return cls(round, clients, sizes, batch, epochs, least, order, offsets)

    @property
    def steps(self) -> Ints:
        """Local steps of each client."""
        return self.epochs * self._steps_per_epoch()

    def _steps_per_epoch(self) -> Ints:
        full, rest = np.divmod(self.sizes, self.batch)
        return full + (rest >= self.least) * (rest > 0)

    def only(self, members: Ints) -> "Plan":
        """The plan of some of the clients, in the order given."""
        pieces = [self.order[self.offsets[i] : self.offsets[i + 1]] for i in members]
        offsets = np.concatenate([[0], np.cumsum([len(piece) for piece in pieces])])
        parts = (self.clients[members], self.sizes[members], self.batch[members], self.epochs[members])
        return Plan(self.round, *parts, self.least, np.concatenate(pieces), offsets)

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
