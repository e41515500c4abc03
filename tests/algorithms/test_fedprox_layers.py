"""FedProx with a coefficient for every layer: a calculation in NumPy, identities, columns and unusual rounds."""

import numpy as np
import pytest
import torch

import fedskew as fs
from fedskew.algorithms.contract import Cohort, resolve
from fedskew.core.errors import FedskewError
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked

LR, CLIENTS = 0.3, 5
ENGINES = pytest.mark.parametrize(
    "engine", [Loop(), Stacked(mode="stack")], ids=["loop", "stacked"]
)


def by_hand(
    desk,
    results: list,
    mu_0: float,
    a: float,
    momentum: float,
    by_size: bool,
    factors: tuple[float, ...] = (1.0,) * 3,
) -> tuple[np.ndarray, list]:
    """Return weights, coefficients and drifts of every round; the last column is one layer, the rest is the other."""
    w, mu, told = desk.start(), np.array([mu_0, mu_0]), []
    for round, result in enumerate(results):
        here = [line["client"] for line in result.clients]
        pull = np.array([mu[0]] * 5 + [mu[1]])
        ended = {}
        for k in here:
            mine, velocity = w.copy(), np.zeros_like(w)
            for rows in desk.batches(round, k):
                velocity = momentum * velocity + desk.mean_gradient(mine, rows) + pull * (mine - w)
                mine = mine - factors[round] * LR * velocity
            ended[k] = mine
        p = {
            k: (desk.sizes[k] / desk.sizes[here].sum() if by_size else 1 / len(here)) for k in here
        }
        old, w = w, sum(p[k] * ended[k] for k in here)
        drift = np.array(
            [np.sqrt(((w - old)[:, :5] ** 2).sum()), np.sqrt(((w - old)[:, 5] ** 2).sum())]
        )
        mu = (1 - a) * mu + a * drift / max(drift) * mu_0
        told.append([*mu, *drift])
    return w, told


@ENGINES
@pytest.mark.parametrize(
    ("mu", "adapt", "momentum", "by_size"),
    [(0.7, 0.5, 0.0, True), (2.0, 1.0, 0.9, True), (0.3, 0.2, 0.0, False)],
)
def test_by_hand(desk, engine, mu: float, adapt: float, momentum: float, by_size: bool):
    method = fs.FedProxLayers(mu=mu, adapt=adapt, weights="size" if by_size else "uniform")
    found, results = desk.train(method, engine, per_round=3, momentum=momentum)
    # One row, one class
    assert {line["client"] for result in results for line in result.clients} > {2, 3}
    w, told = by_hand(desk, results, mu, adapt, momentum, by_size)
    np.testing.assert_allclose(found, w, rtol=0, atol=1e-12)
    columns = ["mu_head.weight", "mu_head.bias", "drift_head.weight", "drift_head.bias"]
    np.testing.assert_allclose(
        [[result.round[name] for name in columns] for result in results], told, rtol=0, atol=1e-12
    )


@ENGINES
@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ("cosine", (1.0, 0.75, 0.25)),  # (1 + cos(pi t / 3)) / 2
        ("step:every=2,factor=0.1", (1.0, 1.0, 0.1)),
        ("exponential:factor=0.5", (1.0, 0.5, 0.25)),
    ],
)
def test_with_a_learning_rate_that_falls_by_hand(desk, engine, schedule: str, factors: tuple):
    """Coefficients depend on how much more a layer moves than others, so that a lower rate leaves them as they are."""
    method = fs.FedProxLayers(mu=0.7, adapt=0.5)
    found, results = desk.train(method, engine, per_round=3, schedule=schedule)
    w, told = by_hand(desk, results, 0.7, 0.5, 0.0, True, factors)
    np.testing.assert_allclose(found, w, rtol=0, atol=1e-12)
    columns = ["mu_head.weight", "mu_head.bias", "drift_head.weight", "drift_head.bias"]
    rows = [[result.round[name] for name in columns] for result in results]
    np.testing.assert_allclose(rows, told, rtol=0, atol=1e-12)
    assert [result.round["lr"] for result in results] == pytest.approx([LR * f for f in factors])


@ENGINES
@pytest.mark.parametrize("model", ["logreg", "mlp:hidden=4"])
def test_without_adaptation_it_is_fedprox(desk, engine, model: str):
    trainings = [
        desk.training(spec, engine, model=model, per_round=3, momentum=0.9)
        for spec in (
            "fedprox:mu=0.7",
            "fedprox-layers:mu=0.7,adapt=0",
            "fedprox-layers:mu=0.7,adapt=1",
        )
    ]
    for training in trainings:
        for _ in range(3):
            training.advance()
    plain, constant, adaptive = (training.state.params for training in trainings)
    for name, value in plain.items():
        torch.testing.assert_close(constant[name], value, rtol=0, atol=1e-12)
    assert not torch.allclose(adaptive["head.weight"], plain["head.weight"], rtol=0, atol=1e-6)


