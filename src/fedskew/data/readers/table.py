"""Tables with named columns as arrays: one table, or one of each client, with one schema fitted on training rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.streams import Ints
from fedskew.data.cells import (
    DECIMAL_COMMAS,
    MISSING,
    OTHER,
    label_columns,
    label_matrix,
    need_column,
    number_groups,
    number_labels,
    numbers,
)
from fedskew.data.dataset import Dataset, Features, Rows, Split
from fedskew.data.differences import differences
from fedskew.data.fitting import Fitted, Request, fit
from fedskew.data.readers.arrays import split_note
from fedskew.data.readers.windows import cut_windows, split_series
from fedskew.data.schema import Categories, Numeric, Schema
from fedskew.data.silo import LocalSilos, TableSilo
from fedskew.data.targets import Target, Targets

if TYPE_CHECKING:
    from fedskew.data.cells import Frame


@dataclass(frozen=True)
class Table:
    """A table before any split; every column but the label and the group is a feature.

    The label is one column with the class or (``target``) a number, or several columns of 0 and 1, ``a+b+c``.
    ``test`` is the published test table or the split to draw; with a ``window`` the split keeps series whole. None: the
    table of one of several clients has no test rows, as all have a common test table.
    """

    train: "Frame"
    test: "Frame | Split | None"
    label: str
    group: str | None = None
    standardize: bool = True
    categorical: tuple[str, ...] = ()
    max_categories: int = 64
    window: int = 0
    stride: int = 0
    notes: tuple[str, ...] = ()
    target: Target = "class"

    def build(self, name: str, validation: Split | None) -> Dataset:
        """Split, fit the schema on the training rows, and convert."""
        part = self.parted(name, "", validation)
        groups: list[Ints | None] = [None] * len(part.frames)
        names: tuple[str, ...] = ()
        if self.group is not None:
            numbered, names = number_groups(
                name, f"column {self.group!r}", [frame[self.group] for frame in part.frames]
            )
            groups = list(numbered)
        return _build(name, [part], [groups], names)

    @property
    def targets(self) -> tuple[str, ...]:
        """Return the columns of the label."""
        return label_columns(self.label, self.target)

    def request(self, compared: bool) -> Request:
        """Return what is to be fitted; ``compared``: on the tables of several clients, which are compared."""
        return Request(
            label=self.label,
            target=self.target,
            categorical=self.categorical,
            max_categories=self.max_categories,
            standardize=self.standardize,
            window=self.window,
            stride=self.stride,
            compared=compared,
        )

    def parted(self, where: str, client: str, validation: Split | None) -> "Parted":
        """Check the table, and draw which of its rows are for training, validation and test."""
        for column in (*self.targets, *((self.group,) if self.group else ())):
            need_column(where, column, self.train.columns)
        if self.window and self.target != "class":
            raise FedskewError(
                f"{where}: window={self.window} takes the commonest class of its rows, and target={self.target} has "
                "none: leave one of them out"
            )
        frames = (
            (self.train,)
            if self.test is None or isinstance(self.test, Split)
            else (self.train, self.test)
        )
        for frame in frames:
            if not len(frame):
                raise FedskewError(f"{where}: a table without rows")
            lacking = [column for column in self.train.columns if column not in frame.columns]
            if lacking:
                raise FedskewError(
                    f"{where}: the test table lacks column {lacking[0]!r} of the training table"
                )
        if all(column in (*self.targets, self.group) for column in self.train.columns):
            raise FedskewError(f"{where}: no feature column is left beside the label and the group")
        group = None
        if self.group is not None:
            group = number_groups(where, f"column {self.group!r}", [self.train[self.group]])[0][0]
        y, kept = self._own_targets(where, frames, alone=not client), np.arange(len(self.train))
        tested = held = None
        if isinstance(self.test, Split):
            kept, tested = self._set_aside(where, kept, y, group, self.test)
        if validation is not None:
            kept, held = self._set_aside(where, kept, y, group, validation)
        return Parted(where, client, self, frames, kept, held, tested)

    def _own_targets(self, where: str, frames: "tuple[Frame, ...]", alone: bool) -> Targets:
        """Return the training table's targets for a fair split; classes are numbered for this client alone."""
        if self.target == "labels":
            return label_matrix(where, {column: self.train[column] for column in self.targets})
        what = f"column {self.label!r}"
        if self.target == "number":
            return numbers(where, what, self.train[self.label])
        columns = [frame[self.label] for frame in frames]
        return (number_labels if alone else number_groups)(where, what, columns)[0][0]

    def _set_aside(
        self, where: str, rows: Ints, y: Targets, group: Ints | None, split: Split
    ) -> tuple[Ints, Ints]:
        if self.window:
            return split_series(where, rows, group, split)
        no_features: Features = np.empty((len(y), 0), dtype=np.float32)
        kept, held = split.rows(where, Rows(no_features, y, group).take(rows).strata)
        return rows[kept], rows[held]


@dataclass(frozen=True)
class SiloTables:
    """Tables of several clients, by the name of the client, with the same options; ``test`` are common test rows."""

    tables: Mapping[str, Table]
    test: "Frame | None" = None
    notes: tuple[str, ...] = ()

    def build(self, name: str, validation: Split | None) -> Dataset:
        """Split every table for itself, fit one schema on the training rows of all, and convert."""
        clients = tuple(sorted(self.tables))
        parts = []
        for client in clients:
            parts.append(self.tables[client].parted(f"{name}: {client}", client, validation))
        groups: list[list[Ints | None]] = []
        for number, part in enumerate(parts):
            groups.append([np.full(len(frame), number) for frame in part.frames])
        data = _build(name, parts, groups, clients, self.test)
        return replace(data, notes=self.notes + data.notes)


