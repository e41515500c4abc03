"""Tables with named columns as arrays: one table, or one of each client, with one schema fitted on training rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.streams import Ints
from fedskew.data.cells import (
    MISSING,
    OTHER,
    label_columns,
    label_matrix,
    need_column,
    number_groups,
    number_labels,
    number_matrix,
    numbers,
)
from fedskew.data.class_spellings import with_classes
from fedskew.data.dataset import Dataset, Features, Rows, Split
from fedskew.data.dates import AsNumbers, are_dates
from fedskew.data.differences import differences
from fedskew.data.duplicates import Duplicates, duplicates_sentence, first_of_each
from fedskew.data.fitting import Description, Fitted, Request, fit
from fedskew.data.left_out import left_out_sentence
from fedskew.data.readers.arrays import split_note
from fedskew.data.readers.csv_format import READ
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

    ``labels`` are the spellings of classes. Columns that are not features by what they hold are left out, but for those
    in ``keep``; None: every column is one. ``dates`` says what becomes of dates, ``duplicates`` of rows that equal an
    earlier one.
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
    labels: tuple[str, ...] = ()
    keep: tuple[str, ...] | None = None
    dates: AsNumbers | None = None
    duplicates: Duplicates = "keep"

    def build(self, name: str, validation: Split | None) -> Dataset:
        """Split, fit the schema on the training rows, and convert."""
        part = self.parted(name, "", validation)
        groups: list[Ints | None] = [None] * len(part.frames)
        names: tuple[str, ...] = ()
        if self.group is not None:
            columns = [frame[self.group] for frame in part.frames]
            numbered, names = number_groups(name, f"column {self.group!r}", columns)
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
            labels=self.labels,
            keep=self.keep,
            dates=self.dates,
            compared=compared,
        )

    def parted(self, where: str, client: str, validation: Split | None) -> "Parted":
        """Check the table, and draw which of its rows are for training, validation and test."""
        self._check(where)
        frames = tuple(self.prepared(where, frame) for frame in self._frames)
        train = frames[0]
        group = None
        if self.group is not None:
            numbered, _ = number_groups(where, f"column {self.group!r}", [train[self.group]])
            group = numbered[0]
        y = self._own_targets(where, frames, alone=not client)
        kept = np.arange(len(train))
        tested = held = None
        if isinstance(self.test, Split):
            kept, tested = self._set_aside(where, kept, y, group, self.test)
        if validation is not None:
            kept, held = self._set_aside(where, kept, y, group, validation)
        return Parted(where, client, self, frames, kept, held, tested)

    @property
    def _frames(self) -> "tuple[Frame, ...]":
        """Return the training table and, if one is published, the test table."""
        if self.test is None or isinstance(self.test, Split):
            return (self.train,)
        return self.train, self.test

    def prepared(self, where: str, frame: "Frame") -> "Frame":
        """Return a table with its classes by their names, and without rows that are there twice if so asked."""
        if self.labels and self.target == "class":
            frame = frame.assign(
                **{self.label: with_classes(where, frame[self.label], self.labels)}
            )
        if self.duplicates == "drop":
            frame = frame.iloc[self.rows_kept(frame)].reset_index(drop=True)
        return frame

    def rows_kept(self, frame: "Frame") -> Ints:
        """Return the numbers of the rows of a table that are used."""
        if self.duplicates == "keep":
            return np.arange(len(frame))
        return first_of_each(frame)

    def days(self, frame: "Frame") -> frozenset[str]:
        """Return the columns of dates that become numbers of days."""
        if self.dates is None:
            return frozenset()
        others = {*self.targets, self.group, *self.categorical, *(self.keep or ())}
        titles = []
        for title in frame.columns:
            if title not in others and are_dates(frame[title]):
                titles.append(str(title))
        return frozenset(titles)

    def _check(self, where: str) -> None:
        """Raise an error for a column that is missing, an empty table, or options that exclude each other."""
        named = list(self.targets)
        if self.group:
            named.append(self.group)
        for column in named:
            need_column(where, column, self.train.columns)
        self._check_target(where)
        if self.window and self.duplicates == "drop":
            raise FedskewError(
                f"{where}: duplicates=drop would tear windows of window={self.window} rows apart: leave one of them out"
            )
        for frame in self._frames:
            self._check_frame(where, frame)
        if all(column in named for column in self.train.columns):
            raise FedskewError(f"{where}: no feature column is left beside the label and the group")

    def _check_target(self, where: str) -> None:
        if self.target == "tokens":
            raise FedskewError(
                f"{where}: target=tokens is for arrays (an NPZ file, or split((x, y), task='next-token')), and this is "
                "a table"
            )
        if self.window and self.target != "class":
            raise FedskewError(
                f"{where}: window={self.window} takes the commonest class of its rows, and target={self.target} has "
                "none: leave one of them out"
            )

    def _check_frame(self, where: str, frame: "Frame") -> None:
        if not len(frame):
            raise FedskewError(f"{where}: a table without rows")
        for column in self.train.columns:
            if column not in frame.columns:
                raise FedskewError(
                    f"{where}: the test table lacks column {column!r} of the training table"
                )

    def _own_targets(self, where: str, frames: "tuple[Frame, ...]", alone: bool) -> Targets:
        """Return the training table's targets for a fair split; classes are numbered for this client alone."""
        if self.target == "labels":
            return label_matrix(where, {column: frames[0][column] for column in self.targets})
        if self.target == "numbers":
            return number_matrix(where, {column: frames[0][column] for column in self.targets})
        what = f"column {self.label!r}"
        if self.target == "number":
            return numbers(where, what, frames[0][self.label])
        columns = [frame[self.label] for frame in frames]
        if alone:
            numbered, _ = number_labels(where, what, columns)
        else:
            numbered, _ = number_groups(where, what, columns)
        return numbered[0]

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
        frame = self.frames[0]
        days = self.table.days(frame)
        return TableSilo(self.client, frame, self.kept, left_out, self.frames[1:], self.where, days)

    def rows(self, schema: Schema, groups: "list[Ints | None]") -> dict[str, Rows]:
        """Return the rows of each part."""
        for frame in self.frames[1:]:
            schema.check(f"{self.where}: the test table", frame)
        whole = []
        for frame, group in zip(self.frames, groups, strict=True):
            y = schema.label.encode(self.where, frame)
            whole.append(Rows(schema.encode(frame), y, group, gaps=schema.gaps(frame)))
        rows = {"train": whole[0].take(self.kept)}
        if self.tested is not None:
            rows["test"] = whole[0].take(self.tested)
        elif len(whole) > 1:
            rows["test"] = whole[-1]
        if self.held is not None:
            rows["validation"] = whole[0].take(self.held)
        return rows


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
    silos = LocalSilos([part.silo for part in parts])
    fitted = fit(name, silos, table.request(several))
    data = _converted(name, parts, groups, group_names, fitted, test)
    return replace(data, doubts=_doubts(parts, fitted, data, test))


