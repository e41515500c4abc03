"""The table of a comparison for readers: its columns, lines and notes, a data frame, and the same as JSON."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedskew.algorithms.titles import title_of
from fedskew.core.units import ScoreUnit
from fedskew.plots.forest import Forest, ForestRow
from fedskew.runs.folder import Row
from fedskew.runs.summary_reading import mean_and_std
from fedskew.study.comparison_rows import SCORE, SHARE, ComparisonRows, Configuration
from fedskew.study.judge import Contrast
from fedskew.study.judgement import Judgement
from fedskew.study.judging import SCHEMA
from fedskew.study.study_folder import TARGET
from fedskew.study.target_score import Target

if TYPE_CHECKING:
    import pandas as pd

_SCORES = {  # of each goal: title and meaning
    "shared": (
        "test {metric}",
        "the shared model on the common test rows; empty without one",
    ),
    "own": (
        "own {metric}",
        "the model that each client uses, on {rows}: the mean over the clients",
    ),
}
_COLUMNS = {  # of the summaries: title, meaning and factor in tables for readers
    "client_{metric}_row_weighted_mean": (
        "by rows",
        "likewise, weighted by the rows of each client",
        1,
    ),
    "client_{metric}_worst_10_percent": (
        "worst 10 %",
        "the mean over the worst tenth of the clients of the model that each uses, on {rows}",
        1,
    ),
    "shared_score": (
        "shared model",
        "the shared model on the common test rows; empty without one",
        1,
    ),
    "own_test_{metric}_mean": (
        "on common rows",
        "mean over the clients of their own models on the common test rows",
        1,
    ),
    "client_{metric}_mean": (
        "clients",
        "mean over the clients of the model that each uses, on {rows}",
        1,
    ),
    "gini_of_client_weights": (
        "Gini",
        "Gini coefficient of the clients' weights over all rounds",
        1,
    ),
    "rounds_to_target": (
        "rounds to target",
        "rounds until the target was reached, of the seeds that did",
        1,
    ),
    "bytes_to_target": ("MB to target", "megabytes sent until then, both ways", 1e-6),
    "bytes": ("MB", "megabytes sent, both ways", 1e-6),
    "simulated_seconds": ("simulated s", "simulated seconds on the fleet", 1),
    "seconds": ("s", "seconds of real time", 1),
}
_OF_GOAL = {  # columns that are shown under one goal only
    "client_{metric}_row_weighted_mean": "own",
    "shared_score": "own",
    "client_{metric}_mean": "shared",
}
_MOST_DECIMALS, _LARGE = 8, 1e6  # beyond these, numbers are in powers of ten
_DIFFERENCE = "difference"
VERDICT = "verdict"


@dataclass(frozen=True)
class Comparison:
    """Runs that were compared: their rows, what follows from these, and the table for readers."""

    rows: ComparisonRows
    judgement: Judgement

    # -- numbers -------------------------------------------------------------------------------------------------------

    @cached_property
    def columns(self) -> dict[str, tuple[str, str, float]]:
        """Return the numbers that at least one run has: title, meaning, and factor in tables for readers."""
        metric, goal = self.rows.metric, self.rows.goal
        title, meaning = _SCORES[goal]
        score = title.format(metric=metric.replace("_", " "))
        said = meaning.format(rows=self.rows.client_rows)
        found = {SCORE: self._in_the_unit("{metric}", (score, said, 1.0))}
        for written, (title, meaning, factor) in _COLUMNS.items():
            if _OF_GOAL.get(written, goal) != goal:
                continue
            key = written.format(metric=metric)
            is_sought = key.endswith("_to_target") and self.rows.target is not None
            if is_sought or any(one.values(key) for one in self.rows.configurations):
                said = meaning.format(rows=self.rows.client_rows)
                if key.startswith("client_") and self.rows.judging.score == "validation-best":
                    said += ", after the last round"
                found[key] = self._in_the_unit(written, (title, said, factor))
        return found

    def _in_the_unit(self, written: str, column: tuple[str, str, float]) -> tuple[str, str, float]:
        """Return a column with title and factor of the unit, if it is one of scores."""
        title, said, factor = column
        if "{metric}" in written or written == "shared_score":
            return title + self._mark_of_scores, said, self.judgement.unit.factor
        return title, said, factor

    @property
    def _mark_of_scores(self) -> str:
        """Return what stands after the titles of columns of scores."""
        unit = self.judgement.unit
        if unit.of_scores:
            return f" ({unit.of_scores.strip()})"
        return ""

    def in_unit(self, unit: ScoreUnit) -> "Comparison":
        """Return the same comparison, with scores and differences in tables and sentences in this unit."""
        return replace(self, judgement=replace(self.judgement, unit=unit))

    def frame(self) -> "pd.DataFrame":
        """Return one row per configuration; options, conditions, means, standard deviations and verdict are columns.

        ``attrs`` has the goal, the control, the zone, the verdicts in words, the target, why cells of a shared model
        are empty, what was chosen, and warnings.
        """
        import pandas as pd

        frame = pd.DataFrame(self.records())
        for name in ("score", "score_std", _DIFFERENCE, "low", "high", "blocks_needed"):
            frame[name] = frame[name].astype(float)  # also where all are empty
        frame.attrs.update(self.facts())
        return frame

    def as_dict(self) -> dict[str, Any]:
        """Return everything for JSON, in a schema with a number."""
        contrasts = []
        for contrast in self.judgement.contrasts:
            contrasts.append(_contrast_record(contrast))
        pooled = []
        for one in self.judgement.pooled:
            record = _contrast_record(one.contrast)
            pooled.append({**record, "cells": one.cells, "cells_disagree": one.disagree})
        return {
            "schema": SCHEMA,
            **self.facts(),
            "rows": self.records(),
            "contrasts": contrasts,
            "pooled": pooled,
        }

    def facts(self) -> dict[str, Any]:
        """Return what is true of the whole comparison."""
        target = None
        if self.rows.target:
            target = f"{self.rows.target.metric}={self.rows.target.value:g}"
        return {
            "goal": self.rows.goal,
            "score": self.rows.judging.score,
            "metric": self.rows.metric,
            "control": self.rows.rules.control,
            "zone": self.rows.rules.zone,
            "verdict": " ".join(self.judgement.says),
            "target": target,
            "chosen": self.judgement.chosen_lines(),
            "without_shared_score": self.judgement.without_shared_score(),
            "warnings": self.judgement.cautions(),
        }

    def records(self) -> list[Row]:
        """Return one row per configuration as plain values."""
        return [self._record(one) for one in self.rows.configurations]

    def _record(self, one: Configuration) -> Row:
        record: Row = {"method": one.method, **one.options, **one.conditions}
        record |= {"blocks": one.blocks, "failed": len(one.failed) + len(one.collapsed)}
        for key in self.columns:
            mean, std = None, None
            if one.values(key):
                mean, std = mean_and_std(one.values(key))
            record |= {key: mean, f"{key}_std": std}
        if self.rows.target:
            record["reached_target"] = len(one.values("rounds_to_target"))
        difference, low, high, needed = None, None, None, None
        contrast = self.judgement.contrast_of(one)
        if contrast is not None:
            difference = contrast.mean
            needed = contrast.blocks_needed
            if contrast.interval:
                low, high = contrast.interval
        record |= {_DIFFERENCE: difference, "low": low, "high": high}
        record |= {VERDICT: self.judgement.verdict_of(one), "blocks_needed": needed}
        if one.chosen is not None:
            record["tries"] = len(one.chosen.tries)
            record["at_edge"] = "+".join(one.chosen.at_edge)
        return record

    # -- the table for readers -----------------------------------------------------------------------------------------

    def head(self) -> list[str]:
        """Return the titles of the columns for readers."""
        others = [title for title, _, _ in self._other_columns().values()]
        return [
            "method",
            *self.rows.options,
            *self.rows.conditions,
            "blocks",
            self.columns[SCORE][0],
            *self._judged_titles(),
            *others,
        ]

    def _other_columns(self) -> dict[str, tuple[str, str, float]]:
        """Return the columns for readers beside the score: none of scores on rows that clients have trained with."""
        others = {}
        for key, column in self.columns.items():
            is_of_clients = key.startswith("client_")
            if key != SCORE and (self.rows.are_held_out or not is_of_clients):
                others[key] = column
        return others

    def _judged_titles(self) -> list[str]:
        """Return the titles of the difference, if there is one control, and of the verdict."""
        if self.rows.rules.control is None:
            return [VERDICT]
        difference = f"minus {self.rows.rules.control}"
        unit = self.judgement.unit
        if unit.of_differences:
            difference += f" ({unit.of_differences.strip()})"
        return [difference, VERDICT]

    def texts(self) -> list[bool]:
        """Return which columns for readers are text: method, verdict, options and conditions that are not numbers."""
        named = []
        for one in self.rows.configurations:
            named.append({**one.options, **one.conditions})
        texts = [True]
        for name in (*self.rows.options, *self.rows.conditions):
            texts.append(any(isinstance(one[name], str) for one in named))
        texts += [False, False]
        for title in self._judged_titles():
            texts.append(title == VERDICT)
        return texts + [False] * len(self._other_columns())

    def lines(self) -> list[list[str]]:
        """Return the rows for readers: mean ± standard deviation, the difference with its interval, the verdict."""
        return [self._line(one) for one in self.rows.configurations]

    def _line(self, one: Configuration) -> list[str]:
        line = [one.method]
        for value in (*one.options.values(), *one.conditions.values()):
            line.append(_spelled(value))
        line.append(_blocks(one))
        line.append(_cell(one, SCORE, self.judgement.unit.factor))
        others = []
        for key, (_, _, factor) in self._other_columns().items():
            others.append(_cell(one, key, factor))
        if self.rows.rules.control is not None:
            line.append(self._difference(one))
        return [*line, self.judgement.verdict_of(one), *others]

    def _difference(self, one: Configuration) -> str:
        """Return the difference to the control with its interval."""
        contrast = self.judgement.contrast_of(one)
        if contrast is None or contrast.mean is None:
            return "–"
        row = ForestRow("", "", *self._differences(contrast, contrast.mean), "")
        return row.numbers(self.digits)

    def _differences(
        self, contrast: Contrast, mean: float
    ) -> tuple[float, float | None, float | None]:
        """Return the mean difference and the ends of its interval, in the unit of the table."""
        factor = self.judgement.unit.factor
        if contrast.interval is None:
            return factor * mean, None, None
        low, high = contrast.interval
        return factor * mean, factor * low, factor * high

    @cached_property
    def digits(self) -> int:
        """Return with how many decimals differences are written: two digits of the narrowest interval, at most 4."""
        widths = []
        for contrast in self.judgement.contrasts:
            if contrast.interval:
                widths.append(self.judgement.unit.factor * contrast.interval.half_width)
        smallest = min(widths, default=0.01)
        digits = 4
        if smallest > 0:
            digits = min(max(1 - math.floor(math.log10(smallest)), 0), 4)
        while digits < _MOST_DECIMALS and not self._shows_signs(digits):
            digits += 1
        return digits

    def _shows_signs(self, digits: int) -> bool:
        """Return whether the ends of all intervals that exclude 0 are not printed as 0."""
        for contrast in self.judgement.contrasts:
            if contrast.verdict not in ("better", "worse") or contrast.interval is None:
                continue
            nearest = min(abs(contrast.interval.low), abs(contrast.interval.high))
            if float(f"{self.judgement.unit.factor * nearest:.{digits}f}") == 0:
                return False
        return True

    # -- the forest ----------------------------------------------------------------------------------------------------

    @cached_property
    def forest(self) -> Forest:
        """Return the picture of the comparison as values."""
        rows = []
        for contrast in self.judgement.contrasts:
            row = self._forest_row(contrast, contrast.cell)
            if row is not None:
                rows.append(row)
        for one in self.judgement.pooled:
            row = self._forest_row(one.contrast, self._pooled_title)
            if row is not None:
                rows.append(row)
        control = self.rows.rules.control
        title = f"Difference in {self.columns[SCORE][0].removesuffix(self._mark_of_scores)}"
        if control is not None:
            title += f" to {title_of(control)}"
        zone = self.rows.rules.zone
        if zone is not None:
            zone *= self.judgement.unit.factor
        return Forest(rows, title, zone, self.digits)

    @property
    def _pooled_title(self) -> str:
        return f"mean over {self.judgement.pooled_over}"

    def _forest_row(self, contrast: Contrast, cell: str) -> ForestRow | None:
        """Return the line of a contrast; None without a block."""
        if contrast.mean is None:
            return None
        mean, low, high = self._differences(contrast, contrast.mean)
        name = contrast.method
        if self.rows.rules.control is None:
            name = f"{contrast.method} against {contrast.control}"
        verdict: str = contrast.verdict
        where: str | None = contrast.cell
        if cell != contrast.cell:
            where = None  # a mean over the cells
        failures = self.judgement.failures_of(where).get(contrast.method)
        if failures:
            verdict = f"{verdict}, {failures}"
        costs = self._costs(contrast)
        return ForestRow(cell, name, mean, low, high, verdict, costs)

    def _costs(self, contrast: Contrast) -> list[str]:
        """Return by what factors a method sends and takes simulated time, compared with its control."""
        costs = []
        for key, unit in (("bytes", "MB"), ("simulated_seconds", "time")):
            of_method = self._mean_of(key, contrast.method, contrast.cell)
            of_control = self._mean_of(key, contrast.control, contrast.cell)
            if of_method is not None and of_control:
                costs.append(f"{of_method / of_control:.2g} x {unit}")
        return costs

    def _mean_of(self, key: str, label: str, cell: str) -> float | None:
        values: list[float] = []
        for one in self.judgement.competing:
            if one.label == label and cell in ("", one.cell):
                values += one.values(key)
        if not values:
            return None
        return fmean(values)

    # -- notes ---------------------------------------------------------------------------------------------------------

    def notes(self) -> list[str]:
        """Return what a reader needs to know of the table: first by what methods are judged."""
        found = [self.judgement.goal_said, *self.findings()]
        for row in self.forest.rows:
            if row.cell == self._pooled_title:
                found.append(f"{row.cell}: {row.name} {row.numbers(self.digits)}, {row.verdict}.")
        found.append(
            f"Mean ± standard deviation over blocks (a block is a seed within one skew). {self.judgement.how_judged()}"
        )
        return [
            *found,
            *self.judgement.shared_rows(),
            *self.references(),
            *self.judgement.failures(),
        ]

    def references(self) -> list[str]:
        """Return what the rows are that are not judged."""
        lines = []
        for name, meaning in REFERENCES.items():
            for one in self.rows.configurations:
                if one.method == name and self.judgement.is_reference(one):
                    lines.append(f"{name}: {meaning}, a reference that is not judged.")
                    break
        return lines

    def findings(self) -> list[str]:
        """Return the verdicts, what was chosen, what to know of that, and the target."""
        found = list(self.judgement.says)
        found += self.judgement.chosen_lines()
        found += self.judgement.without_shared_score()
        found += self.judgement.cautions()
        if self.rows.target:
            how = f", which is {SHARE:.0%} of the best mean"
            if self.rows.asked:
                if self.rows.given:
                    how = " (as given)"
                else:
                    how = f" (from {TARGET})"
            found.append(f"The target is {self._target_said(self.rows.target)} on test rows{how}.")
        return found

    def _target_said(self, target: Target) -> str:
        """Return the metric and the value of the target; only the metric that decides has the unit of the scores."""
        value = f"{target.value:g}"
        unit = self.judgement.unit
        if target.metric == self.rows.metric and unit.of_scores:
            value = f"{unit.factor * target.value:.4g}{unit.of_scores}"
        return f"{target.metric} = {value}"

    def meanings(self) -> dict[str, str]:
        """Return the meaning of every column of numbers, by its title."""
        meanings: dict[str, str] = {}
        for title, meaning, _ in self.columns.values():
            meanings[title] = meaning
        return meanings


REFERENCES: Mapping[str, str] = {
    "central": "all rows in one place",
    "local": "every client alone",
    "majority class": "always the most frequent class of the client's held-out rows",
}


def _contrast_record(contrast: Contrast) -> Row:
    """Return a contrast as plain values."""
    low, high = None, None
    if contrast.interval:
        low, high = contrast.interval
    inner_low, inner_high = None, None
    if contrast.inner_interval:
        inner_low, inner_high = contrast.inner_interval
    return {
        "cell": contrast.cell,
        "method": contrast.method,
        "control": contrast.control,
        "blocks": contrast.blocks,
        "family": contrast.family,
        "difference": contrast.mean,
        "low": low,
        "high": high,
        "low_90": inner_low,
        "high_90": inner_high,
        "verdict": contrast.verdict,
        "blocks_needed": contrast.blocks_needed,
    }


def _blocks(one: Configuration) -> str:
    """Return how many blocks have a score, and of how many, if not all have one."""
    scored = len(one.values(SCORE))
    if scored in (0, one.blocks):
        return str(one.blocks)
    return f"{scored} of {one.blocks}"


def _spelled(value: Any) -> str:
    """Return an option in a table for readers; empty where a method has no such option."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def _cell(one: Configuration, key: str, factor: float) -> str:
    values = [factor * value for value in one.values(key)]
    if not one.rows:
        return "failed"
    if not values:
        if key.endswith("_to_target") and one.values(SCORE) and one.values("bytes"):
            return "not reached"
        return "–"
    mean, std = mean_and_std(values)
    text = mean_with_std(mean, std)
    if key == "rounds_to_target" and len(values) < len(one.rows):
        text += f" ({len(values)} of {len(one.rows)})"
    return text


def mean_with_std(mean: float, std: float | None) -> str:
    """Return a mean with as many decimals as two digits of its standard deviation have.

    >>> mean_with_std(0.888, 0.00721), mean_with_std(12.3, 0.0), mean_with_std(4e20, 3e19)
    ('0.8880 ± 0.0072', '12.3 ± 0', '4e+20 ± 3e+19')
    """
    if std is None:
        return f"{mean:.4g}"
    if std and math.isfinite(std):
        decimals = max(0, 1 - math.floor(math.log10(std)))
    else:
        decimals = _MOST_DECIMALS + 1
    if decimals > _MOST_DECIMALS or abs(mean) >= _LARGE:
        return f"{mean:.4g} ± {std:.2g}"
    return f"{mean:.{decimals}f} ± {std:.{decimals}f}"
