"""Rows that are arrays (images, numeric features): split, standardise on training rows, convert."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import FedskewError
from fedskew.core.streams import Floats, Ints
from fedskew.data.dataset import Dataset, Rows, Split
from fedskew.data.differences import differences
from fedskew.data.duplicates import duplicates_sentence
from fedskew.data.fitting import ColumnFacts, Description, Moments
from fedskew.data.readers.windows import split_series
from fedskew.data.schema import Label, Numeric, Scaling, Schema, chunks
from fedskew.data.stored_rows import AnyRows, StoredRows, are_pixels, taken
from fedskew.data.targets import DEFAULT_BINS, Target

Numbers: TypeAlias = NDArray[Any]

_SAMPLE = 4_096  # stored rows from which a standardisation is fitted

PixelScale: TypeAlias = Literal["standard", "unit"]


@dataclass(frozen=True)
class Arrays:
    """Array data before any split; its values have any numeric type.

    ``test`` is the published test part or the split to draw. ``scaled`` marks the entries of the second axis (columns
    of a table, channels of an image or signal) that are standardised; None: none. ``full_scale`` is the number that
    becomes 1. With ``silos`` the groups are clients: each holds out rows for itself, and the standardisation is fitted
    on what they can tell. With ``whole_groups`` rows of one group overlap (windows of one person), so that a split
    holds out whole groups. ``counted`` says that rows which are there twice are counted, as in a user's own files.
    """

    train: Rows
    test: Rows | Split
    classes: tuple[str, ...]
    groups: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    scaled: NDArray[np.bool_] | None = None
    full_scale: float = 1.0
    silos: bool = False
    whole_groups: bool = False
    counted: bool = False

    def build(self, name: str, validation: Split | None) -> Dataset:
        """Split, fit the standardisation on the training rows, and convert."""
        data = self._built(name, validation)
        if not self.counted:
            return data
        sentence = duplicates_sentence(data)
        if not sentence:
            return data
        return replace(data, doubts=(sentence,))

    def _built(self, name: str, validation: Split | None) -> Dataset:
        train, test, held = self.parted(name, validation)
        offset, factor = self._fit(train)
        if self.scaled is not None:
            train = replace(train, unit=1 / factor)
        target = Label(("y",), train.target, self.classes)
        scaling = Scaling(
            train.x.shape[1:], tuple(offset.tolist()), tuple(factor.tolist()), target, self.features
        )
        described: tuple[Description, ...] = ()
        if self.silos:
            described = self.described(train, test)
        if held is not None:
            held = _encoded(held, scaling)
        return Dataset(
            name=name,
            train=_encoded(train, scaling),
            test=_encoded(test, scaling),
            validation=held,
            schema=scaling,
            classes=self.classes,
            groups=self.groups,
            features=self.features,
            notes=self.notes
            + self._split_notes(train.target)
            + self._scale_notes(offset, factor, train.x),
            silos=described,
            differences=differences(comparable(scaling), described),
        )

    def parted(self, name: str, validation: Split | None) -> tuple[Rows, Rows, Rows | None]:
        """Return the rows for training, test and validation; NaN in any of them is refused."""
        train, held = self.train, None
        if isinstance(self.test, Split):
            train, test = self._set_aside(name, train, self.test)
        else:
            test = self.test
        if validation is not None:
            train, held = self._set_aside(name, train, validation)
        for label, part in (("train", train), ("test", test), ("validation", held)):
            if part is not None:
                _refuse_nan(f"{name}: {label}", part.x)
        return train, test, held

    def described(self, train: Rows, test: Rows) -> tuple[Description, ...]:
        """Return what each client tells about itself: its classes and, of a table, the quartiles of its columns."""
        clients = []
        for number, own in enumerate(self._pieces(train)):
            x = np.asarray(taken(train.x, own))
            columns: dict[str, ColumnFacts] = {}
            if x.ndim == 2:
                columns = _column_facts(x, self.features)
            classes: dict[str, int] = {}
            if train.target == "class":
                y = train.y[own]
                if test.group is not None:
                    y = np.concatenate([y, test.y[test.group == number]])
                classes = self._rows_of_classes(y)
            clients.append(
                Description(self.groups[number], len(own), columns, classes, x.shape[1:])
            )
        return tuple(clients)

    def _rows_of_classes(self, y: Ints) -> dict[str, int]:
        """Return how many rows each class has, of those that have any."""
        counts = np.bincount(y, minlength=len(self.classes)).tolist()
        present = {}
        for name, count in zip(self.classes, counts, strict=True):
            if count:
                present[name] = count
        return present

    def _pieces(self, part: Rows) -> list[Ints]:
        """Return the rows of each client, or all of them."""
        if not self.silos or part.group is None:
            return [np.arange(len(part))]
        return [np.flatnonzero(part.group == number) for number in range(len(self.groups))]

    def _set_aside(self, name: str, part: Rows, split: Split) -> tuple[Rows, Rows]:
        """Return the rows that are kept and those held out, of each client for itself or of all."""
        if self.whole_groups:
            kept, held = split_series(name, np.arange(len(part)), part.group, split)
            return part.take(kept), part.take(held)
        if not self.silos:
            kept, held = split.rows(name, part.strata)
            return part.take(kept), part.take(held)
        all_kept, all_held = [], []
        for number, rows in enumerate(self._pieces(part)):
            kept, held = split.rows(f"{name}: {self.groups[number]}", part.take(rows).strata)
            all_kept.append(rows[kept])
            all_held.append(rows[held])
        return part.take(np.concatenate(all_kept)), part.take(np.concatenate(all_held))

    def _fit(self, train: Rows) -> tuple[Floats, Floats]:
        """Return what to subtract from and then multiply with every entry of the second axis."""
        x = train.x
        offset = np.zeros(x.shape[1])
        factor = np.full(x.shape[1], 1 / self.full_scale)
        if self.scaled is not None:
            mean, deviation = moments(*self._fitted_on(train))
            offset[self.scaled] = mean[self.scaled]
            factor[self.scaled] = factor_of(deviation)[self.scaled]
        return offset, factor

    def _fitted_on(self, train: Rows) -> list[Numbers]:
        """Return the features to which a standardisation is fitted: of stored rows a sample, else all, by client."""
        x = train.x
        if isinstance(x, StoredRows) and x.in_memory:
            return [np.asarray(x.source)]
        if isinstance(x, StoredRows):
            return [x.sample(_SAMPLE)]
        if not self.silos:
            return [x]
        parts: list[Numbers] = []
        for rows in self._pieces(train):
            parts.append(x[rows])
        return parts

    def _split_notes(self, target: Target) -> tuple[str, ...]:
        if not isinstance(self.test, Split):
            return ()
        if self.whole_groups:
            return (whole_groups_note(self.test),)
        note = split_note(self.test, target)
        if self.silos:
            note += ", by each client for itself"
        return (note,)

    def _scale_notes(self, offset: Floats, factor: Floats, x: AnyRows) -> tuple[str, ...]:
        dimensions = x.ndim
        if self.scaled is None or not self.scaled.any():
            if isinstance(x, StoredRows) and are_pixels(x):
                return ("pixels are bytes, and divided by 255 when they are used",)
            return ()
        count = int(self.scaled.sum())
        what = "columns"
        if dimensions > 2:
            what = "channels"
        note = f"{count} of {len(self.scaled)} {what} standardised with the mean and deviation of the training rows"
        if isinstance(x, StoredRows) and not x.in_memory and len(x) > _SAMPLE:
            note = note.replace("the training rows", f"{_SAMPLE:,} training rows")
        if dimensions > 2 and count <= 3:
            means = _four_digits(offset[self.scaled] / self.full_scale)
            deviations = _four_digits(1 / factor[self.scaled] / self.full_scale)
            note += f" ({means}; {deviations})"
        return (note,)


def _encoded(rows: Rows, scaling: Scaling) -> Rows:
    if isinstance(rows.x, StoredRows):
        return replace(rows, x=replace(rows.x, scaling=scaling))
    return replace(rows, x=scaling.encode(rows.x))


def _column_facts(x: Numbers, features: tuple[str, ...]) -> dict[str, ColumnFacts]:
    """Return the ends and the quartiles of the columns of a table of numbers."""
    titles = features or tuple(map(str, range(x.shape[1])))
    ends = np.quantile(x, [0, 0.25, 0.5, 0.75, 1], axis=0).T.tolist()
    facts = {}
    for title, (low, first, middle, third, high) in zip(titles, ends, strict=True):
        facts[title] = ColumnFacts("number", str(low), 0, low, high, (first, middle, third))
    return facts


def _four_digits(values: Floats) -> str:
    return ", ".join(f"{value:.4f}" for value in values)


def scaled_pixels(x: AnyRows | Numbers, scale: PixelScale) -> NDArray[np.bool_] | None:
    """Return the channels of images to standardise: all of them, or none where pixels are between 0 and 1."""
    if scale == "standard":
        return everything(x)
    return None


def everything(x: AnyRows | Numbers) -> NDArray[np.bool_]:
    """Return the mask that standardises every column or channel of these rows."""
    return np.ones(x.shape[1], dtype=np.bool_)


def split_note(split: Split, target: Target = "class") -> str:
    """What a user should know about a split that is not the publisher's."""
    held = f"a {split.share:g} share held out for test"
    within = {
        "class": "every class",
        "number": f"{DEFAULT_BINS} bins of the target",
        "labels": "every combination of labels",
    }
    if target in within:
        held += f", in proportion within {within[target]}"
    return f"no published split: {held}, seed {split.seed}"


