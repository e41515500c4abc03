"""The shared arithmetic of the skews, against plain definitions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedskew.core.streams import Stream
from fedskew.skew.assignment import (
    apportion,
    at_least,
    log_gammas,
    move_rows,
    shuffled_by_class,
    spread,
)

STREAM = Stream(0, "test")
sizes = st.lists(st.integers(0, 30), min_size=1, max_size=20)


@given(
    st.integers(0, 1000),
    st.lists(st.floats(-50, 50), min_size=1, max_size=20),
    st.floats(0, 1, exclude_max=True),
)
def test_apportion_is_within_one_of_the_exact_share(total: int, logs: list[float], offset: float):
    counts = apportion(total, np.array(logs), offset)
    weights = np.exp(np.array(logs) - max(logs))
    assert counts.sum() == total
    assert counts.min() >= 0
    assert np.all(np.abs(counts - total * weights / weights.sum()) < 1 + 1e-9)


@given(sizes, st.data())
def test_spread_is_as_even_as_it_can_be(limits: list[int], data: st.DataObject):
    total = data.draw(st.integers(0, sum(limits)))
    shares = spread(np.array(limits), total, STREAM)
    assert shares.sum() == total
    assert np.all(shares <= limits)
    for share, limit in zip(shares, limits, strict=True):
        assert share == limit or share >= shares.max() - 1


@given(sizes, st.data())
def test_at_least_keeps_the_sum_and_the_middle(values: list[int], data: st.DataObject):
    before = np.array(values)
    least = data.draw(st.integers(0, int(before.sum()) // len(before)))
    after = at_least(before, least, STREAM)
    assert after.sum() == before.sum()
    assert after.min() >= least
    assert np.all(after[before < least] == least)
    assert np.all(after[before >= least] <= before[before >= least])


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), min_size=6, max_size=60), st.integers(0, 1))
def test_move_rows_moves_no_more_than_it_must(owners: list[int], least: int):
    owner = np.array(owners)
    before = np.bincount(owner, minlength=6)
    wanted = at_least(before, least, STREAM)
    after = move_rows(owner, before, wanted, STREAM)
    assert np.bincount(after, minlength=6).tolist() == wanted.tolist()
    assert (after != owner).sum() == np.maximum(wanted - before, 0).sum()


@pytest.mark.parametrize("alpha", [5e-324, 1e-6, 0.5, 1e6, 1.7e308])
def test_log_gammas_are_finite(alpha: float):
    assert np.all(np.isfinite(log_gammas(alpha, (1000,), STREAM.generator())))


@pytest.mark.parametrize("alpha", [0.2, 1.0, 7.0])
def test_log_gammas_are_gammas(alpha: float):
    values = np.exp(log_gammas(alpha, (200_000,), STREAM.generator()))
    assert values.mean() == pytest.approx(alpha, rel=0.03)
    assert values.var() == pytest.approx(alpha, rel=0.05)


def test_shuffled_by_class_groups_and_shuffles():
    y = np.tile([7, 2, 2], 50)
    order, counts = shuffled_by_class(y, STREAM)
    assert counts.tolist() == [100, 50]
    assert y[order].tolist() == [2] * 100 + [7] * 50
    assert sorted(order.tolist()) == list(range(150))
    assert order[100:].tolist() != sorted(order[100:].tolist())
