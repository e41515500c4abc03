"""FedTAN against a calculation in NumPy with an explicit exchange, and cases in which statistics cannot differ."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedskew.algorithms.contract import resolve
from fedskew.batchnorm.shared import mean_of_sound
from fedskew.core.config import Settings
from fedskew.core.errors import FedskewError
from fedskew.data.dataset import Dataset, Rows
from fedskew.data.federation import Federation
from fedskew.data.partition import Partition
from fedskew.engine.job import Engine
from fedskew.engine.loop import Loop
from fedskew.engine.plan import Plan
from fedskew.engine.stacked import Stacked
from fedskew.models.build import ModelSpec, build
from fedskew.server.server import Server

ENGINES: dict[str, Engine] = {
    "sequential": Loop(),
    "stacked": Stacked(mode="stack"),
    "as it likes": Stacked(),
}
EPOCHS, BATCH, LR, CLASSES = 2, 4, 0.3, 3  # as in conftest.py


def batches(net: Any, round: int, client: int) -> list[np.ndarray]:
    """Return the rows of every local step of a client."""
    one = np.array([client])
    size = net.sizes[one]
    positions, counts = Plan(
        0, round, one, size, np.minimum(BATCH, size), np.array([EPOCHS]), 2
    ).table()
    return [net.held[client][positions[step, 0, :count]] for step, count in enumerate(counts[:, 0])]


def joint_step(net: Any, models: list[dict], rows: list[np.ndarray]) -> list[dict]:
    """Take one step of several clients with common statistics, with the authors' exchange, layer by layer."""
    xs = [net.x[some].astype(np.float64) for some in rows]
    sums = [
        x @ w["features.0.weight"].T + w["features.0.bias"] for x, w in zip(xs, models, strict=True)
    ]
    mean = sum(one.mean(0) for one in sums) / len(sums)
    variance = sum(((one - mean) ** 2).mean(0) for one in sums) / len(sums)
    spread = np.sqrt(variance + 1e-5)
    slopes, found = [], []
    for w, some, one in zip(models, rows, sums, strict=True):
        unit = (one - mean) / spread
        z = np.tanh(unit * w["features.1.weight"] + w["features.1.bias"])
        logits = z @ w["head.weight"].T + w["head.bias"]
        chance = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        d = (chance - np.eye(CLASSES)[net.y[some]]) / len(some)
        grads = {"head.weight": d.T @ z, "head.bias": d.sum(0)}
        d = d @ w["head.weight"] * (1 - z**2)
        grads |= {"features.1.weight": (d * unit).sum(0), "features.1.bias": d.sum(0)}
        slopes.append(d * w["features.1.weight"])
        found.append(grads)
    of_mean = sum(-(g / spread).sum(0) for g in slopes) / len(slopes)
    of_variance = sum(
        (g * (one - mean)).sum(0) * -0.5 * spread**-3 for g, one in zip(slopes, sums, strict=True)
    ) / len(slopes)
    ended = []
    for w, x, one, g, grads in zip(models, xs, sums, slopes, found, strict=True):
        d = g / spread + of_mean / len(x) + of_variance * 2 * (one - mean) / len(x)
        grads |= {"features.0.weight": d.T @ x, "features.0.bias": d.sum(0)}
        moved = w | {name: w[name] - LR * grad for name, grad in grads.items()}
        unbiased = variance * len(x) / (len(x) - 1)
        moved["features.1.running_mean"] = 0.9 * w["features.1.running_mean"] + 0.1 * mean
        moved["features.1.running_var"] = 0.9 * w["features.1.running_var"] + 0.1 * unbiased
        moved["features.1.num_batches_tracked"] = w["features.1.num_batches_tracked"] + 1
        ended.append(moved)
    return ended


