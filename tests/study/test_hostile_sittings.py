"""What broke a study in several sittings when strangers tried: each test failed once."""

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedskew as fs
from fedskew.core.lock import locked
from fedskew.report.comparison_files import write_comparison
from fedskew.runs import runner
from fedskew.runs.experiment import run_experiment
from fedskew.runs.folder import RunFolder
from fedskew.study.compare import carry_out
from fedskew.study.member import read_members
from fedskew.study.study_folder import open_study


@pytest.mark.parametrize(
    "more",
    [
        {"skew": ["iid", "dirichlet:alpha=0.2 + relabel:fraction=0.4"], "seeds": [0]},
        {"skew": "iid", "seeds": [0, 1], "validation": 0.2},
        {"skew": "dirichlet:alpha=0.1", "seeds": [0, 1], "client_test": 0.3},
    ],
)
def test_every_run_of_a_study_is_the_run_on_its_own(tmp_path: Path, more: dict[str, Any]) -> None:
    fs.compare(
        algorithm=["fedavg"],
        clients=6,
        rounds=3,
        lr=0.1,
        model="logreg",
        task="classification:class_weights=balanced",
        out=tmp_path / "study",
        **more,
    )
    for member in read_members(tmp_path / "study"):
        run_experiment(member.experiment(), folder=tmp_path / member.name)
        tables = []
        for place in (tmp_path / "study" / member.name, tmp_path / member.name):
            tables.append(pd.read_csv(place / "rounds.csv"))
        pd.testing.assert_frame_equal(*tables, rtol=1e-4, atol=1e-4, obj=member.name)


JOBS = "compare --rounds 1 --model logreg --clients 4 --seeds 0 --algorithm fedavg --out study"


def test_a_finished_study_is_resumed_with_jobs(fedskew: Callable[[str], Any]) -> None:
    assert fedskew(JOBS) == 0
    assert fedskew("resume study --jobs 2") == 0


def test_the_same_command_goes_on_with_jobs_after_the_end(fedskew: Callable[[str], Any]) -> None:
    assert fedskew(JOBS) == 0
    assert fedskew(f"{JOBS} --jobs 2 --budget 9m") == 0


def test_a_shard_without_a_share_has_nothing_to_do_with_jobs(fedskew: Callable[[str], Any]) -> None:
    assert fedskew(f"{JOBS} --jobs 2 --shard 2/2") == 0


TABLES = ("rounds.csv", "clients.csv", "clients_final.csv", "model.safetensors")
STOPPED: dict[str, Any] = {
    "rounds": 8,
    "model": "mlp",
    "clients": 6,
    "lr": 0.1,
    "batch_size": 7,
    "skew": "dirichlet:alpha=0.1",
    "algorithm": "fedavg",
    "seeds": range(4),
}


def stopping_in(monkeypatch: pytest.MonkeyPatch, out: Path, record: int, budget: Any) -> None:
    """Run a study whose budget ends right after the given record of a round, counted over all runs."""
    done = 0
    record_round = runner._call

    def recorded(*args: Any) -> bool:
        nonlocal done
        ends = record_round(*args)
        done += 1
        if done == record:
            runner._came[0].append(runner.BUDGET)
        return ends

    with monkeypatch.context() as patched:
        patched.setattr(runner, "_call", recorded)
        with pytest.raises(fs.BudgetSpentError):
            fs.compare(**STOPPED, out=out, budget=budget)


def test_every_run_of_a_stack_has_a_checkpoint_of_the_same_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopping_in(monkeypatch, tmp_path / "study", 14, 600)  # of 4 runs, the second in round 4
    rounds = {}
    for place in sorted((tmp_path / "study").glob("fedavg-*")):
        rounds[place.name] = max(RunFolder(place).checkpoints.rounds(), default=0)
    assert len(set(rounds.values())) == 1, rounds


def test_the_bits_are_those_of_a_study_that_ran_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs.compare(**STOPPED, out=tmp_path / "whole")
    out = tmp_path / "study"
    for record in (6, 6):
        stopping_in(monkeypatch, out, record, 600)
    fs.compare(**STOPPED, out=out, budget="1h")
    different = []
    for place in sorted((tmp_path / "whole").glob("fedavg-*")):
        for table in TABLES:
            if (place / table).read_bytes() != (out / place.name / table).read_bytes():
                different.append(f"{place.name}/{table}")
    assert not different


SHARDED: dict[str, Any] = {
    "algorithm": "fedavg",
    "model": "mlp",
    "clients": 6,
    "rounds": 5,
    "lr": 0.1,
    "batch_size": 7,
    "skew": ["dirichlet:alpha=0.1", "quantity:alpha=0.3"],
    "seeds": range(4),
}


def test_shards_are_the_study_that_ran_through(tmp_path: Path) -> None:
    fs.compare(**SHARDED, out=tmp_path / "whole")
    for number in range(1, 5):
        fs.compare(**SHARDED, out=tmp_path / "study", shard=f"{number}/4")
    different = []
    for place in sorted((tmp_path / "whole").glob("fedavg-*")):
        for table in ("rounds.csv", "clients.csv", "model.safetensors"):
            if (place / table).read_bytes() != (
                tmp_path / "study" / place.name / table
            ).read_bytes():
                different.append(f"{place.name}/{table}")
    assert not different


def test_shards_of_two_divisions_that_overlap_are_merged(
    tmp_path: Path, fedskew: Callable[[str], Any]
) -> None:
    for shard in ("1/2", "3/4", "2/2"):
        fs.compare(**SHARDED, out=tmp_path / shard.replace("/", "-of-"), shard=shard)
    assert fedskew("merge 1-of-2 3-of-4 2-of-2 --out all") == 0


