"""The result of a measurement: one entry per distance and view, with the definitions of the numbers."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fedskew.core.errors import FedskewError
from fedskew.heterogeneity.findings import Findings

CONDITIONAL_VIEWS = ("features given label", "labels given features")
VIEWS = ("labels", "features", *CONDITIONAL_VIEWS)


@dataclass(frozen=True)
class Spread:
    """How far apart the clients are by one distance; all numbers are in [0, 1], and 0 means equal distributions.

    ``mean`` and ``worst`` are over pairs of clients, ``standard_error`` is that of the mean (0 when nothing was
    sampled); ``by_chance`` is the mean for rows assigned at random to clients of the same sizes; ``pooled`` is the
    mean distance to all rows together, weighted by the clients' rows, and ``pooled_worst`` the largest.
    """

    mean: float
    worst: float
    standard_error: float
    pairs: int
    by_chance: float | None = None
    pooled: float | None = None
    pooled_worst: float | None = None


@dataclass(frozen=True)
class Heterogeneity:
    """The result of ``measure``; ``as_dict`` is for JSON, ``definition`` explains the numbers.

    ``findings`` are about every client and every column, where they were asked for.
    """

    clients: int
    rows: int
    classes: int
    views: Mapping[str, Mapping[str, Spread]]
    label_entropy: Mapping[str, float]
    sizes: Mapping[str, float]
    most_skewed_feature: int | None
    definition: tuple[str, ...]
    findings: Findings | None = None

    @property
    def labels(self) -> Mapping[str, Spread]:
        """Distance between label distributions, by name of the distance; refused where rows have no labels."""
        if "labels" not in self.views:
            raise FedskewError(
                "labels were not measured, as the targets are not classes: cut with bins=5, say"
            )
        return self.views["labels"]

    @property
    def features(self) -> Mapping[str, Spread]:
        """Return the distances between feature distributions, by name of the distance."""
        return self.views["features"]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain dictionaries and numbers; undefined values are None."""
        whole: dict[str, Any] = {
            "clients": self.clients,
            "rows": self.rows,
            "classes": self.classes,
        }
        for view, spreads in self.views.items():
            key = view.replace(" ", "_")
            whole[key] = {name: asdict(spread) for name, spread in spreads.items()}
        whole["label_entropy"] = dict(self.label_entropy)
        whole["sizes"] = dict(self.sizes)
        whole["most_skewed_feature"] = self.most_skewed_feature
        whole["definition"] = list(self.definition)
        if self.findings:
            whole |= self.findings.as_dict()
        plain: dict[str, Any] = _without_nan(whole)
        return plain

    def table(self) -> list[dict[str, Any]]:
        """Return one row per view and distance: for printing, or for a data frame."""
        rows: list[dict[str, Any]] = []
        for view, spreads in self.views.items():
            for name, spread in spreads.items():
                rows.append({"of": view, "distance": name, **asdict(spread)})
        return rows

    def __str__(self) -> str:
        heads = ("mean", "worst", "by_chance", "pooled", "pooled_worst", "standard_error")
        lines = []
        if self.findings:
            lines.append(f"{self.findings}\n")
        titles = "".join(f"{head.replace('_', ' '):>15}" for head in heads)
        lines.append(f"{'of':<22}{'distance':<17}{titles}")
        for row in self.table():
            numbers = "".join(_cell(row[head]) for head in heads)
            lines.append(f"{row['of']:<22}{row['distance']:<17}{numbers}")
        entropy = self.label_entropy
        sizes = self.sizes
        if entropy:
            spread = f"mean {entropy['mean']:.3f}, least {entropy['least']:.3f}, most {entropy['most']:.3f}"
            lines.append(f"label entropy: {spread}")
        lines.append(
            f"rows per client: {sizes['least']:g} … {sizes['most']:g} (x {sizes['ratio']:.3g}), Gini "
            f"{sizes['gini']:.3f}"
        )
        return "\n".join((*lines, *self.definition))


def _cell(value: float | None) -> str:
    if value is None:
        return " " * 15
    return f"{value:15.4f}"


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