def by_hand(net: Any, first_only: bool) -> dict[str, np.ndarray]:
    """Return the global model after all rounds."""
    w = net.start()
    for round in range(net.rounds):
        models, plans = (
            [dict(w) for _ in net.sizes],
            [batches(net, round, client) for client in range(len(net.sizes))],
        )
        for step in range(max(map(len, plans))):
            at_work = [client for client, plan in enumerate(plans) if step < len(plan)]
            groups = [[client] for client in at_work] if first_only and step else [at_work]
            for group in groups:  # alone, a client has its own statistics
                moved = joint_step(
                    net,
                    [models[client] for client in group],
                    [plans[client][step] for client in group],
                )
                for client, model in zip(group, moved, strict=True):
                    models[client] = model
        w = {name: net.mean(models, name) for name in w}
        second = [
            model
            | {"moment": model["features.1.running_var"] + model["features.1.running_mean"] ** 2}
            for model in models
        ]
        w["features.1.running_var"] = net.mean(second, "moment") - w["features.1.running_mean"] ** 2
        w["features.1.num_batches_tracked"] = w["features.1.num_batches_tracked"].round()
    return w


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("steps", ["all", "first"])
def test_by_hand(norm_net, steps: str, engine: str):
    training = norm_net.training(f"fedtan:steps={steps}", ENGINES[engine])
    wanted = by_hand(norm_net, steps == "first")
    assert training.state.model().keys() == wanted.keys()
    for name, value in training.state.model().items():
        np.testing.assert_allclose(value.numpy(), wanted[name], rtol=0, atol=1e-10, err_msg=name)


def test_the_default_is_the_authors_code():
    assert resolve("fedtan") == resolve("fedtan:steps=first")


def test_sharing_at_every_step_at_the_first_and_never_differ(norm_net):
    shared, first, apart = (
        norm_net.training(spec).state.params for spec in ("fedtan:steps=all", "fedtan", "fedavg")
    )
    for left, right in ((shared, first), (first, apart), (shared, apart)):
        assert max(float((left[name] - right[name]).abs().max()) for name in left) > 1e-3


@pytest.mark.parametrize("engine", ENGINES)
def test_without_batch_norm_it_is_fedavg(plain_net, engine: str):
    found, plain = (
        plain_net.training(spec, ENGINES[engine]) for spec in ("fedtan:steps=all", "fedavg")
    )
    assert all(
        torch.equal(value, plain.state.params[name]) for name, value in found.state.params.items()
    )
    assert [line.round for line in found.results] == [line.round for line in plain.results]


@pytest.mark.parametrize("engine", ENGINES)
def test_with_one_client_a_round_it_is_fedavg(norm_net, engine: str):
    found, plain = (
        norm_net.training(spec, ENGINES[engine], per_round=1)
        for spec in ("fedtan:steps=all", "fedavg")
    )
    for name, value in found.state.model().items():
        torch.testing.assert_close(value, plain.state.model()[name], rtol=0, atol=1e-12)


def federation(sizes: tuple[int, ...], shape: tuple[int, ...]) -> Federation:
    draw = np.random.default_rng(5)
    rows = Rows(
        draw.normal(size=(sum(sizes), *shape)).astype(np.float32),
        draw.integers(0, CLASSES, sum(sizes)),
    )
    rows.x[: sizes[0]] += 2  # the first client's rows differ from the others'
    held = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    return Federation(Dataset("made up", rows, rows, ("a", "b", "c")), Partition.from_lists(held))


def train(
    spec: str,
    engine: Engine,
    model: ModelSpec,
    sizes: tuple[int, ...],
    shape: tuple[int, ...],
    **settings: Any,
) -> Server:
    fed = federation(sizes, shape)
    usual = {
        "rounds": 3,
        "batch_size": 4,
        "lr": 0.1,
        "dtype": "float64",
        "device": "cpu",
        "threads": 1,
    }
    training = Server(
        fed,
        build(model, shape, CLASSES, seed=0),
        resolve(spec),
        Settings(**{**usual, **settings}),
        engine,
    )
    training.results = [training.advance() for _ in range(training.settings.rounds)]
    return training


