"""Tasks in several processes: what they return and tell, errors, lost processes, and a signal to a comparison."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.machines import until

import fedskew as fs
from fedskew.core.errors import FedskewError, Interrupted
from fedskew.study.jobs import _Pool, _received, in_processes

TABLES = ("rounds.csv", "clients.csv", "model.safetensors")


def double(task: int, tell: Callable[[Any], None]) -> int:
    if task == 7:
        raise FedskewError("seven is not allowed")
    if task == 8:
        os._exit(3)
    if task == 9:
        raise KeyError("nine")
    tell((task, os.getpid()))
    return 2 * task


def test_results_are_in_order_and_come_from_several_processes() -> None:
    told: list[tuple[int, int]] = []
    assert in_processes(double, [3, 1, 4, 1, 5], 2, told.append) == [6, 2, 8, 2, 10]
    assert sorted(task for task, _ in told) == [1, 1, 3, 4, 5]
    assert len({process for _, process in told}) == 2
    assert os.getpid() not in {process for _, process in told}


@pytest.mark.parametrize(
    ("task", "error", "said"),
    [
        (7, FedskewError, "seven is not allowed"),
        (8, FedskewError, "one of the jobs ended before its run did"),
        (9, RuntimeError, "KeyError: 'nine'"),
    ],
)
def test_an_error_ends_all(task: int, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        in_processes(double, [1, task], 2, lambda message: None)


def test_a_process_that_ends_before_it_is_given_a_task_is_the_same_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = _Pool._give_next

    def give_to_the_dead(pool: "_Pool[int, int]", pipe: Connection) -> None:
        process = pool.processes[pipe]
        process.kill()
        process.join()
        given(pool, pipe)

    monkeypatch.setattr(_Pool, "_give_next", give_to_the_dead)
    with pytest.raises(FedskewError, match=r"ended before it began.*__main__"):
        in_processes(double, [1, 2], 2, lambda message: None)


_UNGUARDED = """
import fedskew as fs
settings = dict(data="digits", skew="iid", clients=2, model="logreg", rounds=1)
fs.compare(algorithm=["fedavg", "fedprox"], jobs=2, out={folder!r}, **settings)
"""


def test_a_script_without_a_guard_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(_UNGUARDED.format(folder=str(tmp_path / "out")))
    around = {**os.environ, "PYTHONPATH": str(Path(fs.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, env=around
    )
    assert done.returncode != 0
    assert '__name__ == "__main__"' in done.stderr.splitlines()[-1]
    assert "want of memory" not in done.stderr


def test_jobs_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    """It is killed; a comparison that is resumed at once has its runs alone, and ends with the same bits."""
    command = [sys.executable, "-m", "fedskew", "compare", "--rounds", "60", "--model", "logreg"]
    command += ["--clients", "3", "--algorithm", "fedavg", "--algorithm", "scaffold"]
    command += ["--threads", "1", "--jobs", "2"]
    settings: dict[str, Any] = {"rounds": 60, "model": "logreg", "clients": 3, "threads": 1}
    fs.compare(algorithm=["fedavg", "scaffold"], out=tmp_path / "whole", **settings)
    group = subprocess.Popen([*command, "--out", "group"], cwd=tmp_path, stderr=subprocess.PIPE)
    until("the first round", lambda: list((tmp_path / "group").glob("*/rounds.csv")))
    group.kill()
    group.communicate()
    resume = [sys.executable, "-m", "fedskew", "resume", "group", "--jobs", "2"]
    done = subprocess.run(resume, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    runs = sorted(path.parent.name for path in (tmp_path / "whole").glob("*/model.safetensors"))
    assert len(runs) == 2
    for name in runs:
        for table in TABLES:
            mine = (tmp_path / "group" / name / table).read_bytes()
            assert mine == (tmp_path / "whole" / name / table).read_bytes()


def test_a_signal_leaves_a_comparison_that_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    command = [
        *(
            sys.executable,
            "-m",
            "fedskew",
            "compare",
            "--rounds",
            "300",
            "--model",
            "logreg",
            "--clients",
            "3",
        ),
        *(
            "--algorithm",
            "fedavg",
            "--algorithm",
            "scaffold",
            "--threads",
            "1",
            "--checkpoint-every",
            "1000",
        ),
    ]
    assert (
        subprocess.run(
            [*command, "--out", "whole"], cwd=tmp_path, check=False, capture_output=True
        ).returncode
        == 0
    )
    group = subprocess.Popen(
        [*command, "--jobs", "2", "--out", "group"], cwd=tmp_path, stderr=subprocess.PIPE
    )
    begun = [tmp_path / "group" / name / "rounds.csv" for name in ("fedavg-s0", "scaffold-s0")]
    while not all(path.exists() for path in begun):
        assert group.poll() is None
        time.sleep(0.01)
    group.send_signal(signal.SIGTERM)
    said = group.communicate()[1].decode()
    assert group.returncode == 143, said
    assert "interrupted; resume with: fedskew resume group" in said
    left = [path for path in begun if not (path.parent / "summary.json").exists()]
    assert left, "the runs were too short"
    assert all(list((path.parent / "checkpoints").glob("*.safetensors")) for path in left)
    resume = [sys.executable, "-m", "fedskew", "resume", "group", "--jobs", "2"]
    assert subprocess.run(resume, cwd=tmp_path, check=False, capture_output=True).returncode == 0
    for name in ("fedavg-s0", "scaffold-s0"):
        for table in TABLES:
            assert (tmp_path / "group" / name / table).read_bytes() == (
                tmp_path / "whole" / name / table
            ).read_bytes()


@pytest.mark.parametrize(
    ("came", "error", "says"),
    [([], FedskewError, "fewer jobs"), (["SIGHUP"], Interrupted, "interrupted")],
)
def test_a_process_that_ends_by_a_signal_to_all_is_no_lack_of_memory(
    came: list[str], error: type[BaseException], says: str
) -> None:
    mine, theirs = Pipe()
    theirs.close()
    with pytest.raises(error, match=says):
        _received(mine, came, began=True)
