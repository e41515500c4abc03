"""A silo of arrays: a client's NPZ file, which answers the questions of a fit; and the scaling that all share."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.files import read_npz
from fedskew.data.cells import (
    class_counts,
    label_matrix,
    names_in_order,
    number_groups,
    numbers,
    numbers_of,
    refuse_one_class,
)
from fedskew.data.class_spellings import refuse_other_spellings
from fedskew.data.convert import Loose, matrices_of
from fedskew.data.dataset import Dataset, Rows, Split
from fedskew.data.fitting import Description, Moments, Request, Silos
from fedskew.data.readers.arrays import Arrays, factor_of, merged_moments, moments_of
from fedskew.data.readers.silo_files import loose_parts, refuse_windows
from fedskew.data.schema import Label, Scaling
from fedskew.data.targets import Target, Targets

LABEL = "y"  # the array with the targets


class ArraySilo:
    """A client's arrays, its rows divided; classes are numbered for this client alone until there is a scaling.

    Args:
        name: the name of the client
        path: its NPZ file: x and y, and perhaps x_test and y_test
        options: those of the data set ``silos``
        validation: how validation rows are drawn, if any are
    """

    def __init__(
        self, name: str, path: Path, options: Mapping[str, Any], validation: Split | None
    ) -> None:
        if options["label"] != LABEL:
            raise FedskewError(
                f"{path} holds arrays, with the targets in {LABEL}: say label={LABEL}"
            )
        arrays = read_npz(path)
        target = options["target"]
        loose = list(loose_parts(name, path, arrays, target, options["labels"]).values())
        if len(loose) == 1:
            refuse_windows(path, arrays)
        elif loose[1].x.shape[1:] != loose[0].x.shape[1:]:
            raise FedskewError(
                f"{name}: test rows of shape {loose[1].x.shape[1:]}, training rows of shape {loose[0].x.shape[1:]}"
            )
        targets, self._counts = _targets(name, loose, target)
        test: Rows | Split = Split("test", options["test"], options["split_seed"])
        if len(loose) > 1:
            test = Rows(loose[1].x, targets[1])
        self._classes = names_in_order([self._counts])
        self._arrays = Arrays(Rows(loose[0].x, targets[0]), test, self._classes, (name,))
        self.name = name
        self.train, self.test, self.validation = self._arrays.parted(name, validation)

    def describe(self, request: Request) -> Description:
        """Say what the arrays have."""
        (described,) = self._arrays.described(self.train, self.test)
        return replace(described, classes=self._counts)

    def add_up(self, fills: Mapping[str, float]) -> dict[str, Moments]:
        """Return the moments of some columns or channels, by their numbers."""
        # What is too large is refused when all are added up
        with np.errstate(over="ignore", invalid="ignore"):
            moments = moments_of(np.asarray(self.train.x), merged=True)
        by_title = {str(number): column for number, column in enumerate(moments)}
        for title in fills:
            if title not in by_title:
                raise FedskewError(
                    f"add_up: {title!r} is not a column of x, which has {len(by_title)}: start a new run"
                )
        return {title: by_title[title] for title in fills}

    def converted(self, scaling: Scaling) -> Dataset:
        """Return the rows of this client, by a scaling that was fitted on the rows of all."""
        validation = None
        if self.validation is not None:
            validation = self._encoded(self.validation, scaling)
        return Dataset(
            name=self.name,
            train=self._encoded(self.train, scaling),
            test=self._encoded(self.test, scaling),
            validation=validation,
            classes=scaling.label.classes,
            groups=(self.name,),
            schema=scaling,
        )

    def _encoded(self, rows: Rows, scaling: Scaling) -> Rows:
        y = rows.y
        if scaling.label.target == "class":
            y = numbers_of(self._classes, scaling.label.classes)[y]
        return Rows(scaling.encode(np.asarray(rows.x)), y, np.zeros(len(rows), dtype=np.int64))


def _targets(name: str, parts: list[Loose], target: Target) -> tuple[list[Targets], dict[Any, int]]:
    """Return the targets of all parts, and how many rows there are of each class or label."""
    if target == "labels":
        if len({len(part.y) for part in parts}) > 1:
            raise FedskewError(
                f"{name}: y and y_test have other numbers of labels: give files of one kind"
            )
        matrices: list[Targets] = [label_matrix(name, part.y) for part in parts]
        counts = np.concatenate(matrices).sum(axis=0).tolist()
        return matrices, dict(zip(parts[0].y, counts, strict=True))
    if target in ("numbers", "tokens"):
        several, names = matrices_of(name, parts, target)
        return several, dict.fromkeys(names, 0)
    columns = [part.y["0"] for part in parts]
    if target == "number":
        return [numbers(name, LABEL, column) for column in columns], {}
    numbered, _ = number_groups(name, LABEL, columns)
    return list(numbered), class_counts(name, LABEL, columns)


def fit_arrays(name: str, silos: Silos, request: Request) -> Scaling:
    """Fit one scaling for the arrays of all silos, from their moments."""
    described = silos.describe(request)
    shape = _one_shape(name, described)
    offset = np.zeros(shape[0])
    factor = np.ones(shape[0])
    if request.standardize:
        fills = dict.fromkeys(map(str, range(shape[0])), 0.0)
        parts = []
        for answer in silos.add_up(fills):
            parts.append([answer[title] for title in fills])
        offset, deviation = merged_moments(parts)
        if not np.isfinite([offset, deviation]).all():
            raise FedskewError(f"{name}: x holds numbers too large to add up: scale them")
        factor = factor_of(deviation)
    label = Label((LABEL,), request.target, _names(name, described, request))
    return Scaling(shape, tuple(offset.tolist()), tuple(factor.tolist()), label)


def _one_shape(name: str, described: Sequence[Description]) -> tuple[int, ...]:
    """Return the shape that a row has in all silos."""
    with_arrays = [one for one in described if one.shape is not None]
    first = with_arrays[0]
    assert first.shape is not None  # for type checkers
    for one in described:
        if one.shape is None:
            raise FedskewError(
                f"{name}: {first.name} holds arrays, and {one.name} a table: give files of one kind"
            )
        if one.shape != first.shape:
            raise FedskewError(
                f"{name}: {one.name} has rows of shape {one.shape}, and {first.name} has rows of shape {first.shape}: "
                "give files of one kind"
            )
    return first.shape


def _names(name: str, described: Sequence[Description], request: Request) -> tuple[str, ...]:
    """Return the names of the classes of all silos, or of the labels, of which all have the same."""
    if request.target == "class":
        own = {one.name: one.classes for one in described}
        refuse_other_spellings(name, LABEL, own, request.labels)
        names = names_in_order(own.values())
        refuse_one_class(name, LABEL, names)
        return names
    first = described[0]
    for one in described:
        if one.classes.keys() != first.classes.keys():
            raise FedskewError(
                f"{name}: {one.name} has {len(one.classes)} labels per row, and {first.name} has {len(first.classes)}: "
                "give files of one kind"
            )
    return tuple(map(str, first.classes))