@pytest.mark.parametrize("engine", ENGINES)
def test_one_step_with_equal_batches_is_a_central_step_on_the_pooled_batch(engine: str):
    """Check also that unequal batches differ, because clients have equal weight and rows do not."""
    far = {}
    for sizes in ((5, 5, 5), (11, 2, 2)):
        found, central = (
            train(spec, ENGINES[engine], "tabular:hidden=6", sizes, (4,), batch_size=64)
            for spec in ("fedtan:steps=all", "central")
        )
        far[sizes] = max(
            float((value - central.state.params[name]).abs().max())
            for name, value in found.state.params.items()
        )
    assert far[(5, 5, 5)] < 1e-10
    assert far[(11, 2, 2)] > 1e-3


def cumulative(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(shape[0], 3, 3), nn.BatchNorm2d(3, momentum=None), nn.ReLU(),
        nn.BatchNorm2d(3, affine=False, track_running_stats=False), nn.Flatten(),
        nn.BatchNorm1d(12), nn.Linear(12, classes),
    )  # fmt: skip


def frozen_first(shape: tuple[int, ...], classes: int) -> nn.Module:
    model = cumulative(shape, classes)
    model[0].requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("model", "shape"),
    [("resnet9:width=1", (3, 8, 8)), (cumulative, (2, 4, 4)), (frozen_first, (2, 4, 4))],
    ids=["resnet9", "cumulative", "frozen"],
)
@pytest.mark.parametrize(
    "settings", [{}, {"norm": "local"}, {"optimizer": "adam", "lr": 0.01, "epochs": 2}], ids=str
)
def test_engines_agree(model: Callable, shape: tuple[int, ...], settings: dict):
    reference, stack = (
        train("fedtan:steps=all", ENGINES[engine], model, (9, 4, 2, 7), shape, rounds=2, **settings)
        for engine in ("sequential", "stacked")
    )
    assert reference.results[0].round["bytes_up"] == stack.results[0].round["bytes_up"]
    for client in range(4):  # the global model, or with what the client keeps
        for name, value in reference.client_model(client).items():
            torch.testing.assert_close(stack.client_model(client)[name], value, rtol=0, atol=1e-8)


@pytest.mark.parametrize("engine", ENGINES)
def test_bytes_by_hand(norm_net, engine: str):
    shared, first, plain = (
        norm_net.training(spec, ENGINES[engine], rounds=1).results[0]
        for spec in ("fedtan:steps=all", "fedtan", "fedavg")
    )
    assert [line["steps"] for line in shared.clients] == [4, 2, 4, 2]
    # Mean, variance and both gradients of 4 channels, 8 bytes each
    for way in ("bytes_up", "bytes_down"):
        assert shared.round[way] - plain.round[way] == (4 + 2 + 4 + 2) * 4 * 4 * 8
        assert first.round[way] - plain.round[way] == 4 * 4 * 4 * 8


def test_clients_that_are_lost_share_nothing():
    options = {
        "sizes": (6, 6, 6, 6, 6, 6),
        "shape": (4,),
        "fleet": "uniform:dropout=0.4",
        "batch_size": 3,
    }
    found, plain = (
        train(spec, Stacked(), "tabular:hidden=6", **options)
        for spec in ("fedtan:steps=all", "fedavg")
    )
    channels = sum(
        v.numel() for name, v in found.state.buffers.items() if name.endswith("running_mean")
    )
    lost = [line.round["dropped"] for line in found.results]
    assert 0 < sum(lost) < 18
    for with_norm, without, gone in zip(found.results, plain.results, lost, strict=True):
        assert (
            with_norm.round["bytes_up"] - without.round["bytes_up"]
            == (6 - gone) * 2 * 4 * channels * 8
        )


def test_all_clients_must_fit_into_one_stack(norm_net, plain_net):
    small = Stacked(mode="stack", memory=10_000)
    plain_net.training("fedtan", small)
    with pytest.raises(
        FedskewError,
        match=r"fedtan trains all 4 clients .* room for \d: use memory=.* or fewer clients",
    ):
        norm_net.training("fedtan", small)


def test_what_is_not_finite_does_not_count():
    values = torch.tensor([[1.0, 2.0], [torch.nan, 0.0], [3.0, 6.0], [0.0, -torch.inf]])
    assert mean_of_sound(values).tolist() == [2.0, 4.0]
    assert mean_of_sound(values[1:2]).isnan().all()
