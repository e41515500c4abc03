"""Activation and dropout of the small networks: options are applied, and the defaults are unchanged."""

import math

import pytest
import torch
from torch import nn

from fedskew.core.errors import FedskewError
from fedskew.models.build import build
from fedskew.models.network import Network, models

SMALL = {
    "mlp": ("mlp:hidden=8+5", (12,)),
    "tabular": ("tabular:hidden=8+6", (12,)),
    "cnn": ("cnn:width=3", (2, 8, 8)),
    "cnn-hidden": ("cnn:width=3,hidden=7", (2, 5, 9)),
    "leaf-cnn": ("leaf-cnn:width=3,hidden=10", (1, 8, 8)),
    "har-cnn": ("har-cnn:width=3,hidden=7", (2, 16)),
    "har-cnn-flat": ("har-cnn:width=3,hidden=0", (2, 16)),
    "tabular-cnn": ("tabular-cnn:width=3,hidden=7", (13,)),
}


def convolutions(kind: int, channels: int, kernel: int) -> list[nn.Module]:
    conv, pool = ((nn.Conv1d, nn.MaxPool1d), (nn.Conv2d, nn.MaxPool2d))[kind - 1]
    first, second = (conv(a, b, kernel, padding=kernel // 2) for a, b in ((channels, 3), (3, 6)))
    return [first, nn.ReLU(), pool(2), second, nn.ReLU(), pool(2), nn.Flatten()]


def written_out(name: str) -> Network:
    """Return the networks layer by layer, without these options; called under the seed of ``build``."""

    def dense(inputs: int, units: int) -> list[nn.Module]:
        return [nn.Linear(inputs, units), nn.ReLU()]

    def convolved(last: int, units: int, *given: int, first: tuple[nn.Module, ...] = ()) -> Network:
        # The dense layer is drawn before the convolutions
        before = dense(last, units) if units else []
        return Network(nn.Sequential(*first, *convolutions(*given), *before), units or last, 4)

    if name == "mlp":
        return Network(nn.Sequential(nn.Flatten(), *dense(12, 8), *dense(8, 5)), 5, 4)
    if name == "tabular":
        pairs = [
            [nn.Linear(a, b, bias=False), nn.BatchNorm1d(b), nn.ReLU()]
            for a, b in ((12, 8), (8, 6))
        ]
        return Network(nn.Sequential(nn.Flatten(), *pairs[0], *pairs[1]), 6, 4)
    nets = {
        "cnn": lambda: convolved(24, 0, 2, 2, 3),
        "cnn-hidden": lambda: convolved(12, 7, 2, 2, 3),
        "leaf-cnn": lambda: convolved(24, 10, 2, 1, 5),
        "har-cnn": lambda: convolved(24, 7, 1, 2, 9),
        "har-cnn-flat": lambda: convolved(24, 0, 1, 2, 9),
        "tabular-cnn": lambda: convolved(18, 7, 1, 1, 3, first=(nn.Unflatten(1, (1, 13)),)),
    }
    return nets[name]()


@pytest.mark.parametrize("name", SMALL)
def test_without_the_options_names_and_weights_are_what_they_were(name: str):
    spec, shape = SMALL[name]
    model = build(spec, shape, 4, seed=3)
    expected = build(lambda shape, classes: written_out(name), shape, 4, seed=3)
    assert list(model.state_dict()) == list(expected.state_dict())
    for key, value in expected.state_dict().items():
        assert torch.equal(model.state_dict()[key], value), key
    x = torch.randn(5, *shape, generator=torch.Generator().manual_seed(1))
    assert torch.equal(model.eval()(x), expected.eval()(x))


@pytest.mark.parametrize("name", SMALL)
def test_neither_option_changes_the_first_weights(name: str):
    spec, shape = SMALL[name]
    plain, other = (
        build(spec, shape, 4, seed=3),
        build(f"{spec},activation=tanh,dropout=0.5", shape, 4, seed=3),
    )
    for before, after in zip(plain.parameters(), other.parameters(), strict=True):
        assert torch.equal(before, after)


KINDS = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}


@pytest.mark.parametrize("activation", KINDS)
@pytest.mark.parametrize("name", SMALL)
def test_every_activation_of_a_net_is_the_one_asked_for(name: str, activation: str):
    spec, shape = SMALL[name]
    model = build(f"{spec},activation={activation}", shape, 4, seed=0)
    found = [
        type(module) for module in model.modules() if isinstance(module, tuple(KINDS.values()))
    ]
    plain = [
        module for module in build(spec, shape, 4, seed=0).modules() if isinstance(module, nn.ReLU)
    ]
    assert found == [KINDS[activation]] * len(plain)


@pytest.mark.parametrize("name", SMALL)
def test_dropout_drops_that_share_in_training_and_nothing_in_evaluation(name: str):
    spec, shape = SMALL[name]
    plain, model = (
        build(spec, shape, 4, seed=0),
        build(f"{spec},dropout=0.75,activation=tanh", shape, 4, seed=0),
    )
    layers = [module for module in model.modules() if isinstance(module, nn.Dropout)]
    assert layers
    assert all(layer.p == 0.75 for layer in layers)
    assert not any(isinstance(module, nn.Dropout) for module in plain.modules())
    seen = []
    model.head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    x = torch.randn(400, *shape, generator=torch.Generator().manual_seed(1))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model.train()(x)
    share = float((seen[0] == 0).double().mean())
    count = seen[0].numel()
    assert abs(share - 0.75) < 5 * math.sqrt(0.75 * 0.25 / count)
    assert torch.equal(model.eval()(x), model(x))
    assert not (seen[-1] == 0).any()


@pytest.mark.parametrize("name", ["cnn", "leaf-cnn", "har-cnn", "tabular-cnn", "mlp", "tabular"])
def test_both_options_have_help(name: str):
    options = models.options(name)
    assert options["activation"].help
    assert options["dropout"].help
    assert (options["activation"].default, options["dropout"].default) == ("relu", 0.0)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("mlp:dropout=1", "dropout=1 is out of range, it must be >= 0 and < 1"),
        ("mlp:dropout=-0.1", "dropout=-0.1 is out of range"),
        (
            "mlp:activation=sigmoid",
            "activation=sigmoid is not one of relu, leaky_relu, elu, gelu, silu, tanh",
        ),
        ("resnet9:dropout=0.1", "dropout"),
        ("logreg:dropout=0.1", "takes no options"),
    ],
)
def test_bad_values_are_refused(spec: str, says: str):
    with pytest.raises(FedskewError, match=says):
        build(spec, (3, 8, 8), 4, seed=0)


def test_a_factor_on_the_logits_of_resnet9():
    plain, scaled = (
        build(f"resnet9:width=2{more}", (1, 8, 8), 4, seed=3) for more in ("", ",logits=0.125")
    )
    assert list(plain.state_dict()) == list(scaled.state_dict())
    x = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    head = plain.head
    features = plain.eval().features(x)
    expected = features @ head.weight.T / 8 + head.bias
    torch.testing.assert_close(scaled.eval()(x), expected)
    with pytest.raises(FedskewError, match="logits=0 is out of range"):
        build("resnet9:logits=0", (1, 8, 8), 4, seed=0)
