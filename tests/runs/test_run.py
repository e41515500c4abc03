"""A run, just trained and opened again; its tables, column by column, against values computed independently."""

import csv
import json
import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedskew as fs
from fedskew.algorithms.contract import View
from fedskew.core.trees import Tree
from fedskew.data.dataset import Dataset, Rows

COUNTED = ["round", "clients", "excluded", "dropped", "late", "lr", "local_loss", "local_accuracy"]
METRICS = [
    "accuracy",
    "balanced_accuracy",
    "macro_f1",
    "auc",
    "average_precision",
    "ece",
]  # of the task, on a client's own rows at the end
COSTS = ["bytes_down", "bytes_up", "simulated_seconds", "clock"]
SENT = [
    "round",
    "client",
    "rows",
    "steps",
    "seconds",
    "training_seconds",
    "dropped",
    "late",
    "bytes_down",
    "bytes_up",
]
SENT += ["weight", "local_loss", "local_accuracy"]


def scores(*parts: str) -> list[str]:
    return [
        f"{part}_{name}" for part in parts for name in ("loss", "accuracy", "balanced_accuracy")
    ]


@pytest.fixture(scope="module")
def fed() -> fs.Federation:
    return fs.split(
        fs.load("digits", validation=0.2, seed=3),
        "dirichlet:alpha=0.3,min_size=3",
        clients=7,
        seed=3,
    )


@pytest.fixture(scope="module")
def run(fed: fs.Federation, tmp_path_factory: pytest.TempPathFactory) -> fs.Run:
    settings: dict[str, Any] = {
        "rounds": 5,
        "per_round": 4,
        "epochs": 2,
        "batch_size": 20,
        "lr": 0.05,
    }
    return fs.train(
        fed,
        "logreg",
        "fedavg",
        seed=3,
        folder=tmp_path_factory.mktemp("record") / "run",
        **settings,
    )


def table(run: fs.Run, name: str) -> list[dict[str, str]]:
    assert run.folder is not None
    with (run.folder / name).open(newline="") as file:
        return list(csv.DictReader(file))


def score(
    model: nn.Module, rows: fs.Dataset | Any, index: Any = slice(None)
) -> tuple[float, float]:
    with torch.no_grad():
        logits, y = model.cpu()(torch.from_numpy(rows.x[index])), torch.from_numpy(rows.y[index])
    return float(F.cross_entropy(logits.double(), y)), float(
        (logits.argmax(1) == y).double().mean()
    )


def test_columns_of_the_tables(run: fs.Run) -> None:
    assert list(table(run, "rounds.csv")[0]) == [
        *COUNTED,
        *scores("train", "validation", "test"),
        *COSTS,
    ]
    assert list(table(run, "clients.csv")[0]) == [*SENT, "loss", "accuracy"]
    assert list(table(run, "clients_final.csv")[0]) == [
        *("client", "rows", "loss", "accuracy", "majority_rate"),
        *METRICS[1:],
        "one_class_rate",
    ]
    assert list(table(run, "timing.csv")[0]) == ["round", "seconds"]


def test_csv_and_memory_agree_to_the_last_bit(run: fs.Run) -> None:
    for name, frame in (
        ("rounds.csv", run.rounds),
        ("clients.csv", run.clients),
        ("clients_final.csv", run.final_clients),
    ):
        lines = table(run, name)
        assert len(lines) == len(frame)
        for column in lines[0]:
            assert [float(line[column]) for line in lines] == frame[column].tolist()


def test_the_tables_are_tidy(run: fs.Run) -> None:
    assert list(run.rounds.columns)[-1] == "seconds"
    assert run.rounds["round"].tolist() == [1, 2, 3, 4, 5]
    assert (run.rounds["seconds"] > 0).all()
    assert run.clients.groupby("round").size().tolist() == [4] * 5
    assert not run.clients.duplicated(["round", "client"]).any()


def test_weights_are_shares_of_the_rows_and_sum_to_one(fed: fs.Federation, run: fs.Run) -> None:
    for _, chosen in run.clients.groupby("round"):
        assert chosen["rows"].tolist() == fed.partition.sizes[chosen["client"]].tolist()
        np.testing.assert_allclose(
            chosen["weight"], chosen["rows"] / chosen["rows"].sum(), rtol=1e-12
        )
        assert chosen["weight"].sum() == pytest.approx(1)


