"""FedBS against a calculation in NumPy, its identities, ties, traffic, and unusual clients."""

import numpy as np
import pytest

from fedskew.algorithms.contract import Report
from fedskew.algorithms.fedbs import FedBS, soft_weights
from fedskew.algorithms.selection import ClientPool
from fedskew.core.errors import FedskewError
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked
from fedskew.fleet.machines import fleets

ROUNDS, CLIENTS = 3, 5
ENGINES = pytest.mark.parametrize(
    "engine",
    [Loop(), Stacked(mode="stack"), Stacked(1, "stack")],
    ids=["loop", "stacked", "one a stack"],
)


def by_hand(
    desk, count: int, tau: float | None, alpha=(1.0,) * CLIENTS, everything=False
) -> tuple[np.ndarray, list]:
    w, told = desk.start(), []
    for round in range(ROUNDS):
        rows = (
            desk.held if everything else [desk.probed(round, client) for client in range(CLIENTS)]
        )
        v = [desk.gradient_variance(w, rows[client]) for client in range(CLIENTS)]
        best = sorted(sorted(range(CLIENTS), key=lambda client: alpha[client] * v[client])[:count])
        scale = tau if tau is not None else len(best) / sum(v[client] for client in best)
        beta = np.exp([-scale * v[client] for client in best])
        beta /= beta.sum()
        w = sum(
            share * desk.descend(w, round, client) for share, client in zip(beta, best, strict=True)
        )
        told.append((best, [v[client] for client in best], beta))
    return w, told


@ENGINES
@pytest.mark.parametrize(("count", "tau"), [(3, 0.7), (5, 0.7), (1, 2.0), (4, None)])
def test_by_hand(desk, engine, count: int, tau: float | None):
    compare(desk, f"fedbs:tau={tau}".lower(), engine, count, *by_hand(desk, count, tau))


@ENGINES
@pytest.mark.parametrize("count", [2, 5])
def test_by_hand_on_all_rows_with_importance_by_size(desk, engine, count: int):
    wanted = by_hand(desk, count, None, desk.sizes / desk.sizes.mean(), everything=True)
    compare(desk, "fedbs:rows=all,importance=size", engine, count, *wanted)


def test_the_importance_of_eq_9_counts_against_large_clients():
    pool, varies = (
        ClientPool(0, np.array([30, 10, 20])),
        {"gradient_variance": np.array([1.0, 2.0, 1.4])},
    )
    assert FedBS().client_selection.configure_training(
        pool, np.arange(3), varies, 2
    ).clients.tolist() == [0, 2]
    assert FedBS(importance="size").client_selection.configure_training(
        pool, np.arange(3), varies, 1
    ).clients.tolist() == [1]  # 1.5, 1.0, 1.4
    assert FedBS(importance="size").client_selection.configure_training(
        pool, np.array([2, 0]), {"gradient_variance": np.ones(2)}, 1
    ).clients == [2]
    beta = (
        FedBS(importance="size", tau=1.0)
        .client_selection.configure_training(pool, np.arange(3), varies, 3)
        .numbers["beta"]
    )
    assert beta == pytest.approx(
        np.exp([-1.0, -2.0, -1.4]) / np.exp([-1.0, -2.0, -1.4]).sum(), abs=1e-15
    )  # of Var alone


def test_measuring_on_all_rows_takes_its_time(desk):
    _, little = desk.train("fedbs", fleet="uniform")
    _, much = desk.train("fedbs:rows=all", fleet="uniform")
    machine = fleets.get("uniform")(CLIENTS, 0).machines(np.arange(1))
    for few, all_rows in zip(little, much, strict=True):
        longer = all_rows.round["simulated_seconds"] - few.round["simulated_seconds"]
        steps = 3 - 1  # nine rows in batches of four, against one batch
        assert longer == pytest.approx(
            (9 - 4) / machine.rows_per_second[0] + steps * machine.seconds_per_step[0]
        )


def compare(desk, spec: str, engine, count: int, wanted: np.ndarray, told: list) -> None:
    w, results = desk.train(spec, engine, per_round=count)
    np.testing.assert_allclose(w, wanted, rtol=0, atol=1e-12)
    for round, (best, variance, beta) in enumerate(told):
        assert desk.column(results, "client")[round] == best
        np.testing.assert_allclose(
            desk.column(results, "variance")[round], variance, rtol=0, atol=1e-12
        )
        for name in ("beta", "weight"):
            np.testing.assert_allclose(desk.column(results, name)[round], beta, rtol=0, atol=1e-12)


