"""Features that stay as they are stored (bytes, half precision, a file) until rows of them are used."""

import math
import mmap
import operator
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedskew.core.errors import FedskewError
from fedskew.core.files import OpenFile
from fedskew.core.streams import Ints, Stream
from fedskew.data.schema import Features, Scaling

MOST_WHOLE = 1 << 30  # bytes of float32 that all rows may take where a step needs them together
_SAMPLED = 256  # rows of a fingerprint
_PAGES_KEPT = 32 << 20  # bytes of a file that are read before its pages are let go
_HALVES = np.dtype(np.float16)
_BYTES = np.dtype(np.uint8)


class Source(Protocol):
    """What rows are read from: an array, a memory-mapped file, or any object with these four."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape, rows first."""

    @property
    def dtype(self) -> Any:
        """Return the type of the numbers, as NumPy has it."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def __getitem__(self, index: Ints) -> NDArray[Any]:
        """Return the rows at these positions, in this order."""


class MappedRows:
    """A memory-mapped array; the pages of its file are let go again and again, so that they do not fill the memory.

    A page that is no longer in the file would end the process, so the file is looked at before every reading.
    """

    def __init__(self, array: "np.memmap[Any, Any]") -> None:
        self.shape = array.shape
        self.dtype = array.dtype
        self._array = np.asarray(array)
        self._file = _file_of(array)
        self._opened = _opened(array)
        self._read = 0

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, index: Ints) -> NDArray[Any]:
        if self._opened is not None:
            self._opened.refuse_change()
        rows = self._array[index]
        self._read += rows.nbytes
        if self._file is not None and self._read > _PAGES_KEPT:
            self._file.madvise(mmap.MADV_DONTNEED)
            self._read = 0
        return rows


class InTurn:
    """A source of the user's, which is asked by one thread at a time: the clients of a round may train in several."""

    def __init__(self, source: Source) -> None:
        self.shape = tuple(source.shape)
        self.dtype = source.dtype
        self._source = source
        self._turn = Lock()

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: Ints) -> NDArray[Any]:
        with self._turn:
            return self._source[index]


def _file_of(array: "np.memmap[Any, Any]") -> mmap.mmap | None:
    """Return the file of an array, where its pages may be let go: one that is only read, on a system that can."""
    holder = _map_of(array)
    if array.mode != "r" or not hasattr(mmap, "MADV_DONTNEED"):
        return None
    return holder


def _map_of(array: "np.memmap[Any, Any]") -> mmap.mmap | None:
    """Return the map of a file in which an array, or the one that it is a part of, lies."""
    holder: Any = array
    while isinstance(holder, np.ndarray):
        holder = holder.base
    if isinstance(holder, mmap.mmap):
        return holder
    return None


def _opened(array: "np.memmap[Any, Any]") -> OpenFile | None:
    """Return the file of an array as it is now, unless it has no name or the user may write to it.

    A file that is shorter than it was when it was mapped is an error.
    """
    held = _map_of(array)
    if held is None or array.filename is None or array.mode not in ("r", "c"):
        return None
    path = Path(array.filename)
    if not path.exists():
        return None
    opened = OpenFile.at(path)
    if opened.size < len(held):
        raise FedskewError(
            f"{path} has {opened.size:,} bytes, and had {len(held):,} when it was opened: load it again"
        )
    return opened


