"""``fedskew status``: runs that go on, were stopped, have ended or failed, from their folder alone."""

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fedskew as fs
from fedskew.core.errors import FedskewError
from fedskew.core.lock import holder, locked, seize
from fedskew.report.status import Status, status
from fedskew.runs import folder as on_disk
from fedskew.runs.folder import RunFolder

Command = Callable[[str], Any]
FLEET = "mixed:dropout=0.4,deadline=0.6"


class StoppedError(Exception):
    pass


@pytest.fixture(scope="module")
def fed() -> fs.Federation:
    return fs.split(fs.load("digits"), "iid", clients=8)


@pytest.fixture(scope="module")
def stopped(
    fed: fs.Federation, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[Status]]:
    """Return a run that was stopped after 4 of 7 rounds, and how it stood after each of them."""
    folder, seen = tmp_path_factory.mktemp("runs") / "run", list[Status]()

    def watch(result: Any, rounds: int) -> None:
        seen.append(status(folder))
        if len(seen) == 4:
            raise StoppedError

    with pytest.raises(StoppedError):
        fs.train(
            fed, "logreg", folder=folder, callbacks=watch, rounds=7, eval_every=2, fleet=FLEET, threads=1,
            checkpoint_every=1,
        )  # fmt: skip
    return folder, seen


@pytest.fixture
def run(stopped: tuple[Path, list[Status]], tmp_path: Path) -> Path:
    """Return a copy of that run, as other tests must not see its changes."""
    return Path(shutil.copytree(stopped[0], tmp_path / "run"))


def test_a_run_that_goes_on(stopped: tuple[Path, list[Status]]):
    folder, seen = stopped
    disk = RunFolder(folder)
    rounds, clients, timing = (
        disk.table(name) for name in ("rounds.csv", "clients.csv", "timing.csv")
    )
    assert {(one.state, one.rounds, one.algorithm, one.then) for one in seen} == {
        ("running", 7, "fedavg", None)
    }
    assert [one.round for one in seen] == [1, 2, 3, 4]
    assert all(one.process and one.process.startswith(f"process {os.getpid()} on ") for one in seen)
    assert [one.evaluated for one in seen] == [None, 2, 2, 4]
    assert seen[2].metrics["test_accuracy"] == rounds[1]["test_accuracy"]
    assert all(0 <= one.seconds_since_write < 30 for one in seen)
    for number, one in enumerate(seen, 1):
        for fate in ("dropped", "late"):
            lost = [str(row["client"]) for row in clients if row["round"] == number and row[fate]]
            assert getattr(one, fate) == lost
        assert one.clients == 8
        mean = sum(row["seconds"] for row in timing[:number]) / number
        assert one.seconds_per_round == pytest.approx(mean)
        assert one.seconds_left is not None
        assert one.seconds_left <= mean * (7 - number)
    assert any(one.dropped for one in seen)
    assert any(one.late for one in seen)


def test_a_run_that_was_stopped(stopped: tuple[Path, list[Status]]):
    folder, seen = stopped
    now = status(folder)
    assert (now.state, now.process, now.round) == ("stopped", None, 4)
    assert now.seconds_left == pytest.approx(3 * (now.seconds_per_round or 0))
    assert now.then == f"go on with it: fedskew resume {folder}"
    assert (now.metrics, now.dropped, now.late) == (
        seen[-1].metrics,
        seen[-1].dropped,
        seen[-1].late,
    )


