"""A round around the engine: traffic, time, randomness, threads, and errors."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from fedskew.algorithms.contract import algorithms, resolve
from fedskew.algorithms.fedopt import FedAvgM
from fedskew.core.errors import FedskewError
from fedskew.core.trees import Tree
from fedskew.engine.device import computing, pick_device, random_layers
from fedskew.engine.loop import Loop
from fedskew.engine.lr_schedule import schedules
from fedskew.engine.stacked import Stacked
from fedskew.server.refusals import trains_single_samples

ENGINES = pytest.mark.parametrize(
    "engine",
    [Loop(), Stacked(mode="stack"), Stacked(memory=1, mode="stack"), Stacked(mode="loop")],
    ids=["loop", "stack", "chunks", "stacked-loop"],
)
# 30 + 10 + 18 weights, of which 10 in BatchNorm; 10 statistics and a counter
BATCH_NORM = "tabular:hidden=5"


@dataclass(frozen=True)
class Telling(FedAvgM):
    """FedAvgM that broadcasts its momentum."""

    def broadcast(self, server: Tree) -> Tree:
        return server


# Bytes of everything, and of what is left when BatchNorm stays
ALL, OWN_NORM = (58 + 10) * 4 + 8, 48 * 4


@ENGINES
@pytest.mark.parametrize(
    ("algorithm", "norm", "down", "up"),
    [
        ("fedavg", "aggregate", ALL, ALL),
        ("fedavg", "local", OWN_NORM, OWN_NORM),
        ("fednova", "aggregate", ALL, ALL + 4),  # its normaliser is one number
        ("fednova", "local", OWN_NORM, OWN_NORM + 4),
        ("fedadam", "aggregate", ALL, ALL),  # what the server keeps is not sent
        (Telling(), "aggregate", ALL + 58 * 4, ALL),
        ("local", "aggregate", 0, 0),
    ],
)
def test_bytes_by_hand(lab, engine, algorithm, norm: str, down: int, up: int):
    training = lab.run(
        1, None, algorithm, BATCH_NORM, engine, norm=norm, per_round=3, dtype="float32"
    )
    line = training.results[0].round
    assert (line["bytes_down"], line["bytes_up"]) == (3 * down, 3 * up)


def test_simulated_time_by_hand(lab):
    fleet = {
        "name": "uniform",
        "rows_per_second": 10,
        "mbit_per_second": 1,
        "latency": 0.5,
        "seconds_per_step": 0.25,
    }
    training = lab.run(1, None, "fednova", BATCH_NORM, dtype="float32", epochs=2, fleet=fleet)
    # The slowest has 9 rows: two latencies, 18 rows, 4 steps, 280 + 284 bytes.
    line = training.results[0].clients[0]
    assert (line["rows"], line["steps"]) == (9, 4)
    assert line["training_seconds"] == pytest.approx(1.8 + 4 * 0.25)
    assert training.results[0].round["simulated_seconds"] == pytest.approx(
        1.0 + 1.8 + 1.0 + 8 * (ALL + ALL + 4) / 1e6
    )


def test_the_lines_of_a_round(lab):
    training = lab.run(2, None, "fedavg", BATCH_NORM, epochs=2, schedule="exponential:factor=0.5")
    assert [result.round["round"] for result in training.results] == [1, 2]
    assert [result.round["lr"] for result in training.results] == [0.1, 0.05]
    result = training.results[1]
    assert [line["client"] for line in result.clients] == [0, 1, 2, 3, 4]
    assert [line["rows"] for line in result.clients] == list(lab.sizes)
    assert [line["steps"] for line in result.clients] == [4, 2, 2, 4, 2]
    assert [line["weight"] for line in result.clients] == pytest.approx(
        [size / 27 for size in lab.sizes]
    )
    for name in ("local_loss", "local_accuracy"):
        mean = sum(line["weight"] * line[name] for line in result.clients)
        assert result.round[name] == pytest.approx(mean, abs=1e-12)
    assert result.round["excluded"] == 0


def test_the_learning_rate_follows_the_schedule(lab):
    slow = lab.run(2, None, lr=0.2, schedule="step:every=1,factor=0.25")
    fast = lab.training(None, lr=0.2)
    fast.advance()
    halfway = lab.training(None, lr=0.05)
    halfway.restore(fast.checkpoint())
    halfway.advance()
    assert all(
        torch.equal(value, slow.state.params[name]) for name, value in halfway.state.params.items()
    )


def test_who_is_chosen_changes_over_rounds_and_follows_the_seed(lab):
    fed = lab.federation((2,) * 20)

    def chosen(seed: int) -> list[list[int]]:
        training = lab.run(4, fed, "fedavg", "logreg", per_round=5, seed=seed)
        return [[line["client"] for line in result.clients] for result in training.results]

    first = chosen(0)
    assert all(len(set(clients)) == 5 for clients in first)
    assert len({tuple(clients) for clients in first}) == 4
    assert first == chosen(0)
    assert first != chosen(1)


def dropping(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(*shape, 40), nn.ReLU(), nn.Dropout(0.5), nn.Linear(40, classes))


@ENGINES
def test_dropout_repeats_and_leaves_the_global_generators_alone(lab, engine):
    rates = {"lr": 0.1, "epochs": 2}

    def outcome(seed: int, torch_seed: int):
        torch.manual_seed(torch_seed)
        np.random.seed(torch_seed)
        before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
        training = lab.run(2, None, "fedavg", dropping, engine, seed=seed, **rates)
        training.final_clients()
        assert torch.equal(torch.get_rng_state(), before)
        assert np.array_equal(np.random.get_state()[1], numpy_before)
        return training

    first = outcome(0, torch_seed=1)
    assert lab.gap(first, outcome(0, torch_seed=2)) == 0
    kept = nn.Sequential(
        *(layer if i != 2 else nn.Identity() for i, layer in enumerate(first.model))
    )
    undropped = lab.run(2, None, "fedavg", kept, engine, **rates)
    # Something was dropped
    assert not torch.allclose(first.state.params["3.weight"], undropped.state.params["3.weight"])


@ENGINES
def test_clients_and_rounds_drop_different_units(lab, engine):
    # The same single row: only dropout tells the clients apart
    fed = lab.federation(rows=[np.array([0])] * 2)
    # So slow that weights stay the same
    training = lab.training(fed, "local", dropping, engine, lr=1e-9)
    training.advance()
    start, first = (
        dict(training.model.named_parameters()),
        [training.client_model(client) for client in (0, 1)],
    )
    moves = [state["3.weight"] - start["3.weight"] for state in first]
    training.advance()
    moves.append(training.client_model(0)["3.weight"] - first[0]["3.weight"])
    for i, j in ((0, 1), (0, 2)):
        assert (moves[i] - moves[j]).abs().max() > 0.01 * moves[i].abs().max() > 0


def test_seeding_random_layers_does_not_touch_other_devices(monkeypatch):
    def touched(*_: object) -> None:
        raise AssertionError("a GPU's generator was seeded by a run on the CPU")

    monkeypatch.setattr(torch.cuda, "manual_seed_all", touched)
    monkeypatch.setattr(torch.cuda, "manual_seed", touched)
    before = torch.get_rng_state()
    with random_layers(torch.device("cpu"), 0, 0, 0):
        first = torch.rand(3)
    with random_layers(torch.device("cpu"), 0, 0, 0):
        assert torch.equal(first, torch.rand(3))
    with random_layers(torch.device("cpu"), 0, 1, 0):
        assert not torch.equal(first, torch.rand(3))
    assert torch.equal(before, torch.get_rng_state())


def test_threads_are_set_for_a_round_and_restored(lab):
    seen = []

    class Spy(Loop):
        def train(self, job, start, plan):
            seen.append(torch.get_num_threads())
            return super().train(job, start, plan)

    lab.run(1, None, engine=Spy(), threads=2)
    assert seen == [2]
    assert torch.get_num_threads() == 1
    with pytest.raises(ZeroDivisionError), computing(3):
        seen.append(torch.get_num_threads() // 0)
    assert torch.get_num_threads() == 1


def test_devices():
    assert pick_device("cpu") == torch.device("cpu")
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    for name, says in (
        ("gpu", "device=gpu is not a device: use cpu, cuda, cuda:0 … or auto"),
        ("meta", "device=meta is not supported: use cpu, cuda"),
        (
            f"cuda:{torch.cuda.device_count()}",
            f"this machine has {torch.cuda.device_count()} CUDA devices: use device=cpu",
        ),
    ):
        with pytest.raises(FedskewError, match=says):
            pick_device(name)


@pytest.mark.parametrize(
    ("spec", "factors"),
    [
        ("constant", [1, 1, 1, 1]),
        ("cosine", [1, (1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2]),
        (
            "cosine:floor=0.2",
            [1, 0.2 + 0.8 * (1 + 0.5**0.5) / 2, 0.6, 0.2 + 0.8 * (1 - 0.5**0.5) / 2],
        ),
        ("step:every=2,factor=0.1", [1, 1, 0.1, 0.1]),
        ("exponential:factor=0.5", [1, 0.5, 0.25, 0.125]),
    ],
)
def test_schedules_by_hand(spec: str, factors: list[float]):
    choice = schedules.choose(spec)
    assert [schedules.get(choice.name)(t, 4, **choice.options) for t in range(4)] == pytest.approx(
        factors, abs=1e-12
    )


def test_every_schedule_starts_at_one():
    assert {name: schedules.get(name)(0, 10) for name in schedules} == dict.fromkeys(schedules, 1.0)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (
            {"model": BATCH_NORM, "batch_size": 1},
            "batch_size=1 with BatchNorm .* use batch_size >= 2 or norm=group",
        ),
        (
            {"model": BATCH_NORM, "sizes": (3, 1, 2)},
            "client 1 has 1 row, BatchNorm needs 2.*min_size=2",
        ),
        ({"per_round": 6}, "per_round=6 is more than the 5 clients: use at most 5"),
        ({"per_round": 2, "sizes": (9,)}, "per_round=2 is more than the 1 clients"),
        (
            {"algorithm": "fednova", "optimizer": "adam"},
            "fednova with these options is defined for local SGD, got optimizer=adam",
        ),
        ({"device": "tpu"}, "device=tpu is not a device"),
        ({"schedule": "cosin"}, "unknown schedule 'cosin': did you mean 'cosine'"),
        (
            {"fleet": "uniform:latency=-1"},
            "fleet uniform: latency=-1 is out of range, it must be >= 0",
        ),
        (
            {"model": nn.Sequential(nn.InstanceNorm1d(6, track_running_stats=True))},
            "track_running_stats=False",
        ),
    ],
)
def test_what_cannot_work_is_refused(lab, wrong: dict, says: str):
    wrong = dict(wrong)
    fed = lab.federation(wrong.pop("sizes", lab.sizes))
    with pytest.raises(FedskewError, match=says):
        lab.training(fed, wrong.pop("algorithm", "fedavg"), wrong.pop("model", "logreg"), **wrong)


def test_small_batches_are_fine_without_batch_norm(lab):
    training = lab.run(
        1, lab.federation((3, 1, 2)), "fedavg", "tabular:hidden=5,norm=group", batch_size=1
    )
    assert [line["steps"] for line in training.results[0].clients] == [3, 1, 2]


def test_the_given_model_and_data_stay_as_they_are(lab):
    model, fed = (
        nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)),
        lab.federation(),
    )
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x = fed.train.x.copy()
    for name in algorithms:
        if name == "dp" or trains_single_samples(resolve(name)):  # these refuse BatchNorm
            continue
        norm = "aggregate"
        if resolve(name).no_shared_model:  # BatchNorm of several models
            norm = "local"
        lab.run(1, fed, name, model, dtype="float32", norm=norm)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert next(model.parameters()).dtype == torch.float32
    assert np.array_equal(fed.train.x, x)


@ENGINES
def test_a_weight_that_nothing_uses(lab, engine):
    class Idle(nn.Linear):
        def __init__(self) -> None:
            super().__init__(6, 3)
            self.idle = nn.Parameter(torch.ones(2))

    training = lab.run(1, None, "fedprox", Idle(), engine)
    assert training.state.params["idle"].tolist() == [1, 1]
