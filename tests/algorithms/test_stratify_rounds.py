"""Stratify in a share of the rounds: by hand, its identities, what it refuses, and going on after an interruption."""

import numpy as np
import pytest
import torch

import fedskew as fs
from fedskew.algorithms.contract import resolve
from fedskew.algorithms.selection import ClientPool
from fedskew.core.errors import FedskewError, Interrupted
from fedskew.core.streams import Stream
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked
from fedskew.models.build import build
from fedskew.sample_schedules.holdings import Holdings
from fedskew.server.server import Server

SETTINGS = {"lr": 0.1, "batch_size": 20, "device": "cpu", "threads": 1}
ENGINES = pytest.mark.parametrize("engine", [Loop(), Stacked()], ids=["loop", "stacked"])


@pytest.fixture(scope="module")
def apart() -> fs.Federation:
    """Return a federation of five clients with two digits each."""
    return fs.split(fs.load("digits"), "classes:k=2", clients=5)


def server(fed: fs.Federation, method: str, engine=None, **settings) -> Server:
    model = build("logreg", fed.data.shape, len(fed.data.classes), seed=0)
    given = fs.Settings(**{**SETTINGS, "rounds": 4, "dtype": "float64", **settings})
    return Server(fed, model, resolve(method), given, engine or Loop())


def weights_after(fed: fs.Federation, method: str, engine=None, **settings) -> list[np.ndarray]:
    training = server(fed, method, engine, **settings)
    found = []
    for _ in range(training.settings.rounds):
        training.advance()
        flat = [value.flatten() for value in training.state.params.values()]
        found.append(torch.cat(flat).numpy().copy())
    return found


def central_step(x: np.ndarray, y: np.ndarray, w: np.ndarray, b: np.ndarray) -> tuple:
    """Return logistic regression after one step of SGD on a batch."""
    logits = x @ w.T + b
    shares = np.exp(logits - logits.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    shares[np.arange(len(y)), y] -= 1
    return w - 0.1 * shares.T @ x / len(y), b - 0.1 * shares.mean(0)


@ENGINES
def test_a_synchronous_and_a_separate_round_by_hand(apart, engine):
    method = "stratify-rounds:share=0.5,per_label=6"
    training = server(apart, method, engine, rounds=2)
    w, b = (value.numpy().copy() for value in training.state.params.values())
    x = apart.train.x.reshape(len(apart.train), -1).astype(np.float64)
    y = apart.train.y
    holdings = Holdings.of(apart.partition, y, 10)
    pool = ClientPool(0, apart.partition.sizes, batch_size=20)
    schedule = training.algorithm.topology(0).schedule_samples(holdings, pool, Stream(0, "walk", 0))
    assert np.bincount(y[schedule.rows]).tolist() == [6] * 10
    assert schedule.ends.tolist() == [20, 40, 60]
    for rows in np.split(schedule.rows, 3):
        w, b = central_step(x[rows], y[rows], w, b)
    training.advance()
    found_w, found_b = (value.numpy().copy() for value in training.state.params.values())
    np.testing.assert_allclose(found_w, w, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found_b, b, rtol=0, atol=1e-12)
    # The second round is FedAvg's: each client alone on its rows, then the mean by size
    plan = training.rounds.parallel._invite(0.1, 0, 5, np.zeros(0, dtype=np.int64)).plan
    mean_w, mean_b = np.zeros_like(w), np.zeros_like(b)
    for place, client in enumerate(plan.clients.tolist()):
        own = apart.partition.of(client)
        at = plan.offsets[place]
        order = plan.order[at : at + len(own)]
        own_w, own_b = w, b
        for first in range(0, len(own), 20):
            rows = own[order[first : first + 20]]
            own_w, own_b = central_step(x[rows], y[rows], own_w, own_b)
        share = len(own) / len(apart.partition.rows)
        mean_w += share * own_w
        mean_b += share * own_b
    training.advance()
    found_w, found_b = (value.numpy() for value in training.state.params.values())
    np.testing.assert_allclose(found_w, mean_w, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found_b, mean_b, rtol=0, atol=1e-12)


@ENGINES
@pytest.mark.parametrize(
    ("method", "same"),
    [
        ("stratify-rounds:share=1", "stratify-batch"),
        ("stratify-rounds:share=0", "fedavg"),
        ("scaffold + stratify-rounds:share=0", "scaffold"),
        (
            "fedprox:mu=0.5 + stratify-rounds:share=1,selection=weighted",
            "stratify-batch:selection=weighted",
        ),
        ("stratify-rounds:share=1,until=1", "stratify-rounds:share=0.25"),
    ],
)
def test_identities(apart, method: str, same: str, engine):
    for one, other in zip(
        weights_after(apart, method, engine), weights_after(apart, same, engine), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_what_is_between_matters(apart):
    found = {
        method: weights_after(apart, f"{method} + stratify-rounds:share=0.25")[-1]
        for method in ("fedavg", "scaffold", "fedprox:mu=1")
    }
    assert not np.allclose(found["fedavg"], found["scaffold"], atol=1e-6)
    assert not np.allclose(found["fedavg"], found["fedprox:mu=1"], atol=1e-6)


def test_bytes_and_seconds_are_those_of_each_kind_of_round(apart):
    def rows(method: str) -> list[dict]:
        training = server(apart, method, rounds=4)
        return [training.advance().round for _ in range(4)]

    mixed = rows("stratify-rounds:share=0.5")
    batch = rows("stratify-batch")
    plain = rows("fedavg")
    for number, of_kind in enumerate((batch, plain, batch, plain)):
        for name in ("bytes_down", "bytes_up"):
            assert mixed[number][name] == of_kind[number][name]
    assert mixed[1]["simulated_seconds"] == pytest.approx(plain[1]["simulated_seconds"])
    assert mixed[0]["transfers"] == batch[0]["transfers"]
    assert mixed[1]["transfers"] is None
    assert list(mixed[0]) == list(mixed[1])


def test_a_run_on_disk_goes_on_where_it_was(apart, tmp_path):
    given = {**SETTINGS, "rounds": 5, "momentum": 0.9, "checkpoint_every": 1}
    method = "scaffold + stratify-rounds:share=0.5,per_label=20"
    whole = fs.train(apart, "logreg", method, **given, folder=tmp_path / "whole")

    def stop(result, rounds):
        if result.round["round"] == 3:
            raise Interrupted("enough")

    with pytest.raises(Interrupted):
        fs.train(apart, "logreg", method, **given, folder=tmp_path / "two", callbacks=[stop])
    again = fs.resume(tmp_path / "two")
    for name in ("rounds.csv", "clients.csv"):
        one = (tmp_path / "whole" / name).read_text()
        assert (tmp_path / "two" / name).read_text() == one
    assert again.summary["test_accuracy_last"] == whole.summary["test_accuracy_last"]


@pytest.mark.parametrize(
    ("method", "says"),
    [
        ("fedavg + stratify-rounds:secure=true", "secure=true hides labels"),
        ("fedbuff + stratify-rounds", "clients train separately and all are waited for"),
        ("sfl + stratify-rounds", "clients train separately and all are waited for"),
        ("afl-cp + stratify-rounds", "select clients as the settings say"),
    ],
)
def test_what_it_does_not_go_with(method: str, says: str):
    with pytest.raises(FedskewError, match=says):
        resolve(method)