@dataclass(frozen=True, eq=False)
class StoredRows:
    """Rows of a source, which are features (float32) where they are read; nothing is read before.

    Args:
        source: what rows are read from
        name: of the data, for errors
        chosen: which rows of the source these are; None for all
        scaling: how they become features; None where they are features as they are
    """

    source: Source
    name: str
    chosen: Ints | None = None
    scaling: Scaling | None = None

    def __len__(self) -> int:
        if self.chosen is None:
            return len(self.source)
        return len(self.chosen)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the features, rows first."""
        return (len(self), *self.source.shape[1:])

    @property
    def ndim(self) -> int:
        """Return how many axes the features have, with that of the rows."""
        return len(self.source.shape)

    @property
    def dtype(self) -> np.dtype[np.float32]:
        """Return the type of the features."""
        return np.dtype(np.float32)

    @property
    def stored(self) -> np.dtype[Any]:
        """Return the type of the numbers in the source."""
        dtype: np.dtype[Any] = np.dtype(self.source.dtype)
        return dtype

    @property
    def in_memory(self) -> bool:
        """Return whether the source is an array in memory, whose values were checked."""
        return isinstance(self.source, np.ndarray)

    @property
    def nbytes(self) -> int:
        """Return the memory that the rows take."""
        if self.in_memory:
            return math.prod(self.shape) * self.stored.itemsize
        if self.chosen is None:
            return 0
        return self.chosen.nbytes

    def take(self, index: Ints) -> "StoredRows":
        """Return the rows at these positions; rows that are not in memory stay where they are."""
        if self.in_memory:
            return replace(self, source=self.source[index])
        return replace(self, chosen=self._numbers(index))

    def __getitem__(self, index: Any) -> Features:
        if isinstance(index, (int, np.integer)):
            one: Features = self[np.array([index])][0]
            return one
        if isinstance(index, slice):
            index = np.arange(*index.indices(len(self)))
        return self.encoded(self.raw(index))

    def __array__(self, dtype: "DTypeLike | None" = None, copy: bool | None = None) -> NDArray[Any]:
        return whole(self, f"{self.name}: a step").astype(dtype or np.float32, copy=False)

    def raw(self, index: Ints) -> NDArray[Any]:
        """Return rows as they are stored; a row of another shape, or with NaN, is an error that names it.

        A source is asked for each row once, in the order of their numbers.
        """
        numbers = self._numbers(index)
        if not len(numbers):
            return np.empty((0, *self.source.shape[1:]), dtype=self.stored.newbyteorder("="))
        if self.in_memory or (numbers[1:] > numbers[:-1]).all():
            return self._read(numbers)
        once, places = np.unique(numbers, return_inverse=True)
        return self._read(once)[places]

    def _read(self, numbers: Ints) -> NDArray[Any]:
        """Return the rows of the source with these numbers, and check them."""
        read = self._array_of(numbers, self.source[numbers])
        if read.shape != (len(numbers), *self.source.shape[1:]):
            raise FedskewError(
                f"{self.name}: {len(numbers)} rows from row {numbers[0]} on were read with shape {read.shape}, "
                f"expected {(len(numbers), *self.source.shape[1:])}: correct __getitem__ or shape"
            )
        is_other = (read.dtype == _BYTES) != (self.stored == _BYTES)  # bytes may be pixels
        if read.dtype.kind not in "biuf" or is_other:
            raise FedskewError(
                f"{self.name}: row {numbers[0]} was read as {read.dtype}, expected {self.stored}"
            )
        if not self.in_memory and read.dtype.kind == "f":
            self._check_numbers(numbers, read)
        # PyTorch has no numbers of another machine's byte order
        return read.astype(read.dtype.newbyteorder("="), copy=False)

    def _array_of(self, numbers: Ints, given: Any) -> NDArray[Any]:
        """Return rows that a source gave as an array; an error names the first of another shape."""
        try:
            read = np.asarray(given)
        except ValueError:
            read = np.empty(0, dtype=object)
        if read.dtype != np.object_:
            return read
        for number, row in zip(numbers.tolist(), given, strict=False):
            if _shape_of(row) != self.source.shape[1:]:
                raise FedskewError(
                    f"{self.name}: row {number} was read with shape {_shape_of(row)}, expected "
                    f"{self.source.shape[1:]}: make all rows equal, or correct __getitem__"
                )
        return read

    def _check_numbers(self, numbers: Ints, read: NDArray[Any]) -> None:
        """Raise an error for NaN, infinity and what float32 cannot hold."""
        with np.errstate(over="ignore"):
            features = read.astype(np.float32, copy=False)
        good = np.isfinite(features).reshape(len(read), -1).all(axis=1)
        if good.all():
            return
        place = int(np.argmin(good))
        what = "NaN or infinity"
        if np.isfinite(read[place]).all():
            what = "a number beyond the range of float32 (3.4e38)"
        raise FedskewError(f"{self.name}: row {numbers[place]} holds {what}: clean it")

    def sample(self, most: int) -> NDArray[Any]:
        """Return at most so many rows as they are stored: one of each of as many stretches, drawn at random.

        Rows at even steps would miss half of what alternates.
        """
        rows = len(self)
        count = min(rows, most)
        chosen: Ints = np.arange(count)
        if count < rows:
            drawn = chosen + Stream(0, "sample").uniform(count)
            chosen = (drawn * (rows / count)).astype(np.int64)
        return self.raw(chosen)

    def fingerprint(self) -> bytes:
        """Return bytes that tell these rows from others by shape, type, scaling and a few hundred rows."""
        facts = repr((self.shape, self.stored.str, self.scaling))
        values = np.ascontiguousarray(self.raw(_at_even_steps(len(self), _SAMPLED)))
        return facts.encode() + values.tobytes()

    def _numbers(self, index: Ints) -> Ints:
        """Return the numbers of rows in the source."""
        index = np.asarray(index)
        if index.dtype == np.bool_:
            index = np.flatnonzero(index)
        if self.chosen is None:
            return index
        numbers: Ints = self.chosen[index]
        return numbers

    def encoded(self, read: NDArray[Any]) -> Features:
        """Return rows that were read as features."""
        if self.scaling is None:
            return read.astype(np.float32)
        return self.scaling.encode(read)


AnyRows: TypeAlias = Features | StoredRows


def whole(x: AnyRows, what: str) -> Features:
    """Return all features in memory; an error where they are read from elsewhere and take too much of it.

    ``what`` needs them together, such as "skew wgc".
    """
    if not isinstance(x, StoredRows):
        return x
    size = 4 * math.prod(x.shape)
    if size > MOST_WHOLE:
        raise FedskewError(
            f"{what} needs all features in memory, and {len(x):,} rows of shape {x.shape[1:]} take "
            f"{size / 2**30:.1f} GB there (at most {MOST_WHOLE / 2**30:g}): give fewer rows, such as x[:10_000], or "
            "take a skew by labels or sizes"
        )
    return x[:]


def taken(x: AnyRows, index: Ints) -> AnyRows:
    """Return the features at these positions; of stored rows none is read."""
    if isinstance(x, StoredRows):
        return x.take(index)
    return x[index]


def is_source(x: Any) -> bool:
    """Return whether rows are to be read when they are used: a memory-mapped file, or an object like an array."""
    if isinstance(x, np.memmap):
        return True
    if hasattr(x, "__array__") or hasattr(x, "detach") or hasattr(x, "columns"):
        return False
    return all(hasattr(x, name) for name in ("shape", "dtype", "__len__", "__getitem__"))


def stored(name: str, x: Source) -> StoredRows:
    """Return the rows of a source; an error for what cannot be features."""
    try:
        kind = np.dtype(x.dtype).kind
        sides = [operator.index(side) for side in x.shape]
    except TypeError as problem:
        raise FedskewError(
            f"{name}: x has the dtype {x.dtype} and the shape {x.shape}, expected a type of NumPy and whole numbers: "
            f"{problem}"
        ) from None
    if kind not in "biuf":
        raise FedskewError(f"{name}: x holds {x.dtype} values, not numbers")
    if len(sides) < 2:
        raise FedskewError(
            f"{name}: x of shape {x.shape} has no features; use shape (rows, 1) for a single feature"
        )
    if not math.prod(sides):
        raise FedskewError(f"{name}: x of shape {x.shape} is empty")
    if len(x) != sides[0]:
        raise FedskewError(f"{name}: x of shape {x.shape} has {len(x)} rows: correct its shape")
    if isinstance(x, np.memmap):
        return StoredRows(MappedRows(x), name)
    return StoredRows(InTurn(x), name)


def stays_as_it_is(x: NDArray[Any]) -> bool:
    """Return whether an array in memory is kept as it is: images of bytes, and numbers of half precision."""
    return x.dtype == _HALVES or are_pixels(x)


def are_pixels(x: "NDArray[Any] | StoredRows") -> bool:
    """Return whether rows are images of bytes (uint8, at least two axes a row), whose 255 becomes 1."""
    dtype: np.dtype[Any] = x.dtype
    if isinstance(x, StoredRows):
        dtype = x.stored
    return dtype == _BYTES and x.ndim > 2


def _shape_of(row: Any) -> tuple[int, ...] | str:
    """Return the shape of a row, or in words that it has none.

    >>> _shape_of([[1, 2], [3, 4]]), _shape_of([[1, 2], [3]])
    ((2, 2), 'parts of several lengths')
    """
    try:
        shape: tuple[int, ...] = np.shape(row)
    except ValueError:
        return "parts of several lengths"
    return shape


def _at_even_steps(rows: int, most: int) -> Ints:
    return np.unique(np.linspace(0, rows - 1, min(rows, most)).astype(np.int64))
