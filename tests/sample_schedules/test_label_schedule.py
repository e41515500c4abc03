"""Holdings and label schedules, by hand and against plain loops."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from fedskew.core.errors import FedskewError
from fedskew.core.streams import Stream
from fedskew.data.partition import Partition
from fedskew.sample_schedules.holdings import Holdings
from fedskew.sample_schedules.label_schedule import frequencies, label_schedule


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=40),
    st.sets(st.integers(0, 3)),
)
def test_holdings_are_what_a_loop_finds(rows: list[tuple[int, int]], absent: set[int]):
    owner, kind = (np.array([row[k] for row in rows], dtype=np.int64) for k in (0, 1))
    all_clients = Holdings.of(Partition.from_owner(owner, clients=4), kind, placeholders=5)
    present = all_clients.without(np.array(sorted(absent), dtype=np.int64))
    for client in range(4):
        for placeholder in range(5):
            own = [number for number, row in enumerate(rows) if row == (client, placeholder)]
            assert all_clients.rows(client, placeholder).tolist() == own
            assert all_clients.counts[client, placeholder] == len(own)
            there = [] if client in absent else own
            assert present.rows(client, placeholder).tolist() == there
            assert present.counts[client, placeholder] == len(there)


def test_rows_keep_the_partition_numbers():
    """Check a partition that has some rows of the data, in another order."""
    held = Holdings.of(
        Partition.from_lists([np.array([7, 2]), np.array([5])]),
        np.array([9, 9, 1, 9, 9, 1, 9, 1]),
        2,
    )
    assert held.counts.tolist() == [[0, 2], [0, 1]]
    assert held.rows(0, 1).tolist() == [7, 2]
    assert held.rows(1, 1).tolist() == [5]


@pytest.mark.parametrize("stray", [-1, 2])
def test_a_placeholder_that_does_not_exist(stray: int):
    with pytest.raises(
        FedskewError, match=rf"row 1 has placeholder {stray}, but the placeholders are 0 … 1"
    ):
        Holdings.of(Partition.from_lists([np.array([0, 1])]), np.array([0, stray]), 2)


def test_uniform_frequencies_are_uniform():
    counts = np.array([10, 0, 3, 8])
    assert frequencies(counts, frequency="uniform").tolist() == [3, 0, 3, 3]
    assert frequencies(counts, frequency="uniform", per_label=2).tolist() == [2, 0, 2, 2]
    assert frequencies(np.array([0, 0]), frequency="uniform").tolist() == [0, 0]
    covtype = np.array([211840, 283301, 35754, 2747, 9493, 17367, 20510])
    assert frequencies(covtype, frequency="uniform").sum() == 19_229
    assert frequencies(covtype, frequency="proportional").sum() == 581_012


def test_more_than_the_rarest_has_takes_samples_again():
    counts = np.array([10, 0, 3, 8])
    with pytest.raises(
        FedskewError,
        match="per_label=4 is more than the 3 rows of the rarest label: use per_label=3 or fewer",
    ):
        frequencies(counts, frequency="uniform", per_label=4)
    assert frequencies(counts, frequency="uniform", per_label=4, reuse=True).tolist() == [
        4,
        0,
        4,
        4,
    ]
    # 21 rows of 3 placeholders
    assert frequencies(counts, frequency="uniform", reuse=True).tolist() == [7, 0, 7, 7]
    assert frequencies(np.array([3, 4, 4]), frequency="uniform", reuse=True).tolist() == [
        4,
        4,
        4,
    ]  # 11 / 3 is nearer to 4


def test_proportional_frequencies():
    counts = np.array([10, 0, 3, 8])
    assert frequencies(counts, frequency="proportional").tolist() == [10, 0, 3, 8]
    assert frequencies(counts, frequency="proportional", cap=8).tolist() == [8, 0, 3, 8]


@pytest.mark.parametrize("option", ["per_label", "cap"])
def test_no_frequency_below_one(option: str):
    with pytest.raises(
        FedskewError, match=f"{option}=0 leaves no label to train on: use 1 or more"
    ):
        frequencies(np.array([3]), frequency="uniform", **{option: 0})


@given(st.lists(st.integers(0, 20), min_size=1, max_size=8), st.integers(0, 2**63))
def test_a_schedule_has_every_placeholder_as_often_as_asked(wanted: list[int], seed: int):
    schedule = label_schedule(np.array(wanted), Stream(seed, "test"))
    assert [schedule.tolist().count(placeholder) for placeholder in range(len(wanted))] == wanted
    assert len(schedule) == sum(wanted)


def test_all_orders_of_a_schedule_are_equally_likely():
    drawn = [
        tuple(label_schedule(np.array([1, 1, 1]), Stream(seed, "test")).tolist())
        for seed in range(3000)
    ]
    assert chisquare([drawn.count(order) for order in permutations(range(3))]).pvalue > 1e-3
