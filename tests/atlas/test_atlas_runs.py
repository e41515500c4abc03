"""The runs of an atlas: they end, go on, are shared, and leave files that can be read."""

import hashlib
import json
import math
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

import fedskew as fs
from fedskew.atlas import atlas_runs
from fedskew.atlas.atlas_files import write_atlas
from fedskew.atlas.atlas_runs import Atlas, atlas_in, open_atlas, progress_of, run_atlas, runs_of
from fedskew.atlas.cell_results import _within, last_within, read_result
from fedskew.atlas.look_up import look_up
from fedskew.core.errors import BudgetSpentError, FedskewError, Interrupted
from fedskew.study.sitting import Sitting


def test_every_study_ends(small: Atlas):
    results = small.results
    assert set(results) == {"iid-shared", "iid-own", "skewed-shared", "skewed-own"}
    for study in small.protocol.studies:
        assert len(results[study.name].rows) == runs_of(study)
    shared = results["skewed-shared"]
    assert set(shared.chosen) == {"fedavg", "central", "fedlc", "scaffold"}
    assert len(shared.judged) == 4 * 3
    assert set(results["iid-own"].chosen) == {"fedavg", "local"}
    assert set(results["skewed-own"].chosen) == {"fedavg", "local", "fedrep"}
    assert shared.measured["labels"] > results["iid-shared"].measured["labels"]
    assert not (small.folder / "unfinished" / "iid-shared").exists()


def test_a_row_is_what_a_run_alone_gives(small: Atlas):
    """The same run by the front door: same partition, weights and batches."""
    result = small.results["skewed-shared"]
    row = next(row for row in result.judged if row.method == "fedavg" and row.seed == 1)
    fed = fs.split(fs.load("digits", validation=0.2, seed=1), "dirichlet:alpha=0.2", 3, seed=1)
    run = fs.train(
        fed,
        "mlp:hidden=8",
        rounds=2,
        epochs=2,
        lr=row.lr,
        seed=1,
        metric="balanced_accuracy",
        folder=False,
    )
    assert row.score == pytest.approx(run.summary["test_balanced_accuracy_last"], abs=1e-6)
    assert row.sent == run.summary["bytes_up"] + run.summary["bytes_down"]
    assert row.score_at_bytes == row.score_at_time == row.score, "it is its own budget"


def test_scores_within_the_bytes_of_fedavg(small: Atlas):
    """SCAFFOLD sends twice as much: within FedAvg's bytes of two rounds it has one, and its time is nearly all."""
    judged = small.results["skewed-shared"].judged
    row = next(row for row in judged if row.method == "scaffold" and row.seed == 1)
    control = next(row for row in judged if row.method == "fedavg" and row.seed == 1)
    assert row.sent is not None
    assert control.sent is not None
    assert row.sent == pytest.approx(2 * control.sent, rel=0.01)
    fed = fs.split(fs.load("digits", validation=0.2, seed=1), "dirichlet:alpha=0.2", 3, seed=1)
    settings = {"epochs": 2, "lr": row.lr, "seed": 1, "metric": "balanced_accuracy"}
    run = fs.train(fed, "mlp:hidden=8", "scaffold", rounds=1, folder=False, **settings)
    assert row.score_at_bytes == pytest.approx(run.summary["test_balanced_accuracy_last"], abs=1e-6)
    assert row.score_at_bytes != row.score


def test_what_has_ended_is_not_run_again(small: Atlas):
    def never(line: str) -> None:
        raise AssertionError(line)

    run_atlas(small, sitting=Sitting.of(None), say=never)


def test_a_budget_stops_and_the_next_call_goes_on(protocol: Path, tmp_path: Path):
    atlas = open_atlas(tmp_path / "atlas", protocol)
    with pytest.raises(BudgetSpentError):
        run_atlas(atlas, cells=["iid"], sitting=Sitting.of("0.01s"), say=str)
    assert progress_of(atlas).runs_done == 0
    run_atlas(atlas, cells=["iid"], sitting=Sitting.of(None), say=str)
    again = atlas_in(tmp_path / "atlas")
    progress = progress_of(again)
    assert progress.runs_done == sum(runs_of(study) for study in atlas.protocol.studies[:2])
    assert progress.seconds_left is not None
    assert progress.seconds_left > 0


def test_shards_share_the_studies(protocol: Path, tmp_path: Path):
    atlas = open_atlas(tmp_path / "atlas", protocol)
    run_atlas(atlas, cells=["iid"], sitting=Sitting.of(None, "2/2"), say=str)
    assert set(atlas.results) == {"iid-own"}


def test_another_protocol_is_refused(protocol: Path, tmp_path: Path):
    open_atlas(tmp_path / "atlas", protocol)
    protocol.write_text(protocol.read_text().replace("rounds = 2", "rounds = 3"))
    with pytest.raises(FedskewError, match="was begun with another protocol"):
        open_atlas(tmp_path / "atlas", protocol)
    with pytest.raises(FedskewError, match="is not an atlas: begin one with"):
        atlas_in(tmp_path / "elsewhere")


