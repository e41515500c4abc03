"""Classes that are declared, as some of them may have no row; and rows without a class, which are refused."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedskew.core.errors import FedskewError, unknown
from fedskew.core.streams import Ints
from fedskew.data.cells import number_groups, number_labels

if TYPE_CHECKING:
    from fedskew.data.cells import Column

_NO_CLASS = "-1"  # what rows without a class have in many tools
_MOST = 1_000_000  # classes that a number may declare


def declared(name: str, classes: "int | Sequence[str]") -> tuple[str, ...]:
    """Return the names of declared classes; a number of classes stands for 0 … K-1.

    >>> declared("x", 3), declared("x", ["cat", "dog"])
    (('0', '1', '2'), ('cat', 'dog'))
    """
    if isinstance(classes, int):
        if classes < 2:
            raise FedskewError(
                f"{name}: classes={classes}: at least 2 are needed to tell rows apart"
            )
        if classes > _MOST:
            raise FedskewError(f"{name}: classes={classes}: at most {_MOST:,} can be declared")
        return tuple(map(str, range(classes)))
    if not isinstance(classes, Iterable):
        raise FedskewError(
            f"{name}: classes={classes} is neither a whole number nor a list of names: give one of them"
        )
    names = tuple(map(str, classes))
    if len(names) < 2 or len(set(names)) < len(names):
        raise FedskewError(
            f"{name}: classes={', '.join(names)}: give two or more names, each once, or their number"
        )
    return names


def numbered(
    name: str, columns: "list[Column]", classes: "int | Sequence[str] | None"
) -> tuple[list[Ints], tuple[str, ...]]:
    """Return the labels of the parts as 0 … K-1, and the names of the classes: those declared, or those with rows."""
    if classes is None:
        labels, names = number_labels(name, "y", columns)
        if _NO_CLASS in names and "0" in names:
            raise _unlabelled(name, labels[0], names)
        return list(labels), names
    names = declared(name, classes)
    labels, present = number_groups(name, "y", columns)
    places = []
    for found in present:
        if found == _NO_CLASS and found not in names:
            raise _unlabelled(name, labels[0], present)
        if found not in names:
            raise unknown(f"class in y of {name}", found, names)
        places.append(names.index(found))
    at = np.array(places, dtype=np.int64)
    return [at[own] for own in labels], names


def _unlabelled(name: str, labels: Ints, names: tuple[str, ...]) -> FedskewError:
    """Return the error for rows of the class -1 beside a class 0."""
    rows = np.flatnonzero(labels == names.index(_NO_CLASS))
    where = "the test rows have"
    if len(rows):
        where = f"{len(rows)} rows (first: row {rows[0]}) have"
    return FedskewError(
        f"{name}: {where} the label -1, which says elsewhere that a row has no class: leave these rows out, or give "
        "the classes names, such as np.where(y == -1, 'negative', 'other')"
    )
