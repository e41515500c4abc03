"""MOON against a calculation in NumPy with an explicit gradient of the contrast, its identities and special cases."""

import numpy as np
import pytest
import torch
from torch import nn

from fedskew.algorithms.contract import Algorithm
from fedskew.algorithms.moon import Moon
from fedskew.core.config import Settings
from fedskew.core.errors import FedskewError
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked
from fedskew.server.server import Server

ENGINES = pytest.mark.parametrize(
    "engine", [Loop(), Stacked(mode="stack")], ids=["loop", "stacked"]
)
NETS = pytest.mark.parametrize("name", ["plain_net", "norm_net"])
MU, TAU = 2.0, 0.3


def contrast(z: np.ndarray, near: np.ndarray, far: np.ndarray) -> float:
    """Return the mean of eq. 2 over the rows, as it is printed."""
    total = 0.0
    for mine, one, other in zip(z, near, far, strict=True):
        a, b = (
            np.exp(mine @ v / np.linalg.norm(mine) / np.linalg.norm(v) / TAU) for v in (one, other)
        )
        total -= np.log(a / (a + b))
    return total / len(z)


def slope(z: np.ndarray, near: np.ndarray, far: np.ndarray) -> np.ndarray:
    """Return the gradient of the contrast in ``z``."""
    found = np.zeros_like(z)
    for i, mine in enumerate(z):
        size = np.linalg.norm(mine)
        cosine, turn = {}, {}
        for key, v in (("near", near[i]), ("far", far[i])):
            unit = v / np.linalg.norm(v)
            cosine[key] = mine @ unit / size
            turn[key] = (unit - cosine[key] * mine / size) / size
        chance_of_far = 1 / (1 + np.exp((cosine["near"] - cosine["far"]) / TAU))
        found[i] = chance_of_far * (turn["far"] - turn["near"]) / TAU / len(z)
    return found


def by_hand(net, mu: float) -> tuple[dict, list[dict]]:
    """Return the final weights, and those of each client at the end of its last round; BatchNorm is not kept."""
    w = net.start()
    previous = [w] * len(net.sizes)
    for round in range(net.rounds):
        ended = []
        for client, last in enumerate(previous):
            begin = w

            def push(
                z: np.ndarray, x: np.ndarray, begin: dict = begin, last: dict = last
            ) -> np.ndarray:
                return mu * slope(z, net.represent(begin, x)[0], net.represent(last, x)[0])

            ended.append(net.descend(w, round, client, push))
        w = {name: net.mean(ended, name) for name in w}
        previous = ended
    return w, previous


def test_the_slope_written_out_is_that_of_the_contrast():
    draw = np.random.default_rng(0)
    z, near, far = draw.normal(size=(3, 5, 4))
    found = slope(z, near, far)
    for i, j in np.ndindex(z.shape):
        step = np.zeros_like(z)
        step[i, j] = 1e-6
        numeric = (contrast(z + step, near, far) - contrast(z - step, near, far)) / 2e-6
        assert found[i, j] == pytest.approx(numeric, abs=1e-8)


@ENGINES
@NETS
def test_by_hand(request, engine, name: str):
    net = request.getfixturevalue(name)
    training = net.training(Moon(mu=MU, tau=TAU), engine)
    (weights, previous), (plain, _) = by_hand(net, MU), by_hand(net, 0.0)
    assert np.abs(weights["features.0.weight"] - plain["features.0.weight"]).max() > 0.01
    for key, value in training.state.params.items():
        np.testing.assert_allclose(value.numpy(), weights[key], rtol=0, atol=1e-10)
    for client, last in enumerate(previous):
        remembered = training.clients.store.get(np.array([client]))["state.previous"]
        assert remembered.keys() == training.state.params.keys()
        for key, value in remembered.items():
            np.testing.assert_allclose(value[0].numpy(), last[key], rtol=0, atol=1e-10)


