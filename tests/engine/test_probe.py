"""Probes before clients are configured: by hand, equal in every engine, and at each client's start model."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedskew.engine.loop import Loop
from fedskew.engine.plan import Plan
from fedskew.engine.stacked import Stacked
from fedskew.server.server import Server

WHAT = ("loss", "loss_variance", "gradient_variance")
STACKS = {
    "stack": Stacked(mode="stack"),
    "one a stack": Stacked(1, "stack"),
    "loop": Stacked(mode="loop"),
    "auto": Stacked(),
}
BATCH = 6  # of clients with 9, 5, 4, 7 and 2 rows
MODELS = ["logreg", "mlp:hidden=5", "tabular:hidden=5+4"]  # the last with BatchNorm


def probe(
    lab, training: Server, engine, what=WHAT, clients=None, rows: int = BATCH
) -> dict[str, np.ndarray]:
    members = np.arange(training.trained_on.clients) if clients is None else np.array(clients)
    full = np.full(len(members), 1)
    plan = Plan.draw(
        0, training.round, members, training.trained_on.sizes[members], full * rows, full
    )
    return engine.probe(training.job, lab.start(training, plan), plan, what)


def by_hand(training: Server, client: int, rows: int = BATCH) -> list[float]:
    """Return the measurements row by row with plain autograd, on the client's own model in evaluation mode."""
    size = training.trained_on.sizes[client]
    plan = Plan.draw(
        0, training.round, np.array([client]), np.array([size]), np.array([rows]), np.array([1])
    )
    state = training.client_model(client)
    weights = {
        name: value.clone().requires_grad_()
        for name, value in state.items()
        if name in training.state.params
    }
    model, losses, gradients = training.model.eval(), [], []
    for row in training.trained_on.of(client)[plan.order[:rows]]:
        logits = functional_call(model, {**state, **weights}, (training.job.x[row : row + 1],))
        loss = F.cross_entropy(logits, training.job.y[row : row + 1])
        found = torch.autograd.grad(loss, list(weights.values()))
        losses.append(loss.item())
        gradients.append(np.concatenate([gradient.numpy().ravel() for gradient in found]))
    mean = sum(gradients) / len(gradients)
    spread = sum(float(((gradient - mean) ** 2).sum()) for gradient in gradients) / len(gradients)
    return [float(np.mean(losses)), float(np.var(losses)), spread]


@pytest.mark.parametrize("norm", ["aggregate", "local"])
@pytest.mark.parametrize("model", MODELS)
def test_by_hand_and_alike_in_every_engine(lab, model: str, norm: str):
    # Kept BatchNorm is each client's own by now
    training = lab.run(2, None, "fedavg", model, Loop(), norm=norm)
    wanted = np.array([by_hand(training, client) for client in range(5)])
    assert (wanted > 1e-4).all()
    reference = probe(lab, training, Loop())
    np.testing.assert_allclose(np.array(list(reference.values())).T, wanted, rtol=0, atol=1e-10)
    for name, engine in STACKS.items():
        found = probe(lab, training, engine)
        assert list(found) == list(WHAT), name
        for number in WHAT:
            assert found[number].dtype == np.float64
            np.testing.assert_allclose(
                found[number], reference[number], rtol=0, atol=1e-10, err_msg=name
            )


