"""The server's records: the standing of all clients is that of the records, however they came about."""

import numpy as np
import pytest

from fedskew.algorithms.selection import ClientPool, SelectionTotals
from fedskew.fleet.availability import Members
from fedskew.topology.records import _BLOCK, AvailablePool, Records


def filled(clients: int, rounds: int, seed: int = 0) -> Records:
    """Return records after some rounds in which clients were selected and some of them completed."""
    draw, records = np.random.default_rng(seed), Records(clients)
    for _ in range(rounds):
        chosen = draw.choice(clients, min(clients, 9), replace=False)
        records.add(chosen, selected=1)
        done = chosen[draw.random(len(chosen)) < 0.7]
        records.add(done, completed=1, seconds=draw.random(len(done)))
        records.add(done, agreement=draw.random(len(done)))
        if draw.random() < 0.5:
            records.standing()  # which must not matter
    return records


@pytest.mark.parametrize("clients", [1, 5, 64, 65, 1000, 200_000])
def test_the_standing_is_that_of_all_records(clients: int):
    records = filled(clients, rounds=30)
    selected, completed, seconds, agreement = records.arrays.values()
    known, done = selected > 0, completed > 0
    found = records.standing()
    assert (found.selected, found.completed) == (known.sum(), done.sum())
    assert found.reliability == pytest.approx((completed[known] / selected[known]).sum(), rel=1e-12)
    mean = seconds[done] / completed[done]
    assert (found.shortest, found.longest) == (mean.min(), mean.max())
    assert found.seconds == pytest.approx(mean.sum(), rel=1e-12)
    assert found.agreement == pytest.approx((agreement[done] / completed[done]).sum(), rel=1e-12)


def test_restored_records_have_the_same_standing_to_the_last_bit():
    records = filled(700, rounds=40)
    known = np.flatnonzero(records.arrays["selected"])
    again = Records(700)
    again.add(known, **{name: values[known] for name, values in records.arrays.items()})
    assert vars(again.standing()) == vars(records.standing())


def test_only_blocks_that_changed_are_computed_anew(monkeypatch: pytest.MonkeyPatch):
    records = Records(200)
    computed = []
    of = records._of
    monkeypatch.setattr(
        records, "_of", lambda blocks: computed.append(blocks.tolist()) or of(blocks)
    )
    records.standing()
    records.add(np.array([3]), selected=1)
    records.standing()
    records.standing()
    records.add(np.array([2, 199]), selected=1)
    records.standing()
    last = -(-200 // _BLOCK) - 1
    assert last > 0
    assert computed == [[0], [0, last]]


def test_nobody_was_seen_yet():
    found = Records(100).standing()
    assert (found.selected, found.completed, found.reliability, found.seconds) == (0, 0, 0, 0)
    assert found.shortest > found.longest


def test_a_pool_of_available_clients_is_the_pool_of_all_at_their_numbers():
    records = filled(20, rounds=10)
    everyone = ClientPool(
        3,
        np.arange(100, 120),
        profile={"entropy": np.linspace(0, 1, 20)},
        **records.arrays,
        capacity=lambda some: some / 20,
        all_clients=records.standing,
    )
    numbers = np.array([9, 4, 17])
    pool = AvailablePool(everyone, Members(numbers, 0, 3, np.zeros(0, dtype=np.int64)))
    assert len(pool) == 3
    for some in (pool, pool.at(np.arange(3)), everyone.at(numbers)):
        assert (some.round, some.sizes.tolist()) == (3, [109, 104, 117])
        assert some.profile["entropy"].tolist() == everyone.profile["entropy"][numbers].tolist()
        assert some.seconds.tolist() == records.arrays["seconds"][numbers].tolist()
        assert some.capacity(np.array([2, 0])).tolist() == [17 / 20, 9 / 20]
        assert vars(some.standing) == vars(records.standing())
    assert pool.at(np.array([1])).at(np.array([0])).sizes.tolist() == [104]
    with pytest.raises(AttributeError, match="a pool of clients has no color"):
        _ = pool.color


def test_a_pool_without_records_of_all_stands_for_itself():
    pool = ClientPool(
        0,
        np.array([1, 2]),
        selected=np.array([2, 0]),
        completed=np.array([1, 0]),
        seconds=np.array([3.0, 0.0]),
    )
    assert vars(pool.at(np.array([1])).standing) == vars(pool.standing)
    assert vars(pool.standing) == vars(
        SelectionTotals.of(pool.selected, pool.completed, pool.seconds, agreement=np.zeros(2))
    )


def test_records_of_a_hundred_million_know_who_took_part():
    records = Records(10**8)
    chosen = np.array([3, 70_000, 99_999_999])
    records.add(chosen, selected=1)
    records.add(chosen[1:], completed=1, seconds=np.array([2.0, 6.0]))
    assert records.known().tolist() == chosen.tolist()
    found = records.standing()
    assert (found.selected, found.completed, found.seconds) == (3, 2, 8.0)
    assert (found.shortest, found.longest) == (2.0, 6.0)
    records.add(chosen[:1], completed=1, seconds=np.array([1.0]))
    assert records.standing().shortest == 1.0
