"""The local optimisers against torch.optim, for one client and for a stack."""

import pytest
import torch

from fedskew.core.config import Settings
from fedskew.core.errors import FedskewError
from fedskew.engine.optimizer import Optimizer, clipped

SHAPES = {"weight": (4, 3), "bias": (4,), "scale": ()}
CASES = {
    "plain": Optimizer(),
    "decay": Optimizer(weight_decay=0.1),
    "momentum": Optimizer(momentum=0.9),
    "nesterov": Optimizer(momentum=0.8, nesterov=True, weight_decay=0.05),
    "adam": Optimizer("adam"),
    "adam with decay": Optimizer("adam", weight_decay=0.1),
    "adamw": Optimizer("adamw"),
    "adamw with decay": Optimizer("adamw", weight_decay=0.1),
    "adadelta": Optimizer("adadelta"),
    "adadelta with decay": Optimizer("adadelta", weight_decay=0.1),
    "clipped": Optimizer(momentum=0.9, weight_decay=0.1, clip_norm=2.0),
    "adamw clipped": Optimizer("adamw", weight_decay=0.1, clip_norm=2.0),
    "never clipped": Optimizer(clip_norm=1e6),
}


def peer(ours: Optimizer, params: list[torch.Tensor], lr: float) -> torch.optim.Optimizer:
    others = {
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "adadelta": torch.optim.Adadelta,
    }
    if ours.name in others:
        return others[ours.name](params, lr=lr, weight_decay=ours.weight_decay)
    return torch.optim.SGD(
        params,
        lr=lr,
        momentum=ours.momentum,
        weight_decay=ours.weight_decay,
        nesterov=ours.nesterov,
    )


def peer_step(ours: Optimizer, other: torch.optim.Optimizer, params: list[torch.Tensor]) -> None:
    if ours.clip_norm is not None:
        torch.nn.utils.clip_grad_norm_(params, ours.clip_norm)
    other.step()


