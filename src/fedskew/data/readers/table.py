"""Tables with named columns as arrays: labels, groups, categories, missing values, standardisation, windows."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import FedskewError, unknown
from fedskew.core.streams import Floats, Ints
from fedskew.data.dataset import Dataset, Features, Rows, Split
from fedskew.data.readers.arrays import split_note
from fedskew.data.readers.windows import cut_windows, split_series
from fedskew.data.targets import Target, Targets

if TYPE_CHECKING:
    import pandas as pd

    Frame: TypeAlias = pd.DataFrame
    Column: TypeAlias = pd.Series[Any]

MISSING, OTHER = "missing", "other"


@dataclass(frozen=True)
class Table:
    """A table before any split; every column but the label and the group is a feature.

    The label is one column with the class or (``target``) a number, or several columns of 0 and 1, ``a+b+c``.
    ``test`` is the published test table or the split to draw; with a ``window`` the split keeps series whole.
    """

    train: "Frame"
    test: "Frame | Split"
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
        """Split, fit the encoding on the training rows, and convert."""
        targets = label_columns(self.label, self.target)
        for column in (*targets, *((self.group,) if self.group else ()), *self.categorical):
            need_column(name, column, self.train.columns)
        if self.window and self.target != "class":
            raise FedskewError(
                f"{name}: window={self.window} takes the commonest class of its rows, and target={self.target} has "
                "none: leave one of them out"
            )
        frames = [self.train] if isinstance(self.test, Split) else [self.train, self.test]
        columns = [column for column in self.train.columns if column not in (*targets, self.group)]
        _check_frames(name, frames, columns)
        labels, classes = read_targets(name, frames, targets, self.target)
        groups: list[Ints | None] = [None] * len(frames)
        group_names: tuple[str, ...] = ()
        if self.group is not None:
            numbers, group_names = number_groups(
                name, f"column {self.group!r}", [frame[self.group] for frame in frames]
            )
            groups = list(numbers)
        kept, held, tested = self._parts(name, labels[0], groups[0], validation)
        encoders = [self._encoder(name, self.train[column], kept) for column in columns]
        whole = [
            Rows(_encode(frame, encoders), y, group) for frame, y, group in zip(frames, labels, groups, strict=True)
        ]
        unit = np.concatenate([encoder.unit for encoder in encoders]) if self.standardize else None
        rows = {
            "train": replace(whole[0].take(kept), unit=unit),
            "test": whole[-1] if tested is None else whole[0].take(tested),
        }
        if held is not None:
            rows["validation"] = whole[0].take(held)
        if self.window:
            rows = {part: self._windows(f"{name}: {part}", some, len(classes)) for part, some in rows.items()}
        return Dataset(
            name=name,
            train=rows["train"],
            test=rows["test"],
            validation=rows.get("validation"),
            classes=classes,
            groups=group_names,
            features=tuple(feature for encoder in encoders for feature in encoder.features),
            notes=self.notes + self._notes(encoders, frames, len(group_names)),
        )

    def _parts(
        self, name: str, y: Targets, group: Ints | None, validation: Split | None
    ) -> tuple[Ints, Ints | None, Ints | None]:
        """Return row numbers of the first frame: training, validation, test (None if it has no such part)."""
        kept: Ints = np.arange(len(y))
        tested = held = None
        if isinstance(self.test, Split):
            kept, tested = self._set_aside(name, kept, y, group, self.test)
        if validation is not None:
            kept, held = self._set_aside(name, kept, y, group, validation)
        return kept, held, tested

    def _set_aside(self, name: str, rows: Ints, y: Targets, group: Ints | None, split: Split) -> tuple[Ints, Ints]:
        if self.window:
            return split_series(name, rows, group, split)
        no_features: Features = np.empty((len(y), 0), dtype=np.float32)
        kept, held = split.rows(name, Rows(no_features, y, group).take(rows).strata)
        return rows[kept], rows[held]

    def _encoder(self, name: str, column: "Column", rows: Ints) -> "Numeric | Categories":
        import pandas as pd

        kind, title = column.dtype, str(column.name)
        if title not in self.categorical:
            if pd.api.types.is_datetime64_any_dtype(kind) or pd.api.types.is_timedelta64_dtype(kind):
                raise FedskewError(
                    f"{name}: column {title!r} holds times; leave it out with drop={title} or convert it to numbers"
                )
            if pd.api.types.is_numeric_dtype(kind) and not pd.api.types.is_bool_dtype(kind):
                return Numeric.fit(name, column, rows, self.standardize)
        return Categories.fit(name, column, rows, self.max_categories, title in self.categorical)

    def _windows(self, where: str, rows: Rows, classes: int) -> Rows:
        result = cut_windows(rows, self.window, self.stride or self.window, classes)
        if not len(result):
            raise FedskewError(f"{where}: no {self.window} consecutive rows for one window; choose a smaller window=")
        return result

    def _notes(self, encoders: "list[Numeric | Categories]", frames: "list[Frame]", groups: int) -> tuple[str, ...]:
        notes = []
        if isinstance(self.test, Split):
            notes.append(self._split_note(self.test, groups))
        scaled = sum(isinstance(encoder, Numeric) for encoder in encoders) if self.standardize else 0
        if scaled:
            notes.append(f"{scaled} numeric columns standardised with the mean and deviation of the training rows")
        for encoder in encoders:
            if isinstance(encoder, Categories) and encoder.pooled:
                notes.append(f"column {encoder.name!r}: the {encoder.pooled} rarest categories pooled as {OTHER!r}")
        missing = {encoder.name: sum(encoder.missing(frame) for frame in frames) for encoder in encoders}
        missing = {name: count for name, count in missing.items() if count}
        if missing:
            listed = ", ".join(f"{name} ({count})" for name, count in list(missing.items())[:5])
            more = f" and {len(missing) - 5} more columns" if len(missing) > 5 else ""
            notes.append(
                f"{sum(missing.values())} missing or infinite values in {listed}{more}: "
                f"numbers filled with the training median, text with {MISSING!r}"
            )
        return tuple(notes)

    def _split_note(self, split: Split, groups: int) -> str:
        if not self.window:
            return split_note(split, self.target)
        how = "whole groups" if groups > 1 else "the end of the series"
        share = f"a share of about {split.share:g}"
        return f"no published split: {how} ({share}) held out for test, no window lies in two parts"


@dataclass(frozen=True)
class Numeric:
    """A numeric column: the value for missing entries, and what to subtract and divide by."""

    name: str
    fill: float
    mean: float
    deviation: float

    @property
    def features(self) -> tuple[str, ...]:
        """Return the name of its only feature."""
        return (self.name,)

    @property
    def unit(self) -> Floats:
        """Return what 1 in its feature is in the column."""
        return np.array([self.deviation])

    @staticmethod
    def fit(name: str, column: "Column", rows: Ints, standardize: bool) -> "Numeric":
        """Fit the column to the training rows."""
        values = _finite(column)[rows]
        present = values[~np.isnan(values)]
        if not len(present):
            raise FedskewError(f"{name}: column {column.name!r} has no value in any training row; drop={column.name}")
        fill = float(np.median(present))
        if not standardize:
            return Numeric(str(column.name), fill, 0.0, 1.0)
        filled = np.where(np.isnan(values), fill, values)
        constant = filled.min() == filled.max()
        with np.errstate(over="ignore", invalid="ignore"):
            mean, deviation = float(filled.mean()), 1.0 if constant else float(filled.std())
        if not np.isfinite([mean, deviation]).all():
            raise FedskewError(f"{name}: column {column.name!r} holds numbers too large to add up; drop={column.name}")
        return Numeric(str(column.name), fill, mean, deviation)

    def missing(self, frame: "Frame") -> int:
        """Return the number of missing entries."""
        return int(np.isnan(_finite(frame[self.name])).sum())

    def write(self, frame: "Frame", x: Features) -> None:
        """Write its values into its column of ``x``."""
        values = _finite(frame[self.name])
        with np.errstate(over="ignore"):  # what single precision cannot hold becomes infinite, and is refused as such
            x[:, 0] = (np.where(np.isnan(values), self.fill, values) - self.mean) / self.deviation


@dataclass(frozen=True)
class Categories:
    """A text column: one feature per category of the training rows; an unseen category is 'other', if there is one."""

    name: str
    values: tuple[str, ...]
    pooled: int  # rare categories that share the feature 'other'

    @property
    def features(self) -> tuple[str, ...]:
        """Return the names of its features."""
        names = (*self.values, OTHER) if self.pooled else self.values
        return tuple(f"{self.name}={value}" for value in names)

    @property
    def unit(self) -> Floats:
        """Return ones: the features are indicators."""
        return np.ones(len(self.features))

    @staticmethod
    def fit(name: str, column: "Column", rows: Ints, most: int, forced: bool) -> "Categories":
        """Fit the column to the training rows."""
        codes, values = _categories(column)
        counts = dict(zip(values, np.bincount(codes[rows], minlength=len(values)).tolist(), strict=True))
        seen = sorted((value for value, count in counts.items() if count), key=lambda value: (-counts[value], value))
        if seen == [MISSING]:
            raise FedskewError(f"{name}: column {column.name!r} has no value in any training row; drop={column.name}")
        if not forced:
            _refuse_numbers_as_text(name, column, [value for value in seen if value != MISSING])
        if len(seen) <= most:
            return Categories(str(column.name), tuple(sorted(seen)), 0)
        if 2 * len(seen) > len(rows):
            raise FedskewError(
                f"{name}: column {column.name!r} has {len(seen)} texts in {len(rows)} training rows; drop={column.name}"
            )
        return Categories(str(column.name), tuple(sorted(seen[: most - 1])), len(seen) - most + 1)

    def missing(self, frame: "Frame") -> int:
        """Return the number of missing entries."""
        return int(frame[self.name].isna().sum())

    def write(self, frame: "Frame", x: Features) -> None:
        """Write ones into its columns of ``x``."""
        codes, values = _categories(frame[self.name])
        slots = {value: slot for slot, value in enumerate(self.values)}
        slot_of = np.array(
            [slots.get(value, len(self.values) if self.pooled else -1) for value in values], dtype=np.int64
        )
        slot = slot_of[codes]
        known = np.flatnonzero(slot >= 0)
        x[known, slot[known]] = 1


def _encode(frame: "Frame", encoders: "list[Numeric | Categories]") -> Features:
    x: Features = np.zeros((len(frame), sum(len(encoder.features) for encoder in encoders)), dtype=np.float32)
    start = 0
    for encoder in encoders:
        end = start + len(encoder.features)
        encoder.write(frame, x[:, start:end])
        start = end
    return x


def _finite(column: "Column") -> NDArray[np.float64]:
    """Return the numbers of a column, NaN where one is missing or infinite."""
    try:
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
    except (TypeError, ValueError):  # only a test table gets here: the kind of a column is that of the training table
        raise FedskewError(
            f"column {column.name!r} holds numbers in the training table but text in the test table"
        ) from None
    return np.where(np.isinf(values), np.nan, values)


def _categories(column: "Column") -> tuple[Ints, list[str]]:
    """Return a category number for every row, and the categories as text, 'missing' last."""
    import pandas as pd

    codes, values = pd.factorize(column)
    texts = [*(_text(value) for value in values), MISSING]
    # Different values may read the same (1 and "1"): they are one category.
    names = list(dict.fromkeys(texts))
    position = {text: number for number, text in enumerate(names)}
    return np.array([position[text] for text in texts], dtype=np.int64)[codes], names


def _text(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _refuse_numbers_as_text(name: str, column: "Column", values: list[str]) -> None:
    """Raise an error for a column of numbers with a few typing errors, which would become thousands of categories."""
    odd = [value for value in values if not _is_number(value)]
    if 2 * len(odd) < len(values):
        what = f"{odd[0]!r} among numbers" if odd else "numbers kept as text"
        raise FedskewError(
            f"{name}: column {column.name!r} holds {what}; correct it, or say categorical={column.name} or "
            f"drop={column.name}"
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def need_column(name: str, column: str, columns: Iterable[Any]) -> None:
    """Raise an error for a missing column, with the nearest name."""
    names = [str(known) for known in columns]
    if column not in names:
        raise unknown(f"column of {name}", column, names)


def _check_frames(name: str, frames: "list[Frame]", columns: list[str]) -> None:
    if not columns:
        raise FedskewError(f"{name}: no feature column is left beside the label and the group")
    for frame in frames:
        if not len(frame):
            raise FedskewError(f"{name}: a table without rows")
        lacking = [column for column in frames[0].columns if column not in frame.columns]
        if lacking:
            raise FedskewError(f"{name}: the test table lacks column {lacking[0]!r} of the training table")


def label_columns(label: str, target: Target) -> tuple[str, ...]:
    """The columns that hold the target: one, or with ``target=labels`` all that are named, ``a+b+c``."""
    return tuple(label.split("+")) if target == "labels" else (label,)


def read_targets(
    name: str, frames: "list[Frame]", columns: tuple[str, ...], target: Target
) -> tuple[list[Targets], tuple[str, ...]]:
    """The targets of every table, and the names of the classes or labels; numbers have none."""
    if target == "labels":
        matrices = [label_matrix(name, {column: frame[column] for column in columns}) for frame in frames]
        return list(matrices), columns
    parts, what = [frame[columns[0]] for frame in frames], f"column {columns[0]!r}"
    if target == "number":
        return [numbers(name, what, part) for part in parts], ()
    labels, classes = number_labels(name, what, parts)
    return list(labels), classes


def numbers(name: str, what: str, column: "Column") -> Features:
    """A column as float32 numbers; refuses text, and rows without a number."""
    import pandas as pd

    _refuse_missing(name, what, column)
    if not pd.api.types.is_numeric_dtype(column.dtype):
        odd = next((value for value in column if not _is_number(str(value))), column.iloc[0])
        raise FedskewError(
            f"{name}: {what} holds {odd!r}, and target=number takes numbers: correct it, or leave target= out"
        )
    with np.errstate(over="ignore"):  # what single precision cannot hold becomes infinite, and is refused as such
        result: Features = column.to_numpy(dtype=np.float64).astype(np.float32)
    return result


def label_matrix(name: str, columns: "Mapping[str, Column]") -> NDArray[np.uint8]:
    """Columns of 0 and 1 (or of true and false) as a matrix, one column a label."""
    result = []
    for title, column in columns.items():
        _refuse_missing(name, f"column {title!r}", column)
        odd = next((value for value in column.unique() if value not in (0, 1)), None)
        if odd is not None:
            raise FedskewError(
                f"{name}: column {title!r} holds {_text(odd)}, and target=labels takes 0 and 1: correct it"
            )
        result.append(column.to_numpy().astype(np.uint8))
    return np.stack(result, axis=1)


def _refuse_missing(name: str, what: str, part: "Column") -> None:
    missing = part.isna().to_numpy()
    if missing.any():
        count, first = int(missing.sum()), int(np.argmax(missing))
        raise FedskewError(f"{name}: {what} is missing in {count} rows (first: row {first}); fill or remove them")


def number_labels(name: str, what: str, parts: "list[Column]") -> tuple[list[Ints], tuple[str, ...]]:
    """Return labels of any type as 0 … K-1 in sorted order over all parts, and their names."""
    import pandas as pd

    for part in parts:
        if pd.api.types.is_float_dtype(part.dtype):
            values = part.to_numpy(dtype=np.float64, na_value=np.nan)
            broken = values[~np.isnan(values) & ((values != np.floor(values)) | np.isinf(values))]
            if len(broken):
                raise FedskewError(
                    f"{name}: {what} holds {broken[0]:g}, labels must be whole numbers or text: round or bin them, "
                    'or learn the numbers themselves (target=number, or split(..., task="regression"))'
                )
    numbers, names = number_groups(name, what, parts)
    if len(names) < 2:
        raise FedskewError(f"{name}: {what} holds one class only ({names[0]}); there is nothing to learn")
    return numbers, names


def number_groups(name: str, what: str, parts: "list[Column]") -> tuple[list[Ints], tuple[str, ...]]:
    """Return values of any type as 0 … K-1 in sorted order over all parts, and their names; none may be missing."""
    import pandas as pd

    for part in parts:
        _refuse_missing(name, what, part)
    if len({pd.api.types.is_numeric_dtype(part.dtype) for part in parts}) > 1:  # 1 here and "1" there are the same
        parts = [part.map(_text) for part in parts]
    whole = pd.concat(parts, ignore_index=True) if len(parts) > 1 else parts[0]
    try:
        codes, values = pd.factorize(whole)
    except TypeError:
        raise FedskewError(f"{name}: {what} holds lists or the like, expected one number or name a row") from None
    try:
        order = sorted(range(len(values)), key=values.__getitem__)
    except TypeError:  # numbers and text in one column have no order of their own
        order = sorted(range(len(values)), key=lambda position: str(values[position]))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    ends = np.cumsum([len(part) for part in parts])[:-1]
    return np.split(rank[codes], ends), tuple(_text(values[position]) for position in order)
