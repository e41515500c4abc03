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
    def read(cls, path: Path, separator: bytes) -> "Lines":
        """Read a CSV file."""
        content = read_bytes(path)
        if not content.endswith(b"\n"):
            if b"\r\n" in content:
                content += b"\r\n"
            else:
                content += b"\n"
        text = np.frombuffer(content, dtype=np.uint8)
        ends = np.flatnonzero(text == ord("\n")) + 1
        ends = ends[np.searchsorted(np.flatnonzero(text == ord('"')), ends) % 2 == 0]
        starts = np.concatenate([[0], ends[:-1]])
        solid = np.ones(256, dtype=np.bool_)
        solid[[sign for sign in b" \t\r\n" if sign not in separator]] = False
        if len(ends):
            kept = np.logical_or.reduceat(solid[text], starts)
        else:
            kept = np.zeros(0, dtype=np.bool_)
        starts = starts[: len(ends)][kept]
        ends = ends[kept]
        if len(ends):
            header = content[starts[0] : ends[0]]
        else:
            header = b""
        return cls(header, content, starts[1:], ends[1:])

    @classmethod
    def join(cls, parts: "Sequence[Lines]") -> "Lines":
        """Return the rows of all parts, in their order."""
        shift = np.cumsum([0, *(len(part.content) for part in parts[:-1])])
        starts, ends = (
            np.concatenate(
                [getattr(part, name) + by for part, by in zip(parts, shift, strict=True)]
            )
            for name in ("starts", "ends")
        )
        return cls(parts[0].header, b"".join(part.content for part in parts), starts, ends)

    def __len__(self) -> int:
        return len(self.starts)

    def write(self, path: Path, rows: Ints) -> None:
        """Write these rows, in this order."""
        places = zip(self.starts[rows].tolist(), self.ends[rows].tolist(), strict=True)
        content = b"".join([self.header, *(self.content[start:end] for start, end in places)])
        path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


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
        names = []
        for name in ("x", "y", "group", "series"):
            if name + ending in found:
                names.append(name)
        return cls({name: found[name + ending] for name in names})

    @classmethod
    def of(cls, rows: Rows) -> "Stack":
        """Return the arrays of rows in memory."""
        named: dict[str, Any] = {
            "x": rows.x,
            "y": rows.y,
            "group": rows.group,
            "series": rows.series,
        }
        return cls({name: values for name, values in named.items() if values is not None})

    @classmethod
    def join(cls, parts: "Sequence[Stack]") -> "Stack":
        """Return the rows of all parts, in their order."""
        return cls(
            {
                name: np.concatenate([part.arrays[name] for part in parts])
                for name in parts[0].arrays
            }
        )

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
