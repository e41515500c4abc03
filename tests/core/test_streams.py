"""Random streams: exact bits, and the distributions of draws."""

import hashlib
from collections import Counter
from itertools import permutations

import numpy as np
import pytest

from fedskew.algorithms.selection import ClientPool, Selection
from fedskew.core.streams import Stream, bits

WORD = (1 << 64) - 1


def mixed(z: int) -> int:
    """Return SplitMix64's finaliser (Steele et al. 2014) on Python's whole numbers."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return z ^ (z >> 31)


def reference(seed: int, purpose: str, *path: int) -> int:
    code = int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:8], "little")
    state = mixed(((seed ^ code) + 0x9E3779B97F4A7C15) & WORD)
    for part in path:
        state = mixed(((state ^ (part * 0x94D049BB133111EB & WORD)) + 0x9E3779B97F4A7C15) & WORD)
    return state


def test_the_finaliser_is_splitmix64():
    # First output of the reference implementation for seed 1234567: state = seed + step, then the finaliser.
    assert mixed((1234567 + 0x9E3779B97F4A7C15) & WORD) == 6457827717110365317


@pytest.mark.parametrize(
    ("address", "word"),
    [
        ((0, "batches"), 0x54C978CF6113CC44),
        ((42, "select", 7), 0xA6F9EFB64F77F33D),
        ((2**63 + 5, "batches", 3, 1_000_000, 0, 12), 0xE24B78A9EDF3CD13),
    ],
)
def test_pinned_words(address: tuple, word: int):
    # A change of the hash would change every published run.
    assert reference(*address) == word
    assert int(bits(*address)[0]) == word


def test_paths_broadcast_and_match_the_reference():
    clients, slots = np.array([[3], [70_000]]), np.arange(4)
    words = bits(9, "batches", 2, clients, slots)
    assert words.dtype == np.uint64
    assert words.tolist() == [
        [reference(9, "batches", 2, c, s) for s in range(4)] for c in (3, 70_000)
    ]
    assert Stream(9, "batches", 2, 3).bits(4).tolist() == words[0].tolist()


def test_uniform_is_the_top_53_bits():
    numbers = Stream(1, "u").uniform(4000)
    assert numbers[:3].tolist() == [(reference(1, "u", i) >> 11) / 2**53 for i in range(3)]
    assert 0 <= numbers.min() < numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 4 * (1 / 12 / 4000) ** 0.5


def test_permutation():
    drawn = Stream(5, "p").permutation(100)
    assert sorted(drawn.tolist()) == list(range(100))
    assert not np.array_equal(drawn, Stream(6, "p").permutation(100))


@pytest.mark.parametrize(
    ("population", "count"), [(10, 10), (10, 3), (40, 10), (41, 10), (10**9, 500), (1, 1), (5, 0)]
)
def test_sample_is_distinct_and_in_range(population: int, count: int):
    drawn = Stream(0, "s").sample(population, count)
    assert len(drawn) == len(set(drawn.tolist())) == count
    assert all(0 <= number < population for number in drawn.tolist())


def test_sample_refuses_more_than_there_are():
    with pytest.raises(ValueError, match="cannot draw 4 different numbers below 3"):
        Stream(0, "s").sample(3, 4)


@pytest.mark.parametrize("population", [7, 30])  # a permutation's head, and draws with rejection
def test_sample_is_uniform(population: int):
    draws, count = 4000, 3
    hits = np.bincount(
        np.concatenate([Stream(seed, "s").sample(population, count) for seed in range(draws)]),
        minlength=population,
    )
    expected, share = draws * count / population, count / population
    assert np.abs(hits - expected).max() < 4.5 * (expected * (1 - share)) ** 0.5


def test_the_numpy_generator_is_keyed_by_the_address():
    first, same, other = (Stream(seed, "g").generator().normal(size=3) for seed in (1, 1, 2))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)


def select(sampling: str, sizes: list[int], count: int, draws: int) -> Counter:
    pool = ClientPool(0, np.array(sizes), sampling)
    return Counter(
        tuple(Selection().select(pool, count, Stream(seed, "select")).tolist())
        for seed in range(draws)
    )


def test_size_proportional_selection_without_replacement():
    sizes, draws = [1, 2, 3, 6], 6000
    chance: Counter = Counter()
    # One after the other, each in proportion to what is left
    for first, second in permutations(range(4), 2):
        chance[tuple(sorted((first, second)))] += (
            sizes[first] / 12 * sizes[second] / (12 - sizes[first])
        )
    found = select("size", sizes, 2, draws)
    assert found.keys() == chance.keys()
    for pair, share in chance.items():
        assert abs(found[pair] - draws * share) < 4.5 * (draws * share * (1 - share)) ** 0.5, pair


def test_uniform_selection_ignores_sizes():
    found = select("uniform", [1, 2, 3, 600], 2, 6000)
    assert len(found) == 6
    assert max(abs(count - 1000) for count in found.values()) < 4.5 * (6000 / 6 * 5 / 6) ** 0.5


@pytest.mark.parametrize("sampling", ["uniform", "size"])
def test_everybody_is_everybody(sampling: str):
    assert select(sampling, [5, 1, 9], 3, 5) == {(0, 1, 2): 5}


def test_a_thinned_sample_is_one_after_the_other_in_proportion_to_what_is_left():
    chances, draws = np.array([0.1, 0.2, 0.3, 0.6, 1.0]), 6000
    expected: Counter = Counter()
    for first, second in permutations(range(5), 2):
        left = chances.sum() - chances[first]
        expected[first, second] += chances[first] / chances.sum() * chances[second] / left
    found = Counter(
        tuple(Stream(seed, "t").thinned_sample(5, 2, lambda some: chances[some]).tolist())
        for seed in range(draws)
    )
    assert found.keys() == expected.keys()
    for pair, share in expected.items():
        assert abs(found[pair] - draws * share) < 4.5 * (draws * share * (1 - share)) ** 0.5, pair


def test_a_thinned_sample_is_distributed_as_a_weighted_one():
    weights, draws, count = np.linspace(0.1, 1.0, 40), 4000, 6
    hits = np.zeros((2, 40))
    for seed in range(draws):
        hits[0, Stream(seed, "t").thinned_sample(40, count, lambda some: weights[some])] += 1
        hits[1, Stream(seed, "w").weighted_sample(weights, count)] += 1
    # Two samples of the same counts: chi-square with 39 degrees of freedom, 0.1 %.
    assert ((hits[0] - hits[1]) ** 2 / hits.sum(0)).sum() < 72.1


def test_equal_chances_of_one_are_a_plain_sample():
    for seed in range(20):
        stream = Stream(seed, "t")
        mine = stream.thinned_sample(1000, 30, lambda some: np.ones(len(some)))
        assert mine.tolist() == stream.sample(1000, 30).tolist()
        # Draws on many times
        few = stream.thinned_sample(1000, 30, lambda some: np.full(len(some), 0.02))
        assert len(set(few.tolist())) == 30
