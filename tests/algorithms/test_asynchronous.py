"""FedAsync and FedBuff against an event queue in NumPy, their identities, staleness and drop-outs."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

import fedskew as fs
from fedskew.algorithms import FedBuff, InitialWeights
from fedskew.algorithms.contract import Cohort, Report, View
from fedskew.core.streams import Ints
from fedskew.core.trees import Tensors, Tree
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked

ENGINES = pytest.mark.parametrize(
    "engine", [Loop(), Stacked(mode="stack")], ids=["loop", "stacked"]
)
SPEED, ROUNDS = 10.0, 7
FLEET = f"uniform:rows_per_second={SPEED},latency=0.5,mbit_per_second=1000,seconds_per_step=0"


def seconds(desk, bytes_a_way: int) -> np.ndarray:
    """Return the time of two messages, two epochs, and the transfers both ways."""
    return 2 * 0.5 + 2 * desk.sizes / SPEED + 2 * 8 * bytes_a_way / 1000e6


def by_hand(desk, buffer: int, mix) -> tuple[np.ndarray, list, list]:
    """Return weights, clock and (client, staleness) of every step, with all five clients training at any time."""
    w, clock, air = desk.start(), 0.0, {}
    took = seconds(desk, 8 * w.size)
    clocks, ages = [], []
    for round in range(ROUNDS):
        air |= {k: (clock + took[k], round, w) for k in range(5) if k not in air}
        first = sorted(air, key=lambda k: (air[k][0], k))[:buffer]
        landed = {k: air.pop(k) for k in first}
        clock = landed[first[-1]][0]
        answers = [
            (round - born, begin, desk.descend(begin, born, k))
            for k, (_, born, begin) in landed.items()
        ]
        w = mix(w, answers)
        clocks.append(clock)
        ages.append(sorted((k, round - born) for k, (_, born, _) in landed.items()))
    return w, clocks, ages


def compare(desk, method, engine, buffer: int, mix) -> None:
    w, results = desk.train(method, engine, rounds=ROUNDS, fleet=FLEET)
    expected, clocks, ages = by_hand(desk, buffer, mix)
    assert np.abs(w - expected).max() < 1e-12
    assert [result.round["clock"] for result in results] == pytest.approx(clocks)
    assert [
        [(line["client"], line["staleness"]) for line in result.clients] for result in results
    ] == ages
    assert max(age for step in ages for _, age in step) > 0, (
        "no update was stale, the test shows nothing"
    )


@ENGINES
@pytest.mark.parametrize("buffer", [1, 2, 3])
def test_fedbuff_by_hand(desk, engine, buffer: int):
    def mix(w, answers):
        return w + 0.7 * sum((end - begin) / np.sqrt(1 + age) for age, begin, end in answers) / len(
            answers
        )

    compare(desk, fs.FedBuff(buffer=buffer, server_lr=0.7), engine, buffer, mix)


@ENGINES
@pytest.mark.parametrize(
    ("options", "fade"),
    [
        ({"power": 0.7}, lambda age: (age + 1) ** -0.7),
        (
            {"staleness": "hinge", "power": 2.0, "wait": 1},
            lambda age: 1.0 if age <= 1 else 1 / (2 * (age - 1) + 1),
        ),
        ({"staleness": "constant"}, lambda age: 1.0),
    ],
    ids=["polynomial", "hinge", "constant"],
)
def test_fedasync_by_hand(desk, engine, options, fade):
    def mix(w, answers):
        [(age, _, end)] = answers
        share = 0.4 * fade(age)
        return (1 - share) * w + share * end

    compare(desk, fs.FedAsync(alpha=0.4, mu=0.0, **options), engine, 1, mix)


def test_fedasync_pulls_its_clients_back(desk):
    def end(method, **settings):
        return desk.train(method, None, rounds=1, fleet=FLEET, **settings)[0]

    w = desk.start()
    first = int(np.argmin(desk.sizes))  # the fastest answers first
    expected = 0.6 * desk.descend(w, 0, first, mu=0.5) + 0.4 * w
    assert np.abs(end(fs.FedAsync(mu=0.5)) - expected).max() < 1e-12


def test_a_full_buffer_without_staleness_is_fedavg(desk):
    right, _ = desk.train(fs.FedAvg(weights="uniform"))
    found, results = desk.train(fs.FedBuff(buffer=5))
    assert np.abs(found - right).max() < 1e-12
    assert all(line["staleness"] == 0 for result in results for line in result.clients)


def test_a_buffer_larger_than_the_clients_waits_for_all(desk):
    right, _ = desk.train(fs.FedBuff(buffer=5))
    found, results = desk.train(fs.FedBuff(buffer=50))
    assert np.array_equal(found, right)
    assert {result.round["clients"] for result in results} == {5}


def test_staleness_weighs_less():
    report = Report(
        np.arange(3), *(np.ones(3) for _ in range(4)), {"staleness": np.array([0.0, 3.0, 8.0])}
    )
    assert fs.FedBuff().weight(report).tolist() == pytest.approx([1.0, 1 / 2, 1 / 3])


@pytest.mark.parametrize("method", ["fedasync", "fedbuff:buffer=3"])
def test_everybody_lost(desk, method: str):
    w, results = desk.train(method, fleet="uniform:dropout=0.999999999")
    assert np.array_equal(w, desk.start())
    assert all(result.round["dropped"] == result.round["clients"] > 0 for result in results)
    assert all(result.round["local_loss"] is None for result in results)
    clocks = [result.round["clock"] for result in results]
    assert clocks == sorted(clocks)
    assert len(set(clocks)) == len(clocks)


@pytest.mark.parametrize("method", ["fedasync", "fedbuff:buffer=2"])
def test_who_sends_nan_is_left_out_and_the_run_goes_on(desk, method: str):
    training = desk.training(method, fleet=FLEET)
    training.job.x[desk.held[2]] = np.nan  # the fastest
    results = [training.advance() for _ in range(6)]
    assert np.isfinite(desk.flat(training.state.params)).all()
    excluded = [line for result in results for line in result.clients if line["client"] == 2]
    assert excluded
    assert all(line["weight"] == 0 for line in excluded)
    assert sum(result.round["excluded"] for result in results) == len(excluded)


@pytest.mark.parametrize(
    "fleet", ["mixed:slow=20,dropout=0.3", "mixed:slow=20,deadline=0.5", "phones"]
)
@pytest.mark.parametrize("method", ["fedasync", "fedbuff:buffer=2"])
def test_engines_agree_and_a_stopped_run_goes_on(desk, method: str, fleet: str):
    settings = {"rounds": 9, "per_round": 3, "fleet": fleet}
    right, results = desk.train(method, Loop(), **settings)
    found, others = desk.train(method, Stacked(mode="stack"), **settings)
    assert np.abs(found - right).max() < 1e-12
    assert [result.round["clock"] for result in results] == [
        result.round["clock"] for result in others
    ]
    stopped = desk.training(method, Loop(), **settings)
    for _ in range(4):
        stopped.advance()
    resumed = desk.training(method, Loop(), **settings)
    resumed.restore(stopped.checkpoint())
    rest = [resumed.advance() for _ in range(5)]
    assert np.array_equal(desk.flat(resumed.state.params), right)
    assert [result.clients for result in rest] == [result.clients for result in results[4:]]


def test_bytes_are_counted_when_clients_come_back_in_their_lines(desk):
    size = 8 * desk.start().size
    _, results = desk.train("fedbuff:buffer=2", rounds=3, fleet=FLEET)
    for result in results:
        for name in ("bytes_down", "bytes_up"):
            assert [line[name] for line in result.clients] == [size] * 2
            assert result.round[name] == 2 * size


@dataclass(frozen=True)
class Favoured(FedBuff):
    """The server tells every client a number, by which it scales its loss."""

    def init_server_state(self, weights: InitialWeights) -> Tree:
        """Return those numbers."""
        return {"told": {"favour": torch.arange(1.0, 1.0 + weights.clients)}}

    def answer(self, server_state: Tree, clients: Ints) -> Tree:
        """Return the numbers of these clients."""
        return {"numbers": {"favour": server_state["told"]["favour"][torch.from_numpy(clients)]}}

    def server_update(
        self, weights: Tensors, server_state: Tree, mean: Tree, cohort: Cohort
    ) -> tuple[Tensors, Tree]:
        """Return the new weights, and the same numbers."""
        return super().server_update(weights, {}, mean, cohort)[0], server_state

    def objective(self, loss: Tensor, view: View) -> Tensor:
        """Return the loss times the number."""
        return loss * view.numbers["favour"]


@ENGINES
def test_numbers_of_an_answer_reach_pending_clients(desk, engine):
    """The first client to arrive is alone in its update, and began with the initial weights."""
    server = desk.training(Favoured(buffer=1), engine, epochs=1, batch_size=9, per_round=1)
    result = server.advance()
    (client,) = [line["client"] for line in result.clients]
    start = desk.start()
    step = desk.mean_gradient(start, desk.held[client])
    moved = start - 0.3 * (client + 1) * step
    np.testing.assert_allclose(desk.flat(server.state.params), moved, atol=1e-12)
