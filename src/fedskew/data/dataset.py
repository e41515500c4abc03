"""What every reader returns and everything else works on: rows with targets and, perhaps, groups, in three parts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.notebook import facts_as_html, few, one_line
from fedskew.core.registry import Registry, is_utf8
from fedskew.core.streams import Floats, Ints, Stream
from fedskew.data.fitting import Description
from fedskew.data.schema import Features as Features
from fedskew.data.schema import Gaps, Label, Pipeline, Scaling
from fedskew.data.stored_rows import AnyRows, StoredRows, taken
from fedskew.data.targets import (
    DEFAULT_BINS,
    IN_WORDS,
    Bins,
    Target,
    Targets,
    bins_of,
    check_targets,
    kind_of,
)

_NAMED = 10  # classes in a notebook
_CALLED: dict[Target, str] = {
    "class": "classes",
    "number": "labels",
    "labels": "labels",
    "numbers": "numbers a row",
    "tokens": "tokens",
}


@dataclass(frozen=True)
class Rows:
    """Examples: features (float32, one entry of the first axis a row), targets, and a group number a row or None.

    Features may also be stored rows, which are read when they are used.

    Targets ``y`` are classes (int64, 0 … K-1), numbers (float32), several labels per row (a uint8 matrix of 0 and 1),
    several numbers per row (a float32 matrix) or tokens (an int64 matrix, -1 where a row has none).

    ``series`` is the number of a row's series, where rows of one series overlap (windows): such rows share readings,
    so that they must have the same client. None: rows do not overlap.

    ``unit`` is what 1 in ``x`` was before standardisation, for every entry of the second axis (column or channel):
    skews compare variances in the units of the file. None: features are in these units.

    ``bins`` stand in for classes wherever clients are to differ in their labels, where the targets are not classes.

    ``gaps`` says of every row and column of a table whether the entry was missing and is filled in. None: nothing
    was, or it is not known.
    """

    x: AnyRows
    y: Targets
    group: Ints | None = None
    series: Ints | None = None
    unit: Floats | None = None
    bins: Bins | None = None
    gaps: Gaps | None = None

    def __len__(self) -> int:
        return len(self.y)

    @property
    def target(self) -> Target:
        """What the targets are."""
        return kind_of(self.y)

    @property
    def labelled(self) -> bool:
        """Whether every row has a class, or a bin that stands in for it."""
        return self.target == "class" or self.bins is not None

    @property
    def labels(self) -> Ints:
        """The class of every row, or the bin that stands in for it; refuses targets that have neither."""
        if self.bins is not None:
            return self.bins.of
        if self.target == "class":
            return self.y
        fix = "give bins=5, say, to let bins of them stand in"
        if self.target in ("numbers", "tokens"):
            fix = "nothing stands in for them"
        raise FedskewError(f"the targets are {IN_WORDS[self.target]} and no classes: {fix}")

    @property
    def kinds(self) -> Ints:
        """What a fair split goes by: the class or its bin; else ten bins of the numbers, or the combination of labels.

        With several numbers or tokens per row it goes by nothing.
        """
        if self.labelled:
            return self.labels
        if self.target in ("numbers", "tokens"):
            return np.zeros(len(self), dtype=np.int64)
        if self.target == "number":
            return bins_of(self.y, DEFAULT_BINS).of
        return bins_of(self.y, len(self.y) + 1).of

    @property
    def strata(self) -> Ints:
        """Return what a split keeps in proportion: the label, and the group inside each label."""
        kinds = self.kinds
        if self.group is None or not len(kinds):
            return kinds
        strata: Ints = kinds * (self.group.max() + 1) + self.group
        return strata

    def take(self, index: Ints) -> "Rows":
        """Return the rows at these positions, in this order."""
        group = series = bins = gaps = None
        if self.group is not None:
            group = self.group[index]
        if self.series is not None:
            series = self.series[index]
        if self.bins is not None:
            bins = self.bins.take(index)
        if self.gaps is not None:
            gaps = self.gaps[index]
        return Rows(taken(self.x, index), self.y[index], group, series, self.unit, bins, gaps)

    @staticmethod
    def joined(parts: "Sequence[Rows]") -> "Rows":
        """Return the rows of all parts, in their order; their groups are numbered alike."""
        if len(parts) == 1:
            return parts[0]
        x = np.concatenate([np.asarray(part.x) for part in parts])
        y = np.concatenate([part.y for part in parts])
        groups = [part.group for part in parts if part.group is not None]
        gaps = _joined_gaps(parts)
        if len(groups) < len(parts):
            return Rows(x, y, gaps=gaps)
        return Rows(x, y, np.concatenate(groups), gaps=gaps)


def _joined_gaps(parts: Sequence[Rows]) -> Gaps | None:
    """Return the gaps of all parts, in their order; None if no part has any."""
    found: Gaps | None = None
    start = 0
    for part in parts:
        end = start + len(part)
        if part.gaps is not None:
            if found is None:
                found = np.zeros((sum(map(len, parts)), part.gaps.shape[1]), dtype=np.bool_)
            found[start:end] = part.gaps
        start = end
    return found


@dataclass(frozen=True)
class Dataset:
    """A data set in memory.

    ``classes`` names the classes, labels, tokens or columns of several numbers (none where targets are one number per
    row) and ``groups`` the group numbers;
    ``features`` names the columns of a table (empty for images); ``notes`` says what the reader decided on the user's
    behalf (filled values, a split of its own, a partial file).
    ``recipe`` holds the settings that load the same rows again; it is empty for arrays that came from Python.
    ``silos`` is what each client told about itself, where the data comes with its clients (one is a group of the rows),
    and ``differences`` says in words what is not the same in all of them. ``doubts`` says how files were understood:
    signs and encodings that were recognised, columns that were left out, rows that are there twice. ``schema`` is how a
    table, or arrays, became features; None: the features are the data.
    """

    name: str
    train: Rows
    test: Rows
    classes: tuple[str, ...]
    validation: Rows | None = None
    groups: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    recipe: Mapping[str, Any] = field(default_factory=dict)
    differences: tuple[str, ...] = ()
    silos: tuple[Description, ...] = ()
    schema: Pipeline | None = None
    doubts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._check_part("train", self.train)
        self._check_part("test", self.test)
        if self.validation is not None:
            self._check_part("validation", self.validation)
        for name in (*self.classes, *self.groups, *self.features):
            if not is_utf8(name):
                raise FedskewError(
                    f"{self.name}: the name {name!r} of a class, group or column is not UTF-8: rename it"
                )
        if len(self.train) == 0:
            raise FedskewError(f"{self.name}: there are no training rows")

    def _check_part(self, part: str, rows: Rows) -> None:
        where = f"{self.name}: {part}"
        _check_rows(where, rows, len(self.classes), len(self.groups), self.shape)
        if rows.target != self.target:
            raise FedskewError(
                f"{self.name}: targets of kind {rows.target} in {part}, {self.target} in train"
            )

    def __repr__(self) -> str:
        said = []
        for part, rows in self._parts.items():
            if rows is not None:
                said.append(f"{len(rows):,} {part}")
        return one_line(
            "Dataset", f"{self.name}: {', '.join(said)} rows, {self._features}, {self._targets}"
        )

    def _repr_html_(self) -> str:
        facts: dict[str, Any] = {}
        for part, rows in self._parts.items():
            facts[f"{part} rows"] = None
            if rows is not None:
                facts[f"{part} rows"] = len(rows)
        facts["features"] = self._features
        facts["targets"] = self._targets
        facts["groups"] = len(self.groups) or None
        called = _CALLED[self.target]
        facts[called] = ", ".join(few(self.classes, _NAMED)) or None
        facts["notes"] = "; ".join((*self.doubts, *self.notes)) or None
        return facts_as_html(self.name, facts)

    @property
    def _parts(self) -> "dict[str, Rows | None]":
        return {"training": self.train, "validation": self.validation, "test": self.test}

    @property
    def _features(self) -> str:
        what = "feature"
        if self.features:
            what = "column"
        if self.shape != (1,):
            what += "s"
        return f"{' x '.join(map(str, self.shape))} {what}"

    @property
    def _targets(self) -> str:
        if self.target == "number":
            return "numbers"
        return f"{len(self.classes)} {_CALLED[self.target]}"

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of one row's features."""
        return self.train.x.shape[1:]

    @property
    def target(self) -> Target:
        """What the targets are."""
        return self.train.target

    @property
    def pipeline(self) -> Pipeline:
        """Return how new data become features."""
        if self.schema is not None:
            return self.schema
        columns = self.shape[0]
        label = Label(("y",), self.target, self.classes)
        return Scaling(self.shape, (0.0,) * columns, (1.0,) * columns, label, self.features)

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of what ``train.labels`` counts: the classes, or the bins that stand in for them."""
        if self.train.bins is None:
            return self.classes
        return self.train.bins.names

    def with_bins(self, bins: int | None) -> "Dataset":
        """Return the same data with bins of the training rows' targets, or without any; see ``bins_of``."""
        if bins is None:
            if self.train.bins is None:
                return self
            return replace(self, train=replace(self.train, bins=None))
        if self.target == "class":
            raise FedskewError(
                f"bins={bins}: the targets of {self.name} are classes, which need no bins: leave it out"
            )
        if self.target in ("numbers", "tokens"):
            raise FedskewError(
                f"bins={bins}: the targets of {self.name} are {IN_WORDS[self.target]}, which no bins "
                "stand in for: leave it out, and use a skew that looks at no labels (iid, quantity, natural)"
            )
        made = bins_of(self.train.y, bins, self.classes)
        return replace(self, train=replace(self.train, bins=made))

    def hold_out(self, share: float, seed: int) -> "Dataset":
        """Move a stratified share of the training rows into the validation part (per-layer FedProx: 12,000 of 60,000).

        The features stay as they are, so a standardisation that was fitted before has seen the rows held out here;
        ``load(..., validation=share)`` draws the same rows before anything is fitted.
        """
        if self.validation is not None:
            raise FedskewError(
                f"{self.name} already has validation rows; leave the validation share at 0"
            )
        if self.train.series is not None:
            raise FedskewError(
                f"{self.name}: its windows overlap: load(..., validation={share:g}) holds out whole series"
            )
        kept, held = Split("validation", share, seed).rows(self.name, self.train.strata)
        return replace(self, train=self.train.take(kept), validation=self.train.take(held))


