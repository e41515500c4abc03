"""Data sets from arrays, tensors and data frames in memory."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedskew.core.errors import FedskewError, unknown
from fedskew.core.registry import options_of
from fedskew.core.streams import Ints
from fedskew.data.cells import (
    label_columns,
    label_matrix,
    need_column,
    number_groups,
    number_matrix,
    numbers,
    token_matrix,
)
from fedskew.data.dataset import Dataset, Rows, Split
from fedskew.data.declared_classes import declared, numbered
from fedskew.data.item_datasets import gives_items
from fedskew.data.readers.arrays import Arrays, Numbers, everything
from fedskew.data.readers.csv_format import OPTIONS
from fedskew.data.readers.table import SiloTables, Table
from fedskew.data.stored_rows import (
    StoredRows,
    are_pixels,
    is_source,
    stays_as_it_is,
    stored,
)
from fedskew.data.targets import MATRICES, Target, Targets

if TYPE_CHECKING:
    from fedskew.data.cells import Column

_EXPECTED: dict[Target, str] = {
    "labels": "a row of 0 and 1, one column per label",
    "numbers": "the same count of numbers in every row",
    "tokens": "the same count of tokens in every row, -1 where there is none",
}
_OF_FILES = ("path", "test_path", "lazy", *OPTIONS)  # options of a table in a file


@dataclass(frozen=True)
class Loose:
    """Rows whose labels and groups still have the user's names; ``y`` has one column, or one per label by its name."""

    x: "Numbers | StoredRows"
    y: "Mapping[str, Column]"
    group: "Column | None"
    features: tuple[str, ...]


def from_arrays(
    data: Any,
    *,
    test: Any = None,
    label: str | None = None,
    group: str | None = None,
    test_share: float = 0.2,
    split_seed: int = 0,
    validation: float = 0.0,
    seed: int = 0,
    standardize: bool = False,
    name: str = "arrays",
    target: Target = "class",
    classes: "int | Sequence[str] | None" = None,
) -> Dataset:
    """Return a data set from ``(x, y)``, ``(x, y, group)`` or a data frame with ``label=`` (and perhaps ``group=``).

    The arrays may be NumPy's, PyTorch's or pandas'. The first axis of x is the rows, the second the columns or
    channels. Values are taken as they are unless ``standardize`` asks for mean 0 and deviation 1 over the training
    rows. A memory-mapped x, or any object with ``shape``, ``dtype``, ``__len__`` and ``__getitem__`` (an array of row
    numbers -> these rows), is read when rows of it are used. Images of bytes (uint8) and half precision stay as they
    are in memory; of bytes, 255 becomes 1 where they are used.

    Args:
        data: the rows
        test: the test rows in the same form; None: a share of the rows is held out, in proportion within every class
        label: the column of a data frame that holds the class or the number, or several columns of labels, a+b+c
        group: the column of a data frame with the group of a row
        test_share: the share that is held out when there are no test rows
        split_seed: seed of that split
        validation: share of the training rows to hold out for validation
        seed: seed of that choice
        standardize: bring every column or channel to mean 0 and deviation 1; fitted to a sample of rows that are read
            when they are used
        name: its name in reports
        target: what y holds: a class, a number to predict, (labels) a row of 0 and 1, one column per label, (numbers)
            several numbers, or (tokens) a token at each place, -1 where there is none
        classes: how many classes there are, 0 … K-1, or their names, where some may have no row; by default those
            with rows; of tokens, the vocabulary, by default up to the largest

    >>> rows = from_arrays(([[0.0], [1.0], [2.0], [3.0]], ["cat", "dog", "cat", "dog"]), test_share=0.5)
    >>> rows.classes, len(rows.train), len(rows.test)
    (('cat', 'dog'), 2, 2)
    """
    tested = None
    if test is not None:
        tested = _unpack(name, test, label, group, target)
    raw = arrays_of(
        name,
        _unpack(name, data, label, group, target),
        tested,
        Split("test", test_share, split_seed),
        standardize=standardize,
        target=target,
        classes=classes,
    )
    held_out = None
    if validation:
        held_out = Split("validation", validation, seed)
    return raw.build(name, held_out)


