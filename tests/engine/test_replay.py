"""The parts of a round as they run on a GPU, captured and replayed, without one: "graphs" that repeat a part in place.

A replayed graph runs no Python: it reads and writes the tensors that were there when it was captured. ``InPlace``
repeats a part with the state of that moment, and copies what it makes to where the capture had put it.
"""

import copy
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedskew.algorithms.contract import algorithms
from fedskew.engine.captured import CapturedStack
from fedskew.engine.cost import measure_cost
from fedskew.engine.job import Job
from fedskew.engine.loop import Loop
from fedskew.engine.plan import Plan
from fedskew.engine.replay import Replay
from fedskew.engine.shapes import Room
from fedskew.engine.stack import Stack
from fedskew.engine.stacked import Stacked, _for_all_rounds
from fedskew.engine.together import Asked, Together


class InPlace:
    """Stands in for ``Replay``."""

    def __init__(self, stack: CapturedStack) -> None:
        self.stack, self.before, self.after = stack, {}, {}
        self.replayed = 0

    def __call__(self, name: Hashable, part: Callable[[], None]) -> None:
        stack = self.stack
        if name not in self.before:
            moving = stack._moving()
            old = [value.clone() for value in moving]
            part()  # the trial run
            for value, before in zip(moving, old, strict=True):
                value.copy_(before)
            self.before[name] = copy.copy(stack.state)
            part()
            self.after[name] = copy.copy(stack.state)
            return
        now, stack.state = stack.state, copy.copy(self.before[name])
        part()
        for there, value in zip(
            _leaves(vars(self.after[name])), _leaves(vars(stack.state)), strict=True
        ):
            if there is not value:
                once = tuple(
                    slice(0, 1) if stride == 0 else slice(None) for stride in there.stride()
                )
                there[once].copy_(value[once].clone())
        stack.state = now
        self.replayed += 1


def _leaves(value: Any) -> list[Tensor]:
    """Return all tensors in nested dictionaries, those that training makes."""
    if isinstance(value, Tensor):
        return [value]
    return (
        [leaf for part in value.values() for leaf in _leaves(part)]
        if isinstance(value, dict)
        else []
    )


class Captured(Stacked):
    """A stacked engine that treats the CPU like a GPU."""

    def _stack(self, job: Job, plan: Plan, joint: bool = False, own_lr: bool = False) -> Stack:
        needed, stacks = (
            Room.of(plan),
            self._stacks.setdefault((id(job.model), repr(job.algorithm), own_lr), []),
        )
        for stack in stacks:
            if stack.room.fits(needed):
                return stack
        stack = CapturedStack(
            job, _for_all_rounds(job, plan, needed), job.x.dim() == 4, joint, own_lr
        )
        stack.replay = InPlace(stack)
        stacks.append(stack)
        return stack


SIZES = (9, 5, 4, 7, 2, 17, 12, 8, 1, 6)
EQUAL = (8, 8, 8, 8, 8, 8)
METHODS = [
    name
    for name in algorithms
    if name not in ("dp", "krum", "sfl", "central") and not name.startswith("stratify")
]  # dp's rounds have clients by chance, krum needs more clients; the others train one model


def agree(lab, sizes: tuple[int, ...], method: str, model: str, **settings: Any) -> int:
    """Assert that both engines agree, and return how many parts were replayed."""
    fed = lab.federation(sizes, (2, 8, 8) if "cnn" in model else (6,))
    settings = {"per_round": 5, "epochs": 2, "momentum": 0.5, **settings}
    captured = Captured(mode="stack")
    plain, other = (
        lab.run(7, fed, method, model, engine, **settings) for engine in (Loop(), captured)
    )
    assert lab.gap(plain, other) < 1e-8
    return sum(stack.replay.replayed for stacks in captured._stacks.values() for stack in stacks)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_with_clients_of_different_sizes(lab, method: str):
    least = {"fednova": {"momentum": 0.0}}.get(method, {})
    assert agree(lab, SIZES, method, "mlp:hidden=5", **least) > 10