@dataclass(frozen=True)
class Split:
    """A share of the rows to set aside as the test or validation part, drawn from a named seed."""

    part: str
    share: float
    seed: int

    @property
    def stream(self) -> Stream:
        """Return the random stream of this split."""
        return Stream(self.seed, self.part)

    def rows(self, name: str, strata: Ints) -> tuple[Ints, Ints]:
        """Return row numbers (kept, held out), in proportion within every stratum."""
        kept, held = stratified(strata, self.share, self.stream)
        if not len(kept) or not len(held):
            raise FedskewError(
                f"{name}: a {self.part} share of {self.share:g} of {len(strata)} rows leaves one part empty: "
                "choose another share, or add rows"
            )
        return kept, held


class Raw(Protocol):
    """Rows as read, before any split or fit, so that every fit uses training rows only."""

    def build(self, name: str, validation: Split | None) -> Dataset:
        """Split, fit on the training rows, and convert."""


def _check_rows(where: str, rows: Rows, classes: int, groups: int, shape: tuple[int, ...]) -> None:
    _check_features(where, rows.x, len(rows), shape)
    check_targets(where, rows.y, classes)
    _check_finite(where, rows.x)
    if rows.group is not None and not _are_numbered(rows.group, len(rows), groups):
        raise FedskewError(f"{where}: group numbers do not match the {groups} group names")
    if rows.unit is not None and rows.unit.shape != rows.x.shape[1:2]:
        raise FedskewError(
            f"{where}: units of shape {rows.unit.shape} for features of shape {shape}"
        )
    if rows.series is not None and len(rows.series) != len(rows):
        raise FedskewError(f"{where}: {len(rows.series)} series numbers for {len(rows)} rows")


