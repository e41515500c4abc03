"""FedProto against a calculation in NumPy: own models, prototypes by class, absent classes; and its bound, local."""

import numpy as np
import pytest
import torch

from fedskew.core.errors import FedskewError
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked

ENGINES = pytest.mark.parametrize(
    "engine", [Loop(), Stacked(mode="stack")], ids=["loop", "stacked"]
)
LAM, CLASSES, WIDTH = 0.7, 3, 4


@ENGINES
@pytest.mark.parametrize("weights", ["size", "uniform"])
@pytest.mark.parametrize("per_round", [4, 2])
def test_by_hand(plain_net, engine, weights: str, per_round: int):
    net = plain_net
    server = net.training(f"fedproto:lam={LAM}", engine, weights=weights, per_round=per_round)
    own = [net.start() for _ in range(4)]
    prototypes, known = np.zeros((CLASSES, WIDTH)), np.zeros(CLASSES)
    for round, result in enumerate(server.results):
        sums, counts = np.zeros((CLASSES, WIDTH)), np.zeros(CLASSES)
        for client in [line["client"] for line in result.clients]:

            def push(z, x, prototypes=prototypes, known=known):
                y = np.array([net.y[np.flatnonzero((net.x == row).all(1))[0]] for row in x])
                slope = 2 * (z - prototypes[y]) / WIDTH / len(x)
                return LAM * known[y][:, None] * slope

            own[client] = net.descend(own[client], round, client, push)
            rows = net.held[client]
            z, _, _ = net.represent(own[client], net.x[rows].astype(np.float64))
            count = 1.0 if weights == "size" else 1 / len(rows)
            for row, label in zip(z, net.y[rows], strict=True):
                sums[label] += count * row
                counts[label] += count
        prototypes, known = prototypes.copy(), known.copy()
        here = counts > 0
        prototypes[here] = sums[here] / counts[here, None]
        known[here] = 1
    found = server.state.server_state["prototypes"]
    np.testing.assert_allclose(found["mean"].numpy(), prototypes, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(found["known"].numpy(), known)
    for client in range(4):
        for name, value in server.client_model(client).items():
            np.testing.assert_allclose(value.numpy(), own[client][name], rtol=0, atol=1e-12)


@ENGINES
@pytest.mark.parametrize("name", ["plain_net", "norm_net"])
@pytest.mark.parametrize(
    "optimizer", [{"momentum": 0.9, "weight_decay": 0.01}, {"optimizer": "adam", "lr": 0.01}]
)
def test_lam_0_is_local(request, engine, name: str, optimizer: dict):
    net = request.getfixturevalue(name)
    proto, local = (
        net.training(spec, engine, per_round=3, **optimizer) for spec in ("fedproto:lam=0", "local")
    )
    for client in range(4):
        for key, value in proto.client_model(client).items():
            torch.testing.assert_close(value, local.client_model(client)[key], rtol=0, atol=1e-8)


@ENGINES
def test_a_class_that_nobody_has_has_no_prototype(plain_net, engine, monkeypatch):
    monkeypatch.setattr(plain_net, "y", np.minimum(plain_net.y, 1))
    server = plain_net.training("fedproto", engine)
    found = server.state.server_state["prototypes"]
    assert found["known"].tolist() == [1, 1, 0]
    assert found["mean"][2].tolist() == [0.0] * WIDTH
    assert all(value.isfinite().all() for value in server.client_model(0).values())


def test_what_is_sent_and_what_it_costs(plain_net):
    """Check the bytes, 3 x 4 means and 3 numbers both ways in double precision, and the pass over the rows."""
    proto = plain_net.training("fedproto").results[0]
    local = plain_net.training("local").results[0]
    assert [line["bytes_up"] for line in proto.clients] == [8 * (3 * 4 + 3)] * 4
    assert [line["bytes_down"] for line in proto.clients] == [8 * (3 * 4 + 3)] * 4
    assert proto.round["simulated_seconds"] > local.round["simulated_seconds"]
    assert "test_loss" not in proto.round  # no model is shared


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("fedproto + krum:attackers=0", "clients send nothing that could be combined"),
        ("fedproto + dp", "clients send nothing that could be combined"),
    ],
)
def test_refused(plain_net, spec: str, says: str):
    if "dp" in spec:
        pytest.importorskip("dp_accounting")
    with pytest.raises(FedskewError, match=says):
        plain_net.training(spec, per_round=3)


def test_with_compression_nothing_changes(plain_net):
    one = plain_net.training("fedproto + topk").state.server_state["prototypes"]
    other = plain_net.training("fedproto").state.server_state["prototypes"]
    assert torch.equal(one["mean"], other["mean"])
