"""FedPBS against a calculation in NumPy, its identities, its batches on different machines, and unusual clients."""

import numpy as np
import pytest

import fedskew as fs
from fedskew.algorithms.contract import resolve
from fedskew.algorithms.fedpbs import FedPBS
from fedskew.algorithms.selection import ClientPool
from fedskew.core.errors import FedskewError
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked
from fedskew.fleet.machines import fleets

ROUNDS, CLIENTS = 3, 5
ENGINES = pytest.mark.parametrize(
    "engine", [Loop(), Stacked(mode="stack")], ids=["loop", "stacked"]
)
SPEEDS = [100, 50, 100, 40, 30]  # of batches of 4: all, half, all, 1.6, 1.2


@pytest.fixture
def fleet(tmp_path) -> str:
    lines = [f"{client},{speed},8,8,0,0" for client, speed in enumerate(SPEEDS)]
    (tmp_path / "machines.csv").write_text(
        "client,rows_per_second,down_mbit,up_mbit,latency,dropout\n" + "\n".join(lines)
    )
    return f"trace:file={tmp_path / 'machines.csv'}"


def algorithm4(
    desk,
    batches=(4, 4, 1, 4, 4),
    mu=0.7,
    grows=None,
    b_th=2.0,
    v_th=None,
    measure=None,
    soft: float = 0.0,
) -> tuple[np.ndarray, dict]:
    """Return the result of Algorithm 4 with all clients; ``grows(batch, variance, v_th)`` is mu_q / mu."""
    w, told = desk.start(), {"variance": [], "vulnerable": [], "mu": [], "weight": []}
    measure = measure or desk.loss_variance
    for round in range(ROUNDS):
        v = [measure(w, desk.probed(round, q, batches[q])) for q in range(CLIENTS)]  # lines 8-9
        limit = np.median(v) if v_th is None else v_th(v)
        stable = [batches[q] >= b_th and v[q] <= limit for q in range(CLIENTS)]  # line 10
        mu_q = [
            0.0 if stable[q] else mu * (grows(batches[q], v[q], limit) if grows else 1.0)
            for q in range(CLIENTS)
        ]
        found = [desk.descend(w, round, q, batches[q], mu_q[q]) for q in range(CLIENTS)]
        beta = np.exp([-soft * value for value in v])  # line 18 where soft is 0
        beta /= beta.sum()
        w = np.tensordot(beta, found, 1)
        for column, values in zip(
            told.values(), (v, np.logical_not(stable), mu_q, beta), strict=True
        ):
            column.append(values)
    return w, told


def section4(
    desk, count: int, batches=(4, 4, 1, 4, 4), mu=0.7, delta=None, tau=None
) -> tuple[np.ndarray, dict]:
    """Return the result of section 4: the SUR ranking, the low-batch set, and soft weights."""
    w, told = desk.start(), {"client": [], "variance": [], "vulnerable": [], "mu": [], "weight": []}
    for round in range(ROUNDS):
        # Eq. 8
        var = [desk.gradient_variance(w, desk.probed(round, q, batches[q])) for q in range(CLIENTS)]
        chosen = sorted(sorted(range(CLIENTS), key=lambda q: var[q])[:count])  # eqs. 9-10
        mine = [var[q] for q in chosen]
        low = [value > (np.median(mine) if delta is None else delta) for value in mine]
        mu_q = [mu * flag for flag in low]
        found = [
            desk.descend(w, round, q, batches[q], pull)
            for q, pull in zip(chosen, mu_q, strict=True)
        ]
        beta = np.exp([-(1 / np.mean(mine) if tau is None else tau) * value for value in mine])
        beta /= beta.sum()
        w = np.tensordot(beta, found, 1)  # eq. 11
        for column, values in zip(told.values(), (chosen, mine, low, mu_q, beta), strict=True):
            column.append(values)
    return w, told


def compare(desk, spec: str, engine, wanted: tuple[np.ndarray, dict], **settings) -> list:
    w, results = desk.train(spec, engine, **settings)
    np.testing.assert_allclose(w, wanted[0], rtol=0, atol=1e-12)
    for name, values in wanted[1].items():
        np.testing.assert_allclose(
            desk.column(results, name), values, rtol=0, atol=1e-12, err_msg=name
        )
    return results


@ENGINES
def test_by_hand_as_it_comes(desk, engine):
    results = compare(desk, "fedpbs:mu=0.7", engine, algorithm4(desk))
    assert desk.column(results, "batch_size") == [[4.0, 4.0, 1.0, 4.0, 4.0]] * ROUNDS
    for v, flags in zip(
        desk.column(results, "variance"), desk.column(results, "vulnerable"), strict=True
    ):
        assert [v[2], flags[2]] == [
            0.0,
            1.0,
        ]  # a single row does not vary, but it is no batch: below half of the nominal 4
        assert sum(flags) == 3.0  # and of the others those two above the median


