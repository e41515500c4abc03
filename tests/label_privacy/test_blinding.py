"""Blinding: zero stays zero, other values become uniform, and masks are exactly uniform."""

import numpy as np
import pytest
from scipy.stats import chisquare, kstest

from fedskew.core.errors import FedskewError
from fedskew.label_privacy.blinding import MOST_LABELS, PRIME, check_labels, factors, uniform


def test_the_prime_is_one_that_encryption_can_batch_and_that_tells_all_labels_apart():
    assert all(PRIME % k for k in range(2, int(PRIME**0.5) + 1))
    assert PRIME % (2 * 8192) == 1
    assert MOST_LABELS + 1 < PRIME < 2**30


@pytest.mark.parametrize("labels", [0, -3, 2**20 + 1])
def test_a_range_that_is_too_large_or_empty(labels: int):
    with pytest.raises(
        FedskewError,
        match=rf"label_range={labels} is out of range, it must be between 1 and 1048576",
    ):
        check_labels(labels)


@pytest.mark.parametrize("difference", [1, -9, MOST_LABELS])
def test_a_difference_becomes_every_other_one_alike(difference: int):
    found = factors(100_000) * difference % PRIME
    assert found.min() > 0
    assert kstest(found / PRIME, "uniform").pvalue > 1e-6
    assert not (factors(1000) * 0 % PRIME).any()


def test_uniform_covers_its_range_evenly_and_never_repeats_itself():
    top = uniform(8000, least=PRIME - 7)
    assert chisquare(np.bincount(top - (PRIME - 7), minlength=7)).pvalue > 1e-6
    assert uniform(100_000).max() < PRIME
    assert not np.array_equal(uniform(50), uniform(50))
