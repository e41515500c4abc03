"""Named, counter-based random streams: every draw is a hash of (seed, purpose, path, position).

A number depends only on its address, so an engine may draw for one client or for a million at once, in any order, and
get the same bits. The hash is a chain of SplitMix64 finalisers: 64-bit multiplies and shifts only, so that a GPU can
repeat it.
"""

import hashlib
from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Bits: TypeAlias = NDArray[np.uint64]
Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]

_WORD = 0xFFFF_FFFF_FFFF_FFFF
_STEP, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_SHIFTS = (30, 27, 31)


def _mix_number(z: int) -> int:
    z = (z ^ z >> _SHIFTS[0]) * _MIX_1 & _WORD
    z = (z ^ z >> _SHIFTS[1]) * _MIX_2 & _WORD
    return z ^ z >> _SHIFTS[2]


def _mix_in_place(z: Bits) -> Bits:
    z ^= z >> np.uint64(_SHIFTS[0])
    z *= np.uint64(_MIX_1)
    z ^= z >> np.uint64(_SHIFTS[1])
    z *= np.uint64(_MIX_2)
    z ^= z >> np.uint64(_SHIFTS[2])
    return z


@lru_cache(maxsize=1024)
def _purpose_code(purpose: str) -> int:
    return int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:8], "little")


def bits(seed: int, purpose: str, *path: "int | Ints") -> Bits:
    """Return 64 random bits for every address (seed, purpose, *path); the parts of the path are broadcast."""
    number = _mix_number((seed ^ _purpose_code(purpose)) + _STEP & _WORD)
    # How many parts of the path come before the first array: for them Python is faster than NumPy
    numbers = 0
    for part in path:
        if isinstance(part, np.ndarray):
            break
        number = _mix_number((number ^ int(part) * _MIX_2 & _WORD) + _STEP & _WORD)
        numbers += 1
    state = np.array([number], dtype=np.uint64)
    for part in path[numbers:]:
        state = longer(state, part)
    return state


def longer(words: Bits, part: "int | Ints") -> Bits:
    """Return the words of addresses that are one part longer than those of ``words``; both are broadcast."""
    scaled = np.array(part, dtype=np.int64, ndmin=1).view(np.uint64)
    scaled *= np.uint64(_MIX_2)
    scaled = scaled ^ words
    scaled += np.uint64(_STEP)
    return _mix_in_place(scaled)


class Stream:
    """The random numbers of one address: ``Stream(seed, "select", round)``.

    >>> Stream(0, "demo", 3).permutation(5).tolist() == Stream(0, "demo", 3).permutation(5).tolist()
    True
    """

    def __init__(self, seed: int, purpose: str, *path: int) -> None:
        self.seed, self.purpose, self.path = seed, purpose, path

    def bits(self, count: int) -> Bits:
        """Return the first ``count`` words of the stream."""
        return bits(self.seed, self.purpose, *self.path, np.arange(count))

    def uniform(self, count: int) -> Floats:
        """Return numbers in [0, 1) with 53 random bits each."""
        return (self.bits(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def permutation(self, count: int) -> Ints:
        """Return 0 … count-1 in random order."""
        return np.argsort(self.bits(count), kind="stable")

    def sample(self, population: int, count: int) -> Ints:
        """Return ``count`` different numbers below ``population``; the cost depends on ``count`` alone."""
        if count > population:
            raise ValueError(f"cannot draw {count} different numbers below {population}")
        if 4 * count >= population:
            return self.permutation(population)[:count]
        # Fewer than a quarter: draw with replacement, keep first appearances, draw on until there are enough.
        draws = count + count // 2 + 8
        while True:
            drawn = _first_appearances((self.uniform(draws) * population).astype(np.int64))
            if len(drawn) >= count:
                return drawn[:count]
            draws *= 2

    def thinned_sample(self, population: int, count: int, chance: Callable[[Ints], Floats]) -> Ints:
        """Return ``count`` different numbers below ``population``, drawn without replacement by their chances.

        ``chance`` returns those of given numbers, in (0, 1]. The cost depends on ``count`` and the chances alone, so
        it should be a part of the population. For equal chances of 1 that is ``sample``.
        """
        # Numbers drawn with replacement and kept with their chance are a draw in proportion to it; without its repeats
        # it is one without replacement.
        draws = 2 * count + 8
        keep = substream(self, 1)
        while True:
            drawn = (self.uniform(draws) * population).astype(np.int64)
            kept = _first_appearances(drawn[keep.uniform(draws) < chance(drawn)])
            if len(kept) >= count:
                return kept[:count]
            draws *= 2

    def weighted_sample(self, weights: "Floats | Ints", count: int) -> Ints:
        """Return ``count`` different positions, drawn without replacement by their weights, in ascending order."""
        # Efraimidis and Spirakis (2006): the largest u^(1/weight) are such a draw.
        keys = np.log(self.uniform(len(weights)) + 2.0**-54) / weights
        return np.sort(np.argpartition(keys, len(weights) - count)[len(weights) - count :])

    def generator(self) -> np.random.Generator:
        """Return a NumPy generator keyed by this address, for distributions such as Dirichlet and normal."""
        return np.random.Generator(np.random.Philox(key=self.bits(2)))


def _first_appearances(numbers: Ints) -> Ints:
    """Return the different numbers, in the order in which they first appear."""
    order = numbers.argsort(kind="stable")
    ordered = numbers[order]
    new = np.ones(len(numbers), dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    return numbers[np.sort(order[new])]


def substream(stream: Stream, *path: int) -> Stream:
    """Return a stream with a longer path, for one of several purposes."""
    return Stream(stream.seed, stream.purpose, *stream.path, *path)