CHOOSE = (
    "compare --rounds 1 --model logreg --clients 4 --validation 0.2 --algorithm fedavg --algorithm fedprox "
    "--grid lr=0.01,0.1 --choose-seeds 100-101 --seeds 0-1 --out study"
)


def test_what_a_shard_says_is_true(
    fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    said = []
    for number in (1, 2, 3):
        assert fedskew(f"{CHOOSE} --shard {number}/3") == 0
        said.append(capsys.readouterr().err.splitlines()[-1])
    # Every shard has ended, the last one too; either the study is judged, or the last one says that all are to be
    # given again, because runs of the second stage are left
    assert "the last shard to end judges the study" not in said[-1], said[-1]


MERGED = "compare --rounds 1 --model logreg --clients 4 --algorithm fedavg --algorithm fedprox --seeds 0-1"


@pytest.fixture
def shards(fedskew: Callable[[str], Any]) -> list[Path]:
    for number in (1, 2):
        assert fedskew(f"{MERGED} --shard {number}/2 --out s{number}") == 0
    return [Path("s1"), Path("s2")]


def test_json_says_how_many_runs_are_left(
    fedskew: Callable[[str], Any], shards: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert fedskew("merge s1 --out half --json") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines, "--json printed nothing"
    assert json.loads(lines[-1]) == {"folder": "half", "left": 2}  # as compare --shard does


def test_a_folder_inside_a_shard_is_refused(
    fedskew: Callable[[str], Any], shards: list[Path]
) -> None:
    assert fedskew("merge s1 s2 --out s1/all") == 2  # "the shards stay as they are"
    assert not Path("s1/all").exists()


def test_the_hint_names_the_folder_that_was_merged(
    fedskew: Callable[[str], Any], shards: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    code = fedskew("merge s1 --out s1/all")
    said = capsys.readouterr().err.splitlines()[-1]
    assert code == 2 or said.endswith("fedskew resume s1/all"), said


def test_a_folder_inside_a_run_is_refused_in_words(
    fedskew: Callable[[str], Any], shards: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        fedskew("merge s1 s2 --out s1/fedavg-s0/all") == 2
    )  # it copies itself into itself until names are too long
    assert len(capsys.readouterr().err.splitlines()[-1]) < 500


def test_a_run_under_the_name_of_another_is_refused(
    fedskew: Callable[[str], Any], shards: list[Path]
) -> None:
    shutil.rmtree("s1/fedavg-s0")
    shutil.copytree("s2/fedprox-s0", "s1/fedavg-s0")
    assert fedskew("merge s1 s2 --out all") == 2


def test_nothing_is_written_if_shards_have_other_rows(fedskew: Callable[[str], Any]) -> None:
    for number in (1, 2):
        stream = np.random.default_rng(number)
        frame = pd.DataFrame(stream.normal(size=(400, 3)), columns=list("abc"))
        frame["y"] = (frame["a"] > 0).astype(int)
        frame.to_csv("t.csv", index=False)
        command = f"{MERGED} --data t.csv:label=y --shard {number}/2 --out s{number}"
        assert fedskew(command) == 0
    assert fedskew("merge s1 s2 --out all") == 2
    assert not Path("all").exists()


def test_no_run_is_counted_twice(tmp_path: Path) -> None:
    fs.compare(
        algorithm="fedavg",
        grid={"lr": [0.1, 1e12]},
        choose="none",
        seeds=[0, 1],
        rounds=2,
        clients=4,
        model="mlp",
        out=tmp_path / "study",
    )
    assert len(list((tmp_path / "study").glob("*/failed.json"))) == 2
    counts = []

    @contextmanager
    def watch(members: Any, ended: int) -> Any:
        counts.append((len(members), ended))
        yield lambda member: []

    carry_out(open_study(tmp_path / "study"), write_comparison, watch=watch, retry=True)
    assert sum(counts[0]) == 4, counts  # to run, and ended before


SHORT: dict[str, Any] = {"algorithm": "fedavg", "seeds": [0], "rounds": 2, "clients": 4}


def test_a_budget_below_the_start_is_no_reason_to_try_again(tmp_path: Path) -> None:
    with pytest.raises(fs.FedskewError, match="before the first round") as refused:
        fs.compare(**SHORT, model="logreg", out=tmp_path / "study", budget=0.001)
    assert not isinstance(refused.value, fs.BudgetSpentError)


def test_the_alarm_rings_after_a_budget_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "GRACE", 0.2)
    ended = threading.Event()

    def long_round() -> None:
        with runner.within(0.05):
            time.sleep(0.2)  # the budget is spent, and the round goes on
            os.kill(os.getpid(), signal.SIGTERM)
            ended.wait(30)
            pytest.fail("the round was not ended")

    with pytest.raises(KeyboardInterrupt):
        long_round()


def test_a_shard_waits_for_the_one_that_creates_the_folder(tmp_path: Path) -> None:
    settings = {
        "algorithm": "fedavg",
        "seeds": [0, 1],
        "rounds": 1,
        "clients": 4,
        "model": "logreg",
    }
    fs.compare(**settings, out=tmp_path / "made", shard="1/2")
    out = tmp_path / "study"
    holding = threading.Event()

    def create_slowly() -> None:
        with locked(out, tmp_path / ".study.lock"):
            holding.set()
            time.sleep(2)  # as fsync on a network disk
            (tmp_path / "made").rename(out)

    other = threading.Thread(target=create_slowly)
    other.start()
    holding.wait()
    try:
        fs.compare(**settings, out=out, shard="2/2")  # raises "is being written by process N"
    finally:
        other.join()
    assert len(read_members(out)) == 2
