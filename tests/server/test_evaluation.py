"""Scores by hand: the global model, each client's rows, and clients' own models."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedskew.data.partition import Partition
from fedskew.server import evaluation as evaluate
from fedskew.server.evaluation import client_scores, row_scores, score
from fedskew.tasks.classification import Classification

TASK = Classification()
BATCH_NORM = "tabular:hidden=5"


def by_hand(training, tensors: dict, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the loss of every row and whether it is right, of the flat BatchNorm net above, in NumPy."""
    t = {name: value.detach().numpy() for name, value in tensors.items()}
    hidden = x.astype(np.float64) @ t["features.1.weight"].T
    spread = np.sqrt(t["features.2.running_var"] + 1e-5)
    hidden = (hidden - t["features.2.running_mean"]) / spread * t["features.2.weight"] + t["features.2.bias"]
    logits = np.maximum(hidden, 0) @ t["head.weight"].T + t["head.bias"]
    chance = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return -np.log(chance[np.arange(len(y)), y]), logits.argmax(1) == y


def test_rows_one_by_one(lab, monkeypatch):
    training = lab.run(2, None, "fedavg", BATCH_NORM)
    test = training.fed.test
    losses, right = by_hand(training, training.state(), test.x, test.y)
    x, y = torch.from_numpy(test.x).double(), torch.from_numpy(test.y)
    training.model.train()
    for values_per_batch in (1 << 20, 6 * 7):  # in one go, and seven rows at a time
        monkeypatch.setattr("fedskew.engine.inference._VALUES_PER_BATCH", values_per_batch)
        found = row_scores(training.model, training.state(), x, y, TASK)
        np.testing.assert_allclose(found[0], losses, atol=1e-12)
        assert found[1].tolist() == right.tolist()
    assert training.model.training
    some = score(training.model, training.state(), x, y, TASK, torch.tensor([3, 3, 0]))
    assert some["loss"] == pytest.approx(losses[[3, 3, 0]].mean(), abs=1e-12)
    assert some["accuracy"] == right[[3, 3, 0]].mean()


def test_each_client_on_its_own_rows(lab):
    training = lab.run(1, None, "fedavg", BATCH_NORM)
    train = training.fed.train
    losses, right = by_hand(training, training.state(), train.x, train.y)
    pieces = [np.array([4, 5]), np.array([], dtype=np.int64), np.array([0, 9, 9])]
    loss, accuracy = client_scores(training.model, training.state(), training.job.x, training.job.y, TASK, pieces)
    assert loss[[0, 2]].tolist() == pytest.approx([losses[p].mean() for p in (pieces[0], pieces[2])], abs=1e-12)
    assert accuracy[[0, 2]].tolist() == pytest.approx([right[p].mean() for p in (pieces[0], pieces[2])])
    assert np.isnan(loss[1])
    assert np.isnan(accuracy[1])
    nothing = client_scores(training.model, training.state(), training.job.x, training.job.y, TASK, pieces[1:2])
    assert np.isnan(nothing).all()


def test_the_table_of_rounds(lab):
    fed = lab.federation()
    fed = replace(fed, data=replace(fed.data, validation=lab.rows(11, (6,), 5)))
    training = lab.run(1, fed, "fedavg", BATCH_NORM)
    line, state = training.results[0].round, training.state()
    for part, rows in (("train", fed.train), ("test", fed.test), ("validation", fed.validation)):
        losses, right = by_hand(training, state, rows.x, rows.y)
        assert line[f"{part}_loss"] == pytest.approx(losses.mean(), abs=1e-12)
        assert line[f"{part}_accuracy"] == pytest.approx(right.mean())
    assert "own_test_accuracy" not in line
    assert "global_accuracy" not in training.results[0].clients[0]
    for client in training.results[0].clients:
        mine = fed.partition.of(client["client"])
        losses, right = by_hand(training, state, fed.train.x[mine], fed.train.y[mine])
        assert client["loss"] == pytest.approx(losses.mean(), abs=1e-12)
        assert client["accuracy"] == pytest.approx(right.mean())


