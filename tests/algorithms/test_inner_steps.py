"""Per-FedAvg, pFedMe, FedALA and FedRoD against calculations in NumPy, their identities, and what they refuse."""

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
LR, BATCH, EPOCHS, CLASSES = 0.3, 4, 2, 3


def batches(net, round: int, client: int, purpose: str = "batches", epochs: int = EPOCHS):
    """Return the rows of every step of a client."""
    one = np.array([client])
    batch = np.minimum(BATCH, net.sizes[one])
    plan = Plan(0, round, one, net.sizes[one], batch, np.array([epochs]), purpose=purpose)
    positions, counts = plan.table()
    return [net.held[client][positions[step, 0, :count]] for step, count in enumerate(counts[:, 0])]


def gradient(net, w: dict, rows: np.ndarray) -> dict:
    return net.gradient(w, net.x[rows].astype(np.float64), net.y[rows])


def moved(w: dict, grads: dict, length: float) -> dict:
    return {name: w[name] + length * grads[name] for name in w}


def averaged(net, ended: dict[int, dict]) -> dict:
    """Return the mean of clients' weights by their rows."""
    total = sum(net.sizes[client] for client in ended)
    names = next(iter(ended.values()))
    return {
        name: sum(net.sizes[client] / total * w[name] for client, w in ended.items())
        for name in names
    }


def same(found: dict, wanted: dict, atol: float = 1e-12) -> None:
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        np.testing.assert_allclose(value.numpy(), wanted[name], rtol=0, atol=atol)


def members(result) -> list[int]:
    return [line["client"] for line in result.clients]


@ENGINES
@pytest.mark.parametrize("version", ["fo", "hf"])
def test_per_fedavg_by_hand(plain_net, engine, version: str):
    net, alpha, delta = plain_net, 0.2, 0.01
    spec = f"per-fedavg:inner_lr={alpha},version={version},delta={delta}"
    server = net.training(spec, engine, per_round=3)
    shared = net.start()
    for round, result in enumerate(server.results):
        ended = {}
        for client in members(result):
            w = shared
            second = batches(net, round, client, "second batch")
            for rows, others in zip(batches(net, round, client), second, strict=True):
                g = gradient(net, moved(w, gradient(net, w, rows), -alpha), others)
                direction = g
                if version == "hf":
                    above = gradient(net, moved(w, g, delta), rows)
                    below = gradient(net, moved(w, g, -delta), rows)
                    direction = {
                        name: g[name] - alpha * (above[name] - below[name]) / (2 * delta)
                        for name in g
                    }
                w = moved(w, direction, -LR)
            ended[client] = w
        shared = averaged(net, ended)
    same(server.state.params, shared)
    for client in range(4):
        rows = batches(net, net.rounds, client, "adapt", 1)[0]
        same(server.client_model(client), moved(shared, gradient(net, shared, rows), -alpha))


@ENGINES
def test_per_fedavg_without_an_inner_step_is_fedavg_on_full_batches(plain_net, engine):
    one, other = (
        plain_net.training(spec, engine, batch_size=64)
        for spec in ("per-fedavg:inner_lr=0", "fedavg")
    )
    same(one.state.params, {name: value.numpy() for name, value in other.state.params.items()})
    assert not one.personalised


@ENGINES
def test_pfedme_by_hand(plain_net, engine):
    net, lam, inner, beta = plain_net, 2.0, 0.1, 0.7
    spec = f"pfedme:lam={lam},inner_steps=3,inner_lr={inner},beta={beta}"
    server = net.training(spec, engine, per_round=3)

    def envelope(w: dict, steps: list[np.ndarray]) -> dict:
        own = w
        for rows in steps:
            grads = gradient(net, own, rows)
            own = {
                name: own[name] - inner * (grads[name] + lam * (own[name] - w[name])) for name in w
            }
        return own

    shared = net.start()
    for round, result in enumerate(server.results):
        ended = {}
        for client in members(result):
            w = shared
            for rows in batches(net, round, client):
                own = envelope(w, [rows] * 3)
                w = {name: w[name] - LR * lam * (w[name] - own[name]) for name in w}
            ended[client] = w
        mean = averaged(net, ended)
        shared = {name: (1 - beta) * shared[name] + beta * mean[name] for name in shared}
    same(server.state.params, shared)
    for client in range(4):
        rows = batches(net, net.rounds, client, "adapt", 3)[:3]
        same(server.client_model(client), envelope(shared, rows))


@ENGINES
@pytest.mark.parametrize(
    "settings", [{"weight_decay": 0.1}, {"momentum": 0.9}, {"clip_norm": 0.05}], ids=str
)
def test_the_steps_before_use_are_those_that_the_model_was_trained_for(
    plain_net, engine, settings: dict
):
    net = plain_net
    server = net.training("per-fedavg:inner_lr=0.2", engine, **settings)
    w = {name: value.numpy() for name, value in server.state.params.items()}
    rows = batches(net, net.rounds, 0, "adapt", 1)[0]
    same(server.client_model(0), moved(w, gradient(net, w, rows), -0.2))
    server = net.training("pfedme:lam=2,inner_steps=2,inner_lr=0.1", engine, **settings)
    w = {name: value.numpy() for name, value in server.state.params.items()}
    own = w
    for rows in batches(net, net.rounds, 0, "adapt", 2)[:2]:
        grads = gradient(net, own, rows)
        own = {name: own[name] - 0.1 * (grads[name] + 2 * (own[name] - w[name])) for name in w}
    same(server.client_model(0), own)