def arrays_of(
    name: str,
    given: tuple[Any, ...],
    given_test: tuple[Any, ...] | None,
    split: Split,
    *,
    standardize: bool,
    target: Target,
    classes: "int | Sequence[str] | None",
) -> Arrays:
    """Return array data before any split, from features, targets and perhaps groups of each part.

    Features stay as they are stored where ``from_arrays`` says so.
    """
    train = _as_it_is(name, part_from(name, given, target))
    tested = None
    if given_test is not None:
        where = f"{name}: test"
        tested = _as_it_is(where, part_from(where, given_test, target))
        if are_pixels(tested.x) != are_pixels(train.x):
            raise FedskewError(
                f"{name}: only one of the training and the test part has bytes (uint8): give both in one type"
            )
    rows, names, groups = split_parts(name, train, tested, target, classes)
    test_rows: Rows | Split = split
    if tested is not None:
        test_rows = rows[1]
    scaled = None
    full_scale = 1.0
    if standardize:
        scaled = everything(train.x)
    elif are_pixels(train.x):
        full_scale = 255.0
    return Arrays(
        rows[0], test_rows, names, groups, train.features, scaled=scaled, full_scale=full_scale
    )


def _as_it_is(name: str, part: Loose) -> Loose:
    """Return rows whose features stay as they are stored: images of bytes, and half precision."""
    if isinstance(part.x, StoredRows) or not stays_as_it_is(part.x):
        return part
    return replace(part, x=StoredRows(part.x, name))


def from_frames(data: Any, validation: Split | None, options: Mapping[str, Any]) -> Dataset:
    """Return a data set from a data frame with columns of any kind, or from one of each client by its name.

    ``options`` are those of a CSV file: label, group, drop, categorical, test, ...
    """
    given = _frame_options(options)
    drop = given.pop("drop")
    split = Split("test", given.pop("test"), given.pop("split_seed"))
    several = isinstance(data, Mapping)
    if several and given["group"] is not None:
        raise FedskewError(
            f"group={given['group']}: every data frame is a client already: leave it out"
        )
    frames = _frames_by_client(data)
    every: dict[str, None] = {}
    for frame in frames.values():
        every |= dict.fromkeys(frame.columns)
    for column in drop:
        need_column("the data frame", column, every)
    tables = {}
    for client, frame in frames.items():
        dropped = [column for column in drop if column in frame.columns]
        tables[client] = Table(train=frame.drop(columns=dropped), test=split, **given)
    if several:
        return SiloTables(tables).build("data frames", validation)
    return tables[""].build("data frame", validation)


