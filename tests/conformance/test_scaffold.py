"""A toy SCAFFOLD shows that memo, correct, an extra payload and a broadcast get through engines and checkpoints."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

import fedskew
from fedskew.algorithms.base import Algorithm, Report, Tensors, Tree, View
from fedskew.conformance import Conformance
from fedskew.conformance.lab import PLAIN, Lab
from fedskew.engine.job import Engine
from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked
from fedskew.streams import Floats


@dataclass(frozen=True)
class ToyScaffold(Algorithm):
    """Control variates (Karimireddy et al. 2020, option II), all clients alike."""

    def init(self, weights: Tensors) -> Tree:
        return self.remember(weights)

    def remember(self, weights: Tensors) -> Tree:
        return {"control": {name: torch.zeros_like(weight) for name, weight in weights.items()}}

    def broadcast(self, server: Tree) -> Tree:
        return server

    def correct(self, grads: Tensors, view: View) -> Tensors:
        shared, own = view.server["control"], view.memo["control"]
        return {name: grad + shared[name] - own[name] if name in own else grad for name, grad in grads.items()}

    def memo(self, view: View) -> Tree:
        reach = view.numbers["steps"] * view.numbers["lr"]
        return {
            "control": {
                name: old - view.server["control"][name] + (view.start[name] - view.params[name]) / reach
                for name, old in view.memo["control"].items()
            }
        }

    def payload(self, view: View) -> Tree:
        new = self.memo(view)["control"]
        moved = {name: new[name] - old for name, old in view.memo["control"].items()}
        return {**super().payload(view), "control": moved}

    def weigh(self, report: Report) -> Floats:
        return np.ones(len(report.clients))

    def step(self, weights: Tensors, server: Tree, mean: Tree) -> tuple[Tensors, Tree]:
        moved, _ = super().step(weights, server, mean)
        return moved, {"control": {name: old + mean["control"][name] for name, old in server["control"].items()}}


@pytest.fixture(scope="module")
def report() -> Conformance:
    return fedskew.check(ToyScaffold())


def test_conforms_in_every_check(report: Conformance) -> None:
    assert {finding.outcome for finding in report.findings} == {"passed"}


def test_control_variates_travel_both_ways(report: Conformance) -> None:
    # 384 bytes of weights, 168 of BatchNorm (88 of them buffers); control variates double the weights that are sent.
    assert "1016 up and 1016 down with BatchNorm merged, 768 up and 768 down with BatchNorm local" in report["bytes"].detail


@pytest.mark.parametrize("engine", [Sequential(), Stacked(mode="stack")])
def test_control_variates_add_up_and_matter(engine: Engine) -> None:
    lab = Lab(ToyScaffold(), (engine,), "cpu")
    training = lab.run(3, PLAIN, engine, per_round=None).training
    for name, control in training.server["control"].items():
        own = training.store.get(np.arange(6))["memo.control"][name]
        torch.testing.assert_close(own.mean(0), control)  # everybody takes part: the server's is the mean of the clients'
        assert own.std(0).max() > 0
    plain = Lab(fedskew.FedAvg(weights="uniform"), (engine,), "cpu").run(3, PLAIN, engine, per_round=None).training
    assert not torch.allclose(plain.params["head.weight"], training.params["head.weight"])