def test_steps_are_two_epochs_of_batches_of_twenty(run: fs.Run) -> None:
    assert run.clients["steps"].tolist() == [
        2 * math.ceil(rows / 20) for rows in run.clients["rows"]
    ]


def test_local_loss_of_a_round_is_the_weighted_mean_of_its_clients(run: fs.Run) -> None:
    for number, chosen in run.clients.groupby("round"):
        line = run.rounds.set_index("round").loc[number]
        for name in ("local_loss", "local_accuracy"):
            assert line[name] == pytest.approx((chosen["weight"] * chosen[name]).sum())


def test_scores_of_the_last_round_are_those_of_the_model(fed: fs.Federation, run: fs.Run) -> None:
    last = run.rounds.iloc[-1]
    assert fed.validation is not None
    for part, rows in (("train", fed.train), ("validation", fed.validation), ("test", fed.test)):
        loss, accuracy = score(run.model, rows)
        assert last[f"{part}_loss"] == pytest.approx(loss, rel=1e-5)
        assert last[f"{part}_accuracy"] == pytest.approx(accuracy)


def test_scores_of_clients_are_those_of_the_model_on_their_own_rows(
    fed: fs.Federation, run: fs.Run
) -> None:
    for lines in (run.final_clients, run.clients[run.clients["round"] == 5]):
        for line in lines.itertuples():
            loss, accuracy = score(run.model, fed.train, fed.partition.of(line.client))
            assert line.loss == pytest.approx(loss, rel=1e-4)
            assert line.accuracy == pytest.approx(accuracy)
    assert run.final_clients["client"].tolist() == list(range(7))


def test_bytes_are_weights_times_clients_both_ways(run: fs.Run) -> None:
    weights = 4 * (64 * 10 + 10)
    assert run.rounds["bytes_down"].tolist() == [4 * weights] * 5
    assert run.rounds["bytes_up"].tolist() == [4 * weights] * 5
    assert run.summary["bytes_down"] == run.summary["bytes_up"] == 5 * 4 * weights
    assert run.summary["parameters"] == 650


def test_simulated_seconds_are_those_of_the_slowest_client(run: fs.Run) -> None:
    sent = 8 * 2 * 4 * 650 / 20e6 + 2 * 0.05  # bits over 20 Mbit/s and two latencies
    for number, chosen in run.clients.groupby("round"):
        found = run.rounds.set_index("round").loc[number, "simulated_seconds"]
        assert found == pytest.approx(
            (sent + 2 * chosen["rows"] / 1000 + 0.002 * chosen["steps"]).max()
        )


def test_the_clock_adds_up(run: fs.Run) -> None:
    assert run.rounds["clock"].tolist() == pytest.approx(
        np.cumsum(run.rounds["simulated_seconds"]).tolist()
    )
    assert run.summary["simulated_seconds"] == run.rounds["clock"].iloc[-1]


def test_lost_clients_are_in_the_tables_and_count_for_nothing(
    fed: fs.Federation, tmp_path: Path
) -> None:
    fleet = "uniform:rows_per_second=50,dropout=0.6,deadline=3"
    run = fs.train(fed, "logreg", rounds=6, fleet=fleet, folder=tmp_path / "run", tensorboard=True)
    lost = run.clients[(run.clients["dropped"] + run.clients["late"]) > 0]
    assert (lost["weight"] == 0).all()
    assert lost["local_loss"].isna().all()
    assert lost["accuracy"].notna().all()  # of the global model, on their rows
    for number, sent in run.clients.groupby("round"):
        line = run.rounds.set_index("round").loc[number]
        assert (line["clients"], line["dropped"], line["late"]) == (
            7,
            sent["dropped"].sum(),
            sent["late"].sum(),
        )
        assert line["bytes_up"] == (7 - line["dropped"] - line["late"]) * 4 * 650
        assert line["bytes_down"] == 7 * 4 * 650
        assert line["simulated_seconds"] == pytest.approx(
            3 if line["late"] else sent["seconds"].max()
        )
        if line["dropped"] + line["late"] == 7:
            assert np.isnan(line["local_loss"])
        else:
            assert sent["weight"].sum() == pytest.approx(1)
    both = run.rounds["dropped"] + run.rounds["late"]
    # A round in which all clients dropped out, and one in which some did not
    assert both.max() == 7 > both.min()
    assert run.summary["dropped_updates"] == run.clients["dropped"].sum() > 0
    assert run.summary["late_updates"] == run.clients["late"].sum() > 0
    blank = {
        line["round"]
        for line in table(run, "rounds.csv")
        if line["local_loss"] == line["local_accuracy"] == ""
    }
    assert blank == {str(number) for number in run.rounds["round"][both == 7]}


