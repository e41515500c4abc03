"""APFL against a calculation in NumPy, and its bounds: FedAvg at mixture 0, local training at mixture 1."""

import numpy as np
import pytest
import torch

from fedskew.core.errors import FedskewError
from fedskew.engine.loop import Loop
from fedskew.engine.plan import Plan
from fedskew.engine.stacked import Stacked

ENGINES = pytest.mark.parametrize(
    "engine", [Loop(), Stacked(mode="stack")], ids=["loop", "stacked"]
)
LR, BATCH, EPOCHS = 0.3, 4, 2


def batches(net, round: int, client: int) -> list[np.ndarray]:
    one = np.array([client])
    batch = np.minimum(BATCH, net.sizes[one])
    positions, counts = Plan(0, round, one, net.sizes[one], batch, np.array([EPOCHS])).table()
    return [net.held[client][positions[step, 0, :count]] for step, count in enumerate(counts[:, 0])]


def mix(alpha: float, v: dict, w: dict) -> dict:
    return {name: alpha * v[name] + (1 - alpha) * w[name] for name in w}


def gradient(net, w: dict, rows: np.ndarray) -> dict:
    return net.gradient(w, net.x[rows].astype(np.float64), net.y[rows])


@ENGINES
@pytest.mark.parametrize("adaptive", [True, False])
@pytest.mark.parametrize("per_round", [4, 2])
def test_by_hand(plain_net, engine, adaptive: bool, per_round: int):
    net = plain_net
    spec = f"apfl:mixture=0.4,adaptive={str(adaptive).lower()}"
    server = net.training(spec, engine, per_round=per_round)
    shared = net.start()
    own, alpha = [net.start() for _ in range(4)], np.full(4, 0.4)
    for round, result in enumerate(server.results):
        ended, size = [], []
        for client in [line["client"] for line in result.clients]:
            v, w = own[client], dict(shared)
            rows = batches(net, round, client)
            if adaptive:
                grads = gradient(net, mix(alpha[client], v, w), rows[0])
                slope = sum((grads[name] * (v[name] - w[name])).sum() for name in w)
                alpha[client] = np.clip(alpha[client] - LR * slope, 0, 1)
            for batch in rows:
                of_mixture = gradient(net, mix(alpha[client], v, w), batch)
                of_shared = gradient(net, w, batch)
                v = {name: v[name] - LR * alpha[client] * of_mixture[name] for name in v}
                w = {name: w[name] - LR * of_shared[name] for name in w}
            own[client] = v
            ended.append(w)
            size.append(net.sizes[client])
        share = np.array(size) / sum(size)
        shared = {
            name: sum(p * w[name] for p, w in zip(share, ended, strict=True)) for name in shared
        }
    for name, value in server.state.params.items():
        np.testing.assert_allclose(value.numpy(), shared[name], rtol=0, atol=1e-12)
    for client in range(4):
        wanted = mix(alpha[client], own[client], shared)
        for name, value in server.client_model(client).items():
            np.testing.assert_allclose(value.numpy(), wanted[name], rtol=0, atol=1e-12)
    assert (len(set(alpha)) > 1) == adaptive


@ENGINES
def test_mixture_0_is_fedavg_and_1_is_local(plain_net, engine):
    none, whole = (
        plain_net.training(f"apfl:mixture={mixture},adaptive=false", engine, per_round=3)
        for mixture in (0, 1)
    )
    fedavg, local = (plain_net.training(spec, engine, per_round=3) for spec in ("fedavg", "local"))
    for name, value in fedavg.state.model().items():
        for client in range(4):
            torch.testing.assert_close(none.client_model(client)[name], value, rtol=0, atol=1e-12)
            torch.testing.assert_close(
                whole.client_model(client)[name],
                local.client_model(client)[name],
                rtol=0,
                atol=1e-12,
            )
        for one in (none, whole):  # the shared model is FedAvg's, whatever clients use
            torch.testing.assert_close(one.state.model()[name], value, rtol=0, atol=1e-12)


@ENGINES
@pytest.mark.parametrize(
    "settings",
    [
        {"momentum": 0.9, "weight_decay": 0.01},
        {"optimizer": "adam", "lr": 0.01},
        {"clip_norm": 0.5},
    ],
)
def test_the_shared_model_is_fedavgs_with_any_optimiser(plain_net, engine, settings: dict):
    apfl, fedavg = (plain_net.training(spec, engine, **settings) for spec in ("apfl", "fedavg"))
    for name, value in fedavg.state.model().items():
        torch.testing.assert_close(apfl.state.model()[name], value, rtol=0, atol=1e-12)


def test_nothing_of_a_clients_own_is_sent(desk):
    _, results = desk.train("apfl")
    _, plain = desk.train("fedavg")
    for mine, theirs in zip(results, plain, strict=True):
        assert mine.round["bytes_up"] == theirs.round["bytes_up"]
        assert mine.round["simulated_seconds"] > theirs.round["simulated_seconds"]


def test_without_shared_weights_it_is_refused(norm_net, monkeypatch):
    from fedskew.algorithms.apfl import APFL

    monkeypatch.setattr(APFL, "local_names", lambda self, layout: layout.parameters)
    with pytest.raises(FedskewError, match="every weight stays with its client"):
        norm_net.training("apfl")
