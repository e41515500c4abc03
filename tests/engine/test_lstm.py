"""LSTM layers of a stack against PyTorch's own, against the equations, and in both engines."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedskew.algorithms.contract import resolve
from fedskew.core.errors import FedskewError
from fedskew.engine.cost import measure_cost
from fedskew.engine.loop import Loop
from fedskew.engine.lstm import VmappedLSTM, vmappable
from fedskew.engine.stacked import Stacked, can_be_stacked
from fedskew.engine.stacked_model import StackedModel
from fedskew.models.build import build

DEVICES = ["cpu", *["cuda"][: torch.cuda.is_available()]]
STACK = Stacked(mode="stack")
KINDS = {
    "two layers": {"num_layers": 2, "batch_first": True},
    "two directions": {"num_layers": 2, "bidirectional": True},
    "no bias": {"bias": False},
}


def pair(device: str, **options) -> tuple[nn.LSTM, nn.Module]:
    """Return PyTorch's layer and the same one as a layer of a stack."""
    torch.manual_seed(0)
    plain = nn.LSTM(5, 7, **options).double().to(device)
    return plain, vmappable(copy.deepcopy(plain))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
def test_it_equals_pytorchs(kind: str, device: str):
    plain, ours = pair(device, **KINDS[kind])
    assert isinstance(ours, VmappedLSTM)
    x = torch.randn(4, 6, 5, dtype=torch.double, device=device)
    layers = plain.num_layers * (1 + plain.bidirectional)
    rows = 4
    if not plain.batch_first:
        rows = 6
    begin = torch.randn(2, layers, rows, 7, dtype=torch.double, device=device)
    found = []
    for module in (plain, ours):
        given = x.clone().requires_grad_()
        first = begin.clone().requires_grad_()
        states, (h, c) = module(given, (first[0], first[1]))
        (states.square().sum() + h.sin().sum() + c.exp().sum()).backward()
        weights = [value.grad for value in module.parameters()]
        found.append([states, h, c, given.grad, first.grad, *weights])
    for expected, value in zip(*found, strict=True):
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("device", DEVICES)
def test_a_stack_equals_each_client_alone(device: str):
    plain, ours = pair(device, num_layers=2, batch_first=True)
    generator = torch.Generator().manual_seed(1)
    stack = {}
    for name, value in plain.named_parameters():
        drawn = 0.4 * torch.randn(3, *value.shape, generator=generator, dtype=torch.double)
        stack[name] = drawn.to(device)
    x = torch.randn(3, 4, 6, 5, generator=generator, dtype=torch.double).to(device)

    def loss(module: nn.Module, weights: dict[str, Tensor], x: Tensor) -> Tensor:
        states, (_, c) = functional_call(module, weights, (x,))
        return states[:, -1].exp().sum() + c.square().sum()

    def of_ours(weights: dict[str, Tensor], x: Tensor) -> dict[str, Tensor]:
        return grad(lambda weights: loss(ours, weights, x))(weights)

    together = vmap(of_ours)(stack, x)
    row_by_row = vmap(vmap(of_ours, in_dims=(None, 0)))(stack, x.unsqueeze(2))
    for client in range(3):
        alone = {name: value[client].clone().requires_grad_() for name, value in stack.items()}
        grads = torch.autograd.grad(loss(plain, alone, x[client]), list(alone.values()))
        for name, expected in zip(alone, grads, strict=True):
            torch.testing.assert_close(together[name][client], expected, rtol=0, atol=1e-10)
            rows = row_by_row[name][client].sum(0)
            torch.testing.assert_close(rows, expected, rtol=0, atol=1e-10)


def test_two_tokens_by_hand():
    layer = nn.LSTM(1, 1).double()
    numbers = np.array([0.5, -0.3, 0.8, 0.2])  # of the gates: input, forget, cell, output
    with torch.no_grad():
        layer.weight_ih_l0.copy_(torch.from_numpy(numbers)[:, None])
        layer.weight_hh_l0.copy_(torch.from_numpy(numbers[::-1].copy())[:, None])
        layer.bias_ih_l0.fill_(0.1)
        layer.bias_hh_l0.fill_(-0.05)

    def sigmoid(value: float) -> float:
        return 1 / (1 + np.exp(-value))

    h = c = 0.0
    expected = []
    for x in (1.0, -2.0):
        into, forget, new, out = numbers * x + numbers[::-1] * h + 0.05
        c = sigmoid(forget) * c + sigmoid(into) * np.tanh(new)
        h = sigmoid(out) * np.tanh(c)
        expected.append(h)
    rows = torch.tensor([[[1.0]], [[-2.0]]], dtype=torch.double)
    found, (last, cell) = vmappable(layer)(rows)
    assert found.flatten().tolist() == pytest.approx(expected, abs=1e-15)
    assert (last.item(), cell.item()) == pytest.approx((h, c), abs=1e-15)


def test_rows_of_several_lengths_and_projections_are_pytorchs_own():
    projected = vmappable(nn.LSTM(3, 4, proj_size=2))
    assert type(projected) is nn.LSTM
    plain, ours = pair("cpu")
    packed = nn.utils.rnn.pack_sequence([torch.randn(3, 5).double(), torch.randn(2, 5).double()])
    torch.testing.assert_close(ours(packed)[0].data, plain(packed)[0].data, rtol=0, atol=0)
    one = torch.randn(3, 5).double()
    torch.testing.assert_close(ours(one)[0], plain(one)[0], rtol=0, atol=0)


