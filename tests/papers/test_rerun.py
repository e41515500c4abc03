"""Measuring a table: what is recorded, what is measured again, what happens after an interruption or a divergence."""

import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedskew as fs
from fedskew.core.errors import Interrupted
from fedskew.papers import rerun as rerunning
from fedskew.papers.cell_settings import configuration, values_of
from fedskew.papers.measurements import distribution, heterogeneity, schedule, transfers
from fedskew.papers.paper_claims import Value
from fedskew.papers.paper_tables import Entry, PaperTable, Quick, _entries
from fedskew.papers.rerun import UNFINISHED, _within, rerun
from fedskew.papers.results import Result, Results
from fedskew.skew.federate import load, split
from fedskew.study.member import Member
from fedskew.study.sitting import Sitting

SETTINGS = {
    "data": "digits",
    "clients": 4,
    "model": "logreg",
    "rounds": 3,
    "device": "cpu",
    "threads": 1,
}


def made(**more) -> PaperTable:
    usual = {
        "paper": "made",
        "name": "table1",
        "printed": "Table 1",
        "title": "a table",
        "cases": (Entry("alpha 1", {"skew": "dirichlet:alpha=1"}), Entry("iid", {"skew": "iid"})),
        "methods": (
            Entry("FedAvg", {"algorithm": "fedavg"}),
            Entry("FedProx", {"algorithm": "fedprox:mu=1"}),
        ),
        "values": (Value("accuracy", "test_accuracy_last"),),
        "quick": Quick(),
        "settings": SETTINGS,
        "seeds": "0-1",
        "curves": ("test_accuracy",),
    }
    return PaperTable(**{**usual, **more})


def records(folder: Path) -> dict[tuple[str, str, int], Result]:
    return {result.key: result for result in Results(folder, "made-table1").read()}


def test_every_cell_is_what_a_run_alone_gives(tmp_path: Path):
    import fedskew as fs

    table = made()
    rerun(table, tmp_path)
    found = records(tmp_path)
    assert set(found) == {
        (c, m, s) for c in ("alpha 1", "iid") for m in ("FedAvg", "FedProx") for s in (0, 1)
    }
    settings = {"model": "logreg", "rounds": 3, "device": "cpu", "threads": 1, "folder": False}
    for seed in (0, 1):
        fed = split(load("digits"), "dirichlet:alpha=1", clients=4, seed=seed)
        alone = fs.train(fed, algorithm="fedprox:mu=1", seed=seed, **settings)
        numbers = found["alpha 1", "FedProx", seed].numbers
        assert numbers["test_accuracy_last"] == pytest.approx(
            alone.summary["test_accuracy_last"], abs=1e-6
        )
        assert numbers["megabytes_of_a_round"] == pytest.approx(
            float((alone.rounds.bytes_down + alone.rounds.bytes_up).median()) / 1e6, rel=1e-5
        )
        curve = [point["test_accuracy"] for point in found["alpha 1", "FedProx", seed].curves]
        assert curve == pytest.approx(alone.rounds.test_accuracy.tolist(), abs=1e-4)
    assert not any((tmp_path / UNFINISHED).iterdir())
    history = Results(tmp_path, "made-table1").history()
    assert [sitting["case"] for sitting in history] == ["alpha 1", "alpha 1", "iid", "iid"]
    assert history[0]["machine"].endswith("CPU")


def test_only_what_is_missing_or_changed_is_measured(tmp_path: Path):
    rerun(made(), tmp_path, cases=["iid"], seeds=[0])
    assert set(records(tmp_path)) == {("iid", "FedAvg", 0), ("iid", "FedProx", 0)}
    before = (tmp_path / "made-table1.csv").stat().st_mtime_ns
    rerun(made(), tmp_path, cases=["iid"], seeds=[0])
    assert (tmp_path / "made-table1.csv").stat().st_mtime_ns == before
    changed = made(
        methods=(
            Entry("FedAvg", {"algorithm": "fedavg"}),
            Entry("FedProx", {"algorithm": "fedprox:mu=9"}),
        )
    )
    old = records(tmp_path)
    rerun(changed, tmp_path, cases=["iid"], seeds=[0])
    new = records(tmp_path)
    assert new["iid", "FedAvg", 0] == old["iid", "FedAvg", 0]
    assert new["iid", "FedProx", 0].configuration == configuration(
        changed, changed.cases[1], changed.methods[1]
    )
    assert new["iid", "FedProx", 0].configuration != old["iid", "FedProx", 0].configuration
    assert new["iid", "FedProx", 0].numbers != old["iid", "FedProx", 0].numbers