def _converted(
    name: str,
    parts: "Sequence[Parted]",
    groups: "Sequence[list[Ints | None]]",
    group_names: tuple[str, ...],
    fitted: Fitted,
    test: "Frame | None" = None,
) -> Dataset:
    """Convert all rows by a schema that has been fitted."""
    table = parts[0].table
    schema = fitted.schema
    rows = _joined_rows(parts, groups, schema)
    if test is not None:
        test = table.prepared("the test table", test)
        schema.check("the test table", test)
        rows["test"] = Rows(schema.encode(test), schema.label.encode("the test table", test))
    if table.standardize:
        rows["train"] = replace(rows["train"], unit=schema.unit)
    if table.window:
        for part in rows:
            rows[part] = _windows(f"{name}: {part}", rows[part], table, schema)
    # What one client tells about itself is compared with nobody's
    described: tuple[Description, ...] = ()
    if parts[0].client:
        described = fitted.described
    return Dataset(
        name=name,
        train=rows["train"],
        test=rows["test"],
        validation=rows.get("validation"),
        classes=schema.label.classes,
        groups=group_names,
        features=schema.features,
        notes=table.notes + _notes(schema, parts, len(group_names)),
        differences=differences(schema, described),
        silos=described,
        schema=schema,
    )


def _doubts(
    parts: "Sequence[Parted]", fitted: Fitted, data: Dataset, test: "Frame | None"
) -> tuple[str, ...]:
    """Return what a user should know of how these files were read, a sentence each."""
    table = parts[0].table
    frames: list[Frame] = []
    for part in parts:
        frames.extend(part.frames)
    if test is not None:
        frames.append(test)
    found = [*read_sentences(frames), left_out_sentence(fitted.left_out)]
    if table.keep is not None:
        found.append(_duplicates(data, table))
    return tuple(sentence for sentence in found if sentence)


