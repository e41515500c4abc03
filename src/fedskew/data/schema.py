"""How data become features and targets: the schema of tables, the scaling of arrays; both are stored as JSON."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import FedskewError, unknown
from fedskew.core.streams import Floats
from fedskew.data.cells import (
    MISSING,
    OTHER,
    alike,
    categories,
    distinct,
    finite,
    is_number,
    is_numeric,
    label_matrix,
    number_matrix,
    numbers,
    numbers_of,
    refuse_fractions,
    text_of,
)
from fedskew.data.dates import days_of
from fedskew.data.targets import Target, Targets

if TYPE_CHECKING:
    from fedskew.data.cells import Column, Frame

Features: TypeAlias = NDArray[np.float32]
Gaps: TypeAlias = NDArray[np.bool_]
FORMAT = 1  # of a schema in a file
FAR = 10.0  # deviations from the mean, where the median of a new column is suspicious
_CHUNK = 1 << 20  # numbers converted at a time: bounds the float64 copies of a large set


@dataclass(frozen=True)
class Numeric:
    """A numeric column: the value for missing entries, and what to subtract and divide by.

    ``optional`` says that clients without this column took part in the fit: it may be missing in a file. ``dates`` says
    that its numbers are the days of dates.
    """

    name: str
    fill: float
    mean: float
    deviation: float
    optional: bool = False
    dates: bool = False

    @property
    def features(self) -> tuple[str, ...]:
        """Return the name of its only feature."""
        return (self.name,)

    @property
    def unit(self) -> Floats:
        """Return what 1 in its feature is in the column."""
        return np.array([self.deviation])

    def gaps(self, frame: "Frame") -> Gaps:
        """Return which entries are missing: all, where the table lacks the column."""
        if self.name not in frame.columns:
            return np.ones(len(frame), dtype=np.bool_)
        return np.isnan(self.numbers(frame[self.name]))

    def numbers(self, cells: "Column") -> Floats:
        """Return the numbers of a column, NaN where one is missing."""
        if self.dates:
            return days_of("dates=days", cells)
        return finite(cells)

    def write(self, frame: "Frame", x: Features) -> None:
        """Write its values into its column of ``x``."""
        values = np.full(len(frame), np.nan)
        if self.name in frame.columns:
            values = self.numbers(frame[self.name])
        # What single precision cannot hold becomes infinite, and is refused as such
        with np.errstate(over="ignore"):
            x[:, 0] = (np.where(np.isnan(values), self.fill, values) - self.mean) / self.deviation

    def check(self, name: str, cells: "Column") -> None:
        """Raise an error for a column of a new table that does not hold numbers."""
        try:
            self.numbers(cells)
        except FedskewError as problem:
            raise FedskewError(f"{name}: {problem}") from None

    def doubt(self, cells: "Column") -> str:
        """Return a sentence if a new column has a median far from the training rows' mean; else nothing."""
        values = self.numbers(cells)
        present = values[~np.isnan(values)]
        if not len(present) or (self.mean, self.deviation) == (0.0, 1.0):
            return ""
        median = float(np.median(present))
        if abs(median - self.mean) <= FAR * self.deviation:
            return ""
        return (
            f"column {self.name!r} has the median {median:.4g}, and the training rows a mean of "
            f"{self.mean:.4g} and a deviation of {self.deviation:.4g}: is it another unit?"
        )


@dataclass(frozen=True)
class Categories:
    """A text column: one feature per category of the training rows; an unseen category is 'other', if there is one.

    ``pooled`` is how many rare categories share the feature 'other'; ``optional`` is as in ``Numeric``.
    """

    name: str
    values: tuple[str, ...]
    pooled: int
    optional: bool = False

    @property
    def features(self) -> tuple[str, ...]:
        """Return the names of its features."""
        names = [f"{self.name}={value}" for value in self.values]
        if self.pooled:
            names.append(f"{self.name}={OTHER}")
        return tuple(names)

    @property
    def unit(self) -> Floats:
        """Return ones: the features are indicators."""
        return np.ones(len(self.features))

    def gaps(self, frame: "Frame") -> Gaps:
        """Return which entries are missing: all, where the table lacks the column."""
        if self.name not in frame.columns:
            return np.ones(len(frame), dtype=np.bool_)
        return np.asarray(frame[self.name].isna(), dtype=np.bool_)

    def write(self, frame: "Frame", x: Features) -> None:
        """Write ones into its columns of ``x``."""
        slots = {value: slot for slot, value in enumerate(self.values)}
        other = -1
        if self.pooled:
            other = len(self.values)
        if self.name in frame.columns:
            codes, values = categories(frame[self.name])
            places = [slots.get(value, other) for value in values]
            slot = np.array(places, dtype=np.int64)[codes]
        else:
            slot = np.full(len(frame), slots.get(MISSING, other))
        known = np.flatnonzero(slot >= 0)
        x[known, slot[known]] = 1

    def check(self, name: str, cells: "Column") -> None:
        """Raise an error for a column of a new table that holds numbers, where no category is one."""
        if not is_numeric(cells) or cells.isna().all() or any(map(is_number, self.values)):
            return
        raise FedskewError(
            f"{name}: column {self.name!r} holds numbers ({text_of(cells.dropna().iloc[0])!r}), and the "
            f"training rows have categories there ({', '.join(self.values[:5])}): correct it"
        )

    def doubt(self, cells: "Column") -> str:
        """Return a sentence if a new column has categories that no training row has; else nothing."""
        if self.pooled:
            return ""
        codes, texts = categories(cells)
        places = []
        strange = []
        for place, text in enumerate(texts):
            if text not in (*self.values, MISSING):
                places.append(place)
                strange.append(repr(text))
        rows = int(np.isin(codes, places).sum())
        if not rows:
            return ""
        new = ", ".join(strange[:5])
        known = ", ".join(map(repr, self.values[:5]))
        return (
            f"column {self.name!r} has categories that no training row has ({new}) in {rows} rows, which "
            f"count as none of the known ones ({known})"
        )


