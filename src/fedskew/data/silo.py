"""A silo in memory: a client's table, which answers the questions of a fit with counts and sums."""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedskew.core.streams import Floats, Ints
from fedskew.data.cells import (
    MISSING,
    categories,
    class_counts,
    finite,
    is_number,
    is_numeric,
    is_text,
    odd_one,
    refuse_other_numbers,
    text_of,
)
from fedskew.data.dates import are_dates, days_of
from fedskew.data.fitting import (
    ColumnFacts,
    Description,
    Interval,
    Moments,
    Request,
    in_bins,
    keys_of,
)

if TYPE_CHECKING:
    from fedskew.data.cells import Column, Frame


class TableSilo:
    """A client's table: ``rows`` are its training rows, ``left_out`` columns that are not features (label and group).

    ``more`` are further tables of the client, whose classes count as well: its test rows. Errors begin with ``where``.
    ``days`` are columns of dates, whose numbers are days.
    """

    def __init__(
        self,
        name: str,
        frame: "Frame",
        rows: Ints,
        left_out: Sequence[str | None] = (),
        more: "Sequence[Frame]" = (),
        where: str = "",
        days: Container[str] = (),
    ) -> None:
        self._name = name
        # Without what is noted about the file, which pandas copies for every column.
        self._frame = frame.copy(deep=False)
        self._frame.attrs = {}
        self._rows = rows
        self._more = more
        self._where = where or name
        self._days = days
        self._columns = [column for column in frame.columns if column not in left_out]

    @property
    def name(self) -> str:
        """Return the name of the client."""
        return self._name

    def describe(self, request: Request) -> Description:
        """Say what the table has."""
        columns = {}
        for title in self._columns:
            columns[str(title)] = self._facts(self._frame[title], request)
        classes: dict[Any, int] = {}
        if request.target == "class":
            classes = self._classes(request.label)
        return Description(self._name, len(self._rows), columns, classes)

    def _classes(self, label: str) -> dict[Any, int]:
        """Return the rows of each class, as numbers or text."""
        columns = [frame[label] for frame in (self._frame, *self._more)]
        return class_counts(self._where, f"column {label!r}", columns)

    def _facts(self, column: "Column", request: Request) -> ColumnFacts:
        title = str(column.name)
        if column.isna().all():
            return ColumnFacts("empty", "", len(self._rows))
        if title in self._days:
            return replace(self._number_facts(column, request.compared), dates=True)
        forced = title in request.categorical
        if not forced and self._are_dates(column, request):
            missing = int(column.isna().to_numpy()[self._rows].sum())
            return ColumnFacts("time", text_of(column.dropna().iloc[0]), missing)
        if is_numeric(column) and not forced:
            return self._number_facts(column, request.compared)
        if not forced and is_text(column):
            texts = column.dropna().astype(str).unique().tolist()
            refuse_other_numbers(self._where, title, texts)
        return self._texts(column, request)

    def _are_dates(self, column: "Column", request: Request) -> bool:
        """Return whether a column holds dates, and nobody has said what to make of it."""
        kept = not request.examines(str(column.name))
        if kept and (is_numeric(column) or is_text(column)):
            return False
        return are_dates(column)

    def _number_facts(self, column: "Column", compared: bool) -> ColumnFacts:
        values = self.values(str(column.name))
        present = values[~np.isnan(values)]
        example = text_of(column.dropna().iloc[:1].tolist()[0])
        missing = len(values) - len(present)
        if not len(present):
            return ColumnFacts("number", example, missing)
        facts = ColumnFacts(
            kind="number",
            example=example,
            missing=missing,
            low=float(present.min()),
            high=float(present.max()),
            distinct=len(np.unique(present)),
            whole=bool((present % 1 == 0).all()),
        )
        if not compared:
            return facts
        first, middle, third = np.quantile(present, [0.25, 0.5, 0.75]).tolist()
        return replace(facts, quartiles=(first, middle, third))

    def _texts(self, column: "Column", request: Request) -> ColumnFacts:
        codes, values = categories(column)
        rows = np.bincount(codes[self._rows], minlength=len(values)).tolist()
        counts = {}
        for value, count in zip(values, rows, strict=True):
            if count:
                counts[value] = count
        missing = int(column.isna().to_numpy()[self._rows].sum())
        texts = len(counts.keys() - {MISSING})
        numerals = len(list(filter(is_number, counts)))
        if (
            request.compared
            and len(counts) > request.max_categories
            and 2 * len(counts) > len(self._rows)
        ):
            # Such as names of persons, which stay where they are; a mark among numbers is shown
            example = ""
            if 2 * numerals > texts:
                example = odd_one(column)
            return ColumnFacts("text", example, missing, texts=texts, numerals=numerals)
        return ColumnFacts(
            kind="text",
            example=odd_one(column),
            missing=missing,
            counts=counts,
            texts=texts,
            numerals=numerals,
        )

    def count(self, intervals: Mapping[str, Sequence[Interval]]) -> dict[str, list[Ints]]:
        """Count the numbers of some columns in the bins of intervals; columns that it lacks are left out."""
        return self.numbers.count(intervals)

    def add_up(self, fills: Mapping[str, float]) -> dict[str, Moments]:
        """Return the moments of some columns, with missing numbers filled."""
        return self.numbers.add_up(fills)

    @cached_property
    def numbers(self) -> "SiloNumbers":
        """Return the numbers of the training rows, which answer all questions after the first."""
        return SiloNumbers(len(self._rows), self._columns, self.values)

    def values(self, title: str) -> Floats:
        """Return the numbers of a column in the training rows, NaN where one is missing."""
        column = self._frame[title]
        if title in self._days:
            return days_of(self._where, column)[self._rows]
        return finite(column)[self._rows]


