"""Power-of-choice against a calculation in NumPy, with other methods, and what it refuses."""

import numpy as np
import pytest

from fedskew.algorithms.contract import resolve
from fedskew.core.errors import FedskewError
from fedskew.core.streams import Stream
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked

ENGINES = pytest.mark.parametrize(
    "engine", [Loop(), Stacked(mode="stack")], ids=["loop", "stacked"]
)


@ENGINES
@pytest.mark.parametrize("rows", ["all", "batch"])
def test_by_hand(desk, engine, rows: str):
    w = desk.start()
    chosen = []
    for round in range(3):
        drawn = Stream(0, "select", round).weighted_sample(desk.sizes, 4)
        losses = {}
        for client in drawn:
            seen = desk.held[client]
            if rows == "batch":
                seen = desk.probed(round, client, min(4, desk.sizes[client]))
            losses[client] = np.mean([desk.loss(w, row) for row in seen])
        trains = sorted(sorted(drawn, key=lambda client: -losses[client])[:2])
        chosen.append(trains)
        ended = [desk.descend(w, round, client) for client in trains]
        share = desk.sizes[trains] / desk.sizes[trains].sum()
        w = np.tensordot(share, np.stack(ended), 1)
    found, results = desk.train(f"power-of-choice:rows={rows}", engine, per_round=2)
    assert desk.column(results, "client") == chosen
    np.testing.assert_allclose(found, w, rtol=0, atol=1e-12)
    assert [result.round["measured"] for result in results] == [4] * 3


def test_as_many_candidates_as_places_is_sampling_by_size(desk):
    one, _ = desk.train("power-of-choice:candidates=1", per_round=2)
    other, _ = desk.train("fedavg", per_round=2, sampling="size")
    np.testing.assert_array_equal(one, other)


def test_candidates_are_on_the_clock_and_in_the_bytes(desk):
    _, results = desk.train("power-of-choice", per_round=2)
    _, plain = desk.train("fedavg", per_round=2)
    model = 8 * (3 * 5 + 3)
    for mine, theirs in zip(results, plain, strict=True):
        assert mine.round["bytes_down"] == 4 * model
        assert mine.round["bytes_up"] == 2 * model + 4 * 8
        assert mine.round["simulated_seconds"] > theirs.round["simulated_seconds"]


@pytest.mark.parametrize("method", ["scaffold", "fedprox:mu=0.1", "ditto", "quantize", "fedrep"])
def test_goes_with_other_methods(desk, method: str):
    server = desk.training(f"{method} + power-of-choice", model="mlp:hidden=4", per_round=2)
    assert server.advance().round["measured"] == 4


def test_the_papers_weights_are_equal(desk):
    server = desk.training("fedavg + power-of-choice", weights="paper")
    assert server.weights == "uniform"
    assert desk.training("fedavg", weights="paper").weights == "size"


@pytest.mark.parametrize("method", ["fedbs", "afl-cp", "fedpbs"])
def test_a_method_that_selects_clients_itself_is_refused(desk, method: str):
    with pytest.raises(FedskewError, match="the method selects clients itself"):
        desk.training(f"{method} + power-of-choice")


def test_privacy_is_refused():
    with pytest.raises(FedskewError, match="clients are selected by what they report"):
        resolve("fedavg + dp + power-of-choice").check_clients(100)