@pytest.mark.parametrize(
    "method", ["fedavg", "scaffold", "moon", "fedprox", "fedga", "fedrep", "ditto", "fedlc"]
)
def test_rounds_of_one_shape_are_replayed_as_a_whole(lab, method: str):
    assert agree(lab, EQUAL, method, "mlp:hidden=5") >= 4


@pytest.mark.parametrize("method", ["fedga", "q-fedavg"])
def test_rounds_that_measure_losses_are_taken_part_by_part(lab, method: str):
    captured = Captured(mode="stack")
    lab.run(3, lab.federation(EQUAL), method, engine=captured)
    assert [list(stack.states) for stacks in captured._stacks.values() for stack in stacks] == [
        [()]
    ]


@pytest.mark.parametrize("kind", [Stacked, Captured])
def test_epochs_may_change_from_round_to_round(lab, kind: type[Stacked]):
    training, engine = lab.training(), kind(mode="stack")
    plan = lab.plan(training)
    for epochs in (1, 3, 2):
        other = replace(plan, epochs=np.full(len(plan.clients), epochs))
        for updates in engine.train(training.job, lab.start(training, other), other):
            assert updates.report.steps.tolist() == sorted(other.steps.tolist(), reverse=True)
            expected = {
                int(one.report.clients[0]): one.payload["delta"]
                for one in Loop().train(training.job, lab.start(training, other), other)
            }
            for i, client in enumerate(updates.report.clients.tolist()):
                for name, value in updates.payload["delta"].items():
                    assert torch.allclose(value[i], expected[client][name][0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("sizes", [SIZES, EQUAL])
@pytest.mark.parametrize("kind", [Stacked, Captured])
def test_losses_are_summed_as_often_as_there_is_room_for_outputs(
    lab, monkeypatch, kind: type[Stacked], sizes: tuple[int, ...]
):
    # Two steps of five clients
    monkeypatch.setattr("fedskew.engine.kept_outputs._OUTPUTS_KEPT", 2 * 5 * 4 * lab.classes)
    monkeypatch.setattr("fedskew.engine.captured._STEPS_AT_ONCE", 2)
    fed, engine = lab.federation(sizes), kind(mode="stack")
    plain, other = (
        lab.run(5, fed, "fedavg", engine=one, per_round=5, epochs=3) for one in (Loop(), engine)
    )
    assert lab.gap(plain, other) < 1e-8
    assert [len(stack.outputs) for stacks in engine._stacks.values() for stack in stacks] == [2]


def test_room_is_for_every_client_unless_that_is_too_much(lab, monkeypatch):
    training = lab.training()
    plan = lab.plan(training, [2, 4])  # of 4 and 2 rows; the largest client has 9
    room = _for_all_rounds(training.job, plan, Room.of(plan))
    assert (room.clients, room.longest, room.steps) == (2, 9, 5)
    monkeypatch.setattr("fedskew.engine.stacked._KEYS_AT_ONCE", 10)
    assert _for_all_rounds(training.job, plan, Room.of(plan)).longest == 4


def test_a_stack_is_not_used_for_half_as_many_clients():
    room = Room(clients=8, steps=3, width=4, epochs=1, longest=9)
    assert room.fits(room)
    assert room.fits(replace(room, clients=4))
    assert not room.fits(replace(room, clients=3))
    for name in ("clients", "steps", "width", "epochs", "longest"):
        assert not room.fits(replace(room, **{name: getattr(room, name) + 1}))


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("tabular:hidden=5+4", {}),
        ("cnn:width=4", {"augment": "crop+flip"}),
        ("mlp:hidden=5", {"optimizer": "adam", "momentum": 0.0}),
        ("mlp:hidden=5", {"clip_norm": 0.1, "weight_decay": 0.01, "nesterov": True}),
        ("mlp:hidden=5", {"fleet": "edge"}),
    ],
)
@pytest.mark.parametrize("sizes", [tuple(max(2, size) for size in SIZES), EQUAL])
def test_models_and_settings(lab, sizes: tuple[int, ...], model: str, settings: dict[str, Any]):
    agree(lab, sizes, "fedavg", model, **settings)


