"""A real SuperLink and real SuperNodes on this machine, with TLS and keys: runs, faults, and who is refused.

All tests use the same processes, because each takes seconds to start, and so does every message.
"""

import json
import random
import shutil
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.deploy.machines import PATIENCE, Machines, started, until
from tests.deploy.silos import (
    NAMES,
    assert_hidden,
    assert_same_run,
    in_one_place,
    plant,
    write_silos,
)

import fedskew as fs
from fedskew.data.schema import Schema

pytest.importorskip("flwr", reason="needs fedskew[flower]")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    folder = tmp_path_factory.mktemp("machines")
    made = Machines(folder, write_silos(folder, numbers=False))
    keys = ",".join([*NAMES, "stranger", "other"])
    assert "server.key" in made.fedskew("keys", "keys", "--host", "127.0.0.1", "--nodes", keys)
    assert "ca.crt" in made.fedskew("keys", "elsewhere", "--host", "127.0.0.1")
    with started(made):
        made.deploy("fedavg", algorithm="fedavg")
        for number, name in enumerate(NAMES):
            made.register(name)
            made.start_node(number, name)
        yield made


def test_methods_are_those_of_the_loop_engine_and_strangers_are_not_let_in(machines: Machines):
    """Three runs at the same time on the same nodes, while others knock."""
    methods = ("fedavg", "fedpbs", "afl-cp")
    for method in methods[1:]:
        machines.deploy(method, algorithm=method)
    began = [machines.begin(method) for method in methods]
    machines.start_node(0, "stranger")
    machines.start_node(0, NAMES[0], ca="elsewhere/ca.crt", name="deceived")
    told = [one.communicate(timeout=PATIENCE)[0] for one in began]
    for method, said in zip(methods, told, strict=True):
        assert (machines.folder / method / "run" / "summary.json").exists(), said
        assert f"{method}: round 3/3  test accuracy" in said
        found = machines.finished(method)
        assert_same_run(found, in_one_place(machines.paths, method, eval_every=3))
        assert list(found.final_clients["name"]) == list(NAMES)
    for name, reason in (
        ("stranger", "the server does not know the key of this node"),
        ("deceived", "CERTIFICATE_VERIFY_FAILED"),
    ):
        assert machines.running[name].wait(PATIENCE) != 0
        assert reason in machines.said(name)
        machines.kill(name)  # with what Flower leaves behind of a node that was not let in


def test_a_server_killed_at_a_random_moment_goes_on_to_the_result_of_scaffold(machines: Machines):
    rounds = 12  # so many that it is killed before the last, however fast they are
    machines.deploy("scaffold", algorithm="scaffold", rounds=rounds)
    began = machines.begin("scaffold")
    until("the first round", lambda: machines.rounds("scaffold"))
    time.sleep(random.uniform(0, 3))
    done = machines.rounds("scaffold")
    machines.kill("server")
    began.kill()
    began.communicate()
    assert 1 <= done < rounds
    machines.start_server()
    told = machines.run("scaffold")
    assert (machines.folder / "scaffold" / "run" / "summary.json").exists(), told
    alone = in_one_place(machines.paths, "scaffold", eval_every=3, rounds=rounds)
    assert_same_run(machines.finished("scaffold"), alone)


def test_a_node_of_another_version_is_refused(machines: Machines):
    """It has a copy of the package that says that it is another version."""
    other = machines.folder / "other_version"
    shutil.copytree(
        Path(fs.__file__).parent, other / "fedskew", ignore=shutil.ignore_patterns("__pycache__")
    )
    init = other / "fedskew" / "__init__.py"
    init.write_text(
        init.read_text().replace(f'__version__ = "{fs.__version__}"', '__version__ = "0.0.1"')
    )
    machines.register("other")
    machines.start_node(0, "other", PYTHONPATH=str(other))
    machines.deploy("versions", nodes=4)
    told = machines.run("versions")
    machines.stop("other")
    assert (
        f"node other runs fedskew 0.0.1, and the server {fs.__version__}: install the same" in told
    )
    assert not (machines.folder / "versions" / "run").exists()


def test_a_node_may_leave_and_come_back(machines: Machines):
    machines.deploy("leaving", algorithm="scaffold", rounds=40, eval_every=40)
    began = machines.begin("leaving")
    until("the first round", lambda: machines.rounds("leaving"))
    machines.stop(NAMES[1])
    machines.start_node(1, NAMES[1])
    told, _ = began.communicate(timeout=PATIENCE)
    run = machines.finished("leaving")
    assert f"1 of 3 clients are left out: client {NAMES[1]}: " in told
    dropped = run.clients.pivot(index="round", columns="name", values="dropped")
    assert dropped[NAMES[1]].iloc[0] == dropped[NAMES[1]].iloc[-1] == 0 < dropped[NAMES[1]].sum()
    assert dropped[[NAMES[0], NAMES[2]]].sum().sum() == 0
    assert list(run.final_clients["name"]) == list(NAMES)


def test_a_node_killed_in_a_round_is_left_out(machines: Machines):
    machines.deploy("killed", algorithm="fedavg", rounds=2, eval_every=2, timeout=10)
    began = machines.begin("killed")
    until("the first round", lambda: machines.rounds("killed"))
    machines.kill(NAMES[2])
    told, _ = began.communicate(timeout=PATIENCE)
    run = machines.finished("killed")
    assert f"1 of 3 clients are left out: client {NAMES[2]}: no answer in time" in told
    assert run.rounds["dropped"].tolist() == [0, 1]
    assert run.clients.query("dropped == 1")["name"].tolist() == [NAMES[2]]
    assert list(run.final_clients["name"]) == list(NAMES[:2])
    machines.kill_answering(NAMES[1])
    assert "what answers messages has ended" in machines.said(NAMES[1])


class Recorder(socketserver.ThreadingTCPServer):
    """Hands on what is sent to a port and back, and keeps all of it."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        self.port, self.sent, self.received = port, bytearray(), bytearray()
        super().__init__(("127.0.0.1", 0), _Recorded)


class _Recorded(socketserver.BaseRequestHandler):
    server: Recorder

    def handle(self) -> None:
        with socket.create_connection(("127.0.0.1", self.server.port)) as there:
            back = threading.Thread(
                target=self.pump, args=(there, self.request, self.server.received), daemon=True
            )
            back.start()
            self.pump(self.request, there, self.server.sent)
            back.join()

    @staticmethod
    def pump(source: socket.socket, target: socket.socket, seen: bytearray) -> None:
        with suppress(OSError):
            while content := source.recv(1 << 16):
                seen += content
                target.sendall(content)
            target.shutdown(socket.SHUT_WR)


def test_no_value_of_a_row_is_in_what_the_network_carries(tmp_path: Path):
    """Without TLS, so that all is read: a planted value is nowhere, but the ends of its column are."""
    machines = Machines(tmp_path, write_silos(tmp_path)[:2], secure=False)
    largest = plant(machines.paths[0])
    with started(machines), Recorder(machines.port) as recorder:
        threading.Thread(target=recorder.serve_forever, daemon=True).start()
        machines.deploy("open", nodes=2, algorithm="fedavg", rounds=1, eval_every=1)
        for number, name in enumerate(NAMES[:2]):
            machines.start_node(number, name, port=recorder.server_address[1])
        told = machines.run("open")
        recorder.shutdown()
    assert machines.rounds("open") == 1, told
    schema = Schema.from_json(json.loads((tmp_path / "open" / "run" / "pipeline.json").read_text()))
    assert_hidden(bytes(recorder.sent + recorder.received), largest, schema)
