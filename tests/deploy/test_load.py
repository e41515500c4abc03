"""A real server under load: bodies that are too large, an answer of 300 MB, and the end of one of its parts."""

import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.deploy.machines import PATIENCE, Machines, started
from tests.deploy.silos import NAMES, write_silos

import fedskew as fs

pytest.importorskip("flwr", reason="needs fedskew[flower]")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
HUGE, LARGE = 300_000_000, 100_000_000  # bytes of what strangers send, and of an answer
# MB by which the server may grow: without a guard it takes 6 times as much as it is sent
MORE = 150
HOSTILE = f"""

_honest = answer


def answer(about: Any, request: bytes) -> bytes:
    found = _honest(about, request)
    return bytes({LARGE}) if b'"Train"' in request[:500] else found
"""


class Server(Machines):
    """Machines whose server is looked at, and sent what no node sends."""

    def peak(self) -> int:
        """Return the most memory that the server has had so far, in MB."""
        status = Path(f"/proc/{self.running['server'].pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) // 1024

    def superexec(self) -> int:
        """Return the number of the process that starts runs."""
        server = self.running["server"].pid
        children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
        (found,) = (
            child
            for child in children
            if b"app_processes" in Path(f"/proc/{child}/cmdline").read_bytes()
        )
        return int(found)

    def send(self, head: str, body: int = 0) -> bytes:
        """Send a request and so many bytes, as far as the server listens, and return the status of its answer."""
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE) as there:
            piece = bytes(2**20)
            try:
                there.sendall(head.encode())
                for _ in range(0, body, len(piece)):
                    there.sendall(piece)
                return there.recv(2**16).split()[1]
            except OSError:
                return b"closed"


def post(path: str, *headers: str) -> str:
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: server",
        "Content-Type: application/protobuf",
        *headers,
    ]
    return "\r\n".join(lines) + "\r\n\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("load")
    with started(Server(folder, write_silos(folder, numbers=False), secure=False)) as made:
        yield made


def test_what_strangers_send_takes_no_memory(server: Server):
    before = server.peak()
    told: list[bytes] = []
    requests = [
        post("/v1/fleet/push-object", f"Content-Length: {HUGE}"),
        post("/v1/fleet/push-object", f"Content-Length: {2**20}"),
        post("/v1/runtime/push-object", f"Content-Length: {HUGE}"),
        post("/v1/control/start-run", f"Content-Length: {HUGE}"),
        post("/v1/fleet/push-object", "Transfer-Encoding: chunked") + f"{HUGE:x}\r\n",
        post("/health", "X-Long: ").rstrip(),
    ]
    threads = [
        threading.Thread(target=lambda head=head: told.append(server.send(head, HUGE)))
        for head in requests
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(told) == len(requests)
    assert set(told) <= {b"413", b"400", b"closed"}  # they may not read the answer while they send
    assert server.peak() < before + MORE
    assert server.healthy()
    for head in requests[:4]:
        assert server.send(head) == b"413"


def test_a_huge_answer_ends_neither_the_run_nor_the_server(server: Server, tmp_path: Path):
    """A node with another program sends it at once; the others go on, and so does the next run."""
    other = tmp_path / "hostile"
    shutil.copytree(
        Path(fs.__file__).parent, other / "fedskew", ignore=shutil.ignore_patterns("__pycache__")
    )
    node, sizes = (
        other / "fedskew" / "deploy" / "silo_node.py",
        other / "fedskew" / "transport" / "message_sizes.py",
    )
    node.write_text(node.read_text() + HOSTILE)
    sizes.write_text(sizes.read_text().replace("2**28", "2**40").replace("2**22", "2**40"))
    before = server.peak()
    for number, name in enumerate(NAMES):
        server.start_node(number, name, **({"PYTHONPATH": str(other)} if number == 2 else {}))
    server.deploy("first", timeout=15, rounds=1, eval_every=1)
    told = server.run("first")
    assert server.rounds("first") == 1, told
    assert f"1 of 3 clients are left out: client {NAMES[2]}: " in told
    assert "413 Request Entity Too Large" in server.said(NAMES[2])
    server.stop(NAMES[2])
    server.deploy("second", nodes=2, rounds=1, eval_every=1)
    told = server.run("second")
    assert server.finished("second").rounds["dropped"].tolist() == [0], told
    assert server.peak() < before + MORE


def test_a_server_ends_with_its_parts(server: Server):
    os.kill(server.superexec(), signal.SIGKILL)
    assert server.running["server"].wait(30) == 1
    assert "what starts runs has ended (status -9), and so does this server" in server.said(
        "server"
    )
    server.start_server()  # with the same state
