"""Low-rank adapters: the family against a calculation in NumPy, its identities, bytes, errors, and what is used."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedskew as fs
from fedskew.algorithms.contract import resolve
from fedskew.core.errors import FedskewError
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked
from fedskew.models.build import build
from fedskew.models.low_rank import AdapterLayout, is_adapted, merged, plain_weights

ENGINES = pytest.mark.parametrize(
    "engine", [Loop(), Stacked(mode="stack")], ids=["loop", "stacked"]
)
FAMILY = ("lora", "ffa-lora", "flora", "fedex-lora", "fedsa-lora")
EXACT = ("ffa-lora", "flora", "fedex-lora")
OPTIONS = "rank=2,alpha=3,head=false"
SCALE = 3 / 2


class ByHand:
    """The softmax regression of ``Desk`` with an adapter, W0 + scale * B A, in NumPy; biases are frozen."""

    def __init__(self, desk, training) -> None:
        self.desk = desk
        layer = training.model.head
        self.w0 = layer.lora_fixed.detach().numpy().copy()
        self.bias = layer.bias.detach().numpy().copy()
        self.a = layer.lora_a.detach().numpy().copy()
        self.b = layer.lora_b.detach().numpy().copy()
        self.shares = desk.sizes / desk.sizes.sum()

    def train(self, w0, a, b, round: int, client: int, trains_a: bool):
        for rows in self.desk.batches(round, client):
            w = np.hstack([w0 + SCALE * b @ a, self.bias[:, None]])
            slope = self.desk.mean_gradient(w, rows)[:, :-1]
            step_a = SCALE * b.T @ slope if trains_a else 0.0
            a, b = a - 0.3 * step_a, b - 0.3 * SCALE * slope @ a.T
        return a, b

    def federate(self, method: str, fresh) -> list[np.ndarray]:
        """Return the adapted weight of every client after three rounds, and what would be the means of products."""
        w0, a, own = self.w0, self.a, [self.b] * 5
        for round in range(3):
            ended = []
            for client in range(5):
                ended.append(self.train(w0, a, own[client], round, client, method != "ffa-lora"))
            mean_a = sum(p * a for p, (a, _) in zip(self.shares, ended, strict=True))
            mean_b = sum(p * b for p, (_, b) in zip(self.shares, ended, strict=True))
            product = sum(p * b @ a for p, (a, b) in zip(self.shares, ended, strict=True))
            if method == "flora":
                w0, a, own = w0 + SCALE * product, fresh(round), [np.zeros_like(mean_b)] * 5
            elif method == "fedex-lora":
                w0 = w0 + SCALE * (product - mean_b @ mean_a)
                a, own = mean_a, [mean_b] * 5
            elif method == "fedsa-lora":
                a, own = mean_a, [b for _, b in ended]
            else:
                a, own = mean_a, [mean_b] * 5
        return [w0 + SCALE * b @ a for b in own]


def run(desk, method: str, engine, rounds: int = 3, **settings):
    training = desk.training(f"fedavg + {method}:{OPTIONS}", engine, **settings)
    first = copy.deepcopy(training)
    training.starts = []
    for _ in range(rounds):
        training.starts.append(dict(training.state.params))
        training.advance()
    training.starts.append(dict(training.state.params))
    return first, training


def effective(training, tensors) -> dict[str, Tensor]:
    return plain_weights(training.model, tensors)


@ENGINES
@pytest.mark.parametrize("method", FAMILY)
def test_by_hand(desk, engine, method: str):
    first, training = run(desk, method, engine)

    def fresh(round: int) -> np.ndarray:  # A is drawn by the server, from a stream of its own
        return training.starts[round + 1]["head.lora_a"].numpy()

    wanted = ByHand(desk, first).federate(method, fresh)
    for client, weight in enumerate(wanted):
        found = effective(training, training.client_model(client))["head.weight"].numpy()
        np.testing.assert_allclose(found, weight, rtol=0, atol=1e-10)
    assert np.abs(wanted[0] - ByHand(desk, first).w0).max() > 0.05
    assert training.personalised == (method == "fedsa-lora")
    if method == "fedsa-lora":
        assert np.abs(wanted[0] - wanted[1]).max() > 0.01
        assert "head.lora_b" in training.job.shared_model
        assert not training.has_common_model


def models_after_training(training) -> list[dict[str, Tensor]]:
    """Return the models of the clients of the next round, right after local training, without adapters."""
    invited = training.invite()
    found = []
    for updates in training.engine.train(training.job, invited.start, invited.plan):
        for i in range(len(updates.report.clients)):
            own = {name: value[i] for name, value in updates.trained.items()}
            found.append(
                (
                    int(updates.report.clients[i]),
                    effective(training, {**training.state.buffers, **own}),
                )
            )
    training.complete(invited)
    return [model for _, model in sorted(found, key=lambda pair: pair[0])]


@ENGINES
@pytest.mark.parametrize("method", FAMILY[:4])
@pytest.mark.parametrize("model", ["mlp:hidden=6", "tabular:hidden=6+4"])
def test_the_global_model_is_the_mean_of_the_clients_models(desk, engine, method: str, model: str):
    """FFA-LoRA, FLoRA and FedEx-LoRA average full updates; averaging A and B apart does not."""
    training = desk.training(f"fedavg + {method}:rank=3", engine, model=model)
    training.advance()
    models = models_after_training(training)
    after = effective(training, training.state.model())
    gap = 0.0
    for name, value in after.items():
        if value.is_floating_point():
            mean = sum(
                float(size) * one[name] for size, one in zip(desk.sizes, models, strict=True)
            ) / float(desk.sizes.sum())
            gap = max(gap, float((value - mean).abs().max()))
    if method in EXACT:
        assert gap < 1e-10
    else:
        assert gap > 1e-5


def test_what_lora_lacks_is_the_covariance_of_the_factors(desk):
    _, training = run(desk, "lora", Loop(), rounds=1)
    invited = training.invite()
    a, b = {}, {}
    for updates in training.engine.train(training.job, invited.start, invited.plan):
        for i, client in enumerate(updates.report.clients.tolist()):
            a[client] = updates.trained["head.lora_a"][i].numpy()
            b[client] = updates.trained["head.lora_b"][i].numpy()
    training.complete(invited)
    shares = desk.sizes / desk.sizes.sum()
    mean_a = sum(shares[k] * a[k] for k in range(5))
    mean_b = sum(shares[k] * b[k] for k in range(5))
    covariance = sum(shares[k] * (b[k] - mean_b) @ (a[k] - mean_a) for k in range(5))
    product = sum(shares[k] * b[k] @ a[k] for k in range(5))
    layer = training.model.head
    found = effective(training, training.state.model())["head.weight"].numpy()
    lacks = layer.lora_fixed.detach().numpy() + SCALE * product - found
    np.testing.assert_allclose(lacks, SCALE * covariance, rtol=0, atol=1e-12)
    assert np.abs(covariance).max() > 1e-3


@ENGINES
def test_flora_and_fedex_lora_are_alike_for_one_round(desk, engine):
    found = []
    for method in ("flora", "fedex-lora"):
        _, training = run(desk, method, engine, rounds=1)
        found.append(effective(training, training.state.model())["head.weight"])
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)


class Transformer(nn.Module):
    """Tokens of five features through a transformer layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.unflatten(1, (-1, 1)).expand(-1, -1, 4) * torch.arange(1, 5).to(x)
        return self.head(self.layer(rows).mean(1))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 5)),
        nn.Conv1d(1, 4, 3, padding=1),
        nn.BatchNorm1d(4),
        nn.ReLU(),
        nn.Conv1d(4, 6, 2, stride=2, groups=2),
        nn.Flatten(),
        nn.Linear(12, 3),
    )