def _frame_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options of a data frame: what the user gave, checked, and the defaults."""
    from fedskew.data.readers.user_files import table

    known = dict(options_of(table))
    for name in _OF_FILES:
        del known[name]
    for name in options:
        if name not in known:
            raise unknown("option of a data frame", name, known)
    if options.get("label") is None:
        raise FedskewError("a data frame needs label=, the column that holds the class")
    given = {name: option.default for name, option in known.items()}
    for name, value in options.items():
        given[name] = known[name].convert(value, "load")
    return given


def _frames_by_client(data: Any) -> dict[str, Any]:
    """Return the data frame of each client by its name; one that is given alone has an empty name."""
    if not isinstance(data, Mapping):
        return {"": _named(data)}
    frames = {str(client): _named(frame) for client, frame in data.items()}
    if not frames:
        raise FedskewError("no data frame is given: load({'a': frame, ...}, label=...)")
    if "" in frames or len(frames) < len(data):
        raise FedskewError(
            f"clients {', '.join(map(repr, data))}: give each a name of its own, as text"
        )
    return frames


def _named(frame: Any) -> Any:
    """Return a data frame with text as names of its columns, each there once, and rows numbered from 0."""
    if not hasattr(frame, "columns"):
        raise FedskewError(f"expected a data frame of each client, got {type(frame).__name__}")
    names = [str(column) for column in frame.columns]
    for name in names:
        if names.count(name) > 1:
            raise FedskewError(f"column {name!r} is there twice: rename one or take it out")
    return frame.set_axis(names, axis=1).reset_index(drop=True)


def _unpack(
    name: str, data: Any, label: str | None, group: str | None, target: Target
) -> tuple[Any, ...]:
    if hasattr(data, "columns"):
        return _unpack_frame(name, data, label, group, target)
    if label is not None or group is not None:
        raise FedskewError(
            f"{name}: label= and group= name columns of a data frame; give arrays as (x, y, group)"
        )
    if not isinstance(data, (tuple, list)) or len(data) not in (2, 3):
        raise FedskewError(
            f"{name}: expected (x, y), (x, y, group) or a data frame with label=, got {type(data).__name__}"
        )
    return tuple(data)


def _unpack_frame(
    name: str, frame: Any, label: str | None, group: str | None, target: Target
) -> tuple[Any, ...]:
    if label is None:
        raise FedskewError(f"{name}: a data frame needs label=, the column that holds the class")
    labels = list(label_columns(label, target))
    for column in labels:
        need_column(name, column, frame.columns)
    x = frame.drop(columns=labels)
    if target in MATRICES:
        y = frame[labels]
    else:
        y = frame[label]
    if group is None:
        return x, y
    need_column(name, group, x.columns)
    return x.drop(columns=[group]), y, frame[group]


def part_from(name: str, parts: tuple[Any, ...], target: Target = "class") -> Loose:
    """Check the rows that a user gave: numbers without gaps, as many targets (and groups) as rows."""
    for part in parts:
        if not is_source(part):
            _refuse_datasets(name, part)
    features: tuple[str, ...] = ()
    if hasattr(parts[0], "columns"):
        features = tuple(map(str, parts[0].columns))
    x: Numbers | StoredRows
    if is_source(parts[0]):
        x = stored(name, parts[0])
    else:
        x = _features(name, parts[0])
    y = _columns(name, "labels", parts[1], len(x), target)
    group = None
    if len(parts) > 2:
        group = _columns(name, "groups", parts[2], len(x), "class")["0"]
    return Loose(x, y, group, features)


def _refuse_datasets(name: str, values: Any) -> None:
    """Raise an error for what gives its rows one by one in the place of an array: NumPy might read it without end."""
    suspects = [values]
    if isinstance(values, (list, tuple)):
        suspects.extend(values)
    for one in suspects:
        if gives_items(one):
            raise FedskewError(
                f"{name}: expected arrays, tensors or a data frame, got {type(one).__name__}: give the data set "
                "itself, or one of every client"
            )


def _columns(
    name: str, what: str, values: Any, rows: int, target: Target
) -> "Mapping[str, Column]":
    """One column, or several, of what a user gave; their names are those of a data frame, or numbers."""
    import pandas as pd

    several = target in MATRICES
    array = _array_of_columns(name, what, values, target)
    if len(array) != rows:
        raise FedskewError(f"{name}: {rows} rows of features but {len(array)} {what}")
    if not several:
        return {"0": pd.Series(array)}
    titles = range(array.shape[1])
    if hasattr(values, "columns"):
        titles = values.columns
    columns: dict[str, Column] = {}
    for place, title in enumerate(titles):
        columns[str(title)] = pd.Series(array[:, place])
    return columns


def _array_of_columns(name: str, what: str, values: Any, target: Target) -> Numbers:
    """Return one value per row, or one column for each label, number or token."""
    several = target in MATRICES
    dimensions = 1 + several
    expected = _EXPECTED.get(target, "one number or name a row")
    try:
        array = _plain(values)
    except ValueError:
        raise FedskewError(f"{name}: {what} of different lengths, expected {expected}") from None
    if array.ndim == 2 and array.shape[1] == 1 and not several:
        array = array[:, 0]
    no_column = several and array.ndim == 2 and array.shape[1] == 0
    if array.ndim != dimensions or array.dtype.kind in "cV" or no_column:
        raise FedskewError(
            f"{name}: {what} of shape {array.shape} and type {array.dtype}, expected {expected}"
        )
    return array


def _plain(values: Any) -> Numbers:
    """Return a NumPy array; a tensor is recognised by its methods, so that PyTorch need not be imported."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    if hasattr(values, "to_numpy"):
        values = values.to_numpy()
    elif hasattr(values, "numpy"):
        values = values.numpy()
    array = np.asarray(values)
    # Numbers of another machine's byte order
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _features(name: str, values: Any) -> Numbers:
    if hasattr(values, "columns"):
        for column, kind in zip(values.columns, values.dtypes, strict=True):
            if getattr(kind, "kind", "O") not in "biuf":
                raise FedskewError(
                    f"{name}: column {column!r} is {kind}, not numbers; encode it, or load(frame, label=...) does"
                )
    try:
        x = _plain(values)
    except ValueError:
        raise FedskewError(
            f"{name}: the rows of x have different lengths; make them equal"
        ) from None
    except TypeError as error:  # a tensor type that NumPy does not have
        raise FedskewError(f"{name}: x cannot be read: {error}") from None
    if x.dtype.kind not in "biuf":
        raise FedskewError(
            f"{name}: x holds {x.dtype} values, not numbers; encode text as numbers first"
        )
    if x.ndim < 2:
        raise FedskewError(
            f"{name}: x of shape {x.shape} has no features; use shape (rows, 1) for a single feature"
        )
    if x.size == 0:
        raise FedskewError(f"{name}: x of shape {x.shape} is empty")
    if x.dtype.kind == "b":
        return x.astype(np.int8)  # uint8 would be pixels
    return x