def _check_features(where: str, x: AnyRows, rows: int, shape: tuple[int, ...]) -> None:
    if len(x) != rows:
        raise FedskewError(f"{where}: {len(x)} rows of features but {rows} labels")
    if x.shape[1:] != shape or not shape:
        raise FedskewError(
            f"{where}: features of shape {x.shape[1:]}, expected {shape or 'at least one feature'}"
        )
    if x.dtype != np.float32:
        raise FedskewError(f"{where}: features of type {x.dtype}, expected float32")


def _check_finite(where: str, x: AnyRows) -> None:
    if isinstance(x, StoredRows):
        return  # their values are checked when they are read
    # The sum of finite float32 values overflows only far beyond real data, and costs no copy of x.
    if not np.isfinite(np.sum(x, dtype=np.float64)):
        bad = int(np.argmin(np.isfinite(x.reshape(len(x), -1)).all(axis=1)))
        raise FedskewError(
            f"{where}: row {bad} holds NaN or infinity; clean it or let a table reader fill missing values"
        )


def _are_numbered(group: Ints, rows: int, groups: int) -> bool:
    """Return whether every row has the number of a group."""
    if len(group) != rows:
        return False
    return rows == 0 or bool(0 <= group.min() <= group.max() < groups)


def stratified(y: Ints, share: float, stream: Stream) -> tuple[Ints, Ints]:
    """Return row numbers (kept, held out): ``share`` of every class is held out, with the right total."""
    if not 0 < share < 1:
        raise FedskewError(f"a held-out share of {share:g} is out of range, it must be > 0 and < 1")
    order = stream.permutation(len(y))
    by_class = order[np.argsort(y[order], kind="stable")]
    # Class after class, row i is held out when the running total i*share crosses a whole number: exact in every class
    # to one.
    ticks = np.floor(np.arange(1, len(y) + 1) * share + 1e-9).astype(np.int64)
    held = np.diff(ticks, prepend=0) > 0
    return np.sort(by_class[~held]), np.sort(by_class[held])


Reader: TypeAlias = Callable[..., Raw | Dataset]
datasets: Registry[Reader] = Registry("data set", "fedskew.data")
