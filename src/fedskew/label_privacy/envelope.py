"""Signed, numbered messages between two parties; forged, damaged or repeated ones are refused."""

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

from fedskew.core.errors import FedskewError

Fields: TypeAlias = Mapping[str, Sequence[int]]

_MAGIC = b"fedskew1"
MAC_BYTES = 32
_MOST_HEAD = 64 << 20  # bytes of a head: 2^20 labels in two limbs need 46 of these millions
# Characters of every number, so that the length of a message does not depend on its numbers
_DIGITS = 20


@dataclass(frozen=True)
class Message:
    """One message: its envelope, whole numbers by name, and ciphertexts."""

    session: str
    sender: str
    receiver: str
    step: str
    number: int  # counted for each pair of sender and receiver
    context: str  # fingerprint of the sender's public encryption context
    fields: Fields
    blobs: Sequence[bytes]

    def to_bytes(self, key: bytes) -> bytes:
        """Return header and blobs, and an HMAC-SHA256 over both."""
        lists = {name: list(values) for name, values in self.fields.items()}
        spare = 0
        for values in lists.values():
            spare += sum(_DIGITS - len(str(value)) for value in values)
        data = pack(vars(self) | {"fields": lists}, self.blobs, spare)
        return data + _mac(key, data)


def pack(head: Mapping[str, Any], blobs: Sequence[bytes], spare: int = 0) -> bytes:
    """Return a JSON header, padding and blobs as one byte string."""
    lengths = [len(blob) for blob in blobs]
    text = json.dumps({**head, "blobs": lengths}).encode() + b" " * spare
    return b"".join([_MAGIC, len(text).to_bytes(4, "big"), text, *blobs])


def unpack(data: bytes, party: str) -> tuple[dict[str, Any], list[bytes]]:
    """Return the header and blobs of ``pack``; ``party`` is the reader."""
    try:
        start = len(_MAGIC) + 4
        if not data.startswith(_MAGIC):
            raise ValueError("it does not start like one")
        end = start + int.from_bytes(data[start - 4 : start], "big")
        if end > min(len(data), start + _MOST_HEAD):
            raise ValueError("its head is longer than it may be")
        head: dict[str, Any] = json.loads(data[start:end])
        if not isinstance(head, dict) or not _are_whole(lengths := head.pop("blobs", None)):
            raise ValueError("its head is none")
        ends = list(accumulate(lengths, initial=end))
        if ends[-1] != len(data) or min(lengths, default=0) < 0:
            raise ValueError("its lengths do not add up")
    except (ValueError, RecursionError) as error:
        raise FedskewError(
            f"{party}: {len(data)} bytes are not a message of this protocol ({error}): cut short or changed, have them "
            "sent again"
        ) from None
    return head, [data[a:b] for a, b in pairwise(ends)]


def _are_whole(values: object) -> bool:
    """Return whether it is a list of whole numbers of 64 bits."""
    if not isinstance(values, list):
        return False
    return all(type(value) is int and -(2**63) <= value < 2**63 for value in values)


def claimed(data: bytes, name: str, party: str) -> str:
    """Return what the envelope claims under ``name``, such as its sender; nothing is verified yet."""
    head, _ = unpack(data[:-MAC_BYTES], party)
    return str(head.get(name))


# The steps of the protocol: the numbers that a message of it carries by name, and whether there are ciphertexts.
_STEPS: dict[str, tuple[tuple[str, ...], bool]] = {
    "turn": ((), False),
    "labels": (("count",), True),
    "compared": (("blocks",), True),
    "matched": (("slots",), False),
    "assigned": (("slots",), False),
    "added": ((), True),
    "placeholders": (("ids", "slots"), False),
    "counts": ((), True),
    "total": ((), True),
    "opened": (("values",), False),
    "shares": (("parts",), False),
}