def made(kind) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind()


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("kind", [Transformer, convolutions])
@pytest.mark.parametrize("method", [*FAMILY, "lora + scaffold", "lora + fedprox:mu=0.1"])
def test_engines_agree_on_attention_and_convolutions(desk, kind, method: str):
    method, _, base = method.partition(" + ")
    found = []
    for engine in (Loop(), Stacked(mode="stack")):
        training = desk.training(
            f"{base or 'fedavg'} + {method}:rank=2", engine, made(kind), lr=0.05
        )
        training.advance()
        training.advance()
        found.append(effective(training, training.client_model(1)))
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, rtol=0, atol=1e-10)
    given = made(kind).double().state_dict()
    moved = {name for name, value in found[0].items() if not torch.equal(value, given[name])}
    if kind is Transformer:
        assert moved == {
            "layer.self_attn.in_proj_weight",
            "layer.self_attn.out_proj.weight",
            "layer.linear1.weight",
            "layer.linear2.weight",
            "head.weight",
            "head.bias",
        }
    else:
        assert moved == {"1.weight", "4.weight", "6.weight", "6.bias"}


@pytest.mark.parametrize("kind", [Transformer, convolutions])
def test_adapters_are_products_and_start_at_nothing(kind):
    model = made(kind).eval()
    x = torch.randn(7, 5)
    wanted = model(x)
    adapted = AdapterLayout(2, 4.0).applied(copy.deepcopy(model), seed=0)
    assert torch.equal(adapted(x), wanted)
    with torch.no_grad():
        for name, value in adapted.named_parameters():
            if name.endswith("lora_b"):
                value.normal_()
    plain = copy.deepcopy(model)
    for name, layer in adapted.named_modules():
        if hasattr(layer, "lora_of"):
            weight = plain.get_parameter(f"{name}.{layer.lora_of}")
            product = 2 * (layer.lora_b @ layer.lora_a).detach()
            weight.data += product.view(weight.shape)
    torch.testing.assert_close(adapted(x), plain(x))
    # In evaluation without gradients PyTorch's transformer layer reads the weights and skips its modules
    with torch.inference_mode():
        torch.testing.assert_close(adapted(x), plain(x))
        assert float((adapted(x) - wanted).abs().max()) > 1e-3
    found = merged(adapted)
    assert not is_adapted(found)
    assert is_adapted(adapted)
    assert [type(layer) for layer in found.modules()] == [type(layer) for layer in model.modules()]
    assert found.state_dict().keys() == model.state_dict().keys()
    assert torch.equal(found(x), adapted(x))


