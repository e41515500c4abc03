"""What a run is judged by: which number its summary names, what stands beside it, and what its one line says."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedskew as fs
from fedskew.runs.run import facts_of, said_of

SETTINGS: dict[str, Any] = {"rounds": 2, "lr": 0.05, "folder": False, "device": "cpu"}


@pytest.fixture(scope="module")
def digits() -> fs.Dataset:
    return fs.load("digits")


@pytest.fixture(scope="module")
def clinics(tmp_path_factory: pytest.TempPathFactory) -> fs.Federation:
    """Return a federation whose data comes with its clients and their test rows."""
    folder = tmp_path_factory.mktemp("clinics")
    draw = np.random.default_rng(0)
    for place, name in enumerate("ABC"):
        x = draw.normal(size=(40, 2))
        frame = pd.DataFrame(x, columns=["p", "q"]).assign(y=np.where(x[:, 0] > 0, "u", "v"))
        frame[:20].to_csv(folder / f"{name}.csv", index=False)
        frame[20 : 30 + place].to_csv(folder / f"{name}-test.csv", index=False)
    return fs.split(fs.load(f"{folder}:label=y"))


@pytest.mark.parametrize(
    ("method", "held", "goal", "score"),
    [
        ("fedavg", 0.2, "own", "client_accuracy_mean"),
        ("local", 0.2, "own", "client_accuracy_mean"),
        ("fedavg", 0.0, "shared", "test_accuracy_last"),
        ("ditto", 0.0, "shared", "test_accuracy_last"),
        ("fedavg + ccvr", 0.0, "shared", "calibrated_test_accuracy"),
        ("fedavg + ccvr:every=1", 0.0, "shared", "calibrated_test_accuracy"),
        ("local", 0.0, None, None),
    ],
)
def test_the_goal_of_a_run(
    digits: fs.Dataset, method: str, held: float, goal: str | None, score: str | None
) -> None:
    fed = fs.split(digits, "iid", 4, client_test=held)
    summary = fs.train(fed, "mlp:hidden=6", method, **SETTINGS).summary
    assert summary.get("goal") == goal
    assert summary.get("score") == score
    if score is not None:
        assert 0 <= summary[score] <= 1


@pytest.mark.parametrize(
    ("method", "goal", "score"),
    [("fedavg", "shared", "test_accuracy_last"), ("local", "own", "client_accuracy_mean")],
)
def test_of_clients_that_come_with_test_rows(
    clinics: fs.Federation, method: str, goal: str, score: str
) -> None:
    summary = fs.train(clinics, "logreg", method, **SETTINGS).summary
    assert (summary["goal"], summary["score"]) == (goal, score)
    assert summary["client_test_clients"] == 3
    assert summary["client_test_rows_median"] == 11
    assert summary["test_rows"] == 33


def test_the_metric_that_decides_is_the_score(digits: fs.Dataset) -> None:
    fed = fs.split(digits, "iid", 4, client_test=0.2)
    summary = fs.train(fed, "logreg", metric="macro_f1", **SETTINGS).summary
    assert summary["score"] == "client_macro_f1_mean"


def test_means_and_counts_by_hand(digits: fs.Dataset) -> None:
    loaded = fs.load("digits", validation=0.1)
    fed = fs.split(loaded, "dirichlet:alpha=0.3", 5, client_test=0.2, client_validation=0.2)
    run = fs.train(fed, "logreg", "local", **SETTINGS)
    final, summary = run.final_clients, run.summary
    rows = fed.held_out.sizes
    assert final["test_rows"].tolist() == rows.tolist()
    assert summary["client_accuracy_mean"] == pytest.approx(final["accuracy"].mean(), abs=1e-12)
    weighted = (final["accuracy"] * rows).sum() / rows.sum()
    assert summary["client_accuracy_row_weighted_mean"] == pytest.approx(weighted, abs=1e-12)
    assert summary["client_accuracy_row_weighted_mean"] != summary["client_accuracy_mean"]
    chosen_by = final["validation_accuracy"].mean()
    assert summary["client_validation_accuracy_mean"] == pytest.approx(chosen_by, abs=1e-12)
    assert summary["test_rows"] == len(fed.test)
    assert summary["validation_rows"] == len(fed.validation)
    assert summary["client_test_rows_median"] == np.median(rows)
    assert summary["client_test_clients"] == 5
    for name in ("accuracy_best", "accuracy_best_round"):
        assert f"client_test_{name}" not in summary
        assert f"client_validation_{name}" in summary


def test_classes_of_which_few_rows_are_held_out_are_named() -> None:
    y = np.array(["often"] * 80 + ["also"] * 60 + ["seldom"] * 12)
    x = np.random.default_rng(0).normal(size=(len(y), 2))
    fed = fs.split((x, y), "iid", 2, client_test=0.5)
    summary = fs.train(fed, "logreg", **SETTINGS).summary
    held = fed.train.y[fed.held_out.rows]
    seldom = int((held == fed.data.classes.index("seldom")).sum())
    assert seldom < 10
    assert summary["client_test_rarest_class"] == ["seldom", seldom, 2]
    (warning,) = summary["warnings"]
    assert f"(seldom: {seldom})" in warning
    assert "often" not in warning
    without = fs.train(fs.split((x, y), "iid", 2), "logreg", **SETTINGS).summary
    assert "client_test_rarest_class" not in without
    assert "warnings" not in without


def test_one_line_says_the_score_and_never_the_best_on_test_rows(digits: fs.Dataset) -> None:
    held = fs.train(fs.split(digits, "iid", 4, client_test=0.2), "logreg", **SETTINGS)
    assert f", client_accuracy_mean {held.summary['client_accuracy_mean']:.4g}" in repr(held)
    shared = fs.train(fs.split(digits, "iid", 4), "logreg", **SETTINGS)
    assert f", test_accuracy_last {shared.summary['test_accuracy_last']:.4g}" in repr(shared)
    for run in (held, shared):
        assert "best" not in repr(run)
        assert not [name for name in facts_of(run.summary, None) if "best" in name]
    assert facts_of(held.summary, None)["goal"] == "own"


def test_a_summary_of_an_older_version_is_said_by_its_test_rows() -> None:
    older = {"algorithm": "fedavg", "data": "digits", "skew": "iid", "rounds": 3}
    said = said_of({**older, "test_accuracy_last": 0.75, "test_accuracy_best": 0.8}, Path("runs/a"))
    assert said == "fedavg on digits, iid: 3 rounds, test_accuracy_last 0.75; runs/a"
    assert said_of(older, None) == "fedavg on digits, iid: 3 rounds"