class SiloNumbers:
    """The numbers of a client's training rows, which it counts and adds up.

    Args:
        rows: how many rows there are
        columns: titles of the columns
        values_of: from a title to the numbers of the column, NaN where one is missing
    """

    def __init__(
        self, rows: int, columns: Sequence[str], values_of: Callable[[str], Floats]
    ) -> None:
        self._rows = rows
        self._columns = frozenset(columns)
        self._values_of = values_of
        self._narrowed: dict[tuple[str, int], tuple[Interval, NDArray[np.uint64]]] = {}

    def count(self, intervals: Mapping[str, Sequence[Interval]]) -> dict[str, list[Ints]]:
        """Count the numbers of some columns in the bins of intervals; columns that it lacks are left out."""
        counts: dict[str, list[Ints]] = {}
        for title, asked in intervals.items():
            if title not in self._columns:
                continue
            counts[title] = []
            for place, interval in enumerate(asked):
                keys = self._keys(title, place, interval)
                counts[title].append(in_bins(keys, interval))
        return counts

    def _keys(self, title: str, place: int, interval: Interval) -> NDArray[np.uint64]:
        """Return the keys of a column's numbers in an interval, which are few after the first question."""
        (low, high), keys = self._narrowed.get(
            (title, place), ((1, 0), np.zeros(0, dtype=np.uint64))
        )
        if not low <= interval[0] <= interval[1] <= high:
            values = self._values_of(title)
            keys = keys_of(values[~np.isnan(values)])
        keys = keys[(keys >= np.uint64(interval[0])) & (keys <= np.uint64(interval[1]))]
        if 8 * len(keys) < self._rows:
            self._narrowed[title, place] = interval, keys
        return keys

    def add_up(self, fills: Mapping[str, float]) -> dict[str, Moments]:
        """Return the moments of some columns, with missing numbers filled."""
        moments = {}
        for title, fill in fills.items():
            if title in self._columns:
                values = self._values_of(title)
                moments[title] = Moments.of(np.where(np.isnan(values), fill, values))
            else:
                moments[title] = Moments(self._rows, fill, 0.0, 0.0)
        return moments


class LocalSilos:
    """The tables of all clients in this process."""

    def __init__(self, silos: "Sequence[TableSilo]") -> None:
        self._silos = silos

    def describe(self, request: Request) -> list[Description]:
        """Say what the tables have."""
        return [silo.describe(request) for silo in self._silos]

    def count(self, intervals: Mapping[str, Sequence[Interval]]) -> list[dict[str, list[Ints]]]:
        """Count the numbers of some columns in the bins of intervals."""
        return [silo.count(intervals) for silo in self._silos]

    def add_up(self, fills: Mapping[str, float]) -> list[dict[str, Moments]]:
        """Return the moments of some columns."""
        return [silo.add_up(fills) for silo in self._silos]
