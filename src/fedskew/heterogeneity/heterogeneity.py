"""Heterogeneity of clients in labels, in features, in features given the label, in labels given the features."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.streams import Floats, Ints, Stream
from fedskew.data.dataset import Rows
from fedskew.data.federation import Federation
from fedskew.data.partition import Partition
from fedskew.heterogeneity.coded import Coded
from fedskew.heterogeneity.definition import definition
from fedskew.heterogeneity.distances import DISTANCES, between
from fedskew.heterogeneity.fairness import gini
from fedskew.heterogeneity.findings import examine
from fedskew.heterogeneity.pairs import (
    Comparison,
    shuffled,
    standard_error,
    whole_clients,
    within_strata,
)
from fedskew.heterogeneity.regions import regions_of
from fedskew.heterogeneity.result import (
    CONDITIONAL_VIEWS,
    VIEWS,
    Heterogeneity,
    Spread,
)
from fedskew.heterogeneity.study import FEDARTML, Convention, Options, Study, study_of


def measure(
    data: "Federation | Rows",
    partition: Partition | None = None,
    *,
    classes: int | None = None,
    features: int | None = 256,
    bins: int = 20,
    pairs: int | None = None,
    min_rows: int = 20,
    chance: bool = True,
    seed: int = 0,
    convention: Convention = "mean",
    each: bool = False,
) -> Heterogeneity:
    """Measure the heterogeneity by Hellinger, Jensen-Shannon, total variation and 1-Wasserstein distance.

    Args:
        data: what ``split`` returned (its training rows are measured), or rows together with their ``partition``
        partition: the rows of each client
        classes: number of classes; by default the largest label + 1 when only rows are given
        features: number of features to compare, a random sample if there are more; None for all
        bins: bins of a feature's histogram, for Hellinger, Jensen-Shannon and total variation
        pairs: most pairs of clients to compare; by default all of up to 500 clients, then 20,000
        min_rows: rows of a label, or in a region of feature space, that both clients need to be compared there
        chance: whether to measure also the same rows assigned at random
        seed: seed of the samples and of that assignment
        convention: what is averaged over pairs, and how: the distances by their mean, or (fedartml) exactly as in
            FedArtML 0.1.34, for every feature the square root of the mean squared Hellinger distance, and of its mean
            "earth mover's distance", which compares the shares by size and not by class
        each: whether to compare also every client with all others, column by column, with effect sizes, a classifier
            two-sample test and a verdict in words (``findings``); takes seconds

    >>> rows = Rows(np.zeros((4, 1), np.float32), np.array([0, 0, 1, 1]))
    >>> measure(rows, Partition.from_owner(np.array([0, 0, 1, 1]), clients=2)).labels["hellinger"].mean
    1.0
    """
    study = study_of(
        data, partition, classes, Options(features, bins, pairs, min_rows, seed, convention)
    )
    labelled = study.classes > 0
    columns = study.columns
    views: dict[str, dict[str, Spread]] = {}
    entropy: dict[str, float] = {}
    if labelled:
        views["labels"] = _labels(study, chance)
        entropy = _label_entropy(study)
    by_feature, on_steps, of_features = _features(study, chance)
    views |= of_features
    if labelled and len(columns.chosen):
        regions = regions_of(columns, Stream(seed, "measure regions"))
        views |= _labels_given_features(study, regions, chance)
    most_skewed = None
    if len(by_feature):
        most_skewed = int(columns.chosen[np.argmax(by_feature)])
    not_measured = [view for view in VIEWS if view not in views]
    findings = None
    if each:
        names, missing = _told(data, study.partition)
        findings = examine(study, names, missing, _given_features(views))
    return Heterogeneity(
        clients=study.partition.clients,
        rows=len(study.partition.rows),
        classes=study.classes,
        views={view: views[view] for view in VIEWS if view in views},
        label_entropy=entropy,
        sizes=_sizes(study.partition.sizes),
        most_skewed_feature=most_skewed,
        definition=tuple(definition(study, on_steps, not_measured, chance)),
        findings=findings,
    )


def _told(
    data: "Federation | Rows", partition: Partition
) -> tuple[Sequence[str], Mapping[str, Mapping[str, int]]]:
    """Return the names of the clients, and the missing entries of their columns, where they told them."""
    if not isinstance(data, Federation) or not data.named:
        return [f"client {client}" for client in range(partition.clients)], {}
    missing: dict[str, dict[str, int]] = {}
    for one in data.data.silos:
        missing[one.name] = {}
        for title, facts in one.columns.items():
            if facts.missing:
                missing[one.name][title] = facts.missing
    return data.client_names, missing


def _given_features(views: Mapping[str, Mapping[str, Spread]]) -> tuple[float, float]:
    """Return the distance of labels given features, and that by chance; both 0 where they were not measured."""
    spread = views.get("labels given features", {}).get("hellinger")
    if spread is None or spread.by_chance is None:
        return (0.0, 0.0)
    return (spread.mean, spread.by_chance)


def levels(
    rows: Rows,
    partition: Partition,
    of: str,
    *,
    classes: int | None = None,
    seed: int = 0,
    convention: Convention = "mean",
) -> dict[str, float]:
    """Return only the mean distances between clients in one view, as in ``measure``.

    ``of`` is one of ``VIEWS``; where no two clients have enough rows to be compared in it, there is an error.
    """
    study = study_of(rows, partition, classes, Options(seed=seed, convention=convention))
    plain = whole_clients(partition.offsets, study.pairs)
    comparison = plain
    if of in CONDITIONAL_VIEWS:
        comparison = _given(study, of)
    variables: Iterable[Coded] = [study.labels]
    if of.startswith("features"):
        variables = study.features(plain.load)
    (apart,) = _compare(variables, [comparison])
    return {name: apart.level(line, convention) for line, name in _named(convention)}


def _given(study: Study, of: str) -> Comparison:
    """Return the comparison of clients within every label, or within every region of feature space."""
    if of == "features given label":
        stratum = study.rows.labels[study.partition.rows]
    else:
        stratum = regions_of(study.columns, Stream(study.options.seed, "measure regions"))
    least = study.options.min_rows
    comparison = within_strata(study.partition.offsets, stratum, study.few_pairs, least)
    if not comparison.pairs:
        raise FedskewError(
            f"{of} cannot be compared: no two clients have {least} rows of one label or region of feature space: use "
            "fewer clients, or more rows"
        )
    return comparison


@dataclass(frozen=True)
class _Apart:
    """Distances of the pairs of one comparison: of each pair, the mean over variables; of each variable, over pairs."""

    comparison: Comparison
    by_pair: Floats  # distances x pairs
    by_variable: Floats  # distances x variables
    squares: Floats  # the mean over pairs of the squared distances: distances x variables

    def level(self, line: int, convention: Convention) -> float:
        """Return one number for this distance."""
        if convention == "mean":
            return _mean(self.by_pair[line])
        inside = self.by_variable
        if DISTANCES[line] == "hellinger":
            inside = self.squares
        return min(_mean(np.sqrt(inside[line])), 1.0)

    def error(self, line: int, variables: int) -> float:
        """Return the standard error of the mean, from sampling pairs, and variables out of so many."""
        values = self.by_pair[line]
        if not len(values):
            return 0.0
        from_pairs = self.comparison.error(values)
        from_variables = standard_error(self.by_variable[line], variables)
        return math.hypot(from_pairs, from_variables)


def _named(convention: Convention) -> list[tuple[int, str]]:
    """Return the distances that a convention defines, with their lines."""
    named: list[tuple[int, str]] = []
    for line, name in enumerate(DISTANCES):
        if convention == "mean" or name in FEDARTML:
            named.append((line, name))
    return named


def _compare(
    variables: Iterable[Coded], comparisons: Sequence[Comparison], pooled: "_Pooled | None" = None
) -> list[_Apart]:
    sums = [_Sums(comparison) for comparison in comparisons]
    for variable in variables:
        for each in sums:
            each.add(variable)
        if pooled is not None:
            pooled.add(variable)
    return [each.apart() for each in sums]


class _Sums:
    """Sums, over variables, of the distances of each pair; and the means, over pairs, of each variable."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison
        self.total = np.zeros((len(DISTANCES), comparison.pairs))
        self.means: list[Floats] = []
        self.squares: list[Floats] = []

    def add(self, variable: Coded) -> None:
        if self.comparison.pairs:
            apart = self.comparison.distances(variable)
            self.total += apart
            self.means.append(apart.mean(axis=1))
            self.squares.append((apart**2).mean(axis=1))

    def apart(self) -> _Apart:
        return _Apart(
            comparison=self.comparison,
            by_pair=self.total / max(len(self.means), 1),
            by_variable=np.array(self.means).T.reshape(len(DISTANCES), -1),
            squares=np.array(self.squares).T.reshape(len(DISTANCES), -1),
        )


