"""A table of clients as named columns, which reads as a list of rows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from fedskew.core.streams import Ints
from fedskew.fleet.clock import Flags

Row: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """One number a client; where ``known`` is false, there is none. NaN is a number."""

    values: NDArray[Any]
    known: Flags | None = None  # None: there are no gaps

    @classmethod
    def at(cls, places: Ints, values: NDArray[Any], count: int) -> "Column":
        """Return a column of ``count`` entries with values at these places, all different, and gaps elsewhere."""
        if len(places) == count:
            whole = np.empty_like(values)
            whole[places] = values
            return cls(whole)
        whole, known = np.zeros(count, dtype=values.dtype), np.zeros(count, dtype=bool)
        whole[places], known[places] = values, True
        return cls(whole, known)

    def tolist(self) -> list[Any]:
        """Return Python's numbers, and None in gaps."""
        plain: list[Any] = self.values.tolist()
        if self.known is None:
            return plain
        return [value if known else None for value, known in zip(plain, self.known.tolist(), strict=True)]


class ClientTable(Sequence[Row]):
    """The records of a round's clients as ``columns``; as a sequence it has a row for each, made when it is read.

    >>> table = ClientTable({"client": Column(np.array([3, 8])), "loss": Column.at(np.array([0]), np.array([0.5]), 2)})
    >>> table[0], table[1]
    ({'client': 3, 'loss': 0.5}, {'client': 8, 'loss': None})
    """

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self.columns = dict(columns)

    def __len__(self) -> int:
        return len(self.columns["client"].values)

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        return list(self)[index]

    def __iter__(self) -> Iterator[Row]:
        names = tuple(self.columns)
        return (dict(zip(names, values, strict=True)) for values in self.lines())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def lines(self) -> Iterator[tuple[Any, ...]]:
        """Return the values of each client, in the order of the columns."""
        return zip(*(column.tolist() for column in self.columns.values()), strict=True)
