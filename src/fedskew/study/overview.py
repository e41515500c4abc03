"""All runs of a study in one file: their summaries, the means over seeds, and warnings."""

import re
from collections.abc import Sequence

from fedskew.runs.folder import Row
from fedskew.runs.summary_reading import mean_and_std
from fedskew.study.member import Member


def overview(members: Sequence[Member], summaries: Sequence[Row]) -> Row:
    """Return the summaries of all runs, their means over seeds, and warnings about the comparison."""
    methods = [member.algorithm for member in members]
    return {
        "runs": list(summaries),
        "means": means(members, summaries),
        "warnings": warnings_of(methods, summaries),
    }


def warnings_of(methods: Sequence[str], summaries: Sequence[Row]) -> list[str]:
    """Return the warnings about a comparison and about its runs."""
    found = []
    unequal = unequal_weights(methods, summaries)
    if unequal:
        found.append(unequal)
    texts: dict[str, str] = {}
    seeds: dict[str, dict[str, None]] = {}
    for row in summaries:
        for text in row.get("warnings", []):
            kind = re.sub(r"[\d.]+", "#", text)  # what differs in its numbers alone is said once
            texts.setdefault(kind, text)
            seeds.setdefault(kind, {})[str(row["seed"])] = None
    for kind, text in texts.items():
        if len(summaries) > 1:
            found.append(f"{text} (seed {', '.join(seeds[kind])})")
        else:
            found.append(text)
    return found


def unequal_weights(methods: Sequence[str], summaries: Sequence[Row]) -> str:
    """Return a warning if the aggregation weights differ between methods; empty if they do not.

    Factors that a method itself applies to the weights are not compared.
    """
    by_weights: dict[str, list[str]] = {}
    for method, summary in zip(methods, summaries, strict=True):
        weights = str(summary.get("weights", "")).split(" ")[0]
        if weights not in ("size", "uniform"):
            continue
        names = by_weights.setdefault(weights, [])
        if method not in names:
            names.append(method)
    if len(by_weights) < 2:
        return ""
    sides = " but ".join(
        f"{weights} in {', '.join(names)}" for weights, names in by_weights.items()
    )
    return f"the aggregation weights differ, {sides}: on heterogeneous clients that can decide a ranking (weights)"


def means(members: Sequence[Member], summaries: Sequence[Row]) -> dict[str, Row]:
    """Return mean and standard deviation (n - 1) over the seeds of every number, for every method.

    Failed runs are not included; a method without finished runs is omitted.
    """
    by_label: dict[str, list[Row]] = {}
    for member, row in zip(members, summaries, strict=True):
        if "failed" not in row:
            by_label.setdefault(member.label, []).append(row)
    found: dict[str, Row] = {}
    for label, rows in by_label.items():
        found[label] = {}
        for key in rows[0]:
            if key != "seed" and all(isinstance(row.get(key), (int, float)) for row in rows):
                mean, std = mean_and_std([row[key] for row in rows])
                found[label][key] = {"mean": mean, "std": std}
    return found
