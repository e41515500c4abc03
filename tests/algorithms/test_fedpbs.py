"""FedPBS against a calculation in NumPy, its identities, its batches on unlike machines and its odd clients."""

import numpy as np
import pytest

from fedskew.algorithms.base import Roster, resolve
from fedskew.algorithms.fedpbs import FedPBS
from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked
from fedskew.errors import FedskewError
from fedskew.fleet.base import fleets

ROUNDS, CLIENTS = 3, 5
ENGINES = pytest.mark.parametrize("engine", [Sequential(), Stacked(mode="stack")], ids=["sequential", "stacked"])
SPEEDS = [100, 50, 100, 40, 30]  # of batches of 4: all, half, all, 1.6, 1.2


@pytest.fixture
def fleet(tmp_path) -> str:
    lines = [f"{client},{speed},8,8,0,0" for client, speed in enumerate(SPEEDS)]
    (tmp_path / "machines.csv").write_text("client,rows_per_second,down_mbit,up_mbit,latency,dropout\n" + "\n".join(lines))
    return f"trace:file={tmp_path / 'machines.csv'}"


def by_hand(desk, batches: list[int], mu: list[float], rule, measure=None, soft: float = 0.0) -> tuple[np.ndarray, dict]:
    """``rule(batch, variance, all variances)`` says whether a client is vulnerable, ``mu`` what it then gets."""
    w, told = desk.start(), {"variance": [], "vulnerable": [], "mu": [], "weight": []}
    for round in range(ROUNDS):
        v = [(measure or desk.loss_variance)(w, desk.probed(round, client)) for client in range(CLIENTS)]
        vulnerable = [bool(rule(batches[client], v[client], v)) for client in range(CLIENTS)]
        pull = [mu[client] * vulnerable[client] for client in range(CLIENTS)]
        found = [desk.descend(w, round, client, batches[client], pull[client]) for client in range(CLIENTS)]
        beta = np.exp([-soft * value for value in v])
        w = np.tensordot(beta / beta.sum(), found, 1)
        for column, values in zip(told.values(), (v, vulnerable, pull, beta / beta.sum()), strict=True):
            column.append(values)
    return w, told


def compare(desk, spec: str, engine, wanted: tuple[np.ndarray, dict], **settings) -> list:
    w, results = desk.train(spec, engine, **settings)
    np.testing.assert_allclose(w, wanted[0], rtol=0, atol=1e-10)
    for name, values in wanted[1].items():
        np.testing.assert_allclose(desk.column(results, name), values, rtol=0, atol=1e-10)
    return results


@ENGINES
def test_by_hand_with_the_median_of_the_round(desk, engine):
    wanted = by_hand(desk, [4, 4, 1, 4, 4], [0.7] * 5, lambda _, v, all_v: v > sorted(all_v)[2])
    results = compare(desk, "fedpbs:mu=0.7", engine, wanted)
    assert desk.column(results, "batch_size") == [[4.0, 4.0, 1.0, 4.0, 4.0]] * ROUNDS
    assert [sum(line) for line in desk.column(results, "vulnerable")] == [2.0] * ROUNDS


@ENGINES
def test_by_hand_on_unlike_machines_with_thresholds_and_soft_weights(desk, engine, fleet: str):
    # 4 x 0.4 and 4 x 0.3 round to 2 and 1, and the least is 2 where there are 2 rows.
    batches, mu = [4, 2, 1, 2, 2], [0.0, 0.4, 0.6, 0.4, 0.4]
    wanted = by_hand(desk, batches, mu, lambda b, v, _: b < 2 or v > 0.12, soft=3.0)
    spec = "fedpbs:mu=0.8,mu_rule=batch,b_th=2,v_th=0.12,weights=soft,tau=3"
    results = compare(desk, spec, engine, wanted, fleet=fleet)
    assert desk.column(results, "batch_size") == [batches] * ROUNDS
    assert desk.column(results, "steps") == [[6, 6, 2, 6, 4]] * ROUNDS
    seen = list(zip(*desk.column(results, "vulnerable"), strict=True))
    assert seen[2] == (1, 1, 1)  # its batch is too small
    assert {0, 1} == set(sum(seen, ()))


@ENGINES
def test_by_hand_with_the_variance_of_gradients(desk, engine):
    wanted = by_hand(
        desk, [4, 4, 1, 4, 4], [0.7] * 5, lambda b, v, all_v: v > np.quantile(all_v, 0.3) or b < 4, desk.gradient_variance
    )
    compare(desk, "fedpbs:mu=0.7,variance=gradient,v_quantile=0.3,b_quantile=0.5", engine, wanted)


@pytest.mark.parametrize(
    ("spec", "same"),
    [
        ("fedpbs:v_quantile=1,mu=0.9", "fedavg:weights=uniform"),
        ("fedpbs:v_th=1e9,b_th=1,mu=0.9", "fedavg:weights=uniform"),
        ("fedpbs:mu=0", "fedavg:weights=uniform"),
        ("fedpbs:b_th=5,mu=0.9", "fedprox:weights=uniform,mu=0.9"),
        ("fedpbs:weights=soft,tau=0,b_th=5,mu=0.9", "fedprox:weights=uniform,mu=0.9"),
    ],
)
def test_identities(desk, spec: str, same: str):
    for engine in (Sequential(), Stacked(mode="stack")):
        left, right = (desk.train(each, engine, momentum=0.5, per_round=3)[0] for each in (spec, same))
        np.testing.assert_allclose(left, right, rtol=0, atol=1e-12)