def test_a_stale_answer_says_how_stale(fed: fs.Federation, tmp_path: Path) -> None:
    run = fs.train(fed, "logreg", "fedasync", rounds=8, per_round=3, folder=tmp_path / "run")
    assert list(table(run, "clients.csv")[0]) == [*SENT, "staleness", "loss", "accuracy"]
    assert run.rounds["clients"].tolist() == [1] * 8
    clock, began = run.rounds["clock"], run.rounds["clock"] - run.clients["seconds"]
    # Steps since it was sent
    missed = [int((clock[:number] > began[number] + 1e-9).sum()) for number in range(8)]
    assert run.clients["staleness"].tolist() == missed
    assert max(missed) >= 2


def test_summary_is_made_of_the_tables(run: fs.Run) -> None:
    summary, rounds = run.summary, run.rounds
    assert run.folder is not None
    assert json.loads((run.folder / "summary.json").read_text()) == summary
    for part in ("train", "validation", "test"):
        assert summary[f"{part}_accuracy_last"] == rounds[f"{part}_accuracy"].iloc[-1]
        assert summary[f"{part}_accuracy_best"] == rounds[f"{part}_accuracy"].max()
        assert summary[f"{part}_accuracy_best_round"] == rounds[f"{part}_accuracy"].idxmax() + 1
        assert summary[f"{part}_loss_last"] == rounds[f"{part}_loss"].iloc[-1]
    reached = rounds[rounds["test_accuracy"] >= 0.9 * rounds["test_accuracy"].iloc[-1]]
    assert summary["rounds_to_90_percent_of_last_test_accuracy"] == reached["round"].iloc[0]
    # One of seven clients
    assert summary["client_accuracy_worst_10_percent"] == run.final_clients["accuracy"].min()
    gathered = (
        run.clients.groupby("client")["weight"].sum().reindex(range(7), fill_value=0).to_numpy()
    )
    pairs = np.abs(gathered[:, None] - gathered).mean() / (2 * gathered.mean())
    assert summary["gini_of_client_weights"] == pytest.approx(pairs)
    assert summary["seconds"] == pytest.approx(rounds["seconds"].sum())
    assert (summary["data"], summary["skew"], summary["model"]) == (
        "digits",
        "dirichlet:alpha=0.3,min_size=3",
        "logreg",
    )
    assert (summary["algorithm"], summary["clients"], summary["clients_per_round"]) == (
        "fedavg",
        7,
        4,
    )


def test_without_validation_rows_there_are_no_such_columns(tmp_path: Path) -> None:
    fed = fs.split(fs.load("digits"), "iid", clients=3)
    run = fs.train(fed, "logreg", rounds=1, folder=tmp_path / "run")
    assert list(table(run, "rounds.csv")[0]) == [*COUNTED, *scores("train", "test"), *COSTS]


def test_rounds_without_evaluation_are_blank(fed: fs.Federation, tmp_path: Path) -> None:
    run = fs.train(fed, "logreg", rounds=5, eval_every=3, folder=tmp_path / "run")
    blank = {
        line["round"]
        for line in table(run, "rounds.csv")
        if line["test_accuracy"] == line["train_loss"] == ""
    }
    assert blank == {"1", "2", "4"}  # the last is never blank
    assert {
        line["round"]
        for line in table(run, "clients.csv")
        if line["accuracy"] == line["loss"] == ""
    } == blank
    assert all(line["local_loss"] for line in table(run, "rounds.csv"))
    assert run.rounds["test_accuracy"].isna().tolist() == [True, True, False, True, False]
    assert run.summary["test_accuracy_last"] == run.rounds["test_accuracy"].iloc[-1]


