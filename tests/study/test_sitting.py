"""A study in several sittings: stopped by its budget, divided into shards, merged."""

import shutil
import threading
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import fedskew as fs
from fedskew.core.errors import FedskewError
from fedskew.runs import runner
from fedskew.server.server import Server
from fedskew.skew import federate
from fedskew.study.sitting import Shard, seconds_of

METHODS = ["fedavg", "fedprox:mu=1", "scaffold", "fedavgm"]
SETTINGS: dict[str, Any] = {"rounds": 4, "model": "logreg", "clients": 4, "lr": 0.1}
COMPARE = (
    "compare --rounds 4 --model logreg --clients 4 --lr 0.1 --skew iid --skew classes:k=3 --seeds 0-2 "
    + " ".join(f"--algorithm {method}" for method in METHODS)
)
TABLES = ("rounds.csv", "clients.csv", "clients_final.csv", "model.safetensors", "config.toml")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a study that ran through."""
    folder = tmp_path_factory.mktemp("whole") / "study"
    skews = ["iid", "classes:k=3"]
    fs.compare(algorithm=METHODS, skew=skews, seeds=range(3), out=folder, **SETTINGS)
    return folder


def must_be_equal(one: Path, other: Path) -> None:
    """Compare the runs and the tables of two studies, byte for byte."""
    names = sorted(path.name for path in one.iterdir() if path.is_dir())
    assert len(names) == 24
    assert names == sorted(path.name for path in other.iterdir() if path.is_dir())
    for name in names:
        for table in TABLES:
            same = (one / name / table).read_bytes() == (other / name / table).read_bytes()
            assert same, f"{name}/{table}"
    timed = ["seconds", "seconds_std"]
    tables = [pd.read_csv(place / "comparison.csv") for place in (one, other)]
    without = [table.drop(columns=timed) for table in tables]
    pd.testing.assert_frame_equal(*without)


class Clock(threading.Timer):
    """A timer that rings after so many rounds of all runs, whatever the time."""

    rounds = 0
    last: "Clock | None" = None

    def start(self) -> None:
        Clock.last = self

    def join(self, timeout: float | None = None) -> None:
        Clock.last = None


def ringing_after(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a budget end after so many rounds of all runs of a sitting."""
    done = 0
    complete = Server.complete

    def counted(self: Server, *args: Any) -> Any:
        nonlocal done
        done += 1
        if Clock.last is not None and done % rounds == 0:
            Clock.last.function(*Clock.last.args)
        return complete(self, *args)

    monkeypatch.setattr(Server, "complete", counted)
    monkeypatch.setattr(runner.threading, "Timer", Clock)


