"""Map-style data sets, which give rows one by one: collected into arrays by their length, or read when they are used.

PyTorch's ``Dataset`` is one, and that of Hugging Face, whose columns have names.
"""

from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import FedskewError
from fedskew.core.streams import Ints
from fedskew.data.cells import need_column
from fedskew.data.stored_rows import Source, is_source

# Which have an end
_SEQUENCES = (list, tuple, str, bytes, bytearray, range, deque, array, memoryview, Mapping)

_COMPARED = 10  # items whose labels are compared with those that a data set lists


def gives_items(value: Any) -> bool:
    """Return whether an object gives its rows one by one, and is no array or collection."""
    if hasattr(value, "__array__") or hasattr(value, "columns") or isinstance(value, _SEQUENCES):
        return False
    if is_source(value):
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
    if has_named_columns(data):
        return None
    if not named or not all(map(gives_items, named.values())):
        return None
    return named


def collected(name: str, data: Any) -> tuple[Any, Any]:
    """Return features and labels of a data set, row by row up to its length.

    >>> x, y = collected("mine", _Pairs([([0.5], 1), ([1.5], 0)]))
    >>> x.tolist(), y
    ([[0.5], [1.5]], [1, 0])
    """
    rows = _length(name, data)
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


def of_clients(
    name: str, clients: Mapping[str | int, Any], lazy: bool = False
) -> tuple[Any, Any, Any]:
    """Return features, labels and the client of every row of several data sets; ``lazy`` ones are read when used."""
    features: list[Any] = []
    labels: list[Any] = []
    groups: list[str | int] = []
    for client, data in clients.items():
        if lazy:
            x, y = when_used(f"{name}: {client}", data)
        else:
            x, y = collected(f"{name}: {client}", data)
        if features and x.shape[1:] != features[0].shape[1:]:
            raise FedskewError(
                f"{name}: {client} has rows of shape {x.shape[1:]}, and {groups[0]} of shape {features[0].shape[1:]}"
            )
        features.append(x)
        labels += y
        groups += [client] * len(x)
    if lazy:
        return JoinedSources(features), labels, groups
    return np.concatenate(features), labels, groups


def when_used(name: str, data: Any) -> tuple[Source, list[Any]]:
    """Return the features of a data set, which are read when they are used, and its labels.

    Labels are those in ``targets`` or ``labels``, as torchvision names them, if the labels of some items are the same
    (they are not with a target_transform); else every item is read once for its own.
    """
    rows = _length(name, data)
    for attribute in ("targets", "labels"):
        known: Any = getattr(data, attribute, None)
        if hasattr(known, "__len__") and len(known) == rows:
            labels = np.asarray(known).tolist()
            if _are_labels_of(name, data, labels):
                return ItemSource(name, data), labels
    labels = []
    for row in range(rows):
        labels.append(_pair(name, row, data[row])[1])
    return ItemSource(name, data), labels


def _are_labels_of(name: str, data: Any, labels: Sequence[Any]) -> bool:
    """Return whether some items at even steps have these labels."""
    for row in np.unique(np.linspace(0, len(labels) - 1, _COMPARED).astype(np.int64)).tolist():
        if _pair(name, row, data[row])[1] != labels[row]:
            return False
    return True


def has_named_columns(data: Any) -> bool:
    """Return whether data is a data set of Hugging Face: it has names of columns, and gives columns of rows."""
    return hasattr(data, "column_names") and hasattr(data, "with_format")


def of_columns(name: str, data: Any, label: str | None, group: str | None) -> tuple[Any, ...]:
    """Return features, which are read when they are used, labels and perhaps groups of a data set with named columns.

    Features are the one column that is left, of images or numbers.
    """
    if isinstance(data.column_names, Mapping):
        parts = ", ".join(data.column_names)
        raise FedskewError(f"{name} is several data sets ({parts}): give one of them")
    if label is None:
        raise FedskewError(f"{name}: give label=, the column that holds the class")
    named = [label]
    if group is not None:
        named.append(group)
    left = list(data.column_names)
    for column in named:
        need_column(name, column, data.column_names)
        left.remove(column)
    if len(left) != 1:
        raise FedskewError(
            f"{name}: features are one column, and {', '.join(left) or 'none'} are left: take those that you need by "
            "select_columns([...])"
        )
    _length(name, data)
    columns = data.with_format("numpy", columns=named)[:]
    return ColumnSource(name, data, left[0]), *(columns[column] for column in named)