def test_training_scores_on_a_sample_of_the_rows(fed: fs.Federation) -> None:
    first = fs.train(fed, "logreg", rounds=2, folder=False, eval_rows=50)
    again = fs.train(fed, "logreg", rounds=2, folder=False, eval_rows=50)
    every = fs.train(fed, "logreg", rounds=2, folder=False, eval_rows=None)
    assert (
        first.rounds["train_loss"].tolist()
        == again.rounds["train_loss"].tolist()
        != every.rounds["train_loss"].tolist()
    )
    assert (first.rounds["train_accuracy"] * 50 % 1).tolist() == pytest.approx([0, 0])
    assert first.rounds["test_loss"].tolist() == every.rounds["test_loss"].tolist()
    assert every.rounds["train_accuracy"].iloc[-1] == pytest.approx(
        score(every.model, fed.train)[1]
    )


def test_own_models_with_local_batch_norm(fed: fs.Federation, tmp_path: Path) -> None:
    run = fs.train(fed, "tabular:hidden=8", rounds=3, norm="local", folder=tmp_path / "run")
    # The global model has initial statistics in its BatchNorm: a number for it would be that of a model nobody uses.
    assert list(table(run, "rounds.csv")[0]) == [*COUNTED, *scores("own_test"), *COSTS]
    assert list(table(run, "clients.csv")[0])[-2:] == ["loss", "accuracy"]
    assert list(table(run, "clients_final.csv")[0]) == [
        "client",
        "rows",
        "loss",
        "accuracy",
        "majority_rate",
        *METRICS[1:],
        "one_class_rate",
        "own_test_accuracy",
        "own_test_balanced_accuracy",
        "own_test_one_class_rate",
    ]
    # The layers are 64 x 8 without bias, BatchNorm (kept), 8 x 10 with bias: what is kept is not sent.
    assert (
        run.summary["bytes_up"] == run.summary["bytes_down"] == 3 * 7 * 4 * (64 * 8 + 8 * 10 + 10)
    )
    own = run.final_clients["own_test_accuracy"]
    assert (
        run.summary["own_test_accuracy_mean"]
        == pytest.approx(own.mean())
        == run.summary["own_test_accuracy_last"]
    )
    assert run.summary["shared_model"].startswith(
        "every client keeps a part of the model (features.2.bias, "
    )
    assert run.confusion is None
    assert run.own_confusion is not None
    state = run.server.client_model(2)
    run.model.load_state_dict(state)
    loss, _ = score(run.model, fed.train, fed.partition.of(2))
    assert run.final_clients.loc[2, "loss"] == pytest.approx(loss, rel=1e-4)
    assert run.final_clients.loc[2, "own_test_accuracy"] == pytest.approx(
        score(run.model, fed.test)[1]
    )


def test_own_models_beside_a_shared_one(fed: fs.Federation, tmp_path: Path) -> None:
    run = fs.train(fed, "tabular:hidden=8", "ditto", rounds=3, folder=tmp_path / "run")
    assert list(table(run, "rounds.csv")[0]) == [
        *COUNTED,
        *scores("train", "validation", "test", "own_test"),
        *COSTS,
    ]
    both = ["loss", "accuracy", "global_loss", "global_accuracy"]
    assert list(table(run, "clients.csv")[0])[-4:] == both
    assert list(table(run, "clients_final.csv")[0])[2:6] == both
    shared = [score(run.model, fed.train, fed.partition.of(client))[1] for client in range(7)]
    assert run.final_clients["global_accuracy"].tolist() == pytest.approx(shared)
    assert run.summary["client_accuracy_of_global_model_mean"] == pytest.approx(np.mean(shared))
    assert run.summary["shared_model"] == "whole"