def test_after_an_interruption_it_goes_on(tmp_path: Path):
    @contextmanager
    def stopping(members, ended):
        def callbacks(member: Member):
            def stop(result, rounds):
                if member.name == "iid: FedProx-s1" and result.round["round"] == 2:
                    raise Interrupted("stopped", 130)

            return [stop]

        yield callbacks

    table = made(cases=(Entry("iid", {"skew": "iid"}),))
    with pytest.raises(Interrupted):
        rerun(table, tmp_path / "stopped", stopping)
    assert set(records(tmp_path / "stopped")) == {("iid", "FedAvg", 0), ("iid", "FedAvg", 1)}
    [place] = [path for path in (tmp_path / "stopped" / UNFINISHED).iterdir() if path.is_dir()]
    assert (place / "FedProx-s1" / "config.toml").exists()
    rerun(table, tmp_path / "stopped")
    rerun(table, tmp_path / "whole")
    for key, result in records(tmp_path / "whole").items():
        other = records(tmp_path / "stopped")[key]
        assert other.numbers["test_loss_last"] == result.numbers["test_loss_last"]


def test_a_sitting_that_ends_leaves_the_rest_to_the_next_one(tmp_path: Path):
    table = made(seeds="0")
    with pytest.raises(Interrupted) as stopped:
        rerun(table, tmp_path, sitting=Sitting(ends_at=time.monotonic() - 1))
    assert stopped.value.code == 75
    assert records(tmp_path) == {}
    with pytest.raises(Interrupted):  # while data are read
        rerun(table, tmp_path, sitting=Sitting(ends_at=time.monotonic() + 1e-3))
    rerun(table, tmp_path, sitting=Sitting.of("10m"))
    assert len(records(tmp_path)) == 4


def test_progress_knows_all_runs_of_a_table_by_names_of_their_own(tmp_path: Path):
    seen = []

    @contextmanager
    def watching(members, ended):
        seen.append([(member.name, member.experiment().rounds) for member in members])
        yield lambda member: []

    rerun(made(), tmp_path, watching)
    [names] = seen  # one bar for all cells
    assert len(set(names)) == 8
    assert ("alpha 1: FedAvg-s0", 3) in names


def test_a_run_that_diverges_is_recorded_as_such(tmp_path: Path):
    methods = (
        Entry("FedAvg", {"algorithm": "fedavg"}),
        Entry("wild", {"algorithm": "fedavg", "lr": 1e18, "model": "mlp"}),
    )
    rerun(made(methods=methods), tmp_path, cases=["iid"], seeds=[0])
    found = records(tmp_path)
    assert (
        "NaN or infinite" in found["iid", "wild", 0].failed
        or "lower lr" in found["iid", "wild", 0].failed
    )
    assert found["iid", "wild", 0].numbers == {}
    assert found["iid", "FedAvg", 0].failed == ""


def test_a_method_is_measured_only_in_its_cases(tmp_path: Path):
    methods = (
        Entry("FedAvg", {"algorithm": "fedavg"}, only=("iid",)),
        Entry("FedProx", {"algorithm": "fedprox"}),
    )
    rerun(made(methods=methods, seeds="0"), tmp_path)
    assert set(records(tmp_path)) == {
        ("alpha 1", "FedProx", 0),
        ("iid", "FedAvg", 0),
        ("iid", "FedProx", 0),
    }


def test_long_curves_are_thinned_and_keep_their_ends():
    rounds = [{"round": n, "test_accuracy": n / 200 if n % 2 else None} for n in range(1, 201)]
    kept = rerunning._thinned(rounds, ("test_accuracy",))
    assert len(kept) == rerunning.POINTS
    assert (kept[0]["round"], kept[-1]["round"]) == (1, 199)
    assert rerunning._thinned(rounds, ()) == []


def test_processes_that_record_different_cases_keep_each_others_results(tmp_path: Path):
    results = Results(tmp_path, "t")
    results.add([Result("a", "m", 0, "x", {"one": 1.0})], {"command": "first"})
    results.add(
        [Result("b", "m", 0, "y", {"two": 2.5}, [{"round": 1, "loss": 0.5}])], {"command": "second"}
    )
    results.add([Result("a", "m", 0, "z", {"one": 3.0})], {"command": "third"})
    assert results.read() == [
        Result("a", "m", 0, "z", {"one": 3.0}, []),
        Result("b", "m", 0, "y", {"two": 2.5}, [{"round": 1.0, "loss": 0.5}]),
    ]
    assert [sitting["command"] for sitting in results.history()] == ["first", "second", "third"]


