"""Enrolment: one key holder makes all keys and hands every party, over a channel of its own, what that party may hold."""

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from fedskew.errors import FedskewError
from fedskew.privacy.bfv import Context, load_context, make_context
from fedskew.privacy.blinding import check_labels
from fedskew.privacy.envelope import Line, pack, unpack
from fedskew.privacy.layout import MOST_CLIENTS
from fedskew.privacy.secure_sum import Dealer, Masks

SERVER = "server"
PARTS = 1000  # shares are told in thousandths: from a share in full precision the counts themselves could be read


@dataclass(frozen=True)
class Terms:
    """What all parties agree on beforehand.

    Args:
        labels: labels are whole numbers from 0 to this less one
        weighted: clients tell their shares, and the server gets no counts
        blind: clients see whether labels are equal and not their difference; false is Stratify's protocol as printed
        round_totals: clients round their counts to a multiple of this, and to one multiple at least
    """

    labels: int
    weighted: bool = False
    blind: bool = True
    round_totals: int = 1

    def __post_init__(self) -> None:
        check_labels(self.labels)
        if self.round_totals < 1:
            raise FedskewError(f"round_totals={self.round_totals} is out of range: use 1 for exact totals, or more")
        if self.weighted and self.round_totals > 1:
            raise FedskewError(
                f"round_totals={self.round_totals} rounds totals, and with weighted=true the server gets none: leave it at 1"
            )

    @property
    def sentinel(self) -> int:
        """What an empty slot holds: the first number that is no label."""
        return self.labels


class KeyHolder:
    """Makes the keys of one session: a client, or somebody whom clients trust; it takes no part in the protocol."""

    def __init__(self, clients: Sequence[str], terms: Terms) -> None:
        if not clients:
            raise FedskewError("secret labels need at least one client, none was named")
        if len(clients) > MOST_CLIENTS:
            raise FedskewError(f"{len(clients)} clients are more than secret labels can count: use at most {MOST_CLIENTS}")
        if len({*clients, SERVER}) <= len(clients):
            raise FedskewError(f"clients must have different names, and none is {SERVER!r}: {', '.join(clients)}")
        self._clients, self._terms = tuple(clients), terms
        self._session = secrets.token_hex(8)
        self._context = make_context()
        self._keys = {name: os.urandom(32) for name in clients}
        self._dealer = Dealer()

    def for_client(self, name: str) -> bytes:
        """The secret context, the key of this client's line with the server, and its seeds for secure sums."""
        number = self._clients.index(name)
        seeds = self._dealer.seeds(number, len(self._clients))
        return self._enrolment(name, [SERVER], self._context.secret_bytes(), [self._keys[name]], number, seeds)

    def for_server(self) -> bytes:
        """The public context, and the keys of the lines with all clients."""
        return self._enrolment(SERVER, self._clients, self._context.public_bytes(), list(self._keys.values()), None, {})

    def _enrolment(
        self, name: str, peers: Sequence[str], context: bytes, keys: list[bytes], number: int | None, seeds: Mapping[int, bytes]
    ) -> bytes:
        head = {"name": name, "session": self._session, "terms": asdict(self._terms), "peers": peers}
        return pack(head | {"number": number, "others": list(seeds)}, [context, *keys, *seeds.values()])


@dataclass(frozen=True)
class Enrolled:
    """What a party holds after enrolment."""

    name: str
    terms: Terms
    context: Context
    lines: Mapping[str, Line]
    masks: Masks | None  # of a client; the server has no seeds


def enrol(data: bytes, party: str) -> Enrolled:
    """Read what a key holder handed out; ``party`` says for whom, in errors."""
    head, (context_bytes, *keys) = unpack(data, party)
    name, peers, number = head["name"], head["peers"], head["number"]
    context = load_context(context_bytes, name)
    lines = {peer: Line(name, peer, head["session"], context.fingerprint, key) for peer, key in zip(peers, keys, strict=False)}
    seeds = dict(zip(head["others"], keys[len(peers) :], strict=True))
    masks = None if number is None else Masks(number, seeds)
    return Enrolled(name, Terms(**head["terms"]), context, lines, masks)