def converted(part: "Parted", fitted: Fitted) -> Dataset:
    """Return the rows of one client, by a schema that was fitted on the rows of all."""
    groups: list[Ints | None] = [np.zeros(len(frame), dtype=np.int64) for frame in part.frames]
    return _converted(part.client, [part], [groups], (part.client,), fitted)


@dataclass(frozen=True)
class Parted:
    """A table whose rows are divided: training, validation and test (None where it has no such part)."""

    where: str
    client: str
    table: Table
    frames: "tuple[Frame, ...]"
    kept: Ints
    held: Ints | None
    tested: Ints | None

    @property
    def silo(self) -> TableSilo:
        """Return what answers for the training rows."""
        left_out = (*self.table.targets, self.table.group)
        return TableSilo(
            self.client, self.frames[0], self.kept, left_out, self.frames[1:], self.where
        )

    def rows(self, schema: Schema, groups: "list[Ints | None]") -> dict[str, Rows]:
        """Return the rows of each part."""
        for frame in self.frames[1:]:
            schema.check(f"{self.where}: the test table", frame)
        whole = []
        for frame, group in zip(self.frames, groups, strict=True):
            whole.append(Rows(schema.encode(frame), schema.label.encode(self.where, frame), group))
        rows = {"train": whole[0].take(self.kept)}
        if self.tested is not None or len(whole) > 1:
            if self.tested is None:
                rows["test"] = whole[-1]
            else:
                rows["test"] = whole[0].take(self.tested)
        if self.held is None:
            return rows
        return {**rows, "validation": whole[0].take(self.held)}


def _build(
    name: str,
    parts: Sequence[Parted],
    groups: "Sequence[list[Ints | None]]",
    group_names: tuple[str, ...],
    test: "Frame | None" = None,
) -> Dataset:
    """Fit one schema on the training rows of all tables, and convert all rows."""
    table = parts[0].table
    several = bool(parts[0].client)
    fitted = fit(name, LocalSilos([part.silo for part in parts]), table.request(several))
    return _converted(name, parts, groups, group_names, fitted, test)


def _converted(
    name: str,
    parts: "Sequence[Parted]",
    groups: "Sequence[list[Ints | None]]",
    group_names: tuple[str, ...],
    fitted: Fitted,
    test: "Frame | None" = None,
) -> Dataset:
    """Convert all rows by a schema that has been fitted."""
    table, several, schema = parts[0].table, bool(parts[0].client), fitted.schema
    found = [part.rows(schema, own) for part, own in zip(parts, groups, strict=True)]
    rows = {part: Rows.joined([one[part] for one in found]) for part in found[0]}
    if test is not None:
        schema.check("the test table", test)
        rows["test"] = Rows(schema.encode(test), schema.label.encode("the test table", test))
    rows["train"] = replace(rows["train"], unit=schema.unit if table.standardize else None)
    if table.window:
        rows = {
            part: _windows(f"{name}: {part}", some, table, schema) for part, some in rows.items()
        }
    return Dataset(
        name=name,
        train=rows["train"],
        test=rows["test"],
        validation=rows.get("validation"),
        classes=schema.label.classes,
        groups=group_names,
        features=schema.features,
        notes=table.notes + _notes(schema, parts, len(group_names)),
        differences=differences(schema, fitted.described) if several else (),
        silos=fitted.described if several else (),
        schema=schema,
    )


def _windows(where: str, rows: Rows, table: Table, schema: Schema) -> Rows:
    result = cut_windows(
        rows, table.window, table.stride or table.window, len(schema.label.classes)
    )
    if not len(result):
        raise FedskewError(
            f"{where}: no {table.window} consecutive rows for one window; choose a smaller window="
        )
    return result


def _notes(schema: Schema, parts: Sequence[Parted], groups: int) -> tuple[str, ...]:
    notes, table = [], parts[0].table
    if isinstance(table.test, Split):
        notes.append(_split_note(table, table.test, groups, bool(parts[0].client)))
    if table.standardize:
        scaled = sum(isinstance(column, Numeric) for column in schema.columns)
    else:
        scaled = 0
    if scaled:
        notes.append(
            f"{scaled} numeric columns standardised with the mean and deviation of the training rows"
        )
    commas = dict.fromkeys(
        title
        for part in parts
        for frame in part.frames
        for title in frame.attrs.get(DECIMAL_COMMAS, ())
    )
    if commas:
        notes.append(f"decimal commas in {', '.join(commas)}: read as numbers")
    for column in schema.columns:
        if isinstance(column, Categories) and column.pooled:
            notes.append(
                f"column {column.name!r}: the {column.pooled} rarest categories pooled as {OTHER!r}"
            )
    frames = []
    for part in parts:
        for frame in part.frames:
            frames.append(frame)
    missing = {}
    for column in schema.columns:
        missing[column.name] = sum(
            column.missing(frame) for frame in frames if column.name in frame.columns
        )
    missing = {name: count for name, count in missing.items() if count}
    if missing:
        listed = ", ".join(f"{name} ({count})" for name, count in list(missing.items())[:5])
        if len(missing) > 5:
            more = f" and {len(missing) - 5} more columns"
        else:
            more = ""
        notes.append(
            f"{sum(missing.values())} missing or infinite values in {listed}{more}: "
            f"numbers filled with the training median, text with {MISSING!r}"
        )
    return tuple(notes)


def _split_note(table: Table, split: Split, groups: int, several: bool) -> str:
    if not table.window:
        note = split_note(split, table.target)
        if several:
            return f"{note}, by each client for itself"
        return note
    if groups > 1 and not several:
        how = "whole groups"
    else:
        how = "the end of the series"
    share = f"a share of about {split.share:g}"
    return f"no published split: {how} ({share}) held out for test, no window lies in two parts"
