"""What is relied on, and what is not, in the installed version of Flower."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import fedskew as fs
from fedskew.deploy import prompt_node
from fedskew.deploy.flower_processes import node_process
from fedskew.deploy.prompt_node import PromptTime

pytest.importorskip("flwr", reason="needs fedskew[flower]")


def test_masks_of_secure_aggregation_have_32_bits():
    """A seed of 256 bits is folded to 32, which a server can try out: so Flower's secure aggregation is not offered."""
    from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

    seed = bytes(range(32))
    folded = np.bitwise_xor.reduce(np.frombuffer(seed, dtype="<u4"))
    other = bytes(28) + folded.tobytes()
    for mine, theirs in zip(
        *(pseudo_rand_gen(one, 2**32, [(100,), (3, 4)]) for one in (seed, other)), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)


def test_a_node_looks_soon_after_a_message_and_seldom_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
):
    clock, waited = [100.0], list[float]()
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", waited.append)
    pace = PromptTime()
    pace.sleep(3)
    clock[0] += 10
    pace.sleep(3)
    clock[0] += 1000
    pace.sleep(3)
    pace.sleep(0.5)
    pace.sleep(3)
    assert waited == pytest.approx([0.1, 1.0, 3.0, 0.1, 0.1])


def test_a_node_ends_with_what_answers_its_messages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    ended: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *given: ended.append(given))
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"]) as answering:
        prompt_node._end_with(answering)
    assert ended == [(os.getpid(), signal.SIGTERM)]
    assert "what answers messages has ended (status 7)" in capsys.readouterr().err


def test_only_the_processes_of_a_node_know_its_secret(tmp_path: Path):
    (tmp_path / "silo.csv").write_text("a,b\n1,2\n")
    secrets = set()
    for _ in range(2):
        process = node_process(
            tmp_path / "silo.csv", "127.0.0.1:9000", tmp_path / "state", None, None, None
        )
        path = Path(process.arguments[process.arguments.index("--superexec-auth-secret-file") + 1])
        assert path.stat().st_mode & 0o777 == 0o600
        secrets.add(path.read_bytes())
    assert [len(one) for one in secrets] == [32, 32]


_FORKED = """
import multiprocessing, sys, time
from types import SimpleNamespace
from fedskew.deploy import app_processes

if __name__ == "__main__":
    spec = SimpleNamespace(runtime_api_address=sys.argv[1], token="t", insecure=True, parent_pid=None, task_type=None)
    process = multiprocessing.get_context("forkserver").Process(target=app_processes.run_app, args=(spec,))
    process.start()
    print(process.pid, flush=True)
    time.sleep(600)
"""


def test_the_process_of_a_message_ends_with_its_node(tmp_path: Path):
    """It waits for a node that does not answer, and what has started it is killed."""
    (tmp_path / "forked.py").write_text(_FORKED)
    with socket.create_server(("127.0.0.1", 0)) as node:
        address = f"127.0.0.1:{node.getsockname()[1]}"
        around = {**os.environ, "PYTHONPATH": str(Path(fs.__file__).parents[1])}
        command = [sys.executable, str(tmp_path / "forked.py"), address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=around) as parent:
            assert parent.stdout
            waiting = int(parent.stdout.readline())
            connection, _ = node.accept()
            with connection:
                parent.kill()
                end = time.monotonic() + 60
                while _runs(waiting):
                    assert time.monotonic() < end
                    time.sleep(0.1)


def _runs(process: int) -> bool:
    """Return whether a process is there, and not only its exit status."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