def test_without_tau_and_with_everybody_it_is_fedavg(desk):
    for engine in (Loop(), Stacked(mode="stack")):
        left, right = (
            desk.train(spec, engine, momentum=0.5)[0]
            for spec in ("fedbs:tau=0", "fedavg:weights=uniform")
        )
        np.testing.assert_allclose(left, right, rtol=0, atol=1e-12)


def test_a_single_row_is_steadiest(desk):
    _, results = desk.train("fedbs", per_round=1)
    assert desk.column(results, "client") == [[2]] * ROUNDS
    assert desk.column(results, "variance") == [[0.0]] * ROUNDS
    assert desk.column(results, "weight") == [[1.0]] * ROUNDS


def test_everybody_is_asked_and_the_steadiest_of_equals_is_the_first():
    pool, chosen = ClientPool(4, np.full(5, 9), batch_size=8, epochs=2), np.arange(5)
    assert FedBS().client_selection.select(pool, 2, stream=None).tolist() == [0, 1, 2, 3, 4]
    found = FedBS().client_selection.configure_training(
        pool, chosen, {"gradient_variance": np.array([3.0, 1.0, 2.0, 1.0, 1.0])}, 2
    )
    assert found.clients.tolist() == [1, 3]
    assert found.batch_size.tolist() == [8, 8]
    assert found.epochs.tolist() == [2, 2]
    last = FedBS().client_selection.configure_training(
        pool, chosen, {"gradient_variance": np.array([3.0, np.nan, 2.0, np.inf, 9.0])}, 3
    )
    assert last.clients.tolist() == [0, 2, 4]
    few = FedBS().client_selection.configure_training(
        pool, chosen[3:], {"gradient_variance": np.array([2.0, 1.0])}, 4
    )
    assert few.clients.tolist() == [3, 4]


def test_soft_weights_by_hand():
    assert soft_weights(np.array([5.0, 5.0 + np.log(2)]), 1.0) == pytest.approx(
        [2 / 3, 1 / 3], abs=1e-15
    )
    assert soft_weights(np.array([1.0, 2.0, 9.0]), 0.0).tolist() == [1 / 3] * 3
    far = soft_weights(np.array([1e6, 1e6 + 1, 2e6]), 1.0)  # exp(-1e6) is 0 in floating point
    assert far[:2] == pytest.approx([1 / (1 + np.exp(-1)), 1 / (1 + np.e)], abs=1e-15)
    assert 0 < far[2] < 1e-25
    assert soft_weights(np.array([np.nan, 1.0, np.inf]), 0.0).tolist() == [0.0, 1.0, 0.0]
    assert soft_weights(np.full(2, np.nan), 1.0).tolist() == [0.0, 0.0]


def test_the_round_goes_on_when_the_steadiest_is_lost():
    beta = soft_weights(np.array([0.0, 1e5, 1e5]), 1.0)
    rest = Report(
        np.array([1, 2]), np.ones(2), np.ones(2), np.ones(2), np.ones(2), {"beta": beta[1:]}
    )
    weights = FedBS().weight(rest)
    assert weights / weights.sum() == pytest.approx([0.5, 0.5])


def test_the_question_is_paid_for(desk):
    weights, number = 3 * 6 * 8, 8
    _, results = desk.train("fedbs", per_round=2)
    _, plain = desk.train("fedavg", per_round=2)
    for asked, not_asked in zip(results, plain, strict=True):
        assert not_asked.round["bytes_down"] == 2 * weights
        assert (
            asked.round["bytes_down"] == CLIENTS * weights + 2 * 2 * number
        )  # two numbers are sent with the configuration
        assert asked.round["bytes_up"] == CLIENTS * number + 2 * weights


def test_slow_machines_hold_up_the_question(desk):
    _, results = desk.train("fedbs", per_round=1, fleet="mixed:slow=10")
    _, alone = desk.train("fedbs", per_round=1)
    for slow, fast in zip(results, alone, strict=True):
        assert slow.round["simulated_seconds"] > slow.clients[0]["seconds"]
        assert slow.round["simulated_seconds"] > fast.round["simulated_seconds"]


def test_more_clients_a_round_than_there_are(desk):
    with pytest.raises(FedskewError, match="per_round=6 is more than the 5 clients"):
        desk.train("fedbs", per_round=6)
    with pytest.raises(FedskewError, match="tau=-1 is out of range"):
        desk.train("fedbs:tau=-1")
