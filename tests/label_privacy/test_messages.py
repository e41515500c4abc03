"""Messages and enrolments that were changed or forged: rejected in one line, with no change of state."""

import copy
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from fedskew.core.errors import FedskewError
from fedskew.label_privacy.enrolment import KeyHolder, Terms, enrol, seal, unseal
from fedskew.label_privacy.envelope import MAC_BYTES, Channel, claimed, pack, unpack
from fedskew.label_privacy.protocol_client import Client
from fedskew.label_privacy.protocol_server import Server

tenseal = pytest.importorskip("tenseal")

STEPS = (
    "turn",
    "labels",
    "compared",
    "matched",
    "assigned",
    "added",
    "placeholders",
    "counts",
    "total",
    "opened",
    "shares",
)
COUNTS = {"ann": {7: 3, 9: 5}, "bob": {7: 4, 8: 6}}


class Stage:
    """The parties, stopped before the first message of a step is delivered."""

    def __init__(self, step: str, holders: dict[bool, KeyHolder]) -> None:
        holder = holders[step == "shares"]
        self.server = Server(holder.for_server())
        self.clients = {
            name: Client(holder.for_client(name), held) for name, held in COUNTS.items()
        }
        outbox = self.server.start()
        while True:
            name, question = outbox.pop(0)
            if claimed(question, "step", "test") == step:
                self.receiver, self.message, self.sender = (
                    self.clients[name],
                    question,
                    self.server._channels[name],
                )
                return
            answer = self.clients[name].receive(question)
            if claimed(answer, "step", "test") == step:
                self.receiver, self.message, self.sender = (
                    self.server,
                    answer,
                    self.clients[name]._channel,
                )
                return
            outbox += self.server.receive(answer)

    def state(self) -> str:
        """Return all state of the receiver, keys and ciphertexts by their identity."""
        lines = (
            self.receiver._channels.values()
            if isinstance(self.receiver, Server)
            else [self.receiver._channel]
        )
        own = {
            name: value
            for name, value in vars(self.receiver).items()
            if name not in ("_context", "_channels", "_channel")
        }
        return repr(
            [
                sorted(own.items(), key=lambda item: item[0]),
                [(line._sent, line._received) for line in lines],
            ]
        )

    def deliver(self, data: bytes) -> None:
        """Check that the message is rejected and the receiver is unchanged."""
        before = self.state()
        with pytest.raises(FedskewError) as caught:
            self.receiver.receive(data)
        assert "\n" not in str(caught.value)
        assert self.state() == before

    def resigned(
        self, change: Callable[[dict[str, Any]], Any], blobs: list[bytes] | None = None
    ) -> bytes:
        """Return the message with another header (and other ciphertexts), signed as its sender would."""
        head, found = unpack(self.message[:-MAC_BYTES], "test")
        head = copy.deepcopy(head)
        changed = change(head)
        data = pack(head if changed is None else changed, found if blobs is None else blobs)
        return data + _signature(self.sender, data)


def _signature(line: Channel, data: bytes) -> bytes:
    import hashlib
    import hmac

    return hmac.new(line._key, data, hashlib.sha256).digest()


@pytest.fixture(scope="module")
def stages() -> dict[str, Stage]:
    holders = {
        weighted: KeyHolder(list(COUNTS), Terms(100, weighted=weighted))
        for weighted in (False, True)
    }
    return {step: Stage(step, holders) for step in STEPS}


@pytest.mark.parametrize("step", STEPS)
@seed(0)
@settings(max_examples=25, deadline=None, database=None)
@given(data=st.data())
def test_any_change_of_any_byte_is_refused(
    stages: dict[str, Stage], step: str, data: st.DataObject
) -> None:
    stage = stages[step]
    stage.deliver(data.draw(mutations(stage.message)))


def mutations(whole: bytes) -> st.SearchStrategy[bytes]:
    """Return the bytes with a flipped bit, or a piece removed, inserted or overwritten, in headers more often."""
    place = st.one_of(st.integers(0, min(400, len(whole) - 1)), st.integers(0, len(whole) - 1))
    flipped = st.builds(
        lambda at, bit: whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :],
        place,
        st.integers(0, 7),
    )
    spliced = st.builds(
        lambda a, b, put: whole[: min(a, b)] + put + whole[max(a, b) :],
        place,
        place,
        st.binary(max_size=40),
    )
    return st.one_of(flipped, spliced, st.binary(max_size=200)).filter(
        lambda changed: changed != whole
    )


JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=5),
        st.sampled_from([2**63, 10**30, -1]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.parametrize("step", STEPS)
@seed(0)
@settings(max_examples=25, deadline=None, database=None)
@given(data=st.data())
def test_a_signed_message_with_any_other_head_is_refused(
    stages: dict[str, Stage], step: str, data: st.DataObject
) -> None:
    """Check signed messages, since a sender with a valid key may be another version of fedskew, or hostile."""
    stage = stages[step]
    original, _ = unpack(stage.message[:-MAC_BYTES], "test")
    names = [*original, "more"]

    def change(head: dict[str, Any]) -> Any:
        kind = data.draw(st.sampled_from(["lose", "set", "field", "whole"]))
        if kind == "lose":
            del head[data.draw(st.sampled_from(names[:-1]))]
        elif kind == "set":
            head[data.draw(st.sampled_from(names))] = data.draw(JSON)
        elif kind == "field":
            head["fields"][data.draw(st.sampled_from([*head["fields"], "more"]))] = data.draw(JSON)
        else:
            return data.draw(st.dictionaries(st.sampled_from(names), JSON))
        return None

    changed = stage.resigned(change)
    head, _ = unpack(changed[:-MAC_BYTES], "test")
    if json.dumps(head) == json.dumps(original) or _means_the_same(stage, head, original):
        return
    stage.deliver(changed)


def _means_the_same(stage: Stage, head: dict[str, Any], original: dict[str, Any]) -> bool:
    """Return whether the changed numbers are valid too: a server cannot know which labels a client has."""
    same = {name: value for name, value in head.items() if name != "fields"} == {
        name: value for name, value in original.items() if name != "fields"
    }
    fields = head.get("fields")
    return same and isinstance(fields, dict) and fields.keys() == original["fields"].keys()


HOSTILE: dict[str, tuple[str, Callable[[dict[str, Any]], Any], str]] = {
    "a part is missing": (
        "labels",
        lambda head: (head.pop("number"), None)[1],
        "an invalid header",
    ),
    "a part too many": ("labels", lambda head: head.update(more=1), "an invalid header"),
    "no name": ("labels", lambda head: head.update(step=3), "an invalid header"),
    "a field too many": (
        "labels",
        lambda head: head["fields"].update(more=[1]),
        "which are not expected",
    ),
    "a slot too great": (
        "assigned",
        lambda head: head["fields"].update(slots=[10**9, 1]),
        "from 0 to 99",
    ),
    "a slot given twice": (
        "assigned",
        lambda head: head["fields"].update(slots=[1, 1]),
        "different numbers",
    ),
    "a list beyond all memory": (
        "placeholders",
        lambda head: head["fields"].update(slots=[10**12]),
        "to 100",
    ),
    "a list shorter than its slots": (
        "placeholders",
        lambda head: head["fields"].update(slots=[1]),
        "from 2 to 100",
    ),
    "one placeholder for two labels": (
        "placeholders",
        lambda head: head["fields"].update(ids=[5, 5]),
        "different numbers",
    ),
    "a placeholder of 100 bits": (
        "placeholders",
        lambda head: head["fields"].update(ids=[1, 2**100]),
        "2 whole numbers",
    ),
    "a share above one": (
        "shares",
        lambda head: head["fields"].update(parts=[1000, 1001]),
        "from 1 to 1000",
    ),
    "a value beyond the prime": (
        "opened",
        lambda head: head["fields"].update(values=[2**40] * 6),
        "from 0 to",
    ),
    "blocks beyond all memory": (
        "compared",
        lambda head: head["fields"].update(blocks=[10**15]),
        "from 0 to 2",
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_numbers(stages: dict[str, Stage], kind: str) -> None:
    step, change, said = HOSTILE[kind]
    stage = stages[step]
    with pytest.raises(FedskewError, match=said):
        stage.receiver.receive(stage.resigned(change))
    stage.deliver(stage.resigned(change))


@pytest.mark.parametrize("step", [step for step in STEPS if step not in ("turn", "matched")])
def test_more_or_larger_ciphertexts_than_a_step_allows(stages: dict[str, Stage], step: str) -> None:
    stage = stages[step]
    _, blobs = unpack(stage.message[:-MAC_BYTES], "test")
    stage.deliver(stage.resigned(lambda head: None, [*blobs, b"x"]))
    if blobs:
        stage.deliver(stage.resigned(lambda head: None, [*blobs[:-1], bytes(50_000_000)]))
        stage.deliver(
            stage.resigned(lambda head: None, [*blobs[:-1], blobs[-1] + blobs[-1][:2000]])
        )


@pytest.mark.parametrize(
    "head",
    [
        b"[]",
        b"3",
        b"null",
        b"{}",
        b'{"blobs": {}}',
        b'{"blobs": [1.5]}',
        b'{"blobs": [true]}',
        b'{"blobs": [-1, 1]}',
        b'{"blobs": [1e400]}',
        b'{"blobs": [' + b"9" * 5000 + b"]}",
        b'{"sender": ["ann"], "blobs": []}',
        b"[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_malformed_heads_before_anything_is_known_of_the_sender(
    stages: dict[str, Stage], head: bytes
) -> None:
    data = b"fedskew1" + len(head).to_bytes(4, "big") + head + bytes(MAC_BYTES)
    for step in ("turn", "labels"):
        stages[step].deliver(data)


def test_a_head_that_claims_four_gigabytes_takes_no_memory(stages: dict[str, Stage]) -> None:
    tracemalloc.start()
    stages["labels"].deliver(b"fedskew1" + b"\xff\xff\xff\xff" + b"{" * 1000 + bytes(MAC_BYTES))
    stages["labels"].deliver(
        pack({"sender": "ann"}, []).replace(b'"blobs": []', b'"blobs": [4000000000]')
        + bytes(MAC_BYTES)
    )
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


def test_the_messages_themselves_still_arrive(stages: dict[str, Stage]) -> None:
    """Check that unchanged messages are accepted, and that rejected ones changed nothing."""
    for stage in stages.values():
        stage.receiver.receive(stage.message)


# -- enrolment ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def holder() -> KeyHolder:
    return KeyHolder(list(COUNTS), Terms(100))


@pytest.mark.parametrize("party", ["client", "server"])
@seed(0)
@settings(max_examples=100, deadline=None, database=None)
@given(data=st.data())
def test_any_change_of_an_enrolment_is_refused(
    holder: KeyHolder, party: str, data: st.DataObject
) -> None:
    whole = holder.for_client("ann") if party == "client" else holder.for_server()
    with pytest.raises(FedskewError):
        enrol(data.draw(mutations(whole)), party)


@seed(0)
@settings(max_examples=100, deadline=None, database=None)
@given(data=st.data())
def test_an_enrolment_with_any_other_head_is_refused(
    holder: KeyHolder, data: st.DataObject
) -> None:
    head, blobs = unpack(unseal(holder.for_client("ann"), "test"), "test")
    name = data.draw(st.sampled_from([*head, "more"]))
    value = data.draw(JSON)
    if name in ("name", "session") and isinstance(value, str):
        return  # another name is for the peers to refuse
    if name == "number" and (value is None or (type(value) is int and value not in head["others"])):
        return
    if data.draw(st.booleans()) and name in head:
        del head[name]
    else:
        head[name] = value
    with pytest.raises(FedskewError):
        enrol(seal(pack(head, blobs)), "ann")


def test_enrolments_with_other_keys_or_parameters(holder: KeyHolder) -> None:
    head, blobs = unpack(unseal(holder.for_client("ann"), "test"), "test")
    other = tenseal.context(tenseal.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=[60, 40, 60])
    smaller = tenseal.context(tenseal.SCHEME_TYPE.BFV, 4096, plain_modulus=1032193)
    for changed in (
        [],
        blobs[:1],
        blobs[:-1],
        [*blobs, b"x" * 32],
        [blobs[0], b"short", *blobs[2:]],
    ):
        with pytest.raises(FedskewError, match="ann: this enrolment is invalid"):
            enrol(seal(pack(head, changed)), "ann")
    for context in (
        other.serialize(save_secret_key=True),
        smaller.serialize(save_secret_key=True),
        b"",
        b"junk",
    ):
        with pytest.raises(FedskewError, match="ann: its encryption context cannot be read"):
            enrol(seal(pack(head, [context, *blobs[1:]])), "ann")
    with pytest.raises(FedskewError, match="enrol it with for_client"):
        Client(holder.for_server(), {1: 1})


def test_a_secure_sum_over_a_client_twice() -> None:
    from fedskew.label_privacy.secure_sum import Dealer, Masks

    masks = Masks(0, Dealer().seeds(0, 3))
    for step, present in ((1, [0, 1, 1]), (1.5, [0, 1]), ("a", [0, 1]), (1, [0, "b"])):
        with pytest.raises(FedskewError, match="give whole numbers, none twice"):
            masks.enter(step, present)  # type: ignore[arg-type]
    masks.enter(1, [0, 1])
    import torch

    for bits in (-1, 64):
        with pytest.raises(FedskewError, match="binary places are out of range"):
            masks.hide(torch.zeros(1), bits)
