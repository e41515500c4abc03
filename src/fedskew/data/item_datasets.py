"""Map-style data sets, which give rows one by one (PyTorch's ``Dataset``): collected into arrays by their length."""

from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedskew.core.errors import FedskewError

# Which have an end
_SEQUENCES = (list, tuple, str, bytes, bytearray, range, deque, array, memoryview, Mapping)


def gives_items(value: Any) -> bool:
    """Return whether an object gives its rows one by one, and is no array or collection."""
    if hasattr(value, "__array__") or hasattr(value, "columns") or isinstance(value, _SEQUENCES):
        return False
    return hasattr(value, "__getitem__")


def datasets_of_clients(data: Any) -> dict[str | int, Any] | None:
    """Return the data set of every client by its name, or its place in a list of nothing else; None for other data."""
    named: dict[str | int, Any] = {}
    if isinstance(data, Mapping):
        for client, one in data.items():
            named[str(client)] = one
    elif isinstance(data, (list, tuple)):
        named.update(enumerate(data))
    if not named or not all(map(gives_items, named.values())):
        return None
    return named


def collected(name: str, data: Any) -> tuple[Any, Any]:
    """Return features and labels of a data set, row by row up to its length.

    >>> x, y = collected("mine", _Pairs([([0.5], 1), ([1.5], 0)]))
    >>> x.tolist(), y
    ([[0.5], [1.5]], [1, 0])
    """
    try:
        rows = len(data)
    except (TypeError, NotImplementedError):
        raise FedskewError(
            f"{name}: {type(data).__name__} has no length, so that its rows may have no end: give it __len__, or "
            "collect its rows into arrays"
        ) from None
    if not rows:
        raise FedskewError(f"{name}: {type(data).__name__} has no rows")
    features: list[Any] = []
    labels: list[Any] = []
    for row in range(rows):
        x, label = _pair(name, row, data[row])
        if features and x.shape != features[0].shape:
            raise FedskewError(
                f"{name}: item {row} has features of shape {x.shape}, and item 0 of shape {features[0].shape}: make "
                "them equal"
            )
        features.append(x)
        labels.append(label)
    return np.stack(features), labels


def of_clients(name: str, clients: Mapping[str | int, Any]) -> tuple[Any, Any, Any]:
    """Return features, labels and the client of every row of several data sets."""
    features: list[Any] = []
    labels: list[Any] = []
    groups: list[str | int] = []
    for client, data in clients.items():
        x, y = collected(f"{name}: {client}", data)
        if features and x.shape[1:] != features[0].shape[1:]:
            raise FedskewError(
                f"{name}: {client} has rows of shape {x.shape[1:]}, and {groups[0]} of shape {features[0].shape[1:]}"
            )
        features.append(x)
        labels += y
        groups += [client] * len(x)
    return np.concatenate(features), labels, groups


def _pair(name: str, row: int, item: Any) -> tuple[Any, Any]:
    """Return the features of an item as an array, and its label as a plain value."""
    if not isinstance(item, Sequence) or isinstance(item, str) or len(item) != 2:
        raise FedskewError(
            f"{name}: item {row} is a {type(item).__name__}, expected a pair of features and label"
        )
    features, label = item
    x = np.asarray(features)
    if x.dtype.kind not in "biuf":
        raise FedskewError(
            f"{name}: the features of item {row} are {type(features).__name__}, not numbers: give the data set a "
            "transform that makes tensors"
        )
    if hasattr(label, "item"):
        label = label.item()
    return np.atleast_1d(x), label


class _Pairs:
    """A data set for the example."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> Any:
        return self.rows[row]
