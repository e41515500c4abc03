"""Agreement of engines: stacked, stacked in small chunks, and the channels-last loop give the reference's results."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedskew.algorithms.contract import Algorithm, Cohort, View, algorithms
from fedskew.core.errors import FedskewError
from fedskew.core.trees import Tensors, Tree
from fedskew.engine.cost import Cost, measure_cost
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked
from fedskew.models.build import build
from fedskew.models.network import models

STACK = Stacked(mode="stack")
BATCH_NORM = "tabular:hidden=5+4"


def tiny(name: str) -> list[str]:
    """Return narrow spellings of a model, one for each of its normalisations."""
    options = models.options(name)
    narrow = [
        f"{option}={value}" for option, value in (("width", 4), ("hidden", 4)) if option in options
    ]
    norms = [["norm=batch"], ["norm=group"]] if "norm" in options else [[]]
    return [f"{name}:{','.join(narrow + norm)}".rstrip(":") for norm in norms]


def shape_for(spec: str) -> tuple[int, ...]:
    # At 8 x 8 the last stage of a resnet is one pixel: BatchNorm over two values makes training chaotic, and no test.
    for shape in ((6,), (2, 8), (2, 16, 16)):
        try:
            build(spec, shape, 3, seed=0)
        except FedskewError:
            continue
        return shape
    raise AssertionError(f"no shape fits {spec}")


# Of models that take tokens, tests/data/test_shakespeare.py and tests/tasks/test_next_token.py; of those in a folder,
# tests/models/test_hugging_face.py
OF_NUMBERS = [name for name in models if not name.startswith(("char-", "hf", "text-"))]
ZOO = [spec for name in OF_NUMBERS for spec in tiny(name)]


@pytest.mark.parametrize("spec", ZOO)
def test_every_model_in_float64(lab, spec: str):
    fed = lab.federation(shape=shape_for(spec))
    plain, stack = (
        lab.run(5, fed, "fedavg", spec, engine, momentum=0.5, lr=0.05) for engine in (Loop(), STACK)
    )
    assert lab.gap(plain, stack) < 1e-8
    # There was something to agree on
    assert (plain.state.params["head.weight"] - plain.model.head.weight).abs().max() > 1e-3


def test_every_engine_draws_its_own_dropout_and_repeats_it(lab):
    """README and docs/decisions.md name dropout as what engines do not agree on; here is how far."""
    found = {}
    for name, engine in (("loop", Loop()), ("stack", STACK)):
        first, again = (
            lab.run(3, None, "fedavg", "mlp:hidden=5,dropout=0.5", engine) for _ in range(2)
        )
        assert lab.gap(first, again) == 0
        found[name] = first
    assert lab.gap(found["loop"], found["stack"]) > 1e-3
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    assert "for every model without dropout" in readme


@pytest.mark.parametrize("spec", ZOO)
def test_every_model_in_float32(lab, spec: str):
    fed = lab.federation(shape=shape_for(spec))
    # Deep nets at larger rates have units so near their kink that rounding decides their sign: then no two machines
    # agree.
    lr = 0.005 if spec.startswith("resnet") else 0.02
    plain, stack = (
        lab.run(2, fed, "fedavg", spec, engine, dtype="float32", lr=lr)
        for engine in (Loop(), STACK)
    )
    assert lab.gap(plain, stack) < 1e-3
    start = lab.training(fed, "fedavg", spec, dtype="float32").state.params
    # It did train
    assert (
        max(float((value - start[name]).abs().max()) for name, value in plain.state.params.items())
        > 3e-3
    )


LOCAL = {
    "momentum": {"momentum": 0.9, "weight_decay": 0.01, "nesterov": True, "epochs": 2},
    "adam": {"optimizer": "adam", "lr": 0.01},
    "norm local": {"norm": "local", "momentum": 0.9, "per_round": 3},
}


# Krum needs five clients a round
REFUSED = {(name, "adam") for name in ("fednova", "scaffold", "per-fedavg", "pfedme")}
REFUSED |= {("krum", "norm local")}
# One model for all keeps nothing apart
REFUSED |= {(name, "norm local") for name in ("sfl", "stratify-batch", "stratify-rounds")}
REFUSED |= {
    (name, local) for name in ("stratify-single", "stratify-hybrid") for local in LOCAL
}  # BatchNorm on one sample
# Several models share no statistics of BatchNorm
REFUSED |= {
    (name, local)
    for name in ("ifca", "cfl", "fedamp", "fedfomo", "d-psgd", "gossip")
    for local in ("momentum", "adam")
}
# Statistics of BatchNorm; tests/algorithms/test_privacy.py
REFUSED |= {("dp", local) for local in LOCAL}


@pytest.mark.parametrize(
    ("name", "local"),
    [(name, local) for name in algorithms for local in LOCAL if (name, local) not in REFUSED],
)
def test_every_algorithm(lab, name: str, local: str):
    plain, stack = (
        lab.run(5, None, name, BATCH_NORM, engine, **LOCAL[local]) for engine in (Loop(), STACK)
    )
    assert lab.gap(plain, stack) < 1e-8


@dataclass(frozen=True)
class EveryHook(Algorithm):
    """Uses everything that a hook may read and send; keeps its weights as they are, as MOON does."""

    def init_server_state(self, weights: Tensors) -> Tree:
        return {
            "drift": {name: torch.zeros_like(value) for name, value in weights.items()},
            "secret": {"x": torch.ones(1)},
        }

    def broadcast(self, server: Tree) -> Tree:
        return {"drift": server["drift"]}

    def init_client_state(self, weights: Tensors) -> Tree:
        return {"last": dict(weights), "count": {"visits": torch.zeros(())}}

    def objective(self, loss: Tensor, view: View) -> Tensor:
        assert view.server.keys() == {"drift"}
        far = sum(
            (view.params[name] - last).square().sum()
            for name, last in view.client_state["last"].items()
        )
        return loss + 0.01 * far * view.numbers["size"] / view.numbers["steps"]

    def correct_gradients(self, grads: Tensors, view: View) -> Tensors:
        pulled = {
            name: grad + 0.1 * (view.params[name] - view.start[name])
            for name, grad in grads.items()
        }
        shared = {
            name: pulled[name] - view.numbers["lr"] * drift
            for name, drift in view.server["drift"].items()
        }
        return {**pulled, **shared}

    def client_state(self, view: View) -> Tree:
        last = {name: view.params[name] for name in view.client_state["last"]}
        return {"last": last, "count": {"visits": view.client_state["count"]["visits"] + 1}}

    def payload(self, view: View) -> Tree:
        return {
            **super().payload(view),
            "weights": view.params,
            "extra": {"momentum": view.numbers["steps"] * view.momentum},
        }

    def server_update(
        self, weights: Tensors, server: Tree, mean: Tree, cohort: Cohort
    ) -> tuple[Tensors, Tree]:
        assert mean["extra"]["momentum"].item() > 0
        assert mean["weights"].keys() == weights.keys()  # kept names are left out of every part
        moved, _ = super().server_update(weights, server, mean, cohort)
        return moved, {
            "drift": {name: mean["weights"][name] - weights[name] for name in weights},
            "secret": server["secret"],
        }


@pytest.mark.parametrize("norm", ["aggregate", "local"])
def test_an_algorithm_that_uses_every_hook(lab, norm: str):
    runs = [
        lab.run(4, None, EveryHook(), BATCH_NORM, engine, norm=norm, momentum=0.5, per_round=3)
        for engine in (Loop(), STACK, Stacked(memory=1, mode="stack"))
    ]
    assert lab.gap(runs[0], runs[1]) < 1e-8
    assert lab.gap(runs[1], runs[2]) < 1e-8
    visits = [
        runs[0].clients.store.get(np.array([client]))["state.count"]["visits"].item()
        for client in range(5)
    ]
    assert sum(visits) == 12
    assert not any(value.requires_grad for value in runs[0].checkpoint().values())


@pytest.mark.parametrize("norm", ["aggregate", "local"])
def test_what_an_engine_yields_is_not_overwritten_by_the_next_client(lab, norm: str):
    training = lab.training(None, EveryHook(), BATCH_NORM, norm=norm)
    plan = lab.plan(training)
    updates = list(Loop().train(training.job, lab.start(training, plan), plan))
    for i, update in enumerate(updates):
        alone = next(
            Loop().train(training.job, lab.start(training, only := plan.only(np.array([i]))), only)
        )
        found, wanted = (
            {**each.payload, **each.kept, "buffers": each.buffers} for each in (update, alone)
        )
        for part, tensors in found.items():
            for name, value in tensors.items():
                assert torch.equal(value, wanted[part][name]), (part, name)


@pytest.mark.parametrize("name", ["fednova", "central", "local"])
@pytest.mark.parametrize("clients", [1, 2])
def test_small_memory_gives_the_same_in_chunks(lab, name: str, clients: int):
    fed = lab.federation(shape=(2, 16, 16))
    whole = lab.run(3, fed, name, "resnet9:width=4", STACK, lr=0.01)
    room = measure_cost(whole.model, whole.job.x, 4).bytes_per_client * clients
    plan = lab.plan(whole)
    stacks = [
        len(update.report.clients)
        for update in Stacked(room, "stack").train(whole.job, lab.start(whole, plan), plan)
    ]
    assert max(stacks) == min(clients, whole.trained_on.clients)
    assert sum(stacks) == whole.trained_on.clients
    assert (
        lab.gap(whole, lab.run(3, fed, name, "resnet9:width=4", Stacked(room, "stack"), lr=0.01))
        < 1e-8
    )


@pytest.mark.parametrize("spec", ["resnet9:width=4", "cnn:width=2", BATCH_NORM])
def test_the_loop_is_the_reference_in_another_memory_layout(lab, spec: str):
    fed = lab.federation(shape=shape_for(spec))
    assert (
        lab.gap(
            lab.run(3, fed, "local", spec, Loop()),
            lab.run(3, fed, "local", spec, Stacked(mode="loop")),
        )
        < 1e-8
    )


def test_a_layer_used_twice(lab):
    def make(shape: tuple[int, ...], classes: int) -> nn.Module:
        norm, first, head = nn.BatchNorm1d(5), nn.Linear(shape[0], 5), nn.Linear(5, classes)
        return nn.Sequential(first, norm, nn.ReLU(), nn.Linear(5, 5), nn.Sequential(norm), head)

    plain, stack = (lab.run(3, None, "fedavg", make, engine) for engine in (Loop(), STACK))
    assert lab.gap(plain, stack) < 1e-8
    assert plain.state.buffers["1.num_batches_tracked"].item() > 6  # twice a step


def test_the_rule_stacks_what_is_mostly_overhead():
    small, large = (Cost(many, 1, False, False, False) for many in (10_000, 10**8))
    few, many = (Cost(number, 1, True, False, False) for number in (10_000, 10**7))
    assert small.stacking_pays(clients=2)
    assert not small.stacking_pays(clients=1)
    assert not large.stacking_pays(clients=10)
    assert few.stacking_pays(clients=10)
    assert not many.stacking_pays(clients=10)
    assert many.channels_last()
    assert not replace(many, batch_norm=True).channels_last()
    assert not large.channels_last()
    assert [small.threads(clients, cores=4) for clients in (150, 151)] == [1, 4]


def test_cost_of_a_row_by_hand():
    model = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(48, 5))
    cost = measure_cost(model, torch.zeros(7, 2, 4, 4), batch=6)
    weights, activations = 3 * 2 * 9 + 3 + 48 * 5 + 5, 48 + 48 + 48 + 5
    assert cost.multiplications_per_step == 6 * (54 * 16 + 240)
    assert cost.bytes_per_client == 4 * (7 * weights + 3 * 6 * (32 + activations))
    assert cost.convolutions
    assert not measure_cost(nn.Linear(3, 2), torch.zeros(1, 3), 1).convolutions
    assert model.training  # evaluation mode was only borrowed
