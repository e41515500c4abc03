"""Effect sizes by hand and against SciPy; intervals by their equations, and by how often they hold the truth."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2_contingency, ncx2, norm, t
from scipy.stats.contingency import association

from fedskew.heterogeneity.effects import (
    Sample,
    auc_interval,
    cramers_v,
    cramers_v_interval,
    hedges_g,
    z_of,
)
from fedskew.tasks.ranks import ranked


def test_hedges_g_by_hand():
    one, other = np.array([1.0, 2.0, 3.0, 6.0]), np.array([0.0, 1.0, 2.0])
    pooled = math.sqrt((one.var(ddof=1) * 3 + other.var(ddof=1) * 2) / 5)
    g = (one.mean() - other.mean()) / pooled * (1 - 3 / (4 * 5 - 1))
    error = math.sqrt(7 / 12 + g**2 / 14)
    found = hedges_g(Sample.of(one), Sample.of(other))
    assert found == pytest.approx((g, g - 1.959964 * error, g + 1.959964 * error), abs=1e-6)
    back = hedges_g(Sample.of(other), Sample.of(one))
    assert back == pytest.approx((-found.value, -found.high, -found.low))
    wider = hedges_g(Sample.of(one), Sample.of(other), 0.999)
    assert wider.low < found.low
    assert wider.high > found.high


def test_g_is_the_t_statistic_in_other_words():
    draw = np.random.default_rng(0)
    one, other = draw.normal(0.4, 1, 30), draw.normal(0, 1, 50)
    found = hedges_g(Sample.of(one), Sample.of(other)).value / (1 - 3 / (4 * 78 - 1))
    statistic = found / math.sqrt(1 / 30 + 1 / 50)
    assert 2 * t.sf(abs(statistic), 78) == pytest.approx(_t_test(one, other))


def _t_test(one: np.ndarray, other: np.ndarray) -> float:
    from scipy.stats import ttest_ind

    return float(ttest_ind(one, other).pvalue)


def test_numbers_without_spread():
    same, apart = (
        hedges_g(Sample(5, 1.0, 0.0), Sample(5, 1.0, 0.0)),
        hedges_g(Sample(5, 1.0, 0.0), Sample(5, 2.0, 0.0)),
    )
    assert same == (0, 0, 0)
    assert apart == (-math.inf,) * 3
    assert all(map(math.isnan, hedges_g(Sample(5, 1.0, 1.0), Sample(0, 0.0, 0.0))))
    assert all(map(math.isnan, hedges_g(Sample(1, 1.0, 0.0), Sample(1, 0.0, 0.0))))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 40), min_size=3, max_size=3), min_size=2, max_size=4))
def test_cramers_v_against_scipy(rows: list[list[int]]):
    counts = np.array(rows)
    table = counts[counts.sum(1) > 0][:, counts.sum(0) > 0]
    found = cramers_v_interval(counts)
    assert found.low <= found.value == cramers_v(counts) <= found.high <= 1
    if min(table.shape, default=0) < 2:
        assert found == (0, 0, 0)
        return
    n, (r, c) = table.sum(), table.shape
    phi = association(table, method="cramer") ** 2 * min(r - 1, c - 1)
    corrected = max(0.0, phi - (r - 1) * (c - 1) / (n - 1))  # Bergsma 2013
    room = min(k - 1 - (k - 1) ** 2 / (n - 1) for k in (r, c))
    assert found.value == pytest.approx(
        min(1, math.sqrt(corrected / room)) if room > 0 else 0, abs=1e-9
    )
    chi = chi2_contingency(table, correction=False).statistic
    for end, level, at in (
        (found.low, 0.975, chi),
        (found.high, 0.025, max(chi, (r - 1) * (c - 1))),
    ):
        if 0 < end < 1 and end != found.value:
            centre = end**2 * n * min(r - 1, c - 1)
            assert ncx2.cdf(at, (r - 1) * (c - 1), centre) == pytest.approx(level, abs=1e-4)


def test_perfect_and_absent_association():
    assert cramers_v(np.array([[50, 0], [0, 50]])) == 1
    nothing = cramers_v_interval(np.array([[20, 20], [20, 20]]))
    assert nothing.value == nothing.low == 0
    assert 0.1 < nothing.high < 0.4


def test_auc_interval_is_newcombes():
    found = auc_interval(0.85, 40, 60)
    for end in found[1:]:
        shape = 1 + 49 * ((1 - end) / (2 - end) + end / (1 + end))
        assert abs(0.85 - end) == pytest.approx(
            z_of(0.95) * math.sqrt(end * (1 - end) * shape / 2400), abs=1e-6
        )
    sure = auc_interval(1.0, 40, 60)
    assert sure.value == sure.high == 1
    assert 0.9 < sure.low < 1
    assert auc_interval(0.0, 40, 60) == pytest.approx((0, 0, 1 - sure.low), abs=1e-6)
    assert math.isnan(auc_interval(math.nan, 1, 1).low)


def test_intervals_hold_the_truth_as_often_as_they_say():
    draw, held = np.random.default_rng(1), {"g": 0, "v": 0, "auc": 0}
    shares = np.array([[0.5, 0.3, 0.2], [0.3, 0.3, 0.4]])
    mean = shares.mean(0)
    v = math.sqrt((np.square(shares - mean) / mean).sum() / 2)
    truth = float(norm.cdf(0.5 / math.sqrt(2)))
    for _ in range(400):
        one, other = draw.normal(0.5, 1, 40), draw.normal(0, 1, 60)
        low, high = hedges_g(Sample.of(one), Sample.of(other))[1:]
        held["g"] += low <= 0.5 <= high
        low, high = cramers_v_interval(np.stack([draw.multinomial(80, share) for share in shares]))[
            1:
        ]
        held["v"] += low <= v <= high
        low, high = auc_interval(
            ranked(np.concatenate([one, other]), np.arange(100) < 40).auc, 40, 60
        )[1:]
        held["auc"] += low <= truth <= high
    assert all(0.92 <= count / 400 <= 0.98 for count in held.values()), held
