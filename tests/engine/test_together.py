"""Runs whose clients are trained in one stack have the numbers of runs on their own."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedskew.algorithms import FedAvg, NonNegative, View
from fedskew.data.partition import Partition
from fedskew.engine.stacked import Stacked
from fedskew.engine.together import Asked, Together, numeric_options
from fedskew.models.build import build
from fedskew.server.server import Server

TOLERANCE = {"float64": 1e-10, "float32": 1e-5}  # of losses and weights of order 1
ROUNDS = 3
BATCH_NORM = "tabular:hidden=5+4"


def trainings(
    lab: Any, methods: Sequence[Any], seeds: Sequence[int], **settings: Any
) -> list[Server]:
    """Return trainings of these methods with these seeds, each seed with its own partition of the same rows."""
    fed, found = lab.federation((9, 5, 4, 7, 2, 8)), []
    for seed in seeds:
        owner = np.random.default_rng(seed).permutation(fed.partition.owner)
        own = replace(fed, partition=Partition.from_owner(owner, fed.clients))
        chosen = {"per_round": 4, "epochs": 2, **settings, "seed": seed}
        found += [
            lab.training(own, method, engine=Stacked(mode="stack"), **chosen) for method in methods
        ]
    return found


def advance(servers: Sequence[Server], together: Together) -> list[int]:
    """Run a round of all, and return which were trained together."""
    halves = [server.invite() for server in servers]
    learnt = together.train(
        [Asked(i, half.start, half.plan) for i, half in enumerate(halves) if half]
    )
    for i, (server, half) in enumerate(zip(servers, halves, strict=True)):
        assert half is not None
        result = server.complete(half, learnt.get(i))
        server.results = [*getattr(server, "results", []), result]  # type: ignore[attr-defined]
    return sorted(learnt)


def check(
    lab: Any,
    alone: Sequence[Server],
    others: Sequence[Server],
    joined: Sequence[int],
    within: float = 0,
) -> None:
    jobs = dict(enumerate(server.job for server in others))
    together = Together(jobs, Stacked(mode="stack"), dict.fromkeys(jobs, 0))
    for _ in range(ROUNDS):
        assert advance(others, together) == list(joined)
        for server in alone:
            server.results = [*getattr(server, "results", []), server.advance()]  # type: ignore[attr-defined]
    for one, other in zip(alone, others, strict=True):
        assert lab.gap(one, other) < (within or TOLERANCE[one.settings.dtype])
    for one, other in pairwise(others):
        # No copies
        assert any(
            not torch.allclose(value, other.state.params[name])
            for name, value in one.state.params.items()
        )


def amplification(lab: Any, methods: Sequence[str]) -> float:
    """Return how many times training enlarges a small change of the weights, in float64, where rounding is no matter.

    FedAvg enlarges it twice, and MOON with mu=5 and tau=0.2 some 500 times: its gradient is of the order of
    mu / tau / |features|, too steep for the learning rate. Rounding is such a change, so that two ways to the same
    numbers cannot agree better than that.
    """
    nudge, largest = 2.0**-40, 0.0
    plain = trainings(lab, methods, (0, 1))
    for server in plain:
        server.results = [server.advance() for _ in range(ROUNDS)]  # type: ignore[attr-defined]
    for draw in range(3):
        generator = torch.Generator().manual_seed(draw)
        nudged = trainings(lab, methods, (0, 1))
        for server in nudged:
            server.results = []  # type: ignore[attr-defined]
            for _ in range(ROUNDS):
                changed = {}
                for name, value in server.state.params.items():
                    sign = torch.randint(2, value.shape, generator=generator).double() * 2 - 1
                    changed[name] = value * (1 + nudge * sign)
                server.state.params = changed
                server.results.append(server.advance())  # type: ignore[attr-defined]
        gaps = [lab.gap(one, other) for one, other in zip(plain, nudged, strict=True)]
        largest = max(largest, *gaps)
    assert largest > 0
    return largest / nudge


METHODS = [
    ["fedavg"], ["fedprox:mu=0", "fedprox:mu=0.1", "fedprox:mu=1"], ["scaffold", "scaffold:server_lr=0.5"],
    ["scaffold:option=I"], ["moon:mu=1,tau=0.5", "moon:mu=5,tau=0.2"], ["fedavgm:beta=0.5", "fedavgm:beta=0.9"],
    ["fedadam", "fedadam:server_lr=0.1"], ["feddyn:alpha=0.1", "feddyn:alpha=1"], ["fedlc:tau=0.5", "fedlc:tau=2"],
    ["fedsam:rho=0.05", "fedsam:rho=0.5"], ["fednova"], ["ditto"], ["fedga"],
    ["fedprox:mu=0.1 + median", "fedprox:mu=1 + median"], ["fedexp", "fedexp:epsilon=0.1"],
    ["fedrs:alpha=0.2", "fedrs:alpha=0.9"], ["apfl"],
    ["per-fedavg:inner_lr=0.01", "per-fedavg:inner_lr=0.1"], ["pfedme:lam=1", "pfedme:lam=3"],
    ["fedala", "fedala:ala_lr=0.1"], ["fedrod"], ["fedbabu"],
    ["finetune"], ["power-of-choice"], ["norm-test:bound=0.3"],
]  # fmt: skip


@pytest.mark.parametrize("methods", METHODS, ids=lambda methods: methods[0].partition(":")[0])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_methods_and_their_options(lab, methods: list[str], dtype: str):
    runs = [trainings(lab, methods, (0, 1), dtype=dtype) for _ in range(2)]
    rounding = 4 * torch.finfo(getattr(torch, dtype)).eps
    within = max(TOLERANCE[dtype], rounding * amplification(lab, methods))
    check(lab, *runs, joined=range(2 * len(methods)), within=within)


@pytest.mark.parametrize(
    "methods", [["apfl:mixture=0.2", "apfl:mixture=0.8"], ["fedproto:lam=0.1", "fedproto:lam=2"]]
)
def test_options_that_change_only_the_models_of_clients(lab, methods: list[str]):
    alone, others = (trainings(lab, methods, (0,), dtype="float64") for _ in range(2))
    jobs = dict(enumerate(server.job for server in others))
    together = Together(jobs, Stacked(mode="stack"), dict.fromkeys(jobs, 0))
    for _ in range(ROUNDS):
        assert advance(others, together) == [0, 1]
        for server in alone:
            server.advance()
    for client in range(6):
        models = [server.client_model(client) for server in (*alone, *others)]
        for name, value in models[0].items():
            torch.testing.assert_close(models[2][name], value, rtol=0, atol=1e-10)
            torch.testing.assert_close(models[3][name], models[1][name], rtol=0, atol=1e-10)
    first, second = (server.client_model(0) for server in others)
    assert not any(torch.equal(value, second[name]) for name, value in first.items())


@pytest.mark.parametrize(
    ("methods", "joined"),
    [
        (
            ["fedavg + lora:rank=2"],
            [0, 1],
        ),  # the model is that of seed 0 for both, and A is trained
        (["fedavg + flora:rank=2"], [0, 1]),
        (["fedavg + flora:rank=2,ranks=2+1"], [0, 1]),
        (["fedavg + ffa-lora:rank=2"], []),  # A is frozen, and each seed has its own
        (["fedavg + lora:rank=2,alpha=2", "fedavg + lora:rank=2,alpha=8"], [0, 1, 2, 3]),
        (["fedprox:mu=0.1 + lora:rank=2", "fedprox:mu=1 + lora:rank=2"], [0, 1, 2, 3]),
    ],
)
def test_adapters(lab, methods: list[str], joined: list[int]):
    """Runs whose frozen weights or adapters differ are in stacks of their own."""
    runs = [trainings(lab, methods, (0, 1), dtype="float64", lr=0.05) for _ in range(2)]
    check(lab, *runs, joined=joined)


def test_frozen_weights_of_other_seeds(lab):
    models = []
    for seed in range(2):
        model = build("mlp:hidden=5", (6,), 3, seed=seed)
        model.features.requires_grad_(False)
        models.append(model)
    runs = []
    for _ in range(2):
        some = []
        for model in (*models, models[0]):
            some += trainings(lab, ["fedavg"], (len(some),), model=model)
        runs.append(some)
    check(lab, *runs, joined=[0, 2])


@pytest.mark.parametrize("method", ["fedavg", "fedbn", "scaffold"])
@pytest.mark.parametrize("norm", ["aggregate", "local"])
def test_batch_norm(lab, method: str, norm: str):
    runs = [
        trainings(lab, [method], (0, 1, 2), model=BATCH_NORM, norm=norm, batch_size=3)
        for _ in range(2)
    ]
    check(lab, *runs, joined=range(3), within=1e-8)  # small batches enlarge differences


SETTINGS: list[dict[str, Any]] = [
    {"momentum": 0.9, "weight_decay": 0.1}, {"momentum": 0.9, "nesterov": True, "clip_norm": 0.5},
    {"optimizer": "adam"}, {"optimizer": "adamw", "weight_decay": 0.1}, {"optimizer": "adadelta"},
    {"schedule": "cosine"},
]  # fmt: skip


@pytest.mark.parametrize(
    "settings", SETTINGS, ids=lambda settings: "-".join(map(str, settings.values()))
)
def test_learning_rates(lab, settings: dict[str, Any]):
    runs = []
    for _ in range(2):
        pairs = [
            trainings(lab, ["fedprox:mu=0.1"], (0, 1), lr=lr, **settings) for lr in (0.1, 0.02)
        ]
        runs.append([server for pair in pairs for server in pair])
    check(lab, *runs, joined=range(4))


def test_runs_in_different_rounds(lab):
    runs = [trainings(lab, ["scaffold"], (0, 1), schedule="cosine") for _ in range(2)]
    for some in runs:
        some[1].results = [some[1].advance()]  # type: ignore[attr-defined]
    check(lab, *runs, joined=range(2))


def test_equal_clients_have_the_same_bits(lab):
    fed, runs = lab.federation((8, 8, 8, 8)), []
    for _ in range(2):
        runs.append(
            [
                lab.training(fed, engine=Stacked(mode="stack"), seed=seed, dtype="float32")
                for seed in range(3)
            ]
        )
    jobs = dict(enumerate(server.job for server in runs[1]))
    together = Together(jobs, Stacked(mode="stack"), dict.fromkeys(jobs, 0))
    for _ in range(3):
        advance(runs[1], together)
        for server in runs[0]:
            server.advance()
    for one, other in zip(*runs, strict=True):
        assert all(
            torch.equal(value, other.state.params[name]) for name, value in one.state.params.items()
        )


def test_augmented_images(lab):
    runs = []
    for _ in range(2):
        fed = lab.federation((9, 5, 4), (1, 8, 8))
        made = {"model": "logreg", "augment": "crop+flip", "engine": Stacked(mode="stack")}
        runs.append([lab.training(fed, "fedavg", seed=seed, **made) for seed in range(2)])
    check(lab, *runs, joined=range(2))


@dataclass(frozen=True)
class Branching(FedAvg):
    """A method whose hook needs its option as a plain number."""

    mu: Annotated[float, NonNegative] = 1.0

    def objective(self, loss: Tensor, view: View) -> Tensor:
        return loss * 2 if self.mu > 1 else loss


@dataclass(frozen=True)
class Phased(Branching):
    """A method that trains more or less of the model, by its option."""

    def trainable(self, layout: Any, epoch: int, epochs: int) -> Any:
        return layout.head if epoch < self.mu * epochs else super().trainable(layout, epoch, epochs)


def test_options_that_all_clients_share_are_the_same_in_a_stack():
    assert numeric_options(Branching(mu=0.5)) == {"mu": 0.5}
    assert numeric_options(Phased(mu=0.5)) == {}


def test_options_that_are_no_tensors_stay_apart(lab):
    methods = [Branching(mu=0.5), Branching(mu=2.0), "fedntd:beta=0.5", "fedntd:beta=2"]
    for pair in (methods[:2], methods[2:]):
        runs = [trainings(lab, pair, (0, 1)) for _ in range(2)]
        check(lab, *runs, joined=range(4))  # seeds of the same option


def test_phases_of_training_stay_apart(lab):
    runs = [trainings(lab, ["fedrep"], (0, 1)) for _ in range(2)]
    check(lab, *runs, joined=range(2))


def test_shared_statistics_stay_apart(lab):
    runs = [trainings(lab, ["fedtan"], (0, 1), model=BATCH_NORM) for _ in range(2)]
    check(lab, *runs, joined=[])


def test_dropout_runs_alone(lab):
    runs = [trainings(lab, ["fedavg"], (0, 1), model="mlp:hidden=5,dropout=0.5") for _ in range(2)]
    check(lab, *runs, joined=[])


def test_a_stack_is_no_larger_than_memory(lab):
    settings = {"memory": 1.0}
    alone, others = (trainings(lab, ["fedavg"], range(5), **settings) for _ in range(2))
    plan = others[0].invite().plan
    room = Stacked(memory=1 << 20).room(others[0].job, plan)
    engine = Stacked(memory=(1 << 20) * 10 // room, mode="stack")  # 10 of 5 x 4 clients
    jobs = dict(enumerate(server.job for server in others))
    together = Together(jobs, engine, dict.fromkeys(jobs, 0))
    sizes = []
    train_joint = Stacked.train_joint
    try:
        Stacked.train_joint = lambda self, job, start, plan: (  # type: ignore[method-assign]
            sizes.append(len(plan.clients)) or train_joint(self, job, start, plan)  # type: ignore[func-returns-value]
        )
        others = trainings(lab, ["fedavg"], range(5), **settings)
        assert advance(others, together) == [0, 1, 2, 3]
    finally:
        Stacked.train_joint = train_joint  # type: ignore[method-assign]
    assert sizes == [8, 8]
    for server in alone:
        server.results = [server.advance()]
    assert all(lab.gap(*pair) < 1e-10 for pair in zip(alone, others, strict=True))


def test_a_run_that_diverges_leaves_the_others_as_they_are(lab):
    runs = [trainings(lab, ["fedavg"], (0, 1)) for _ in range(2)]
    bad = trainings(lab, ["fedavg"], (2,))[0]
    bad.state.params = {name: value * torch.inf for name, value in bad.state.params.items()}
    others = [*runs[1], bad]
    halves = [server.invite() for server in others]
    jobs = dict(enumerate(server.job for server in others))
    learnt = Together(jobs, Stacked(mode="stack"), dict.fromkeys(jobs, 0)).train(
        [Asked(i, h.start, h.plan) for i, h in enumerate(halves)]
    )
    for i, server in enumerate(runs[1]):
        server.results = [server.complete(halves[i], learnt[i])]
    for one, other in zip(runs[0], runs[1], strict=True):
        one.results = [one.advance()]
        assert lab.gap(one, other) < 1e-10


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedlc"])
def test_runs_on_other_rows_are_trained_on_their_own(lab, method: str):
    fed = lab.federation((9, 5, 4, 7, 2, 8))
    tables = [fed.train]
    for seed in (1, 2):
        noise = np.random.default_rng(seed).normal(size=fed.train.x.shape)
        y = (fed.train.y + seed) % 3
        tables.append(replace(fed.train, x=(fed.train.x + noise).astype(fed.train.x.dtype), y=y))
    several = []
    for _ in range(2):
        servers = []
        for number in (0, 1, 1, 2):
            own = replace(fed, treated=tables[number])
            chosen = {"per_round": 4, "seed": len(servers), "engine": Stacked(mode="stack")}
            servers.append(lab.training(own, method, **chosen))
        several.append(servers)
    alone, others = several
    jobs = dict(enumerate(server.job for server in others))
    names = {i: id(server.fed.train) for i, server in enumerate(others)}
    together = Together(jobs, Stacked(mode="stack"), names)
    for _ in range(ROUNDS):
        assert advance(others, together) == [0, 1, 2, 3]
        for server in alone:
            server.results = [*getattr(server, "results", []), server.advance()]  # type: ignore[attr-defined]
    for one, other in zip(alone, others, strict=True):
        assert lab.gap(one, other) < 1e-10
