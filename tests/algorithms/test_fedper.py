"""FedPer against a calculation in NumPy, and models for which it is not defined."""

import numpy as np
import pytest
import torch
from torch import nn

from fedskew.algorithms.fedper import FedPer
from fedskew.core.config import Settings
from fedskew.core.errors import FedskewError
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked
from fedskew.server.server import Server

ENGINES = pytest.mark.parametrize(
    "engine", [Loop(), Stacked(mode="stack")], ids=["loop", "stacked"]
)
HEAD = ("head.weight", "head.bias")


@ENGINES
@pytest.mark.parametrize("name", ["plain_net", "norm_net"])
def test_by_hand(request, engine, name: str):
    net = request.getfixturevalue(name)
    training = net.training("fedper", engine)
    shared, own = net.federate(kept=HEAD)
    for key, value in {**net.start(), **shared}.items():
        if key in training.state.params:  # the global model keeps the head it began with
            np.testing.assert_allclose(
                training.state.params[key].numpy(), value, rtol=0, atol=1e-10
            )
    for client, kept in enumerate(own):
        found = training.client_model(client)
        for key, value in {**shared, **kept}.items():
            np.testing.assert_allclose(found[key].numpy(), value, rtol=0, atol=1e-10)


def test_the_head_is_not_sent(plain_net):
    line = plain_net.training("fedper").results[-1].round
    # Four clients, float64, the hidden layer
    assert line["bytes_up"] == line["bytes_down"] == 4 * 8 * (5 * 4 + 4)


@ENGINES
def test_of_a_model_that_is_all_head_nothing_is_shared(desk, engine):
    assert np.array_equal(desk.train("fedper", engine)[0], desk.start())


@ENGINES
def test_with_one_client_it_is_fedavg_of_one(plain_net, engine, monkeypatch):
    monkeypatch.setattr(plain_net, "held", plain_net.held[:1])
    left, right = (plain_net.training(name, engine) for name in ("fedper", "fedavg"))
    for key, value in left.client_model(0).items():
        torch.testing.assert_close(value, right.state.model()[key], rtol=0, atol=1e-12)


def test_a_model_without_a_head_is_refused_before_training(plain_net):
    fed = plain_net.training("fedavg", rounds=1).fed
    headless = nn.Sequential(nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 3, 5), nn.Flatten())
    with pytest.raises(
        FedskewError,
        match="fedper keeps the head, but the model has none: name its last layer 'head'",
    ):
        Server(fed, headless, FedPer(), Settings(device="cpu", threads=1))