class ItemSource:
    """The features of a map-style data set, whose items are asked for one by one, by one thread at a time."""

    def __init__(self, name: str, data: Any) -> None:
        self.name = name
        self.data = data
        first, _ = _pair(name, 0, data[0])
        self.shape = (len(data), *first.shape)
        self.dtype = first.dtype
        self._turn = Lock()

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, index: Ints) -> NDArray[Any]:
        read = np.empty((len(index), *self.shape[1:]), dtype=self.dtype)
        with self._turn:
            for place, row in enumerate(index.tolist()):
                x, _ = _pair(self.name, row, self.data[row])
                if x.shape != self.shape[1:]:
                    raise FedskewError(
                        f"{self.name}: item {row} has features of shape {x.shape}, and item 0 of shape "
                        f"{self.shape[1:]}: make them equal"
                    )
                if x.dtype != self.dtype:
                    raise FedskewError(
                        f"{self.name}: item {row} has features of type {x.dtype}, and item 0 of type {self.dtype}: "
                        "give all of them one type"
                    )
                read[place] = x
        return read


class ColumnSource:
    """One column of a data set of Hugging Face, of images or numbers; an image is given channels first."""

    def __init__(self, name: str, data: Any, column: str) -> None:
        self.name = name
        self.column = column
        self._data = data.with_format("numpy", columns=[column])
        self._turn = Lock()
        first = self._of_item(0, self._items(np.array([0]))[0])
        self.shape = (len(data), *first.shape)
        self.dtype = first.dtype

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, index: Ints) -> NDArray[Any]:
        read = np.empty((len(index), *self.shape[1:]), dtype=self.dtype)
        for place, item in enumerate(self._items(index)):
            x = self._of_item(int(index[place]), item)
            if x.shape != self.shape[1:]:
                raise FedskewError(
                    f"{self.name}: row {index[place]} of {self.column} has shape {x.shape}, and row 0 has "
                    f"{self.shape[1:]}: make them equal by map"
                )
            if x.dtype != self.dtype:
                raise FedskewError(
                    f"{self.name}: row {index[place]} of {self.column} has type {x.dtype}, and row 0 has "
                    f"{self.dtype}: give all of them one type by map"
                )
            read[place] = x
        return read

    def _items(self, index: Ints) -> Any:
        with self._turn:
            return self._data[index.tolist()][self.column]

    def _of_item(self, row: int, item: Any) -> NDArray[Any]:
        """Return an item as an array: pixels with their channels first."""
        x = np.asarray(item)
        if x.dtype.kind not in "biuf":
            raise FedskewError(
                f"{self.name}: row {row} of {self.column} holds {x.dtype} values, not numbers: encode them by map"
            )
        if x.dtype == np.uint8 and x.ndim == 2:
            return x[None]
        if x.dtype == np.uint8 and x.ndim == 3 and x.shape[2] in (1, 3, 4):
            return np.moveaxis(x, 2, 0)
        return np.atleast_1d(x)


class JoinedSources:
    """The rows of several sources of one type, one source after the other."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = sources
        self.dtype = sources[0].dtype
        self._ends = np.cumsum([len(source) for source in sources])
        self.shape = (int(self._ends[-1]), *sources[0].shape[1:])
        for source in sources:
            if source.dtype != self.dtype:
                raise FedskewError(
                    f"data sets hold {self.dtype} and {source.dtype}: give all of them one type"
                )

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, index: Ints) -> NDArray[Any]:
        read = np.empty((len(index), *self.shape[1:]), dtype=self.dtype)
        owner = np.searchsorted(self._ends, index, side="right")
        for number in np.unique(owner).tolist():
            places = np.flatnonzero(owner == number)
            first = int(self._ends[number]) - len(self.sources[number])
            read[places] = self.sources[number][index[places] - first]
        return read


def _length(name: str, data: Any) -> int:
    """Return the number of rows of a data set, which must have some."""
    try:
        rows = len(data)
    except (TypeError, NotImplementedError):
        raise FedskewError(
            f"{name}: {type(data).__name__} has no length, so that its rows may have no end: give it __len__, or "
            "collect its rows into arrays"
        ) from None
    if not rows:
        raise FedskewError(f"{name}: {type(data).__name__} has no rows")
    return rows


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