@pytest.mark.parametrize(
    ("target", "layers"),
    [
        ("all", {"layer.self_attn", "layer.self_attn.out_proj", "layer.linear1", "layer.linear2"}),
        ("attention", {"layer.self_attn", "layer.self_attn.out_proj"}),
        ("linear", {"layer.linear1", "layer.linear2"}),
        ("linear2", {"layer.linear2"}),
        ("linear1+self_attn", {"layer.linear1", "layer.self_attn"}),
    ],
)
def test_target(target: str, layers: set[str]):
    method = resolve(f"fedavg + lora:target={target}")
    model = method.adapters.applied(made(Transformer), seed=0)
    assert {name for name, layer in model.named_modules() if hasattr(layer, "lora_of")} == layers
    assert {name for name, value in model.named_parameters() if value.requires_grad} == {
        "head.weight",
        "head.bias",
        *(f"{name}.lora_{factor}" for name in layers for factor in "ab"),
    }


def test_bytes_by_hand(desk):
    """An mlp 5 -> 6 -> 3 with rank 2: A 2 x 5, B 6 x 2, head 18 + 3; the adapted weight has 30."""
    sent = {
        "lora": (10 + 12 + 21, 10 + 12 + 21),
        "ffa-lora": (12 + 21, 12 + 21),
        "flora": (10 + 12 + 21, 10 + 12 + 21 + 30),
        "fedex-lora": (10 + 12 + 21, 10 + 12 + 21 + 30),
        "fedsa-lora": (10 + 21, 10 + 21),
    }
    for method, (up, down) in sent.items():
        training = desk.training(f"fedavg + {method}:rank=2", model="mlp:hidden=6")
        row = training.advance().round
        assert (row["bytes_up"], row["bytes_down"]) == (5 * 8 * up, 5 * 8 * down), method


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("fedavg + ffa-lora + flora", "both put adapters into the model: keep one"),
        (
            "fedavg + lora:target=queries",
            "target=queries fits no layer of Network \\(head=true\\): it has features.1",
        ),
        ("fedavg + lora:target=all+queries", "no layer's name ends in queries: it has features.1"),
        ("scaffold + flora", "clients of scaffold keep a state of the adapters of earlier rounds"),
        ("fedavg + topk + flora", "clients of topk keep a state of the adapters"),
        ("scaffold + fedex-lora", "the server of scaffold does not average"),
        ("fedadam + flora", "the server of fedadam does not average"),
        ("fedavg + median + flora", "a rule other than the mean combines the updates"),
        ("fedbuff + fedex-lora", "the rounds are not those of clients that train separately"),
        ("ditto + flora", "clients have models of their own"),
        ("fedavg + lora:rank=0", "rank"),
        ("fedavg + lora:alpha=0", "alpha"),
    ],
)
def test_refusals(desk, method: str, message: str):
    with pytest.raises(FedskewError, match=message):
        desk.training(method, model="mlp:hidden=4")


def test_a_model_without_a_layer_to_adapt_is_refused(desk):
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(5, 3))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight

    with pytest.raises(FedskewError, match="head=false"):
        desk.training("fedavg + lora", model=Scaled())
    with pytest.raises(FedskewError, match="it has no linear layer, convolution or attention"):
        desk.training("fedavg + lora:head=false", model=Scaled())


def test_tied_weights_are_refused_unless_they_are_left_out(desk):
    """Apart they would be two weights in the model of the run, and the module has room for one."""
    model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 4), nn.Linear(4, 3))
    model[1].weight = model[0].weight
    with pytest.raises(FedskewError, match=r"0\.weight and 1\.weight are one tensor"):
        desk.training("fedavg + lora", model=model)
    desk.training("fedavg + lora:target=2", model=model)
    one = nn.Linear(5, 5)
    desk.training("fedavg + lora", model=nn.Sequential(one, one, nn.Linear(5, 3)))


