"""Each client's own test rows: right counts, nothing lost, labels represented."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedskew.errors import FedskewError
from fedskew.skew.cut import client_holdout
from fedskew.skew.partition import Partition


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), min_size=1, max_size=120),
    st.floats(0.01, 0.99),
    st.integers(0, 2**32),
)
def test_every_client_keeps_and_holds_out_its_share(pairs: list[tuple[int, int]], share: float, seed: int):
    owner, y = np.array(pairs).T
    everything = Partition.from_owner(owner, 7)
    train, test = client_holdout(everything, y, share, seed)
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
    again = client_holdout(everything, y, share, seed)
    assert (train, test) == again


def test_the_seed_matters_and_no_row_is_favoured():
    everything = Partition.from_owner(np.repeat(np.arange(4), 10), 4)
    y = np.tile(np.arange(5), 8)
    held = np.zeros(40)
    for seed in range(2000):
        held[client_holdout(everything, y, 0.2, seed)[1].rows] += 1
    assert np.allclose(held / 2000, 0.2, atol=0.04)


def test_an_overlapping_partition_is_cut_by_place():
    twice = Partition.from_lists([np.arange(4), np.arange(4)])
    train, test = client_holdout(twice, np.zeros(4, np.int64), 0.5, seed=0)
    assert train.sizes.tolist() == test.sizes.tolist() == [2, 2]


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, float("nan")])
def test_a_share_that_is_none_is_refused(share: float):
    with pytest.raises(FedskewError, match="out of range"):
        client_holdout(Partition.from_owner(np.zeros(4, np.int64), 1), np.zeros(4, np.int64), share, seed=0)