@pytest.mark.parametrize(
    ("name", "norm"),
    [("fedavg", "local"), ("fedavg", "silo"), ("ditto", "local")]
    + [(name, "aggregate") for name in ("local", "fedbn", "mfedbn:eta=0.3", "fedper", "ditto")],
)
def test_own_models(lab, name: str, norm: str):
    fed = lab.federation()
    training = lab.run(2, fed, name, BATCH_NORM, norm=norm, per_round=3)
    line, clients = training.results[-1].round, training.results[-1].clients
    own = [by_hand(training, training.client_model(c["client"]), fed.test.x, fed.test.y) for c in clients]
    assert line["own_test_loss"] == pytest.approx(np.mean([losses.mean() for losses, _ in own]), abs=1e-12)
    assert line["own_test_accuracy"] == pytest.approx(np.mean([right.mean() for _, right in own]))
    for client in clients:
        mine = fed.partition.of(client["client"])
        losses, _ = by_hand(training, training.client_model(client["client"]), fed.train.x[mine], fed.train.y[mine])
        assert client["loss"] == pytest.approx(losses.mean(), abs=1e-12)
        if name == "local":  # nothing is shared
            assert "global_loss" not in client
            continue
        losses, right = by_hand(training, training.state(), fed.train.x[mine], fed.train.y[mine])
        assert client["global_loss"] == pytest.approx(losses.mean(), abs=1e-12) != client["loss"]
        assert client["global_accuracy"] == pytest.approx(right.mean())
    final = training.final_clients()
    assert [line["client"] for line in final] == [0, 1, 2, 3, 4]
    assert [line["rows"] for line in final] == list(lab.sizes)
    for line in final:  # also clients never selected, which have the initial model
        losses, right = by_hand(training, training.client_model(line["client"]), fed.test.x, fed.test.y)
        assert line["own_test_accuracy"] == pytest.approx(right.mean())
        mine = fed.partition.of(line["client"])
        if name == "local":
            assert "global_loss" not in line
            continue
        losses, right = by_hand(training, training.state(), fed.train.x[mine], fed.train.y[mine])
        assert line["global_loss"] == pytest.approx(losses.mean(), abs=1e-12)
        assert line["global_accuracy"] == pytest.approx(right.mean())


def test_the_global_model_takes_one_pass_over_the_rows_of_all_clients(lab, monkeypatch):
    passes = []
    monkeypatch.setattr(evaluate, "row_scores", lambda *args: passes.append(len(args[5])) or row_scores(*args))
    training = lab.training(None, "fedbn", BATCH_NORM)
    training.evaluator.on_own_rows(training.state(), training.client_model, np.arange(5), training.fed.partition)
    assert passes == [27, 9, 5, 4, 7, 2]


def test_held_out_rows_are_what_a_client_is_tested_on(lab):
    kept = [np.array([0, 1, 2]), np.array([5, 6])]
    fed = replace(
        lab.federation(rows=kept), held_out=Partition.from_lists([np.array([3, 4]), np.array([], dtype=np.int64)])
    )
    training = lab.run(1, fed, "fedavg", BATCH_NORM)
    losses, _ = by_hand(training, training.state(), fed.train.x[3:5], fed.train.y[3:5])
    for lines in (training.results[0].clients, training.final_clients()):
        assert lines[0]["loss"] == pytest.approx(losses.mean(), abs=1e-12)
        assert np.isnan(lines[1]["loss"])


def test_training_rows_are_a_fixed_sample(lab):
    fed = lab.federation()
    sampled, again, whole = (lab.run(2, fed, engine=None, eval_rows=rows) for rows in (10, 10, 27))
    losses = row_scores(sampled.model, sampled.state(), sampled.job.x, sampled.job.y, TASK)[0]
    assert whole.results[-1].round["train_loss"] == pytest.approx(losses.mean(), abs=1e-12)
    assert sampled.results[-1].round["train_loss"] != pytest.approx(losses.mean(), abs=1e-6)
    assert sampled.results[-1].round["train_loss"] == again.results[-1].round["train_loss"]


def test_evaluation_is_only_due_every_so_often_and_at_the_end(lab):
    training = lab.run(5, None, "fedavg", nn.Sequential(nn.Linear(6, 3)), rounds=5, eval_every=2)
    scored = [line.round["test_accuracy"] is not None for line in training.results]
    assert scored == [False, True, False, True, True]
    assert [line.clients[0]["loss"] is not None for line in training.results] == scored
    assert all(line.round["local_loss"] > 0 for line in training.results)
    assert all(line.round.keys() == training.results[0].round.keys() for line in training.results)
