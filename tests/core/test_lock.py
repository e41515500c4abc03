"""One writer per folder: a second process is rejected by name, and a dead one holds no lock."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import fedskew as fs
from fedskew.core.errors import FedskewError
from fedskew.core.lock import LOCK, locked
from fedskew.runs.folder import CLIENTS, ROUNDS, new_folder

HOLD = """
import sys, time
from pathlib import Path
from fedskew.core.lock import locked
with locked(*map(Path, sys.argv[1:])):
    print("held", flush=True)
    time.sleep(60)
"""


def holder(folder: Path, *at: Path) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), *map(str, at)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    return process


def test_the_second_is_told_who_the_first_is_and_a_dead_one_holds_nothing(tmp_path: Path):
    first = holder(tmp_path)
    folder, host = re.escape(str(tmp_path)), re.escape(socket.gethostname())
    who = rf"{folder} is being written by process {first.pid} on {host}: wait"
    with pytest.raises(FedskewError, match=who), locked(tmp_path):
        pass
    first.send_signal(signal.SIGKILL)
    first.communicate()
    with locked(tmp_path):
        assert f'"pid": {os.getpid()}' in (tmp_path / LOCK).read_text()


def test_a_note_that_cannot_be_read_does_not_matter(tmp_path: Path):
    first = holder(tmp_path)
    (tmp_path / LOCK).write_bytes(b"\xff{")
    with (
        pytest.raises(FedskewError, match="is being written by another process: wait"),
        locked(tmp_path),
    ):
        pass
    first.kill()
    first.communicate()
    with locked(tmp_path):
        pass


def test_a_second_resume_is_refused_and_damages_nothing(tmp_path: Path):
    folder = tmp_path / "run"
    command = [
        sys.executable,
        "-m",
        "fedskew",
        "run",
        "--rounds",
        "100000",
        "--model",
        "logreg",
        "--folder",
        str(folder),
    ]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        while not (folder / ROUNDS).exists():
            assert process.poll() is None
            time.sleep(0.01)
        again = subprocess.run(
            [sys.executable, "-m", "fedskew", "resume", str(folder)],
            capture_output=True,
            text=True,
            check=False,
        )
        with pytest.raises(FedskewError, match=f"is being written by process {process.pid} on "):
            fs.resume(folder)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 143
    assert again.returncode == 2
    assert again.stderr.startswith(
        f"fedskew: {folder} is being written by process {process.pid} on "
    )
    rounds = [int(line.split(",")[0]) for line in (folder / ROUNDS).read_text().splitlines()[1:]]
    assert rounds == list(range(1, len(rounds) + 1))
    assert {
        int(line.split(",")[0]) for line in (folder / CLIENTS).read_text().splitlines()[1:]
    } == set(rounds)


def test_a_group_has_one_writer_too(tmp_path: Path):
    from fedskew.study import study_folder, study_runs
    from fedskew.study.study_plan import Plan, members_of

    plan = Plan(members_of({"rounds": 1, "model": "logreg"}, ["fedavg"], [0]))
    study_folder.create(tmp_path / "group", plan)
    study = study_folder.Study(tmp_path / "group", plan)
    first = holder(tmp_path / "group")
    with pytest.raises(FedskewError, match=f"is being written by process {first.pid}"):
        study_runs.execute(study, study_runs.Execution())
    first.kill()
    first.communicate()


def test_a_folder_that_is_being_made_has_one_maker(tmp_path: Path):
    """Check a folder such as that of ``fedskew split``, which is moved into place when it is complete."""
    new = tmp_path / "nodes"
    first = holder(new, tmp_path / ".nodes.lock")
    with (
        pytest.raises(FedskewError, match=f"nodes is being written by process {first.pid} on "),
        new_folder(new),
    ):
        pass
    first.kill()
    first.communicate()
    with new_folder(new) as part:
        (part / "file").write_text("whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nodes"]


def test_two_runs_that_want_one_name_get_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Check that another process may take the name between the test and the creation of the folder."""
    monkeypatch.chdir(tmp_path)
    exists, lied = Path.exists, []

    def not_there_yet(path: Path, *args: object, **more: object) -> bool:
        if path.name == "fedavg-digits-iid-s0" and len(lied) < 2:
            lied.append(path)
            path.mkdir(parents=True, exist_ok=True)
            (path / "theirs").write_text("")
            return False
        return exists(path, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "exists", not_there_yet)
    run = fs.train(fs.split(fs.load("digits"), "iid", clients=3), "logreg", rounds=1)
    assert run.folder == Path("runs/fedavg-digits-iid-s0-2")
    assert [path.name for path in Path("runs/fedavg-digits-iid-s0").iterdir()] == ["theirs"]


def test_with_patience_it_waits_until_the_other_is_done(tmp_path):
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with locked(tmp_path):
            held.set()
            done.wait(30)

    other = threading.Thread(target=hold)
    other.start()
    try:
        assert held.wait(30)
        with (
            pytest.raises(FedskewError, match="is being written by"),
            locked(tmp_path, patience=0.1),
        ):
            pass
        threading.Timer(0.3, done.set).start()
        with locked(tmp_path, patience=30):
            assert done.is_set()
    finally:
        done.set()
        other.join()
