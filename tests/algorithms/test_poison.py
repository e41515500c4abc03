"""Poisoned rows by hand: who has which labels, what the schedule asks for, and that nothing else is different."""

import copy
from typing import Any

import numpy as np
import pytest

from fedskew.algorithms.attack import hostile_clients
from fedskew.algorithms.poison import FlippedLabels
from fedskew.core.errors import FedskewError
from fedskew.core.streams import Stream
from fedskew.data.dataset import Rows
from fedskew.data.partition import Partition
from fedskew.engine.job import Engine
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked

ENGINES = pytest.mark.parametrize("engine", [Loop(), Stacked()], ids=["loop", "stacked"])
SCHEDULED = ("stratify-batch", "stratify-single", "stratify-hybrid:batch_rounds=1", "sfl")
METHODS = pytest.mark.parametrize("method", SCHEDULED)
HOSTILE = hostile_clients(0, 5, 0.4).tolist()


@pytest.fixture
def desk(desk: Any) -> Any:
    """Return the desk of five clients with different shares of three labels."""
    desk.y = np.array([0, 0, 0, 2, 1] * 5)
    return desk


class Spy:
    """An engine that records the schedules it gets."""

    def __init__(self) -> None:
        self.engine = Stacked()
        self.schedules: list[Any] = []

    def run_schedule(self, job: Any, state: Any, schedule: Any, reset_optimizer: bool) -> Any:
        self.schedules.append(schedule)
        return self.engine.run_schedule(job, state, schedule, reset_optimizer)


def flipped(desk: Any) -> Any:
    """Return the desk at which hostile clients hold other labels."""
    other = copy.copy(desk)
    other.y = desk.y.copy()
    for client in HOSTILE:
        other.y[desk.held[client]] = 2 - desk.y[desk.held[client]]
    return other


def backdoored(desk: Any) -> Any:
    """Return the desk at which half of the rows of hostile clients have the trigger and class 1."""
    other = copy.copy(desk)
    other.x, other.y = desk.x.copy(), desk.y.copy()
    for client in HOSTILE:
        size = len(desk.held[client])
        chosen = desk.held[client][Stream(0, "backdoor", client).sample(size, (size + 1) // 2)]
        other.x[chosen, :3] = desk.x.max()
        other.y[chosen] = 1
    return other


@ENGINES
@METHODS
def test_poisoned_clients_are_clients_with_such_rows(desk: Any, engine: Engine, method: str):
    flip, door = "kind=label-flip,share=0.4", "kind=backdoor,share=0.4,target=1"
    honest, _ = desk.train(method, engine)
    for attack, other in ((flip, flipped(desk)), (door, backdoored(desk))):
        assert (other.y != desk.y).sum() > 1
        due, _ = other.train(method, engine)
        found, _ = desk.train(f"{method} + attack:{attack}", engine)
        np.testing.assert_allclose(found, due, rtol=0, atol=1e-12)
        assert np.abs(found - honest).max() > 1e-3


@ENGINES
@METHODS
@pytest.mark.parametrize("kind", ["label-flip", "backdoor"])
def test_without_hostile_clients_the_bits_are_the_same(
    desk: Any, engine: Engine, method: str, kind: str
):
    plain, _ = desk.train(method, engine)
    found, results = desk.train(f"{method} + attack:kind={kind},share=0", engine)
    np.testing.assert_array_equal(found, plain)
    assert all(row["hostile"] == 0 for result in results for row in result.clients)
    assert ("backdoor_success" in results[0].round) == (kind == "backdoor")


@METHODS
@pytest.mark.parametrize("kind", ["label-flip", "backdoor"])
def test_both_engines_agree(desk: Any, method: str, kind: str):
    spec = f"{method} + attack:kind={kind},share=0.4"
    loop, of_loop = desk.train(spec, Loop())
    stacked, of_stack = desk.train(spec, Stacked())
    np.testing.assert_allclose(loop, stacked, rtol=0, atol=1e-10)
    for one, other in zip(of_loop, of_stack, strict=True):
        assert one.round.get("backdoor_success") == other.round.get("backdoor_success")


def test_the_schedule_asks_for_the_labels_that_a_client_claims(desk: Any):
    spy = Spy()
    server = desk.training("stratify-batch + attack:kind=label-flip,share=0.4", spy)
    for client in range(5):
        labels = desk.y[desk.held[client]]
        if client in HOSTILE:
            labels = 2 - labels
        due = np.bincount(labels, minlength=3)
        assert server.labels.holdings().counts[client].tolist() == due.tolist()
    result = server.advance()
    (schedule,) = spy.schedules
    claimed = flipped(desk).y[schedule.rows]
    least = np.bincount(flipped(desk).y).min()
    assert np.bincount(claimed).tolist() == [least] * 3
    assert np.bincount(desk.y[schedule.rows], minlength=3).tolist() != [least] * 3
    for row, client in zip(schedule.rows, schedule.clients, strict=True):
        assert row in desk.held[client]
    hostile = [row["client"] for row in result.clients if row["hostile"]]
    assert hostile == HOSTILE


def test_rows_with_a_trigger_are_asked_for_by_the_label_of_the_attacker(desk: Any):
    server = desk.training("stratify-batch + attack:kind=backdoor,share=0.4,target=1,poisoned=1")
    for client in HOSTILE:
        assert server.labels.holdings().counts[client].tolist() == [0, len(desk.held[client]), 0]
        asked = server.labels.holdings().rows(client, 1)
        assert (server.rows.x[asked, :3] == desk.x.max()).all()
    clean = [len(desk.held[client]) for client in range(5) if client not in HOSTILE]
    assert server.labels.holdings().counts.sum() == sum(clean) + sum(
        len(desk.held[client]) for client in HOSTILE
    )


def test_placeholders_are_those_of_the_claimed_labels(desk: Any):
    pytest.importorskip("tenseal")
    server = desk.training("stratify-batch:secure=true + attack:kind=label-flip,share=0.4")
    secret = server.labels.holdings().counts
    due = flipped(desk).training("stratify-batch:secure=true").labels.holdings().counts
    assert secret.tolist() == due.tolist()


@pytest.mark.parametrize("method", [*SCHEDULED, "stratify-batch:secure=true"])
@pytest.mark.parametrize(
    "attack", ["kind=sign-flip", "kind=gaussian", "kind=backdoor,strength=2.5"]
)
def test_what_changes_updates_is_refused(desk: Any, method: str, attack: str):
    with pytest.raises(FedskewError, match="no updates are sent that kind=") as said:
        desk.training(f"{method} + attack:{attack}")
    assert "use kind=label-flip, or kind=backdoor with strength=1" in str(said.value)


def test_rows_that_hostile_clients_share_are_not_flipped():
    rows = Rows(np.zeros((4, 1), np.float32), np.array([0, 1, 2, 0]))
    shared = Partition.from_lists([[0, 1], [1, 2], [3]])
    flip = FlippedLabels(lambda seed, clients: np.array([0, 1]))
    with pytest.raises(FedskewError, match="leave overlap out"):
        flip.poisoned(rows, shared, ("a", "b", "c"), 0)
    alone = FlippedLabels(lambda seed, clients: np.array([2]))
    poisoned, _ = alone.poisoned(rows, shared, ("a", "b", "c"), 0)
    assert poisoned.y.tolist() == [0, 1, 2, 2]