class _Pooled:
    """Sums, over variables, of each client's distance to all rows together."""

    def __init__(self, offsets: Ints) -> None:
        self.offsets = offsets
        self.total = np.zeros((len(DISTANCES), len(offsets) - 1))
        self.variables = 0
        self.on_steps = 0  # variables with more distinct values than steps

    def add(self, variable: Coded) -> None:
        pooled = variable.profiles(self.offsets[[0, -1]])
        for clients, profiles in variable.profiles_in_turn(self.offsets):
            self.total[:, clients] += between(profiles, pooled)
        self.variables += 1
        self.on_steps += variable.beyond is not None

    def summary(self) -> tuple[Floats, Floats]:
        """Return the mean by rows, and the worst, of each distance."""
        each = self.total / max(self.variables, 1)
        return each @ np.diff(self.offsets) / self.offsets[-1], each.max(axis=1)


def _labels(study: Study, chance: bool) -> dict[str, Spread]:
    comparison = whole_clients(study.partition.offsets, study.pairs)
    pooled = _Pooled(study.partition.offsets)
    comparisons = [comparison, *_by_chance(comparison, None, study, chance)]
    apart = _compare([study.labels], comparisons, pooled)
    return _spreads(apart, 1, study.options.convention, pooled)


def _features(study: Study, chance: bool) -> tuple[Floats, int, dict[str, dict[str, Spread]]]:
    """Return each feature's mean Hellinger distance, how many were on steps, and the spreads (also given the label)."""
    offsets = study.partition.offsets
    plain = whole_clients(offsets, study.pairs)
    given = None
    comparisons = [plain, *_by_chance(plain, None, study, chance)]
    half = len(comparisons)
    if study.classes:
        label = study.rows.labels[study.partition.rows]
        given = within_strata(offsets, label, study.few_pairs, study.options.min_rows)
        comparisons += [given, *_by_chance(given, label, study, chance)]
    pooled = _Pooled(offsets)
    varying = study.columns.varying
    apart = _compare(study.features(plain.load), comparisons, pooled)
    views = {"features": _spreads(apart[:half], varying, study.options.convention, pooled)}
    if given is not None and given.pairs:
        views["features given label"] = _spreads(apart[half:], varying, study.options.convention)
    return apart[0].by_variable[0], pooled.on_steps, views