def _duplicates(data: Dataset, table: Table) -> str:
    """Return which rows are there twice, and what to do about it."""
    sentence = duplicates_sentence(data)
    if sentence and table.duplicates == "keep" and not table.window:
        sentence += ": duplicates=drop leaves out what a file has twice"
    return sentence


def read_sentences(frames: "Sequence[Frame]") -> list[str]:
    """Return what was recognised in the files of these tables; files that are written alike are named together."""
    names: dict[str, list[str]] = {}
    for frame in frames:
        file = frame.attrs.get(READ)
        if file is not None and file.said:
            names.setdefault(file.said, []).append(file.name)
    sentences = []
    for said, files in names.items():
        listed = ", ".join(files[:5])
        if len(files) > 5:
            listed += f" and {len(files) - 5} more files"
        sentences.append(f"{listed}: {said}")
    return sentences


def _joined_rows(
    parts: "Sequence[Parted]", groups: "Sequence[list[Ints | None]]", schema: Schema
) -> dict[str, Rows]:
    """Return the rows of all tables for training, for test and, if some are held out, for validation."""
    by_table = []
    for part, own_groups in zip(parts, groups, strict=True):
        by_table.append(part.rows(schema, own_groups))
    joined = {}
    for purpose in by_table[0]:
        joined[purpose] = Rows.joined([rows[purpose] for rows in by_table])
    return joined


def _windows(where: str, rows: Rows, table: Table, schema: Schema) -> Rows:
    stride = table.stride or table.window
    windows = cut_windows(rows, table.window, stride, len(schema.label.classes))
    if not len(windows):
        raise FedskewError(
            f"{where}: no {table.window} consecutive rows for one window; choose a smaller window="
        )
    return windows


def _notes(schema: Schema, parts: Sequence[Parted], groups: int) -> tuple[str, ...]:
    """Return what was decided on the user's behalf, a sentence each."""
    notes = []
    table = parts[0].table
    if isinstance(table.test, Split):
        notes.append(_split_note(table, table.test, groups, bool(parts[0].client)))
    numeric = [column for column in schema.columns if isinstance(column, Numeric)]
    if table.standardize and numeric:
        notes.append(
            f"{len(numeric)} numeric columns standardised with the mean and deviation of the training rows"
        )
    frames: list[Frame] = []
    for part in parts:
        frames.extend(part.frames)
    for column in schema.columns:
        if isinstance(column, Categories) and column.pooled:
            notes.append(
                f"column {column.name!r}: the {column.pooled} rarest categories pooled as {OTHER!r}"
            )
    missing = _missing(schema, frames)
    if missing:
        notes.append(_missing_note(missing))
    return tuple(notes)


def _missing(schema: Schema, frames: "Sequence[Frame]") -> dict[str, int]:
    """Return how many values are missing in all tables, for each column that lacks some."""
    missing = {}
    for column in schema.columns:
        count = 0
        for frame in frames:
            if column.name in frame.columns:
                count += int(column.gaps(frame).sum())
        if count:
            missing[column.name] = count
    return missing


def _missing_note(missing: Mapping[str, int]) -> str:
    listed = [f"{name} ({count})" for name, count in missing.items()]
    where = ", ".join(listed[:5])
    if len(listed) > 5:
        where += f" and {len(listed) - 5} more columns"
    return (
        f"{sum(missing.values())} missing or infinite values in {where}: "
        f"numbers filled with the training median, text with {MISSING!r}"
    )


def _split_note(table: Table, split: Split, groups: int, several: bool) -> str:
    if not table.window:
        note = split_note(split, table.target)
        if several:
            return f"{note}, by each client for itself"
        return note
    how = "the end of the series"
    if groups > 1 and not several:
        how = "whole groups"
    share = f"a share of about {split.share:g}"
    return f"no published split: {how} ({share}) held out for test, no window lies in two parts"
