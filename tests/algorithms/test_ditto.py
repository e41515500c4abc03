"""Ditto against a calculation in NumPy: the global model is FedAvg's, own models lie between it and ``local``'s."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import fedskew as fs
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked

ENGINES = pytest.mark.parametrize(
    "engine", [Loop(), Stacked(mode="stack")], ids=["loop", "stacked"]
)
NETS = pytest.mark.parametrize("name", ["plain_net", "norm_net"])
LAM = 0.6


@ENGINES
@pytest.mark.parametrize(
    ("name", "norm", "kept"),
    [
        ("plain_net", "aggregate", ()),
        ("norm_net", "aggregate", ()),
        ("norm_net", "local", ("features.1.weight", "features.1.bias")),
    ],
)
def test_by_hand(request, engine, name: str, norm: str, kept: tuple[str, ...]):
    net = request.getfixturevalue(name)
    training = net.training(f"ditto:lam={LAM}", engine, norm=norm)
    start = net.start()
    shared, of_global, own = start, [start] * 4, [start] * 4
    for round in range(net.rounds):
        anchor = {
            key: value
            for key, value in shared.items()
            if key in training.state.params and key not in kept
        }
        own = [
            net.descend(own[client], round, client, anchor=anchor, lam=LAM) for client in range(4)
        ]
        ended = [net.descend({**shared, **of_global[client]}, round, client) for client in range(4)]
        shared = {
            key: value if key in kept else net.mean(ended, key) for key, value in shared.items()
        }
        of_global = [{key: w[key] for key in kept} for w in ended]
    for key, value in training.state.params.items():
        np.testing.assert_allclose(value.numpy(), shared[key], rtol=0, atol=1e-10)
    for client, wanted in enumerate(own):
        found = training.client_model(client)
        assert found.keys() == wanted.keys()
        for key, value in found.items():  # running statistics too
            np.testing.assert_allclose(value.numpy(), wanted[key], rtol=0, atol=1e-10)


@ENGINES
@NETS
@pytest.mark.parametrize(
    "optimizer", [{"momentum": 0.9, "weight_decay": 0.01}, {"optimizer": "adam", "lr": 0.01}]
)
def test_lam_0_is_local(request, engine, name: str, optimizer: dict):
    net = request.getfixturevalue(name)
    ditto, local = (
        net.training(spec, engine, per_round=3, **optimizer) for spec in ("ditto:lam=0", "local")
    )
    for client in range(4):
        for key, value in ditto.client_model(client).items():
            torch.testing.assert_close(value, local.client_model(client)[key], rtol=0, atol=1e-12)


@ENGINES
@NETS
@pytest.mark.parametrize("norm", ["aggregate", "local", "silo"])
def test_the_global_model_is_fedavgs(request, engine, name: str, norm: str):
    net = request.getfixturevalue(name)
    ditto, plain = (
        net.training(spec, engine, momentum=0.9, per_round=3, norm=norm)
        for spec in ("ditto", "fedavg")
    )
    for key, value in ditto.state.model().items():
        torch.testing.assert_close(value, plain.state.model()[key], rtol=0, atol=1e-12)
    for mine, theirs in zip(ditto.results, plain.results, strict=True):
        # Only then there is a shared model to score
        whole = norm == "aggregate" or name == "plain_net"
        assert ("test_loss" in mine.round) == ("test_loss" in theirs.round) == whole
        for column in ("bytes_up", "bytes_down", "local_loss", *(["test_loss"] if whole else [])):
            assert mine.round[column] == pytest.approx(theirs.round[column], abs=1e-12)
        assert (
            mine.round["simulated_seconds"] > theirs.round["simulated_seconds"]
        )  # two models are trained, one is sent


def test_a_strong_pull_holds_own_models_at_the_global_one(plain_net):
    far, near = (plain_net.training(f"ditto:lam={lam}") for lam in (0.01, 3))

    def apart(training) -> float:
        own = [training.client_model(client)["head.weight"] for client in range(4)]
        return max(
            float((value - training.state.params["head.weight"]).abs().max()) for value in own
        )

    assert apart(near) < 0.5 * apart(far)


@ENGINES
def test_a_client_whose_rows_are_broken_keeps_its_old_model(plain_net, engine):
    training = plain_net.training("ditto", engine, rounds=1)
    before = [training.client_model(client) for client in range(4)]
    x = training.job.x.clone()
    x[plain_net.held[1]] = torch.nan
    context = replace(training.rounds.context, job=replace(training.job, x=x))
    training.rounds.context = training.clients.context = context
    assert training.advance().round["excluded"] == 1
    for client in range(4):
        same = [
            torch.equal(value, before[client][key])
            for key, value in training.client_model(client).items()
        ]
        assert all(same) if client == 1 else not any(same)
        assert all(value.isfinite().all() for value in training.client_model(client).values())


def test_clients_of_one_row_or_one_class(plain_net, monkeypatch):
    monkeypatch.setattr(plain_net, "held", [np.arange(6), np.array([7]), np.arange(20, 24)])
    training = plain_net.training("ditto")
    for client in range(3):
        assert all(value.isfinite().all() for value in training.client_model(client).values())


class Crash(BaseException):
    """An exception that no code catches."""


@pytest.mark.parametrize("model", ["mlp:hidden=8", "tabular:hidden=8"])
def test_resumed_it_has_the_same_bits(model: str, tmp_path):
    fed = fs.split(fs.load("digits"), "dirichlet:alpha=0.5,min_size=4", clients=5, seed=1)
    settings = {"rounds": 4, "per_round": 3, "momentum": 0.9, "device": "cpu", "threads": 1}
    whole = fs.train(fed, model, "ditto:lam=0.5", folder=tmp_path / "whole", **settings)

    def crash(result, rounds: int) -> None:
        if result.round["round"] == 2:
            raise Crash

    with pytest.raises(Crash):
        fs.train(
            fed, model, "ditto:lam=0.5", folder=tmp_path / "killed", callbacks=crash, **settings
        )
    resumed = fs.resume(tmp_path / "killed")
    for client in range(5):
        for key, value in resumed.server.client_model(client).items():
            assert torch.equal(value, whole.server.client_model(client)[key])
    for name in ("rounds.csv", "clients.csv", "clients_final.csv", "model.safetensors"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert resumed.summary["own_test_accuracy_mean"] == whole.summary["own_test_accuracy_mean"]


def test_own_models_are_tested_beside_the_global_one():
    fed = fs.split(fs.load("digits"), "classes:k=2", clients=5, seed=1, client_test=0.2)
    run = fs.train(fed, "mlp:hidden=16", "ditto", rounds=5, folder=False, device="cpu", threads=1)
    # Two digits a client: its own model knows which two, the global one does not.
    assert run.summary["client_accuracy_mean"] > run.summary["client_accuracy_of_global_model_mean"]
    assert run.summary["test_accuracy_last"] > run.summary["own_test_accuracy_mean"]
