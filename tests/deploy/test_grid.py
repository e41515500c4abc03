"""Messages over a grid of Flower: answers, errors of nodes, silence, and messages that are none of ours."""

from collections.abc import Iterable
from typing import Any

import pytest

from fedskew.core.errors import FedskewError
from fedskew.deploy.flower_grid import ANSWER, RECORD, GridTransport
from fedskew.deploy.requests import Refusal, from_bytes

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
    return lambda message: flwr.Message(flwr.RecordDict({name: flwr.ConfigRecord(record)}), reply_to=message)


def failed(message: Any) -> Any:
    return flwr.Message(flwr.Error(code=2, reason="out of memory"), reply_to=message)


def asked(grid: Grid, timeout: float = 0.3) -> dict[int, bytes]:
    clients = range(len(grid.replies))
    transport = GridTransport(grid, {client: 10 + client for client in clients}, timeout)  # type: ignore[arg-type]
    return transport.ask(dict.fromkeys(clients, b"?"), {"run": "a"})


def test_answers_errors_and_silence():
    grid = Grid(content({ANSWER: b"fine"}), failed, "silent", "refused", content({ANSWER: "text"}), content({}, "x"))
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


@pytest.mark.parametrize(("code", "of_flower"), [(0, False), (1, False), (2, False), (5, True), (6, False), (8, True)])
def test_errors_in_words_of_flower_are_known(code: int, of_flower: bool):
    """Only these are fit for a log: other errors may quote what is in a node's file."""
    found = asked(Grid(lambda message: flwr.Message(flwr.Error(code=code, reason="gone"), reply_to=message)))
    assert from_bytes(found[0]) == Refusal("gone", of_flower)


def test_looks_for_answers_become_rarer():
    grid = Grid("silent")
    assert asked(grid, timeout=2.0) == {}
    assert 10 < grid.pulls < 60


def test_messages_that_are_too_large_for_the_server():
    class Small(Grid):
        def push_messages(self, messages: Iterable[Any]) -> list[Any]:
            return []

    with pytest.raises(FedskewError, match="the messages of 1 bytes are too large for the SuperLink"):
        asked(Small("silent"))
