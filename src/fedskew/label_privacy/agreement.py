"""The label protocol from end to end in one process: all parties, exchanging only bytes."""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fedskew.core.streams import Stream
from fedskew.label_privacy.enrolment import SERVER, KeyHolder, Terms
from fedskew.label_privacy.envelope import MAC_BYTES, claimed, unpack
from fedskew.label_privacy.protocol_client import Client
from fedskew.label_privacy.protocol_server import Server

Number = TypeVar("Number", int, float)

# To which part of the work belongs what a party does when it receives a message of this step.
_PART_OF_STEP = {
    **dict.fromkeys(("turn", "labels", "compared", "matched"), "mapping"),
    **dict.fromkeys(("assigned", "added"), "unique list"),
    **dict.fromkeys(("placeholders", "counts", "total", "opened", "shares"), "counts"),
}


@dataclass(frozen=True)
class Exchange:
    """A message of the server and a client's answer, for the virtual clock; ``seconds`` come from counted work.

    Args:
        client: the client that answers
        bytes_down: size of the message
        bytes_up: size of the answer
        seconds: time of the client for the answer
        then: time of the server after it
    """

    client: int
    bytes_down: int
    bytes_up: int
    seconds: float
    then: float


# Seconds of work for a vector, measured once on one core (python -m benchmarks secret_labels) and fixed: a simulated
# clock must not depend on the load of the machine.
ENCRYPT, DECRYPT, BLIND = 0.004, 0.0015, 0.015


@dataclass(frozen=True)
class Agreement:
    """The result: the server has ``holders`` and ``counts`` or ``shares``, a client its own part of ``placeholders``.

    Args:
        placeholders: for each client its labels' placeholders
        counts: rows of each placeholder, all clients together; None with ``weighted``
        shares: for each client its share of each placeholder's rows, in thousandths; None without ``weighted``
        seconds: of the keys, the mapping (comparing labels with the list), the unique list (adding to it) and the
            counts, as they took here
        bytes_sent: by each party
        waves: the exchanges, in order; those of one wave take place at the same time
    """

    placeholders: tuple[dict[int, int], ...]
    counts: dict[int, int] | None
    shares: tuple[dict[int, float], ...] | None
    seconds: dict[str, float]
    bytes_sent: dict[str, int]
    waves: tuple[tuple[Exchange, ...], ...]

    @property
    def holders(self) -> dict[int, list[int]]:
        """Return the clients that have each placeholder."""
        holders: dict[int, list[int]] = {}
        for client, held in enumerate(self.placeholders):
            for placeholder in held.values():
                holders.setdefault(placeholder, []).append(client)
        return dict(sorted(holders.items()))


def agree(
    counts_by_client: Sequence[Mapping[int, int]],
    *,
    label_range: int,
    stream: Stream,
    weighted: bool = False,
    blind: bool = True,
    round_totals: int = 1,
) -> Agreement:
    """Return placeholders for the labels; the server gets no label and no client's counts (Stratify, section IV-A).

    Keys, blinding and the placeholders that parties exchange come from the operating system's randomness. At the end
    they are renamed 0, 1, 2, … in an order drawn from ``stream``, so that a simulation is reproducible; no real party
    could do that.

    Args:
        counts_by_client: for each client the rows of each of its labels
        label_range: labels are whole numbers from 0 to this less one
        stream: draws the names of the placeholders
        weighted: clients send shares of each placeholder's rows, for weighted selection, and the server gets no counts
        blind: clients see only whether labels are equal; false is the published protocol, where they see the difference
        round_totals: clients round their counts to a multiple of this before they are added up, so that totals
            identify no label
    """
    began = time.perf_counter()
    names = [f"client {k}" for k in range(len(counts_by_client))]
    holder = KeyHolder(names, Terms(label_range, weighted, blind, round_totals))
    clients = {}
    for name, counts in zip(names, counts_by_client, strict=True):
        clients[name] = Client(holder.for_client(name), counts)
    server = Server(holder.for_server())
    keys = {"keys": time.perf_counter() - began}
    seconds, sent, waves = _play(server, clients)
    names_of = _names(list(clients.values()), stream)
    placeholders = []
    for client in clients.values():
        own = {label: names_of[id_] for label, id_ in client.placeholders.items()}
        placeholders.append(own)
    totals = None
    if server.counts is not None:
        totals = _renamed(server.counts, names_of)
    shares = None
    if server.shares is not None:
        shares = tuple(_renamed(server.shares[name], names_of) for name in names)
    return Agreement(tuple(placeholders), totals, shares, keys | seconds, sent, waves)


def _play(
    server: Server, clients: Mapping[str, Client]
) -> tuple[dict[str, float], dict[str, int], tuple[tuple[Exchange, ...], ...]]:
    """Deliver messages until none is left; return the seconds of each part, the bytes sent and the exchanges."""
    seconds = defaultdict[str, float](float)
    sent = defaultdict[str, int](int)
    number = {name: k for k, name in enumerate(clients)}
    waves: list[tuple[Exchange, ...]] = []
    questions = server.start()
    while questions:
        wave = []
        following = []
        for name, question in questions:
            began = time.perf_counter()
            answer = clients[name].receive(question)
            between = time.perf_counter()
            next_ones = server.receive(answer)
            seconds[_PART_OF_STEP[claimed(question, "step", name)]] += between - began
            seconds[_PART_OF_STEP[claimed(answer, "step", SERVER)]] += time.perf_counter() - between
            sent[SERVER] += len(question)
            sent[name] += len(answer)
            work = DECRYPT * _vectors(question) + ENCRYPT * _vectors(answer)
            then = BLIND * sum(_vectors(message) for _, message in next_ones)
            wave.append(Exchange(number[name], len(question), len(answer), work, then))
            following += next_ones
        waves.append(tuple(wave))
        questions = following
    return dict(seconds), dict(sent), tuple(waves)


def _vectors(message: bytes) -> int:
    """Return the number of ciphertexts in a message."""
    _, blobs = unpack(message[:-MAC_BYTES], SERVER)
    return len(blobs)


def _names(clients: Sequence[Client], stream: Stream) -> dict[int, int]:
    """Return a number for every placeholder that depends only on the labels and the stream."""
    id_of_label = {}
    for client in clients:
        for label, id_ in client.placeholders.items():
            id_of_label[label] = id_
    order = stream.permutation(len(id_of_label)).tolist()
    names_of: dict[int, int] = {}
    for label, number in zip(sorted(id_of_label), order, strict=True):
        names_of[id_of_label[label]] = number
    return names_of


def _renamed(values: Mapping[int, Number], names_of: Mapping[int, int]) -> dict[int, Number]:
    renamed = {names_of[id_]: value for id_, value in values.items()}
    return dict(sorted(renamed.items()))
