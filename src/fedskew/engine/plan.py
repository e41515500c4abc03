"""The plan: which rows every selected client uses at every step of a round. All engines execute the same plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from fedskew.core.streams import Bits, Floats, Ints, bits, longer

_LOW = np.uint64(24)  # bits of a hash that do not count in a shuffle
_LARGEST = 2**24  # rows of a client whose positions fit there


@dataclass(frozen=True, eq=False)
class Plan:
    """The local work of one round.

    Positions count a client's own rows from 0, so a client can draw its plan without the others.

    Client i uses ``order[offsets[i]:offsets[i + 1]]``, ``epochs[i]`` shuffles of its ``sizes[i]`` rows, in batches
    of ``batch[i]``. The last batch of an epoch may be short; one with fewer than ``least`` rows (BatchNorm needs 2)
    is left out. The order is drawn only when it is used, so a server that only distributes plans does not compute it.
    ``numbers`` are the method's numbers for each client; ``purpose`` names the random stream: a probe uses other
    batches than training.
    """

    # Fields with one entry per client
    COLUMNS: ClassVar[tuple[str, ...]] = ("clients", "sizes", "batch", "epochs")

    seed: int
    round: int
    clients: Ints
    sizes: Ints
    batch: Ints
    epochs: Ints
    least: int = 1
    numbers: Mapping[str, Floats] = field(default_factory=dict)
    purpose: str = "batches"
    most_steps: int | None = None  # of each client, where its epochs have more

    @classmethod
    def draw(
        cls,
        seed: int,
        round: int,
        clients: Ints,
        sizes: Ints,
        batch: Ints,
        epochs: Ints,
        least: int = 1,
        numbers: Mapping[str, Floats] | None = None,
    ) -> "Plan":
        """Return the plan of a round; no batch is larger than its client's rows."""
        return cls(
            seed, round, clients, sizes, np.minimum(batch, sizes), epochs, least, numbers or {}
        )

    @cached_property
    def order(self) -> Ints:
        """Return all shuffles; those of a client depend on its number and size only, not on the other clients."""
        # One segment for each (client, epoch): its positions in the order of the high bits of their hashes, and of
        # themselves where these are equal. With the position in the low bits of the key that is a plain sort.
        segment_client = np.repeat(np.arange(len(self.clients)), self.epochs)
        segment_epoch = np.arange(len(segment_client)) - np.repeat(
            np.cumsum(self.epochs) - self.epochs, self.epochs
        )
        lengths = self.sizes[segment_client]
        ends = np.cumsum(lengths)
        position = np.arange(int(lengths.sum())) - np.repeat(ends - lengths, lengths)
        streams = np.broadcast_to(self.streams(self.purpose), self.clients.shape)
        segments = longer(longer(streams, self.clients)[segment_client], segment_epoch)
        words = longer(np.repeat(segments, lengths), position)
        if lengths.max(initial=0) > _LARGEST:  # a position does not fit into the low bits
            segment = np.repeat(np.arange(len(lengths)), lengths)
            return position[np.lexsort((words >> _LOW, segment))]
        words &= np.uint64(2**64 - _LARGEST)
        words |= position.view(np.uint64)
        if len(lengths):
            _sort_segments(words, lengths, ends)
        words &= np.uint64(_LARGEST - 1)
        return words.view(np.int64)

    def streams(self, purpose: str) -> Bits:
        """Return the state of the random stream before the clients' numbers: one word, the same for all clients."""
        return bits(self.seed, purpose, self.round)

    @property
    def places(self) -> Ints:
        """Return the numbers under which the partition of the job knows the clients."""
        return self.clients

    @property
    def offsets(self) -> Ints:
        """Return where each client's part of ``order`` begins, and the end."""
        return np.concatenate([[0], np.cumsum(self.sizes * self.epochs)])

    @cached_property
    def steps(self) -> Ints:
        """Return the number of local steps of each client."""
        steps: Ints = self.epochs * self.steps_per_epoch
        if self.most_steps is None:
            return steps
        return np.minimum(steps, self.most_steps)

    @cached_property
    def steps_per_epoch(self) -> Ints:
        """Return the number of local steps of each client in one epoch."""
        full, rest = np.divmod(self.sizes, self.batch)
        return full + (rest >= self.least) * (rest > 0)

    def second(self) -> Self:
        """Return the plan of the second batches: as many rows in every step, in shuffles of their own."""
        return replace(self, purpose="second batch")

    def only(self, members: Ints) -> Self:
        """Return the plan of some of the clients, in the given order."""
        columns = {name: getattr(self, name)[members] for name in self.COLUMNS}
        numbers = {name: values[members] for name, values in self.numbers.items()}
        return replace(self, **columns, numbers=numbers)

    @staticmethod
    def together(plans: "list[Plan]") -> "Plan":
        """Return the plans of different clients as one; what they share is taken from the first."""
        columns: dict[str, Any] = {}
        for name in Plan.COLUMNS:
            columns[name] = np.concatenate([getattr(plan, name) for plan in plans])
        numbers = {}
        for name in plans[0].numbers:
            numbers[name] = np.concatenate([plan.numbers[name] for plan in plans])
        return replace(plans[0], **columns, numbers=numbers)

    def counts(self) -> Ints:
        """Return batch sizes ``[step, client]``, 0 once a client has finished."""
        step = np.arange(int(self.steps.max()))[:, None]
        rest = self.sizes - step % self.steps_per_epoch * self.batch
        return np.where(step < self.steps, np.minimum(self.batch, rest), 0)

    def first(self) -> tuple[Ints, Ints]:
        """Return positions ``[client, slot]`` of the first batches, padded as in ``table``, and how many are real."""
        slot = np.arange(int(self.batch.max()))
        place = np.where(slot < self.batch[:, None], slot, 0)
        return self.order[self.offsets[:-1, None] + place], self.batch

    def table(self) -> tuple[Ints, Ints]:
        """Return positions ``[step, client, slot]`` and batch sizes ``[step, client]``, 0 once a client has finished.

        Slots past the end of a batch repeat its first row, so that whatever is computed there and masked away is
        finite.
        """
        count = self.counts()
        epoch, within = np.divmod(np.arange(len(count))[:, None], self.steps_per_epoch)
        start = self.offsets[:-1] + np.where(count > 0, epoch * self.sizes + within * self.batch, 0)
        slot = np.arange(int(self.batch.max()))
        return self.order[start[..., None] + np.where(slot < count[..., None], slot, 0)], count


def _sort_segments(words: Bits, lengths: Ints, ends: Ints) -> None:
    """Sort each of the segments in place; neighbours of one length are sorted together."""
    last = np.append(np.flatnonzero(lengths[1:] != lengths[:-1]), len(lengths) - 1)
    first = 0
    for end, size in zip(ends[last].tolist(), lengths[last].tolist(), strict=True):
        words[first:end].reshape(-1, size).sort(axis=1)
        first = end
