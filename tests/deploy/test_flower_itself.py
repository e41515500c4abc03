"""What is relied on, and what is not, in the installed version of Flower."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fedskew.deploy import prompt_node
from fedskew.deploy.flower_processes import node_process
from fedskew.deploy.prompt_node import Pace

pytest.importorskip("flwr", reason="needs fedskew[flower]")


def test_masks_of_secure_aggregation_have_32_bits():
    """A seed of 256 bits is folded to 32, which a server can try out: so Flower's secure aggregation is not offered."""
    from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

    seed = bytes(range(32))
    folded = np.bitwise_xor.reduce(np.frombuffer(seed, dtype="<u4"))
    other = bytes(28) + folded.tobytes()
    for mine, theirs in zip(*(pseudo_rand_gen(one, 2**32, [(100,), (3, 4)]) for one in (seed, other)), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_node_looks_soon_after_a_message_and_seldom_after_a_while(monkeypatch: pytest.MonkeyPatch):
    clock, waited = [100.0], list[float]()
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", waited.append)
    pace = Pace()
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
        process = node_process(tmp_path / "silo.csv", "127.0.0.1:9000", tmp_path / "state", None, None, None)
        path = Path(process.arguments[process.arguments.index("--superexec-auth-secret-file") + 1])
        assert path.stat().st_mode & 0o777 == 0o600
        secrets.add(path.read_bytes())
    assert [len(one) for one in secrets] == [32, 32]