def test_own_models_when_nothing_is_shared(fed: fs.Federation) -> None:
    run = fs.train(fed, "logreg", "local", rounds=3, folder=False)
    assert run.summary["bytes_up"] == run.summary["bytes_down"] == 0
    # The global model keeps its initial weights: a number for it would be that of an untrained network.
    assert not [name for name in run.rounds if name.startswith(("test_", "train_", "validation_"))]
    assert not [
        name
        for name in run.summary
        if name.startswith("test_accuracy_") and run.summary[name] is not None
    ]
    assert not [
        name for name in (*run.clients, *run.final_clients, *run.summary) if "global" in name
    ]
    assert run.summary["own_test_accuracy_last"] > 0.3
    assert run.summary["weights"] == "-"


def test_an_accuracy_of_the_majority_is_shown_for_what_it_is() -> None:
    """Check 89 % of one class: a model that always predicts it has an accuracy of .89 and learned nothing."""
    draw = np.random.default_rng(0)
    y = (np.arange(900) % 100 >= 89).astype(np.int64)
    x = draw.normal(size=(900, 3)).astype(np.float32)
    rows, test = Rows(x[:600], y[:600]), Rows(x[600:], y[600:])
    fed = fs.split(Dataset("mostly one", rows, test, ("most", "few")), "iid", clients=3)
    run = fs.train(fed, "logreg", rounds=20, lr=0.1, folder=False, threads=1)
    assert (
        run.summary["test_majority_rate"]
        == run.summary["train_majority_rate"]
        == pytest.approx(0.89)
    )
    assert run.summary["test_accuracy_last"] == pytest.approx(0.89, abs=0.01)
    assert run.summary["test_balanced_accuracy_last"] == pytest.approx(0.5, abs=0.02)
    with torch.no_grad():
        right = (run.model.cpu()(torch.from_numpy(test.x)).argmax(1).numpy() == test.y).astype(
            float
        )
    by_hand = (right[test.y == 0].mean() + right[test.y == 1].mean()) / 2
    assert run.rounds["test_balanced_accuracy"].iloc[-1] == pytest.approx(by_hand)


def test_everything_in_the_round_is_in_some_line(fed: fs.Federation) -> None:
    for method in (
        "fedavg",
        "fedpbs",
        "fedbs",
        "fedga",
        "scaffold:option=I",
        "fedbuff:buffer=2",
        "stratify-batch",
        "sfl",
    ):
        fleet = "mixed:slow=5,dropout=0.2,deadline=8"
        run = fs.train(fed, "logreg", method, rounds=3, per_round=4, fleet=fleet, folder=False)
        for name in ("bytes_down", "bytes_up"):
            assert run.clients.groupby("round")[name].sum().tolist() == run.rounds[name].tolist(), (
                method,
                name,
            )
        assert (run.rounds["simulated_seconds"] <= 8 + 1e-9).all() or method.startswith(
            "fedbuff"
        ), method


@pytest.mark.parametrize(
    ("setting", "told"), [("size", "size"), ("uniform", "uniform"), ("paper", "uniform")]
)
def test_one_setting_says_what_clients_count_by(
    fed: fs.Federation, setting: str, told: str
) -> None:
    run = fs.train(fed, "logreg", "scaffold", rounds=2, weights=setting, folder=False)
    assert run.summary["weights"] == told
    sizes = fed.partition.sizes
    due = sizes / sizes.sum() if told == "size" else np.full(7, 1 / 7)
    np.testing.assert_allclose(run.clients["weight"], np.tile(due, 2), rtol=1e-12)


def test_a_method_may_insist_on_its_weights(fed: fs.Federation) -> None:
    runs = [
        fs.train(fed, "logreg", spec, rounds=1, weights="size", folder=False)
        for spec in ("afl-cp", "fedavg:weights=uniform")
    ]
    assert [run.summary["weights"] for run in runs] == ["size x score", "uniform"]
    assert np.ptp(runs[1].clients["weight"]) < 1e-12


