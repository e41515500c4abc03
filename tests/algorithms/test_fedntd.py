"""FedNTD against a NumPy calculation with its gradient written out, its identities, and its divergence alone."""

import numpy as np
import pytest
import torch

import fedskew as fs
from fedskew.algorithms import FedNTD
from fedskew.core.errors import FedskewError
from fedskew.data.dataset import Dataset, Rows
from fedskew.data.federation import Federation
from fedskew.data.partition import Partition
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked

ENGINES = pytest.mark.parametrize(
    "engine", [Loop(), Stacked(mode="stack")], ids=["loop", "stacked"]
)
LR, ROUNDS = 0.3, 3


def others(z: np.ndarray, y: int, tau: float) -> np.ndarray:
    """The softmax over all classes but y, one class after the other; 0 at y."""
    total = sum(np.exp(z[c] / tau) for c in range(len(z)) if c != y)
    return np.array([0.0 if c == y else np.exp(z[c] / tau) / total for c in range(len(z))])


def by_hand(desk, beta: float, tau: float) -> np.ndarray:
    w = desk.start()
    for round in range(ROUNDS):
        ended = []
        for client in range(5):
            mine = w.copy()
            for rows in desk.batches(round, client):
                slope = desk.mean_gradient(mine, rows)
                for row in rows:
                    x, y = np.append(desk.x[row].astype(np.float64), 1.0), desk.y[row]
                    push = (others(mine @ x, y, tau) - others(w @ x, y, tau)) / tau
                    slope = slope + beta * np.outer(push, x) / len(rows)
                mine = mine - LR * slope
            ended.append(mine)
        w = np.tensordot(desk.sizes / desk.sizes.sum(), np.stack(ended), 1)
    return w


@ENGINES
@pytest.mark.parametrize(("beta", "tau"), [(1.0, 1.0), (0.3, 3.0), (4.0, 0.5)])
def test_by_hand(desk, engine, beta: float, tau: float):
    found, _ = desk.train(f"fedntd:beta={beta},tau={tau}", engine)
    np.testing.assert_allclose(found, by_hand(desk, beta, tau), rtol=0, atol=1e-10)
    assert np.abs(found - desk.train("fedavg", engine)[0]).max() > 1e-3


@ENGINES
def test_without_distillation_it_is_fedavg(desk, engine):
    found, results = desk.train("fedntd:beta=0", engine)
    plain, reports = desk.train("fedavg", engine)
    np.testing.assert_allclose(found, plain, rtol=0, atol=1e-12)
    np.testing.assert_allclose(by_hand(desk, 0.0, 1.0), plain, rtol=0, atol=1e-10)
    for name in ("local_loss", "steps"):
        for ours, theirs in zip(
            desk.column(results, name), desk.column(reports, name), strict=True
        ):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


@ENGINES
def test_a_single_local_step_is_fedavg(norm_net, engine):
    """The divergence is least where the round begins, with BatchNorm only if both see the batch's own statistics."""
    one, other = (
        norm_net.training(name, engine, epochs=1, batch_size=64)
        for name in ("fedntd:beta=5", "fedavg")
    )
    for name, value in other.state.model().items():
        torch.testing.assert_close(one.state.model()[name], value, rtol=0, atol=1e-12)
    more = norm_net.training("fedntd:beta=5", engine, epochs=2, batch_size=64)
    plain = norm_net.training("fedavg", engine, epochs=2, batch_size=64)
    assert (more.state.params["head.weight"] - plain.state.params["head.weight"]).abs().max() > 1e-3


@pytest.mark.parametrize("tau", [0.1, 1.0, 4.0])
def test_divergence_and_its_gradient_row_by_row(tau: float):
    draw = torch.Generator().manual_seed(0)
    here, there = (20 * torch.randn(6, 5, generator=draw, dtype=torch.float64) for _ in range(2))
    labels = torch.tensor([0, 1, 2, 3, 4, 0])
    here.requires_grad_()
    found = FedNTD(tau=tau).divergence(here, there, labels)
    [slope] = torch.autograd.grad(found.sum(), here)
    for row, y in enumerate(labels.tolist()):
        rest = [c for c in range(5) if c != y]
        here_q, there_q = ((z[row, rest] / tau).log_softmax(0) for z in (here.detach(), there))
        torch.testing.assert_close(
            found[row], (there_q.exp() * (there_q - here_q)).sum(), rtol=1e-12, atol=1e-12
        )
        torch.testing.assert_close(
            slope[row, rest], (here_q.exp() - there_q.exp()) / tau, rtol=0, atol=1e-12
        )
        assert slope[row, y] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("classes", [1, 2, 3])
def test_few_classes_and_large_logits_stay_finite(dtype: torch.dtype, classes: int):
    """One other class or none leaves nothing to distil."""
    here = (torch.arange(4 * classes, dtype=dtype).reshape(4, classes) * 1e4).requires_grad_()
    labels = torch.arange(4) % classes
    found = FedNTD(tau=0.5).divergence(here, -here.detach(), labels)
    [slope] = torch.autograd.grad(found.sum(), here)
    assert torch.isfinite(found).all()
    assert torch.isfinite(slope).all()
    if classes < 3:
        assert not found.any()
        assert not slope.any()


@pytest.mark.parametrize("spec", ["fedntd:beta=-1", "fedntd:tau=0"])
def test_options_out_of_range_are_refused(desk, spec: str):
    with pytest.raises(FedskewError, match=spec[7:].split("=")[0]):
        desk.training(spec)


@pytest.mark.parametrize(
    ("task", "y", "names"),
    [
        ("regression", np.linspace(0, 1, 6, dtype=np.float32), ()),
        ("multilabel", np.eye(3, dtype=np.uint8)[[0, 1, 2] * 2], "abc"),
    ],
)
def test_tasks_without_one_class_a_row_are_refused(task: str, y: np.ndarray, names: str):
    rows = Rows(np.eye(6, 5, dtype=np.float32), y)
    fed = Federation(
        Dataset("made up", rows, rows, tuple(names)),
        Partition.from_lists([np.arange(3), np.arange(3, 6)]),
    )
    with pytest.raises(
        FedskewError, match=f"fedntd looks at classes, and the targets of task {task}"
    ):
        fs.train(fed, "logreg", "fedntd", task=task, rounds=1, folder=False, device="cpu")


def test_it_conforms():
    assert fs.check("fedntd:beta=0.5,tau=3").passed  # tests/testing has the defaults


@pytest.mark.parametrize("method", ["fedntd", "fedlc"])
def test_binary_has_one_output_and_is_refused(method: str):
    fed = fs.split(
        (np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2), "iid", clients=2
    )
    with pytest.raises(
        FedskewError, match=f"{method} needs one output per class.*use task=classification"
    ):
        fs.train(fed, "logreg", method, task="binary", rounds=1, folder=False)
