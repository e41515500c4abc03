"""Building models: every spelling gives the same weights, the seed determines them, global generators do not move."""

import pytest
import torch
from torch import nn

from fedskew.core.errors import FedskewError
from fedskew.core.registry import Choice
from fedskew.models.build import build


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_all_spellings_agree():
    text = build("mlp:hidden=5+3", (4,), 2, seed=9)
    for spec in (
        {"name": "mlp", "hidden": [5, 3]},
        Choice("mlp", {"hidden": (5, 3)}),
        lambda shape, classes: build("mlp:hidden=5+3", shape, classes, seed=9),
    ):
        assert torch.equal(flat(build(spec, (4,), 2, seed=9)), flat(text))


def test_a_function_draws_from_the_seed():
    def make(shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Linear(shape[0], classes)

    assert torch.equal(flat(build(make, (4,), 2, seed=1)), flat(build(make, (4,), 2, seed=1)))
    assert not torch.equal(flat(build(make, (4,), 2, seed=1)), flat(build(make, (4,), 2, seed=2)))


def test_a_module_comes_back_as_it_is():
    model = nn.Linear(2, 2)
    assert build(model, (2,), 2, seed=0) is model


def test_the_seed_decides_and_the_global_generator_does_not():
    torch.manual_seed(1)
    first = build("cnn:width=2", (1, 8, 8), 3, seed=5)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    again = build("cnn:width=2", (1, 8, 8), 3, seed=5)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(flat(first), flat(again))
    assert not torch.equal(flat(first), flat(build("cnn:width=2", (1, 8, 8), 3, seed=6)))


def test_the_generator_is_put_back_when_building_fails():
    before = torch.get_rng_state()
    with pytest.raises(FedskewError):
        build("cnn", (5,), 3, seed=5)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("mpl", "did you mean 'mlp'"),
        ("mlp:hidden=0", "must be >= 1"),
        ("resnet9:norm=layer", "one of batch, group"),
        ("logreg:width=3", "takes no options"),
        (lambda shape, classes: 3, "must return a torch.nn.Module, got int"),
        (7, "write it as text"),
    ],
)
def test_bad_specs_are_refused(spec, says: str):
    with pytest.raises(FedskewError, match=says):
        build(spec, (1, 8, 8), 3, seed=0)


@pytest.mark.parametrize(("shape", "classes"), [((), 2), ((0,), 2), ((3,), 0)])
def test_nothing_to_learn_is_refused(shape: tuple[int, ...], classes: int):
    with pytest.raises(FedskewError, match="at least 1"):
        build("mlp", shape, classes, seed=0)
