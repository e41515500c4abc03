"""Where numbers lie in a vector, so that one subtraction compares 64 labels with 64 slots without any rotation.

A vector is 64 tiles of 64 numbers. A client's vector holds one label in each tile, 64 times over; a block of the server's
list holds its 64 slots, in every tile the same. The difference then has a number for every pair of label and slot.
"""

import numpy as np

from fedskew.privacy.ckks import SLOTS
from fedskew.streams import Floats, Ints

WIDTH = 64  # labels of a client's vector, and slots of a block of the list
assert WIDTH * WIDTH == SLOTS


def pages(count: int, size: int) -> int:
    """How many vectors of ``size`` numbers hold ``count``."""
    return -(-count // size)


def spread_labels(digits: Floats) -> list[Floats]:
    """Vectors of a client's labels, given as digits x labels: for each group of 64 labels one for each digit.

    >>> [row[[0, 63, 64, 128]].tolist() for row in spread_labels(np.array([[7.0, 5.0], [1.0, 2.0]]))]
    [[7.0, 7.0, 5.0, 0.0], [1.0, 1.0, 2.0, 0.0]]
    """
    count, labels = digits.shape
    padded = np.zeros((count, pages(labels, WIDTH) * WIDTH))
    padded[:, :labels] = digits
    return [np.repeat(row, WIDTH) for group in np.split(padded, padded.shape[1] // WIDTH, axis=1) for row in group]


def spread_slots(digits: Floats, slots: Ints) -> list[Floats]:
    """Vectors with ``digits`` (digits x slots) at ``slots``, zero elsewhere: for each block that is touched one for each digit.

    >>> [row[[0, 1, 65]].tolist() for row in spread_slots(np.array([[7.0, 5.0]]), np.array([1, 64]))]
    [[0.0, 7.0, 7.0], [5.0, 0.0, 0.0]]
    """
    rows = []
    for block in touched(slots):
        inside = slots // WIDTH == block
        part = np.zeros((len(digits), WIDTH))
        part[:, slots[inside] % WIDTH] = digits[:, inside]
        rows += [np.tile(row, WIDTH) for row in part]
    return rows


def touched(slots: Ints) -> list[int]:
    """The blocks in which ``slots`` lie, in order.

    >>> touched(np.array([3, 70, 5]))
    [0, 1]
    """
    found: list[int] = np.unique(slots // WIDTH).tolist()
    return found
