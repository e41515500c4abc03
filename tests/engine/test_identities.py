"""Special cases that must be equal, and the bounds against a plain torch.optim loop."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedskew.engine.loop import Loop
from fedskew.engine.plan import Plan
from fedskew.engine.stacked import Stacked
from fedskew.topology.collector import UpdateCollector

ENGINES = pytest.mark.parametrize(
    "engine", [Loop(), Stacked(mode="stack")], ids=["loop", "stacked"]
)
BATCH_NORM = "tabular:hidden=5+4"


@ENGINES
@pytest.mark.parametrize("model", ["mlp:hidden=5", BATCH_NORM])
@pytest.mark.parametrize("special", ["fedprox:mu=0", "fedavgm:beta=0,server_lr=1"])
def test_same_bits_as_fedavg(lab, engine, model: str, special: str):
    plain, other = (
        lab.run(3, None, name, model, engine, momentum=0.9, epochs=2)
        for name in ("fedavg", special)
    )
    for name, value in plain.state.model().items():
        assert torch.equal(value, other.state.model()[name]), name


@ENGINES
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fednova_with_equal_steps_is_fedavg(lab, engine, momentum: float):
    # 5 to 8 rows are two batches of 4, so weights still differ.
    even, ragged = lab.federation((7, 5, 8)), lab.federation((9, 5, 2))
    for fed, equal in ((even, True), (ragged, False)):
        runs = [
            lab.run(3, fed, name, engine=engine, momentum=momentum)
            for name in ("fedavg", "fednova")
        ]
        gap = max(
            (runs[0].state.params[name] - runs[1].state.params[name]).abs().max()
            for name in runs[0].state.params
        )
        assert gap < 1e-12 if equal else gap > 1e-4


@ENGINES
@pytest.mark.parametrize("name", ["fedavg", "fedavgm", "fedadam", "fednova", "fedprox:mu=1"])
@pytest.mark.parametrize("model", ["mlp:hidden=5", BATCH_NORM])
def test_identical_clients_are_one_client(lab, engine, name: str, model: str):
    rows = np.arange(9)
    # A full batch, because each client shuffles for itself.
    one, three = (
        lab.run(3, lab.federation(rows=[rows] * k), name, model, engine, batch_size=16, epochs=2)
        for k in (1, 3)
    )
    for key, value in one.state.model().items():
        torch.testing.assert_close(value, three.state.model()[key], rtol=0, atol=1e-10)


def train_plainly(training, client: int, rounds: int, fresh: bool) -> tuple[nn.Module, list[float]]:
    """Train with a plain loop on the rows of the plan; ``fresh`` starts a new optimiser every round."""
    s, model, losses = training.settings, copy.deepcopy(training.model).train(), []
    sgd = torch.optim.SGD(
        model.parameters(), lr=s.lr, momentum=s.momentum, weight_decay=s.weight_decay
    )
    rows = training.trained_on.of(client)
    for round in range(rounds):
        if fresh:
            sgd = torch.optim.SGD(
                model.parameters(), lr=s.lr, momentum=s.momentum, weight_decay=s.weight_decay
            )
        one = [np.array([value]) for value in (client, len(rows), s.batch_size, s.epochs)]
        positions, counts = Plan.draw(s.seed, round, *one, least=training.least).table()
        total = 0.0
        for step, count in enumerate(counts[:, 0]):
            batch = rows[positions[step, 0, :count]]
            loss = F.cross_entropy(model(training.job.x[batch]), training.job.y[batch])
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            total += loss.item() * count
        losses.append(total / counts.sum())
    return model, losses


@ENGINES
@pytest.mark.parametrize("model", ["mlp:hidden=5", BATCH_NORM])
@pytest.mark.parametrize(
    ("name", "sizes", "fresh"),
    [("central", (9, 5, 4), False), ("local", (9, 5, 4), False), ("fedavg", (13,), True)],
    ids=["central", "local", "fedavg of one"],
)
def test_against_a_plain_loop(
    lab, engine, model: str, name: str, sizes: tuple[int, ...], fresh: bool
):
    local = {"momentum": 0.9, "weight_decay": 0.01, "epochs": 2, "lr": 0.05}
    training = lab.run(3, lab.federation(sizes), name, model, engine, **local)
    for client in range(training.trained_on.clients):
        plain, losses = train_plainly(training, client, 3, fresh)
        found = training.client_model(client)
        assert found.keys() == plain.state_dict().keys()
        for key, value in plain.state_dict().items():
            torch.testing.assert_close(found[key], value, rtol=0, atol=1e-10, msg=key)
        lines = [
            line
            for result in training.results
            for line in result.clients
            if line["client"] == client
        ]
        assert [line["local_loss"] for line in lines] == pytest.approx(losses, abs=1e-10)


def test_central_does_not_depend_on_the_cut(lab):
    apart = lab.federation((9, 5, 4, 7, 2))
    together = lab.federation((27,))
    assert (
        lab.gap(
            lab.run(2, apart, "central", momentum=0.9),
            lab.run(2, together, "central", momentum=0.9),
        )
        == 0
    )


def test_local_leaves_the_global_model_alone(lab):
    training = lab.run(2, None, "local", BATCH_NORM)
    start = dict(training.model.named_parameters()) | dict(training.model.named_buffers())
    assert all(torch.equal(value, start[name]) for name, value in training.state.model().items())
    assert not torch.equal(training.client_model(0)["head.weight"], start["head.weight"])


@ENGINES
@pytest.mark.parametrize("norm", ["aggregate", "local"])
def test_the_order_of_clients_does_not_matter(lab, engine, norm: str):
    training = lab.run(1, None, "fednova", BATCH_NORM, norm=norm, momentum=0.5)
    means = []
    for order in ([0, 1, 2, 3, 4], [3, 0, 4, 2, 1]):
        plan, mean = lab.plan(training, order), UpdateCollector(training.algorithm, "size")
        for updates in engine.train(training.job, lab.start(training, plan), plan):
            mean.add(updates)
        result = mean.result()
        means.append({**result.payload, "": result.merged_buffers(training.state.buffers)})
    for part, tensors in means[0].items():
        for name, value in tensors.items():
            torch.testing.assert_close(value, means[1][part][name], rtol=0, atol=1e-12)