def test_a_run_that_has_ended_on_the_command_line(
    fedskew: Command, run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    fs.resume(run)
    assert fedskew("status run --json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {
        **vars(status(run)),
        "folder": "run",
        "then": "its page is run/report.html",
    } | {"seconds_since_write": found["seconds_since_write"]}
    assert (found["state"], found["round"], found["seconds_left"]) == ("finished", 7, None)
    assert fedskew("status run") == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["state"] == "finished"
    assert lines["round"] == "7 of 7"
    assert lines["scores"] == f"test accuracy {found['metrics']['test_accuracy']:.1%} (round 7)"
    assert lines["then"] == "its page is run/report.html"


def test_how_long_nothing_was_written(run: Path):
    then = time.time() - 5000
    for path in [run, *run.rglob("*")]:
        os.utime(path, (then, then))
    assert 5000 <= status(run).seconds_since_write < 5030
    with locked(run):
        assert status(run).seconds_since_write < 30  # a process has begun
        for path in [run, *run.rglob("*")]:
            os.utime(path, (then, then))
        now = status(run)
        assert now.state == "running"
        # The next round is long overdue, and those after it take as long as others.
        assert now.seconds_left == pytest.approx(
            (now.rounds - now.round - 1) * (now.seconds_per_round or 0)
        )


def test_a_file_that_gets_its_name_meanwhile_is_no_matter(
    run: Path, monkeypatch: pytest.MonkeyPatch
):
    inside = [*run.iterdir()]
    (run / "gone.part").touch()
    monkeypatch.setattr(Path, "iterdir", lambda folder: _one_vanishes(folder, inside))
    assert status(run).seconds_since_write < 1e6


def _one_vanishes(folder: Path, inside: list[Path]) -> Iterator[Path]:
    yield from inside
    gone = folder / "gone.part"
    yield gone
    gone.unlink(missing_ok=True)


def test_a_line_in_the_middle_of_being_written_is_not_read(run: Path):
    before = status(run)
    for name in ("rounds.csv", "clients.csv", "timing.csv"):
        with (run / name).open("ab") as file:
            file.write(b"5,8,0,1")
    after = status(run)
    assert (after.round, after.dropped, after.seconds_per_round) == (
        4,
        before.dropped,
        before.seconds_per_round,
    )
    # The round is in its table, and its clients are not yet
    with (run / "rounds.csv").open("ab") as file:
        file.write(b",0" * (len(RunFolder(run).header("rounds.csv")) - 4) + b"\n")
    assert (status(run).round, status(run).dropped, status(run).late) == (5, [], [])


def test_before_the_first_round(run: Path):
    for name in ("rounds.csv", "clients.csv", "timing.csv"):
        (run / name).unlink()
    now = status(run)
    assert (now.state, now.round, now.metrics, now.seconds_left, now.clients) == (
        "stopped",
        0,
        {},
        None,
        None,
    )


def test_of_a_long_table_the_end_is_read(run: Path, monkeypatch: pytest.MonkeyPatch):
    disk, header = RunFolder(run), "round,client,name,dropped"
    names = [f'"ward {client},\n{"east" * client}"' for client in range(5)]
    rows = [
        f"{number},{client},{names[client]},{client % 2}"
        for number in range(1, 40)
        for client in range(5)
    ]
    (run / "clients.csv").write_text("\n".join([header, *rows, ""]))
    whole = disk.table("clients.csv")
    assert len(whole) == 39 * 5
    for end in (1, 17, 64, 200, 1000, 10**6):  # also in the middle of a name
        monkeypatch.setattr(on_disk, "_END", end)
        for first in (1, 38, 39, 40):
            assert disk.last_rows("clients.csv", first) == [
                row for row in whole if row["round"] >= first
            ]


def test_a_failed_run_and_what_is_no_run(
    run: Path, tmp_path: Path, fedskew: Command, capsys: pytest.CaptureFixture[str]
):
    RunFolder(run).write_json("failed.json", {"failed": "round 5: NaN; lower lr"})
    now = status(run)
    assert (now.state, now.error) == ("failed", "round 5: NaN; lower lr")
    assert now.then == f"run it again: fedskew resume {run} --retry"
    (tmp_path / "file").write_text("")
    for name in (".", "nowhere", "file"):
        assert fedskew(f"status {name}") == 2
        told = capsys.readouterr().err
        assert "is not a run folder: it has no config.toml; name a folder such as runs/NAME" in told
    member = {"name": "fedavg-s0", "algorithm": "fedavg", "values": {}}
    (tmp_path / "group.json").write_text(json.dumps([member]))
    with pytest.raises(
        FedskewError, match=r"comparison of several runs: name one of them, such as .*/fedavg-s0"
    ):
        status(tmp_path)


def test_looking_does_not_keep_a_process_from_beginning(tmp_path: Path):
    assert holder(tmp_path) is None
    assert not (tmp_path / ".lock").exists()
    looking = os.open(tmp_path / ".lock", os.O_RDWR | os.O_CREAT)
    assert seize(looking)
    threading.Timer(0.02, os.close, [looking]).start()
    with locked(tmp_path):
        assert (holder(tmp_path) or "").startswith(f"process {os.getpid()} on ")
    assert holder(tmp_path) is None


def test_a_deployment_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "deployment" / "app").mkdir(parents=True)
    for name in ("deployment", "deployment/run"):
        with pytest.raises(
            FedskewError, match="deployment/run is not there yet: the run has not been started"
        ):
            status(tmp_path / name)
    (tmp_path / "deployment" / "run").mkdir()
    (tmp_path / "deployment" / "run" / "config.toml").write_text("")
    with pytest.raises(
        FedskewError, match=r"deployment is a deployment: its run is .*deployment/run"
    ):
        status(tmp_path / "deployment")
