"""Rows as files store them: lines of text, columns of a Parquet file, arrays, or only row numbers."""

import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import FedskewError
from fedskew.core.files import read_bytes, read_npz, reading
from fedskew.core.streams import Ints
from fedskew.data.dataset import Rows
from fedskew.data.readers.csv_format import CsvFormat, sign_of


class Stored(Protocol):
    """Rows in the format of their file."""

    def __len__(self) -> int: ...

    def write(self, path: Path, rows: Ints) -> None:
        """Write these rows, in this order, as a file of the same format."""


@dataclass(frozen=True)
class Lines:
    """The lines of a CSV file as bytes; a line break inside quotes does not end a row, and empty lines are not rows."""

    header: bytes
    content: bytes
    starts: Ints
    ends: Ints

    @classmethod
    def read(cls, path: Path, written: CsvFormat) -> "Lines":
        """Read a CSV file; what is written in UTF-16 becomes UTF-8."""
        content = read_bytes(path)
        encoding = written.encoding or "utf-8"
        if encoding.startswith("utf-16"):
            with reading(path):
                content = content.decode(encoding).encode()
        if not content.endswith(b"\n"):
            line_end = b"\n"
            if b"\r\n" in content:
                line_end = b"\r\n"
            content += line_end
        text = np.frombuffer(content, dtype=np.uint8)
        ends = np.flatnonzero(text == ord("\n")) + 1
        quotes = np.flatnonzero(text == ord('"'))
        ends = ends[np.searchsorted(quotes, ends) % 2 == 0]
        if not len(ends):
            return cls(b"", content, ends, ends)
        starts = np.concatenate([[0], ends[:-1]])
        not_empty = np.logical_or.reduceat(_visible(sign_of(written).encode())[text], starts)
        starts, ends = starts[not_empty], ends[not_empty]
        header = b""
        if len(ends):
            header = content[starts[0] : ends[0]]
        return cls(header, content, starts[1:], ends[1:])

    @classmethod
    def join(cls, parts: "Sequence[Lines]") -> "Lines":
        """Return the rows of all parts, in their order."""
        starts = []
        ends = []
        before = 0
        for part in parts:
            starts.append(part.starts + before)
            ends.append(part.ends + before)
            before += len(part.content)
        content = b"".join([part.content for part in parts])
        return cls(parts[0].header, content, np.concatenate(starts), np.concatenate(ends))

    def __len__(self) -> int:
        return len(self.starts)

    def write(self, path: Path, rows: Ints) -> None:
        """Write these rows, in this order."""
        lines = [self.header]
        for start, end in zip(self.starts[rows].tolist(), self.ends[rows].tolist(), strict=True):
            lines.append(self.content[start:end])
        content = b"".join(lines)
        if path.suffix == ".gz":
            content = gzip.compress(content, mtime=0)
        path.write_bytes(content)


def _visible(separator: bytes) -> NDArray[np.bool_]:
    """Return which bytes make a line a row: all but white space that separates nothing."""
    visible = np.ones(256, dtype=np.bool_)
    visible[[sign for sign in b" \t\r\n" if sign not in separator]] = False
    return visible


@dataclass(frozen=True)
class Columns:
    """The rows of a Parquet file, with its column types."""

    table: Any

    @classmethod
    def read(cls, path: Path) -> "Columns":
        """Read a Parquet file."""
        import pyarrow
        from pyarrow import parquet

        with reading(path):
            try:
                return cls(parquet.read_table(path))
            except pyarrow.ArrowException as error:
                raise FedskewError(f"{path} is not a Parquet file or damaged: {error}") from None

    @classmethod
    def join(cls, parts: "Sequence[Columns]") -> "Columns":
        """Return the rows of all parts, in their order."""
        import pyarrow

        return cls(pyarrow.concat_tables([part.table for part in parts]))

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def write(self, path: Path, rows: Ints) -> None:
        """Write these rows, in this order."""
        from pyarrow import parquet

        parquet.write_table(self.table.take(rows), path)


@dataclass(frozen=True)
class Stack:
    """Arrays whose first axis is the rows."""

    arrays: Mapping[str, NDArray[Any]]

    @classmethod
    def read(cls, path: Path, ending: str = "") -> "Stack":
        """Read an NPZ file; ``ending`` selects its test arrays."""
        found = read_npz(path)
        arrays = {}
        for name in ("x", "y", "group", "series"):
            if name + ending in found:
                arrays[name] = found[name + ending]
        return cls(arrays)

    @classmethod
    def of(cls, rows: Rows) -> "Stack":
        """Return the arrays of rows in memory."""
        arrays: dict[str, Any] = {"x": np.asarray(rows.x), "y": rows.y}
        if rows.group is not None:
            arrays["group"] = rows.group
        if rows.series is not None:
            arrays["series"] = rows.series
        return cls(arrays)

    @classmethod
    def join(cls, parts: "Sequence[Stack]") -> "Stack":
        """Return the rows of all parts, in their order."""
        joined = {}
        for name in parts[0].arrays:
            joined[name] = np.concatenate([part.arrays[name] for part in parts])
        return cls(joined)

    def __len__(self) -> int:
        return len(self.arrays["y"])

    def rows(self, order: Ints) -> Rows:
        """Return the arrays as rows of a data set."""
        picked = {name: values[order] for name, values in self.arrays.items()}
        return Rows(picked["x"], picked["y"], picked.get("group"), picked.get("series"))

    def write(self, path: Path, rows: Ints) -> None:
        """Write these rows, in this order."""
        picked: dict[str, Any] = {name: values[rows] for name, values in self.arrays.items()}
        with path.open("wb") as file:
            np.savez(file, **picked)


class Numbers:
    """Only the numbers of the rows."""

    def __len__(self) -> int:
        return 0

    def write(self, path: Path, rows: Ints) -> None:
        """Write these row numbers, in this order."""
        np.save(path, rows)