def test_a_model_of_one_module_is_fedprox_if_a_layer_is_a_module(desk):
    found, plain = (
        desk.train(spec)[0] for spec in ("fedprox-layers:mu=0.7,group=module", "fedprox:mu=0.7")
    )
    np.testing.assert_allclose(found, plain, rtol=0, atol=1e-12)


def test_a_module_moves_as_far_as_its_tensors_together():
    method = fs.FedProxLayers(mu=2.0, adapt=0.25, group="module")
    weights = {
        name: torch.zeros(2) for name in ("block.0.weight", "block.0.bias", "head.weight", "scale")
    }
    change = {
        "block.0.weight": [2.0, 4.0],
        "block.0.bias": [4.0, 8.0],
        "head.weight": [3.0, 4.0],
        "scale": [0.0, 1.0],
    }
    mean = {"delta": {name: torch.tensor(value) for name, value in change.items()}}
    moved, server = method.server_update(
        weights, method.init_server_state(weights), mean, Cohort(np.ones(2), total=2.0)
    )
    assert {name: value.tolist() for name, value in moved.items()} == change
    # 0.75 * 2 + 0.25 * (d / 10) * 2 with the drifts 10, 5 and 1
    mu, drift = (
        {"mu_block.0": 2.0, "mu_head": 1.75, "mu_scale": 1.55},
        {"drift_block.0": 10, "drift_head": 5, "drift_scale": 1},
    )
    assert method.metrics(server) == pytest.approx({**mu, **drift})
    assert server["mu"]["block.0.weight"] == server["mu"]["block.0.bias"]
    assert set(method.broadcast(server)) == {"mu"}


def test_where_nothing_moves_the_strengths_stay():
    method, weights = fs.FedProxLayers(mu=0.1, adapt=0.3), {"a": torch.ones(2), "b": torch.ones(3)}
    mean = {"delta": {name: torch.zeros_like(value) for name, value in weights.items()}}
    before = {
        "mu": {"a": torch.tensor(0.07), "b": torch.tensor(0.1)},
        "drift": {name: torch.tensor(1.0) for name in "ab"},
    }
    _, server = method.server_update(weights, before, mean, Cohort(np.ones(2), total=2.0))
    assert server["mu"] == before["mu"]
    assert server["drift"] == {"a": 0, "b": 0}


def test_what_clients_keep_has_no_strength_and_every_round_has_the_same_columns(desk):
    desk = type(desk)()
    desk.held[2] = desk.held[0][:2]  # BatchNorm needs two rows
    model = "tabular:hidden=4"
    shared, local = (
        desk.training("fedprox-layers", model=model, norm=norm) for norm in ("aggregate", "local")
    )
    lines = [[training.advance().round for _ in range(2)] for training in (shared, local)]
    assert [list(first) for first, _ in lines] == [list(second) for _, second in lines]
    columns = [
        {name.split("_", 1)[1] for name in first if name.startswith(("mu_", "drift_"))}
        for first, _ in lines
    ]
    norm = {name for name in shared.state.params if name not in local.state.server_state["mu"]}
    assert norm == {"features.2.weight", "features.2.bias"}
    assert columns == [set(shared.state.params), set(shared.state.params) - norm]


def test_a_round_without_anybody_changes_nothing(desk):
    training = desk.training("fedprox-layers", fleet="uniform:dropout=0.999999999")
    line = training.advance().round
    assert line["dropped"] == CLIENTS
    np.testing.assert_array_equal(desk.flat(training.state.params), desk.start())
    assert [line[name] for name in ("mu_head.weight", "mu_head.bias", "drift_head.weight")] == [
        0.01,
        0.01,
        0.0,
    ]


@pytest.mark.parametrize("wrong", ["mu=-1", "adapt=1.5", "adapt=-0.1", "group=layer"])
def test_bad_options_are_refused(wrong: str):
    with pytest.raises(FedskewError, match=wrong):
        resolve(f"fedprox-layers:{wrong}")


def test_conforms_with_modules_and_strengths_travel_down():
    report = fs.check("fedprox-layers:group=module,weights=uniform")
    assert {finding.outcome for finding in report.findings} == {"passed"}
    # One number of 8 bytes for each of the three pairs of weight and bias, or two without BatchNorm's.
    assert (
        "552 up and 592 down with BatchNorm merged, 384 up and 408 down with BatchNorm local"
        in report["bytes"].detail
    )
