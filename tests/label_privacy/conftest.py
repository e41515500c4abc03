"""Parties of the label protocol, and a way to stop them in the middle."""

from collections.abc import Callable, Mapping

import pytest

from fedskew.label_privacy.enrolment import KeyHolder, Terms
from fedskew.label_privacy.envelope import claimed
from fedskew.label_privacy.protocol_client import Client
from fedskew.label_privacy.protocol_server import Server

COUNTS = {"ann": {7: 3, 800_001: 5}, "bob": {7: 4, 800_000: 6}}


class Room:
    """A server and clients, and the messages between them."""

    def __init__(
        self,
        holder: KeyHolder,
        counts: Mapping[str, Mapping[int, int]],
        server: type[Server] = Server,
    ) -> None:
        self.server = server(holder.for_server())
        self.clients = {
            name: Client(holder.for_client(name), held) for name, held in counts.items()
        }
        self.outbox = self.server.start()

    def until(self, step: str, sender: str | None = None) -> bytes:
        """Deliver everything up to the first message of this step (from this sender); returns it undelivered."""
        while self.outbox:
            name, question = self.outbox.pop(0)
            if claimed(question, "step", "test") == step and sender in (None, "server"):
                return question
            answer = self.clients[name].receive(question)
            if claimed(answer, "step", "test") == step and sender in (None, name):
                return answer
            self.outbox += self.server.receive(answer)
        raise AssertionError(f"nobody sent {step!r}")

    def finish(self) -> None:
        """Deliver the remaining messages."""
        while self.outbox:
            name, question = self.outbox.pop(0)
            self.outbox += self.server.receive(self.clients[name].receive(question))


@pytest.fixture(scope="session")
def holder() -> KeyHolder:
    return KeyHolder(list(COUNTS), Terms(2**20))


@pytest.fixture
def room(holder: KeyHolder) -> Room:
    return Room(holder, COUNTS)


@pytest.fixture(scope="session")
def make_room() -> Callable[..., Room]:
    return Room