def test_held_out_rows_of_clients_are_what_they_are_scored_on(tmp_path: Path) -> None:
    fed = fs.split(fs.load("digits"), "iid", clients=4, client_test=0.25, seed=1)
    assert fed.held_out is not None
    run = fs.train(fed, "logreg", rounds=2, folder=False)
    for line in run.final_clients.itertuples():
        assert line.rows == fed.partition.sizes[line.client]
        assert line.accuracy == pytest.approx(
            score(run.model, fed.train, fed.held_out.of(line.client))[1]
        )
    assert run.summary["client_accuracy_rows"] == "held-out rows of each client"


@dataclass(frozen=True)
class Broken(fs.FedAvg):
    """Makes clients with more than so many rows send NaN."""

    most: int = 0

    def payload(self, view: View) -> Tree:
        bad = torch.where(view.numbers["size"] > self.most, torch.nan, 0.0)
        return {
            "delta": {name: value + bad for name, value in super().payload(view)["delta"].items()}
        }


def test_broken_updates_are_left_out_counted_and_reported(fed: fs.Federation) -> None:
    sizes = np.sort(fed.partition.sizes)
    run = fs.train(fed, "logreg", Broken(most=int(sizes[-3])), rounds=2, folder=False)
    assert run.rounds["excluded"].tolist() == [2, 2]
    assert run.summary["excluded_updates"] == 4
    for _, chosen in run.clients.groupby("round"):
        assert chosen.loc[chosen["weight"] == 0, "rows"].min() >= sizes[-2]
        assert chosen["weight"].sum() == pytest.approx(1)
    assert np.isfinite(run.rounds["test_loss"]).all()


def test_when_all_updates_are_broken_the_run_stops(fed: fs.Federation, tmp_path: Path) -> None:
    with pytest.raises(
        fs.FedskewError,
        match=r"round 1: all 7 clients sent NaN or infinite updates; lower lr \(now 0.1\)",
    ):
        fs.train(fed, "logreg", Broken(), rounds=2, folder=tmp_path / "run")
    assert not (tmp_path / "run" / "rounds.csv").exists()


def test_the_model_and_the_partition_come_back_and_several_runs_are_one_table(tmp_path: Path):
    fed = fs.split(fs.load("digits"), "dirichlet:alpha=0.5", clients=4, seed=1)
    runs = [
        fs.train(fed, "tabular:hidden=6", rounds=2, seed=seed, folder=tmp_path / f"s{seed}")
        for seed in (0, 1)
    ]
    found = fs.open_run(tmp_path / "s0")
    assert found.partition == fed.partition
    x = torch.from_numpy(fed.test.x[:5])
    with torch.no_grad():
        assert torch.equal(found.model(x), runs[0].model(x))
    table = fs.open_run([tmp_path / "s0", str(tmp_path / "s1")])
    assert table["seed"].tolist() == [0, 1]
    assert table["test_accuracy_last"].tolist() == [
        run.summary["test_accuracy_last"] for run in runs
    ]
    assert table["folder"].tolist() == [str(tmp_path / "s0"), str(tmp_path / "s1")]


def test_a_model_that_was_a_python_object_has_weights_only(tmp_path: Path):
    fed = fs.split(fs.load("digits"), "iid", clients=2)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    fs.train(fed, model, rounds=1, folder=tmp_path / "run")
    found = fs.open_run(tmp_path / "run")
    assert sorted(found.weights) == ["1.bias", "1.weight"]
    with pytest.raises(fs.FedskewError, match="cannot be built from the folder alone"):
        _ = found.model


PUBLIC = sorted(
    name
    for name in {*vars(fs.Run), *(field.name for field in fields(fs.Run))}
    if not name.startswith("_")
)


