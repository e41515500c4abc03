"""The layout of numbers in a vector: one subtraction compares 64 labels with 64 slots without any rotation.

A vector is 64 tiles of 64 numbers. A client's vector holds one label in each tile, 64 times over; a block of the
server's list holds its 64 slots, in every tile the same. The difference then has a number for every pair of label and
slot. Counts are written in two limbs of 16 bits, the low ones in the first half of a vector and the high ones in the
second, so that sums over thousands of clients stay below the prime.
"""

import numpy as np

from fedskew.core.streams import Ints
from fedskew.label_privacy.bfv import SLOTS
from fedskew.label_privacy.blinding import PRIME

WIDTH = 64  # labels of a client's vector, and slots of a block of the list
assert WIDTH * WIDTH == SLOTS
COUNTS = SLOTS // 2  # counts in a vector
LIMB = 1 << 16
MOST_CLIENTS = PRIME // LIMB


def pages(count: int, size: int) -> int:
    """Return how many vectors of ``size`` numbers hold ``count``."""
    return -(-count // size)


def spread_labels(labels: Ints) -> list[Ints]:
    """Return vectors of a client's labels, one for each 64 of them.

    >>> [row[[0, 63, 64, 128]].tolist() for row in spread_labels(np.array([7, 5]))]
    [[7, 7, 5, 0]]
    """
    padded = np.zeros(pages(len(labels), WIDTH) * WIDTH, dtype=np.int64)
    padded[: len(labels)] = labels
    return list(np.repeat(padded, WIDTH).reshape(-1, SLOTS))


def spread_slots(values: Ints, slots: Ints) -> list[Ints]:
    """Return vectors with ``values`` at ``slots`` and zero elsewhere: one for each block with a slot.

    >>> [row[[0, 1, 65]].tolist() for row in spread_slots(np.array([7, 5]), np.array([1, 64]))]
    [[0, 7, 7], [5, 0, 0]]
    """
    rows = []
    for block in touched(slots):
        inside = slots // WIDTH == block
        part = np.zeros(WIDTH, dtype=np.int64)
        part[slots[inside] % WIDTH] = values[inside]
        rows.append(np.tile(part, WIDTH))
    return rows


def touched(slots: Ints) -> list[int]:
    """Return the blocks of ``slots``, in order.

    >>> touched(np.array([3, 70, 5]))
    [0, 1]
    """
    found: list[int] = np.unique(slots // WIDTH).tolist()
    return found


def split_counts(counts: Ints) -> Ints:
    """Return vectors of counts in limbs: pages x numbers.

    >>> split_counts(np.array([65_537, 3]))[0, [0, 1, COUNTS, COUNTS + 1]].tolist()
    [1, 3, 1, 0]
    """
    padded = np.zeros(pages(len(counts), COUNTS) * COUNTS, dtype=np.int64)
    padded[: len(counts)] = counts
    high, low = np.divmod(padded.reshape(-1, 1, COUNTS), LIMB)
    return np.concatenate([low, high], axis=1).reshape(-1, SLOTS)


def limbs(rows: Ints, size: int) -> Ints:
    """Return the low limbs and the high ones of the first ``size`` counts: 2 x size."""
    return rows.reshape(-1, 2, COUNTS).transpose(1, 0, 2).reshape(2, -1)[:, :size]


def join_counts(limbs: Ints) -> Ints:
    """Return counts from their limbs, which may have grown in sums.

    >>> join_counts(5 * limbs(split_counts(np.array([65_537, 3])), 2)).tolist()
    [327685, 15]
    """
    low, high = limbs
    joined: Ints = low + LIMB * high
    return joined
