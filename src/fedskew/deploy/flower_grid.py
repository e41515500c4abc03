"""Flower as the way to nodes: requests are messages of a grid, on real machines and in Flower's simulation."""

import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from queue import Queue
from typing import TYPE_CHECKING, Any

from fedskew.core.errors import FedskewError
from fedskew.deploy.flower_patches import BUSY, wait_for_parts
from fedskew.deploy.requests import Refusal, to_bytes
from fedskew.transport.message_sizes import LARGEST, PART

if TYPE_CHECKING:
    from flwr.app import Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid

    from fedskew.deploy.remote_clients import Patience

# From what a message says of the run, and the request, to the answer
Answer = Callable[[Mapping[str, Any], bytes], bytes]
RECORD, REQUEST, ANSWER = "fedskew", "request", "answer"
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
# Codes of errors with Flower's own words: no message, node gone, app not sound or ended
_OF_FLOWER = (3, 4, 5, 7, 8)
# Seconds by which a message outlives the wait for its answer, as clocks differ; no node begins with it after that
_CLOCKS = 60
_LAST = 1.0  # seconds for the parts of an answer that begins to arrive when the wait for it is over
_WHILE = 5.0  # seconds after which it is told whose answers are waited for
# Seconds between two looks for answers: at least, and as a share of the time so far
_POLL, _PATIENCE = 0.02, 0.1


def need_flower() -> None:
    """Refuse to go on without Flower, and keep it from calling home."""
    os.environ.update(QUIET)
    try:
        import flwr  # noqa: F401
    except ImportError:
        raise FedskewError("this needs Flower: pip install 'fedskew[flower]'") from None


@contextmanager
def _asking(what: str) -> Iterator[None]:
    """Turn an error of HTTP into one that says what the server did not do."""
    from httpx import HTTPError

    try:
        yield
    except HTTPError as problem:
        reason = str(problem).partition("\n")[0] or type(problem).__name__
        raise FedskewError(
            f"the server did not {what}, asked for up to {BUSY:g} s ({reason}): see what fedskew server says, and "
            "start the run again"
        ) from problem


class GridTransport:
    """Carries requests over a grid.

    Args:
        grid: Flower's grid
        nodes: the node of every client
        timeout: seconds to wait for answers
    """

    def __init__(self, grid: "Grid", nodes: Mapping[int, int], timeout: float) -> None:
        self.grid, self.nodes, self.timeout = grid, nodes, timeout

    def renumber(self, clients: Sequence[int]) -> None:
        """Give clients other numbers: the first of these is the old number of the new client 0."""
        self.nodes = {new: self.nodes[old] for new, old in enumerate(clients)}

    def numbers(self) -> list[int]:
        """Return the numbers of clients' nodes, by which ``flwr supernode list`` names them."""
        return [self.nodes[client] for client in sorted(self.nodes)]

    def ask(
        self, requests: Mapping[int, bytes], about: Mapping[str, Any], patience: "Patience"
    ) -> dict[int, bytes]:
        """Return the answers that arrive in time, by client."""
        sent = self._send(requests, about)
        answers: dict[int, bytes] = {}
        began = time.monotonic()
        told = False
        while sent:
            waited = time.monotonic() - began
            wait_for_parts(max(self.timeout - waited, _LAST))
            with _asking("hand out the answers of nodes"):
                replies = list(self.grid.pull_messages(list(sent)))
            for reply in replies:
                client = sent.pop(reply.metadata.reply_to_message_id)
                answers[client] = _answer_of(reply)
            missing = sorted(set(sent.values()) - patience.not_for)
            if not missing or waited >= self.timeout:
                break
            if waited > _WHILE and not told:
                patience.told(missing)
                told = True
            time.sleep(min(1.0, max(_POLL, _PATIENCE * waited)))
        if told:
            patience.told([])
        return answers

    def _send(self, requests: Mapping[int, bytes], about: Mapping[str, Any]) -> dict[str, int]:
        """Send requests, and return the client of every message by the number of the message."""
        from flwr.app import Message

        messages = []
        for client, request in requests.items():
            message = Message(
                _records(REQUEST, request, {**about, "client": client}),
                dst_node_id=self.nodes[client],
                message_type="query.work",
                ttl=self.timeout + _CLOCKS,
            )
            messages.append(message)
        with _asking("take messages to nodes"):
            numbers = list(self.grid.push_messages(messages))
        if len(numbers) < len(messages):
            raise FedskewError(
                f"the messages of {_size(requests)} bytes are too large for the SuperLink"
            )
        sent = {}
        for client, number in zip(requests, numbers, strict=True):
            if number:  # Flower gives none to a message that it did not take
                sent[number] = client
        return sent