@pytest.fixture(scope="module", params=["fedavg", "fedper", "ditto"])
def ways(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[fs.Run]:
    """Return the same run just trained, opened from its folder, and just trained without a folder."""
    folder = tmp_path_factory.mktemp("ways") / "run"
    fed = fs.split(
        fs.load("digits", validation=0.2), "dirichlet:alpha=0.3", clients=5, client_test=0.2
    )
    # Some clients never take part: their own models are the initial one
    settings: dict[str, Any] = {"rounds": 2, "per_round": 2, "device": "cpu"}
    trained = fs.train(fed, "tabular:hidden=6", request.param, folder=folder, **settings)
    alone = fs.train(fed, "tabular:hidden=6", request.param, folder=False, **settings)
    return [trained, fs.open_run(folder), alone]


def answers(run: fs.Run, name: str) -> list[Any]:
    """Return what a member of a run says, as values; of a method what it returns for some arguments."""
    if name == "predict":
        rows = np.random.default_rng(0).normal(size=(9, 1, 8, 8)).astype(np.float32)
        return [run.predict(rows, client=client, proba=True) for client in range(5)]
    if name in ("model_of", "model_in_use"):
        models = [getattr(run, name)(client) for client in (0, "1", 2, "3", 4)]
        assert not any(model.training for model in models)
        return [model.state_dict() for model in models]
    if name == "model":
        assert not run.model.training
        return [run.model.state_dict()]
    return [getattr(run, name)]


def assert_same(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted)
    if isinstance(wanted, pd.DataFrame):
        pd.testing.assert_frame_equal(found, wanted)
    elif isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for key, value in wanted.items():
            assert_same(found[key], value)
    elif isinstance(wanted, torch.Tensor):
        assert torch.equal(found, wanted)
    else:
        assert found == wanted


@pytest.mark.parametrize("name", [name for name in PUBLIC if name != "server"])
def test_a_run_says_the_same_just_trained_and_opened_again(ways: list[fs.Run], name: str) -> None:
    trained, opened, _ = ways
    for found, wanted in zip(answers(opened, name), answers(trained, name), strict=True):
        assert_same(found, wanted)


# What is measured in seconds, or in a folder, is not the same twice
OF_ONE_RUN = ("server", "folder", "rounds", "summary", "tables")


@pytest.mark.parametrize("name", [name for name in PUBLIC if name not in OF_ONE_RUN])
def test_a_run_without_a_folder_says_it_too(ways: list[fs.Run], name: str) -> None:
    trained, _, alone = ways
    for found, wanted in zip(answers(alone, name), answers(trained, name), strict=True):
        assert_same(found, wanted)


def test_a_run_without_a_folder_differs_in_its_seconds_alone(ways: list[fs.Run]) -> None:
    trained, _, alone = ways
    assert alone.folder is None
    assert {**alone.summary, "seconds": 0} == {**trained.summary, "seconds": 0}
    assert_same(alone.rounds.drop(columns="seconds"), trained.rounds.drop(columns="seconds"))
    assert alone.tables["rounds"] == trained.tables["rounds"]
    assert alone.tables["final"] == trained.tables["final"]
    assert [row["round"] for row in alone.tables["timing"]] == [1, 2]


def test_only_a_run_that_was_trained_here_has_its_server(ways: list[fs.Run]) -> None:
    trained, opened, alone = ways
    assert trained.server.round == alone.server.round == 2
    with pytest.raises(fs.FedskewError, match=r"was opened, and has no server: fedskew\.resume"):
        _ = opened.server


def test_a_client_that_is_not_there(ways: list[fs.Run]) -> None:
    trained, opened, alone = ways
    for run in (trained, opened):
        with pytest.raises(fs.FedskewError, match=r"unknown client of .*run 'seven'"):
            run.model_of("seven")
    with pytest.raises(fs.FedskewError, match="unknown client '5'"):
        alone.model_of(5)


def test_of_many_clients_some_at_even_steps_are_in_the_table_of_classes(tmp_path: Path) -> None:
    fed = fs.split(fs.load("digits"), "iid", clients=300)
    fs.train(fed, "logreg", rounds=1, per_round=2, folder=tmp_path / "run")
    with (tmp_path / "run" / "client_classes.csv").open(newline="") as file:
        head, *lines = csv.reader(file)
    assert head == ["client/class", *map(str, range(10))]
    shown = [int(line[0]) for line in lines]
    assert len(shown) == 250
    assert (shown[0], shown[-1]) == (0, 299)
    assert set(np.diff(shown)) == {1, 2}
    counts = fed.partition.counts(fed.train.y, 10)
    assert [list(map(int, line[1:])) for line in lines] == counts[shown].tolist()
