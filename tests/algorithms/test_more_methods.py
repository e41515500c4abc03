"""FedLC, FedSAM, q-FedAvg, FedRep and LG-FedAvg against NumPy calculations, their identities, and their hooks."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from fedskew.algorithms import Algorithm, Layout, Tensors, Tree, View
from fedskew.core.errors import FedskewError
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked

ENGINES = pytest.mark.parametrize(
    "engine", [Loop(), Stacked(mode="stack")], ids=["loop", "stacked"]
)
LR, ROUNDS, CLASSES = 0.3, 3, 3


def averaged(desk, step) -> np.ndarray:
    """Return FedAvg's result, weighted by rows, where clients take ``step(w, rows, client)`` on every batch."""
    w = desk.start()
    for round in range(ROUNDS):
        ended = []
        for client in range(5):
            mine = w.copy()
            for rows in desk.batches(round, client):
                mine = mine - LR * step(mine, rows, client)
            ended.append(mine)
        w = np.tensordot(desk.sizes / desk.sizes.sum(), np.stack(ended), 1)
    return w


@ENGINES
@pytest.mark.parametrize("tau", [0.5, 2.0])
def test_fedlc_by_hand(desk, engine, tau: float):
    def step(w, rows, client):
        counts = np.bincount(desk.y[desk.held[client]], minlength=CLASSES)
        margin = tau * np.maximum(counts, 1e-8) ** -0.25
        total = 0.0
        for row in rows:
            x = np.append(desk.x[row].astype(np.float64), 1.0)
            logits = w @ x - margin
            chance = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
            total = total + np.outer(chance - np.eye(CLASSES)[desk.y[row]], x)
        return total / len(rows)

    found, results = desk.train(f"fedlc:tau={tau}", engine)
    np.testing.assert_allclose(found, averaged(desk, step), rtol=0, atol=1e-10)
    plain, others = desk.train("fedavg", engine)
    assert np.abs(found - plain).max() > 1e-3
    assert desk.column(results, "local_loss")[0] != desk.column(others, "local_loss")[0]


@ENGINES
@pytest.mark.parametrize("rho", [0.05, 0.7])
def test_fedsam_by_hand(desk, engine, rho: float):
    def step(w, rows, client):
        gradient = desk.mean_gradient(w, rows)
        return desk.mean_gradient(w + rho * gradient / np.linalg.norm(gradient), rows)

    found, _ = desk.train(f"fedsam:rho={rho}", engine)
    np.testing.assert_allclose(found, averaged(desk, step), rtol=0, atol=1e-10)