@ENGINES
def test_by_hand_on_unlike_machines_with_thresholds_and_soft_weights(desk, engine, fleet: str):
    # 4 x 0.4 and 4 x 0.3 round to 2 and 1, and the least is 2 where there are 2 rows.
    batches = [4, 2, 1, 2, 2]
    wanted = algorithm4(
        desk, batches, 0.8, lambda b, *_: 2 - b / 4, b_th=3, v_th=lambda _: 0.12, soft=3.0
    )
    spec = "fedpbs:mu=0.8,mu_rule=batch,b_th=3,v_th=0.12,weights=soft,tau=3"
    results = compare(desk, spec, engine, wanted, fleet=fleet)
    assert desk.column(results, "batch_size") == [batches] * ROUNDS
    assert desk.column(results, "steps") == [[6, 6, 2, 6, 4]] * ROUNDS
    assert desk.column(results, "mu")[0][1:] == pytest.approx([1.2, 1.4, 1.2, 1.2], abs=1e-12)
    whole = [desk.loss_variance(desk.start(), desk.probed(0, client)) for client in range(CLIENTS)]
    # Not on the nominal batch
    assert np.abs(np.array(desk.column(results, "variance")[0]) - whole).max() > 1e-3


@ENGINES
def test_by_hand_with_the_variance_of_gradients_and_a_quantile_of_batches(desk, engine):
    wanted = algorithm4(
        desk, b_th=4, v_th=lambda v: np.quantile(v, 0.3), measure=desk.gradient_variance
    )
    compare(desk, "fedpbs:mu=0.7,variance=gradient,v_quantile=0.3,b_quantile=0.5", engine, wanted)


@ENGINES
def test_by_hand_where_mu_follows_the_variance(desk, engine):
    wanted = algorithm4(desk, mu=0.1, grows=lambda _, v, limit: min(max(v / limit, 1.0), 3.0))
    results = compare(desk, "fedpbs:mu=0.1,mu_rule=heterogeneity,mu_cap=3", engine, wanted)
    pulls = {round(mu, 9) for line in desk.column(results, "mu") for mu in line}
    assert {0.0, 0.1, 0.3} < pulls  # stable, small batch, capped, and some between


@ENGINES
@pytest.mark.parametrize(("count", "options", "given"), [
    (5, "", {}), (3, "", {}), (4, ",tau=0.4,v_th=1.2", {"tau": 0.4, "delta": 1.2}), (1, ",tau=0", {"tau": 0.0}),
])  # fmt: skip
def test_section_4_by_hand(desk, engine, count: int, options: str, given: dict):
    wanted = section4(desk, count, **given)
    results = compare(
        desk, f"fedpbs:variant=section4,mu=0.7{options}", engine, wanted, per_round=count
    )
    assert all(set(line) <= {0.0, 1.0} for line in desk.column(results, "vulnerable"))


@ENGINES
def test_section_4_by_hand_on_unlike_machines(desk, engine, fleet: str):
    batches = [4, 2, 1, 2, 2]
    wanted = section4(desk, 4, batches, tau=0.5)
    results = compare(
        desk, "fedpbs:variant=section4,mu=0.7,tau=0.5", engine, wanted, per_round=4, fleet=fleet
    )
    assert desk.column(results, "batch_size")[0] == [
        batches[q] for q in desk.column(results, "client")[0]
    ]


def test_section_4_ranks_by_importance_too(desk):
    chosen = [desk.column(desk.train(spec, per_round=2)[1], "client") for spec in (
        "fedpbs:variant=section4,importance=size,mu=0", "fedbs:importance=size", "fedbs")]  # fmt: skip
    assert chosen[0] == chosen[1] != chosen[2]


def test_section_4_asks_everybody_as_fedbs_does(desk):
    _, asked = desk.train("fedpbs:variant=section4,mu=0", per_round=2)
    _, same = desk.train("fedbs", per_round=2)
    _, drawn = desk.train("fedpbs:mu=0", per_round=2)
    for left, right, other in zip(asked, same, drawn, strict=True):
        assert [line["client"] for line in left.clients] == [
            line["client"] for line in right.clients
        ]
        assert left.round["bytes_up"] == right.round["bytes_up"] > other.round["bytes_up"]


