"""Splits: exact shares, every stratum in proportion, the same rows from the same seed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedskew.core.errors import FedskewError
from fedskew.core.streams import Stream
from fedskew.data import Dataset, Rows, load, stratified


@given(st.lists(st.integers(0, 5), min_size=2, max_size=200), st.floats(0.05, 0.95))
def test_stratified_is_complete_disjoint_and_in_proportion(labels: list[int], share: float) -> None:
    y = np.array(labels)
    kept, held = stratified(y, share, Stream(1, "t"))
    assert sorted([*kept, *held]) == list(range(len(y)))
    assert abs(len(held) - len(y) * share) < 1
    for label in range(6):
        assert abs(np.sum(y[held] == label) - np.sum(y == label) * share) <= 1


def _rows(count: int) -> Rows:
    return Rows(
        np.arange(count, dtype=np.float32)[:, None],
        np.arange(count) % 2,
        (np.arange(count) // 2) % 5,
    )


def test_hold_out_keeps_groups_in_proportion_too() -> None:
    data = Dataset("d", _rows(100), _rows(4), ("a", "b"), groups=tuple("vwxyz"))
    cut = data.hold_out(0.2, seed=3)
    assert cut.validation is not None
    assert cut.validation.group is not None
    assert np.bincount(cut.validation.group * 2 + cut.validation.y).tolist() == [2] * 10
    assert len(cut.train) == 80
    with pytest.raises(FedskewError, match="already has validation rows"):
        cut.hold_out(0.2, seed=3)


def test_hold_out_refuses_to_leave_a_part_empty() -> None:
    with pytest.raises(
        FedskewError, match=r"validation share of 0\.01 of 4 rows leaves one part empty"
    ):
        Dataset("d", _rows(4), _rows(4), ("a", "b"), groups=tuple("vwxyz")).hold_out(0.01, seed=0)


def test_load_draws_the_rows_of_hold_out_but_fits_without_them() -> None:
    early, late = load("digits", validation=0.25, seed=5), load("digits").hold_out(0.25, seed=5)
    assert early.validation is not None
    assert late.validation is not None
    np.testing.assert_array_equal(early.validation.y, late.validation.y)
    assert abs(early.train.x.mean()) < 1e-6
    assert abs(late.train.x.mean()) > 1e-6
    # Both scalings are affine, so the rows are the same up to one.
    slope = np.polyfit(late.validation.x.ravel(), early.validation.x.ravel(), 1)
    np.testing.assert_allclose(np.polyval(slope, late.validation.x), early.validation.x, atol=1e-5)