def test_the_proximal_term_matters(desk):
    free, held = (desk.train(f"fedpbs:mu={mu}")[0] for mu in (0, 0.9))
    assert np.abs(free - held).max() > 1e-3


def orders(algorithm: FedPBS, variance, sizes=None, capacity=1.0):
    sizes = np.full(len(variance), 99) if sizes is None else np.array(sizes)
    roster = Roster(0, sizes, batch_size=64, epochs=3, capacity=lambda some: np.broadcast_to(capacity, len(sizes))[some])
    return algorithm.orders(roster, np.arange(len(sizes)), {"loss_variance": np.array(variance)}, len(sizes))


def test_a_single_row_has_no_variance(desk):
    _, results = desk.train("fedpbs")
    _, results_of_gradients = desk.train("fedpbs:variance=gradient")
    for found in (results, results_of_gradients):
        assert [line[2] for line in desk.column(found, "variance")] == [0.0] * ROUNDS
        assert [line[2] for line in desk.column(found, "vulnerable")] == [0.0] * ROUNDS


def test_batches_by_hand():
    found = orders(FedPBS(b_min=8), [0.0] * 6, [99, 99, 99, 5, 99, 20], np.array([1.0, 0.39, 0.01, 1.0, 0.3, 0.3]))
    assert found.batch.tolist() == [64, 25, 8, 5, 19, 19]  # 24.96, 0.64, 64, 19.2, 19.2
    assert found.epochs.tolist() == [3] * 6
    assert found.members.tolist() == [0, 1, 2, 3, 4, 5]
    assert orders(FedPBS(b_min=100), [0.0] * 2, [99, 7]).batch.tolist() == [64, 7]


def test_the_batch_rule():
    found = orders(FedPBS(mu=0.8, mu_rule="batch", v_th=0.0), [1.0, 1.0, 0.0], [99, 16, 16])
    assert found.numbers["mu"].tolist() == pytest.approx([0.0, 0.6, 0.0])


def test_quantiles_of_the_round():
    assert orders(FedPBS(), [4.0, 1.0, 2.0, 3.0]).numbers["vulnerable"].tolist() == [1, 0, 0, 1]
    assert orders(FedPBS(v_quantile=0), [4.0, 1.0, 2.0, 3.0]).numbers["vulnerable"].tolist() == [1, 0, 1, 1]
    small = orders(FedPBS(v_quantile=1, b_quantile=0.5), [1.0] * 4, [9, 99, 30, 99])
    assert small.numbers["vulnerable"].tolist() == [1, 0, 1, 0]


def test_equal_clients_are_on_one_side_whatever_their_last_bits():
    assert orders(FedPBS(), 0.1 * (1 + 1e-15 * np.arange(3))).numbers["vulnerable"].tolist() == [0, 0, 0]
    assert orders(FedPBS(v_th=0.1), 0.1 * (1 + 1e-15 * np.arange(3))).numbers["vulnerable"].tolist() == [0, 1, 1]


def test_who_cannot_measure_is_vulnerable_and_moves_nothing():
    for unknown in (np.nan, np.inf):
        found = orders(FedPBS(weights="soft", b_quantile=0.5), [1.0, unknown, 2.0, 3.0], [50, 99, 40, 60])
        assert found.numbers["vulnerable"].tolist() == [0, 1, 1, 1]
        assert found.numbers["beta"][1] == 0
    nobody = orders(FedPBS(weights="soft"), [np.nan, np.nan])
    assert nobody.numbers["vulnerable"].tolist() == [1, 1]
    assert nobody.numbers["beta"].tolist() == [0, 0]


def test_slow_machines_get_smaller_batches(desk):
    speeds = fleets.get("mixed")(CLIENTS, 0, slow=10.0).machines(np.arange(CLIENTS)).rows_per_second
    wanted = [
        max(min(round(8 * speed / max(speeds)), size), min(2, size)) for speed, size in zip(speeds, desk.sizes, strict=True)
    ]
    _, results = desk.train("fedpbs", fleet="mixed:slow=10", batch_size=8)
    assert desk.column(results, "batch_size") == [wanted] * ROUNDS
    assert wanted != np.minimum(desk.sizes, 8).tolist()
    steps = [2 * -(-size // batch) for size, batch in zip(desk.sizes, wanted, strict=True)]
    assert desk.column(results, "steps") == [steps] * ROUNDS


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("fedpbs:mu=-1", "mu=-1 is out of range"),
        ("fedpbs:v_quantile=1.1", "v_quantile=1.1 is out of range"),
        ("fedpbs:v_th=-0.1", "v_th=-0.1 is out of range"),
        ("fedpbs:b_th=0", "b_th=0 is out of range"),
        ("fedpbs:b_th=2.5", "b_th=2.5 is not a whole number or none"),
        ("fedpbs:weights=size", "weights=size is not one of uniform, soft"),
    ],
)
def test_bad_options_are_refused(spec: str, says: str):
    with pytest.raises(FedskewError, match=says):
        resolve(spec)


def test_more_clients_a_round_than_there_are(desk):
    with pytest.raises(FedskewError, match="per_round=6 is more than the 5 clients"):
        desk.train("fedpbs", per_round=6)
