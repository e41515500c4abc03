"""What is best, by which metric: the headline, class weights from counts, thresholds, and models of one class."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn import metrics as known
from sklearn.utils.class_weight import compute_class_weight

import fedskew as fs
from fedskew.core.config import read_file
from fedskew.core.errors import FedskewError
from fedskew.data.dataset import Rows
from fedskew.engine.loop import Loop
from fedskew.runs.summary import predictions_of_one_class
from fedskew.study.overview import warnings_of
from fedskew.tasks.task import Headline, resolve

QUIET: dict[str, Any] = {"device": "cpu", "threads": 1, "folder": False}


@pytest.fixture
def rare(tmp_path: Path) -> fs.Federation:
    """Return two classes, of which one is rare, at three clients, one of which has none of it."""
    draw = np.random.default_rng(3)
    x = draw.normal(size=(600, 4))
    y = np.where(x[:, 0] + 0.5 * draw.normal(size=600) > 1.4, "ill", "well")
    site = np.where((y == "well") & (draw.random(600) < 0.4), "C", draw.choice(["A", "B"], 600))
    path = tmp_path / "rare.csv"
    pd.DataFrame({**{f"x{i}": x[:, i] for i in range(4)}, "y": y, "site": site}).to_csv(
        path, index=False
    )
    return fs.split(
        fs.load(f"{path}:label=y,group=site", validation=0.25), "natural", client_test=0.25
    )


# -- the headline ------------------------------------------------------------------------------------------------------


def test_the_direction_of_every_metric():
    assert resolve("classification").headline() == Headline("accuracy", 1)
    assert resolve("binary").headline("ece") == Headline("ece", -1)
    assert resolve("regression").headline() == Headline("mae", -1)
    assert resolve("regression").headline("r2") == Headline("r2", 1)
    own = fs.Task(
        lambda out, y: out - y,
        {"a": lambda out, y: 0.0, "b": lambda out, y: 0.0},
        higher_is_better=False,
    )
    assert own.headline("a") == Headline("a", -1)
    with pytest.raises(FedskewError, match="put b first in metrics"):
        own.headline("b")


@pytest.mark.parametrize("task", ["classification", "binary"])
def test_the_headline_leaves_the_training_as_it_is(rare: fs.Federation, task: str):
    plain = fs.train(rare, "logreg", rounds=4, task=task, **QUIET)
    other = fs.train(rare, "logreg", rounds=4, task=task, metric="auc", **QUIET)
    for name, value in plain.model.state_dict().items():
        assert torch.equal(value, other.model.state_dict()[name])
    columns = [name for name in other.rounds if name.startswith("test_")]
    assert columns == ["test_loss", "test_auc", "test_accuracy", "test_balanced_accuracy"]
    assert plain.rounds["test_accuracy"].equals(other.rounds["test_accuracy"])
    assert (plain.summary["metric"], other.summary["metric"]) == ("accuracy", "auc")
    best = other.rounds["test_auc"]
    assert other.summary["test_auc_best"] == best.max()
    assert other.summary["test_auc_best_round"] == best.argmax() + 1
    assert other.summary["test_accuracy_last"] == plain.summary["test_accuracy_last"]
    assert "test_accuracy_best" not in other.summary


@pytest.mark.parametrize(("metric", "sign"), [("macro_f1", 1), ("ece", -1)])
def test_early_stopping_follows_the_metric(
    rare: fs.Federation, tmp_path: Path, metric: str, sign: int
):
    usual = {"rounds": 30, "metric": metric, "device": "cpu", "lr": 0.5, "threads": 1}
    curve = sign * fs.train(rare, "logreg", folder=False, **usual).rounds[f"validation_{metric}"]
    best, stops = -math.inf, None
    for number, value in enumerate(curve, 1):
        if value > best:
            best, at = value, number
        if number - at >= 2:
            stops = number
            break
    assert stops is not None
    run = fs.train(rare, "logreg", folder=tmp_path / "run", stop_after=2, **usual)
    assert len(run.rounds) == stops < 30
    assert run.summary[f"validation_{metric}_best"] == sign * best


def test_a_stopped_run_keeps_its_metric(rare: fs.Federation, tmp_path: Path):
    usual = {
        "rounds": 20,
        "metric": "macro_f1",
        "stop_after": 2,
        "lr": 0.5,
        "device": "cpu",
        "checkpoint_every": 1,
    }
    whole = fs.train(rare, "logreg", folder=tmp_path / "whole", **usual)

    def stop(result: Any, rounds: int) -> None:
        if result.round["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fs.train(rare, "logreg", folder=tmp_path / "cut", callbacks=stop, **usual)
    assert read_file(tmp_path / "cut" / "config.toml")["metric"] == "macro_f1"
    rest = fs.resume(tmp_path / "cut")
    assert len(rest.rounds) == len(whole.rounds) < 20
    assert {**rest.summary, "seconds": 0} == {**whole.summary, "seconds": 0}
    assert rest.confusion is not None
    assert rest.confusion.equals(whole.confusion)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"metric": "mae"},
            "unknown metric of task classification 'mae': .*Known: accuracy, auc, average_precision",
        ),
        (
            {"thresholds": "auc"},
            "thresholds=auc is not one of accuracy, balanced_accuracy, macro_f1 or none",
        ),
        (
            {"thresholds": "macro_f1", "algorithm": "local"},
            "chosen for a global model, and every client keeps a part",
        ),
    ],
)
def test_what_cannot_decide_is_refused(
    rare: fs.Federation, tmp_path: Path, settings: dict[str, Any], says: str
):
    with pytest.raises(FedskewError, match=says):
        fs.train(rare, "logreg", rounds=1, folder=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_thresholds_need_two_classes_and_validation_rows(rare: fs.Federation):
    with pytest.raises(
        FedskewError, match="this has 10 classes: leave it out; class_weights=balanced"
    ):
        fs.train(fs.split(fs.load("digits", validation=0.2), "iid"), thresholds="accuracy", **QUIET)
    with pytest.raises(FedskewError, match="this is task regression"):
        fs.train(
            fs.split(fs.load("diabetes", validation=0.2), "iid"),
            "mlp",
            thresholds="accuracy",
            **QUIET,
        )
    x, y = rare.train.x, rare.train.y
    with pytest.raises(FedskewError, match=r"add validation=0\.2"):
        fs.train(fs.split((x, y), "iid", clients=2), "logreg", thresholds="accuracy", **QUIET)


# -- class weights from counts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["classification", "binary"])
def test_balanced_weights_are_scikit_learns_over_all_clients(
    rare: fs.Federation, tmp_path: Path, task: str
):
    labels = rare.train.y[rare.partition.rows]  # without what clients hold out
    due = compute_class_weight("balanced", classes=np.arange(2), y=labels)
    run = fs.train(
        rare,
        "logreg",
        rounds=3,
        task=f"{task}:class_weights=balanced",
        device="cpu",
        folder=tmp_path / "b",
    )
    assert run.summary["class_weights"] == pytest.approx(due.tolist(), rel=1e-15)
    assert run.summary["task"] == f"{task}:class_weights=balanced"
    assert read_file(tmp_path / "b" / "config.toml")["task"]["class_weights"] == "balanced"
    numbers = "+".join(repr(weight) for weight in run.summary["class_weights"])
    same = fs.train(rare, "logreg", rounds=3, task=f"{task}:class_weights={numbers}", **QUIET)
    for name, value in run.model.state_dict().items():
        assert torch.equal(value, same.model.state_dict()[name])


def test_engines_agree_on_balanced_weights(rare: fs.Federation):
    usual = {
        **QUIET,
        "rounds": 3,
        "task": "classification:class_weights=balanced",
        "dtype": "float64",
    }
    one, all_at_once = (
        fs.train(rare, "mlp", engine=engine, **usual) for engine in ("loop", "stacked")
    )
    assert isinstance(one.server.engine, Loop)
    for name, value in one.model.state_dict().items():
        torch.testing.assert_close(value, all_at_once.model.state_dict()[name], rtol=0, atol=1e-10)


def test_a_class_without_rows_has_the_weight_one():
    weights = (
        resolve("classification:class_weights=balanced")
        .fitted(np.array([8, 0, 2]))
        .options()["class_weights"]
    )
    assert weights == (10 / 16, 1.0, 10 / 4)
    with pytest.raises(FedskewError, match="class_weights=balanced are counted on training rows"):
        resolve("classification:class_weights=balanced").losses(
            torch.zeros(2, 2), torch.tensor([0, 1])
        )


# -- thresholds --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["classification", "binary"])
def test_the_threshold_is_chosen_on_validation_rows_and_stored(
    rare: fs.Federation, tmp_path: Path, task: str
):
    usual = {"rounds": 3, "task": task, "thresholds": "balanced_accuracy", "device": "cpu"}
    run = fs.train(rare, "logreg", folder=tmp_path / "run", **usual)
    stored = json.loads((tmp_path / "run" / "thresholds.json").read_text())
    assert stored["metric"] == "balanced_accuracy"
    assert stored["class"] == rare.data.classes[1]
    assert (
        stored["probability"]
        == run.summary["threshold"]
        == pytest.approx(1 / (1 + math.exp(-stored["logit"])))
    )

    def margin(rows: Rows) -> np.ndarray:
        with torch.no_grad():
            found = run.model(torch.from_numpy(rows.x)).double().numpy()
        return np.asarray(found[:, 1] - found[:, 0] if task == "classification" else found[:, 0])

    assert rare.validation is not None
    for part, rows in (("validation", rare.validation), ("test", rare.test)):
        predicted = margin(rows) > stored["logit"]
        due = known.balanced_accuracy_score(rows.y, predicted)
        assert run.summary[f"thresholded_{part}_balanced_accuracy"] == pytest.approx(due, abs=1e-12)
        assert run.summary[f"thresholded_{part}_accuracy"] == pytest.approx(
            (predicted == rows.y).mean(), abs=1e-12
        )
    at_chosen = run.summary["thresholded_validation_balanced_accuracy"]
    assert at_chosen > run.summary["validation_balanced_accuracy_last"]
    others = margin(rare.validation)
    assert at_chosen >= max(
        known.balanced_accuracy_score(rare.validation.y, others > limit) for limit in others
    )
    assert "thresholds.json" in (tmp_path / "run" / "final.json").read_text()  # with its checksum
    table = pd.read_csv(tmp_path / "rare.csv").drop(columns="y")
    found = fs.open_run(tmp_path / "run").predict(table)["prediction"]
    parts = (rare.data.train, rare.validation, rare.test)
    above = sum(int((margin(rows) > stored["logit"]).sum()) for rows in parts)
    assert (
        (found == rare.data.classes[1]).sum()
        == above
        != sum(int((margin(rows) > 0).sum()) for rows in parts)
    )


# -- classes and clients -----------------------------------------------------------------------------------------------


def test_own_models_have_a_confusion_matrix_and_every_class_a_line(
    rare: fs.Federation, tmp_path: Path
):
    run = fs.train(rare, "logreg", "ditto", rounds=3, device="cpu", folder=tmp_path / "run")
    test, due = rare.test, np.zeros((2, 2), dtype=int)
    rates = []
    for client in range(3):
        run.model.load_state_dict(run.server.client_model(client))
        with torch.no_grad():
            predicted = run.model(torch.from_numpy(test.x)).argmax(1).numpy()
        due += known.confusion_matrix(test.y, predicted, labels=[0, 1])
        rates.append(max(predicted.mean(), 1 - predicted.mean()))
    assert run.own_confusion is not None
    assert run.own_confusion.to_numpy().tolist() == due.tolist()
    assert run.final_clients["own_test_one_class_rate"].tolist() == pytest.approx(rates)
    stored = fs.open_run(tmp_path / "run")
    assert stored.own_confusion is not None
    assert stored.own_confusion.equals(run.own_confusion)
    table = pd.read_csv(tmp_path / "run" / "classes.csv")
    assert table["model"].tolist() == ["global", "global", "own", "own"]
    assert table["class"].tolist() == [*rare.data.classes] * 2
    assert stored.classes is not None
    assert stored.classes["recall"].tolist() == pytest.approx(
        table["recall"][:2].tolist(), nan_ok=True
    )
    assert table["rows"].tolist() == [*np.bincount(test.y), *(3 * np.bincount(test.y))]


def test_clients_have_both_models_metrics_beside_the_majority(rare: fs.Federation):
    run = fs.train(rare, "logreg", "ditto", rounds=3, **QUIET)
    final = run.final_clients
    assert rare.held_out is not None
    for client in range(3):
        rows = rare.held_out.of(client)
        y, line = rare.train.y[rows], final.loc[client]
        assert line["majority_rate"] == pytest.approx(np.bincount(y).max() / len(y))
        for prefix, state in (
            ("", run.server.client_model(client)),
            ("global_", run.server.state.model()),
        ):
            run.model.load_state_dict(state)
            with torch.no_grad():
                found = run.model(torch.from_numpy(rare.train.x[rows])).argmax(1).numpy()
            assert line[f"{prefix}accuracy"] == pytest.approx((found == y).mean())
            assert line[f"{prefix}balanced_accuracy"] == pytest.approx(known.recall_score(
                y, found, average="macro", labels=np.unique(y), zero_division=0))  # fmt: skip
            assert line[f"{prefix}one_class_rate"] == pytest.approx(
                max(found.mean(), 1 - found.mean())
            )
    assert run.summary["client_balanced_accuracy_mean"] == pytest.approx(
        final["balanced_accuracy"].mean()
    )
    assert run.summary["client_majority_rate_mean"] == pytest.approx(final["majority_rate"].mean())
    of_global = run.summary["client_balanced_accuracy_of_global_model_mean"]
    assert of_global == pytest.approx(final["global_balanced_accuracy"].mean())


@pytest.mark.filterwarnings("ignore:hospital:UserWarning", "ignore:only hospital:UserWarning")
def test_clients_that_are_files_are_scored_on_their_own_test_rows(
    hospitals: dict[str, pd.DataFrame],
):
    fed = fs.split(fs.load(hospitals, label="outcome"))
    run = fs.train(fed, "logreg", "ditto", rounds=2, **QUIET)
    assert run.summary["client_accuracy_rows"] == "held-out rows of each client"
    assert run.final_clients["name"].tolist() == list(hospitals)
    for client, name in enumerate(fed.client_names):
        mine = fed.test.take(np.flatnonzero(fed.test.group == fed.data.groups.index(name)))
        line = run.final_clients.loc[client]
        assert line["rows"] == fed.partition.sizes[client]  # it trained on
        assert line["majority_rate"] == pytest.approx(np.bincount(mine.y).max() / len(mine))
        for prefix, state in (
            ("", run.server.client_model(client)),
            ("global_", run.server.state.model()),
        ):
            run.model.load_state_dict(state)
            with torch.no_grad():
                found = run.model(torch.from_numpy(mine.x)).argmax(1).numpy()
            assert line[f"{prefix}accuracy"] == pytest.approx((found == mine.y).mean())
            assert line[f"{prefix}macro_f1"] == pytest.approx(
                known.f1_score(mine.y, found, average="macro")
            )
    held = fs.split(fs.load(hospitals, label="outcome"), client_test=0.3)
    other = fs.train(held, "logreg", rounds=1, **QUIET)
    assert held.held_out is not None
    y = held.train.y[held.held_out.of(0)]
    assert other.final_clients["majority_rate"][0] == pytest.approx(np.bincount(y).max() / len(y))


def test_a_model_of_one_class_is_called_so(rare: fs.Federation):
    lazy = fs.train(rare, _always_well(rare), "fedavg", rounds=1, lr=1e-6, **QUIET)
    assert lazy.summary["test_one_class_rate"] == 1
    assert lazy.summary["test_one_class"] == "well"
    (text,) = lazy.summary["warnings"]
    assert text.startswith(
        "fedavg predicts one class, well, for 100 % of the test rows: the accuracy of "
    )
    assert f"(the most frequent class: {lazy.summary['test_majority_rate']:.1%})" in text
    own = fs.train(rare, _always_well(rare), "local", rounds=1, lr=1e-6, **QUIET).summary[
        "warnings"
    ]
    assert own[0].startswith(
        "the clients' own models of local predict one class for 100 % of the test rows"
    )
    good = fs.train(
        rare, "logreg", rounds=30, lr=0.5, task="binary:class_weights=balanced", **QUIET
    )
    assert good.summary["test_one_class_rate"] < 0.95
    assert "warnings" not in good.summary


def _always_well(fed: fs.Federation) -> torch.nn.Module:
    layer = torch.nn.Linear(4, 2)
    torch.nn.init.zeros_(layer.weight)
    with torch.no_grad():
        layer.bias.copy_(torch.tensor([0.0, 5.0] if fed.data.classes[1] == "well" else [5.0, 0.0]))
    return layer


def test_a_majority_that_is_predicted_rightly_is_no_reason_to_warn():
    usual = {"algorithm": "fedavg", "test_accuracy_last": 0.995, "test_one_class": "a"}
    assert not predictions_of_one_class(
        {**usual, "test_one_class_rate": 0.995, "test_majority_rate": 0.995}
    )
    assert not predictions_of_one_class(
        {**usual, "test_one_class_rate": 0.98, "test_majority_rate": 0.6}
    )
    assert not predictions_of_one_class({"algorithm": "fedavg"})
    (text,) = predictions_of_one_class(
        {**usual, "test_one_class_rate": 0.9999, "test_majority_rate": 0.995}
    )
    assert "for 99.9 % of the test rows" in text


def test_a_comparison_warns_once_a_method():
    rows = [{"algorithm": name, "seed": seed, "warnings": [f"{name} {seed}"], "weights": "size"}
            for name in ("a", "b") for seed in (0, 1)]  # fmt: skip
    assert warnings_of(["a", "a", "b", "b"], rows) == ["a 0 (seed 0, 1)", "b 0 (seed 0, 1)"]
    assert warnings_of(["a"], rows[:1]) == ["a 0"]


def test_baselines_stand_beside_in_the_same_columns(
    rare: fs.Federation,
    fedskew: Callable[[str], Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("COLUMNS", "300")
    methods = "--algorithm fedavg --algorithm local --algorithm central"
    data = "--data rare.csv:label=y,group=site --skew natural --client-test 0.25 --model logreg"
    assert (
        fedskew(
            f"compare {data} {methods} --rounds 2 --metric balanced_accuracy --device cpu --out g"
        )
        == 0
    )
    shown = capsys.readouterr().out
    lines: dict[str, str] = {}
    for line in shown.splitlines():
        if line.strip():
            lines.setdefault(line.split()[0], line)
    assert lines["method"].split()[1:5] == ["blocks", "own", "balanced", "accuracy"]
    assert "on its held-out rows" in shown
    runs = json.loads(Path("g/summary.json").read_text())["runs"]
    for run in runs:
        assert f"{run['client_balanced_accuracy_mean']:.4g}" in lines[run["algorithm"]].split()