def test_the_quick_version():
    table = made(quick=Quick("5", ("iid",), ("FedAvg",), {"rounds": 1, "lr": 0.5}))
    table = replace(
        table, methods=(Entry("FedAvg", {"algorithm": "fedavg", "rounds": 9}), *table.methods[1:])
    )
    small = table.reduced()
    assert ([case.name for case in small.cases], [m.name for m in small.methods], small.seeds) == (
        ["iid"],
        ["FedAvg"],
        "5",
    )
    assert values_of(small, small.cases[0], small.methods[0])["rounds"] == 1


def test_a_path_in_the_data_folder_is_that_of_this_machine(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FEDSKEW_DATA", "/somewhere")
    assert rerunning._here({"data": "csv:path=DATA/x.csv", "rounds": 3}) == {
        "data": "csv:path=/somewhere/x.csv",
        "rounds": 3,
    }


def test_distribution_by_hand():
    found = distribution("digits", "classes:k=2", 5, seed=0)
    rows = load("digits").train
    counts = np.array(
        [[found[f"rows_{client}_{label}"] for label in range(10)] for client in range(5)]
    )
    assert counts.sum(axis=0).tolist() == np.bincount(rows.y).tolist()
    assert found["classes"] == 2
    assert found["largest_class"] == pytest.approx((counts.max(axis=1) / counts.sum(axis=1)).mean())


def test_readings_of_heterogeneity(tmp_path: Path):
    draw = np.random.default_rng(0)
    x = np.stack([np.arange(400.0) / 7, draw.normal(size=400)], axis=1)
    lines = [f"{a},{b},{'pq'[i % 2]}\n" for i, (a, b) in enumerate(x)]
    (tmp_path / "my.csv").write_text("sorted,noise,y\n" + "".join(lines))
    data = f"csv:path={tmp_path / 'my.csv'},label=y,standardize=false"
    mean, largest, fedartml = (
        heterogeneity(data, "vop", 2, reading, seed=0)
        for reading in ("mean", "largest", "fedartml")
    )
    # Halves of a sorted column do not overlap
    assert largest["features_hellinger"] == pytest.approx(1, abs=0.01)
    assert largest["features_wasserstein"] == pytest.approx(0.5, abs=0.01)
    assert mean["features_hellinger"] < 0.7 < largest["features_hellinger"]
    assert mean["labels_hellinger"] == largest["labels_hellinger"] < 0.05
    assert mean["labels_hellinger_of_percentages"] == pytest.approx(10 * mean["labels_hellinger"])
    assert mean["features_hellinger_of_percentages"] == 1
    # By size, both halves' shares are the same
    assert fedartml["features_wasserstein"] < mean["features_wasserstein"]


def test_transfers_are_those_of_a_run():
    found = transfers("digits", "classes:k=3", 5, "uniform", chunk=5, retain=0, seed=1)
    settings = {"rounds": 1, "lr": 0.001, "device": "cpu", "seed": 1}
    fed = fs.split(fs.load("digits"), "classes:k=3", clients=5, seed=1)
    run = fs.train(fed, "logreg", "stratify-single", **settings)
    # A run sends the last model to all five clients
    assert run.rounds["transfers"][0] == found["transfers"] + 5
    alone = transfers("digits", "classes:k=3", 5, "uniform", chunk=1, retain=0, seed=1)
    assert alone["transfers_spared"] == 0
    spared = 1 - found["transfers"] / alone["transfers"]
    assert found["transfers_spared"] == pytest.approx(spared)
    assert spared > 0.1


def test_scores_within_a_budget():
    def row(number: int, score: float | None, clock: float) -> dict:
        costs = {"bytes_down": 3_000_000, "bytes_up": 2_000_000, "clock": clock}
        return {"round": number, "test_accuracy": score, **costs}

    rounds = [row(1, 0.2, 4.0), row(2, None, 8.0), row(3, 0.5, 12.0), row(4, 0.6, 16.0)]
    found = _within({"megabytes": 15.0, "simulated_seconds": 11.0}, rounds)
    assert found == {
        "round_at_megabytes": 3.0,
        "test_accuracy_at_megabytes": 0.5,
        "round_at_simulated_seconds": 1.0,
        "test_accuracy_at_simulated_seconds": 0.2,
    }
    assert _within({"megabytes": 4.9}, rounds) == {}
    (case,) = _entries([{"name": "a", "skew": "iid", "budgets": {"megabytes": 15}}], "here")
    plain = Entry("a", {"skew": "iid"})
    assert case.settings == plain.settings
    table = made(cases=(case,))
    method = table.methods[0]
    assert configuration(table, case, method) != configuration(table, plain, method)


def test_a_label_schedule_takes_the_variance_between_classes_away():
    start = schedule("digits", batch=50, batches=400, steps=0, seed=0)
    assert 0.1 < start["ratio"] < 0.6  # at first classes differ more than rows of a class
    assert start["bias"] < 2  # the mean of balanced batches is the mean of the classes' gradients