@dataclass(frozen=True)
class Label:
    """The column that holds the target, or several with one label each; ``classes`` names classes or labels."""

    columns: tuple[str, ...]
    target: Target
    classes: tuple[str, ...]

    def encode(self, name: str, frame: "Frame") -> Targets:
        """Return the targets of a table; a class that was not there at the fit is refused."""
        what = f"column {self.columns[0]!r}"
        if self.target == "labels":
            return label_matrix(name, {column: frame[column] for column in self.columns})
        if self.target == "numbers":
            return number_matrix(name, {column: frame[column] for column in self.columns})
        column = frame[self.columns[0]]
        if self.target == "number":
            return numbers(name, what, column)
        refuse_fractions(name, what, column)
        codes, values = distinct(name, what, column)
        texts = [text_of(value) for value in values]
        for text in texts:
            if text not in self.classes:
                raise unknown(f"class in {what} of {name}", text, self.classes)
        return numbers_of(texts, self.classes)[codes]


@dataclass(frozen=True)
class Schema:
    """Columns by name, in order, and the label; ``window`` rows of a series, ``stride`` apart, are one example.

    >>> schema = Schema((Numeric("age", 60.0, 50.0, 10.0),), Label(("y",), "class", ("no", "yes")))
    >>> Schema.from_json(schema.to_json()) == schema
    True
    """

    columns: tuple[Numeric | Categories, ...]
    label: Label
    window: int = 0
    stride: int = 0

    @property
    def features(self) -> tuple[str, ...]:
        """Return the names of all features."""
        names: list[str] = []
        for column in self.columns:
            names.extend(column.features)
        return tuple(names)

    @property
    def unit(self) -> Floats:
        """Return what 1 is in the table, for each feature."""
        return np.concatenate([column.unit for column in self.columns])

    def encode(self, frame: "Frame") -> Features:
        """Return the features of a table's rows; what it lacks of optional columns is filled."""
        x: Features = np.zeros((len(frame), len(self.features)), dtype=np.float32)
        start = 0
        for column in self.columns:
            end = start + len(column.features)
            column.write(frame, x[:, start:end])
            start = end
        return x

    def gaps(self, frame: "Frame") -> Gaps | None:
        """Return which entries of a table are missing, row by column; None if there is none."""
        found: Gaps = np.zeros((len(frame), len(self.columns)), dtype=np.bool_)
        for place, column in enumerate(self.columns):
            found[:, place] = column.gaps(frame)
        if found.any():
            return found
        return None

    def check(self, name: str, frame: "Frame") -> None:
        """Raise an error, with the name of the column, for a new table that does not fit."""
        titles = [str(title) for title in frame.columns]
        ours = {column.name for column in self.columns}
        for title in titles:
            if title in ours and titles.count(title) > 1:
                raise FedskewError(
                    f"{name}: column {title!r} is there twice: rename one or take it out"
                )
        for column in self.columns:
            if column.name in titles:
                column.check(name, frame[column.name])
            else:
                self._check_absent(name, column, titles)

    def _check_absent(self, name: str, column: Numeric | Categories, titles: list[str]) -> None:
        """Raise an error for a table without this column, unless it may be missing and has no other name."""
        ours = {column.name for column in self.columns}
        same = [title for title in titles if title not in ours and alike(title, column.name)]
        if column.optional and not same and not ours.isdisjoint(titles):
            return
        hint = f"; it has {', '.join(titles)}"
        if same:
            hint = f"; is {same[0]!r} the same column? Then rename it"
        raise FedskewError(
            f"{name} lacks column {column.name!r}, on which the model was trained{hint}"
        )

    def doubts(self, frame: "Frame") -> Iterator[str]:
        """Yield a sentence for each column of a new table that fits, and yet is unlike that of the training rows."""
        for column in self.columns:
            if column.name not in frame.columns:
                continue
            sentence = column.doubt(frame[column.name])
            if sentence:
                yield sentence

    def to_json(self) -> dict[str, Any]:
        """Return the schema as JSON's types."""
        kinds = {Numeric: "number", Categories: "category"}
        columns = []
        for column in self.columns:
            columns.append({"kind": kinds[type(column)], **asdict(column)})
        return {
            "format": FORMAT,
            "kind": "table",
            "columns": columns,
            "label": asdict(self.label),
            "window": self.window,
            "stride": self.stride,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Schema":
        """Return the schema that ``to_json`` wrote."""
        with _reading(content):
            columns = [_column(**entry) for entry in content["columns"]]
            return cls(
                tuple(columns), _label(content), int(content["window"]), int(content["stride"])
            )


@dataclass(frozen=True)
class Scaling:
    """How arrays (images, signals, tables of numbers) become features, and the label.

    From every entry of the second axis (a column or channel) ``offset`` is subtracted, and the rest multiplied with
    ``factor``; ``shape`` is that of a row, and ``features`` are the names of columns, if they have any.
    """

    shape: tuple[int, ...]
    offset: tuple[float, ...]
    factor: tuple[float, ...]
    label: Label
    features: tuple[str, ...] = ()

    def encode(self, x: NDArray[Any]) -> Features:
        """Return the features of rows, as float32."""
        features: Features = np.empty(x.shape, dtype=np.float32)
        along = (1, -1) + (1,) * (x.ndim - 2)
        shift: NDArray[Any] = np.array(self.offset).reshape(along)
        # Which holds these numbers exactly, and is several times faster
        if np.can_cast(x.dtype, np.float32):
            shift = shift.astype(np.float32)
        scale = np.array(self.factor).reshape(along).astype(np.float32)
        for rows in chunks(x):
            np.subtract(x[rows], shift, out=features[rows], casting="same_kind")
            features[rows] *= scale
        return features

    def array(self, name: str, frame: "Frame") -> NDArray[Any]:
        """Return the columns of a table that are features, by name."""
        lacking = [feature for feature in self.features if feature not in frame.columns]
        if self.features and not lacking:
            return frame[list(self.features)].to_numpy()
        what = "is a table of columns"
        if lacking:
            what = f"lacks column {lacking[0]!r}, on which the model was trained"
        raise FedskewError(
            f"{name} {what}; give an array of shape {('rows', *self.shape)}, or these columns"
        )

    def check(self, name: str, x: NDArray[Any]) -> None:
        """Raise an error for new rows that do not fit."""
        self.check_shape(name, x.shape, x.dtype)
        if x.dtype.kind == "f" and not np.isfinite(x).all():
            raise FedskewError(f"{name}: x holds NaN or infinity: fill or remove these rows")

    def check_shape(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """Raise an error for new rows of another shape, or of no numbers."""
        if dtype.kind not in "biuf" or shape[1:] != self.shape:
            raise FedskewError(
                f"{name}: x of shape {shape} and type {dtype}, and the model was trained on numbers of shape "
                f"{('rows', *self.shape)}"
            )

    def to_json(self) -> dict[str, Any]:
        """Return the scaling as JSON's types."""
        return {"format": FORMAT, "kind": "arrays", **asdict(self)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Scaling":
        """Return the scaling that ``to_json`` wrote."""
        with _reading(content):
            return cls(
                shape=tuple(content["shape"]),
                offset=tuple(content["offset"]),
                factor=tuple(content["factor"]),
                label=_label(content),
                features=tuple(content["features"]),
            )


Pipeline: TypeAlias = Schema | Scaling


def pipeline_from(content: Mapping[str, Any]) -> Pipeline:
    """Return the schema of a table, or the scaling of arrays, that was stored as JSON."""
    if content.get("kind") == "arrays":
        return Scaling.from_json(content)
    return Schema.from_json(content)


def chunks(x: NDArray[Any]) -> Iterator[slice]:
    """Yield slices of the rows that are converted at a time, so that copies of a large set stay small."""
    step = max(1, _CHUNK // max(1, x[:1].size))
    for start in range(0, len(x), step):
        yield slice(start, start + step)


@contextmanager
def _reading(content: Mapping[str, Any]) -> Iterator[None]:
    """Turn what goes wrong with the content of a file into an error."""
    if content.get("format") != FORMAT:
        raise FedskewError(
            f"a schema of format {content.get('format')!r}, and this version of fedskew reads {FORMAT}: "
            "use the version that wrote it"
        )
    try:
        yield
    except (KeyError, TypeError, ValueError) as problem:
        raise FedskewError(f"the schema is damaged: {type(problem).__name__}: {problem}") from None


def _label(content: Mapping[str, Any]) -> Label:
    label = content["label"]
    return Label(tuple(label["columns"]), label["target"], tuple(label["classes"]))


def _column(kind: str, **entry: Any) -> Numeric | Categories:
    if kind == "number":
        return Numeric(**entry)
    return Categories(**{**entry, "values": tuple(entry["values"])})
