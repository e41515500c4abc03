"""The stacked form of models: outputs, features, gradients and buffers are those of every client alone, by autograd."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedskew.engine.stacked_model import StackedModel
from fedskew.models.build import build
from fedskew.models.layout import head_module

CLIENTS, ROWS = 3, 4


class Own(nn.Module):
    """A model with a forward pass of its own, which writes to what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.inner(x).tanh_())
        return logits


class Shifted(nn.Linear):
    """A layer that is derived from a known one and does something else."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    model[2].weight = model[0].weight
    return model


def twice() -> nn.Module:
    layer = nn.Linear(6, 6)
    return nn.Sequential(
        layer,
        nn.ReLU(inplace=True),
        layer,
        nn.GELU(),
        nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 3)),
    )


def with_hook() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3))
    model[0].register_forward_hook(lambda module, inputs, output: output * 2)
    return model


IMAGES = nn.Sequential(
    nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=2), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Conv2d(8, 4, 1, bias=False),
    nn.LeakyReLU(inplace=True), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4, 3),
)  # fmt: skip
CIRCULAR = nn.Sequential(
    nn.Conv2d(4, 3, 3, padding=1, padding_mode="circular"), nn.Flatten(), nn.Linear(243, 3)
)
POOLED = nn.Sequential(
    nn.Conv2d(4, 3, 3, padding=2, dilation=2),
    nn.MaxPool2d(2),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(48, 3),
)
SPEC = {
    "logreg": (6,), "mlp:hidden=5+4": (6,), "mlp:hidden=5,activation=silu": (6,), "tabular:hidden=5+4": (6,),
    "tabular:hidden=5+4,norm=group": (6,), "cnn:width=4": (2, 8, 8), "leaf-cnn:width=4,hidden=6": (2, 8, 8),
    "har-cnn:width=4": (2, 16), "tabular-cnn:width=4": (16,), "resnet9:width=4": (2, 16, 16),
    "resnet20:width=4": (2, 16, 16), "resnet18:width=4,norm=group": (2, 16, 16),
}  # fmt: skip
MODELS = {spec: (build(spec, shape, 3, seed=0), shape) for spec, shape in SPEC.items()} | {
    "own forward pass": (Own(), (6,)),
    "own forward pass inside": (nn.Sequential(Own(), nn.ReLU(), nn.Linear(3, 3)), (6,)),
    "derived layer": (nn.Sequential(Shifted(6, 5), nn.ReLU(), nn.Linear(5, 3)), (6,)),
    "tied weights": (tied(), (6,)),
    "layer used twice": (twice(), (6,)),
    "hook": (with_hook(), (6,)),
    "begins with an activation": (nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 3)), (6,)),
    "strides and groups": (IMAGES, (4, 9, 9)),
    "circular padding": (CIRCULAR, (4, 9, 9)),
    "pooling of odd sizes": (POOLED, (4, 9, 9)),
    "rows of vectors": (
        nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Flatten(), nn.Linear(15, 3)),
        (3, 4),
    ),
}


def stacks(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return different weights for every client, and its buffers."""
    generator = torch.Generator().manual_seed(1)
    params = {
        name: value.detach()
        + 0.1 * torch.randn(CLIENTS, *value.shape, dtype=value.dtype, generator=generator)
        for name, value in model.named_parameters()
    }
    return params, {name: torch.stack([value] * CLIENTS) for name, value in model.named_buffers()}


@pytest.mark.parametrize("features", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_stack_is_every_client_alone(name: str, features: bool):
    model, shape = copy.deepcopy(MODELS[name][0]).double().train(), MODELS[name][1]
    params, buffers = stacks(model)
    x = torch.randn(
        CLIENTS, ROWS, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    )
    stack = StackedModel(model, params, features)
    given = {name: value.clone() for name, value in buffers.items()}
    outputs = stack.forward({**params, **given}, x.clone())
    generator = torch.Generator().manual_seed(3)
    slopes = torch.randn(outputs.shape, dtype=torch.float64, generator=generator)
    inside = stack.features
    assert (inside is not None) == features
    of_features = (
        None
        if inside is None
        else torch.randn(inside.shape, dtype=torch.float64, generator=generator)
    )
    grads, moved = stack.backward(slopes, of_features), stack.moved
    for i in range(CLIENTS):
        alone, seen = copy.deepcopy(model), []
        if features:
            head_module(alone).register_forward_pre_hook(
                lambda _, inputs, seen=seen: seen.append(inputs[0])
            )
        mine = {name: value[i].clone().requires_grad_() for name, value in params.items()}
        own = {name: value[i].clone() for name, value in buffers.items()}
        expected = functional_call(alone, {**mine, **own}, (x[i].clone(),))
        total = (expected * slopes[i]).sum()
        if inside is not None and of_features is not None:
            torch.testing.assert_close(inside[i], seen[-1].detach(), rtol=1e-10, atol=1e-10)
            total = total + (seen[-1] * of_features[i]).sum()
        wanted = torch.autograd.grad(total, list(mine.values()), materialize_grads=True)
        torch.testing.assert_close(outputs[i], expected.detach(), rtol=1e-10, atol=1e-10)
        for name, grad in zip(mine, wanted, strict=True):
            torch.testing.assert_close(grads[name][i], grad, rtol=1e-9, atol=1e-9)
        for name, value in moved.items():
            torch.testing.assert_close(value[i], own[name], rtol=1e-10, atol=1e-10)
    # There was something to agree on
    assert max(float(value.abs().max()) for value in grads.values()) > 0.01


def test_frozen_weights_are_used_and_get_no_gradient():
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    model[0].weight.requires_grad_(False)
    params = {name: value for name, value in stacks(model)[0].items() if name != "0.weight"}
    stack = StackedModel(model, params)
    x = torch.randn(CLIENTS, ROWS, 6, dtype=torch.float64)
    outputs = stack.forward(params, x)
    hidden = (x @ model[0].weight.T + params["0.bias"][:, None]).relu()
    torch.testing.assert_close(outputs, hidden @ params["2.weight"].mT + params["2.bias"][:, None])
    assert set(stack.backward(torch.ones_like(outputs))) == set(params)


@pytest.mark.parametrize(
    ("model", "draws"),
    [
        (nn.Linear(6, 3), False),
        (nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)), False),
        (nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.1)), True),
        (Own(), True),  # its forward pass may do anything
    ],
)
def test_models_that_may_draw_random_numbers_are_known(model: nn.Module, draws: bool):
    assert StackedModel(model, dict(model.named_parameters())).draws == draws
