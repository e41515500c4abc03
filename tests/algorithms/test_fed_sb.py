"""Fed-SB: its start by plain autograd, exactness, what moves, bytes, clock, privacy, resuming, and what it refuses."""

import copy
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedskew as fs
from fedskew.algorithms.contract import resolve
from fedskew.algorithms.first_gradient import FirstGradient, asks_for_first_gradient
from fedskew.core.config import Settings
from fedskew.core.errors import FedskewError
from fedskew.deploy.remote_server import refuse
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked
from fedskew.fleet.clock import transfer_seconds
from fedskew.models.build import build
from fedskew.models.low_rank import factors_of, plain_weights

ENGINES = pytest.mark.parametrize(
    "engine", [Loop(), Stacked(mode="stack")], ids=["loop", "stacked"]
)
MODEL = "mlp:hidden=6+4"  # weights 6 x 5 and 4 x 6, and a head 3 x 4 with 3 biases
SCALE = 3 / 2
METHOD = "fedavg + fed-sb:rank=2,alpha=3"


def mean_gradients(desk, model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the mean of the clients' gradients, each on all its rows, weighted by rows."""
    total = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    for size, rows in zip(desk.sizes, desk.held, strict=True):
        outputs = model(torch.from_numpy(desk.x[rows]).double())
        loss = F.cross_entropy(outputs, torch.from_numpy(desk.y[rows]))
        grads = torch.autograd.grad(loss, list(model.parameters()))
        for name, grad in zip(total, grads, strict=True):
            total[name] += float(size) / desk.sizes.sum() * grad
    return total


def of_rank(matrix: np.ndarray, rank: int) -> np.ndarray:
    left, values, right = np.linalg.svd(matrix)
    return sum(values[i] * np.outer(left[:, i], right[i]) for i in range(rank))


def effective(training, tensors) -> dict[str, torch.Tensor]:
    return plain_weights(training.model, tensors)


@ENGINES
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_start_by_hand(desk, engine, optimizer: str):
    """The model after the first round is W0 plus the nearest change of rank 2 to a first step of full training."""
    model = build(MODEL, (5,), 3, seed=0).double()
    training = desk.training(METHOD, engine, MODEL, lr=0.2, optimizer=optimizer)
    training.advance()
    found = effective(training, training.state.model())
    changed = 0
    for name, gradient in mean_gradients(desk, model).items():
        start = model.get_parameter(name).detach()
        if gradient.dim() != 2 or name.startswith("head"):
            assert torch.equal(found[name], start), name
            continue
        step = -0.2 * gradient
        if optimizer == "adam":
            step = -0.2 * gradient / (gradient.abs() + 1e-8)
        wanted = start.numpy() + of_rank(step.numpy(), 2)
        np.testing.assert_allclose(found[name].numpy(), wanted, rtol=0, atol=1e-10)
        prefix = name.removesuffix("weight")
        b = training.state.buffers[f"{prefix}lora_b"].numpy()
        a = training.state.buffers[f"{prefix}lora_a"].numpy()
        r = training.state.params[f"{prefix}lora_r"].numpy()
        np.testing.assert_allclose(b.T @ b, np.eye(2), rtol=0, atol=1e-12)
        np.testing.assert_allclose(a @ a.T, np.eye(2), rtol=0, atol=1e-12)
        values = np.linalg.svd(step.numpy())[1][:2]
        np.testing.assert_allclose(r, np.diag(values / SCALE), rtol=0, atol=1e-12)
        changed += 1
    assert changed == 2


@ENGINES
def test_the_servers_model_is_the_mean_of_the_clients_models(desk, engine):
    training = desk.training("fedprox:mu=0.1 + fed-sb:rank=3,alpha=2", engine, MODEL)
    training.advance()
    rounds = training.rounds
    plan = training.participation.invite(1, 5, None, rounds._traffic, (1,), np.zeros(0, int)).plan
    models = {}
    for updates in engine.train(training.job, rounds.start(plan, 0.3, {}), plan):
        for i, client in enumerate(updates.report.clients.tolist()):
            own = {name: value[i] for name, value in updates.trained.items()}
            models[client] = effective(training, {**training.state.buffers, **own})
    training.advance()
    after = effective(training, training.state.model())
    for name, value in after.items():
        shares = desk.sizes / desk.sizes.sum()
        mean = sum(float(share) * models[client][name] for client, share in enumerate(shares))
        assert float((value - mean).abs().max()) < 1e-10, name
    assert float((models[0]["head.weight"] - models[1]["head.weight"]).abs().max()) > 1e-3


@ENGINES
def test_only_r_and_the_head_move_after_the_first_round(desk, engine):
    training = desk.training(METHOD, engine, MODEL)
    training.advance()
    states = [copy.deepcopy(training.state)]
    fixed = copy.deepcopy(dict(training.model.named_parameters()))
    for _ in range(2):
        training.advance()
        states.append(copy.deepcopy(training.state))
    prefixes = ("features.1.", "features.3.")
    assert set(states[0].params) == {f"{prefix}lora_r" for prefix in prefixes} | {
        "head.weight",
        "head.bias",
    }
    for earlier, later in pairwise(states):
        for name, value in later.params.items():
            assert float((value - earlier.params[name]).abs().max()) > 1e-6, name
        assert earlier.buffers.keys() == later.buffers.keys()
        for name, value in later.buffers.items():
            assert torch.equal(value, earlier.buffers[name]), name
    for name, value in training.model.named_parameters():
        if not value.requires_grad:
            assert torch.equal(value, fixed[name]), name


def test_bytes_and_clock_by_hand(desk):
    """Weights 6 x 5 and 4 x 6 with rank 2: R twice 4 numbers, the head 12 + 3, B and A 12 + 10 and 8 + 12."""
    training = desk.training(METHOD, model=MODEL, fleet="uniform")
    results = [training.advance() for _ in range(3)]
    rows = [result.round for result in results]
    small = 5 * 8 * (2 * 4 + 15)
    factors = 8 * (12 + 10 + 8 + 12)
    assert rows[0]["bytes_up"] == 5 * 8 * (30 + 24)
    assert rows[0]["bytes_down"] == small + 5 * factors
    for row in rows[1:]:
        assert (row["bytes_up"], row["bytes_down"]) == (small, small)
    for first, later in zip(results[0].clients, results[1].clients, strict=True):
        # One pass over the rows in place of two epochs
        assert first["training_seconds"] == pytest.approx(later["training_seconds"] / 2)
    machines = training.participation.fleet.machines(np.arange(5))
    slowest = max(client["seconds"] for client in results[0].clients)
    sending = float(transfer_seconds(machines, factors, 0).max())
    assert rows[0]["simulated_seconds"] == pytest.approx(slowest + sending)
    assert rows[1]["clock"] == pytest.approx(sum(row["simulated_seconds"] for row in rows[:2]))


def test_the_first_round_is_repeated_where_nobody_answers(desk, monkeypatch):
    training = desk.training(METHOD, model=MODEL)
    with monkeypatch.context() as patched:
        patched.setattr("fedskew.topology.parallel.train_and_add", lambda *_: [])
        patched.setattr("fedskew.topology.parallel.ParallelRounds._check_valid", lambda *_: None)
        training.advance()
    assert not any(value.any() for value in training.state.buffers.values())
    training.advance()
    for name, value in training.state.buffers.items():
        assert value.any(), name


def test_privacy_covers_the_first_round(desk):
    """Without noise, B and A are those of clipped gradients; with it, epsilon counts the round like every other."""
    pytest.importorskip("dp_accounting")
    how = {"model": MODEL, "weights": "uniform"}
    noisy = desk.training("fedavg + fed-sb:rank=2 + dp:noise=1,clip=0.5", **how)
    known = desk.training("fedavg + dp:noise=1,clip=0.5", **how)
    for _ in range(3):
        mine, other = noisy.advance().round, known.advance().round
        assert mine["dp_epsilon"] == other["dp_epsilon"]
    clear = desk.training("fedavg + fed-sb:rank=2 + dp:noise=0,clip=0.01", **how)
    clear.advance()
    model = build(MODEL, (5,), 3, seed=0).double()
    mean = dict.fromkeys(("features.1.weight", "features.3.weight"), 0.0)
    for rows in desk.held:
        loss = F.cross_entropy(
            model(torch.from_numpy(desk.x[rows]).double()), torch.from_numpy(desk.y[rows])
        )
        grads = torch.autograd.grad(loss, [model.get_parameter(name) for name in mean])
        norm = float(sum(grad.square().sum() for grad in grads) ** 0.5)
        for name, grad in zip(mean, grads, strict=True):
            mean[name] = mean[name] + min(1.0, 0.01 / norm) * grad.numpy() / 5
    found = effective(clear, clear.state.model())
    for name, gradient in mean.items():
        wanted = model.get_parameter(name).detach().numpy() + of_rank(-0.3 * gradient, 2)
        np.testing.assert_allclose(found[name].numpy(), wanted, rtol=0, atol=1e-10)


def test_the_first_round_has_the_additions_of_the_method():
    first = asks_for_first_gradient(
        resolve("scaffold + fed-sb:rank=2 + median + quantize:bits=4 + attack:share=0.2")
    )
    assert first.parts[0] is FirstGradient
    assert [part.label() for part in first.parts[1:]] == ["median", "quantize", "attack"]
    assert first.bits == 4
    assert first.share == 0.2


@pytest.mark.parametrize(
    "method",
    [
        "scaffold",
        "fedadam",
        "fedrep",
        "moon",
        "q-fedavg",
        "fedavg + topk",
        "fedavg + quantize",
        "fedavg + median",
        "fedavg + finetune",
    ],
)
def test_engines_agree_with_other_methods(desk, method: str):
    found = []
    for engine in (Loop(), Stacked(mode="stack")):
        training = desk.training(f"{method} + fed-sb:rank=2", engine, MODEL, lr=0.1)
        for _ in range(3):
            training.advance()
        found.append(effective(training, training.state.model()))
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("options", "alpha"), [("rank=4", 4), ("rank=4,alpha=6", 6), ("", 16)])
def test_alpha_is_the_rank_by_default(options: str, alpha: float):
    adapters = resolve(f"fedprox + fed-sb:{options} + quantize".replace(": ", " ")).adapters
    assert adapters.alpha == alpha


