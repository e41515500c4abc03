"""Several methods and seeds in one folder: runs, partitions, reports, and resuming the whole."""

import json
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedskew as fs
from fedskew.cli import app as cli
from fedskew.data.partition import Partition
from fedskew.runs.folder import RunFolder
from fedskew.server.server import Server
from fedskew.skew import federate as reading
from fedskew.study import study_folder
from fedskew.study.comparison_table import mean_with_std
from fedskew.study.grid import grid_of, parse_seeds
from fedskew.study.member import read_members
from fedskew.study.overview import means
from fedskew.study.partitions import Partitions
from fedskew.study.study_plan import Plan, members_of

COMMON = {"rounds": "2", "model": "logreg", "clients": "4"}


RUN = "compare --rounds 2 --model logreg --clients 4 --algorithm fedavg --algorithm fedprox:mu=1 --seeds 0-2"


def test_means_and_deviations_by_hand(
    fedskew: Callable[[str], Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert fedskew(RUN + " --json") == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert told["folder"] == "runs/compare-digits-dirichlet"
    for method, mu in (("fedavg", None), ("fedprox:mu=1.0", 1.0)):
        mine = [run for run in told["runs"] if run["algorithm"] == method]
        assert [run["seed"] for run in mine] == [0, 1, 2]
        for key in (
            "test_accuracy_last",
            "test_accuracy_best",
            "gini_of_client_weights",
            "bytes_up",
        ):
            values = [run[key] for run in mine]
            assert told["means"][method][key]["mean"] == pytest.approx(statistics.mean(values))
            assert told["means"][method][key]["std"] == pytest.approx(statistics.stdev(values))
        last = [run["test_accuracy_last"] for run in mine]
        shown = next(
            line for line in err.splitlines() if line.startswith(f"{method.partition(':')[0]} ")
        )
        cells = [f"{mu:g}"] if mu else []
        text = mean_with_std(statistics.mean(last), statistics.stdev(last))
        assert re.split(r"  +", shown)[1:][: len(cells) + 2] == [*cells, "3", text]
        row = next(
            row for row in told["comparison"]["rows"] if row["method"] == method.partition(":")[0]
        )
        assert (row["mu"], row["blocks"], row["failed"]) == (mu, 3, 0)
        assert row["score"] == pytest.approx(statistics.mean(last))
        assert row["score_std"] == pytest.approx(statistics.stdev(last))
    assert "seed" not in told["means"]["fedavg"]
    assert "data" not in told["means"]["fedavg"]
    stored = json.loads(Path("runs/compare-digits-dirichlet/summary.json").read_text())
    assert stored == {"runs": told["runs"], "means": told["means"], "warnings": []}


def test_a_table_in_which_clients_count_unlike_is_warned_of(
    fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    few = "compare --rounds 1 --model logreg --clients 4 --algorithm fedavg --algorithm scaffold --algorithm afl-cp"
    assert fedskew(few + " --out same") == 0
    assert "aggregation weights differ" not in capsys.readouterr().out
    assert fedskew(few + " --weights paper --out apart") == 0
    words = "the aggregation weights differ, size in fedavg, afl-cp but uniform in scaffold"
    assert words in " ".join(capsys.readouterr().out.split())
    assert words in json.loads(Path("apart/summary.json").read_text())["warnings"][0]
    assert json.loads(Path("same/summary.json").read_text())["warnings"] == []


def test_one_seed_has_a_mean_and_no_deviation() -> None:
    wanted = members_of(COMMON, ["fedavg"], [5])
    assert means(wanted, [{"test_accuracy_last": 0.5, "seed": 5, "data": "digits"}]) == {
        "fedavg": {"test_accuracy_last": {"mean": 0.5, "std": None}}
    }


def test_what_only_some_runs_have_has_no_mean() -> None:
    wanted = members_of(COMMON, ["fedavg"], [0, 1])
    rows = [{"a": 1.0, "rounds_to_90": 3}, {"a": 2.0, "rounds_to_90": None}]
    assert list(means(wanted, rows)["fedavg"]) == ["a"]


def test_methods_meet_on_the_same_cuts(fedskew: Callable[[str], Any]) -> None:
    assert fedskew(RUN + " --out group") == 0
    cuts = {
        path.name: Partition.load(path / "partition.npz").digest
        for path in Path("group").iterdir()
        if path.is_dir()
    }
    assert len(cuts) == 6
    for seed in range(3):
        assert cuts[f"fedavg-s{seed}"] == cuts[f"fedprox-mu-1.0-s{seed}"]
    assert len(set(cuts.values())) == 3


ALONE = "run --rounds 2 --model logreg --clients 4 --algorithm fedprox:mu=1 --seed 2 --folder alone"


def test_a_member_is_the_same_as_a_run_on_its_own(fedskew: Callable[[str], Any]) -> None:
    assert fedskew(RUN + " --engine loop --out group") == 0
    assert fedskew(ALONE + " --engine loop") == 0
    for name in ("rounds.csv", "clients.csv", "model.safetensors", "config.toml"):
        assert (
            Path("alone", name).read_bytes() == Path("group/fedprox-mu-1.0-s2", name).read_bytes()
        )


def test_a_member_of_a_stack_has_the_numbers_of_a_run_on_its_own(
    fedskew: Callable[[str], Any],
) -> None:
    assert fedskew(RUN + " --out group") == 0
    assert fedskew(ALONE) == 0
    alone, member = RunFolder(Path("alone")), RunFolder(Path("group/fedprox-mu-1.0-s2"))
    files = {path.name for path in alone.path.iterdir()}
    assert {path.name for path in member.path.iterdir()} == files - {"report.html"}
    for name in ("rounds.csv", "clients.csv", "clients_final.csv"):
        one, other = alone.table(name), member.table(name)
        assert len(one) == len(other) > 0
        for left, right in zip(one, other, strict=True):
            assert left == pytest.approx(right, rel=1e-5, abs=1e-6)
    for name in ("config.toml", "partition.npz"):
        assert (alone.path / name).read_bytes() == (member.path / name).read_bytes()


def test_split_seed_holds_the_cut_still(fedskew: Callable[[str], Any]) -> None:
    assert (
        fedskew(
            "compare --rounds 1 --model logreg --clients 4 --seeds 0-1 --split-seed 7 --validation 0.1 --out group"
        )
        == 0
    )
    cuts = {
        Partition.load(path / "partition.npz").digest
        for path in Path("group").iterdir()
        if path.is_dir()
    }
    assert len(cuts) == 1


@pytest.mark.parametrize(("validation", "reads"), [("0.0", 1), ("0.2", 2)])
def test_data_is_read_no_more_than_needed(
    validation: str, reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, load = 0, reading.load

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        return load(*args, **kwargs)

    monkeypatch.setattr(reading, "load", counted)
    members = members_of({**COMMON, "validation": validation}, ["fedavg", "fedprox"], [0, 1])
    study_folder.check(Plan(members), Partitions())
    assert count == reads


class Crash(BaseException):
    """An exception that no code catches."""


def test_resume_skips_what_is_finished_and_goes_on_with_the_rest(
    fedskew: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert fedskew(RUN + " --out expected") == 0
    complete, rounds = Server.complete, 0

    def crash_in_the_second_round_of_the_second_group(training: Server, *args: Any) -> Any:
        nonlocal rounds
        rounds += 1
        if rounds == 11:
            raise Crash
        return complete(training, *args)

    with monkeypatch.context() as patched:
        patched.setattr(Server, "complete", crash_in_the_second_round_of_the_second_group)
        patched.setattr(sys, "argv", ["fedskew", *RUN.split(), "--out", "group"])
        with pytest.raises(Crash):
            cli.main()
    group = Path("group")
    begun = sorted(path.name for path in group.iterdir() if path.is_dir())
    assert len(begun) == 6
    assert not (group / "fedprox-mu-1.0-s1" / "summary.json").exists()
    finished = {
        path: path.stat().st_mtime_ns
        for name in ("fedavg-s0", "fedavg-s2")
        for path in (group / name).iterdir()
    }
    capsys.readouterr()
    assert fedskew("resume group --json") == 0
    told = json.loads(capsys.readouterr().out)
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    assert len(told["runs"]) == 6
    for member in Path("expected").iterdir():
        if member.is_dir():
            for name in ("rounds.csv", "clients.csv", "model.safetensors"):
                assert (member / name).read_bytes() == (group / member.name / name).read_bytes()
    before = {path: path.read_bytes() for path in group.rglob("*") if path.is_file()}
    assert fedskew("resume group") == 0
    assert {path: path.read_bytes() for path in group.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    "moment", ["fedskew.server.server.Server.complete", "fedskew.study.partitions.federate"]
)
def test_ctrl_c_names_the_group_to_resume(
    moment: str,
    fedskew: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(study_folder, "check", lambda plan, partitions: plan)

    def stop(*args: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(moment, stop)
    assert fedskew(RUN + " --goal shared --out group") == 130
    assert capsys.readouterr().err == "fedskew: interrupted; resume with: fedskew resume group\n"
    assert Path("group/group.json").exists()


def test_an_error_says_which_run_it_is_about(
    fedskew: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    complete = Server.complete

    def diverge(training: Server, *args: Any) -> Any:
        if isinstance(training.algorithm, fs.FedProx):
            raise fs.FedskewError("round 1: all 4 clients sent NaN")
        return complete(training, *args)

    monkeypatch.setattr(Server, "complete", diverge)
    assert fedskew(RUN + " --out group") == 2
    assert (
        capsys.readouterr().err.splitlines()[-1]
        == "fedskew: fedprox-mu-1.0-s0: round 1: all 4 clients sent NaN"
    )


def test_algorithms_in_a_file(
    fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    text = 'algorithm = ["fedavg", {name = "fedprox", mu = 0.5}]\nrounds = 1\nmodel = "logreg"\nseed = 4\n'
    Path("both.toml").write_text(text)
    assert fedskew("compare both.toml --json --clients 3") == 0
    told = json.loads(capsys.readouterr().out)
    assert [(run["algorithm"], run["seed"], run["clients"]) for run in told["runs"]] == [
        ("fedavg", 4, 3),
        ("fedprox:mu=0.5", 4, 3),
    ]


def test_folders_never_meet(fedskew: Callable[[str], Any]) -> None:
    for _ in range(2):
        assert fedskew("compare --rounds 1 --model logreg --seeds 0-1") == 0
    assert sorted(path.name for path in Path("runs").iterdir()) == [
        "compare-digits-dirichlet",
        "compare-digits-dirichlet-2",
    ]


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("3", [3]), ("0-2", [0, 1, 2]), ("0,3, 7", [0, 3, 7]), ("1-2,5-6", [1, 2, 5, 6])],
)
def test_seeds(text: str, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "2-1", "-1", "1-", "1--2", "0.5", "1,,2"])
def test_no_seeds(text: str) -> None:
    with pytest.raises(fs.FedskewError, match="is not a number or a range such as 0-4"):
        parse_seeds(text)


@pytest.mark.parametrize("content", ["", "{}", "[3]", '[{"name": "a"}]'])
def test_a_damaged_list_of_runs(content: str, tmp_path: Path) -> None:
    (tmp_path / "group.json").write_text(content)
    with pytest.raises(fs.FedskewError, match=r"group\.json cannot be read"):
        read_members(tmp_path)


def test_an_empty_list_of_numbers_asks_for_numbers() -> None:
    with pytest.raises(fs.FedskewError, match=r"^grid: mu = \[\] is empty: give numbers, such as"):
        grid_of({"mu": []})
