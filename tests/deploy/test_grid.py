"""Messages over a grid of Flower: answers, errors of nodes, silence, and messages that are none of ours."""

import time
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from fedskew.core.errors import FedskewError
from fedskew.deploy import flower_grid, flower_patches
from fedskew.deploy.flower_grid import (
    ANSWER,
    RECORD,
    GridTransport,
    client_app,
    nodes_of,
    none_too_large,
)
from fedskew.deploy.flower_patches import try_again
from fedskew.deploy.remote_clients import Patience
from fedskew.deploy.requests import Refusal, from_bytes
from fedskew.transport.message_sizes import BODY, LARGEST, OBJECTS, PART

flwr = pytest.importorskip("flwr.app", reason="needs fedskew[flower]")


@pytest.fixture(autouse=True)
def run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let there be a run of Flower, without which it makes no messages."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1, raising=False)


class Grid:
    """Nodes 10, 11, ... that answer as they are told to."""

    def __init__(self, *replies: Any) -> None:
        self.replies, self.pulls = replies, 0

    def push_messages(self, messages: Iterable[Any]) -> list[Any]:
        self.sent = list(messages)
        for number, message in enumerate(self.sent):
            message.metadata.__dict__["_message_id"] = f"m{number}"
        return [None if self.replies[i] == "refused" else f"m{i}" for i in range(len(self.sent))]

    def pull_messages(self, numbers: list[str]) -> list[Any]:
        self.pulls += 1
        asked = [int(number[1:]) for number in numbers]
        return [self.replies[i](self.sent[i]) for i in asked if callable(self.replies[i])]


def content(record: Any, name: str = RECORD) -> Any:
    return lambda message: flwr.Message(
        flwr.RecordDict({name: flwr.ConfigRecord(record)}), reply_to=message
    )


def failed(message: Any) -> Any:
    return flwr.Message(flwr.Error(code=2, reason="out of memory"), reply_to=message)


ALL = Patience()


def asked(grid: Grid, timeout: float = 0.3, patience: Patience = ALL) -> dict[int, bytes]:
    clients = range(len(grid.replies))
    transport = GridTransport(grid, {client: 10 + client for client in clients}, timeout)  # type: ignore[arg-type]
    return transport.ask(dict.fromkeys(clients, b"?"), {"run": "a"}, patience)


def test_answers_errors_and_silence():
    grid = Grid(
        content({ANSWER: b"fine"}),
        failed,
        "silent",
        "refused",
        content({ANSWER: "text"}),
        content({}, "x"),
    )
    found = asked(grid)
    assert [message.metadata.dst_node_id for message in grid.sent] == [10, 11, 12, 13, 14, 15]
    assert found[0] == b"fine"
    assert from_bytes(found[1]) == Refusal("out of memory")
    assert found.keys() == {0, 1, 4, 5}
    assert found[4] == found[5] == b""  # nothing of ours, which is refused when it is read


def test_a_message_does_not_outlive_the_wait_for_its_answer():
    """A node that comes back after an hour would do the work of that hour first."""
    asked(grid := Grid(content({ANSWER: b"fine"})), timeout=5.0)
    assert [message.metadata.ttl for message in grid.sent] == [65.0]


@pytest.mark.parametrize(
    ("code", "of_flower"), [(0, False), (1, False), (2, False), (5, True), (6, False), (8, True)]
)
def test_errors_in_words_of_flower_are_known(code: int, of_flower: bool):
    """Only these are fit for a log: other errors may quote what is in a node's file."""
    found = asked(
        Grid(lambda message: flwr.Message(flwr.Error(code=code, reason="gone"), reply_to=message))
    )
    assert from_bytes(found[0]) == Refusal("gone", of_flower)


def test_looks_for_answers_become_rarer():
    grid = Grid("silent")
    assert asked(grid, timeout=2.0) == {}
    assert 10 < grid.pulls < 60


def test_answers_are_looked_for_once_more_when_a_slow_one_has_taken_all_the_time():
    """Flower waits for all parts of an answer that a node has begun to send, and looks for no other meanwhile."""
    from flwr.supercore.inflatable.inflatable_utils import pull_objects

    waits: list[float] = []

    class Slow(Grid):
        def pull_messages(self, numbers: list[str]) -> list[Any]:
            waits.append(pull_objects.__kwdefaults__["max_time"])  # type: ignore[index]
            if self.pulls == 0:
                self.pulls += 1
                time.sleep(0.3)
                return [failed(self.sent[0])]
            return super().pull_messages(numbers)

    grid = Slow("silent", content({ANSWER: b"fine"}), "silent")
    assert asked(grid, timeout=0.3)[1] == b"fine"
    assert grid.pulls == 2
    assert waits == [1.0, 1.0]


def test_those_who_were_silent_before_are_asked_and_not_waited_for():
    grid = Grid(content({ANSWER: b"fine"}), "silent", content({ANSWER: b"fine too"}))
    found = asked(grid, timeout=60.0, patience=Patience(not_for=frozenset({1, 2})))
    assert len(grid.sent) == 3
    assert grid.pulls == 1
    assert found == {0: b"fine", 2: b"fine too"}