def split_parts(
    name: str,
    train: Loose,
    test: Loose | None,
    target: Target = "class",
    classes: "int | Sequence[str] | None" = None,
) -> tuple[list[Rows], tuple[str, ...], tuple[str, ...]]:
    """Return the parts with numbered labels and groups, and the names of both."""
    parts = [train]
    if test is not None:
        parts.append(test)
    for part in parts:
        if part.x.shape[1:] != train.x.shape[1:]:
            raise FedskewError(
                f"{name}: test rows of shape {part.x.shape[1:]}, training rows of shape {train.x.shape[1:]}"
            )
        if (part.group is None) != (train.group is None):
            raise FedskewError(
                f"{name}: only one of the training and the test part has groups; give both or none"
            )
    labels, names_of_classes = _targets(name, parts, target, classes)
    groups: list[Ints | None] = [None] * len(parts)
    names: tuple[str, ...] = ()
    if train.group is not None:
        columns = [part.group for part in parts if part.group is not None]
        numbered, names = number_groups(name, "group", columns)
        groups = list(numbered)
    rows = []
    for part, y, group in zip(parts, labels, groups, strict=True):
        rows.append(Rows(part.x, y, group))
    return rows, names_of_classes, names


def client_parts(
    name: str, clients: Mapping[str, Loose], target: Target = "class", classes: tuple[str, ...] = ()
) -> tuple[dict[str, Rows], tuple[str, ...]]:
    """Return the rows of every client, with classes numbered alike, and the names of the classes.

    ``classes`` are the names of classes that are numbered already.
    """
    first = next(iter(clients.values()))
    for client, part in clients.items():
        if part.x.shape[1:] != first.x.shape[1:]:
            raise FedskewError(
                f"{name}: {client} has rows of shape {part.x.shape[1:]}, and {next(iter(clients))} has rows of shape "
                f"{first.x.shape[1:]}: give files of one kind"
            )
    labels, names = _targets(name, list(clients.values()), target)
    if classes and target == "class":
        labels = [part.y["0"].to_numpy(dtype=np.int64) for part in clients.values()]
        names = classes
    if classes and target in ("numbers", "tokens"):
        names = classes
    rows = {}
    for (client, part), y in zip(clients.items(), labels, strict=True):
        rows[client] = Rows(part.x, y)
    return rows, names


def _targets(
    name: str,
    parts: list[Loose],
    target: Target,
    classes: "int | Sequence[str] | None" = None,
) -> tuple[list[Targets], tuple[str, ...]]:
    """The targets of the parts, and the names of the classes or labels; numbers have none.

    ``classes`` are those declared.
    """
    if classes is not None and target not in ("class", "tokens"):
        raise FedskewError(f"{name}: classes= is for targets that are classes: leave it out")
    if target in MATRICES:
        return matrices_of(name, parts, target, classes)
    columns = [part.y["0"] for part in parts]
    if target == "number":
        return [numbers(name, "y", column) for column in columns], ()
    labels, names = numbered(name, columns, classes)
    return list(labels), names


_MATRIX_OF: "dict[Target, Callable[[str, Mapping[str, Column]], Targets]]" = {
    "labels": label_matrix,
    "numbers": number_matrix,
    "tokens": token_matrix,
}


def matrices_of(
    name: str, parts: list[Loose], target: Target, classes: "int | Sequence[str] | None" = None
) -> tuple[list[Targets], tuple[str, ...]]:
    """Return the targets of the parts, with several values per row, and the names of labels, numbers or tokens.

    The vocabulary is that declared, or all numbers up to the largest token.
    """
    first = parts[0].y
    matrices = []
    for part in parts:
        if len(part.y) != len(first):
            raise FedskewError(
                f"{name}: y has {len(first)} columns in one part and {len(part.y)} in another: give as many in all"
            )
        matrices.append(_MATRIX_OF[target](name, part.y))
    if target != "tokens":
        return matrices, tuple(first)
    if classes is None:
        largest = np.concatenate(matrices).max(initial=1)
        classes = int(largest) + 1
    return matrices, declared(name, classes)
