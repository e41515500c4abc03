"""A method that does nothing where it is tested is vacuous; with a model of its own, and data, it is tested there."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import fedskew
from fedskew.algorithms import FedAvg, Tensors, Tree, View
from fedskew.core.errors import FedskewError
from fedskew.engine.loop import Loop
from fedskew.testing import CHECKS

ONLY_EFFECT = {name: "not now" for name in CHECKS if name != "effect"}
FEW = {name: "not now" for name in CHECKS if name not in ("shapes", "engines", "effect", "order")}


class Gated(nn.Module):
    """A linear layer behind a gate, which the suite's own models do not have."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.ones(shape[0]))
        self.head = nn.Linear(shape[0], classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x * self.gate)


@dataclass(frozen=True)
class GateStays(FedAvg):
    """FedAvg whose clients do not move a gate, where the model has one."""

    def correct_gradients(self, grads: Tensors, view: View) -> Tensors:
        """Return no gradient for the gate."""
        if "gate" not in grads:
            return grads
        return {**grads, "gate": torch.zeros_like(grads["gate"])}


def test_hooks_that_do_nothing_on_the_suites_models_are_vacuous():
    report = fedskew.check(GateStays(), skip=ONLY_EFFECT)
    assert report.vacuous
    assert report.passed
    assert "vacuous, its hooks change nothing here" in str(report)
    assert "conforms" not in str(report)
    assert "give model=" in report["effect"].detail


def test_with_its_model_a_method_is_tested():
    report = fedskew.check(GateStays(), skip=FEW, model=Gated)
    assert not report.vacuous
    assert "conforms" in str(report)
    assert "other models than FedAvg's" in report["effect"].detail


@pytest.mark.parametrize(
    ("spec", "vacuous"),
    [
        ("fedavg", False),
        ("fedprox:mu=0", True),
        ("fedprox:mu=1", False),
        ("ccvr", False),
        ("finetune", False),
        ("finetune:tune_epochs=0", True),
        ("ditto", False),
        ("apfl:mixture=0,adaptive=false", True),
    ],
)
def test_what_is_vacuous(spec: str, vacuous: bool):
    assert fedskew.check(spec, skip=ONLY_EFFECT, engines=[Loop()]).vacuous == vacuous


def test_data_of_the_user():
    data = fedskew.load("digits")
    report = fedskew.check("scaffold", skip=FEW, model="cnn:channels=2,hidden=4", data=data)
    assert not report.vacuous
    with pytest.raises(FedskewError, match="give a Dataset"):
        fedskew.check("fedavg", data=(1, 2))
    few = fedskew.Dataset("few", data.train.take(torch.arange(9).numpy()), data.test, data.classes)
    with pytest.raises(FedskewError, match="9 training rows, and the checks need 33"):
        fedskew.check("fedavg", data=few)


@dataclass(frozen=True)
class Sized(FedAvg):
    """Makes states of the head, whether it is sent or not."""

    def local_names(self, layout):
        """Return all names."""
        return layout.parameters | layout.buffers

    def init_server_state(self, weights: Tensors) -> Tree:
        """Return one number for each class."""
        assert not weights
        return {"means": {"of": torch.zeros(weights.head_shape)}}

    def init_client_state(self, weights: Tensors) -> Tree:
        """Return a copy of the head."""
        return {"copy": {"head": torch.zeros_like(weights["head.weight"])}}


def test_states_may_have_the_shape_of_weights_that_stay_with_clients():
    fed = fedskew.split(fedskew.load("digits"), "iid", 3)
    run = fedskew.train(fed, "mlp:hidden=5", Sized(), rounds=1, folder=False)
    assert run.server.state.server_state["means"]["of"].shape == (10, 5)


def test_a_weight_that_the_model_does_not_have_is_named():
    class Wrong(Sized):
        def init_client_state(self, weights: Tensors) -> Tree:
            return {"copy": {"head": weights["fc.weight"]}}

    fed = fedskew.split(fedskew.load("digits"), "iid", 3)
    with pytest.raises(
        FedskewError, match=r"no weight 'fc\.weight' to make a state of: it has feat"
    ):
        fedskew.train(fed, "mlp:hidden=5", Wrong(), rounds=1, folder=False)