def test_no_rows():
    _, ours = pair("cpu", num_layers=2)
    x = torch.zeros(6, 0, 5, dtype=torch.double)
    assert ours(x)[0].shape == (6, 0, 7)
    assert vmap(lambda x: ours(x)[0])(x.expand(3, 6, 0, 5)).shape == (3, 6, 0, 7)
    ours(x)[0].sum().backward()
    assert not any(value.grad.any() for value in ours.parameters())


def test_rows_may_be_given_by_name():
    plain, ours = pair("cpu")
    x = torch.randn(2, 3, 5, dtype=torch.double)
    torch.testing.assert_close(ours(input=x)[0], plain(input=x)[0], rtol=0, atol=1e-12)


def test_a_second_derivative_is_an_error():
    _, ours = pair("cpu")
    x = torch.randn(2, 1, 5, dtype=torch.double, requires_grad=True)
    (slope,) = torch.autograd.grad(ours(x)[0].sum(), x, create_graph=True)
    with pytest.raises(
        FedskewError, match="no second derivative: train client by client with engi"
    ):
        slope.sum().backward()


class Recurrent(nn.Module):
    """A model of a user's, with an LSTM in both directions between its layers."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.rnn = nn.LSTM(
            3, 4, num_layers=2, batch_first=True, bidirectional=True, dropout=dropout
        )
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x.view(len(x), 2, 3))[0][:, -1])


def recurrent() -> nn.Module:
    torch.manual_seed(0)
    return Recurrent()


@pytest.mark.parametrize(
    "algorithm",
    [
        "fedavg",
        "scaffold",
        "moon:mu=1",  # features
        "fedsam",  # the gradient at other weights
        "fedpbs",  # the variance of the gradients of rows
        "q-fedavg",  # the losses before training
        "ditto",
        "fedavg + lora:rank=2,head=false",
    ],
)
def test_engines_agree(lab, algorithm: str):
    plain, stack = (lab.run(2, None, algorithm, recurrent(), engine) for engine in (Loop(), STACK))
    assert lab.gap(plain, stack) < 1e-8


def test_it_is_stacked_where_that_is_faster(lab):
    model = recurrent().double()
    training = lab.training(model=model)
    assert can_be_stacked(training.model, training.job.x)
    tokens = torch.zeros(2, 20, dtype=torch.int64)
    small = measure_cost(build("char-lstm:hidden=16,layers=1", (20,), 50, 0), tokens, 10)
    assert small.lstm
    # 20 tokens: (8 inputs + 16 units) x 4 gates x 16 units each, and the head
    assert small.multiplications_per_step == 10 * (20 * 24 * 64 + 16 * 50)
    assert small.stacking_pays(clients=10)
    large = replace(small, multiplications_per_step=5_000_000)
    assert not large.stacking_pays(clients=10)
    assert replace(large, lstm=False).stacking_pays(clients=10)


def test_memory_counts_gates_and_scores_of_attention():
    tokens = torch.zeros(2, 40, dtype=torch.int64)

    def of_rows(spec: str) -> int:
        model = build(spec, (40,), 10, 0)
        one, two = (measure_cost(model, tokens, rows).bytes_per_client for rows in (1, 2))
        return (two - one) // 3 - 40 * tokens.element_size()

    # a layer keeps its 40 inputs and states, and the 4 gates before each
    assert of_rows("char-lstm:embedding=8,hidden=16,layers=1") >= 4 * 40 * (8 + 16 + 4 * 16)
    heads = [of_rows(f"char-transformer:width=16,layers=1,heads={count}") for count in (1, 4)]
    assert heads[1] - heads[0] >= 4 * 3 * 40 * 40


class Projected(nn.Module):
    """A layer, a fixed matrix of 64 x 32 and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 64)
        self.register_buffer("fixed", torch.ones(64, 32))
        self.head = nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x) @ self.fixed)


def test_memory_counts_once_what_a_batch_makes_once():
    """Weights of adapted layers are made for each client, and a buffer is there anyway."""
    x = torch.zeros(2, 8)
    plain = build("mlp:hidden=64+64", (8,), 3, 0)
    adapted = resolve("fedavg + lora:rank=2").adapters.applied(copy.deepcopy(plain), 0)
    for model in (plain, adapted, Projected()):
        one, two = (measure_cost(model, x, rows).bytes_per_client for rows in (1, 2))
        # Of a row: 8 inputs and at most six vectors of 64, each three times
        assert two - one <= 3 * 4 * (8 + 6 * 64)
    made = measure_cost(adapted, x, 1).bytes_per_client - measure_cost(plain, x, 1).bytes_per_client
    factors = 2 * (8 + 64 + 64 + 64)
    biases = 64 + 64  # frozen, and there once for all clients
    # The rows need no gradient, so of the first layer no weight is kept
    assert made == 4 * (7 * (factors - biases) + 3 * 64 * 64)


def test_zoo_models_of_tokens_draw_no_random_numbers():
    for spec in ("char-lstm:hidden=4", "char-transformer:width=4,heads=2"):
        model = build(spec, (6,), 5, 0)
        names = dict(model.named_parameters())
        assert not StackedModel(model, names).draws
    dropping = Recurrent(dropout=0.5)
    assert StackedModel(dropping, dict(dropping.named_parameters())).draws
