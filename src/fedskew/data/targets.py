"""Targets: a class, a number or several of them, labels or tokens per row; and bins, which stand in for classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import FedskewError
from fedskew.core.streams import Ints

# int64 0 … K-1 | float32 | a matrix of 0 and 1, one column per label; it is uint8, which takes a quarter of float32 and
# cannot be taken for numbers | a float32 matrix | an int64 matrix 0 … K-1, and PADDING where a row has no token.
Target: TypeAlias = Literal["class", "number", "labels", "numbers", "tokens"]
Targets: TypeAlias = NDArray[Any]

PADDING = -1  # among tokens
_IGNORED = -100  # what others write for it
MATRICES = ("labels", "numbers", "tokens")  # targets with several values a row
IN_WORDS: dict[Target, str] = {
    "class": "classes",
    "number": "numbers",
    "labels": "several labels per row",
    "numbers": "several numbers per row",
    "tokens": "a token at each place of a row",
}
DEFAULT_BINS = 10  # that a fair split of numbers goes by
OTHER = "other"


def kind_of(y: Targets) -> Target:
    """Return what the targets are: one class or number per row, or several labels, numbers or tokens.

    >>> kind_of(np.zeros((2, 3), dtype=np.float32)), kind_of(np.zeros((2, 3), dtype=np.int64))
    ('numbers', 'tokens')
    """
    if y.ndim == 2 and y.dtype.kind == "f":
        return "numbers"
    if y.ndim == 2 and y.dtype == np.int64:
        return "tokens"
    if y.ndim == 2:
        return "labels"
    if y.dtype.kind == "f":
        return "number"
    return "class"


@dataclass(frozen=True)
class Bins:
    """The bin of every row, and what the bins are called."""

    of: Ints
    names: tuple[str, ...]

    def take(self, index: Ints) -> "Bins":
        """Return the bins of the rows at these positions."""
        return Bins(self.of[index], self.names)


def bins_of(y: Targets, count: int, labels: Sequence[str] = ()) -> Bins:
    """Return bins that stand in for classes: quantiles of numbers, or the most frequent combinations of labels.

    Bins of numbers hold equally many rows, as far as equal numbers, which are never put apart, allow; there are fewer
    of them where the numbers have fewer values. Of labels, each of the ``count - 1`` most frequent combinations is a
    bin, and the last one holds all others; ``labels`` are their names.

    >>> bins_of(np.array([1.0, 2.0, 3.0, 40.0]), 2)
    Bins(of=array([0, 0, 1, 1]), names=('1 … 2', '3 … 40'))
    >>> bins_of(np.array([[1, 0], [1, 0], [0, 1], [1, 1]]), 2).of.tolist()
    [0, 0, 1, 1]
    """
    if kind_of(y) == "class":
        raise FedskewError(
            f"bins={count} are for targets that are numbers or several labels, and these are classes"
        )
    if y.ndim == 2:
        return _combinations(y, count, labels)
    return _quantiles(y, count)


def _quantiles(y: Targets, count: int) -> Bins:
    values, place, rows = np.unique(y, return_inverse=True, return_counts=True)
    # The middle of the rows of a value, as a share of all rows, says in which bin the value is.
    middle = (np.cumsum(rows) - rows / 2) / max(len(y), 1)
    used, of = np.unique((middle * count).astype(np.int64), return_inverse=True)
    first = np.searchsorted(of, np.arange(len(used)), "left")
    last = np.searchsorted(of, np.arange(len(used)), "right") - 1
    names = []
    for low, high in zip(values[first].tolist(), values[last].tolist(), strict=True):
        if low == high:
            names.append(f"{low:.4g}")
        else:
            names.append(f"{low:.4g} … {high:.4g}")
    return Bins(of[place].astype(np.int64), tuple(names))


def _combinations(y: Targets, count: int, labels: Sequence[str]) -> Bins:
    found, place, rows = np.unique(y, axis=0, return_inverse=True, return_counts=True)
    place = place.reshape(-1)
    order = np.argsort(-rows, kind="stable")
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    kept = len(found)
    if kept > count:
        kept = count - 1
    called = labels or range(y.shape[1])
    names = []
    for number in order[:kept]:
        present = np.flatnonzero(found[number]).tolist()
        names.append("+".join(str(called[at]) for at in present) or "none")
    if kept < len(found):
        names.append(OTHER)
    return Bins(np.minimum(rank[place], kept), tuple(names))


def check_targets(where: str, y: Targets, classes: int) -> None:
    """Refuse targets of a wrong type or out of range; ``classes`` is how many classes, labels or columns there are."""
    kind = kind_of(y)
    if kind == "numbers":
        _check_columns(where, y, classes)
    elif kind == "tokens":
        _check_tokens(where, y, classes)
    elif kind == "labels":
        _check_labels(where, y, classes)
    elif kind == "number":
        _check_numbers(where, y, classes)
    else:
        _check_classes(where, y, classes)


def _check_labels(where: str, y: Targets, labels: int) -> None:
    if y.dtype != np.uint8 or y.shape[1] != labels or (y.size and y.max() > 1):
        raise FedskewError(
            f"{where}: labels of shape {y.shape} and type {y.dtype}, expected a uint8 matrix of 0 and 1 "
            f"with {labels} columns"
        )


def _check_columns(where: str, y: Targets, columns: int) -> None:
    if y.dtype != np.float32 or y.shape[1] != columns:
        raise FedskewError(
            f"{where}: targets of shape {y.shape} and type {y.dtype}, expected {columns} float32 numbers per row"
        )
    _refuse_not_finite(where, y)


def _check_tokens(where: str, y: Targets, vocabulary: int) -> None:
    wrong = (y < PADDING) | (y >= vocabulary)
    if wrong.any():
        row = int(np.argmax(wrong.any(1)))
        token = int(y[row][wrong[row]][0])
        fix = ""
        if token == _IGNORED:
            fix = f": write np.where(y == {_IGNORED}, {PADDING}, y)"
        raise FedskewError(
            f"{where}: row {row} has the token {token}, expected 0 … {vocabulary - 1}, or {PADDING} where there is "
            f"none{fix}"
        )
    without = (y == PADDING).all(1)
    if without.any():
        raise FedskewError(f"{where}: row {int(np.argmax(without))} has no token: leave it out")


def _check_numbers(where: str, y: Targets, classes: int) -> None:
    if y.dtype != np.float32 or y.ndim != 1:
        raise FedskewError(
            f"{where}: targets of shape {y.shape} and type {y.dtype}, expected one float32 number per row"
        )
    if classes:
        raise FedskewError(
            f"{where}: the targets are numbers, and {classes} classes are named: leave the names out"
        )
    _refuse_not_finite(where, y[:, None])


def _refuse_not_finite(where: str, y: Targets) -> None:
    finite = np.isfinite(y)
    if not finite.all():
        bad = int(np.argmin(finite.all(1)))
        value = y[bad][~finite[bad]][0]
        raise FedskewError(
            f"{where}: the target of row {bad} is {value}, not a number that float32 can hold"
        )


def _check_classes(where: str, y: Targets, classes: int) -> None:
    if y.dtype != np.int64:
        raise FedskewError(f"{where}: labels of type {y.dtype}, expected int64")
    if len(y) and not 0 <= y.min() <= y.max() < classes:
        raise FedskewError(
            f"{where}: labels from {y.min()} to {y.max()}, expected 0 … {classes - 1}"
        )
