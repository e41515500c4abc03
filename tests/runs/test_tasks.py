"""Tasks end to end: numbers, several labels, user-defined; engines agree, metrics are scikit-learn's, runs resume."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as known

import fedskew as fs
from fedskew.algorithms.contract import algorithms
from fedskew.core.config import Settings, read_file
from fedskew.core.errors import FedskewError
from fedskew.runs.summary import summarise

QUIET: dict[str, Any] = {"device": "cpu", "threads": 1, "folder": False}
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(240, 5)).astype(np.float32)
FLAGS = (X @ DRAW.normal(size=(5, 3)) + 0.3 * DRAW.normal(size=(240, 3)) > 0).astype(int)


def numbers() -> fs.Federation:
    return fs.split(
        fs.load("diabetes", validation=0.2), "dirichlet:alpha=0.5", 5, bins=5, client_test=0.2
    )


def labels() -> fs.Federation:
    return fs.split((X, FLAGS), "dirichlet:alpha=0.5", 5, task="multilabel", bins=4)


def classes() -> fs.Federation:
    return fs.split(fs.load("digits", validation=0.2), "dirichlet:alpha=0.5", 4)


def far(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (out - y).abs().sqrt()


def own_task(**more: Any) -> fs.Task:
    worst = {
        "worst": lambda out, y: float(abs(out - y).max()),
        "bias": lambda out, y: float((out - y).mean()),
    }
    return fs.Task(far, worst, "number", higher_is_better=False, **more)


def outputs(run: fs.Run, x: np.ndarray) -> np.ndarray:
    weight = next(run.model.parameters())
    with torch.no_grad():
        return run.model(torch.from_numpy(x).to(weight)).double().numpy()


# -- engines -----------------------------------------------------------------------------------------------------------

HUBER = "regression:loss=huber,delta=20"


LOOK_AT_CLASSES = {
    "afl-cp",
    "ccvr",
    "fedlc",
    "fedntd",
    "fedpac",
    "fedproto",
    "fedrod",
    "fedrs",
    "stratify-batch",
    "stratify-hybrid",
    "stratify-rounds",
    "stratify-single",
}
SEVERAL_MODELS = ("ifca", "cfl", "fedamp", "fedfomo", "d-psgd", "gossip")


# Refuses BatchNorm
@pytest.mark.parametrize("algorithm", sorted({*algorithms} - LOOK_AT_CLASSES - {"dp"}))
@pytest.mark.parametrize(
    ("make", "model", "task"),
    [
        (numbers, "tabular:hidden=6", HUBER),
        (labels, "mlp:hidden=6", "multilabel"),
        (numbers, "mlp:hidden=6", own_task),
    ],
    ids=["numbers", "labels", "own"],
)
@pytest.mark.filterwarnings("ignore:.*here it is fed")
def test_engines_agree(algorithm: str, make: Callable[[], fs.Federation], model: str, task: Any):
    if algorithm in SEVERAL_MODELS and model.startswith("tabular"):
        pytest.skip("BatchNorm of several models is refused")
    settings = {
        "rounds": 2,
        "lr": 0.02,
        "dtype": "float64",
        "task": task() if callable(task) else task,
        **QUIET,
    }
    loop, stacked = (
        fs.train(make(), model, algorithm, engine=engine, **settings)
        for engine in ("loop", "stacked")
    )
    for table in ("rounds", "clients", "final_clients"):
        one, two = (
            getattr(run, table).drop(columns="seconds", errors="ignore") for run in (loop, stacked)
        )
        assert list(one.columns) == list(two.columns)
        np.testing.assert_allclose(one.astype(float), two.astype(float), rtol=1e-8, atol=1e-8)
    for left, right in zip(loop.model.parameters(), stacked.model.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-8, atol=1e-8)


def test_regression_learns():
    run = fs.train(numbers(), "logreg", rounds=40, lr=0.5, task=HUBER, **QUIET)
    assert run.summary["test_r2_last"] > 0.3
    assert run.summary["test_mae_best"] == run.rounds["test_mae"].min()
    assert (
        run.summary["test_mae_best_round"] == run.rounds["round"][run.rounds["test_mae"].argmin()]
    )


def test_one_step_of_regression_is_the_gradient_by_hand():
    fed = fs.split(fs.load("diabetes"), "iid", 1)
    start = fs.train(
        fed, "logreg", rounds=1, lr=1e-30, batch_size=400, dtype="float64", **QUIET
    ).model
    run = fs.train(fed, "logreg", rounds=1, lr=0.01, batch_size=400, dtype="float64", **QUIET)
    (weight, bias), (after, _) = (list(model.parameters()) for model in (start, run.model))
    x, y = fed.train.x.astype(np.float64), fed.train.y.astype(np.float64)
    missed = x @ weight.detach().numpy()[0] + bias.item() - y
    expected = weight.detach().numpy()[0] - 0.01 * 2 * (missed @ x) / len(y)
    np.testing.assert_allclose(after.detach().numpy()[0], expected, rtol=1e-9)


# -- metrics -----------------------------------------------------------------------------------------------------------


def test_metrics_of_numbers_are_scikit_learns():
    run = fs.train(numbers(), "mlp:hidden=8", rounds=3, lr=0.01, task=HUBER, **QUIET)
    for part in ("validation", "test"):
        rows = getattr(run.server.fed, part)
        found = outputs(run, rows.x)[:, 0]
        for name, value in {
            "mae": known.mean_absolute_error(rows.y, found),
            "rmse": math.sqrt(known.mean_squared_error(rows.y, found)),
            "r2": known.r2_score(rows.y, found),
        }.items():
            assert run.summary[f"{part}_{name}_last"] == pytest.approx(value, rel=1e-6)
    assert run.confusion is None
    client = run.final_clients.iloc[2]
    own = run.server.fed.held_out.of(2)
    rows = run.server.fed.train.take(own)
    squares = known.mean_squared_error(rows.y, outputs(run, rows.x)[:, 0])
    assert client["rmse"] == pytest.approx(math.sqrt(squares), rel=1e-6)


def test_metrics_of_labels_are_scikit_learns():
    run = fs.train(labels(), "logreg", rounds=5, lr=0.5, **QUIET)
    y, found = run.server.fed.test.y, outputs(run, run.server.fed.test.x)
    for name, value in {
        "accuracy": (y == (found > 0)).mean(),
        "exact_match": known.accuracy_score(y, found > 0),
        "macro_f1": known.f1_score(y, found > 0, average="macro"),
        "micro_f1": known.f1_score(y, found > 0, average="micro"),
        "auc": known.roc_auc_score(y, found),
    }.items():
        assert run.summary[f"test_{name}_last"] == pytest.approx(value), name
    assert run.summary["test_auc_last"] > 0.8


def test_metrics_and_confusion_of_classes_are_scikit_learns(tmp_path: Path):
    run = fs.train(classes(), "logreg", rounds=2, **{**QUIET, "folder": tmp_path / "run"})
    y, found = run.server.fed.test.y, outputs(run, run.server.fed.test.x)
    predicted = found.argmax(1)
    chances = np.exp(found) / np.exp(found).sum(1, keepdims=True)
    assert run.summary["test_macro_f1_last"] == pytest.approx(
        known.f1_score(y, predicted, average="macro")
    )
    auc = known.roc_auc_score(y, chances, multi_class="ovr")
    assert run.summary["test_auc_last"] == pytest.approx(auc)
    for name in ("macro_f1", "auc", "ece"):
        assert {f"validation_{name}_last", f"test_{name}_last"} <= run.summary.keys()
    expected = known.confusion_matrix(y, predicted, labels=range(10))
    assert run.confusion.to_numpy().tolist() == expected.tolist()
    assert list(run.confusion.columns) == list("0123456789")
    lines = (tmp_path / "run" / "confusion.csv").read_text().splitlines()
    assert lines[0] == "true/predicted,0,1,2,3,4,5,6,7,8,9"
    assert lines[3] == ",".join(map(str, [2, *expected[2]]))
    stored = fs.open_run(tmp_path / "run")
    assert stored.confusion.equals(run.confusion)
    assert "confusion.csv" in (tmp_path / "run" / "final.json").read_text()  # with its checksum


def test_two_classes_need_one_output():
    x, y = X, np.where(FLAGS[:, 0] == 1, "yes", "no")
    run = fs.train(fs.split((x, y), "iid", 3), "logreg", rounds=4, lr=0.5, task="binary", **QUIET)
    assert next(run.model.parameters()).shape == (1, 5)
    found = outputs(run, run.server.fed.test.x)[:, 0] > 0
    assert run.summary["test_accuracy_last"] == pytest.approx(
        (found == run.server.fed.test.y).mean()
    )
    assert (
        run.confusion.to_numpy().tolist()
        == known.confusion_matrix(run.server.fed.test.y, found).tolist()
    )
    assert run.summary["test_majority_rate"] >= 0.5


def test_rounds_have_the_usual_columns_and_those_asked_for():
    plain = fs.train(classes(), "logreg", rounds=2, **QUIET)
    more = fs.train(classes(), "logreg", rounds=2, metrics=("macro_f1", "accuracy", "auc"), **QUIET)
    usual = [name for name in plain.rounds.columns if name.startswith("test_")]
    assert usual == ["test_loss", "test_accuracy", "test_balanced_accuracy"]
    assert [name for name in more.rounds.columns if name.startswith("test_")] == [
        *usual,
        "test_macro_f1",
        "test_auc",
    ]
    assert (
        more.rounds["test_auc"].iloc[-1]
        == more.summary["test_auc_last"]
        == plain.summary["test_auc_last"]
    )
    assert plain.rounds[usual].equals(more.rounds[usual])
    with pytest.raises(FedskewError, match="unknown metric of task classification 'rmse'"):
        fs.train(classes(), "logreg", rounds=2, metrics=("rmse",), **QUIET)


@pytest.mark.filterwarnings("ignore:.*here it is fed")
def test_final_clients_have_all_metrics_on_their_own_rows():
    run = fs.train(classes(), "logreg", "fedbn", rounds=2, **QUIET)
    final = run.final_clients
    assert {"accuracy", "balanced_accuracy", "macro_f1", "auc", "ece"} <= set(final.columns)
    own = run.server.fed.partition.of(1)
    x, y = run.server.fed.train.x[own], run.server.fed.train.y[own]
    assert final["macro_f1"][1] == pytest.approx(
        known.f1_score(y, outputs(run, x).argmax(1), average="macro")
    )


def test_at_most_200_clients_have_all_metrics():
    fed = fs.split(fs.load("digits"), "iid", 401)
    final = fs.train(fed, "logreg", rounds=1, per_round=3, **QUIET).final_clients
    assert len(final) == 401
    assert final["accuracy"].notna().all()
    assert final["macro_f1"].notna().sum() == 134  # every third


# -- the summary ------------------------------------------------------------------------------------------------------


def test_a_low_headline_is_the_best_and_high_errors_are_the_worst_clients():
    rounds = [
        {"round": i, "test_mae": mae, "test_loss": 1.0, "clients": 1, "excluded": 0, "dropped": 0, "late": 0,
         "bytes_down": 1, "bytes_up": 1, "clock": 1.0}
        for i, mae in enumerate([5.0, 2.0, math.nan, 3.0], 1)
    ]  # fmt: skip
    final = [{"client": i, "loss": 1.0, "mae": float(i)} for i in range(20)]
    found = summarise(rounds, [], final, 20, False, fs.Regression())
    assert (found["test_mae_best"], found["test_mae_best_round"], found["test_mae_last"]) == (
        2.0,
        2,
        3.0,
    )
    assert found["client_mae_worst_10_percent"] == 18.5
    assert not [name for name in found if "accuracy" in name or "90_percent" in name]


def test_early_stopping_follows_the_headline():
    run = fs.train(numbers(), "logreg", rounds=60, lr=0.5, task=HUBER, stop_after=3, **QUIET)
    column = run.rounds["validation_mae"]
    assert len(run.rounds) < 60
    assert len(run.rounds) - 1 - column.argmin() == 3


def test_a_metric_without_rows_of_its_own_is_left_out_of_local_columns():
    run = fs.train(numbers(), "logreg", rounds=2, lr=0.01, task=own_task(), **QUIET)
    assert "local_loss" in run.rounds
    assert not [
        name
        for name in [*run.rounds, *run.clients]
        if name.startswith("local_") and name != "local_loss"
    ]
    assert list(run.final_clients.columns) == [
        "client",
        "rows",
        "test_rows",
        "loss",
        "worst",
        "bias",
    ]
    named = fs.train(
        numbers(),
        "logreg",
        rounds=2,
        lr=0.01,
        task=own_task(row_metric="root", row_score=far),
        **QUIET,
    )
    assert {"local_root"} <= set(named.rounds) & set(named.clients)
    np.testing.assert_allclose(named.rounds["local_root"], named.rounds["local_loss"], rtol=1e-5)


# -- a task of one's own, and resuming ---------------------------------------------------------------------------------


class StopError(Exception):
    pass


def stopped(fed: fs.Federation, folder: Path, **settings: Any) -> None:
    def stop(result: Any, rounds: int) -> None:
        if result.round["round"] == 2:
            raise StopError

    with pytest.raises(StopError):
        fs.train(fed, "mlp:hidden=6", rounds=4, lr=0.02, folder=folder, callbacks=[stop], checkpoint_every=1,
                 device="cpu", threads=1, **settings)  # fmt: skip


@pytest.mark.parametrize(("make", "task"), [(numbers, HUBER), (labels, "auto")])
def test_a_stopped_run_goes_on_to_the_bit(
    tmp_path: Path, make: Callable[[], fs.Federation], task: str
):
    whole = fs.train(
        make(),
        "mlp:hidden=6",
        rounds=4,
        lr=0.02,
        task=task,
        **{**QUIET, "folder": tmp_path / "whole"},
    )
    stopped(make(), tmp_path / "run", task=task)
    again = fs.resume(tmp_path / "run", fed=make())
    for file in ("rounds.csv", "clients.csv", "clients_final.csv", "model.safetensors"):
        assert (tmp_path / "run" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    assert {**again.summary, "seconds": 0} == {**whole.summary, "seconds": 0}


def test_a_run_on_numbers_resumes_from_its_folder_alone(tmp_path: Path):
    stopped(numbers(), tmp_path / "run", task=HUBER)
    config = read_file(tmp_path / "run" / "config.toml")
    assert config["task"] == {"name": "regression", "loss": "huber", "delta": 20.0}
    assert config["bins"] == 5
    assert fs.resume(tmp_path / "run").summary["rounds"] == 4


def test_a_task_of_ones_own_is_given_back_to_resume(tmp_path: Path):
    task = own_task()
    stopped(numbers(), tmp_path / "run", task=task)
    assert read_file(tmp_path / "run" / "config.toml")["task"] == "from-python"
    with pytest.raises(
        FedskewError, match=r"its task was a Python object.*fedskew.resume\(folder, task=...\)"
    ):
        fs.resume(tmp_path / "run")
    run = fs.resume(tmp_path / "run", task=task)
    whole = fs.train(numbers(), "mlp:hidden=6", rounds=4, lr=0.02, task=task, **QUIET)
    assert run.summary["test_worst_best"] == whole.summary["test_worst_best"]
    assert run.summary["task"] == "from-python"
    assert {
        "test_worst_last",
        "test_bias_last",
        "validation_worst_best_round",
    } <= run.summary.keys()


def test_a_built_in_task_from_python_is_in_the_configuration(tmp_path: Path):
    settings = {**QUIET, "folder": tmp_path / "a"}
    fs.train(numbers(), "logreg", rounds=1, lr=0.01, task=fs.Regression(loss="mae"), **settings)
    assert read_file(tmp_path / "a" / "config.toml")["task"] == {
        "name": "regression",
        "loss": "mae",
        "delta": 1.0,
    }
    run = fs.train(numbers(), "logreg", rounds=1, lr=0.001, task=fs.Regression, **QUIET)
    assert run.summary["task"] == "regression"


def test_an_older_configuration_has_no_task(tmp_path: Path):
    stopped(fs.split(fs.load("digits"), "iid", 4), tmp_path / "run")
    path = tmp_path / "run" / "config.toml"
    text = path.read_text().replace("metrics = []\n", "").replace('bins = "none"\n', "")
    before, _, after = text.partition("[task]\n")
    path.write_text(before + after[after.index("[") :])
    assert not {"task", "metrics", "bins"} & read_file(path).keys()
    assert fs.resume(tmp_path / "run", force=True).summary["task"] == "classification"


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", sorted(LOOK_AT_CLASSES))
@pytest.mark.parametrize("make", [numbers, labels])
def test_methods_that_look_at_classes_are_refused(
    make: Callable[[], fs.Federation], algorithm: str
):
    with pytest.raises(
        FedskewError, match=f"{algorithm} .* classes, and the targets of task .* use another method"
    ):
        fs.train(make(), "mlp", algorithm, rounds=1, **QUIET)


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (numbers, {"task": "classification"}, "learns classes, and the targets of diabetes are numbers"),
        (classes, {"task": "regression"}, "learns numbers, and the targets of digits are classes: use task=cl"),
        (classes, {"task": "binary"}, "task binary learns 2 classes, and these data have 10"),
        (classes, {"task": "classification:class_weights=1+2"}, "class_weights has 2 numbers for 10 classes"),
        (labels, {"task": "binary"}, "are several labels per row: use task=multilabel"),
        (numbers, {"task": "from-python"}, "stands for a Python object"),
        (numbers, {"task": "regresion"}, "did you mean 'regression'"),
        (numbers, {"task": own_task(outputs=2)}, "task Task"),
        (numbers, {"task": fs.Task(lambda out, y: out.mean(), {"m": lambda out, y: 0.0}, "number")}, "do not reduce"),
        (numbers, {"algorithm": "afl-cp"}, "selects clients by their classes, and the targets of task regression"),
        (numbers, {"algorithm": "fedavg + ccvr"}, "needs the features of classes"),
        (labels, {"algorithm": "stratify-batch"}, "schedules samples by their classes, and .* several labels per row"),
        (labels, {"algorithm": "stratify-single"}, "schedules samples by their classes"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(
    make: Callable[[], fs.Federation], settings: dict[str, Any], message: str
):
    with pytest.raises(FedskewError, match=message):
        fs.train(
            make(),
            "logreg",
            **{"algorithm": "fedavg", "rounds": 1, "lr": 0.01, **QUIET, **settings},
        )


def test_a_model_with_another_width_is_refused():
    with pytest.raises(
        FedskewError, match=r"expected a tensor of shape \(1, 1\): the outputs of task regression"
    ):
        fs.train(numbers(), torch.nn.Linear(10, 2), rounds=1, **QUIET)
    with pytest.raises(
        FedskewError, match=r"expected a tensor of shape \(1, 3\): one logit a class"
    ):
        fs.train(labels(), torch.nn.Linear(5, 2), rounds=1, **QUIET)


def test_a_model_function_is_told_how_many_outputs():
    asked = []

    def make(shape: tuple[int, ...], outputs: int) -> torch.nn.Module:
        asked.append((shape, outputs))
        return torch.nn.Linear(*shape, outputs)

    fs.train(numbers(), make, rounds=1, lr=0.001, **QUIET)
    assert set(asked) == {((10,), 1)}


def test_the_default_is_what_it_was():
    assert (Settings().task, Settings().metrics) == ("auto", ())
