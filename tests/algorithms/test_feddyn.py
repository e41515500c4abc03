"""FedDyn against a calculation in NumPy, its identities, its invariant, and its limit in theory."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import fedskew as fs
from fedskew.algorithms.contract import Cohort, View, corrected, resolve
from fedskew.core.errors import FedskewError
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked

LR, CLIENTS = 0.3, 5
ENGINES = pytest.mark.parametrize(
    "engine", [Loop(), Stacked(mode="stack")], ids=["loop", "stacked"]
)


def by_hand(desk, results: list, alpha: float, momentum: float, by_size: bool) -> tuple:
    """Return weights, h and the clients' gradients after the rounds of ``results``, which list their clients."""
    w = desk.start()
    h, carried = np.zeros_like(w), np.zeros((CLIENTS, *w.shape))
    for round, result in enumerate(results):
        here = [line["client"] for line in result.clients]
        ended = {}
        for k in here:
            mine, velocity = w.copy(), np.zeros_like(w)
            for rows in desk.batches(round, k):
                velocity = (
                    momentum * velocity
                    + desk.mean_gradient(mine, rows)
                    - carried[k]
                    + alpha * (mine - w)
                )
                mine = mine - LR * velocity
            carried[k] = carried[k] - alpha * (mine - w)
            ended[k] = mine
        p = {
            k: (desk.sizes[k] / desk.sizes[here].sum() if by_size else 1 / len(here)) for k in here
        }
        mean = sum(p[k] * ended[k] for k in here)
        share = desk.sizes[here].sum() / desk.sizes.sum() if by_size else len(here) / CLIENTS
        h = h - alpha * share * (mean - w)
        w = mean - h / alpha
    return w, h, carried


@ENGINES
@pytest.mark.parametrize(
    ("alpha", "momentum", "by_size"), [(0.01, 0.0, False), (0.5, 0.9, False), (0.2, 0.0, True)]
)
def test_by_hand(desk, engine, alpha: float, momentum: float, by_size: bool):
    method = fs.FedDyn(alpha=alpha, weights="size" if by_size else "uniform")
    training = desk.training(method, engine, per_round=3, momentum=momentum)
    results = [training.advance() for _ in range(3)]
    assert len({tuple(line["client"] for line in result.clients) for result in results}) == 3
    # One row, one class
    assert {line["client"] for result in results for line in result.clients} > {2, 3}
    w, h, carried = by_hand(desk, results, alpha, momentum, by_size)
    np.testing.assert_allclose(desk.flat(training.state.params), w, rtol=0, atol=1e-12)
    np.testing.assert_allclose(desk.flat(training.state.server_state["h"]), h, rtol=0, atol=1e-12)
    held = training.clients.store.get(np.arange(CLIENTS))["state.h"]
    np.testing.assert_allclose(desk.flat(held), carried, rtol=0, atol=1e-12)


@ENGINES
@pytest.mark.parametrize("weights", ["uniform", "size"])
def test_without_strength_it_is_fedavg(desk, engine, weights: str):
    found, plain = (
        desk.train(spec, engine, per_round=3, momentum=0.9)[0]
        for spec in (f"feddyn:alpha=0,weights={weights}", f"fedavg:weights={weights}")
    )
    np.testing.assert_allclose(found, plain, rtol=0, atol=1e-12)
    assert not np.allclose(
        desk.train(f"feddyn:weights={weights}", engine, per_round=3, momentum=0.9)[0], plain
    )


