"""The local optimisers against torch.optim, for one client and for a stack."""

import pytest
import torch

from fedskew.engine.optimizer import Optimizer

SHAPES = {"weight": (4, 3), "bias": (4,), "scale": ()}
CASES = {
    "plain": Optimizer(),
    "decay": Optimizer(weight_decay=0.1),
    "momentum": Optimizer(momentum=0.9),
    "nesterov": Optimizer(momentum=0.8, nesterov=True, weight_decay=0.05),
    "adam": Optimizer("adam"),
    "adam with decay": Optimizer("adam", weight_decay=0.1),
}


def peer(ours: Optimizer, params: list[torch.Tensor], lr: float) -> torch.optim.Optimizer:
    if ours.name == "adam":
        return torch.optim.Adam(params, lr=lr, weight_decay=ours.weight_decay)
    return torch.optim.SGD(params, lr=lr, momentum=ours.momentum, weight_decay=ours.weight_decay, nesterov=ours.nesterov)


def drawn(generator: torch.Generator, *stack: int) -> dict[str, torch.Tensor]:
    return {n: torch.randn((*stack, *shape), generator=generator, dtype=torch.float64) for n, shape in SHAPES.items()}


@pytest.mark.parametrize("ours", CASES.values(), ids=CASES.keys())
def test_ten_steps_of_one_client(ours: Optimizer):
    generator = torch.Generator().manual_seed(0)
    params = drawn(generator)
    theirs = {name: value.clone().requires_grad_() for name, value in params.items()}
    other, state = peer(ours, list(theirs.values()), lr=0.05), ours.init(params, stacked=False)
    for _ in range(10):
        grads = drawn(generator)
        before = {name: value.clone() for name, value in grads.items()}
        ours.step_(params, grads, state, torch.tensor(0.05, dtype=torch.float64))
        for name, value in theirs.items():
            value.grad = before[name]
        other.step()
        assert all(torch.equal(grads[name], before[name]) for name in grads)  # gradients are only read
        for name in params:
            torch.testing.assert_close(params[name], theirs[name].detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("ours", CASES.values(), ids=CASES.keys())
def test_a_stack_is_its_clients_even_when_they_stop_early(ours: Optimizer):
    generator = torch.Generator().manual_seed(1)
    params = drawn(generator, 3)
    theirs = [{name: value[i].clone().requires_grad_() for name, value in params.items()} for i in range(3)]
    others = [peer(ours, list(each.values()), lr=0.05) for each in theirs]
    state = ours.init(params, stacked=True)
    for active in (3, 3, 3, 2, 2, 2, 1, 1, 1, 1):  # as the stacked engine does: those at work are a prefix
        grads = drawn(generator, active)
        head = {part: {name: value[:active] for name, value in tensors.items()} for part, tensors in state.items()}
        views = {name: value[:active] for name, value in params.items()}
        ours.step_(views, grads, head, torch.tensor(0.05, dtype=torch.float64))
        for i in range(active):
            for name, value in theirs[i].items():
                value.grad = grads[name][i].clone()
            others[i].step()
    for i in range(3):
        for name in params:
            torch.testing.assert_close(params[name][i], theirs[i][name].detach(), rtol=0, atol=1e-12)


def test_no_state_without_momentum():
    assert Optimizer().init({"w": torch.ones(2)}, stacked=False) == {}
    assert Optimizer(momentum=0.5).init({"w": torch.ones(2)}, stacked=False)["momentum"]["w"].tolist() == [0, 0]