def whole_groups_note(split: Split) -> str:
    """What a user should know about a split by groups, whose rows overlap."""
    return (
        f"no published split: whole groups (a share of about {split.share:g}) held out for test, seed {split.seed}, as "
        "rows of one group overlap"
    )


def moments(*parts: Numbers) -> tuple[Floats, Floats]:
    """Return mean and standard deviation of every entry of the second axis, over all the others and all parts."""
    return merged_moments([moments_of(x, len(parts) > 1) for x in parts])


def merged_moments(parts: Sequence[Sequence[Moments]]) -> tuple[Floats, Floats]:
    """Return mean and standard deviation of every entry of the second axis from the moments of all parts."""
    merged = [Moments.merged(same) for same in zip(*parts, strict=True)]
    mean = np.array([column.mean for column in merged])
    deviation = np.array([column.deviation for column in merged])
    # Rounding leaves a constant column with a deviation of about 1e-16 of its value: that is still constant.
    return mean, np.where(deviation <= 1e-12 * np.abs(mean), 0.0, deviation)


def moments_of(x: Numbers, merged: bool) -> list[Moments]:
    """Return the moments of every entry of the second axis, in two passes; merging needs the mean's error as well."""
    axes = (0, *range(2, x.ndim))
    count = max(1, x.size // max(1, x.shape[1]))
    total = np.zeros(x.shape[1])
    for rows in chunks(x):
        total += x[rows].sum(axis=axes, dtype=np.float64)
    mean = total / count
    centre = _along_second_axis(mean, x.ndim)
    squares = np.zeros(x.shape[1])
    error = np.zeros(x.shape[1])
    for rows in chunks(x):
        apart = x[rows] - centre
        if merged:
            error += apart.sum(axis=axes) / count
        squares = squares + (apart**2).sum(axis=axes)
    columns = zip(mean.tolist(), error.tolist(), squares.tolist(), strict=True)
    return [Moments(count, *column) for column in columns]


def factor_of(deviation: Floats) -> Floats:
    """Return what brings numbers of these deviations to deviation 1; constant ones stay as they are."""
    factor: Floats = 1 / np.where(deviation > 0, deviation, 1)
    return factor


def comparable(scaling: Scaling) -> Schema:
    """Return the columns of a table of numbers as those of a schema, for comparing clients; images have none."""
    if len(scaling.shape) > 1:
        return Schema((), scaling.label)
    titles = scaling.features or tuple(map(str, range(scaling.shape[0])))
    columns = [Numeric(title, 0.0, 0.0, 1.0) for title in titles]
    return Schema(tuple(columns), scaling.label)


def _along_second_axis(values: Floats, dimensions: int) -> Floats:
    return values.reshape((1, -1) + (1,) * (dimensions - 2))


def _refuse_nan(where: str, x: AnyRows) -> None:
    if isinstance(x, StoredRows):
        if not x.in_memory:
            return  # every row is checked when it is read
        values: Numbers = np.asarray(x.source)
    else:
        values = x
    if values.dtype.kind != "f":
        return
    for rows in chunks(values):
        good = np.isfinite(values[rows]).reshape(len(values[rows]), -1).all(axis=1)
        if not good.all():
            first = rows.start + int(np.argmin(good))
            raise FedskewError(f"{where}: row {first} holds NaN or infinity; fill or drop it")
