"""A table of clients as named columns, which reads as a list of rows."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from fedskew.core.streams import Ints
from fedskew.fleet.clock import Flags

Row: TypeAlias = dict[str, Any]
Numbers: TypeAlias = NDArray[Any]  # one for each client


class Column(NamedTuple):
    """One number a client, or its name; where ``known`` is false, there is none. NaN is a number."""

    values: Numbers
    known: Flags | None = None  # None: there are no gaps

    @classmethod
    def at(cls, places: Ints, values: Numbers, count: int) -> "Column":
        """Return a column of ``count`` entries with values at these places, all different, and gaps elsewhere."""
        if len(places) == count:
            whole = np.empty_like(values)
            whole[places] = values
            return cls(whole)
        whole = np.zeros(count, dtype=values.dtype)
        known = np.zeros(count, dtype=bool)
        whole[places], known[places] = values, True
        return cls(whole, known)

    def tolist(self) -> list[Any]:
        """Return Python's numbers, and None in gaps."""
        return self._with_gaps(self.values.tolist(), None)

    def texts(self) -> list[str]:
        """Return the shortest texts that read back as the same numbers, and empty ones in gaps; names as in CSV."""
        plain = self.values.tolist()
        if self.values.dtype == object:
            return [quoted(name) for name in plain]
        if self.known is not None and not self.known.any():
            return [""] * len(plain)
        # Many columns hold the same number everywhere. 0 is left out, as it equals -0.0, which has another text.
        if plain and plain[0] and plain.count(plain[0]) == len(plain):
            return self._with_gaps([repr(plain[0])] * len(plain), "")
        return self._with_gaps([*map(repr, plain)], "")

    def _with_gaps(self, entries: list[Any], gap: Any) -> list[Any]:
        if self.known is None:
            return entries
        with_gaps: list[Any] = []
        for entry, known in zip(entries, self.known.tolist(), strict=True):
            if known:
                with_gaps.append(entry)
            else:
                with_gaps.append(gap)
        return with_gaps


def quoted(text: str) -> str:
    """Return a text as a field of a CSV file.

    >>> quoted('ward 7'), quoted('ward "7", east')
    ('ward 7', '"ward ""7"", east"')
    """
    needs_quotes = any(sign in text for sign in ',"\n\r')
    if not needs_quotes:
        return text
    return '"' + text.replace('"', '""') + '"'


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
        lists = (column.tolist() for column in self.columns.values())
        return (dict(zip(names, values, strict=True)) for values in zip(*lists, strict=True))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def lines(self) -> Iterator[str]:
        """Return a line of text for each client: its numbers in the order of the columns, with commas between."""
        return map(
            ",".join, zip(*(column.texts() for column in self.columns.values()), strict=True)
        )
