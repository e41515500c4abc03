"""Visibility: the server sees no label, no key and no client's count; a client learns only equality from the others."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ks_2samp, kstest

from fedskew.core.errors import FedskewError
from fedskew.label_privacy import bfv, blinding
from fedskew.label_privacy import protocol_client as client
from fedskew.label_privacy.bfv import SLOTS, Context, make_context, times
from fedskew.label_privacy.enrolment import KeyHolder, Terms
from fedskew.label_privacy.envelope import Channel, unpack
from fedskew.label_privacy.protocol_server import Server
from fedskew.label_privacy.vector_layout import LIMB

tenseal = pytest.importorskip("tenseal")

LABELS = {"ann": (700_001, 700_002), "bob": (700_001, 700_002, 812_345), "eve": (812_345, 700_001)}
COUNTS = {
    name: {label: 90_001 + 1009 * k + label % 89 for label in labels}
    for k, (name, labels) in enumerate(LABELS.items())
}


class Recorder(Server):
    """A server that keeps every byte string it gets."""

    def __init__(self, enrolment: bytes) -> None:
        self.received = [enrolment]
        super().__init__(enrolment)

    def receive(self, data: bytes) -> list[tuple[str, bytes]]:
        self.received.append(data)
        return super().receive(data)


def things(thing: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """Return everything that can be reached from ``thing`` through attributes and containers."""
    seen = set() if seen is None else seen
    if id(thing) in seen:
        return
    seen.add(id(thing))
    yield thing
    inside: list[Any] = (
        list(vars(thing).values())
        if hasattr(thing, "__dict__") and not isinstance(thing, type)
        else []
    )
    if isinstance(thing, dict):
        inside += [*thing.keys(), *thing.values()]
    elif isinstance(thing, list | tuple | set):
        inside += thing
    elif isinstance(thing, np.ndarray):
        inside += thing.ravel().tolist()
    for part in inside:
        yield from things(part, seen)


def whole_numbers(thing: Any) -> set[int]:
    """Return the numbers that can be reached from ``thing``, including those in the headers of messages."""
    found = {
        int(part)
        for part in things(thing)
        if isinstance(part, int | float | np.number) and np.isfinite(part)
    }
    for part in things(thing):
        if isinstance(part, bytes) and part.startswith(b"fedskew1"):
            for end in (len(part), -32):  # enrolments carry no HMAC
                try:
                    found |= whole_numbers(unpack(part[:end], "test")[0])
                except ValueError:
                    continue
    return found


def secrets_of(counts: dict[str, dict[int, int]]) -> set[int]:
    return {number for held in counts.values() for pair in held.items() for number in pair}


@pytest.fixture(scope="module", params=[False, True], ids=["counts", "shares"])
def played(request: pytest.FixtureRequest, make_room) -> tuple[KeyHolder, Any]:
    holder = KeyHolder(list(COUNTS), Terms(2**20, weighted=request.param))
    room = make_room(holder, COUNTS, Recorder)
    room.finish()
    return holder, room


def test_the_server_holds_no_secret_key(played, tmp_path: Path):
    holder, room = played
    context = holder._context.raw
    path = tmp_path / "key"
    context.secret_key().data.save(str(path))
    key = path.read_bytes()
    middle = key[len(key) // 2 :][:64]
    assert middle in holder.for_client("ann")  # so that the search could find it
    everything = [part for part in things(room.server) if isinstance(part, bytes)]
    assert len(everything) > 12
    assert not any(key in part or middle in part for part in everything)


def test_the_server_cannot_decrypt_what_it_holds(played):
    _, room = played
    contexts = [part for part in things(room.server) if isinstance(part, tenseal.Context)]
    vectors = [part for part in things(room.server) if isinstance(part, tenseal.BFVVector)]
    assert contexts
    assert len(vectors) >= 2  # a block, and the sum
    assert not any(
        context.is_private() or context.has_galois_keys() or context.has_relin_keys()
        for context in contexts
    )
    for vector in vectors:
        assert not vector.context().is_private()
        with pytest.raises(ValueError, match="secret_key"):
            vector.decrypt()
    blobs = [blob for data in room.server.received[1:] for blob in unpack(data[:-32], "test")[1]]
    assert len(blobs) >= 8
    for blob in blobs:
        with pytest.raises(ValueError, match="secret_key"):
            room.server._context.decrypt(blob, "test")
    # Whereas a client can
    assert room.clients["ann"]._context.decrypt(blobs[0], "test").shape == (SLOTS,)


def test_no_label_and_no_clients_count_reaches_the_server(played):
    _, room = played
    hidden = secrets_of(COUNTS)
    assert hidden <= set.union(
        *(whole_numbers(party) for party in room.clients.values())
    )  # so that the search could find them
    assert not hidden & whole_numbers(room.server)
    for number in hidden:
        for form in ("<q", ">q", "<d", ">d"):  # shorter ones would be found by chance among 6 MB
            code = struct.pack(form, number)
            assert not any(code in part for part in things(room.server) if isinstance(part, bytes))


def test_the_length_of_a_message_tells_nothing_of_its_numbers():
    ann, server = (
        Channel(*pair, "session", "context", b"key")
        for pair in (("ann", "server"), ("server", "ann"))
    )
    sent = [ann.wrap("opened", {"values": values}) for values in ([0, -1], [10**18, 7])]
    assert len(sent[0]) == len(sent[1])
    for data, values in zip(sent, ([0, -1], [10**18, 7]), strict=True):
        assert server.unwrap(data, "opened").fields["values"] == values
        server.accept()


def test_shares_or_counts_but_never_both(played):
    holder, room = played
    totals = {sum(held.get(label, 0) for held in COUNTS.values()) for label in {*LABELS["bob"]}}
    known = whole_numbers(room.server)
    if holder._terms.weighted:
        assert room.server.counts is None
        assert not totals & known
        assert not totals & whole_numbers(room.server.received)
    else:
        assert set(room.server.counts.values()) == totals <= known
        assert room.server.shares is None


def test_the_order_of_a_clients_labels_tells_nothing(holder):
    orders = [
        client.Client(holder.for_client("ann"), dict.fromkeys(range(50), 1))._labels
        for _ in range(3)
    ]
    assert len({tuple(order) for order in orders}) == 3
    assert all(sorted(order) == list(range(50)) != order for order in orders)


# What a client decrypts. Ann holds 64 labels right below bob's, or far above them; bob must not be able to tell which.

NEAR, FAR, OWN = range(336, 400), range(936, 1000), range(400, 464)


@pytest.fixture
def seen_by_bob(make_room, monkeypatch: pytest.MonkeyPatch):
    def see(ann: range, blind: bool = True, own: range = OWN):
        seen: list[Any] = []
        decrypt = Context.decrypt

        def record(self: Context, data: bytes, whose: str) -> Any:
            values = decrypt(self, data, whose)
            if whose == "bob":
                seen.append(values)
            return values

        with monkeypatch.context() as patch:
            patch.setattr(Context, "decrypt", record)
            names = {"ann": dict.fromkeys(ann, 1), "bob": dict.fromkeys(own, 1)}
            room = make_room(KeyHolder(list(names), Terms(1000, blind=blind)), names)
            room.finish()
        (values,) = seen
        see.labels = room.clients["bob"]._labels
        return values

    return see


def likelihood(one: Any, other: Any) -> float:
    """Return the lower p-value of equal distributions, for the values and for their distances from zero."""
    views = (lambda x: x, lambda x: np.minimum(x, blinding.PRIME - x))
    return min(float(ks_2samp(view(one), view(other)).pvalue) for view in views)


def test_a_client_cannot_tell_how_far_anothers_labels_are(seen_by_bob):
    near, far = seen_by_bob(NEAR), seen_by_bob(FAR)
    assert likelihood(near, far) > 1e-6
    assert likelihood(near, blinding.factors(SLOTS)) > 1e-6
    assert near.min() > 0  # nothing is equal


def test_without_blinding_it_can(seen_by_bob):
    near, far = seen_by_bob(NEAR, blind=False), seen_by_bob(FAR, blind=False)
    assert likelihood(near, far) < 1e-12
    # It even reads them: its own labels, in its own order, less the differences.
    assert {*((np.repeat(seen_by_bob.labels, 64) - far) % blinding.PRIME)} == {*FAR}


def noise_bits(context: Context, vector: Any) -> int:
    """Return the noise of encrypted zeros as measured with the secret key: the doublings until they are lost."""
    doubled = 0
    while True:
        vector = times(vector, np.full(2 * SLOTS, 2))
        try:
            context.decrypt(vector.serialize(), "test")
        except FedskewError:
            return 149 - doubled
        doubled += 1


def test_the_noise_does_not_tell_the_factor():
    context = make_context()
    zeros, ones = np.zeros(SLOTS, dtype=np.int64), np.ones(2 * SLOTS, dtype=np.int64)

    def bits(factors: Any, cover: bool) -> int:
        product = times(context.encrypt(zeros), factors)
        return noise_bits(context, context.cover(zeros) + product if cover else product)

    small, great = bits(ones, cover=False), bits(blinding.factors(SLOTS), cover=False)
    assert small + 20 < great < 72  # the bound by which the docs say how little is left to see
    assert bits(ones, cover=True) == bits(blinding.factors(SLOTS), cover=True) == bfv._FLOOD


def test_the_noise_that_covers_is_even_and_new_every_time():
    vector = make_context().encrypt(np.zeros(SLOTS, dtype=np.int64))
    first, second = (
        np.frombuffer(bfv._noise(vector)[-8 * 6 * 8192 :], dtype="<u8").reshape(2, 3, 8192)
        for _ in range(2)
    )
    assert not first[1].any()
    assert (first[0] != second[0]).mean() > 0.999
    for residues in first[0]:
        assert kstest(residues / 2.0**60, "uniform").pvalue > 1e-6


def test_tiles_without_a_label_answer_no_question(seen_by_bob, monkeypatch: pytest.MonkeyPatch):
    """Check that a client that reports one label cannot test 63 others in the rest of its vector."""
    spread = client.spread_labels
    monkeypatch.setattr(
        client,
        "spread_labels",
        lambda labels: [np.where(row == 0, NEAR[0], row) for row in spread(labels)],
    )
    values = seen_by_bob(NEAR, own=range(400, 401)).reshape(64, 64)
    assert (values[1:] == 0).mean() < 0.01
    honest = seen_by_bob(NEAR, own=range(336, 400)).reshape(64, 64)
    assert ((honest == 0).sum(axis=1) == 1).all()  # as it can for labels it has named


@pytest.mark.parametrize("weighted", [False, True])
def test_who_decrypts_reads_only_its_own_totals(make_room, weighted: bool):
    counts = {"ann": {k: 5 + k for k in range(40)}, "bob": dict.fromkeys(range(20, 60), 7)}
    room = make_room(KeyHolder(list(counts), Terms(100, weighted=weighted)), counts)
    question = room.until("total", "server")
    ann = room.clients["ann"]
    values = ann._context.decrypt(unpack(question[:-32], "test")[1][0], "ann")
    low, high = values.reshape(2, -1)
    own = np.zeros(len(low), dtype=bool)
    own[ann._slots] = weighted
    totals = {
        slot: counts["ann"][label] + counts["bob"].get(label, 0)
        for label, slot in zip(ann._labels, ann._slots, strict=True)
    }
    if weighted:
        assert {slot: int(low[slot] + LIMB * high[slot]) for slot in totals} == totals
    for masked in (low[~own], high[~own]):
        assert kstest(masked / blinding.PRIME, "uniform").pvalue > 1e-6
