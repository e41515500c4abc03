"""Models that do not fit the data or cannot be trained are refused before the first round, with the reason."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedskew as fs
from fedskew.core.errors import FedskewError


class Model(nn.Module):
    """A linear model whose answers are changed."""

    def __init__(self, change: Callable[["Model", Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)
        self.change = change

    def forward(self, x: Tensor) -> Any:
        return self.change(self, x, self.linear(x.flatten(1)))


def grow(model: Model, x: Tensor, y: Tensor) -> Tensor:
    model.register_parameter(f"p{len(list(model.parameters()))}", nn.Parameter(torch.zeros(1)))
    return y


def remember(model: Model, x: Tensor, y: Tensor) -> Tensor:
    model.register_buffer("last", y.detach())
    return y


def fail(model: Model, x: Tensor, y: Tensor) -> Tensor:
    raise ValueError("boom")


def fail_in_training(model: Model, x: Tensor, y: Tensor) -> Tensor:
    if model.training:
        raise ValueError("boom")
    return y


BAD: dict[str, tuple[Callable[[Model, Tensor, Tensor], Any], str]] = {
    "no row": (lambda model, x, y: y[:-1], r"one row with shape \(0, 10\), expected .*\(1, 10\)"),
    "at most four rows": (lambda model, x, y: y[:4], r"8 rows with shape \(4, 10\).*\(8, 10\)"),
    "too narrow": (lambda model, x, y: y[:, :7], r"shape \(1, 7\), expected .*one logit a class"),
    "a tuple": (lambda model, x, y: (y,), "one row with a tuple"),
    "detached": (lambda model, x, y: y.detach(), r"no gradient.*detach\(\)"),
    "grows": (grow, "changes its parameters or buffers.*__init__"),
    "remembers": (remember, "changes its parameters or buffers.*last.*__init__"),
    "fails": (fail, r"rows of shape \(1, 8, 8\): boom"),
    "fails in training": (fail_in_training, "boom"),
}


@pytest.fixture(scope="module")
def fed() -> Any:
    return fs.split(fs.load("digits"), "iid", clients=3)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("kind", BAD)
def test_a_bad_model_is_refused(fed: Any, kind: str, engine: str) -> None:
    change, says = BAD[kind]
    with pytest.raises(FedskewError, match=says):
        fs.train(fed, Model(change), "fedavg", rounds=1, engine=engine, folder=False)


def test_a_trial_leaves_the_model_and_random_numbers_as_they_are(fed: Any) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.BatchNorm1d(64), nn.Linear(64, 10))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    rows = fed.train.x[:8].copy()
    fs.train(fed, model, "fedavg", rounds=1, folder=False)
    assert torch.equal(torch.rand(3), expected)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    np.testing.assert_array_equal(fed.train.x[:8], rows)
