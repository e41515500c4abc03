"""Features that stay in a Parquet file, columns of numbers or one column of lists: row groups are read when used."""

from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import FedskewError
from fedskew.core.files import OpenFile, reading
from fedskew.core.streams import Ints
from fedskew.data.cells import need_column
from fedskew.data.stored_rows import MOST_WHOLE

if TYPE_CHECKING:
    from fedskew.data.cells import Frame

KEPT = 256 << 20  # bytes of decoded row groups that are kept
_LEVEL = "__index_level_"  # begins the name of an index without one, as pandas stores it


class ParquetRows:
    """The features of a Parquet file, of which whole row groups are decoded; the last ones used are kept.

    Args:
        path: the file
        columns: its columns of numbers that are features, or its one column of lists
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path = path
        self.titles = tuple(columns)
        self._opened = OpenFile.at(path)
        self._file = open_parquet(path)
        self._kept: OrderedDict[int, NDArray[Any]] = OrderedDict()
        self._turn = Lock()
        metadata = self._file.metadata
        sizes = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        if not sum(sizes):
            raise FedskewError(f"{path} has no rows")
        self._ends = np.cumsum(sizes)
        types: list[Any] = []
        for column in self.titles:
            need_column(str(path), column, self._file.schema_arrow.names)
            field = self._file.schema_arrow.field(column)
            _need_numbers(path, field)
            types.append(number_type(field.type))
            self.of_lists = is_list(field.type)
        self.dtype = np.result_type(*types)
        self._sides: tuple[int, ...] = (len(self.titles),)
        if self.of_lists:
            self._sides = self._sides_of_first()
        self.shape = (int(self._ends[-1]), *self._sides)
        self._refuse_large_groups(sizes)
        self._refuse_known_gaps()

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, index: Ints) -> NDArray[Any]:
        read = np.empty((len(index), *self._sides), dtype=self.dtype)
        group = np.searchsorted(self._ends, index, side="right")
        with self._turn:
            self._opened.refuse_change()
            # Those that are kept first, as the others take their place
            for number in sorted(np.unique(group).tolist(), key=self._is_not_kept):
                places = np.flatnonzero(group == number)
                read[places] = self._group(number)[index[places] - self._first(number)]
        return read

    def _is_not_kept(self, number: int) -> bool:
        return number not in self._kept

    def _first(self, number: int) -> int:
        """Return the first row of a row group."""
        if not number:
            return 0
        return int(self._ends[number - 1])

    def _group(self, number: int) -> NDArray[Any]:
        """Return the rows of a row group, decoded."""
        if number not in self._kept:
            self._kept[number] = self._decoded(number)
        self._kept.move_to_end(number)
        while len(self._kept) > 1 and sum(rows.nbytes for rows in self._kept.values()) > KEPT:
            self._kept.popitem(last=False)
        return self._kept[number]

    def _decoded(self, number: int) -> NDArray[Any]:
        last = int(self._ends[number]) - 1
        with _decoding(self.path, f"rows {self._first(number)} to {last}"):
            table = self._file.read_row_group(number, columns=list(self.titles))
        if self.of_lists:
            return self._lists(number, table.column(self.titles[0]))
        rows = np.empty((len(table), len(self.titles)), dtype=self.dtype)
        for place, column in enumerate(self.titles):
            cells = table.column(column)
            if cells.null_count:
                self._refuse_gap(number, column, np.asarray(cells.is_null()))
            rows[:, place] = cells.to_numpy()
        return rows

    def _lists(self, number: int, column: Any) -> NDArray[Any]:
        """Return a column of lists as an array; each row has the shape of the first one of the file."""
        cells = _one_array(column)
        rows = len(cells)
        for depth, side in enumerate(self._sides):
            each = max(1, len(cells) // max(1, rows))
            if cells.null_count:
                self._refuse_gap(number, self.titles[0], np.asarray(cells.is_null()), each)
            lengths = _lengths(cells)
            other = np.flatnonzero(lengths != side)
            if len(other):
                row = self._first(number) + int(other[0]) // each
                raise FedskewError(
                    f"{self.path}: column {self.titles[0]!r} has {lengths[other[0]]} values in row {row} (axis "
                    f"{depth + 1}), and {side} in row 0: make all lists equally long, or pad them"
                )
            cells = cells.flatten()
        if cells.null_count:
            each = len(cells) // max(1, rows)
            self._refuse_gap(number, self.titles[0], np.asarray(cells.is_null()), each)
        values: NDArray[Any] = cells.to_numpy(zero_copy_only=False)
        return values.astype(self.dtype, copy=False).reshape(rows, *self._sides)

    def _sides_of_first(self) -> tuple[int, ...]:
        """Return the shape of the first row of a column of lists."""
        with _decoding(self.path, "the first row"):
            first = next(self._file.iter_batches(1, columns=list(self.titles)))
        cells = _plain(first.column(0))
        sides: list[int] = []
        while is_list(cells.type):
            if cells.null_count:
                self._refuse_gap(0, self.titles[0], np.ones(1, dtype=np.bool_))
            sides.append(int(_lengths(cells)[0]))
            if not sides[-1]:
                raise FedskewError(f"{self.path}: column {self.titles[0]!r} is empty in row 0")
            cells = cells.flatten()
        return tuple(sides)

    def _refuse_gap(
        self, number: int, column: str, missing: NDArray[np.bool_], each: int = 1
    ) -> None:
        """Raise an error for a row without a value; it has ``each`` of the cells."""
        row = self._first(number) + int(np.argmax(missing)) // each
        fix = "fill it in the file"
        if not self.of_lists:
            fix += ", or load the file without lazy=true, which fills columns of numbers"
        raise FedskewError(f"{self.path}: column {column!r} has no value in row {row}: {fix}")

    def _refuse_large_groups(self, sizes: Sequence[int]) -> None:
        """Raise an error for a row group that does not fit into memory."""
        for number, rows in enumerate(sizes):
            taken = rows * int(np.prod(self._sides)) * self.dtype.itemsize
            if taken > MOST_WHOLE:
                raise FedskewError(
                    f"{self.path}: row group {number} has {rows:,} rows, which take {taken / 2**30:.1f} GB (at most "
                    f"{MOST_WHOLE / 2**30:g}): write the file with smaller ones, such as "
                    "frame.to_parquet(path, row_group_size=10_000)"
                )

    def _refuse_known_gaps(self) -> None:
        """Raise an error for a missing number that the file tells of before its rows are read."""
        metadata = self._file.metadata
        places = []
        for place in range(metadata.num_columns):
            if metadata.schema.column(place).path in self.titles:
                places.append(place)
        for number in range(metadata.num_row_groups):
            for place in places:
                known = metadata.row_group(number).column(place).statistics
                if known is not None and known.null_count:
                    self._decoded(number)


def open_parquet(path: Path) -> Any:
    """Return an open Parquet file; its pages are checked where it has checksums of them."""
    try:
        from pyarrow import parquet
    except ImportError:
        raise FedskewError("Parquet files need pyarrow: pip install 'fedskew[parquet]'") from None
    with reading(path), path.open("rb") as file:
        if file.read(4) != b"PAR1":
            raise FedskewError(f"{path} is not a Parquet file, which lazy=true needs: convert it")
    with _decoding(path, "its description"):
        opened = parquet.ParquetFile(path, page_checksum_verification=True)
    names = opened.schema_arrow.names
    for name in names:
        if names.count(name) > 1:
            raise FedskewError(f"{path}: column {name!r} is there twice: rename one or take it out")
    return opened


def columns_at_once(path: Path, columns: Sequence[str]) -> "Frame":
    """Return some columns of a Parquet file: those of labels and groups."""
    file = open_parquet(path)
    for column in columns:
        need_column(str(path), column, file.schema_arrow.names)
    with _decoding(path, ", ".join(columns)):
        frame: Frame = file.read(list(columns)).to_pandas(ignore_metadata=True)
    return frame


def feature_columns(path: Path, others: Collection[str | None]) -> tuple[str, ...]:
    """Return the columns of a file that are features, all but the ``others``: those of numbers, or one of lists."""
    found = []
    lists = []
    for field in _others(path, others):
        _need_numbers(path, field)
        found.append(field.name)
        if is_list(field.type):
            lists.append(field.name)
    if not found:
        raise FedskewError(f"{path}: no feature column is left beside the label and the group")
    if lists and len(found) > 1:
        raise FedskewError(
            f"{path}: features are columns of numbers or one column of lists, and {lists[0]!r} holds lists beside "
            f"{len(found) - 1} more: leave some out (drop=)"
        )
    return tuple(found)


def _others(path: Path, named: Collection[str | None]) -> Iterator[Any]:
    """Yield the columns of a file that are not among those named, nor an index of pandas without a name."""
    schema = open_parquet(path).schema_arrow
    for column in named:
        if column is not None:
            need_column(str(path), column, schema.names)
    index = (schema.pandas_metadata or {}).get("index_columns", ())
    for field in schema:
        is_index = field.name in index and field.name.startswith(_LEVEL)
        if field.name not in named and not is_index:
            yield field


def _need_numbers(path: Path, field: Any) -> None:
    """Raise an error for a column that is no feature as it is stored."""
    if number_type(field.type) is None:
        raise FedskewError(
            f"{path}: column {field.name!r} holds {field.type}, no floats or whole numbers: convert it in the file "
            f"(astype(float)), leave it out of the features (drop={field.name}), or load the file without lazy=true"
        )


def only_list_column(path: Path) -> str:
    """Return the one column of a file that holds lists of numbers."""
    found = []
    for field in open_parquet(path).schema_arrow:
        if is_list(field.type) and number_type(field.type) is not None:
            found.append(field.name)
    if len(found) != 1:
        raise FedskewError(
            f"{path} has {len(found)} columns of lists of numbers, and the model was trained on one: give a file "
            "with one, or an array"
        )
    return str(found[0])


def number_type(kind: Any) -> np.dtype[Any] | None:
    """Return the type of the numbers in a column, or in its lists; None where it holds something else."""
    from pyarrow import types

    kind = _storage(kind)
    while is_list(kind):
        kind = _storage(kind.value_type)
    if types.is_boolean(kind):
        return np.dtype(np.int8)  # uint8 would be pixels
    if types.is_integer(kind) or types.is_floating(kind):
        numbers: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
        return numbers
    return None


def is_list(kind: Any) -> bool:
    """Return whether a column holds lists."""
    from pyarrow import types

    kind = _storage(kind)
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _storage(kind: Any) -> Any:
    """Return how a type is stored that another library has defined, such as the images of Hugging Face."""
    return getattr(kind, "storage_type", kind)


def _plain(cells: Any) -> Any:
    return getattr(cells, "storage", cells)


def _one_array(column: Any) -> Any:
    """Return the chunks of a column as one array."""
    cells = column.combine_chunks()
    if hasattr(cells, "chunks"):
        (cells,) = cells.chunks
    return _plain(cells)


def _lengths(cells: Any) -> Ints:
    """Return how long each list is."""
    from pyarrow import compute

    return np.asarray(compute.list_value_length(cells), dtype=np.int64)


@contextmanager
def _decoding(path: Path, what: str) -> Iterator[None]:
    """Turn what goes wrong while a part of a file is decoded into an error that names it."""
    import pyarrow

    try:
        with reading(path):
            yield
    except FedskewError as problem:
        cause = problem.__cause__
        if not isinstance(cause, (pyarrow.ArrowException, OSError)):
            raise
        raise FedskewError(
            f"{path} is not a Parquet file or damaged: {what} cannot be read ({cause}): get it again"
        ) from None
