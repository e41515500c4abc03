"""Clients that take no part in training: who they are, and their scores by every way to a model."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fedskew as fs
from fedskew.core.config import Experiment
from fedskew.core.errors import FedskewError
from fedskew.data.partition import Partition
from fedskew.runs import folder as on_disk
from fedskew.skew.federate import federate


@pytest.fixture(scope="module")
def digits() -> fs.Dataset:
    return fs.load("digits")


@pytest.fixture(scope="module")
def fed(digits: fs.Dataset) -> fs.Federation:
    return fs.split(digits, "dirichlet:alpha=0.3", 8, client_test=0.25, unseen=0.25)


def train(fed: fs.Federation, method: object = "fedavg", **settings: object) -> fs.Run:
    usual = {"rounds": 3, "lr": 0.1, "folder": False, "eval_every": 3, "device": "cpu"}
    return fs.train(fed, "mlp:hidden=8", method, **{**usual, **settings})


def accuracy(model: torch.nn.Module, fed: fs.Federation, client: int) -> float:
    rows = fed.held_out.of(client)
    with torch.no_grad():
        guessed = model(torch.from_numpy(fed.train.x[rows])).argmax(1).numpy()
    return float((guessed == fed.train.y[rows]).mean())


def test_every_client_is_on_one_side_with_the_rows_it_had(
    digits: fs.Dataset, fed: fs.Federation
) -> None:
    whole = fs.split(digits, "dirichlet:alpha=0.3", 8, client_test=0.25)
    assert fed.unseen is not None
    assert (fed.clients, fed.unseen.clients) == (6, 2)
    there = []
    for side in (fed, fed.unseen):
        for client in range(side.clients):
            there.append((side.partition.of(client).tolist(), side.held_out.of(client).tolist()))
    expected = []
    for client in range(8):
        expected.append((whole.partition.of(client).tolist(), whole.held_out.of(client).tolist()))
    assert sorted(there) == sorted(expected)
    assert fed.fingerprint != whole.fingerprint


def test_training_is_that_of_the_others_alone(fed: fs.Federation) -> None:
    with_newcomers = train(fed)
    alone = train(replace(fed, unseen=None))
    for name, value in alone.weights.items():
        assert torch.equal(with_newcomers.weights[name], value)
    assert "unseen_clients" not in alone.summary
    assert alone.unseen_clients.empty


def test_the_shared_model_is_scored_on_their_held_out_rows(fed: fs.Federation) -> None:
    run = train(fed)
    found = run.unseen_clients
    expected = [accuracy(run.model, fed.unseen, client) for client in range(2)]
    np.testing.assert_allclose(found["shared_accuracy"], expected)
    assert run.summary["unseen_shared_accuracy_mean"] == pytest.approx(np.mean(expected))
    assert found["test_rows"].tolist() == fed.unseen.held_out.sizes.tolist()
    assert "method_accuracy" not in found, "FedAvg gives newcomers no more than the shared model"


def test_fine_tuning_is_that_of_the_addition(fed: fs.Federation) -> None:
    found = train(fed, "fedavg + finetune").unseen_clients
    assert found["tuned_accuracy"].tolist() == found["method_accuracy"].tolist()
    steps = train(fed, "fedavg + finetune:tune_epochs=0").unseen_clients
    assert "method_accuracy" not in steps


def test_a_newcomer_chooses_the_model_with_the_least_loss_on_its_rows(fed: fs.Federation) -> None:
    run = train(fed, "ifca:models=3", rounds=4)
    state = run.server.state
    models = [dict(state.params)]
    for i in range(2):
        models.append({name: value[i] for name, value in state.server_state["candidates"].items()})
    for client, found in enumerate(run.unseen_clients["method_accuracy"]):
        rows = fed.unseen.partition.of(client)
        x, y = (torch.from_numpy(value[rows]) for value in (fed.train.x, fed.train.y))
        losses = []
        for model in models:
            run.model.load_state_dict(model)
            with torch.no_grad():
                losses.append(float(torch.nn.functional.cross_entropy(run.model(x), y)))
        run.model.load_state_dict(models[int(np.argmin(losses))])
        assert found == pytest.approx(accuracy(run.model, fed.unseen, client))
    assert "shared_accuracy" not in run.unseen_clients


@pytest.mark.parametrize(
    ("method", "ways"),
    [
        ("fedper", {"tuned"}),
        ("d-psgd", {"tuned"}),
        ("fedpac", {"tuned"}),
        ("fedbabu", {"shared", "tuned", "method"}),
        ("per-fedavg", {"shared", "tuned", "method"}),
    ],
)
def test_ways_to_a_model(fed: fs.Federation, method: str, ways: set[str]) -> None:
    found = train(fed, method).unseen_clients
    have = {name.partition("_")[0] for name in found if name.endswith("_accuracy")}
    have -= {"balanced"}
    assert {way for way in have if way in ("shared", "tuned", "method")} == ways


def test_a_run_is_made_again_by_its_settings_and_resumes(
    fed: fs.Federation, tmp_path: Path
) -> None:
    again = federate(
        Experiment(skew="dirichlet:alpha=0.3", clients=8, client_test=0.25, unseen=0.25)
    )
    assert fed.recipe["unseen"] == 0.25
    assert again.fingerprint == fed.fingerprint
    assert again.unseen.partition == fed.unseen.partition
    whole = train(fed, folder=tmp_path / "whole")
    opened = fs.open_run(tmp_path / "whole")
    assert opened.unseen_clients.equals(whole.unseen_clients)
    resumed = fs.resume(tmp_path / "whole")
    assert resumed.unseen_clients.equals(whole.unseen_clients)
    assert (tmp_path / "whole" / on_disk.UNSEEN_CLIENTS).is_file()


def test_the_command_says_their_scores(tmp_path: Path) -> None:
    words = "run --rounds 1 --clients 6 --client-test 0.2 --unseen 0.3 --folder"
    done = subprocess.run(
        [sys.executable, "-m", "fedskew", *words.split(), str(tmp_path / "run")],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "300"},
        check=True,
    )
    assert "unseen tuned" in done.stdout


@pytest.mark.parametrize("addition", ["krum", "attack:share=1,kind=backdoor", "topk", "dp"])
def test_additions_for_training_do_not_reach_newcomers(digits: fs.Dataset, addition: str) -> None:
    fed = fs.split(digits, "iid", 8, client_test=0.25, unseen=0.1)
    assert fed.unseen is not None
    assert fed.unseen.clients == 1  # krum needs 5
    found = train(fed, f"fedavg + {addition} + finetune", rounds=1).unseen_clients
    assert found["method_accuracy"].tolist() == found["tuned_accuracy"].tolist()


def test_one_newcomer_is_enough_for_several_models(digits: fs.Dataset) -> None:
    fed = fs.split(digits, "iid", 8, client_test=0.25, unseen=0.1)
    found = train(fed, "ifca:models=3,start=updates", rounds=2).unseen_clients
    assert found["method_accuracy"].notna().all()


def test_a_newcomer_with_too_few_rows_is_refused_before_training(
    fed: fs.Federation, tmp_path: Path
) -> None:
    assert fed.unseen is not None
    held = [fed.unseen.partition.of(0), fed.unseen.partition.of(1)[:1]]
    unseen = replace(fed.unseen, partition=Partition.from_lists(held))
    with pytest.raises(FedskewError, match="client 1 has 1 row, BatchNorm needs 2"):
        fs.train(replace(fed, unseen=unseen), "tabular:hidden=4", rounds=1, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_scored_is_refused(digits: fs.Dataset) -> None:
    with pytest.raises(FedskewError, match="on rows they hold out: add client_test"):
        fs.split(digits, "iid", 4, unseen=0.25)
    with pytest.raises(FedskewError, match="leaves none of 1 clients"):
        fs.split(digits, "iid", 1, client_test=0.2, unseen=0.5)
    with pytest.raises(FedskewError, match="unseen=1 is out of range"):
        fs.split(digits, "iid", 4, client_test=0.2, unseen=1)