def test_a_damaged_result_is_named(small: Atlas, tmp_path: Path):
    path = tmp_path / "one.json"
    text = (small.folder / "results" / "iid-shared.json").read_text()
    path.write_text(text[: len(text) // 2])
    with pytest.raises(FedskewError, match=r"one.json is damaged"):
        read_result(path)
    path.write_text(text.replace('"schema": 1', '"schema": 2'))
    with pytest.raises(FedskewError, match="is not of schema 1"):
        read_result(path)


def test_the_last_score_within_a_budget():
    scores = [None, 0.5, None, 0.8]
    assert last_within(scores, [1, 2, 3, 4], 4) == 0.8
    assert last_within(scores, [1, 2, 3, 4], 3.9) == 0.5
    assert last_within(scores, [1, 2, 3, 4], 1) is None


def test_bytes_and_time_have_budgets_of_their_own():
    rounds = {
        "client_test_accuracy": [0.1, 0.2, 0.3],
        "bytes_down": [5, 5, 5],
        "bytes_up": [5, 5, 5],
        "clock": [1.0, 10.0, 20.0],
    }
    run = SimpleNamespace(rounds=rounds, metric="accuracy")
    assert _within(run, "own", (20.0, 5.0)) == (0.2, 0.1)
    assert _within(run, "own", None) == (None, None)


def test_the_files(small: Atlas, tmp_path: Path):
    pytest.importorskip("pyarrow")
    names = {path.name for path in write_atlas(small, tmp_path)}
    assert names == {
        "atlas.html", "atlas.md", "runs.parquet", "croissant.json", "datasheet.md", "SHA256SUMS",
        "verdicts-shared.pdf", "verdicts-own.pdf", "gains-shared.pdf", "gains-own.pdf",
    }  # fmt: skip
    for line in (tmp_path / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == digest
    rows = pd.read_parquet(tmp_path / "runs.parquet")
    described = json.loads((tmp_path / "croissant.json").read_text())
    fields = described["recordSet"][0]["field"]
    assert [field["name"] for field in fields] == list(rows.columns)
    digest = hashlib.sha256((tmp_path / "runs.parquet").read_bytes()).hexdigest()
    assert described["distribution"][0]["sha256"] == digest
    assert f"{len(rows)} runs" in (tmp_path / "datasheet.md").read_text()
    page = (tmp_path / "atlas.html").read_text()
    for words in ("digits, skewed", "FedLC", small.protocol.digest, "Does the map predict?"):
        assert words in page
    assert (tmp_path / "verdicts-own.pdf").read_bytes().startswith(b"%PDF")


def test_an_empty_atlas_has_no_page(protocol: Path, tmp_path: Path):
    atlas = open_atlas(tmp_path / "atlas", protocol)
    with pytest.raises(FedskewError, match=r"no study of .* has ended: run it first"):
        write_atlas(atlas, tmp_path)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('"fedlc"', '"fedlx"', "cell iid, goal shared: unknown algorithm 'fedlx'"),
        ("rounds = 2", "rouns = 2", "cell iid, goal shared: unknown setting 'rouns'"),
        ("rounds = 2", 'rounds = "x"', "rounds=x is not a whole number"),
        ('"dirichlet:alpha=0.2"', '"diri"', "cell skewed, goal shared: unknown skew 'diri'"),
        ('choose_seeds = "1000"', 'choose_seeds = "0"', "seed 0 is also one"),
    ],
)
def test_no_folder_is_begun_with_a_wrong_protocol(
    protocol: Path, tmp_path: Path, before: str, after: str, message: str
):
    text = protocol.read_text()
    assert before in text
    protocol.write_text(text.replace(before, after, 1))
    with pytest.raises(FedskewError, match=message):
        open_atlas(tmp_path / "begun", protocol)
    assert not (tmp_path / "begun").exists()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("measured", "x", "has no attribute 'values'"),
        ("measured", {"labels": "x"}, "must be real number, not str"),
        ("chosen", {"fedlc": 0.1}, "no run of fedavg is in it"),
        ("chosen", {"fedavg": float("nan")}, "nan is not a finite number"),
        ("rows", [], "it has no runs"),
        ("cell", "elsewhere", "it is of cell elsewhere and goal shared"),
    ],
)
def test_a_result_with_wrong_values_is_damaged(
    small: Atlas, tmp_path: Path, name: str, value: object, message: str
):
    text = (small.folder / "results" / "iid-shared.json").read_text()
    copied = Atlas(tmp_path, small.protocol)
    path = tmp_path / "results" / "iid-shared.json"
    path.parent.mkdir()
    path.write_text(json.dumps({**json.loads(text), name: value}))
    with pytest.raises(FedskewError, match=f"iid-shared.json is damaged: .*{message}"):
        _ = copied.results


def test_after_an_interruption_the_same_command_goes_on(
    protocol: Path, tmp_path: Path, monkeypatch
):
    def interrupted(*_: object, **__: object) -> None:
        raise Interrupted("interrupted; resume with: fedskew resume somewhere")

    monkeypatch.setattr(atlas_runs, "compare", interrupted)
    atlas = open_atlas(tmp_path / "atlas", protocol)
    with pytest.raises(Interrupted, match="give the command again to go on"):
        run_atlas(atlas, sitting=Sitting.of(None), say=print)


def test_an_unknown_cell_begins_no_folder(protocol: Path, tmp_path: Path):
    with pytest.raises(FedskewError, match="unknown cell 'nowhere'"):
        open_atlas(tmp_path / "begun", protocol, ["nowhere"])
    assert not (tmp_path / "begun").exists()


@pytest.mark.parametrize(
    "wrong", [{"clients": 0}, {"rows": -1}, {"classes": math.nan}, {"sizes": {"gini": math.nan}}]
)
def test_measures_that_no_clients_have(tmp_path: Path, wrong: dict):
    path = tmp_path / "measured.json"
    measured = {"clients": 5, "rows": 300, "classes": 2, "sizes": {"gini": 0.1}}
    path.write_text(json.dumps({**measured, **wrong}))
    with pytest.raises(FedskewError, match=r"measured.json holds no measures"):
        look_up(path, "shared")