def test_lazy_layers_are_refused(desk):
    model = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 3))
    with pytest.raises(FedskewError, match=r"0\.weight of Sequential has no size yet"):
        desk.training("fedavg + lora:head=false", model=model)


@pytest.fixture(scope="module")
def rows():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(90, 6)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0.5)


@pytest.mark.parametrize("method", [*FAMILY, "lora + finetune"])
def test_what_is_used_has_plain_weights(rows, tmp_path, method: str):
    fed = fs.split(rows, "dirichlet:alpha=0.5", clients=3)
    how = {"rounds": 3, "device": "cpu", "folder": tmp_path / "run", "checkpoint_every": 1}
    trained = fs.train(fed, "mlp:hidden=5", f"fedavg + {method}", **how)
    opened = fs.open_run(tmp_path / "run")
    wanted = set(build("mlp:hidden=5", (6,), 3, seed=0).state_dict())
    assert set(opened.weights) == set(trained.weights) == wanted
    client = None
    if method == "fedsa-lora":
        client = 1
    new = rows[0][:9]
    score = trained.predict(new, client, proba=True)
    assert not is_adapted(trained.model_in_use(client))
    if method != "lora + finetune":
        assert opened.predict(new, client, proba=True).equals(score)
        resumed = fs.resume(tmp_path / "run", fed=fed)
        assert resumed.predict(new, client, proba=True).equals(score)
    else:
        assert not trained.predict(new, 1, proba=True).equals(score)
    model = trained.model_in_use(client)
    with torch.inference_mode():
        outputs = model(torch.from_numpy(new))
    found = outputs.double().softmax(1).numpy()
    np.testing.assert_allclose(score.iloc[:, 1:].to_numpy(dtype=float), found, atol=1e-6)


@pytest.mark.parametrize("method", FAMILY)
def test_kill_and_resume_gives_the_same_bits(rows, tmp_path, method: str):
    fed = fs.split(rows, "dirichlet:alpha=0.5", clients=3)
    how = {"rounds": 4, "device": "cpu", "checkpoint_every": 1, "per_round": 2}

    def kill(result, rounds: int) -> None:
        if result.round["round"] == 2:
            raise KeyboardInterrupt

    whole = fs.train(fed, "mlp:hidden=5", f"fedavg + {method}", folder=tmp_path / "whole", **how)
    with pytest.raises(KeyboardInterrupt):
        fs.train(
            fed,
            "mlp:hidden=5",
            f"fedavg + {method}",
            folder=tmp_path / "cut",
            callbacks=kill,
            **how,
        )
    again = fs.resume(tmp_path / "cut", fed=fed)
    for name, value in whole.weights.items():
        assert torch.equal(again.weights[name], value), name
    for client in range(3):
        mine, other = whole.model_of(client).state_dict(), again.model_of(client).state_dict()
        assert all(torch.equal(value, other[name]) for name, value in mine.items())


def test_export_has_the_merged_model(rows, tmp_path):
    from fedskew.inference.exported_model import export_model

    fed = fs.split(rows, "iid", clients=3)
    run = fs.train(fed, "mlp:hidden=5", "fedavg + lora", rounds=2, device="cpu", folder=False)
    exported = export_model(run, tmp_path / "model.pt2", "torch")
    assert exported.difference < 1e-5
    program = torch.export.load(str(tmp_path / "model.pt2"))
    assert not [name for name in program.state_dict if "lora" in name]


def test_the_summary_counts_adapters_and_what_is_frozen(rows):
    fed = fs.split(rows, "iid", clients=3)
    run = fs.train(
        fed, "mlp:hidden=5", "fedavg + lora:rank=2", rounds=1, device="cpu", folder=False
    )
    assert run.summary["parameters"] == 2 * 6 + 5 * 2 + 15 + 3
    assert run.summary["frozen_parameters"] == 30 + 5
    assert run.summary["trained_bytes"] * 3 == run.summary["bytes_up"]
    assert run.summary["frozen_bytes"] == 35 * 4


def test_a_model_that_is_all_frozen_trains_adapters(rows):
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).requires_grad_(False)
    fed = fs.split(rows, "iid", clients=3)
    run = fs.train(fed, model, "fedavg + lora:head=false", rounds=1, folder=False, device="cpu")
    assert not torch.equal(run.weights["0.weight"], model[0].weight)
    assert torch.equal(run.weights["0.bias"], model[0].bias)
    with pytest.raises(FedskewError, match="nothing to train"):
        fs.train(fed, model, "fedavg", rounds=1, folder=False, device="cpu")