def test_engines_agree_at_rank_1(desk):
    """Factors with an axis of size 1, whose strides mean nothing."""
    found = []
    for engine in (Loop(), Stacked(mode="stack")):
        training = desk.training("fedavg + fed-sb:rank=1", engine, MODEL)
        for _ in range(3):
            training.advance()
        found.append(effective(training, training.state.model()))
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, rtol=0, atol=1e-10)


def test_directions_that_the_gradient_lacks_are_0():
    b, r, a = factors_of(torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 0.0]]), 2)
    torch.testing.assert_close(b @ r @ a, torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 0.0]]))
    assert r[0, 0].item() == pytest.approx(5)
    assert not b[:, 1].any()
    assert not a[1].any()
    assert not r[1].any()


def test_a_head_of_zeros_is_refused(desk):
    model = build(MODEL, (5,), 3, seed=0)
    nn.init.zeros_(model.head.weight)
    with pytest.raises(FedskewError, match="the gradient of every layer to adapt is 0"):
        desk.training(METHOD, model=model).advance()


class Transformer(nn.Module):
    """Tokens of five features through PyTorch's own layer, whose fast path in evaluation mode has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.unflatten(1, (-1, 1)).expand(-1, -1, 4) * torch.arange(1, 5).to(x)
        return self.head(self.layer(rows).mean(1))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("method", ["fedavg + fed-sb:rank=2", "scaffold:option=I"])
def test_the_gradient_of_attention_on_all_rows(desk, method: str):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Transformer()
    found = []
    for engine in (Loop(), Stacked(mode="stack")):
        training = desk.training(method, engine, copy.deepcopy(model), lr=0.05)
        for _ in range(2):
            training.advance()
        found.append(effective(training, training.state.model()))
    assert torch.backends.mha.get_fastpath_enabled()
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, rtol=0, atol=1e-10)
    moved = found[0]["layer.linear1.weight"] - model.layer.linear1.weight.detach()
    assert float(moved.abs().max()) > 1e-3


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("fedavg + fed-sb + ffa-lora", "both put adapters into the model: keep one"),
        ("fedbuff + fed-sb", "the rounds are not those of clients that train separately"),
        ("fedavg + stratify-rounds + fed-sb", "the rounds are not those of clients"),
        ("fedavg + hierarchical + fed-sb", "the rounds are not those of clients"),
        ("central + fed-sb", "all rows are in one place"),
        ("ditto + fed-sb", "clients have models of their own"),
        ("ifca + fed-sb", "clients have models of their own"),
        ("apfl + fed-sb", "clients have models of their own"),
        ("lg-fedavg + fed-sb", "features.1.lora_r stays with its client"),
        ("fedavg + fed-sb:rank=0", "rank"),
    ],
)
def test_refusals(desk, method: str, message: str):
    with pytest.raises(FedskewError, match=message):
        desk.training(method, model=MODEL)


def test_nodes_and_losses_of_several_rows_are_refused():
    with pytest.raises(FedskewError, match="the factors of fed-sb would travel once"):
        refuse(resolve("fedavg + fed-sb"), Settings())
    draw = np.random.default_rng(0)
    times = np.column_stack([draw.uniform(1, 9, 40), draw.integers(0, 2, 40)])
    fed = fs.split(
        (draw.normal(size=(40, 3)).astype(np.float32), times), "iid", clients=2, task="survival"
    )
    with pytest.raises(FedskewError, match="adds up losses over all rows of a client"):
        fs.train(fed, "mlp:hidden=4", METHOD, task="survival", folder=False, device="cpu")


@pytest.mark.parametrize("after", [1, 2])
def test_kill_and_resume_gives_the_same_bits(desk, tmp_path, after: int):
    how = {"rounds": 4, "device": "cpu", "checkpoint_every": 1, "per_round": 3}
    fed = desk.federation()

    def kill(result, rounds: int) -> None:
        if result.round["round"] == after:
            raise KeyboardInterrupt

    whole = fs.train(fed, MODEL, METHOD, folder=tmp_path / "whole", **how)
    with pytest.raises(KeyboardInterrupt):
        fs.train(fed, MODEL, METHOD, folder=tmp_path / "cut", callbacks=kill, **how)
    again = fs.resume(tmp_path / "cut", fed=fed)
    assert set(whole.weights) == set(build(MODEL, (5,), 3, seed=0).state_dict())
    for name, value in whole.weights.items():
        assert torch.equal(again.weights[name], value), name
    columns = [name for name in whole.rounds if "seconds" not in name]
    assert again.rounds[columns].equals(whole.rounds[columns])
    opened = fs.open_run(tmp_path / "cut")
    assert opened.predict(desk.x[:5], proba=True).equals(whole.predict(desk.x[:5], proba=True))
    # All but the factors, which clients have: R twice 4 numbers and the head
    assert whole.summary["trained_bytes"] == 4 * (2 * 4 + 15)


def test_workers_give_the_same_bits(desk):
    found = []
    for workers in (None, 1):
        run = fs.train(
            desk.federation(), MODEL, METHOD, rounds=3, workers=workers, folder=False, device="cpu"
        )
        found.append(run.weights)
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, rtol=0, atol=1e-6)
