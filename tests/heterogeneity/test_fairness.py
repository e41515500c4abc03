"""Fairness measures against explicit definitions."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedskew.core.errors import FedskewError
from fedskew.heterogeneity.fairness import gini, rounds_to_share, worst_share_mean

amounts = st.lists(st.floats(0, 1e6), min_size=1, max_size=30)


@given(amounts)
@example([0.0, 5e-324])  # whose mean is no number that float64 has
def test_gini_is_half_the_relative_mean_absolute_difference(values: list[float]):
    exact = [Fraction(value) for value in values]
    total = sum(exact)
    if total == 0:
        assert gini(values) == 0
        return
    differences = sum(abs(a - b) for a in exact for b in exact)
    assert gini(values) == pytest.approx(float(differences / (2 * len(values) * total)), abs=1e-9)


@given(st.integers(1, 50), st.floats(0.001, 1e9))
def test_gini_ends(count: int, amount: float):
    assert gini([amount] * count) == pytest.approx(0, abs=1e-12)
    assert gini([0.0] * (count - 1) + [amount]) == pytest.approx((count - 1) / count)


def test_gini_of_huge_numbers():
    assert gini([1e308, 1e308]) == 0


@pytest.mark.parametrize("values", [[], [1, -1], [1, math.nan], [1, math.inf]])
def test_gini_refuses(values: list[float]):
    with pytest.raises(FedskewError):
        gini(values)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.floats(0.01, 1))
def test_worst_share_is_the_mean_of_the_lowest(values: list[float], share: float):
    count = math.ceil(share * len(values) - 1e-9)
    assert worst_share_mean(values, share) == pytest.approx(sum(sorted(values)[:count]) / count)


def test_worst_share_counts_clients_exactly():
    values = np.arange(30) / 30
    assert worst_share_mean(values, 0.1) == pytest.approx((0 + 1 + 2) / 90)
    assert worst_share_mean(values, 0.01) == 0


def test_worst_share_leaves_gaps_out():
    assert worst_share_mean([0.5, math.nan, 0.1, 0.9], share=0.6) == pytest.approx(0.3)
    assert math.isnan(worst_share_mean([math.nan]))
    assert math.isnan(worst_share_mean([]))


@pytest.mark.parametrize(
    ("values", "options"),
    [
        ([1], {"share": 0}),
        ([1], {"share": 1.5}),
        ([1], {"share": math.nan}),
    ],
)
def test_worst_share_refuses(values: list[float], options: dict):
    with pytest.raises(FedskewError):
        worst_share_mean(values, **options)


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([0.2, 0.6, 0.72, 0.8], 0.9, 3),
        ([0.8, 0.1, 0.8], 0.9, 1),
        ([math.nan, 0.79, math.nan, 0.8], 0.9, 2),
        ([0.1, math.nan], 0.9, None),
        ([], 0.9, None),
        ([0.5], 1.0, 1),
    ],
)
def test_rounds_to_share(values: list[float], share: float, expected: int | None):
    assert rounds_to_share(values, share) == expected


def test_rounds_to_share_refuses():
    with pytest.raises(FedskewError, match="out of range"):
        rounds_to_share([1.0], 0)
