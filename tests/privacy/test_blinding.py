"""Codes of labels, and blinding: zero stays zero, everything else is equally likely to become anything else."""

import numpy as np
import pytest
from scipy.stats import chisquare

from fedskew.errors import FedskewError
from fedskew.privacy.blinding import MASK_BITS, Code, anything, factors, multiples, uniform


@pytest.mark.parametrize("labels", [1, 2, 10, 100, 1024, 1025, 2**20])
def test_digits_tell_all_labels_and_the_sentinel_apart(labels: int):
    code = Code(labels)
    everything = np.unique(np.linspace(0, labels, min(labels + 1, 20_001)).astype(np.int64))
    digits = code.digits(everything)
    assert np.array_equal(sum(digits[k] * code.prime**k for k in range(code.length)), everything)
    assert digits.min() >= 0
    assert digits.max() < code.prime <= 1031
    assert all(code.prime % k for k in range(2, code.prime))
    assert everything[-1] == code.sentinel == labels


@pytest.mark.parametrize("labels", [0, -3, 2**20 + 1])
def test_a_range_that_is_too_large_or_empty(labels: int):
    with pytest.raises(FedskewError, match=rf"label_range={labels} is out of range, it must be between 1 and 1048576"):
        Code(labels)


@pytest.mark.parametrize(("labels", "difference"), [(10, [1]), (10, [-9]), (1025, [0, 5]), (1025, [-36, 1])])
def test_a_difference_becomes_every_other_one_alike(labels: int, difference: list[int]):
    code = Code(labels)
    times = 40 * code.prime**code.length
    found = np.einsum("ijn,j->in", factors(code, times), difference) % code.prime
    as_number = sum(found[k] * code.prime**k for k in range(code.length))
    tally = np.bincount(as_number, minlength=code.prime**code.length)
    assert tally[0] == 0
    assert chisquare(tally[1:]).pvalue > 1e-6


def test_a_difference_of_zero_stays_zero():
    assert not np.einsum("ijn,j->in", factors(Code(1025), 1000), [0, 0]).any()


@pytest.mark.parametrize("labels", [10, 2**20])
def test_masks_are_wide_multiples_of_the_prime(labels: int):
    code = Code(labels)
    found = multiples(code, 5000)
    assert found.shape == (code.length, 5000)
    assert not (found % code.prime).any()
    assert 2 ** (MASK_BITS - 3) < np.abs(found).max() <= 2 ** (MASK_BITS - 1)
    assert len(np.unique(found)) > 4900 * code.length
    loose = anything(code, 5000)
    assert np.abs(loose).max() <= 2 ** (MASK_BITS - 1)
    assert (loose % code.prime != 0).mean() > 0.85


def test_uniform_covers_its_range_and_never_repeats_itself():
    found = uniform(8, 8000)
    assert chisquare(np.bincount(found, minlength=8)).pvalue > 1e-6
    assert len(np.bincount(found)) == 8
    assert not np.array_equal(uniform(2**40, 50), uniform(2**40, 50))
