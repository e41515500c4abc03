"""Features as columns: the one with the largest variance, ranks of values, and units of the file."""

import math

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.streams import Floats, Ints, Stream
from fedskew.data.dataset import Features, Rows
from fedskew.data.readers.arrays import moments
from fedskew.data.stored_rows import AnyRows, whole

_SAME = 1e-5  # relative difference up to which variances are equal


def columns(x: AnyRows) -> Features:
    """Return features of any shape as a table."""
    return whole(x, "a skew by features").reshape(len(x), -1)


def units(rows: Rows) -> Floats:
    """Return what 1 in each column of ``columns(rows.x)`` is in the units of the file.

    >>> units(Rows(np.zeros((1, 2, 3), np.float32), np.zeros(1, np.int64), unit=np.array([5.0, 0.5]))).tolist()
    [5.0, 5.0, 5.0, 0.5, 0.5, 0.5]
    """
    unit = rows.unit
    if unit is None:
        unit = np.ones(rows.x.shape[1])
    return np.repeat(unit, math.prod(rows.x.shape[2:]))


def most_variable(table: Features, unit: Floats) -> int | None:
    """Return the column with the largest variance in the units of the file; of equal ones (up to rounding) the first.

    It is None if all are constant.
    """
    _, deviation = moments(table)
    deviation = deviation * unit
    greatest = deviation.max(initial=0.0) ** 2
    if greatest > 0:
        return int(np.argmax(deviation**2 >= greatest * (1 - _SAME)))
    return None


def chosen_column(skew: str, rows: Rows, column: int | None) -> Features:
    """Return the values of the given column, or of that with the largest variance; raise an error if it is constant."""
    table = columns(rows.x)
    if column is None:
        widest = most_variable(table, units(rows))
        if widest is None:
            raise FedskewError(
                f"skew {skew}: all {table.shape[1]} features are constant: use a skew by label, such as lds"
            )
        return table[:, widest]
    if column >= table.shape[1]:
        raise FedskewError(
            f"skew {skew}: column={column}, but the columns are 0 … {table.shape[1] - 1}"
        )
    values = table[:, column]
    if values.min() == values.max():
        raise FedskewError(
            f"skew {skew}: column={column} is constant: choose another, or none for the one that varies most"
        )
    return values


def ascending(values: Features, stream: Stream) -> Ints:
    """Return positions by rising value; equal values are in random order, since stored order is often by label."""
    shuffled = stream.permutation(len(values))
    return shuffled[np.argsort(values[shuffled], kind="stable")]


def ranks(values: Features) -> Floats:
    """Return the rank of each value in (0, 1): the share that is smaller plus half of the share that is equal.

    >>> ranks(np.array([5, 7, 5, 9], dtype=np.float32)).tolist()
    [0.25, 0.625, 0.25, 0.875]
    """
    order = np.argsort(values)
    ordered = values[order]
    first = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    ends = np.append(first, len(values))
    rank = np.empty(len(values))
    rank[order] = np.repeat((ends[:-1] + ends[1:]) / (2 * len(values)), np.diff(ends))
    return rank