def _answer_of(reply: "Message") -> bytes:
    """Return the answer in a reply; Flower's errors are refusals."""
    if not reply.has_error():
        return _content(reply, ANSWER)
    code = reply.error.code
    reason = reply.error.reason or f"code {code}"
    return to_bytes(Refusal(reason, code in _OF_FLOWER))


def client_app(answer: Answer) -> "ClientApp":
    """Return the app of a node: it answers requests, and nothing else."""
    from flwr.app import Message
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.query("work")
    def work(message: "Message", context: "Context") -> "Message":
        about: dict[str, Any] = dict(message.content[RECORD].items())
        about.pop(REQUEST, None)
        about["node"] = dict(context.node_config)
        answered = answer(about, _content(message, REQUEST))
        return Message(_records(ANSWER, answered), reply_to=message)

    return app


def none_too_large(answer: Answer) -> Answer:
    """Return what answers as ``answer`` does, and refuses to send more than the server takes."""

    def bounded(about: Mapping[str, Any], request: bytes) -> bytes:
        answered = answer(about, request)
        if len(answered) <= LARGEST:
            return answered
        return to_bytes(
            Refusal(
                f"an answer of {len(answered):,} bytes, and the server takes {LARGEST:,} at most"
            )
        )

    return bounded


def _records(name: str, content: bytes, about: Mapping[str, Any] | None = None) -> "RecordDict":
    """Return the content of a message: bytes in parts, each of which is sent by itself; the first says ``about``."""
    from flwr.app import ConfigRecord, RecordDict

    first = dict(about or {})
    first[name] = content[:PART]
    records = RecordDict({RECORD: ConfigRecord(first)})
    for start in range(PART, len(content), PART):
        part = content[start : start + PART]
        records[_part(start // PART)] = ConfigRecord({name: part})
    return records


def _content(message: "Message", name: str) -> bytes:
    """Return the bytes of a message; none where somebody has sent another kind of message."""
    parts = []
    for number in range(len(message.content)):
        record: Any = message.content.get(_part(number), {})
        parts.append(record.get(name))
    if not all(isinstance(part, bytes) for part in parts):
        return b""
    return b"".join(parts)


def _part(number: int) -> str:
    """Return the name of a part's record."""
    if number:
        return f"{RECORD}.{number}"
    return RECORD


def _size(requests: Mapping[int, bytes]) -> str:
    return f"{max(map(len, requests.values())):,}"


def nodes_of(grid: "Grid", count: int, timeout: float) -> list[int]:
    """Return the nodes as soon as so many are there, in the order of their numbers."""
    end = time.monotonic() + timeout
    while True:
        with _asking("say which nodes are there"):
            nodes = sorted(grid.get_node_ids())
        if len(nodes) >= count:
            return nodes
        if time.monotonic() > end:
            raise FedskewError(
                f"{len(nodes)} of {count} nodes are there after {timeout:g} s: start the others"
            )
        time.sleep(0.1)


@contextmanager
def simulated(answer: Answer, clients: int, timeout: float) -> Iterator[GridTransport]:
    """Start Flower's simulation with so many nodes, and stop it afterwards."""
    need_flower()
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    app = ServerApp()
    started = Queue[Any]()  # gets the grid, or the error with which the simulation ended
    done = threading.Event()

    @app.main()
    def main(grid: "Grid", context: "Context") -> None:
        started.put(grid)
        done.wait()

    def simulate() -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                run_simulation(app, client_app(answer), clients, backend_config=_BACKEND)
        except BaseException as problem:
            started.put(problem)

    logging.getLogger("flwr").setLevel(logging.ERROR)
    thread = threading.Thread(target=simulate, daemon=True)
    thread.start()
    grid = started.get()
    try:
        if isinstance(grid, BaseException):
            raise FedskewError(f"Flower's simulation did not start: {grid}") from grid
        nodes = nodes_of(grid, clients, timeout)
        yield GridTransport(grid, dict(enumerate(nodes)), timeout)
    finally:
        done.set()
        thread.join()


_BACKEND: dict[str, Any] = {
    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    "init_args": {
        "logging_level": logging.ERROR,
        "log_to_driver": False,
        "include_dashboard": False,
    },
}