@ENGINES
def test_pfedme_with_one_inner_step_is_fedavg(plain_net, engine):
    one, other = (
        plain_net.training(spec, engine)
        for spec in ("pfedme:lam=4,inner_steps=1,inner_lr=0.25", "fedavg")
    )
    same(one.state.params, {name: value.numpy() for name, value in other.state.params.items()})


@ENGINES
@pytest.mark.parametrize("part", ["head", "all"])
def test_fedala_by_hand(plain_net, engine, part: str):
    net, rate = plain_net, 0.8
    server = net.training(f"fedala:ala_steps=2,ala_lr={rate},part={part}", engine, per_round=3)
    shared = net.start()
    names = [name for name in shared if part == "all" or name.startswith("head")]
    own: dict[int, dict] = {}
    share = {client: {name: np.ones_like(shared[name]) for name in names} for client in range(4)}

    def mixed(client: int) -> dict:
        if client not in own:
            return shared
        taken = {
            name: own[client][name] + (shared[name] - own[client][name]) * share[client][name]
            for name in names
        }
        return {**shared, **taken}

    for round, result in enumerate(server.results):
        ended = {}
        for client in members(result):
            rows = batches(net, round, client)
            for _ in range(2 * (client in own)):
                grads = gradient(net, mixed(client), rows[0])
                for name in names:
                    slope = (shared[name] - own[client][name]) * grads[name]
                    share[client][name] = np.clip(share[client][name] - rate * slope, 0, 1)
            w = mixed(client)
            for some in rows:
                w = moved(w, gradient(net, w, some), -LR)
            ended[client] = w
        own |= ended
        shared = averaged(net, ended)
    same(server.state.params, shared)
    assert min(value.min() for value in share[0].values()) < 1
    for client in range(4):
        same(server.client_model(client), mixed(client))


@ENGINES
def test_fedala_without_steps_is_fedavg(plain_net, engine):
    one, other = (
        plain_net.training(spec, engine, per_round=3)
        for spec in ("fedala:ala_steps=0,part=all", "fedavg")
    )
    shared = {name: value.numpy() for name, value in other.state.params.items()}
    same(one.state.params, shared)
    for client in range(4):
        same(one.client_model(client), shared)


@ENGINES
def test_fedrod_by_hand(plain_net, engine):
    net = plain_net
    server = net.training("fedrod", engine, per_round=3)
    shared = net.start()
    head = ("head.weight", "head.bias")
    own = [{name: np.zeros_like(shared[name]) for name in head} for _ in range(4)]
    for round, result in enumerate(server.results):
        ended = {}
        for client in members(result):
            w, p = shared, own[client]
            counts = np.bincount(net.y[net.held[client]], minlength=CLASSES)
            prior = np.log(np.maximum(counts, 1e-8))
            for rows in batches(net, round, client):
                x, y = net.x[rows].astype(np.float64), net.y[rows]
                z, _, _ = net.represent(w, x)
                logits = z @ w["head.weight"].T + w["head.bias"] + z @ p["head.weight"].T
                logits = logits + p["head.bias"]
                chance = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
                d = (chance - np.eye(CLASSES)[y]) / len(y)
                balanced = {**w, "head.bias": w["head.bias"] + prior}
                w = moved(w, net.gradient(balanced, x, y), -LR)
                p = moved(p, {"head.weight": d.T @ z, "head.bias": d.sum(0)}, -LR)
            ended[client], own[client] = w, p
        shared = averaged(net, ended)
    same(server.state.params, shared)
    for client in range(4):
        summed = {name: shared[name] + own[client][name] for name in head}
        same(server.client_model(client), {**shared, **summed})


class Bare(torch.nn.Module):
    """A model without a head."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(5, 3))

    def forward(self, x):
        return x @ self.w


class Scaled(torch.nn.Module):
    """A model that does not end in its head."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(5, 3)

    def forward(self, x):
        return 2 * self.head(x)


@pytest.mark.parametrize(
    ("spec", "model", "settings", "says"),
    [
        ("fedala", Bare(), {}, "they send none of these"),
        ("fedrod", Bare(), {}, "head"),
        ("fedrod", Scaled(), {}, "must end in a linear head"),
        ("per-fedavg", "logreg", {"optimizer": "adam"}, "defined for local SGD"),
        ("pfedme + finetune", "logreg", {}, "leave finetune out"),
        ("fedbabu", "logreg", {}, "trains the layers before the head"),
        ("fedproto", "logreg", {}, "these are the rows themselves"),
    ],
)
def test_refused(desk, spec: str, model, settings: dict, says: str):
    with pytest.raises(FedskewError, match=says):
        desk.training(spec, model=model, **settings)
