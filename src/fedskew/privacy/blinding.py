"""Blinding: an encrypted difference of labels becomes zero or not modulo a prime, and nothing else can be read off it.

A label is one or two digits of the field of the integers modulo a prime p. The server multiplies the difference of two labels
by a fresh random invertible matrix, which leaves zero at zero and makes every other difference equally likely to be anything
but zero, modulo p. The number itself still has a magnitude, so a random multiple of p that is far greater is added.
"""

import os
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedskew.errors import FedskewError
from fedskew.streams import Floats, Ints

MOST_LABELS = 2**20
MASK_BITS = 45  # masks span this many bits: as many as survive decryption in double precision with room to spare
_ONE_DIGIT = 1024  # up to so many labels; two digits above


@dataclass(frozen=True)
class Code:
    """How labels 0 … ``labels`` - 1 are written as digits; one more code, the sentinel, stands for an empty slot.

    >>> Code(10).prime, Code(10).digits(np.array([0, 9, 10])).tolist()
    (11, [[0.0, 9.0, 10.0]])
    """

    labels: int

    def __post_init__(self) -> None:
        if not 1 <= self.labels <= MOST_LABELS:
            raise FedskewError(f"label_range={self.labels} is out of range, it must be between 1 and {MOST_LABELS}")

    @property
    def length(self) -> int:
        """Digits of a label."""
        return 1 if self.labels <= _ONE_DIGIT else 2

    @cached_property
    def prime(self) -> int:
        """The least prime whose digits suffice for all labels and the sentinel."""
        candidate = 2
        while candidate**self.length <= self.labels or any(candidate % k == 0 for k in range(2, candidate)):
            candidate += 1
        return candidate

    @property
    def sentinel(self) -> int:
        """The code of an empty slot: the first number that is no label."""
        return self.labels

    def digits(self, labels: Ints) -> Floats:
        """Digits x labels, lowest digit first."""
        return np.stack([labels // self.prime**k % self.prime for k in range(self.length)]).astype(np.float64)


def uniform(bound: int, *shape: int) -> Ints:
    """Numbers below ``bound`` from the operating system's randomness; exactly even where ``bound`` is a power of two."""
    words = np.frombuffer(os.urandom(8 * int(np.prod(shape))), dtype=np.uint64).reshape(shape)
    return (words % np.uint64(bound)).astype(np.int64)


def factors(code: Code, count: int) -> Ints:
    """For each of ``count`` numbers a random invertible matrix modulo the prime: digits x digits x count.

    >>> int(factors(Code(10), 5).min()) > 0
    True
    """
    prime, size = code.prime, code.length
    result = uniform(prime, size, size, count)
    while len(singular := np.flatnonzero(_determinants(result) % prime == 0)):
        result[:, :, singular] = uniform(prime, size, size, len(singular))
    return result


def multiples(code: Code, count: int) -> Ints:
    """Random multiples of the prime, in both directions, of up to ``MASK_BITS`` - 1 bits: digits x count."""
    spread = 1 << (MASK_BITS - code.prime.bit_length())  # a power of two, so that none is likelier than another
    return code.prime * (uniform(spread, code.length, count) - spread // 2)


def anything(code: Code, count: int) -> Ints:
    """Random numbers of the size of ``multiples``, where there is nothing to tell: digits x count."""
    return uniform(1 << MASK_BITS, code.length, count) - (1 << (MASK_BITS - 1))


def _determinants(matrices: Ints) -> Ints:
    single: Ints = matrices[0, 0]
    return single if len(matrices) == 1 else single * matrices[1, 1] - matrices[0, 1] * matrices[1, 0]