def test_the_number_is_the_papers():
    draw = np.random.default_rng(1)
    z, near, far = draw.normal(size=(3, 5, 4))
    found = Moon(tau=TAU).contrast(*map(torch.from_numpy, (z, near, far))).mean()
    assert float(found) == pytest.approx(contrast(z, near, far), abs=1e-14)
    cold = Moon(tau=0.01).contrast(
        torch.eye(2)[:1].double(), torch.eye(2)[1:].double(), torch.eye(2)[:1].double()
    )
    assert float(cold) == 100.0  # e^-100 away from it


@ENGINES
@NETS
def test_mu_0_is_fedavg(request, engine, name: str):
    net = request.getfixturevalue(name)
    left, right = (
        net.training(spec, engine, momentum=0.9, per_round=3) for spec in ("moon:mu=0", "fedavg")
    )
    for key, value in left.state.model().items():
        torch.testing.assert_close(value, right.state.model()[key], rtol=0, atol=1e-12)
    for mine, theirs in zip(left.results, right.results, strict=True):
        timed = ("simulated_seconds", "clock")  # it looks at every row with two other models
        assert {k: v for k, v in mine.round.items() if k not in timed} == pytest.approx(
            {k: v for k, v in theirs.round.items() if k not in timed}, abs=1e-12
        )
        assert mine.round["simulated_seconds"] > theirs.round["simulated_seconds"]


@ENGINES
def test_the_first_step_of_all_is_fedavgs_batch_norm_included(norm_net, engine):
    """Check that the slope is zero then: all three representations are equal if all use the batch's statistics."""
    usual = {"rounds": 1, "epochs": 1, "batch_size": 16}
    left, right = (norm_net.training(spec, engine, **usual) for spec in ("moon:mu=10", "fedavg"))
    # Running statistics too: looking at other weights does not move them
    for key, value in left.state.model().items():
        torch.testing.assert_close(value, right.state.model()[key], rtol=0, atol=1e-12)


@ENGINES
def test_the_recorded_loss_is_the_plain_one(plain_net, engine):
    plain, moon = (
        plain_net.training(spec, engine, rounds=1, epochs=1, batch_size=16)
        for spec in ("fedavg", "moon:mu=10")
    )
    for mine, theirs in zip(moon.results[0].clients, plain.results[0].clients, strict=True):
        assert mine["local_loss"] == pytest.approx(theirs["local_loss"], abs=1e-12)


@ENGINES
def test_a_model_without_hidden_layers_learns_nothing_from_it(desk, engine):
    left, right = (desk.train(spec, engine)[0] for spec in ("moon:mu=5", "fedavg"))
    np.testing.assert_allclose(left, right, rtol=0, atol=1e-12)


@ENGINES
def test_clients_that_keep_batch_norm_remember_the_rest(norm_net, engine):
    training = norm_net.training("moon", engine, norm="local")
    shared = {"features.0.weight", "features.0.bias", "head.weight", "head.bias"}
    assert training.clients.store.get(np.array([0]))["state.previous"].keys() == shared


def test_a_row_whose_features_are_all_zero_does_no_harm(plain_net):
    def dead(shape: tuple[int, ...], classes: int) -> nn.Module:
        layer = nn.Linear(shape[0], 4)
        nn.init.constant_(layer.bias, -100.0)
        return nn.Sequential(layer, nn.ReLU(), nn.Linear(4, classes))

    for engine in (Loop(), Stacked(mode="stack")):
        fed = plain_net.training("fedavg", rounds=1).fed
        settings = Settings(rounds=2, batch_size=4, dtype="float64", device="cpu", threads=1)
        training = Server(fed, dead((5,), 3), Moon(mu=5.0), settings, engine)
        for _ in range(2):
            assert training.advance().round["excluded"] == 0
        assert all(value.isfinite().all() for value in training.state.params.values())


def test_a_model_without_a_head_is_refused_before_training(plain_net):
    class Headless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, :3] * self.scale

    def begin(algorithm: Algorithm) -> Server:
        fed = plain_net.training("fedavg", rounds=1).fed
        return Server(fed, Headless(), algorithm, Settings(device="cpu", threads=1))

    begin(Algorithm())
    with pytest.raises(
        FedskewError,
        match=r"Headless has no attribute 'head' and no nn\.Linear: name its last layer 'head'",
    ):
        begin(Moon())
