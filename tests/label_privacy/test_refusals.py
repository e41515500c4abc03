"""Errors of the parties: each is one line that names the party and the fix."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fedskew.core.errors import FedskewError
from fedskew.label_privacy.bfv import make_context
from fedskew.label_privacy.enrolment import KeyHolder, Terms, seal, unseal
from fedskew.label_privacy.envelope import Channel, pack, unpack
from fedskew.label_privacy.protocol_client import Client
from fedskew.label_privacy.protocol_server import Server

pytest.importorskip("tenseal")


@contextmanager
def refused(*parts: str) -> Iterator[None]:
    with pytest.raises(FedskewError) as caught:
        yield
    text = str(caught.value)
    assert "\n" not in text
    for part in parts:
        assert part in text


def parts(enrolment: bytes) -> tuple[dict[str, Any], list[bytes]]:
    return unpack(unseal(enrolment, "test"), "test")


BAD_COUNTS = {
    "no labels": ({}, "ann has no labels: leave it out, or give it rows"),
    "negative label": (
        {-1: 3},
        "ann: label -1 is out of range, it must be a whole number from 0 to 1048575",
    ),
    "label too great": (
        {2**20: 3},
        "ann: label 1048576 is out of range, it must be a whole number from 0 to 1048575",
    ),
    "half a label": ({1.5: 3}, "ann: label 1.5 is out of range"),
    "a name": ({"cat": 3}, "ann: label 'cat' is out of range"),
    "no rows": ({4: 0}, "ann: label 4 has 0 rows, it must be a whole number from 1 to 2147483648"),
    "negative rows": ({4: -2}, "ann: label 4 has -2 rows"),
    "half a row": ({4: 2.5}, "ann: label 4 has 2.5 rows"),
    "too many rows": ({4: 2**31 + 1}, "ann: label 4 has 2147483649 rows"),
}


@pytest.mark.parametrize("name", BAD_COUNTS)
def test_bad_labels_and_counts(holder, name: str):
    counts, text = BAD_COUNTS[name]
    with refused(text):
        Client(holder.for_client("ann"), counts)


def test_bad_sets_of_parties():
    with refused("at least one client"):
        KeyHolder([], Terms(10))
    with refused("clients must have different names", "a, b, a"):
        KeyHolder(["a", "b", "a"], Terms(10))
    with refused("none is 'server'"):
        KeyHolder(["a", "server"], Terms(10))
    with refused("16384 clients are more than secret labels can count: use at most 16383"):
        KeyHolder([str(k) for k in range(16_384)], Terms(10))
    with refused("label_range=0 is out of range"):
        Terms(0)
    with refused("round_totals=0 is out of range"):
        Terms(10, round_totals=0)
    with refused("with weighted=true the server gets none: leave it at 1"):
        Terms(10, weighted=True, round_totals=5)


def test_the_secret_key_goes_to_clients_only(holder):
    _, (secret, *own) = parts(holder.for_client("ann"))
    head, (public, *keys) = parts(holder.for_server())
    with refused("the server was given the secret key: enrol it with for_server()"):
        Server(seal(pack(head, [secret, *keys])))
    head, _ = parts(holder.for_client("ann"))
    with refused("ann: its context has no secret key: enrol it as a client"):
        Client(seal(pack(head, [public, *own])), {1: 1})
    with refused("ann: its encryption context cannot be read", "enrol it again"):
        Client(seal(pack(head, [public[:5000], *own])), {1: 1})


def test_another_context(holder, room):
    head, (_, *own) = parts(holder.for_client("ann"))
    stranger = Client(seal(pack(head, [make_context().secret_bytes(), *own])), {7: 3})
    question = room.until("turn")
    with refused(
        "ann: server uses another encryption context", "enrol all parties with the same key holder"
    ):
        stranger.receive(question)
    with refused(
        "server: ann uses another encryption context", "enrol all parties with the same key holder"
    ):
        room.server.receive(stranger._send_labels(None))


def test_a_vector_made_with_another_key_in_a_good_envelope(room):
    room.clients["bob"]._context = make_context()
    with refused("bob: a vector decrypts to noise", "enrol all parties with the same key holder"):
        room.finish()


def test_a_damaged_vector_in_a_good_envelope(room):
    bob = room.clients["bob"]
    encrypt = bob._encrypt
    bob._encrypt = lambda values: (data := encrypt(values))[:200_000] + bytes(500) + data[200_500:]
    with refused("bob: a vector decrypts to noise", "the ciphertext was changed"):
        room.finish()


@pytest.mark.parametrize("junk", [b"", b"junk" * 50, bytes(1000)])
def test_a_vector_that_is_none(room, junk: bytes):
    room.clients["bob"]._encrypt = lambda _: junk
    with refused(f"bob: a ciphertext of {len(junk)} bytes cannot be read", "send it again"):
        room.finish()


def test_a_vector_cut_short(room):
    bob = room.clients["bob"]
    encrypt = bob._encrypt
    bob._encrypt = lambda values: encrypt(values)[:-10]
    with refused("bob: a ciphertext of", "cannot be read"):
        room.finish()


@pytest.mark.parametrize("share", [0.0, 1e-5, 0.5, 0.99999, 1.0])
def test_a_changed_byte_anywhere(room, share: float):
    message = room.until("labels")
    at = round(share * (len(message) - 1))
    changed = message[:at] + bytes([message[at] ^ 1]) + message[at + 1 :]
    with refused("server: "):
        room.server.receive(changed)
    room.outbox += room.server.receive(message)  # the refusal has changed nothing
    room.finish()
    assert room.server.counts is not None


@pytest.mark.parametrize("length", [0, 10, 40, 300, 100_000, -33, -32, -1])
def test_a_message_cut_short(room, length: int):
    message = room.until("labels")
    with refused("server: ", "have "):
        room.server.receive(message[:length])


def test_changes_are_refused_by_the_hmac(room):
    message = room.until("labels")
    with refused("server: the HMAC of a message from ann is wrong", "or enrol ann again"):
        room.server.receive(message[:5000] + bytes([message[5000] ^ 1]) + message[5001:])
    with refused("server: the HMAC of a message from bob is wrong"):
        room.server.receive(message.replace(b'"sender": "ann"', b'"sender": "bob"', 1))


def test_the_key_of_another_session(room):
    other = KeyHolder(["ann", "bob"], Terms(2**20))
    room.until("labels")
    ann = Client(other.for_client("ann"), {7: 3})
    with refused("server: the HMAC of a message from ann is wrong", "signed with another key"):
        room.server.receive(ann._send_labels(None))


def test_an_unknown_sender(room):
    with refused("server: unknown sender 'eve': enrol it first; known: ann, bob"):
        room.server.receive(
            Channel("eve", "server", "s", "c", b"k" * 32).wrap("labels", {"count": [1]})
        )
    with refused("ann: unknown sender 'eve': only server may write here"):
        room.clients["ann"].receive(Channel("eve", "ann", "s", "c", b"k" * 32).wrap("turn"))


def test_a_message_that_comes_twice(room):
    message = room.until("labels")
    room.outbox += room.server.receive(message)
    with refused("server: message 0 from ann came before: drop the repetition"):
        room.server.receive(message)
    question = room.outbox[0][1]
    room.clients["ann"].receive(question)
    with refused("ann: message 1 from server came before"):
        room.clients["ann"].receive(question)


def test_messages_out_of_order(room):
    room.until("labels")
    ann, bob = (room.clients[name]._channel for name in ("ann", "bob"))
    with refused("server: message 1 from ann is out of order: deliver message 0 first"):
        room.server.receive(ann.wrap("labels", {"count": [1]}))
    with refused(
        "server: bob is out of order, it sent 'labels' when 'nothing' was awaited: start a new session"
    ):
        room.server.receive(bob.wrap("labels", {"count": [1]}))


def test_another_step_than_awaited(room):
    line = room.clients["ann"]._channel
    room.until("turn")
    with refused("server: ann is out of order, it sent 'counts' when 'labels' was awaited"):
        room.server.receive(line.wrap("counts"))


@pytest.mark.parametrize("weighted", [False, True])
def test_a_client_decrypts_one_total_and_no_more(make_room, weighted: bool):
    room = make_room(
        KeyHolder(["ann", "bob"], Terms(10, weighted=weighted)), {"ann": {1: 2}, "bob": {1: 5}}
    )
    room.finish()
    _, again = room.server._ask(
        "ann", "total", "opened", room.server._masked(room.server._draw_masks())
    )
    with refused("ann: server is out of order, it sent 'total' when 'nothing' was awaited"):
        room.clients["ann"].receive(again)


def test_wrong_receiver_and_session():
    at_ann = Channel("ann", "server", "s1", "c", b"k" * 32)
    with refused("ann: a message from server is for bob: deliver it there"):
        at_ann.unwrap(Channel("server", "bob", "s1", "c", b"k" * 32).wrap("turn"), "turn")
    with refused(
        "ann: server is in session s2, not s1: enrol all parties with the same key holder"
    ):
        at_ann.unwrap(Channel("server", "ann", "s2", "c", b"k" * 32).wrap("turn"), "turn")


BAD_ANSWERS = {
    "no labels": ("labels", {"count": [0]}, 0, "it has 0 labels, not 1 to 1048576"),
    "no count": ("labels", {}, 0, "'count' must be 1 whole numbers"),
    "too few vectors": ("labels", {"count": [2]}, 0, "it carries 0 ciphertexts, not 1"),
    "not as many slots": ("matched", {"slots": [-1]}, 0, "'slots' must be 2 whole numbers"),
    "slots that are none": (
        "matched",
        {"slots": [0, -1]},
        0,
        "its slots are not different slots of the list",
    ),
    "a slot in words": ("matched", {"slots": ["a", -1]}, 0, "'slots' must be 2 whole numbers"),
    "totals of another mask": (
        "opened",
        {"values": [0] * 6},
        0,
        "a total is below one, or more than all clients can have",
    ),
}


@pytest.mark.parametrize("name", BAD_ANSWERS)
def test_answers_that_make_no_sense(room, name: str):
    step, fields, blobs, text = BAD_ANSWERS[name]
    room.until(step)
    line = room.clients["ann"]._channel
    line._sent -= 1
    with refused(
        f"server: bad {step!r} from ann, {text}: run the same version of fedskew at all parties"
    ):
        room.server.receive(line.wrap(step, fields, [b""] * blobs))


def test_a_total_below_the_own_count(make_room):
    room = make_room(
        KeyHolder(["ann", "bob"], Terms(10, weighted=True)), {"ann": {1: 2}, "bob": {1: 5}}
    )
    question = room.until("total")
    room.clients["ann"]._counts[1] = 8
    with refused("ann: bad 'total' from server, a total is below this client's own count"):
        room.clients["ann"].receive(question)


def test_without_tenseal(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "tenseal", None)
    with refused("secret labels need TenSEAL: pip install 'fedskew[he]'"):
        KeyHolder(["ann"], Terms(10))
