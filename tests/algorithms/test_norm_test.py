"""The norm test against calculations in NumPy, the variance that it promises, and what it refuses."""

import numpy as np
import pytest
import torch

from fedskew.algorithms import NormTest
from fedskew.core.errors import FedskewError
from fedskew.core.streams import Stream
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked

ENGINES = pytest.mark.parametrize(
    "engine", [Loop(), Stacked(mode="stack")], ids=["loop", "stacked"]
)


@ENGINES
@pytest.mark.parametrize("weights", ["size", "uniform"])
@pytest.mark.parametrize("bound", [0.3, 0.7])
def test_by_hand(desk, engine, weights: str, bound: float):
    w = desk.start()
    wanted = 2
    expected = []
    for round in range(5):
        clients = np.sort(Stream(0, "select", round).sample(5, wanted))
        updates = np.stack([desk.descend(w, round, client) - w for client in clients])
        share = np.ones(len(clients))
        if weights == "size":
            share = desk.sizes[clients].astype(float)
        share /= share.sum()
        mean = np.tensordot(share, updates, 1)
        # The sample variance of one client, from the weighted mean of the squares
        apart = sum(p * ((d - mean) ** 2).sum() for p, d in zip(share, updates, strict=True))
        m = len(clients)
        v = apart * m * (share**2).sum() / (1 - (share**2).sum())
        left = v / m * (1 - m / 5)
        needed = int(np.ceil(1 / (bound**2 * (mean**2).sum() / v + 1 / 5)))
        wanted = max(2, needed)
        expected.append((m, wanted, np.sqrt(left / (mean**2).sum())))
        w = w + mean
    method = f"norm-test:bound={bound},fewest=2"
    found, results = desk.train(method, engine, rounds=5, weights=weights)
    np.testing.assert_allclose(found, w, rtol=0, atol=1e-12)
    rows = [result.round for result in results]
    assert [(row["clients"], row["clients_next"]) for row in rows] == [e[:2] for e in expected]
    np.testing.assert_allclose([row["deviation"] for row in rows], [e[2] for e in expected])
    assert len({row["clients"] for row in rows}) > 1


def test_equal_weights_give_the_sample_variance():
    draw = np.random.default_rng(0)
    updates = draw.normal(size=(6, 4)) + 1
    mean = updates.mean(0)
    apart = (updates**2).sum(1).mean() - (mean**2).sum()
    q = 1 / 6
    assert apart * 6 * q / (1 - q) == pytest.approx(updates.var(0, ddof=1).sum())


def test_the_mean_of_so_many_clients_is_as_near_as_promised():
    """Over many draws without replacement from 60 updates, the squared deviation is the bound, up to rounding up."""
    draw = np.random.default_rng(1)
    updates = draw.normal(size=(60, 5)) + 0.4
    mean = updates.mean(0)
    square = (mean**2).sum()
    v = updates.var(0, ddof=1).sum()
    for bound in (0.3, 0.6, 1.0):
        count = int(
            NormTest(bound=bound).clients_needed(
                torch.tensor(v), torch.tensor(square), torch.tensor(60.0).double()
            )
        )
        for number, within in ((count, True), (count - 1, False)):
            gaps = []
            for _ in range(20_000):
                chosen = draw.permutation(60)[:number]
                gaps.append(((updates[chosen].mean(0) - mean) ** 2).sum())
            allowed = bound**2 * square
            assert (np.mean(gaps) <= 1.02 * allowed) if within else (np.mean(gaps) > 0.98 * allowed)


@ENGINES
def test_a_tiny_bound_takes_everybody_and_a_large_one_the_fewest(desk, engine):
    everybody, results = desk.train("norm-test:bound=0.001,fewest=5", engine)
    flat, _ = desk.train("fedavg", engine)
    np.testing.assert_allclose(everybody, flat, rtol=0, atol=1e-14)
    _, results = desk.train("norm-test:bound=0.001,fewest=2", engine)
    assert [result.round["clients"] for result in results] == [2, 5, 5]
    fewest, results = desk.train("norm-test:bound=1000,fewest=2", engine, rounds=4)
    assert [result.round["clients"] for result in results] == [2] * 4
    np.testing.assert_allclose(fewest, desk.train("fedavg", per_round=2, rounds=4)[0], atol=1e-14)


def test_the_setting_is_the_most(desk):
    _, results = desk.train("norm-test:bound=0.001,fewest=2", per_round=3)
    assert [result.round["clients"] for result in results] == [2, 3, 3]
    assert results[-1].round["clients_next"] == 5


def test_a_round_with_one_update_leaves_the_number(desk):
    server = desk.training("norm-test:bound=0.4,fewest=2", rounds=12, fleet="uniform:dropout=0.5")
    rows = [server.advance().round for _ in range(12)]
    before = 2.0
    few = 0
    for row in rows:
        if row["clients"] - row["dropped"] < 2:
            assert row["clients_next"] == before
            few += 1
        before = row["clients_next"]
    assert few


@ENGINES
@pytest.mark.parametrize(
    "method", ["scaffold", "fedadam", "ditto", "fedexp", "afl-cp", "fedpbs", "quantize", "fedper"]
)
def test_goes_with_other_methods_and_resumes(desk, engine, method: str):
    spelled = f"{method} + norm-test:bound=0.3,fewest=2"
    settings = {"model": "mlp:hidden=4", "rounds": 4}
    whole = desk.training(spelled, engine, **settings)
    rows = [whole.advance().round for _ in range(4)]
    assert all(row["clients_next"] >= 2 for row in rows)
    first = desk.training(spelled, engine, **settings)
    for _ in range(2):
        first.advance()
    second = desk.training(spelled, engine, **settings)
    second.restore(first.checkpoint())
    assert repr([second.advance().round for _ in range(2)]) == repr(rows[2:])


@pytest.mark.parametrize(
    ("method", "error"),
    [
        ("fedbuff + norm-test", "waits for all of them"),
        ("sfl + norm-test", "waits for all of them"),
        ("d-psgd + norm-test", "waits for all of them"),
        ("norm-test + hierarchical", "waits for all of them"),
        ("hierarchical + norm-test", "waits for all of them"),
        ("norm-test + stratify-rounds", "waits for all of them"),
        ("norm-test + median", "a rule takes something else"),
        ("norm-test:fewest=1", "one update has no variance"),
    ],
)
def test_what_has_no_meaning_is_refused(desk, method: str, error: str):
    with pytest.raises(FedskewError, match=error):
        desk.training(method)