@pytest.mark.parametrize(
    ("spec", "same"),
    [
        ("fedpbs:v_quantile=1,b_quantile=0,mu=0.9", "fedavg:weights=uniform"),
        ("fedpbs:variant=section4,mu=0,tau=0.7", "fedbs:tau=0.7"),
        ("fedpbs:variant=section4,v_quantile=1,mu=0.9", "fedbs"),
        ("fedpbs:v_th=1e9,b_th=1,mu=0.9", "fedavg:weights=uniform"),
        ("fedpbs:mu=0", "fedavg:weights=uniform"),
        ("fedpbs:b_th=5,mu=0.9", "fedprox:weights=uniform,mu=0.9"),
        ("fedpbs:weights=soft,tau=0,b_th=5,mu=0.9", "fedprox:weights=uniform,mu=0.9"),
    ],
)
def test_identities(desk, spec: str, same: str):
    for engine in (Loop(), Stacked(mode="stack")):
        left, right = (
            desk.train(each, engine, momentum=0.5, per_round=3)[0] for each in (spec, same)
        )
        np.testing.assert_allclose(left, right, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("fedpbs", "uniform"),
        ("fedpbs:weights=soft", "softmax of -tau x variance"),
        ("fedpbs:variant=section4", "softmax of -tau x variance"),
        ("fedbs", "softmax of -tau x variance"),
        ("fedpbs + median", "median"),
    ],
)
def test_tables_say_what_clients_count_by(desk, spec: str, says: str):
    run = fs.train(
        desk.federation(), "logreg", spec, rounds=1, folder=False, device="cpu", threads=1
    )
    assert run.summary["weights"] == says


def test_the_proximal_term_matters(desk):
    free, held = (desk.train(f"fedpbs:mu={mu}")[0] for mu in (0, 0.9))
    assert np.abs(free - held).max() > 1e-3


def orders(algorithm: FedPBS, variance, sizes=None, capacity=1.0):
    sizes = np.full(len(variance), 99) if sizes is None else np.array(sizes)
    pool = ClientPool(
        0,
        sizes,
        batch_size=64,
        epochs=3,
        capacity=lambda some: np.broadcast_to(capacity, len(sizes))[some],
    )
    return algorithm.client_selection.configure_training(
        pool, np.arange(len(sizes)), {"loss_variance": np.array(variance)}, len(sizes)
    )


def test_a_single_row_does_not_vary_and_is_vulnerable_all_the_same(desk):
    for spec in ("fedpbs", "fedpbs:variance=gradient"):
        _, results = desk.train(spec)
        assert [line[2] for line in desk.column(results, "variance")] == [0.0] * ROUNDS
        assert [line[2] for line in desk.column(results, "vulnerable")] == [1.0] * ROUNDS
    _, results = desk.train("fedpbs:b_quantile=0")
    assert [line[2] for line in desk.column(results, "vulnerable")] == [0.0] * ROUNDS


def test_half_of_the_nominal_batch_is_enough():
    found = orders(
        FedPBS(v_quantile=1), [0.0] * 4, [99, 32, 31, 99], np.array([1.0, 1.0, 1.0, 0.4])
    )
    assert found.batch_size.tolist() == [64, 32, 31, 26]
    assert found.numbers["vulnerable"].tolist() == [0, 0, 1, 1]


def test_the_variance_is_of_the_clients_own_batch():
    pool = ClientPool(
        0,
        np.array([99, 99, 5]),
        batch_size=64,
        capacity=lambda some: np.array([1.0, 0.25, 1.0])[some],
    )
    for algorithm in (FedPBS(), FedPBS(variant="section4")):
        assert algorithm.client_selection.probe_rows(pool, np.array([2, 1])).tolist() == [5, 16]


def test_batches_by_hand():
    found = orders(
        FedPBS(b_min=8),
        [0.0] * 6,
        [99, 99, 99, 5, 99, 20],
        np.array([1.0, 0.39, 0.01, 1.0, 0.3, 0.3]),
    )
    assert found.batch_size.tolist() == [64, 25, 8, 5, 19, 19]  # 24.96, 0.64, 64, 19.2, 19.2
    assert found.epochs.tolist() == [3] * 6
    assert found.clients.tolist() == [0, 1, 2, 3, 4, 5]
    assert orders(FedPBS(b_min=100), [0.0] * 2, [99, 7]).batch_size.tolist() == [64, 7]


def test_no_vulnerable_client_is_pulled_with_less_than_mu():
    found = orders(FedPBS(mu=0.8, mu_rule="batch", v_th=0.0), [1.0, 1.0, 0.0], [99, 16, 64])
    assert found.numbers["mu"].tolist() == pytest.approx([0.8, 1.4, 0.0], abs=1e-15)
    rule = {"mu": 0.5, "mu_rule": "heterogeneity", "mu_cap": 8.0}
    found = orders(
        FedPBS(v_th=2.0, **rule), [1.0, 2.0, 3.0, 99.0, np.nan, np.inf, 1.0], [99] * 6 + [9]
    )
    assert found.numbers["mu"].tolist() == [0.0, 0.0, 0.75, 4.0, 4.0, 4.0, 0.5]
    found = orders(FedPBS(v_th=0.0, **rule), [0.0, 1e-9, 0.0], [99, 99, 9])
    assert found.numbers["mu"].tolist() == [0.0, 4.0, 0.5]


