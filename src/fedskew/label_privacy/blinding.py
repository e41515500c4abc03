"""Blinding: of an encrypted difference of labels it can only be read whether it is zero.

The server multiplies the difference of two labels by a random number that is not zero, modulo the prime of the
encryption: zero stays zero, and every other difference becomes each of the other numbers with exactly the same
probability.
"""

import os

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.streams import Ints

# Numbers are encrypted modulo this: below 2^30, and one more than a multiple of 2 x 8,192
PRIME = 1_073_692_673
MOST_LABELS = 2**20


def check_labels(labels: int) -> None:
    """Check the number of labels: they are 0 … ``labels`` - 1, and the next number marks an empty slot."""
    if not 1 <= labels <= MOST_LABELS:
        raise FedskewError(
            f"label_range={labels} is out of range, it must be between 1 and {MOST_LABELS}"
        )


def uniform(count: int, least: int = 0) -> Ints:
    """Return numbers from ``least`` to the prime less one, uniform, from the operating system's randomness.

    >>> int(uniform(5, least=PRIME - 1).min()) == PRIME - 1
    True
    """
    found = np.zeros(0, dtype=np.int64)
    room = PRIME - least
    bits = room.bit_length()
    # What is too great is drawn again: a remainder would favour small numbers
    while len(found) < count:
        words = np.frombuffer(os.urandom(4 * count), dtype="<u4").astype(np.int64) & (
            (1 << bits) - 1
        )
        found = np.concatenate([found, words[words < room]])
    return least + found[:count]


def factors(count: int) -> Ints:
    """Return random numbers that are not zero modulo the prime.

    >>> int(factors(5).min()) > 0
    True
    """
    return uniform(count, least=1)
