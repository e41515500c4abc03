"""FedGA against a calculation in NumPy, and weights where losses do not fall."""

import numpy as np
import pytest

from fedskew.algorithms.contract import Report
from fedskew.algorithms.fedga import FedGA
from fedskew.core.errors import FedskewError
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked

ROUNDS, CLIENTS = 3, 5
ENGINES = pytest.mark.parametrize(
    "engine",
    [Loop(), Stacked(mode="stack"), Stacked(1, "stack")],
    ids=["loop", "stacked", "one a stack"],
)


@ENGINES
def test_by_hand(desk, engine):
    w, told = desk.start(), []
    for round in range(ROUNDS):
        found = [desk.descend(w, round, client) for client in range(CLIENTS)]
        before = np.array([desk.mean_loss(w, client) for client in range(CLIENTS)])
        after = np.array([desk.mean_loss(mine, client) for client, mine in enumerate(found)])
        weight = desk.sizes * (before - after) / before
        assert (weight > 0).all()
        weight /= weight.sum()
        w = np.tensordot(weight, found, 1)
        told.append({"loss_before": before, "loss_after": after, "weight": weight})
    result, results = desk.train("fedga", engine)
    np.testing.assert_allclose(result, w, rtol=0, atol=1e-10)
    for name in told[0]:
        np.testing.assert_allclose(
            desk.column(results, name), [line[name] for line in told], rtol=0, atol=1e-10
        )


def weight(before, after, sizes=None) -> list[float]:
    ones = np.ones(len(before))
    numbers = {"loss_before": np.array(before), "loss_after": np.array(after)}
    return FedGA().weight(
        Report(
            np.arange(len(before)),
            ones if sizes is None else np.array(sizes),
            ones,
            ones,
            ones,
            numbers,
        )
    )


def test_equal_falls_are_fedavg():
    weights = weight([2.0, 4.0, 1.0], [1.0, 2.0, 0.5], [10, 20, 70])
    assert weights / weights.sum() == pytest.approx([0.1, 0.2, 0.7], abs=1e-15)


def test_a_round_in_which_nobody_gets_better_is_fedavg():
    weights = weight([1.0, 2.0, 0.0], [1.0, 3.0, 0.0], [10, 20, 70])
    assert weights / weights.sum() == pytest.approx([0.1, 0.2, 0.7], abs=1e-12)


def test_who_gets_worse_does_not_count_against_who_gets_better():
    weights = weight([1.0, 1.0, 0.0, np.inf, 1.0], [0.5, 2.0, 1.0, np.inf, np.nan])
    assert (weights > 0).all()
    assert weights / weights.sum() == pytest.approx([1, 0, 0, 0, 0], abs=1e-8)


def test_a_rate_so_high_that_losses_rise(desk):
    _, results = desk.train("fedga", lr=50.0)
    before, after = (np.array(desk.column(results, name)) for name in ("loss_before", "loss_after"))
    weights = np.array(desk.column(results, "weight"))
    assert (after > before).any()
    assert (weights[after > before] < 1e-6).all()


def test_slow_machines_change_the_time_only(desk):
    left, right = (desk.train("fedga", fleet=fleet)[0] for fleet in ("uniform", "mixed:slow=10"))
    np.testing.assert_array_equal(left, right)


def test_more_clients_a_round_than_there_are(desk):
    with pytest.raises(FedskewError, match="per_round=6 is more than the 5 clients"):
        desk.train("fedga", per_round=6)