def test_shapes_that_alternate_use_their_own_graphs(lab):
    """Rounds of two shapes, whole and in parts: each must find its own tensors again."""
    fed = lab.federation((8, 8, 8, 8, 3, 3, 3, 3))
    captured = Captured(mode="stack")
    plain, other = (
        lab.training(fed, "fedprox:mu=0.5", "mlp:hidden=5", engine) for engine in (Loop(), captured)
    )
    for training in (plain, other):
        training.per_round = 3
        training.results = [training.advance() for _ in range(12)]
    assert lab.gap(plain, other) < 1e-8


@pytest.mark.parametrize("sizes", [SIZES, EQUAL])
@pytest.mark.parametrize(
    "methods",
    [
        ("fedavg",),
        ("scaffold",),
        ("fedprox:mu=0", "fedprox:mu=1"),
        ("moon:tau=0.5", "moon:tau=2"),
        ("fedlc", "fedlc:tau=3"),
    ],
    ids=lambda methods: methods[0].partition(":")[0],
)
def test_clients_of_several_runs(lab, sizes: tuple[int, ...], methods: tuple[str, ...]):
    fed = lab.federation(sizes)
    chosen = [{"seed": seed, "lr": lr} for seed, lr in ((0, 0.1), (1, 0.1), (1, 0.05))]
    settings = {"per_round": 5, "epochs": 2, "schedule": "cosine"}
    plain, others = (
        [
            lab.training(fed, method, engine=Loop(), **one, **settings)
            for method in methods
            for one in chosen
        ]
        for _ in range(2)
    )
    captured = Captured(mode="stack")
    jobs = dict(enumerate(server.job for server in others))
    together = Together(jobs, captured, dict.fromkeys(jobs, 0))
    for _ in range(7):
        halves = [server.invite() for server in others]
        learnt = together.train([Asked(i, half.start, half.plan) for i, half in enumerate(halves)])
        assert len(learnt) == len(others)
        for i, server in enumerate(others):
            server.results = [
                *getattr(server, "results", []),
                server.complete(halves[i], learnt[i]),
            ]
    for one, other in zip(plain, others, strict=True):
        one.results = [one.advance() for _ in range(7)]
        assert lab.gap(one, other) < 1e-8
    assert (
        sum(stack.replay.replayed for stacks in captured._stacks.values() for stack in stacks) >= 4
    )


@pytest.mark.parametrize("sizes", [SIZES, EQUAL])
def test_rounds_that_cannot_be_captured_have_their_own_results(
    lab, monkeypatch, sizes: tuple[int, ...]
):
    monkeypatch.setattr(InPlace, "__call__", lambda self, name, part: part())
    assert agree(lab, sizes, "fedprox", "mlp:hidden=5") == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="captures CUDA graphs: needs a GPU")
def test_what_cannot_be_captured_runs_as_it_is_and_says_why():
    total = torch.zeros(1, device="cuda")
    replay = Replay(lambda: [total])

    def part() -> None:
        total.add_(1)
        if float(total) > 100:  # reads a value on the host
            total.zero_()

    for count in (1, 2, 3):
        replay("part", part)
        assert float(total) == count
    assert "part" in replay.refused
    replay("other", lambda: total.mul_(2))
    assert float(total) == 6
    assert "other" not in replay.refused


@pytest.mark.parametrize(("room_for", "left"), [(100, 3), (12, 2), (8, 1), (4, 0), (1, 0)])
def test_old_stacks_are_forgotten_where_memory_is_short(lab, room_for: int, left: int):
    job = lab.training().job
    engine = Stacked(room_for * measure_cost(job.model, job.x, 4).bytes_per_client)
    room = Room(clients=4, steps=1, width=4, epochs=1, longest=9)
    stacks = [CapturedStack(job, room) for _ in range(4)]
    newest = stacks[-1:]
    engine._make_room(job, stacks, room)
    assert len(stacks) == left
    assert stacks[-1:] == newest[:left]