def _labels_given_features(
    study: Study, region: Ints, chance: bool
) -> dict[str, dict[str, Spread]]:
    comparison = within_strata(
        study.partition.offsets, region, study.few_pairs, study.options.min_rows
    )
    if not comparison.pairs:
        return {}
    comparisons = [comparison, *_by_chance(comparison, region, study, chance)]
    apart = _compare([study.labels], comparisons)
    return {"labels given features": _spreads(apart, 1, study.options.convention)}


def _by_chance(
    comparison: Comparison, stratum: Ints | None, study: Study, chance: bool
) -> list[Comparison]:
    if chance:
        return [shuffled(comparison, stratum, Stream(study.options.seed, "measure chance"))]
    return []


def _spreads(
    apart: Sequence[_Apart], variables: int, convention: Convention, pooled: _Pooled | None = None
) -> dict[str, Spread]:
    """Return one result per distance; ``apart`` are the measured distances and those by chance."""
    actual = apart[0]
    spreads = {}
    for line, name in _named(convention):
        values = actual.by_pair[line]
        error = actual.error(line, variables)
        if convention != "mean" and error != 0:
            error = math.nan  # it does not apply to a root
        by_chance = None
        if len(apart) > 1:
            by_chance = apart[1].level(line, convention)
        spreads[name] = Spread(
            mean=actual.level(line, convention),
            worst=float(values.max(initial=0.0)),
            standard_error=error,
            pairs=actual.comparison.pairs,
            by_chance=by_chance,
        )
    if pooled is not None:
        to_all, worst_to_all = pooled.summary()
        for line, name in _named(convention):
            spreads[name] = replace(
                spreads[name], pooled=float(to_all[line]), pooled_worst=float(worst_to_all[line])
            )
    return spreads


def _mean(values: Floats) -> float:
    if len(values):
        return float(values.mean())
    return 0.0


def _label_entropy(study: Study) -> dict[str, float]:
    """Mean, least and greatest entropy of the clients' labels, divided by the greatest there is."""
    entropy = np.empty(study.partition.clients)
    for clients, profiles in study.labels.profiles_in_turn(study.partition.offsets):
        entropy[clients] = profiles.entropy
    if study.classes > 1:
        entropy /= math.log2(study.classes)
    return {
        "mean": float(entropy.mean()),
        "least": float(entropy.min()),
        "most": float(entropy.max()),
    }


def _sizes(sizes: Ints) -> dict[str, float]:
    least = int(sizes.min())
    most = int(sizes.max())
    return {
        "least": least,
        "most": most,
        "mean": float(sizes.mean()),
        "ratio": most / least,
        "gini": gini(sizes),
    }