class Channel:
    """One party's end of a channel: it signs and numbers outgoing messages, and verifies incoming ones."""

    def __init__(self, me: str, peer: str, session: str, context: str, key: bytes) -> None:
        self.me = me
        self.peer = peer
        self.session = session
        self.context = context
        self._key = key
        self._sent = self._received = 0

    def wrap(self, step: str, fields: Fields | None = None, blobs: Sequence[bytes] = ()) -> bytes:
        """Return the next message to the peer."""
        message = Message(
            self.session, self.me, self.peer, step, self._sent, self.context, fields or {}, blobs
        )
        self._sent += 1
        return message.to_bytes(self._key)

    def unwrap(self, data: bytes, awaited: str | None) -> Message:
        """Return the peer's next message, if it is intact, signed by the peer and the expected one."""
        head, blobs = unpack(data[:-MAC_BYTES], self.me)
        if head.get("sender") != self.peer:
            raise FedskewError(
                f"{self.me}: unknown sender {head.get('sender')!r}: only {self.peer} may write here"
            )
        if not hmac.compare_digest(data[-MAC_BYTES:], _mac(self._key, data[:-MAC_BYTES])):
            raise FedskewError(
                f"{self.me}: the HMAC of a message from {self.peer} is wrong, it was changed or signed with another "
                "key: "
                f"have it sent again, or enrol {self.peer} again"
            )
        message = self._message(head, blobs)
        self._check(message, awaited)
        return message

    def accept(self) -> None:
        """Count the message that was unwrapped last, after its content was checked."""
        self._received += 1

    def _message(self, head: Mapping[str, Any], blobs: list[bytes]) -> Message:
        """Return the message with this header, if it has exactly the parts of one."""
        kinds = {}
        for field in fields(Message):
            if field.name != "blobs":
                kinds[field.name] = field.type
        texts = all(isinstance(head.get(name), str) for name, kind in kinds.items() if kind is str)
        carried = head.get("fields")
        if (
            head.keys() != kinds.keys()
            or not texts
            or not _are_whole([head["number"]])
            or not isinstance(carried, dict)
        ):
            raise FedskewError(
                f"{self.me}: a message from {self.peer} has an invalid header: run the same version of fedskew "
                "at all parties"
            )
        return Message(**head, blobs=blobs)

    def _check(self, message: Message, awaited: str | None) -> None:
        if message.receiver != self.me:
            raise FedskewError(
                f"{self.me}: a message from {self.peer} is for {message.receiver}: deliver it there"
            )
        if message.session != self.session:
            raise FedskewError(
                f"{self.me}: {self.peer} is in session {message.session}, not {self.session}: enrol all parties with "
                "the same key holder"
            )
        if message.context != self.context:
            raise FedskewError(
                f"{self.me}: {self.peer} uses another encryption context ({message.context[:8]}, not "
                f"{self.context[:8]}): enrol all parties with the same key holder"
            )
        self._check_order(message, awaited)
        names, carries = _STEPS[message.step]
        if extra := sorted(set(message.fields) - set(names)):
            raise malformed(
                message, f"it has the fields {', '.join(extra)}, which are not expected"
            )
        if message.blobs and not carries:
            raise malformed(message, f"it carries {len(message.blobs)} ciphertexts, not 0")

    def _check_order(self, message: Message, awaited: str | None) -> None:
        if message.number < self._received:
            raise FedskewError(
                f"{self.me}: message {message.number} from {self.peer} came before: drop the repetition"
            )
        if message.number > self._received:
            raise FedskewError(
                f"{self.me}: message {message.number} from {self.peer} is out of order: deliver message "
                f"{self._received} first"
            )
        if message.step != awaited:
            raise FedskewError(
                f"{self.me}: {self.peer} is out of order, it sent {message.step!r} when {awaited or 'nothing'!r} was "
                "awaited: start a new session"
            )


def numbers(
    message: Message, name: str, count: int, within: range | None = None, different: bool = False
) -> list[int]:
    """Return the ``count`` whole numbers of ``message`` under ``name``, all ``within`` a range if one is given."""
    found = message.fields.get(name)
    if not isinstance(found, list) or not _are_whole(found) or count != len(found):
        raise malformed(message, f"{name!r} must be {count} whole numbers")
    if within is not None and not all(value in within for value in found):
        raise malformed(
            message, f"{name!r} must be numbers from {within.start} to {within.stop - 1}"
        )
    if different and len(set(found)) < count:
        raise malformed(message, f"{name!r} must be different numbers")
    return found


def vectors(message: Message, count: int) -> Sequence[bytes]:
    """Return the ciphertexts of ``message``, which must be ``count``."""
    if len(message.blobs) != count:
        raise malformed(message, f"it carries {len(message.blobs)} ciphertexts, not {count}")
    return message.blobs


def malformed(message: Message, why: str) -> FedskewError:
    """Return the error for an invalid message of an enrolled party."""
    return FedskewError(
        f"{message.receiver}: bad {message.step!r} from {message.sender}, {why}: run the same version of fedskew at "
        "all parties"
    )


def _mac(key: bytes, data: bytes) -> bytes:
    return hmac.new(key, data, hashlib.sha256).digest()
