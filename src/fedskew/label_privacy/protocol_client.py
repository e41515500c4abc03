"""The client of the label protocol: it has labels, counts and the secret key, and answers the server's messages."""

import operator
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import FedskewError
from fedskew.core.streams import Ints
from fedskew.label_privacy.enrolment import PARTS, SERVER, enrol
from fedskew.label_privacy.envelope import Message, malformed, numbers, vectors
from fedskew.label_privacy.vector_layout import (
    COUNTS,
    WIDTH,
    join_counts,
    limbs,
    pages,
    split_counts,
    spread_labels,
    spread_slots,
)

Bools: TypeAlias = NDArray[np.bool_]

MOST_ROWS = 2**31  # of one label at one client: sums of thousands of clients stay exact


class Client:
    """One client; every message of the server gets one answer.

    Args:
        enrolment: the key holder's enrolment of this client
        counts: rows of each of the client's labels
    """

    def __init__(self, enrolment: bytes, counts: Mapping[int, int]) -> None:
        enrolled = enrol(enrolment, "a client")
        self.name = enrolled.name
        self._terms = enrolled.terms
        self._context = enrolled.context
        if list(enrolled.channels) != [SERVER] or enrolled.masks is None:
            raise FedskewError(
                f"{self.name}: this is the enrolment of a server: enrol it with for_client()"
            )
        self._channel = enrolled.channels[SERVER]
        self.masks = enrolled.masks  # for secure sums, when training has begun
        if not self._context.raw.is_private():
            raise FedskewError(
                f"{self.name}: its context has no secret key: enrol it as a client, not as the server"
            )
        self._counts = _checked(self.name, counts, self._terms.labels)
        # In a random order: the server sees positions, and sorted ones would disclose which label is greater.
        self._labels = list(self._counts)
        secrets.SystemRandom().shuffle(self._labels)
        self._slots: list[int] = []  # of the server's list, one for each label; -1: not yet
        self._list_size = 0
        self._awaited: str | None = "turn"
        self.placeholders: dict[int, int] = {}  # by label, once the server has sent them

    def receive(self, data: bytes) -> bytes:
        """Return the answer to a message of the server."""
        message = self._channel.unwrap(data, self._awaited)
        total = self._open
        if self._terms.weighted:
            total = self._share
        answers = {
            "turn": self._send_labels,
            "compared": self._match,
            "assigned": self._add,
            "placeholders": self._send_counts,
            "total": total,
        }
        answer = answers[message.step](message)
        self._channel.accept()
        return answer

    def _send_labels(self, _: Message) -> bytes:
        self._awaited = "compared"
        rows = spread_labels(np.array(self._labels))
        return self._channel.wrap("labels", {"count": [len(self._labels)]}, self._encrypted(rows))

    def _match(self, message: Message) -> bytes:
        """Answer which slot holds which label, -1 for labels in no slot."""
        (blocks,) = numbers(message, "blocks", 1, range(pages(self._terms.labels, WIDTH) + 1))
        seen = self._equal(message, blocks)
        if np.any(seen.sum(axis=1) > 1):
            raise malformed(message, "a label equals two slots")
        self._slots = []
        for row in seen:
            slot = -1
            if row.any():
                slot = int(row.argmax())
            self._slots.append(slot)
        self._awaited = "placeholders"
        if -1 in self._slots:
            self._awaited = "assigned"
        return self._channel.wrap("matched", {"slots": self._slots})

    def _equal(self, message: Message, blocks: int) -> Bools:
        """Return labels x slots: whether the decrypted difference is zero."""
        groups = pages(len(self._labels), WIDTH)
        blobs = vectors(message, groups * blocks)
        values = self._decrypted(blobs).reshape(groups, blocks, WIDTH, WIDTH)
        by_label = values.transpose(0, 2, 1, 3).reshape(groups * WIDTH, blocks * WIDTH)
        equal: Bools = by_label[: len(self._labels)] == 0
        return equal

    def _add(self, message: Message) -> bytes:
        """Send the new labels, encrypted at their assigned slots."""
        new = [position for position, slot in enumerate(self._slots) if slot < 0]
        assigned = numbers(message, "slots", len(new), range(self._terms.labels), different=True)
        if set(assigned) & set(self._slots):
            raise malformed(message, "it gives a slot that a label of this client has already")
        for position, slot in zip(new, assigned, strict=True):
            self._slots[position] = slot
        labels = np.array([self._labels[position] for position in new])
        rows = spread_slots(labels - self._terms.sentinel, np.array(assigned))
        self._awaited = "placeholders"
        return self._channel.wrap("added", blobs=self._encrypted(rows))

    def _send_counts(self, message: Message) -> bytes:
        ids = numbers(message, "ids", len(self._labels), range(2**63), different=True)
        (size,) = numbers(message, "slots", 1, range(max(self._slots) + 1, self._terms.labels + 1))
        self._list_size = size
        self.placeholders = dict(zip(self._labels, ids, strict=True))
        held = np.zeros(self._list_size, dtype=np.int64)
        for slot, label in zip(self._slots, self._labels, strict=True):
            held[slot] = rounded(self._counts[label], self._terms.round_totals)
        self._awaited = "total"
        return self._channel.wrap("counts", blobs=self._encrypted(split_counts(held)))

    def _open(self, message: Message) -> bytes:
        """Decrypt the masked total for the server, limb by limb."""
        values = self._limbs(message).ravel().tolist()
        self._awaited = None
        return self._channel.wrap("opened", {"values": values})

    def _share(self, message: Message) -> bytes:
        """Send the share of each of this client's labels, in thousandths, at least one."""
        totals = join_counts(self._limbs(message))[self._slots]
        held = np.array([self._counts[label] for label in self._labels])
        if np.any(totals < held):
            raise malformed(message, "a total is below this client's own count")
        self._awaited = None
        parts = np.maximum(np.rint(PARTS * held / totals), 1).astype(np.int64)
        return self._channel.wrap("shares", {"parts": parts.tolist()})

    def _limbs(self, message: Message) -> Ints:
        blobs = vectors(message, pages(self._list_size, COUNTS))
        return limbs(self._decrypted(blobs), self._list_size)

    def _decrypted(self, blobs: Sequence[bytes]) -> Ints:
        return np.array([self._context.decrypt(blob, self.name) for blob in blobs])

    def _encrypted(self, rows: Iterable[Ints]) -> list[bytes]:
        return [self._encrypt(row) for row in rows]

    def _encrypt(self, values: Ints) -> bytes:
        data: bytes = self._context.encrypt(values).serialize()
        return data


def rounded(rows: int, multiple: int) -> int:
    """Return the nearest multiple, but at least one: it is known that the client has the label.

    >>> [rounded(rows, 100) for rows in (3, 149, 250, 251)]
    [100, 100, 300, 300]
    """
    return max(1, (rows + multiple // 2) // multiple) * multiple


def _checked(name: str, counts: Mapping[int, int], labels: int) -> dict[int, int]:
    if not counts:
        raise FedskewError(f"{name} has no labels: leave it out, or give it rows")
    result = {}
    for label, count in counts.items():
        number = _whole_number(label)
        if number is None or not 0 <= number < labels:
            raise FedskewError(
                f"{name}: label {label!r} is out of range, it must be a whole number from 0 to {labels - 1}"
            )
        rows = _whole_number(count)
        if rows is None or not 0 < rows <= MOST_ROWS:
            raise FedskewError(
                f"{name}: label {label!r} has {count!r} rows, it must be a whole number from 1 to {MOST_ROWS}"
            )
        result[number] = rows
    return result


def _whole_number(value: object) -> int | None:
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None
