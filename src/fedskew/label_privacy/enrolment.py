"""Enrolment: one key holder creates all keys and gives each party its own, over a separate channel."""

import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from fedskew.core.errors import FedskewError
from fedskew.label_privacy.bfv import Context, load_context, make_context
from fedskew.label_privacy.blinding import check_labels
from fedskew.label_privacy.envelope import Channel, pack, unpack
from fedskew.label_privacy.secure_sum import Dealer, Masks
from fedskew.label_privacy.vector_layout import MOST_CLIENTS

SERVER = "server"
_DIGEST = _KEY = 32  # bytes
PARTS = 1000  # shares are sent in thousandths: one in full precision would disclose the counts


@dataclass(frozen=True)
class Terms:
    """The parameters that all parties agree on beforehand.

    Args:
        labels: labels are whole numbers from 0 to this less one
        weighted: clients send their shares, and the server gets no counts
        blind: clients see whether labels are equal and not their difference; false is Stratify's published protocol
        round_totals: clients round their counts to a multiple of this, and to one multiple at least
    """

    labels: int
    weighted: bool = False
    blind: bool = True
    round_totals: int = 1

    def __post_init__(self) -> None:
        if type(self.labels) is not int or type(self.round_totals) is not int:
            raise FedskewError(
                f"labels={self.labels!r} and round_totals={self.round_totals!r} must be whole numbers"
            )
        if type(self.weighted) is not bool or type(self.blind) is not bool:
            raise FedskewError(
                f"weighted={self.weighted!r} and blind={self.blind!r} must be true or false"
            )
        check_labels(self.labels)
        if self.round_totals < 1:
            raise FedskewError(
                f"round_totals={self.round_totals} is out of range: use 1 for exact totals, or more"
            )
        if self.weighted and self.round_totals > 1:
            raise FedskewError(
                f"round_totals={self.round_totals} rounds totals, and with weighted=true the server gets none: leave "
                "it at 1"
            )

    @property
    def sentinel(self) -> int:
        """Return the number in an empty slot: the first one that is not a label."""
        return self.labels


class KeyHolder:
    """The creator of the keys of one session: a client or a trusted party; it takes no part in the protocol."""

    def __init__(self, clients: Sequence[str], terms: Terms) -> None:
        if not clients:
            raise FedskewError("secret labels need at least one client, none was named")
        if len(clients) > MOST_CLIENTS:
            raise FedskewError(
                f"{len(clients)} clients are more than secret labels can count: use at most {MOST_CLIENTS}"
            )
        if len({*clients, SERVER}) <= len(clients):
            raise FedskewError(
                f"clients must have different names, and none is {SERVER!r}: {', '.join(clients)}"
            )
        self._clients = tuple(clients)
        self._terms = terms
        self._session = secrets.token_hex(8)
        self._context = make_context()
        self._keys = {name: os.urandom(_KEY) for name in clients}
        self._dealer = Dealer()

    def for_client(self, name: str) -> bytes:
        """Return the secret context, the key of the channel with the server, and the seeds for secure sums."""
        number = self._clients.index(name)
        seeds = self._dealer.seeds(number, len(self._clients))
        return self._enrolment(
            name, [SERVER], self._context.secret_bytes(), [self._keys[name]], number, seeds
        )

    def for_server(self) -> bytes:
        """Return the public context, and the keys of the channels with all clients."""
        return self._enrolment(
            SERVER, self._clients, self._context.public_bytes(), list(self._keys.values()), None, {}
        )

    def _enrolment(
        self,
        name: str,
        peers: Sequence[str],
        context: bytes,
        keys: list[bytes],
        number: int | None,
        seeds: Mapping[int, bytes],
    ) -> bytes:
        head = {
            "name": name,
            "session": self._session,
            "terms": asdict(self._terms),
            "peers": peers,
            "number": number,
            "others": list(seeds),
        }
        return seal(pack(head, [context, *keys, *seeds.values()]))


def seal(data: bytes) -> bytes:
    """Return content with a SHA-256 over it; the channel must guarantee who sent it."""
    return data + hashlib.sha256(data).digest()


def unseal(data: bytes, party: str) -> bytes:
    """Return the sealed content; raise an error if a byte has changed."""
    inner = data[:-_DIGEST]
    digest = data[-_DIGEST:]
    if not hmac.compare_digest(hashlib.sha256(inner).digest(), digest):
        raise FedskewError(
            f"{party}: {len(data)} bytes are not an enrolment, or were changed: have it issued again"
        )
    return inner


@dataclass(frozen=True)
class Enrolled:
    """The keys and terms of a party after enrolment."""

    name: str
    terms: Terms
    context: Context
    channels: Mapping[str, Channel]
    masks: Masks | None  # of a client; the server has no seeds


def enrol(data: bytes, party: str) -> Enrolled:
    """Read an enrolment; ``party`` names its owner in errors."""
    head, blobs = unpack(unseal(data, party), party)
    try:
        name = head.pop("name")
        session = head.pop("session")
        peers = head.pop("peers")
        number = head.pop("number")
        others = head.pop("others")
        terms = Terms(**head.pop("terms"))
        named = _are_names([name, session, *peers]) and len(set(peers)) == len(peers) > 0
        numbered = _are_numbers(number, [*others])
        complete = not head and len(blobs) == 1 + len(peers) + len(others)
        if not complete or not named or not numbered:
            raise ValueError("its parts do not belong together")
        if len(set(others)) < len(others) or any(len(key) != _KEY for key in blobs[1:]):
            raise ValueError("its keys are not those of different parties")
    except (KeyError, TypeError, ValueError) as error:
        raise FedskewError(
            f"{party}: this enrolment is invalid ({error}): have it issued again"
        ) from None
    context = load_context(blobs[0], name)
    channels = {}
    for peer, key in zip(peers, blobs[1:], strict=False):
        channels[peer] = Channel(name, peer, session, context.fingerprint, key)
    masks = None
    if number is not None:
        seeds = dict(zip(others, blobs[1 + len(peers) :], strict=True))
        masks = Masks(number, seeds)
    return Enrolled(name, terms, context, channels, masks)


def _are_names(values: list[object]) -> bool:
    return all(isinstance(value, str) for value in values)


def _are_numbers(own: object, others: list[object]) -> bool:
    """Return whether a client's own number, which the server does not have, and those of others are whole numbers."""
    if own is not None and type(own) is not int:
        return False
    return all(type(other) is int for other in others) and own not in others
