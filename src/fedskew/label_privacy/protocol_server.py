"""The server of the label protocol: it compares and adds encrypted numbers, and assigns placeholders."""

import secrets
from collections.abc import Callable, Iterable
from typing import TypeAlias

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.streams import Ints
from fedskew.label_privacy import blinding
from fedskew.label_privacy.bfv import SLOTS, Vector, times
from fedskew.label_privacy.enrolment import PARTS, enrol
from fedskew.label_privacy.envelope import Message, claimed, malformed, numbers, vectors
from fedskew.label_privacy.vector_layout import (
    COUNTS,
    LIMB,
    WIDTH,
    join_counts,
    limbs,
    pages,
    touched,
)

Outbox: TypeAlias = list[tuple[str, bytes]]  # receiver and message

_ID_BITS = 63


class Server:
    """The server: send what ``start`` returns; pass every answer to ``receive`` and send what that returns.

    Args:
        enrolment: the key holder's enrolment of the server
    """

    def __init__(self, enrolment: bytes) -> None:
        enrolled = enrol(enrolment, "the server")
        self._name = enrolled.name
        self._terms = enrolled.terms
        self._context = enrolled.context
        self._channels = enrolled.channels
        if self._context.raw.is_private():
            raise FedskewError("the server was given the secret key: enrol it with for_server()")
        self._turns = list(self._channels)  # clients whose labels are still to come
        self._awaited: dict[str, str] = {}
        self._blocks: list[Vector] = []  # the unique list: a vector for every 64 slots
        self._slots: dict[str, Ints] = {}  # of each client's labels, in the client's own order
        self._ids: list[int] = []  # the placeholder of each slot
        self._sums: list[Vector] = []
        self._masks: Ints = np.zeros((0, SLOTS), dtype=np.int64)
        self.counts: dict[int, int] | None = None  # rows of each placeholder, all clients together
        # By client and placeholder
        if self._terms.weighted:
            self.shares: dict[str, dict[int, float]] | None = {}
        else:
            self.shares = None

    @property
    def placeholders(self) -> dict[str, list[int]]:
        """Return the placeholders of each client; complete once every client had its turn."""
        placeholders: dict[str, list[int]] = {}
        for client, slots in self._slots.items():
            placeholders[client] = [self._ids[slot] for slot in slots]
        return placeholders

    def start(self) -> Outbox:
        """Return the first message."""
        return self._next_turn()

    def receive(self, data: bytes) -> Outbox:
        """Return the messages that follow from a client's message."""
        client = claimed(data, "sender", self._name)
        if client not in self._channels:
            raise FedskewError(
                f"{self._name}: unknown sender {client!r}: enrol it first; known: {', '.join(self._channels)}"
            )
        message = self._channels[client].unwrap(data, self._awaited.get(client))
        answers: dict[str, Callable[[Message], Outbox]] = {
            "labels": self._compare,
            "matched": self._assign,
            "added": self._extend,
            "counts": self._sum,
            "opened": self._unmask,
            "shares": self._keep_shares,
        }
        following = answers[message.step](message)
        self._channels[client].accept()
        if self._awaited.get(client) == message.step:
            del self._awaited[client]
        return following

    def _next_turn(self) -> Outbox:
        if self._turns:
            return [self._ask(self._turns.pop(0), "turn", "labels")]
        size = [len(self._ids)]
        outbox: Outbox = []
        for client, ids in self.placeholders.items():
            outbox.append(self._ask(client, "placeholders", "counts", ids=ids, slots=size))
        return outbox

    def _compare(self, message: Message) -> Outbox:
        """Subtract the list from the client's labels, every slot from every label at once."""
        (count,) = numbers(message, "count", 1)
        if not 1 <= count <= self._terms.labels:
            raise malformed(message, f"it has {count} labels, not 1 to {self._terms.labels}")
        blobs = []
        for number, labels in enumerate(self._load(message, pages(count, WIDTH))):
            tiles = min(WIDTH, count - number * WIDTH)
            for slots in self._blocks:
                difference = labels - slots
                if self._terms.blind:
                    difference = self._blind(difference, tiles)
                blobs.append(difference.serialize())
        self._slots[message.sender] = np.full(count, -1)
        return [self._ask(message.sender, "compared", "matched", blobs, blocks=[len(self._blocks)])]

    def _blind(self, difference: Vector, tiles: int) -> Vector:
        """Blind differences: zero stays zero modulo the prime, all else, and tiles without a label, become random."""
        masks = blinding.uniform(SLOTS)
        masks[: tiles * WIDTH] = 0
        return self._context.cover(masks) + times(difference, blinding.factors(SLOTS))

    def _assign(self, message: Message) -> Outbox:
        """Assign slots to new labels."""
        matched = np.array(numbers(message, "slots", len(self._slots[message.sender])))
        known = matched[matched >= 0]
        if (
            matched.min() < -1
            or len(np.unique(known)) < len(known)
            or np.any(known >= len(self._ids))
        ):
            raise malformed(message, "its slots are not different slots of the list")
        new = np.flatnonzero(matched < 0)
        if len(self._ids) + len(new) > self._terms.labels:
            raise malformed(
                message,
                f"with its {len(new)} new labels there would be more than {self._terms.labels}",
            )
        matched[new] = np.arange(len(self._ids), len(self._ids) + len(new))
        self._slots[message.sender] = matched
        if not len(new):
            return self._next_turn()
        return [self._ask(message.sender, "assigned", "added", slots=matched[new].tolist())]

    def _extend(self, message: Message) -> Outbox:
        """Add the new labels to the list; the client has subtracted the sentinel of the empty slots."""
        mine = self._slots[message.sender]
        new = mine[mine >= len(self._ids)]
        blocks = touched(new)
        for block, labels in zip(blocks, self._load(message, len(blocks)), strict=True):
            if block == len(self._blocks):
                self._blocks.append(self._context.encrypt(np.full(SLOTS, self._terms.sentinel)))
            self._blocks[block] = self._blocks[block] + labels
        self._ids += _new_ids(len(new), self._ids)
        return self._next_turn()

    def _sum(self, message: Message) -> Outbox:
        """Add the counts to those of the others; when the total is complete, have it decrypted."""
        counts = self._load(message, pages(len(self._ids), COUNTS))
        if self._sums:
            self._sums = [total + more for total, more in zip(self._sums, counts, strict=True)]
        else:
            self._sums = counts
        if len(self._awaited) > 1:  # this client's own is still among them
            return []
        if self._terms.weighted:
            outbox: Outbox = []
            for client in self._channels:
                totals = self._masked(self._draw_masks(client))
                outbox.append(self._ask(client, "total", "shares", totals))
            return outbox
        self._masks = self._draw_masks()
        return [self._ask(next(iter(self._channels)), "total", "opened", self._masked(self._masks))]

    def _draw_masks(self, reader: str | None = None) -> Ints:
        """Return random numbers for the total, zero where ``reader`` may read it."""
        masks = blinding.uniform(len(self._sums) * SLOTS).reshape(-1, SLOTS)
        if reader:
            page, slot = np.divmod(self._slots[reader], COUNTS)
            masks[page, slot] = masks[page, COUNTS + slot] = 0
        return masks

    def _masked(self, masks: Ints) -> list[bytes]:
        masked: list[bytes] = []
        for row, total in zip(masks, self._sums, strict=True):
            masked.append((self._context.cover(row) + total).serialize())
        return masked

    def _unmask(self, message: Message) -> Outbox:
        size = len(self._ids)
        values = numbers(message, "values", 2 * size, range(blinding.PRIME))
        masked = np.array(values).reshape(2, size)
        found = (masked - limbs(self._masks, size)) % blinding.PRIME
        totals = join_counts(found)
        if totals.min() < 1 or found.max() >= len(self._channels) * LIMB:
            raise malformed(message, "a total is below one, or more than all clients can have")
        self.counts = dict(zip(self._ids, totals.tolist(), strict=True))
        return []

    def _keep_shares(self, message: Message) -> Outbox:
        ids = self.placeholders[message.sender]
        parts = numbers(message, "parts", len(ids), range(1, PARTS + 1))
        assert self.shares is not None
        self.shares[message.sender] = {}
        for placeholder, part in zip(ids, parts, strict=True):
            self.shares[message.sender][placeholder] = part / PARTS
        return []

    def _load(self, message: Message, count: int) -> list[Vector]:
        result: list[Vector] = []
        for blob in vectors(message, count):
            result.append(self._context.load(blob, message.sender))
        return result

    def _ask(
        self, client: str, step: str, answer: str, blobs: Iterable[bytes] = (), **fields: list[int]
    ) -> tuple[str, bytes]:
        self._awaited[client] = answer
        return client, self._channels[client].wrap(step, fields, list(blobs))


def _new_ids(count: int, taken: list[int]) -> list[int]:
    """Return random placeholders that differ from each other and from those taken."""
    result: list[int] = []
    while len(result) < count:
        drawn = secrets.randbits(_ID_BITS)
        if drawn not in taken and drawn not in result:
            result.append(drawn)
    return result
