"""The four distances against SciPy and explicit sums; metric properties; the effect of renaming."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon
from scipy.stats import wasserstein_distance

from fedskew.heterogeneity.distances import DISTANCES, Profiles, between

HELLINGER, JENSEN_SHANNON, TOTAL_VARIATION, WASSERSTEIN = range(4)


def of_shares(shares: np.ndarray) -> Profiles:
    """Return categories in their order: category k of K is at k / (K - 1)."""
    return Profiles(shares, np.cumsum(shares[:, :-1], axis=1) / max(shares.shape[1] - 1, 1))


@st.composite
def shares(draw: st.DrawFn, lines: int) -> np.ndarray:
    """Return distributions over a few categories, many of them without some."""
    width = draw(st.integers(2, 9))
    line = st.lists(st.integers(0, 20), min_size=width, max_size=width).filter(any)
    counts = np.array([draw(line) for _ in range(lines)], dtype=np.float64)
    return counts / counts.sum(axis=1, keepdims=True)


def by_hand(p: np.ndarray, q: np.ndarray) -> list[float]:
    hellinger = math.sqrt(
        sum((math.sqrt(a) - math.sqrt(b)) ** 2 for a, b in zip(p, q, strict=True)) / 2
    )
    variation = sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2
    codes = [k / (len(p) - 1) for k in range(len(p))]
    divergence = max(jensenshannon(p, q, base=2) ** 2, 0.0) if not np.array_equal(p, q) else 0.0
    return [hellinger, math.sqrt(divergence), variation, wasserstein_distance(codes, codes, p, q)]


@settings(deadline=None, max_examples=200)
@given(shares(lines=2))
def test_the_distances_are_those_of_scipy(pair: np.ndarray):
    profiles = of_shares(pair)
    found = profiles.between(np.array([0]), np.array([1]))[:, 0]
    assert found == pytest.approx(by_hand(*pair), abs=1e-7)


@settings(deadline=None, max_examples=200)
@given(shares(lines=3))
def test_they_are_metrics_between_0_and_1(three: np.ndarray):
    profiles = of_shares(three)
    ab, bc, ac, ba, aa = profiles.between(np.array([0, 1, 0, 1, 0]), np.array([1, 2, 2, 0, 0])).T
    assert np.all((ab >= 0) & (ab <= 1))
    assert np.array_equal(ab, ba)
    assert np.all(aa == 0)
    assert np.all(ac <= ab + bc + 1e-7)


@settings(deadline=None, max_examples=100)
@given(shares(lines=2), st.randoms(use_true_random=False))
def test_only_wasserstein_sees_the_order_of_the_classes(pair: np.ndarray, random):
    order = list(range(pair.shape[1]))
    random.shuffle(order)
    one, renamed, reversed_ = (
        of_shares(shown).between(np.array([0]), np.array([1]))[:, 0]
        for shown in (pair, pair[:, order], pair[:, ::-1])
    )
    assert renamed[:WASSERSTEIN] == pytest.approx(one[:WASSERSTEIN], abs=1e-7)
    assert reversed_ == pytest.approx(one, abs=1e-7)


def test_wasserstein_depends_on_the_order_of_the_classes():
    near = of_shares(np.array([[1.0, 0, 0], [0, 1.0, 0]]))
    far = of_shares(np.array([[1.0, 0, 0], [0, 0, 1.0]]))
    assert near.between(np.array([0]), np.array([1]))[WASSERSTEIN] == 0.5
    assert far.between(np.array([0]), np.array([1]))[WASSERSTEIN] == 1.0


def test_many_pairs_in_blocks_are_the_same_as_one_by_one(monkeypatch: pytest.MonkeyPatch):
    lines = np.random.default_rng(0).dirichlet(np.full(6, 0.4), 30)
    first, second = np.triu_indices(30, 1)
    whole = of_shares(lines).between(first, second)
    monkeypatch.setattr("fedskew.heterogeneity.distances._CELLS_AT_ONCE", 20)
    assert np.array_equal(of_shares(lines).between(first, second), whole)
    assert whole.shape == (len(DISTANCES), 435)


def test_to_a_single_line():
    lines = of_shares(np.array([[1.0, 0], [0, 1.0], [0.5, 0.5]]))
    found = between(lines, of_shares(np.array([[0.5, 0.5]])))
    assert found[TOTAL_VARIATION].tolist() == [0.5, 0.5, 0]
    assert found[HELLINGER] == pytest.approx([math.sqrt(1 - math.sqrt(0.5))] * 2 + [0])


def test_entropy_in_bits():
    assert of_shares(np.array([[0.25] * 4, [1.0, 0, 0, 0], [0.5, 0.5, 0, 0]])).entropy.tolist() == [
        2,
        0,
        1,
    ]