def test_quantiles_of_the_round():
    assert orders(FedPBS(), [4.0, 1.0, 2.0, 3.0]).numbers["vulnerable"].tolist() == [1, 0, 0, 1]
    assert orders(FedPBS(v_quantile=0), [4.0, 1.0, 2.0, 3.0]).numbers["vulnerable"].tolist() == [
        1,
        0,
        1,
        1,
    ]
    small = orders(FedPBS(v_quantile=1, b_quantile=0.5), [1.0] * 4, [9, 99, 30, 99])
    assert small.numbers["vulnerable"].tolist() == [1, 0, 1, 0]


def test_equal_clients_are_on_one_side_whatever_their_last_bits():
    assert orders(FedPBS(), 0.1 * (1 + 1e-15 * np.arange(3))).numbers["vulnerable"].tolist() == [
        0,
        0,
        0,
    ]
    assert orders(FedPBS(v_th=0.1), 0.1 * (1 + 1e-15 * np.arange(3))).numbers[
        "vulnerable"
    ].tolist() == [0, 1, 1]


def test_who_cannot_measure_is_vulnerable_and_moves_nothing():
    for unknown in (np.nan, np.inf):
        found = orders(
            FedPBS(weights="soft", b_quantile=0.5), [1.0, unknown, 2.0, 3.0], [50, 99, 40, 60]
        )
        assert found.numbers["vulnerable"].tolist() == [0, 1, 1, 1]
        assert found.numbers["beta"][1] == 0
    unmeasured = orders(FedPBS(weights="soft"), [np.nan, np.nan])
    assert unmeasured.numbers["vulnerable"].tolist() == [1, 1]
    assert unmeasured.numbers["beta"].tolist() == [0, 0]


def test_slow_machines_may_take_as_many_steps_as_others():
    speed = np.array([1.0, 0.25, 0.01])
    pool = ClientPool(
        0,
        sizes=np.array([640, 640, 640]),
        batch_size=64,
        epochs=20,
        capacity=lambda some: speed[some],
    )
    varies = {"loss_variance": np.ones(3)}
    chosen = np.arange(3)
    every = FedPBS().client_selection.configure_training(pool, chosen, varies, count=3)
    assert every.epochs.tolist() == [20, 20, 20]
    assert every.batch_size.tolist() == [64, 16, 2]
    steps = FedPBS(work="steps").client_selection.configure_training(pool, chosen, varies, count=3)
    # 200 steps: 20 epochs of 10, 5 of 40, and one of 320 at least
    assert steps.epochs.tolist() == [20, 5, 1]
    assert steps.batch_size.tolist() == every.batch_size.tolist()


def test_slow_machines_get_smaller_batches(desk):
    speeds = fleets.get("mixed")(CLIENTS, 0, slow=10.0).machines(np.arange(CLIENTS)).rows_per_second
    wanted = [
        max(min(round(8 * speed / max(speeds)), size), min(2, size))
        for speed, size in zip(speeds, desk.sizes, strict=True)
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
        (
            "fedpbs:importance=size",
            "importance=size with variant=algorithm4: Algorithm 4 has no ranking",
        ),
        ("fedpbs:mu_cap=0.5", "mu_cap=0.5 is out of range"),
        ("fedpbs:tau=1", "tau=1.0 with variant=algorithm4: all clients have equal weights"),
        (
            "fedpbs:b_th=3,b_quantile=0",
            "b_quantile=0.0 with variant=algorithm4: b_th=3 is the threshold already",
        ),
        (
            "fedpbs:variant=section4,b_th=3",
            "b_th=3 with variant=section4: section 4 uses variances only",
        ),
        (
            "fedpbs:variant=section4,b_quantile=0.2",
            "b_quantile=0.2 with variant=section4: section 4 uses variances",
        ),
        (
            "fedpbs:variant=section4,variance=loss",
            "variance=loss with variant=section4: section 4 is about gradients",
        ),
        (
            "fedpbs:variant=section4,weights=uniform",
            "weights=uniform with variant=section4: section 4 has the weights of eq. 11",
        ),
    ],
)
def test_bad_options_are_refused(spec: str, says: str):
    with pytest.raises(FedskewError, match=says):
        resolve(spec)


def test_more_clients_a_round_than_there_are(desk):
    with pytest.raises(FedskewError, match="per_round=6 is more than the 5 clients"):
        desk.train("fedpbs", per_round=6)