@ENGINES
@pytest.mark.parametrize("q", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_q_fedavg_by_hand(desk, engine, q: float, weights: str):
    share = desk.sizes / desk.sizes.sum() if weights == "size" else np.full(5, 0.2)
    w = desk.start()
    for round in range(ROUNDS):
        change, h = 0.0, 0.0
        for client in range(5):
            d = (desk.descend(w, round, client) - w) / LR
            loss = desk.mean_loss(w, client) + 1e-10
            change = change + share[client] * loss**q * d
            h = h + share[client] * (q * loss ** (q - 1) * (d**2).sum() + loss**q / LR)
        w = w + change / h
    found, results = desk.train(f"q-fedavg:q={q}", engine, weights=weights)
    np.testing.assert_allclose(found, w, rtol=0, atol=1e-10)
    assert [desk.mean_loss(desk.start(), client) for client in range(5)] == pytest.approx(
        desk.column(results, "loss_before")[0], abs=1e-12
    )


@ENGINES
def test_clients_of_q_fedavg_send_their_change_and_one_number(desk, engine):
    """Check the traffic: 3 classes x 5 inputs and 3 biases, and h of Algorithm 2, 8 bytes each in double precision."""
    _, results = desk.train("q-fedavg", engine)
    for result in results:
        assert [client["bytes_up"] for client in result.clients] == [8 * (3 * 5 + 3 + 1)] * 5
        assert [client["bytes_down"] for client in result.clients] == [8 * (3 * 5 + 3)] * 5
        assert result.round["bytes_up"] == 5 * 8 * (3 * 5 + 3 + 1)


@ENGINES
@pytest.mark.parametrize("spec", ["fedlc:tau=0", "fedsam:rho=0", "q-fedavg:q=0"])
def test_without_its_idea_it_is_fedavg(desk, engine, spec: str):
    np.testing.assert_allclose(
        desk.train(spec, engine)[0], desk.train("fedavg", engine)[0], rtol=0, atol=1e-12
    )


@ENGINES
@pytest.mark.parametrize(
    "optimizer", [{"momentum": 0.9, "weight_decay": 0.1}, {"optimizer": "adam", "lr": 0.01}]
)
def test_fedrep_moves_the_head_first_and_the_rest_last(desk, engine, optimizer: dict):
    """Check what one client keeps and sends against three epochs of SGD by torch.optim on the same batches."""
    server = desk.training("fedrep", engine, "mlp:hidden=4", epochs=3, per_round=1, **optimizer)
    model = type(server.model)(server.model.features, 4, CLASSES).double()
    model.load_state_dict({name: value.clone() for name, value in server.state.model().items()})
    begin = {name: value.clone() for name, value in server.state.model().items()}
    [line] = server.advance().clients
    client = line["client"]
    plan = desk._plan(0, client, min(4, desk.sizes[client]), 3)
    positions, counts = plan.table()
    head, body = list(model.head.parameters()), list(model.features.parameters())
    kind = torch.optim.Adam if "optimizer" in optimizer else torch.optim.SGD
    options = {
        "lr": LR,
        **{name: value for name, value in optimizer.items() if name != "optimizer"},
    }
    steps = {True: kind(head, **options), False: kind(body, **options)}
    for step, count in enumerate(counts[:, 0]):
        rows = desk.held[client][positions[step, 0, :count]]
        model.zero_grad()
        logits = model(torch.from_numpy(desk.x[rows]).double())
        torch.nn.functional.cross_entropy(logits, torch.from_numpy(desk.y[rows])).backward()
        steps[step < 2 * len(counts) // 3].step()
    # Adam counts its steps over both phases here, and each by itself there
    if "optimizer" not in optimizer:
        for name, value in model.named_parameters():
            torch.testing.assert_close(
                server.client_model(client)[name], value.detach(), rtol=0, atol=1e-10
            )
    for name in ("head.weight", "head.bias"):
        assert torch.equal(server.state.params[name], begin[name])  # never sent
    assert not torch.equal(server.state.params["features.1.weight"], begin["features.1.weight"])


@ENGINES
def test_fedrep_with_clients_in_different_epochs(desk, engine):
    """Check that clients of different sizes change phase at different steps in all engines; one epoch is FedPer."""
    for settings in (
        {"epochs": 2, "momentum": 0.5},
        {"epochs": 3, "optimizer": "adam", "lr": 0.02},
    ):
        one, other = (
            desk.training("fedrep", e, "mlp:hidden=4", **settings) for e in (engine, Loop())
        )
        for _ in range(2):
            one.advance()
            other.advance()
        for client in range(5):
            for name, value in one.client_model(client).items():
                torch.testing.assert_close(
                    value, other.client_model(client)[name], rtol=0, atol=1e-12
                )
    once, fedper = (
        desk.train(method, engine, model="mlp:hidden=4", epochs=1)[1]
        for method in ("fedrep", "fedper")
    )
    assert desk.column(once, "local_loss") == desk.column(fedper, "local_loss")


@ENGINES
def test_lg_fedavg_averages_the_head_alone(desk, engine):
    server = desk.training("lg-fedavg", engine, "mlp:hidden=4")
    alone = desk.training("local", engine, "mlp:hidden=4")
    begin = server.state.model()
    server.advance()
    alone.advance()
    share = desk.sizes / desk.sizes.sum()
    for name, value in server.state.params.items():
        own = torch.stack([alone.client_model(client)[name] for client in range(5)])
        if name.startswith("head"):
            torch.testing.assert_close(
                value, torch.tensordot(torch.from_numpy(share), own, 1), rtol=0, atol=1e-12
            )
        else:
            assert torch.equal(value, begin[name])
            for client in range(5):
                torch.testing.assert_close(
                    server.client_model(client)[name], own[client], rtol=0, atol=1e-12
                )


@pytest.mark.parametrize("method", ["fedrep", "lg-fedavg", "fedper"])
def test_a_model_without_a_head_is_refused(desk, method: str):
    class Bare(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(5, 3))

        def forward(self, x):
            return x @ self.w

    with pytest.raises(FedskewError, match="name its last layer 'head'"):
        desk.training(method, model=Bare())


@dataclass(frozen=True)
class HalfWay(Algorithm):
    """Starts local training half-way between the received weights and one gradient step from them."""

    requires = frozenset({"gradient_at"})

    def on_receive(self, view: View) -> tuple[Tensors, Tree]:
        gradient = view.gradient_at(view.start)
        moved = {name: value - 0.5 * gradient[name] for name, value in view.start.items()}
        return moved, view.client_state


@ENGINES
def test_on_receive_by_hand(desk, engine):
    w = desk.start()
    for round in range(ROUNDS):
        ended = []
        for client in range(5):
            batches = desk.batches(round, client)
            mine = w - 0.5 * desk.mean_gradient(w, batches[0])
            for rows in batches:
                mine = mine - LR * desk.mean_gradient(mine, rows)
            ended.append(mine)
        w = np.tensordot(desk.sizes / desk.sizes.sum(), np.stack(ended), 1)
    np.testing.assert_allclose(desk.train(HalfWay(), engine)[0], w, rtol=0, atol=1e-10)


@dataclass(frozen=True)
class HeadNeverMoves(Algorithm):
    """FedBABU's local training: the head stays as it began."""

    def trainable(self, layout: Layout, epoch: int, epochs: int) -> frozenset[str]:
        return layout.parameters - layout.head


@ENGINES
def test_a_layer_that_is_never_trained_stays_under_weight_decay_and_momentum(desk, engine):
    server = desk.training(HeadNeverMoves(), engine, "mlp:hidden=4", weight_decay=0.1, momentum=0.9)
    begin = server.state.model()
    for _ in range(2):
        server.advance()
    for name, value in server.state.params.items():
        assert torch.equal(value, begin[name]) == name.startswith("head")
