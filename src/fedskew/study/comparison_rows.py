"""The rows that a comparison is judged by and shows: one a configuration, with what its runs scored."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean
from typing import Any

from fedskew.core.errors import FedskewError
from fedskew.engine.job import WHOLE
from fedskew.runs.folder import Row
from fedskew.runs.summary import SHARED_MODEL
from fedskew.study.compared_runs import Compared
from fedskew.study.run_data import RunData
from fedskew.study.setting import Setting
from fedskew.study.target_score import Target

SHARE = 0.9  # of the best mean, the target of a comparison that was given none
BOUND = "central"  # trains on all rows in one place: a bound, shown beside the methods


@dataclass(frozen=True)
class Configuration:
    """A row of the table: a method with its options under some conditions, and its runs.

    ``label`` is the same for all conditions, ``rows`` are the runs that finished, and ``failed`` are the reasons of
    those that failed.
    """

    label: str
    method: str
    options: Mapping[str, Any]
    conditions: Mapping[str, Any]
    rows: Sequence[Row]
    failed: Sequence[str]

    @property
    def has_shared_model(self) -> bool:
        """Return whether the clients of every run share a whole model."""
        return all(row.get(SHARED_MODEL, WHOLE) == WHOLE for row in self.rows)

    def values(self, key: str) -> list[float]:
        """Return what the runs have of this number."""
        return [row[key] for row in self.rows if row.get(key) is not None]


@dataclass(frozen=True)
class _SameSetting:
    """The runs of one configuration while they are collected."""

    label: str
    setting: Setting
    rows: list[Row] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ComparisonRows:
    """Runs as rows; ``asked`` is the target, by default 90 % of the best configuration's, where high is good."""

    runs: Compared
    asked: Target | None = None
    given: bool = False  # whether the target was given now, and not read from the folder

    @property
    def metric(self) -> str:
        """Return the metric that decides, that of the first run."""
        return self.runs.runs[0].metric

    @cached_property
    def sign(self) -> int:
        """Return -1 where low is good."""
        return self.runs.runs[0].sign

    @cached_property
    def target(self) -> Target | None:
        """Return the target that is looked for in the curves on test rows."""
        if self.asked is None:
            return self._usual_target()
        metric = self.asked.metric or self.metric
        if any(_curve(run, metric) for run in self.runs.runs):
            return Target(self.asked.value, metric)
        if not self.given:
            return None  # an older version recorded it for runs without a shared model
        raise FedskewError(
            f"target {metric}: no run followed it on test rows: choose another, or add it to metrics"
        )

    def _usual_target(self) -> Target | None:
        """Return a share of the best configuration's mean, where high is good."""
        by_label: dict[str, list[float]] = {}
        for run, setting in zip(self.runs.runs, self.runs.settings, strict=False):
            last = _last(run, self.metric)
            if last is not None and math.isfinite(last) and setting.method != BOUND:
                by_label.setdefault(self.runs.label_of(setting, False), []).append(last)
        best = max(map(fmean, by_label.values()), default=0.0)
        if self.sign > 0 and best > 0:
            return Target(float(f"{SHARE * best:.4g}"), self.metric)
        return None

    @cached_property
    def configurations(self) -> list[Configuration]:
        """Return the rows of the table, in the order of the runs."""
        collected: dict[tuple[str, ...], _SameSetting] = {}

        def same_as(setting: Setting) -> _SameSetting:
            label = self.runs.label_of(setting, conditions=False)
            conditions = [str(setting.values.get(name)) for name in self.conditions]
            return collected.setdefault((label, *conditions), _SameSetting(label, setting))

        finished = self.runs.settings[: len(self.runs.runs)]
        for run, setting in zip(self.runs.runs, finished, strict=True):
            same_as(setting).rows.append(self._numbers(run, setting))
        for broken in self.runs.failed:
            same_as(broken.setting).failed.append(broken.reason)
        return [self._configuration(same) for same in collected.values()]

    def _configuration(self, same: _SameSetting) -> Configuration:
        setting = same.setting
        options = {}
        for name in self.options:
            options[name] = setting.options.get(name, setting.values.get(name))
        conditions = {name: setting.values.get(name) for name in self.conditions}
        return Configuration(
            same.label, setting.method, options, conditions, same.rows, same.failed
        )

    @cached_property
    def options(self) -> list[str]:
        """Return the names of the hyper-parameters that have a column: given to a method, or not the same in all."""
        given = dict.fromkeys(name for one in self.runs.settings for name in one.given_options)
        return [*given, *(name for name in self.runs.different_settings if name not in given)]

    @cached_property
    def conditions(self) -> list[str]:
        """Return the names of the conditions that are not the same in all runs, such as the skew."""
        return self.runs.different_conditions

    def _numbers(self, run: RunData, setting: Setting) -> Row:
        """Return the summary of a run with what the table has beside it."""
        summary, metric = run.summary, self.metric
        row = {**summary, "bytes": summary["bytes_down"] + summary["bytes_up"]}
        conditions = [str(setting.values.get(name)) for name in self.conditions]
        row["block"] = (summary["seed"], setting.values.get("split_seed"), *conditions)
        prefix = ""
        # The head of the model in use was calibrated: the scores of the rounds are those of another head
        if f"calibrated_test_{metric}" in summary:
            prefix = "calibrated_"
            row[f"test_{metric}_best"] = summary.get(f"calibrated_test_{metric}_best")
        row[f"test_{metric}_last"] = _last(run, metric)
        row[f"test_{metric}_at_best_validation"] = self._at_best_validation(run, prefix)
        if self.target:
            row["rounds_to_target"], row["bytes_to_target"] = self._reached(run, self.target)
        return row

    def _at_best_validation(self, run: RunData, prefix: str) -> float | None:
        """Return the score on test rows in the first round that is best on validation rows."""
        on_validation = run.rounds.get(f"{prefix}validation_{self.metric}", [])
        on_test = run.rounds.get(f"{prefix}test_{self.metric}", [])
        best_validation = -math.inf
        test_then = None
        for validation, test in zip(on_validation, on_test, strict=False):
            if validation is None or test is None:
                continue
            if test_then is None or self.sign * validation > best_validation:
                best_validation = self.sign * validation
                test_then = test
        return test_then

    def _reached(self, run: RunData, target: Target) -> tuple[int | None, int | None]:
        """Return the first round in which a run reached the target, and the bytes that had been sent by then."""
        sign = run.sign_of(str(target.metric))
        scores = _curve(run, str(target.metric))
        sent = 0
        for place, score in enumerate(scores):
            sent += run.rounds["bytes_down"][place] + run.rounds["bytes_up"][place]
            if score is not None and sign * score >= sign * target.value:
                return run.rounds["round"][place], sent
        return None, None

    @cached_property
    def client_rows(self) -> str:
        """Return the rows on which clients were scored, training ones if that is so in any run."""
        names = (f"client_{self.metric}_rows", "client_accuracy_rows")
        kinds = set()
        for run in self.runs.runs:
            for name in names:
                if name in run.summary:
                    kinds.add(str(run.summary[name]))
        return max(kinds, default="its own rows")  # "training rows" is last in the alphabet


def _curve(run: RunData, metric: str) -> list[float | None]:
    """Return a metric of the shared model on the test rows in every round; empty without one."""
    column: list[float | None] = run.rounds.get(f"test_{metric}", [])
    if any(value is not None for value in column):
        return column
    return []


def _last(run: RunData, metric: str) -> float | None:
    """Return a metric of the shared model on the test rows at the end, with its new head if it was calibrated."""
    names = (f"calibrated_test_{metric}", f"test_{metric}_last")
    return next((run.summary[name] for name in names if name in run.summary), None)