@pytest.mark.parametrize("norm", ["aggregate", "local"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("room", [1, 3, 1000])
def test_on_all_rows_in_pieces(lab, monkeypatch, model: str, norm: str, room: int):
    training = lab.run(2, None, "fedavg", model, Loop(), norm=norm)
    weights = 8 * sum(value.numel() for value in training.state.params.values())
    monkeypatch.setattr("fedskew.engine.loop.GRADIENTS_AT_ONCE", room * weights)
    wanted = np.array([by_hand(training, client, 9) for client in range(5)])
    for engine in (
        Loop(),
        Stacked(1, "stack"),
        Stacked(40 * weights, "stack"),
        Stacked(mode="stack"),
    ):
        found = probe(lab, training, engine, rows=9)
        np.testing.assert_allclose(np.array(list(found.values())).T, wanted, rtol=0, atol=1e-10)


class Largest(TorchDispatchMode):
    """Records the bytes of the largest tensor that is created."""

    bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        self.bytes = max(
            [
                self.bytes,
                *(out.nbytes for out in tree_leaves(made) if isinstance(out, torch.Tensor)),
            ]
        )
        return made


@pytest.mark.parametrize("engine", [Loop(), Stacked(4 << 20, "stack")], ids=["loop", "stacked"])
def test_all_rows_of_a_large_client_take_bounded_memory(lab, monkeypatch, engine):
    monkeypatch.setattr("fedskew.engine.loop.GRADIENTS_AT_ONCE", 4 << 20)
    fed = lab.federation(rows=[list(range(27)) * 20, [1, 2, 3]])
    # 10,003 weights, 80 kB: of 540 rows 43 MB
    training = lab.training(fed, "fedavg", "mlp:hidden=1000")
    with Largest() as largest:
        found = probe(lab, training, engine, ("gradient_variance",), rows=540)
    assert 1 << 16 < largest.bytes < 5 << 20
    assert found["gradient_variance"][0] == pytest.approx(by_hand(training, 0, 540)[2], rel=1e-10)


def test_gradients_of_single_rows_are_taken_in_stacks_however_large_the_model(lab, monkeypatch):
    def refuse(*_):
        raise AssertionError("one row after the other")

    monkeypatch.setattr("fedskew.engine.cost.STACK_BELOW", 0)
    monkeypatch.setattr(Loop, "probe", refuse)
    training = lab.training(None, "fedavg", MODELS[1])
    assert (probe(lab, training, Stacked(), ("gradient_variance",))["gradient_variance"] > 0).all()
    with pytest.raises(AssertionError, match="one row after the other"):
        probe(lab, training, Stacked(), ("loss",))


@pytest.mark.parametrize("engine", [Loop(), *STACKS.values()], ids=["loop", *STACKS])
def test_some_clients_in_some_order(lab, engine):
    training = lab.run(2, None, "fedavg", MODELS[2], Loop(), norm="local")
    wanted = [by_hand(training, client)[2] for client in (3, 0)]
    found = probe(lab, training, engine, ("gradient_variance",), [3, 0])
    assert list(found) == ["gradient_variance"]
    np.testing.assert_allclose(found["gradient_variance"], wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("engine", [Loop(), STACKS["stack"]], ids=["loop", "stacked"])
@pytest.mark.parametrize("model", MODELS)
def test_one_row_and_one_row_many_times_do_not_vary(lab, model: str, engine):
    fewest = 2 if model == MODELS[2] else 1  # BatchNorm refuses a client with a single row
    fed = lab.federation(rows=[[3] * fewest, [4] * 6, [5, 6, 7, 8, 9]])
    found = probe(lab, lab.training(fed, "fedavg", model), engine)
    for name in ("loss_variance", "gradient_variance"):
        assert found[name][:2] == pytest.approx([0, 0], abs=1e-20)
        assert found[name][2] > 1e-6
        assert fewest == 2 or found[name][0] == 0


@pytest.mark.parametrize("engine", [Loop(), STACKS["stack"]], ids=["loop", "stacked"])
def test_nothing_changes_by_looking(lab, engine):
    training = lab.run(1, None, "fedavg", MODELS[2], engine, norm="local")
    before = {name: value.clone() for name, value in training.checkpoint().items()}
    probe(lab, training, engine)
    after = training.checkpoint()
    assert before.keys() == after.keys()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert all(value.grad is None for value in training.model.parameters())


@pytest.mark.parametrize("engine", [Loop(), STACKS["stack"]], ids=["loop", "stacked"])
def test_frozen_weights_and_dropout_take_no_part(lab, engine):
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head, self.dropout = nn.Linear(6, 4), nn.Linear(4, 3), nn.Dropout(0.5)
            self.first.weight.requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.dropout(torch.tanh(self.first(x))))

    training = lab.training(None, "fedavg", Odd())
    wanted = [by_hand(training, client) for client in range(5)]
    found = probe(lab, training, engine)
    np.testing.assert_allclose(np.array(list(found.values())).T, wanted, rtol=0, atol=1e-10)


def test_float32_is_near(lab):
    plain, wide = (
        lab.training(None, "fedavg", MODELS[1], dtype=dtype) for dtype in ("float32", "float64")
    )
    for engine in (Loop(), STACKS["stack"]):
        for name, value in probe(lab, plain, engine).items():
            np.testing.assert_allclose(value, probe(lab, wide, engine)[name], rtol=1e-4)
