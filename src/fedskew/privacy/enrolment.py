"""Enrolment: one key holder makes all keys and hands every party, over a channel of its own, what that party may hold."""

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

from fedskew.errors import FedskewError
from fedskew.privacy.blinding import Code
from fedskew.privacy.ckks import Context, load_context, make_context
from fedskew.privacy.envelope import Line, pack, unpack

SERVER = "server"
PARTS = 1000  # shares are told in thousandths: from a share in full precision the counts themselves could be read


@dataclass(frozen=True)
class Terms:
    """What all parties agree on beforehand.

    Args:
        labels: labels are whole numbers from 0 to this less one
        weighted: clients tell their shares, and the server gets no counts
        blind: clients see whether labels are equal and not their difference; false is the protocol as printed in paper 002
    """

    labels: int
    weighted: bool = False
    blind: bool = True

    def __post_init__(self) -> None:
        _ = self.code  # refuses a range that is too large

    @cached_property
    def code(self) -> Code:
        """How labels are written."""
        return Code(self.labels)


class KeyHolder:
    """Makes the keys of one session: a client, or somebody whom clients trust; it takes no part in the protocol."""

    def __init__(self, clients: Sequence[str], terms: Terms) -> None:
        if not clients:
            raise FedskewError("secret labels need at least one client, none was named")
        if len({*clients, SERVER}) <= len(clients):
            raise FedskewError(f"clients must have different names, and none is {SERVER!r}: {', '.join(clients)}")
        self._clients, self._terms = tuple(clients), terms
        self._session = secrets.token_hex(8)
        self._context = make_context()
        self._keys = {name: os.urandom(32) for name in clients}

    def for_client(self, name: str) -> bytes:
        """The secret context, and the key of this client's line with the server."""
        return self._enrolment(name, [SERVER], self._context.secret_bytes(), [self._keys[name]])

    def for_server(self) -> bytes:
        """The public context, and the keys of the lines with all clients."""
        return self._enrolment(SERVER, self._clients, self._context.public_bytes(), list(self._keys.values()))

    def _enrolment(self, name: str, peers: Sequence[str], context: bytes, keys: list[bytes]) -> bytes:
        head = {"name": name, "session": self._session, "terms": asdict(self._terms), "peers": peers}
        return pack(head, [context, *keys])


@dataclass(frozen=True)
class Enrolled:
    """What a party holds after enrolment."""

    name: str
    terms: Terms
    context: Context
    lines: Mapping[str, Line]


def enrol(data: bytes, party: str) -> Enrolled:
    """Read what a key holder handed out; ``party`` says for whom, in errors."""
    head, (context_bytes, *keys) = unpack(data, party)
    name = head["name"]
    context = load_context(context_bytes, name)
    lines = {
        peer: Line(name, peer, head["session"], context.fingerprint, key) for peer, key in zip(head["peers"], keys, strict=True)
    }
    return Enrolled(name, Terms(**head["terms"]), context, lines)
