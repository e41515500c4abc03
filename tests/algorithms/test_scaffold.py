"""SCAFFOLD against a calculation in NumPy, its identities, its invariant, and its limit in theory."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedskew as fs
from fedskew.algorithms.contract import Cohort, View, corrected, resolve
from fedskew.core.errors import FedskewError
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked
from fedskew.models.network import Network

LR, CLIENTS = 0.3, 5
ENGINES = pytest.mark.parametrize(
    "engine", [Loop(), Stacked(mode="stack")], ids=["loop", "stacked"]
)
OPTIONS = pytest.mark.parametrize("option", ["I", "II"])


def by_hand(
    desk, results: list, option: str, momentum: float, decay: float, by_size: bool, server_lr: float
) -> tuple:
    """Return weights, server's and clients' controls after the rounds of ``results``, which list their clients."""
    w = desk.start()
    control, own = np.zeros_like(w), np.zeros((CLIENTS, *w.shape))
    for round, result in enumerate(results):
        here = [line["client"] for line in result.clients]
        change, control_change = {}, {}
        for k in here:
            mine, velocity, batches = w.copy(), np.zeros_like(w), desk.batches(round, k)
            for rows in batches:
                gradient = desk.mean_gradient(mine, rows) - own[k] + control + decay * mine
                velocity = momentum * velocity + gradient
                mine = mine - LR * velocity
            change[k] = mine - w
            # How much of all gradients ends in the change: each now, and through momentum in every later step.
            carried = sum(
                momentum ** (j - i) for i in range(len(batches)) for j in range(i, len(batches))
            )
            if option == "I":
                control_change[k] = desk.mean_gradient(w, desk.held[k]) - own[k]
            else:
                control_change[k] = -control - change[k] / (LR * carried)
        p = {
            k: (desk.sizes[k] / desk.sizes[here].sum() if by_size else 1 / len(here)) for k in here
        }
        w = w + server_lr * sum(p[k] * change[k] for k in here)
        share = desk.sizes[here].sum() / desk.sizes.sum() if by_size else len(here) / CLIENTS
        control = control + share * sum(p[k] * control_change[k] for k in here)
        for k in here:
            own[k] += control_change[k]
    return w, control, own


@ENGINES
@OPTIONS
@pytest.mark.parametrize(
    ("momentum", "decay", "by_size", "server_lr"),
    [(0.0, 0.0, False, 1.0), (0.9, 0.0, False, 0.7), (0.0, 0.1, True, 1.0)],
)
def test_by_hand(
    desk, engine, option: str, momentum: float, decay: float, by_size: bool, server_lr: float
):
    weights = "size" if by_size else "uniform"
    method = fs.Scaffold(option=option, weights=weights, server_lr=server_lr)
    training = desk.training(method, engine, per_round=3, momentum=momentum, weight_decay=decay)
    results = [training.advance() for _ in range(3)]
    assert len({tuple(line["client"] for line in result.clients) for result in results}) == 3
    # One row, one class
    assert {line["client"] for result in results for line in result.clients} > {2, 3}
    w, control, own = by_hand(desk, results, option, momentum, decay, by_size, server_lr)
    np.testing.assert_allclose(desk.flat(training.state.params), w, rtol=0, atol=1e-12)
    np.testing.assert_allclose(
        desk.flat(training.state.server_state["control"]), control, rtol=0, atol=1e-12
    )
    held = training.clients.store.get(np.arange(CLIENTS))["state.control"]
    np.testing.assert_allclose(desk.flat(held), own, rtol=0, atol=1e-12)


@ENGINES
@OPTIONS
def test_the_first_round_is_fedavg_and_the_second_is_not(desk, engine, option: str):
    method = f"scaffold:option={option},weights=uniform"
    for rounds, same in ((1, True), (2, False)):
        found, plain = (
            desk.train(spec, engine, rounds=rounds)[0]
            for spec in (method, "fedavg:weights=uniform")
        )
        assert np.allclose(found, plain, rtol=0, atol=1e-12) == same


@ENGINES
@OPTIONS
@pytest.mark.parametrize("weights", ["uniform", "size"])
def test_the_control_is_the_mean_of_all_controls_whoever_is_absent(
    desk, engine, option: str, weights: str
):
    share = torch.from_numpy(
        desk.sizes / desk.sizes.sum() if weights == "size" else np.full(CLIENTS, 0.2)
    )
    usual = {"per_round": 4, "momentum": 0.9, "fleet": "uniform:dropout=0.4"}
    training = desk.training(f"scaffold:option={option}", engine, weights=weights, **usual)
    x = training.job.x.clone()
    x[desk.held[3]] = torch.nan
    training.rounds.context = replace(training.rounds.context, job=replace(training.job, x=x))
    lost = {"dropped": 0, "excluded": 0}
    for _ in range(8):
        result = training.advance()
        lost = {name: count + result.round[name] for name, count in lost.items()}
        own = training.clients.store.get(np.arange(CLIENTS))["state.control"]
        for name, control in training.state.server_state["control"].items():
            torch.testing.assert_close(
                torch.tensordot(share, own[name], 1), control, rtol=0, atol=1e-13
            )
        assert not own["head.bias"][3].any()  # what it sent was not sound, so it keeps what it had
        assert np.abs(desk.flat(training.state.server_state["control"])).max() > 0.01
    assert min(lost.values()) > 2


@OPTIONS
def test_a_round_without_anybody_changes_nothing(desk, option: str):
    training = desk.training(f"scaffold:option={option}", fleet="uniform:dropout=0.999999999")
    result = training.advance()
    assert result.round["dropped"] == CLIENTS
    np.testing.assert_array_equal(desk.flat(training.state.params), desk.start())
    assert not desk.flat(training.state.server_state["control"]).any()


def _awkward(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Network(
        nn.Sequential(nn.Linear(shape[0], 4), nn.BatchNorm1d(4), nn.Dropout(0.5)), 4, classes
    )


@ENGINES
def test_option_one_takes_its_gradient_in_evaluation_mode_and_leaves_no_trace(desk, engine):
    desk = type(desk)()
    desk.held[2] = desk.held[0][:2]  # BatchNorm needs two rows
    training, plain = (
        desk.training(spec, engine, model=_awkward) for spec in ("scaffold:option=I", "fedavg")
    )
    model = copy.deepcopy(training.model).eval()
    wanted = []
    for rows in desk.held:
        loss = F.cross_entropy(model(training.job.x[rows]), training.job.y[rows])
        wanted.append(
            dict(
                zip(
                    training.state.params,
                    torch.autograd.grad(loss, list(model.parameters())),
                    strict=True,
                )
            )
        )
    training.advance(), plain.advance()
    own = training.clients.store.get(np.arange(CLIENTS))["state.control"]
    for name in training.state.params:
        torch.testing.assert_close(
            own[name], torch.stack([grads[name] for grads in wanted]), rtol=0, atol=1e-12
        )
    # The same dropout and the same running statistics as without that pass
    for name, value in plain.state.model().items():
        torch.testing.assert_close(training.state.model()[name], value, rtol=0, atol=1e-12)


def test_what_clients_keep_has_no_control(desk):
    desk = type(desk)()
    desk.held[2] = desk.held[0][:2]
    training = desk.training("scaffold", model=_awkward, norm="local")
    training.advance()
    assert sorted(training.state.server_state["control"]) == [
        "features.0.bias",
        "features.0.weight",
        "head.bias",
        "head.weight",
    ]


def test_option_two_refuses_adam_before_any_training(desk):
    with pytest.raises(
        FedskewError,
        match=r"scaffold .* local SGD, got optimizer=adam: use optimizer=sgd, other options",
    ):
        desk.training("scaffold", optimizer="adam")
    desk.training("scaffold:option=I", optimizer="adam").advance()


# -- what the theory says ----------------------------------------------------------------------------------------------


@OPTIONS
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_on_unlike_parabolas_it_finds_the_joint_minimum_and_fedavg_does_not(
    option: str, momentum: float
):
    # F_k(w) = steep/2 (w - at)^2
    steep, at = torch.tensor([1.0, 10.0]).double(), torch.tensor([4.0, -1.0]).double()
    joint = float((steep * at).sum() / steep.sum())

    def end(method: fs.Algorithm) -> float:
        weights = {"w": torch.zeros(1).double()}
        server, memos = (
            method.init_server_state(weights),
            [method.init_client_state(weights) for _ in range(2)],
        )
        numbers = {"steps": torch.tensor(10.0).double(), "lr": torch.tensor(0.01).double()}
        for _ in range(300):
            sent = []
            for k in range(2):
                start_gradient = {"w": steep[k] * (weights["w"] - at[k])}
                view = View(
                    dict(weights), weights, method.broadcast(server), memos[k], numbers, momentum
                )
                velocity = torch.zeros(1)
                for _ in range(10):
                    grads = corrected(
                        {"w": steep[k] * (view.params["w"] - at[k])},
                        view.params,
                        method.linear_correction(view),
                    )
                    velocity = momentum * velocity + grads["w"]
                    view = replace(view, params={"w": view.params["w"] - 0.01 * velocity})
                view = replace(view, full_gradient=start_gradient)
                sent.append(method.payload(view))
                memos[k] = method.client_state(view)
            mean = {part: {"w": (sent[0][part]["w"] + sent[1][part]["w"]) / 2} for part in sent[0]}
            weights, server = method.server_update(
                weights, server, mean, Cohort(np.ones(2), total=2.0, mean=mean)
            )
        return float(weights["w"])

    assert abs(end(fs.Scaffold(option=option)) - joint) < 1e-9
    assert abs(end(fs.FedAvg(weights="uniform")) - joint) > 0.1


@pytest.mark.parametrize(
    "spec", ["scaffold:option=I", "scaffold:option=II", "scaffold:weights=uniform"]
)
def test_training_ends_at_the_joint_minimum_and_fedavg_does_not(desk, spec: str):
    weights = resolve(spec).weights or "size"
    assert desk.slope_at_the_end(spec, weights) < 1e-8
    assert desk.slope_at_the_end(f"fedavg:weights={weights}", weights) > 0.01


# -- on the wire -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["scaffold:option=I", "scaffold:weights=size,server_lr=0.5"])
def test_conforms_and_controls_travel_both_ways(spec: str):
    report = fs.check(spec)
    assert {finding.outcome for finding in report.findings} == {"passed"}
    # 384 bytes of weights, 168 of BatchNorm (88 of them buffers); controls double the weights that are sent.
    assert (
        "1016 up and 1016 down with BatchNorm merged, 768 up and 768 down with BatchNorm local"
        in report["bytes"].detail
    )
