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
    numbers,
    refuse_fractions,
    text_of,
)
from fedskew.data.targets import Target, Targets

if TYPE_CHECKING:
    from fedskew.data.cells import Frame

Features: TypeAlias = NDArray[np.float32]
FORMAT = 1  # of a schema in a file
FAR = 10.0  # deviations from the mean, where the median of a new column is suspicious
_CHUNK = 1 << 20  # numbers converted at a time: bounds the float64 copies of a large set


@dataclass(frozen=True)
class Numeric:
    """A numeric column: the value for missing entries, and what to subtract and divide by.

    ``optional`` says that clients without this column took part in the fit: it may be missing in a file.
    """

    name: str
    fill: float
    mean: float
    deviation: float
    optional: bool = False

    @property
    def features(self) -> tuple[str, ...]:
        """Return the name of its only feature."""
        return (self.name,)

    @property
    def unit(self) -> Floats:
        """Return what 1 in its feature is in the column."""
        return np.array([self.deviation])

    def missing(self, frame: "Frame") -> int:
        """Return the number of missing entries."""
        return int(np.isnan(finite(frame[self.name])).sum())

    def write(self, frame: "Frame", x: Features) -> None:
        """Write its values into its column of ``x``."""
        if self.name in frame.columns:
            values = finite(frame[self.name])
        else:
            values = np.full(len(frame), np.nan)
        # What single precision cannot hold becomes infinite, and is refused as such
        with np.errstate(over="ignore"):
            x[:, 0] = (np.where(np.isnan(values), self.fill, values) - self.mean) / self.deviation


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
        if self.pooled:
            names = (*self.values, OTHER)
        else:
            names = self.values
        return tuple(f"{self.name}={value}" for value in names)

    @property
    def unit(self) -> Floats:
        """Return ones: the features are indicators."""
        return np.ones(len(self.features))

    def missing(self, frame: "Frame") -> int:
        """Return the number of missing entries."""
        return int(frame[self.name].isna().sum())

    def write(self, frame: "Frame", x: Features) -> None:
        """Write ones into its columns of ``x``."""
        slots = {value: slot for slot, value in enumerate(self.values)}
        if self.pooled:
            other = len(self.values)
        else:
            other = -1
        if self.name in frame.columns:
            codes, values = categories(frame[self.name])
            slot = np.array([slots.get(value, other) for value in values], dtype=np.int64)[codes]
        else:
            slot = np.full(len(frame), slots.get(MISSING, other))
        known = np.flatnonzero(slot >= 0)
        x[known, slot[known]] = 1


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
        column = frame[self.columns[0]]
        if self.target == "number":
            return numbers(name, what, column)
        refuse_fractions(name, what, column)
        codes, values = distinct(name, what, column)
        place = {text: number for number, text in enumerate(self.classes)}
        strange = next((value for value in values if text_of(value) not in place), None)
        if strange is not None:
            raise unknown(f"class in {what} of {name}", text_of(strange), self.classes)
        return np.array([place[text_of(value)] for value in values], dtype=np.int64)[codes]


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
        return tuple(feature for column in self.columns for feature in column.features)

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

    def check(self, name: str, frame: "Frame") -> None:
        """Raise an error, with the name of the column, for a new table that does not fit."""
        there = [str(title) for title in frame.columns]
        ours = {column.name for column in self.columns}
        if twice := next(
            (title for title in there if title in ours and there.count(title) > 1), None
        ):
            raise FedskewError(
                f"{name}: column {twice!r} is there twice: rename one or take it out"
            )
        for column in self.columns:
            if column.name not in there:
                same = next(
                    (title for title in there if title not in ours and alike(title, column.name)),
                    None,
                )
                if column.optional and same is None and not ours.isdisjoint(there):
                    continue
                if same:
                    hint = f"; is {same!r} the same column? Then rename it"
                else:
                    hint = f"; it has {', '.join(there)}"
                raise FedskewError(
                    f"{name} lacks column {column.name!r}, on which the model was trained{hint}"
                )
            cells = frame[column.name]
            if isinstance(column, Numeric):
                try:
                    finite(cells)
                except FedskewError as problem:
                    raise FedskewError(f"{name}: {problem}") from None
            elif (
                is_numeric(cells)
                and not cells.isna().all()
                and not any(map(is_number, column.values))
            ):
                raise FedskewError(
                    f"{name}: column {column.name!r} holds numbers ({text_of(cells.dropna().iloc[0])}), and the "
                    f"training rows have categories there ({', '.join(column.values[:5])}): correct it"
                )

    def doubts(self, frame: "Frame") -> Iterator[str]:
        """Yield a sentence for each column of a new table that fits, and yet is unlike that of the training rows."""
        for column in (column for column in self.columns if column.name in frame.columns):
            if isinstance(column, Numeric):
                values = finite(frame[column.name])
                if np.isfinite(values).any():
                    middle = float(np.median(values[~np.isnan(values)]))
                else:
                    middle = column.mean
                standardised = (column.mean, column.deviation) != (0.0, 1.0)
                if standardised and abs(middle - column.mean) > FAR * column.deviation:
                    yield (
                        f"column {column.name!r} has the median {middle:.4g}, and the training rows a mean of "
                        f"{column.mean:.4g} and a deviation of {column.deviation:.4g}: is it another unit?"
                    )
            elif not column.pooled:
                codes, texts = categories(frame[column.name])
                strange = []
                for place, text in enumerate(texts):
                    if text not in (*column.values, MISSING):
                        strange.append(place)
                rows = int(np.isin(codes, strange).sum())
                if rows:
                    new = ", ".join(repr(texts[place]) for place in strange[:5])
                    yield (
                        f"column {column.name!r} has categories that no training row has ({new}) in {rows} rows, which "
                        f"count as none of the known ones ({', '.join(map(repr, column.values[:5]))})"
                    )

    def to_json(self) -> dict[str, Any]:
        """Return the schema as JSON's types."""
        kinds = {Numeric: "number", Categories: "category"}
        columns = []
        for column in self.columns:
            columns.append({"kind": kinds[type(column)], **asdict(column)})
        windows = {"window": self.window, "stride": self.stride}
        return {
            "format": FORMAT,
            "kind": "table",
            "columns": columns,
            "label": asdict(self.label),
            **windows,
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
        result: Features = np.empty(x.shape, dtype=np.float32)
        along = (1, -1) + (1,) * (x.ndim - 2)
        shift: NDArray[Any] = np.array(self.offset).reshape(along)
        # Which holds these numbers exactly, and is several times faster
        if np.can_cast(x.dtype, np.float32):
            shift = shift.astype(np.float32)
        scale = np.array(self.factor).reshape(along).astype(np.float32)
        for rows in chunks(x):
            np.subtract(x[rows], shift, out=result[rows], casting="same_kind")
            result[rows] *= scale
        return result

    def array(self, name: str, frame: "Frame") -> NDArray[Any]:
        """Return the columns of a table that are features, by name."""
        lacking = next((feature for feature in self.features if feature not in frame.columns), None)
        if not self.features or lacking is not None:
            if lacking:
                what = f"lacks column {lacking!r}, on which the model was trained"
            else:
                what = "is a table of columns"
            raise FedskewError(
                f"{name} {what}; give an array of shape {('rows', *self.shape)}, or these columns"
            )
        return frame[list(self.features)].to_numpy()

    def check(self, name: str, x: NDArray[Any]) -> None:
        """Raise an error for new rows that do not fit."""
        if x.dtype.kind not in "biuf" or x.shape[1:] != self.shape:
            raise FedskewError(
                f"{name}: x of shape {x.shape} and type {x.dtype}, and the model was trained on numbers of shape "
                f"{('rows', *self.shape)}"
            )
        if x.dtype.kind == "f" and not np.isfinite(x).all():
            raise FedskewError(f"{name}: x holds NaN or infinity: fill or remove these rows")

    def to_json(self) -> dict[str, Any]:
        """Return the scaling as JSON's types."""
        return {"format": FORMAT, "kind": "arrays", **asdict(self)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Scaling":
        """Return the scaling that ``to_json`` wrote."""
        with _reading(content):
            shape, offset, factor, names = (
                tuple(content[part]) for part in ("shape", "offset", "factor", "features")
            )
            return cls(shape, offset, factor, _label(content), names)


Pipeline: TypeAlias = Schema | Scaling


def pipeline_from(content: Mapping[str, Any]) -> Pipeline:
    """Return the schema of a table, or the scaling of arrays, that was stored as JSON."""
    if content.get("kind") == "arrays":
        return Scaling.from_json(content)
    return Schema.from_json(content)


def chunks(x: NDArray[Any]) -> Iterator[slice]:
    """Return slices of the rows that are converted at a time, so that copies of a large set stay small."""
    step = max(1, _CHUNK // max(1, x[:1].size))
    return (slice(start, start + step) for start in range(0, len(x), step))


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
    columns, target, classes = (content["label"][part] for part in ("columns", "target", "classes"))
    return Label(tuple(columns), target, tuple(classes))


def _column(kind: str, **entry: Any) -> Numeric | Categories:
    if kind == "number":
        return Numeric(**entry)
    return Categories(**{**entry, "values": tuple(entry["values"])})