@ENGINES
@pytest.mark.parametrize("weights", ["uniform", "size"])
def test_h_is_the_mean_of_all_gradients_whoever_is_absent(desk, engine, weights: str):
    share = torch.from_numpy(
        desk.sizes / desk.sizes.sum() if weights == "size" else np.full(CLIENTS, 0.2)
    )
    training = desk.training(
        "feddyn:alpha=0.1", engine, weights=weights, per_round=4, fleet="uniform:dropout=0.4"
    )
    x = training.job.x.clone()
    x[desk.held[3]] = torch.nan
    training.rounds.context = replace(training.rounds.context, job=replace(training.job, x=x))
    lost = {"dropped": 0, "excluded": 0}
    for _ in range(8):
        result = training.advance()
        lost = {name: count + result.round[name] for name, count in lost.items()}
        carried = training.clients.store.get(np.arange(CLIENTS))["state.h"]
        for name, h in training.state.server_state["h"].items():
            torch.testing.assert_close(
                torch.tensordot(share, carried[name], 1), h, rtol=0, atol=1e-13
            )
        # What it sent was not sound, so it keeps what it had
        assert not carried["head.bias"][3].any()
        assert np.abs(desk.flat(training.state.server_state["h"])).max() > 0.001
    assert min(lost.values()) > 2


def test_a_round_without_anybody_changes_nothing(desk):
    training = desk.training("feddyn", fleet="uniform:dropout=0.999999999")
    assert training.advance().round["dropped"] == CLIENTS
    np.testing.assert_array_equal(desk.flat(training.state.params), desk.start())
    assert not desk.flat(training.state.server_state["h"]).any()


def test_a_negative_strength_is_refused():
    with pytest.raises(FedskewError, match="alpha=-1 is out of range, it must be >= 0"):
        resolve("feddyn:alpha=-1")


@pytest.mark.parametrize("alpha", [1.0, 10.0])
def test_with_exact_minima_of_unlike_parabolas_it_finds_the_joint_one(alpha: float):
    # F_k(w) = steep/2 (w - at)^2
    steep, at = torch.tensor([1.0, 10.0]).double(), torch.tensor([4.0, -1.0]).double()
    method, weights = fs.FedDyn(alpha=alpha), {"w": torch.zeros(1).double()}
    server, memos = (
        method.init_server_state(weights),
        [method.init_client_state(weights) for _ in range(2)],
    )
    for _ in range(200):
        sent = []
        for k in range(2):
            # Where the corrected gradient is zero; it is linear in w, so two of its values tell.
            view = View({"w": torch.zeros(1).double()}, weights, {}, memos[k], {}, 0.0)
            at_zero = corrected(
                {"w": -steep[k] * at[k].view(1)}, view.params, method.linear_correction(view)
            )["w"]
            view = replace(view, params={"w": torch.ones(1).double()})
            at_one = corrected(
                {"w": steep[k] * (1 - at[k]).view(1)}, view.params, method.linear_correction(view)
            )["w"]
            view = replace(view, params={"w": at_zero / (at_zero - at_one)})
            sent.append(method.payload(view)["delta"]["w"])
            memos[k] = method.client_state(view)
            torch.testing.assert_close(memos[k]["h"]["w"], steep[k] * (view.params["w"] - at[k]))
        mean = {"delta": {"w": (sent[0] + sent[1]) / 2}}
        weights, server = method.server_update(
            weights, server, mean, Cohort(np.ones(2), total=2.0, mean=mean)
        )
    assert abs(float(weights["w"]) - float((steep * at).sum() / steep.sum())) < 1e-9


@pytest.mark.parametrize("weights", ["uniform", "size"])
def test_training_ends_at_the_joint_minimum_and_fedavg_does_not(desk, weights: str):
    assert desk.slope_at_the_end(f"feddyn:alpha=1,weights={weights}", weights) < 1e-7
    assert desk.slope_at_the_end(f"fedavg:weights={weights}", weights) > 0.01


def test_conforms_without_strength_and_sends_no_more_than_fedavg():
    report = fs.check("feddyn:alpha=0,weights=size")
    # Without strength it is FedAvg, and the check says so
    assert {finding.outcome for finding in report.findings} == {"passed", "vacuous"}
    assert (
        "552 up and 552 down with BatchNorm merged, 384 up and 384 down with BatchNorm local"
        in report["bytes"].detail
    )