def test_it_is_told_whom_a_question_waits_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(flower_grid, "_WHILE", 0.1)
    told: list[Any] = []
    grid = Grid("silent", content({ANSWER: b"fine"}), "silent", "silent")
    asked(grid, patience=Patience(frozenset({3}), told.append))
    assert told == [[0, 2], []]
    told.clear()
    asked(Grid(content({ANSWER: b"fine"})), patience=Patience(told=told.append))
    assert told == []


def test_messages_that_are_too_large_for_the_server():
    class Small(Grid):
        def push_messages(self, messages: Iterable[Any]) -> list[Any]:
            return []

    with pytest.raises(
        FedskewError, match="the messages of 1 bytes are too large for the SuperLink"
    ):
        asked(Small("silent"))


def objects_of(message: Any) -> dict[str, bytes]:
    """Return what Flower sends of a message, each by itself, by the kind and the hash of each."""
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    return {name: one.deflate() for name, one in get_all_nested_objects(message).items()}


@pytest.mark.parametrize("size", [0, 1, PART - 1, PART, PART + 1, 3 * PART, 3 * PART + 5])
def test_what_is_sent_arrives_in_parts_that_the_server_takes(size: int):
    content = bytes(range(256)) * (size // 256 + 1)
    content = content[:size]
    grid = Grid("silent")
    transport = GridTransport(grid, {0: 10}, 0.01)  # type: ignore[arg-type]
    transport.ask({0: content}, {"run": "a"}, Patience())
    seen: dict[str, Any] = {}

    def answer(about: Any, request: bytes) -> bytes:
        seen.update(about, request=request)
        return request[::-1]

    (asked,) = grid.sent
    context = SimpleNamespace(node_config={"data": "a.csv"})
    reply = client_app(answer)._registered_funcs["query.work"](asked, context)
    assert seen == {"run": "a", "client": 0, "node": {"data": "a.csv"}, "request": content}
    assert flower_grid._content(reply, ANSWER) == content[::-1]
    for message in (asked, reply):
        sent = objects_of(message)
        assert len(sent) <= 2 + max(1, -(-size // PART)) <= OBJECTS
        assert max(map(len, sent.values())) <= min(size, PART) + 2**12 < BODY


def test_messages_whose_parts_are_not_there():
    """A node may send any records: then there is no answer in them, and nothing is joined from what is there."""
    for records in (
        {RECORD: b"a", "fedskew.2": b"c"},
        {"fedskew.1": b"b"},
        {RECORD: b"a", "fedskew.1": 5},
        {},
    ):
        reply = flwr.RecordDict(
            {name: flwr.ConfigRecord({ANSWER: part}) for name, part in records.items()}
        )
        assert flower_grid._content(SimpleNamespace(content=reply), ANSWER) == b""  # type: ignore[arg-type]


def test_an_answer_that_the_server_does_not_take_is_refused_at_the_node(
    monkeypatch: pytest.MonkeyPatch,
):
    assert OBJECTS * BODY >= LARGEST
    monkeypatch.setattr(flower_grid, "LARGEST", 1000)
    answer = none_too_large(lambda about, request: bytes(int(request)))
    assert answer({}, b"1000") == bytes(1000)
    expected = Refusal("an answer of 1,001 bytes, and the server takes 1,000 at most")
    assert from_bytes(answer({}, b"1001")) == expected


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Any, list[int]]]:
    """Return a function that makes Flower's own grid, whose server answers so, and the list of what it answered."""
    import httpx
    from flwr.supercore.protobuf.client import ProtobufClient
    from flwr.superlink.grid.http_grid import HttpGrid

    monkeypatch.setattr(flower_grid, "BUSY", 1.5)
    monkeypatch.setattr(flower_patches, "BUSY", 1.5)

    def made(*statuses: int) -> tuple[Any, list[int]]:
        answered: list[int] = []

        def respond(request: httpx.Request) -> httpx.Response:
            answered.append(statuses[min(len(answered), len(statuses) - 1)])
            return httpx.Response(answered[-1], content=b"" if answered[-1] == 200 else b"{}")

        def client(self: Any, *given: Any, **named: Any) -> None:
            plain(self, *given, **named)
            self._client = httpx.Client(transport=httpx.MockTransport(respond))

        plain = ProtobufClient.__init__
        monkeypatch.setattr(ProtobufClient, "__init__", client)
        grid = HttpGrid("127.0.0.1:1", insecure=True, token="t")
        try_again(grid)
        return grid, answered

    return made


@pytest.mark.parametrize("status", [500, 503])
def test_a_server_that_is_busy_is_asked_again(failing: Callable[..., Any], status: int):
    grid, answered = failing(status, status, 200)
    assert nodes_of(grid, 0, 1.0) == []
    assert answered == [status, status, 200]


@pytest.mark.parametrize(("status", "again"), [(500, True), (503, True), (404, False)])
def test_a_server_that_stays_so_is_named_with_what_it_did_not_do(
    failing: Callable[..., Any], status: int, again: bool
):
    grid, answered = failing(status)
    with pytest.raises(
        FedskewError,
        match=rf"the server did not say which nodes are there.*{status}.*start the run",
    ):
        nodes_of(grid, 1, 1.0)
    assert (len(answered) > 1) is again