def drawn(generator: torch.Generator, *stack: int) -> dict[str, torch.Tensor]:
    return {
        n: torch.randn((*stack, *shape), generator=generator, dtype=torch.float64)
        for n, shape in SHAPES.items()
    }


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
            value.grad = before[name].clone()
        peer_step(ours, other, list(theirs.values()))
        # Gradients are only read
        assert all(torch.equal(grads[name], before[name]) for name in grads)
        for name in params:
            torch.testing.assert_close(params[name], theirs[name].detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("ours", CASES.values(), ids=CASES.keys())
def test_a_stack_is_its_clients_even_when_they_stop_early(ours: Optimizer):
    generator = torch.Generator().manual_seed(1)
    params = drawn(generator, 3)
    theirs = [
        {name: value[i].clone().requires_grad_() for name, value in params.items()}
        for i in range(3)
    ]
    others = [peer(ours, list(each.values()), lr=0.05) for each in theirs]
    state = ours.init(params, stacked=True)
    # As the stacked engine does: those at work are a prefix
    for active in (3, 3, 3, 2, 2, 2, 1, 1, 1, 1):
        grads = drawn(generator, active)
        head = {
            part: {name: value[:active] for name, value in tensors.items()}
            for part, tensors in state.items()
        }
        views = {name: value[:active] for name, value in params.items()}
        ours.step_(views, grads, head, torch.tensor(0.05, dtype=torch.float64), stacked=True)
        for i in range(active):
            for name, value in theirs[i].items():
                value.grad = grads[name][i].clone()
            peer_step(ours, others[i], list(theirs[i].values()))
    for i in range(3):
        for name in params:
            torch.testing.assert_close(
                params[name][i], theirs[i][name].detach(), rtol=0, atol=1e-12
            )


def test_no_state_without_momentum():
    assert Optimizer().init({"w": torch.ones(2)}, stacked=False) == {}
    assert Optimizer(momentum=0.5).init({"w": torch.ones(2)}, stacked=False)["momentum"][
        "w"
    ].tolist() == [0, 0]


@pytest.mark.parametrize("ours", CASES.values(), ids=CASES.keys())
def test_the_state_of_a_stack_has_clients_on_its_first_axis(ours: Optimizer):
    state = ours.init(drawn(torch.Generator(), 3), stacked=True)
    assert all(value.shape[0] == 3 for tensors in state.values() for value in tensors.values())


def test_clipping_is_that_of_pytorch_and_each_client_has_its_own_norm():
    grads = drawn(torch.Generator().manual_seed(2), 3)
    for value in grads.values():
        value[1] *= 1e-3  # a short gradient, which stays as it is, to the bit
    before = {name: value.clone() for name, value in grads.items()}
    found = clipped(grads, 0.5, stacked=True)
    for i in range(3):
        theirs = {name: value[i].clone().requires_grad_() for name, value in grads.items()}
        for name, value in theirs.items():
            value.grad = grads[name][i].clone()
        torch.nn.utils.clip_grad_norm_(theirs.values(), 0.5)
        alone = clipped({name: value[i] for name, value in grads.items()}, 0.5, stacked=False)
        for name in grads:
            torch.testing.assert_close(found[name][i], theirs[name].grad, rtol=0, atol=1e-15)
            torch.testing.assert_close(alone[name], theirs[name].grad, rtol=0, atol=1e-15)
    assert all(torch.equal(found[name][1], before[name][1]) for name in grads)
    length = torch.cat([value[0].flatten() for value in found.values()]).norm()
    assert 0.5 - 1e-6 < float(length) < 0.5
    assert all(torch.equal(grads[name], before[name]) for name in grads)  # gradients are only read


def test_a_client_that_diverges_leaves_the_others_of_its_stack_alone():
    grads = {
        "w": torch.tensor([[3.0, 4.0], [torch.inf, 1.0], [torch.nan, 1.0]], dtype=torch.float64)
    }
    found = clipped(grads, 1.0, stacked=True)["w"]
    torch.testing.assert_close(
        found[0], torch.tensor([0.6, 0.8], dtype=torch.float64), rtol=0, atol=1e-6
    )
    assert not found[1:].isfinite().all(1).any()


@pytest.mark.parametrize(
    "settings", [{}, {"momentum": 0.9}, {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True}]
)
def test_sgd_makes_the_bits_of_the_fused_one_of_pytorch(settings: dict):
    params = drawn(torch.Generator().manual_seed(4), 2)
    theirs = [value.clone().requires_grad_() for value in params.values()]
    their_optimizer, ours = (
        torch.optim.SGD(theirs, lr=0.05, fused=True, **settings),
        Optimizer("sgd", **settings),
    )
    state = ours.init(params, stacked=True)
    for seed in (1, 2, 3):
        grads = drawn(torch.Generator().manual_seed(seed), 2)
        for weight, grad in zip(theirs, grads.values(), strict=True):
            weight.grad = grad.clone()
        their_optimizer.step()
        ours.step_(params, grads, state, torch.tensor(0.05, dtype=torch.float64))
    assert all(
        torch.equal(mine, weight) for mine, weight in zip(params.values(), theirs, strict=True)
    )


def test_gradients_in_another_layout_than_the_weights_are_the_same_step():
    params, other = ({"w": torch.arange(6.0).view(2, 3)} for _ in range(2))
    grads = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
    Optimizer().step_(params, {"w": grads.T}, {}, torch.tensor(0.05))
    Optimizer().step_(other, {"w": grads.T.contiguous()}, {}, torch.tensor(0.05))
    torch.testing.assert_close(params, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["adam", "adamw", "adadelta"])
def test_momentum_is_for_sgd(name: str):
    with pytest.raises(
        FedskewError, match=f"momentum=0.9 clashes with optimizer={name}: .*leave momentum at 0"
    ):
        Settings(optimizer=name, momentum=0.9)
    with pytest.raises(
        FedskewError, match="nesterov=true needs optimizer=sgd and a momentum above 0"
    ):
        Settings(optimizer=name, momentum=0.9, nesterov=True)


@pytest.mark.parametrize("value", [0, -1, "nan", "inf"])
def test_a_norm_to_clip_at_is_above_zero(value):
    with pytest.raises(FedskewError, match="clip_norm"):
        Settings(clip_norm=value)
    assert (
        Settings().clip_norm,
        Settings(clip_norm="none").clip_norm,
        Settings(clip_norm="2").clip_norm,
    ) == (
        None,
        None,
        2.0,
    )