def test_a_budget_stops_after_a_round_and_the_same_command_goes_on(
    whole: Path,
    fedskew: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ringing_after(20, monkeypatch)
    said = []
    codes = []
    while not codes or codes[-1] == 75:
        codes.append(fedskew(f"{COMPARE} --out study --budget 9m"))
        said.append(capsys.readouterr().err.splitlines()[-1])
    assert codes[-1] == 0
    assert len(codes) > 3  # 96 rounds of all runs, about 20 a sitting
    first = "fedskew: the budget is spent, 0 of 24 runs are done; give the command again, or: fedskew resume study"
    assert said[0] == first
    must_be_equal(whole, Path("study"))


def test_resume_has_a_budget_too(
    whole: Path, fedskew: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        ringing_after(40, patched)
        assert fedskew(f"{COMPARE} --out study --budget 9m") == 75
        assert fedskew("resume study --budget 1h") == 75
    assert fedskew("resume study") == 0
    must_be_equal(whole, Path("study"))


def test_in_python_a_spent_budget_is_an_error_that_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "study"
    said = "0 of 2 runs are done; give the command again"
    with monkeypatch.context() as patched:
        ringing_after(2, patched)
        with pytest.raises(fs.BudgetSpentError, match=said):
            fs.compare(algorithm="fedavg", seeds=[0, 1], out=out, budget=60, **SETTINGS)
    table = fs.compare(algorithm="fedavg", seeds=[0, 1], out=out, budget="1h", **SETTINGS)
    assert len(table) == 1


def test_a_real_budget_ends_a_study_that_would_take_hours(tmp_path: Path) -> None:
    endless = {**SETTINGS, "rounds": 1_000_000}
    with pytest.raises(fs.BudgetSpentError, match="0 of 1 runs are done"):
        fs.compare(algorithm="fedavg", seeds=[0], out=tmp_path / "study", budget=0.5, **endless)


def test_four_shards_in_one_folder_are_the_study_that_ran_through(
    whole: Path, fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (3, 1, 4):
        assert fedskew(f"{COMPARE} --out study --shard {number}/4") == 0
    said = capsys.readouterr().err
    assert "this shard is done, 18 runs of other shards are left" in said
    assert "this shard is done, 6 runs of other shards are left" in said
    assert not Path("study/comparison.csv").exists()
    assert fedskew(f"{COMPARE} --out study --shard 2/4") == 0
    must_be_equal(whole, Path("study"))


def test_shards_of_several_machines_are_merged(
    whole: Path, fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (1, 2, 3, 4):
        assert fedskew(f"{COMPARE} --out s{number} --shard {number}/4") == 0
    capsys.readouterr()
    assert fedskew("merge s1 s2 s3 --out some") == 0
    assert "6 runs are left, run them with: fedskew resume some" in capsys.readouterr().err
    assert fedskew("merge s1 s2 s3 s4 --out all") == 0
    must_be_equal(whole, Path("all"))
    assert fedskew("resume some") == 0
    must_be_equal(whole, Path("some"))


def test_bad_shards_are_not_merged(
    whole: Path, fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedskew("compare --rounds 1 --model logreg --clients 4 --seeds 0-1 --out other") == 0
    shutil.copytree(whole, "changed")
    table = Path("changed/fedavg-iid-s0/rounds.csv")
    capsys.readouterr()

    def refused(command: str) -> str:
        assert fedskew(command) == 2
        assert not Path("all").exists()
        return capsys.readouterr().err

    assert "hold different studies, their group.json differ" in refused(
        f"merge {whole} other --out all"
    )
    assert "is not the folder of a comparison" in refused(
        f"merge {whole} other/fedavg-s0 --out all"
    )
    table.write_text(table.read_text().replace("0.", "1.", 1))
    assert "rounds.csv" in refused(f"merge {whole} changed --out all")


def test_a_partition_is_made_once_for_the_check_and_all_methods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, partitions = 0, 0
    load, divide = federate.load, federate.partition_rows

    def counted_load(*args: Any, **kwargs: Any) -> Any:
        nonlocal reads
        reads += 1
        return load(*args, **kwargs)

    def counted_divide(*args: Any, **kwargs: Any) -> Any:
        nonlocal partitions
        partitions += 1
        return divide(*args, **kwargs)

    monkeypatch.setattr(federate, "load", counted_load)
    monkeypatch.setattr(federate, "partition_rows", counted_divide)
    skews = ["iid", "iid + noise:sigma=0.1"]
    settings = {**SETTINGS, "rounds": 1}
    fs.compare(algorithm=METHODS, skew=skews, seeds=range(3), out=tmp_path / "study", **settings)
    assert (reads, partitions) == (1, 6)


@pytest.mark.parametrize("given", ["0/4", "5/4", "x", "1", "1/0", "1/100000", "-1/2"])
def test_bad_shards_are_refused(given: str, tmp_path: Path) -> None:
    with pytest.raises(FedskewError, match="such as 2/8"):
        fs.compare(algorithm="fedavg", seeds=[0], out=tmp_path / "no", shard=given, **SETTINGS)
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("given", ["0", "-1m", "x", "9 days", "", "1.2.3", True, float("inf")])
def test_bad_budgets_are_refused(given: Any) -> None:
    with pytest.raises(FedskewError, match=r"such as 90s, 9m or 1\.5h"):
        seconds_of(given)


def test_limits_need_a_folder_and_a_comparison(
    whole: Path, fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    for limit in ("--budget 9m", "--shard 1/2"):
        assert fedskew(f"{COMPARE} {limit}") == 2
        assert "budget and shard need out" in capsys.readouterr().err
        assert fedskew(f"compare {whole} {limit}") == 2
        assert "finished runs are compared as they are" in capsys.readouterr().err
        assert fedskew(f"resume {whole / 'fedavg-iid-s0'} {limit}") == 2
        assert "is a run, and that is for comparisons" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_every_run_falls_to_one_shard() -> None:
    runs = list(range(11))
    shares = [Shard(number, 4).share_of(runs) for number in (1, 2, 3, 4)]
    assert sorted(chain.from_iterable(shares)) == runs
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
