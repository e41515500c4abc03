"""Each client's own test rows: correct counts, no row lost, labels represented."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedskew.core.errors import FedskewError
from fedskew.data.dataset import Rows
from fedskew.data.partition import Partition
from fedskew.skew.partitioning import client_holdout


def rows_of(y: np.ndarray, series: np.ndarray | None = None) -> Rows:
    return Rows(np.zeros((len(y), 1), np.float32), np.asarray(y, np.int64), series=series)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), min_size=1, max_size=120),
    st.floats(0.01, 0.99),
    st.integers(0, 2**32),
)
def test_every_client_keeps_and_holds_out_its_share(
    pairs: list[tuple[int, int]], share: float, seed: int
):
    owner, y = np.array(pairs).T
    everything = Partition.from_owner(owner, 7)
    train, test = client_holdout(everything, rows_of(y), share, seed)
    for client in range(7):
        kept, held, own = train.of(client), test.of(client), everything.of(client)
        assert sorted([*kept, *held]) == own.tolist()
        if len(own) < 2:
            assert len(held) == 0
            continue
        assert len(kept) >= 1
        assert len(held) >= 1
        assert len(held) in (1, len(own) - 1) or abs(len(held) - share * len(own)) <= 0.5
        # The labels are held out alike, to within one row each.
        expected = np.bincount(y[own], minlength=4) * len(held) / len(own)
        assert np.all(np.abs(np.bincount(y[held], minlength=4) - expected) < 1)
    again = client_holdout(everything, rows_of(y), share, seed)
    assert (train, test) == again


def test_the_seed_matters_and_no_row_is_favoured():
    everything = Partition.from_owner(np.repeat(np.arange(4), 10), 4)
    y = np.tile(np.arange(5), 8)
    held = np.zeros(40)
    for seed in range(2000):
        held[client_holdout(everything, rows_of(y), 0.2, seed)[1].rows] += 1
    assert np.allclose(held / 2000, 0.2, atol=0.04)


def test_an_overlapping_partition_is_cut_by_place():
    twice = Partition.from_lists([np.arange(4), np.arange(4)])
    train, test = client_holdout(twice, rows_of(np.zeros(4)), 0.5, seed=0)
    assert train.sizes.tolist() == test.sizes.tolist() == [2, 2]


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, float("nan")])
def test_a_share_that_is_none_is_refused(share: float):
    with pytest.raises(FedskewError, match="out of range"):
        client_holdout(
            Partition.from_owner(np.zeros(4, np.int64), 1), rows_of(np.zeros(4)), share, seed=0
        )


def test_overlapping_windows_are_held_out_as_whole_series():
    series = np.array([7, 7, 3, 3, 3, 9, 9, 1])
    rows = rows_of(np.array([0, 0, 1, 1, 0, 1, 1, 0]), series)
    cut = Partition.from_owner(np.array([0, 0, 0, 0, 0, 0, 0, 1]), 2)
    train, test = client_holdout(cut, rows, 0.4, seed=0)
    assert len(np.unique(series[test.of(0)])) == 1
    assert not set(series[test.of(0)]) & set(series[train.of(0)])
    assert sorted([*train.of(0), *test.of(0)]) == list(range(7))
    assert train.of(1).tolist() == [7]  # its only series stays
    assert test.of(1).tolist() == []


def test_nothing_can_be_held_out_of_one_series_a_client():
    cut = Partition.from_owner(np.array([0, 0, 1, 1]), 2)
    with pytest.raises(FedskewError, match="every client has a single series"):
        client_holdout(cut, rows_of(np.zeros(4), np.array([0, 0, 1, 1])), 0.5, seed=0)
