"""The rows that a comparison is judged by and shows: one a configuration, with what its runs scored."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.engine.sharing import WHOLE
from fedskew.runs.folder import Row
from fedskew.runs.goals import Goal
from fedskew.runs.summary_reading import SHARED_MODEL
from fedskew.study.choose import Chosen
from fedskew.study.compared_runs import Compared
from fedskew.study.judge import Rules
from fedskew.study.judging import CONTROL, Judging
from fedskew.study.row_worth import RowWorth, goes_by_class, row_and_zone, worth_of
from fedskew.study.run_data import RunData
from fedskew.study.run_scores import collapse_of, column_on_test, holds_out, score_of
from fedskew.study.setting import Setting
from fedskew.study.study_folder import is_a_share
from fedskew.study.target_score import Target

SHARE = 0.9  # of the best mean, the target of a comparison that was given none
BOUND = "central"  # trains on all rows in one place: a bound, shown beside the methods
MAJORITY = "majority class"  # of each client, which stands beside the methods under the goal own
SCORE = "score"  # the number that methods are judged by


def said_failures(count: int, blocks: int) -> str:
    """Return how many runs failed, of how many; empty if none did."""
    if not count:
        return ""
    return f"failed {count} of {blocks}"


@dataclass(frozen=True)
class Configuration:
    """A row of the table: a method with its options under some conditions, and its runs.

    Args:
        label: the method with what distinguishes it from others; the same for all conditions
        method: the method without its options
        options: by name
        conditions: by name
        rows: the runs that finished
        failed: why each of the others failed
        collapsed: why each of those that collapsed counts as such; they are among the rows
        chosen: among what its numbers were chosen, if they were
    """

    label: str
    method: str
    options: Mapping[str, Any]
    conditions: Mapping[str, Any]
    rows: Sequence[Row]
    failed: Sequence[str]
    collapsed: Sequence[str] = ()
    chosen: Chosen | None = None

    @property
    def has_shared_model(self) -> bool:
        """Return whether the clients of every run share a whole model."""
        return all(row.get(SHARED_MODEL, WHOLE) == WHOLE for row in self.rows)

    @property
    def blocks(self) -> int:
        """Return how many runs it has, failed ones included."""
        return len(self.rows) + len(self.failed)

    @property
    def failures(self) -> str:
        """Return how many of its runs failed or collapsed; empty if none did."""
        return said_failures(len(self.failed) + len(self.collapsed), self.blocks)

    @property
    def cell(self) -> str:
        """Return its conditions in words: what is judged on its own."""
        return ", ".join(f"{name} {value}" for name, value in self.conditions.items())

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
    collapsed: list[str] = field(default_factory=list)
    chosen: list[Chosen] = field(default_factory=list)


class _Called(NamedTuple):
    """How a method is called: its names, and how it was written in the plan."""

    names: set[str]
    written: set[str]


@dataclass(frozen=True)
class ComparisonRows:
    """Runs as rows.

    Args:
        runs: those that methods are judged by
        judging: how; what it leaves open follows from the runs
        asked: the target, by default 90 % of the best configuration's score, where high is good
        given: whether the target was given now, and not read from the folder
        chosen: among what the numbers of a run were chosen, by the name of its folder
        written: the method of a run as it was written in the plan, by the name of its folder
        changed: in what it is judged otherwise than it was planned
    """

    runs: Compared
    judging: Judging = field(default_factory=Judging)
    asked: Target | None = None
    given: bool = False
    chosen: Mapping[str, Chosen] = field(default_factory=dict)
    written: Mapping[str, str] = field(default_factory=dict)
    changed: Sequence[str] = ()

    @property
    def metric(self) -> str:
        """Return the metric that decides, that of the first run."""
        return self.runs.runs[0].metric

    @cached_property
    def sign(self) -> int:
        """Return -1 where low is good."""
        return self.runs.runs[0].sign

    @cached_property
    def goal(self) -> Goal:
        """Return what the models are for: as planned or, of finished runs, what all of them have a score for."""
        if self.judging.goal is not None:
            return self.judging.goal
        runs = self.runs.runs
        if all(run.record.config.get("client_test") for run in runs):
            return "own"
        if all(run.record.shared_model == WHOLE for run in runs):
            return "shared"
        if all(holds_out(run) for run in runs):
            return "own"
        return "shared"

    @cached_property
    def rules(self) -> Rules:
        """Return what judging goes by; the zone of finished runs without a plan follows from their test rows."""
        first = self.runs.runs[0]
        row, zone = self.judging.row, self.judging.zone
        if not row and is_a_share(first.record.task, self.metric):
            row, zone = row_and_zone(list(map(self._worth_of, self.runs.runs)), zone)
        return Rules(zone, row, self.sign, self.control)

    def _worth_of(self, run: RunData) -> RowWorth:
        """Return how much one row changes the score of a run; 0 if its folder does not say how many there were."""
        if self.goal == "own":
            sizes = []
            for row in run.final_rows:
                if row.get("test_rows"):
                    sizes.append([row["test_rows"]])
            return worth_of(np.array(sizes, np.int64).reshape(-1, 1))
        rows = int(run.summary.get("test_rows") or 0)
        if run.confusion is not None and goes_by_class(self.metric):
            _, matrix = run.confusion
            return worth_of(np.array(matrix).sum(1)[None])
        return worth_of(np.array([[rows]]))

    @cached_property
    def control(self) -> str | None:
        """Return the label of the control; None for all pairs."""
        wanted = self.judging.control
        if wanted is None and self.is_planned:
            return None
        exact = []
        matching = []
        for label, called in self._called.items():
            if wanted == label or wanted in called.written:
                exact.append(label)
            if (wanted or CONTROL) in called.names:
                matching.append(label)
        for found in (exact, matching):
            if len(found) == 1:
                return found[0]
        if wanted is None:
            return None
        raise FedskewError(
            f"control {wanted!r} is not one of the methods: give one of {', '.join(self._called)}"
        )

    @cached_property
    def _called(self) -> "dict[str, _Called]":
        """How each method is called, by its label."""
        called: dict[str, _Called] = {}
        for run, setting in zip(self._names_of_runs, self.runs.settings, strict=True):
            label = self.runs.label_of(setting, conditions=False)
            one = called.setdefault(label, _Called(set(), set()))
            one.names.update((label, setting.method, setting.algorithm))
            if run in self.written:
                one.written.add(self.written[run])
        return called

    @property
    def _names_of_runs(self) -> list[str]:
        """The names of the folders of all runs, failed ones last."""
        names = [run.disk.path.name for run in self.runs.runs]
        return names + [run.name for run in self.runs.failed]

    @property
    def has_a_score(self) -> bool:
        """Return whether any run has a score for the goal."""
        for run in self.runs.runs:
            if score_of(run, self.goal, self.judging.score) is not None:
                return True
        return False

    @property
    def has_scores_of_all(self) -> bool:
        """Return whether every run has a score for the goal."""
        for run in self.runs.runs:
            if score_of(run, self.goal, self.judging.score) is None:
                return False
        return True

    @property
    def is_planned(self) -> bool:
        """Return whether it was settled before the first run how the study is judged."""
        return self.judging.goal is not None

    # -- the target ----------------------------------------------------------------------------------------------------

    @cached_property
    def target(self) -> Target | None:
        """Return the target that is looked for in the curves of the goal's score on test rows."""
        if self.asked is None:
            return self._usual_target()
        metric = self.asked.metric or self.metric
        if any(self._curve(run, metric) for run in self.runs.runs):
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
            score = score_of(run, self.goal, self.judging.score)
            if score is not None and self._is_judged(setting):
                by_label.setdefault(self.runs.label_of(setting, False), []).append(score)
        best = max(map(fmean, by_label.values()), default=0.0)
        if self.sign > 0 and best > 0:
            return Target(float(f"{SHARE * best:.4g}"), self.metric)
        return None

    def _is_judged(self, setting: Setting) -> bool:
        return setting.method not in (BOUND, *self.judging.references)

    def _curve(self, run: RunData, metric: str) -> list[float | None]:
        """Return a metric of the goal's models on test rows in every round; empty without one."""
        column = column_on_test(run, self.goal).removesuffix(run.metric) + metric
        values: list[float | None] = run.rounds.get(column, [])
        if any(value is not None for value in values):
            return values
        return []

    def _reached(self, run: RunData, target: Target) -> tuple[int | None, int | None]:
        """Return the first round in which a run reached the target, and the bytes that had been sent by then."""
        sign = run.sign_of(str(target.metric))
        scores = self._curve(run, str(target.metric))
        sent = 0
        for place, score in enumerate(scores):
            sent += run.rounds["bytes_down"][place] + run.rounds["bytes_up"][place]
            if score is not None and sign * score >= sign * target.value:
                return run.rounds["round"][place], sent
        return None, None

    # -- the rows ------------------------------------------------------------------------------------------------------

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
            same = same_as(setting)
            same.rows.append(self._numbers(run, setting))
            collapse = collapse_of(run, self.goal)
            if collapse:
                same.collapsed.append(f"{run.disk.path.name}: {collapse}")
            self._add_chosen(same, run.disk.path.name)
        for broken in self.runs.failed:
            same = same_as(broken.setting)
            same.failed.append(broken.reason)
            self._add_chosen(same, broken.name)
        found = [self._configuration(same) for same in collected.values()]
        return found + self._majority_rates(found)

    def _majority_rates(self, found: Sequence[Configuration]) -> list[Configuration]:
        """Return the rate of each client's most frequent class, a row per cell; only accuracy is held against it."""
        if self.goal != "own" or self.metric != "accuracy":
            return []
        by_cell: dict[str, dict[Any, Row]] = {}
        conditions = {}
        for one in found:
            blocks = by_cell.setdefault(one.cell, {})
            conditions[one.cell] = one.conditions
            for row in one.rows:
                rate = row.get("client_majority_rate_mean")
                if rate is not None and row[SCORE] is not None:
                    blocks.setdefault(row["block"], {SCORE: rate, "block": row["block"]})
        rates = []
        for cell, blocks in by_cell.items():
            if blocks:
                options = dict.fromkeys(self.options)
                rows = list(blocks.values())
                rates.append(Configuration(MAJORITY, MAJORITY, options, conditions[cell], rows, []))
        return rates

    def _add_chosen(self, same: _SameSetting, name: str) -> None:
        if name in self.chosen:
            same.chosen.append(self.chosen[name])

    def _configuration(self, same: _SameSetting) -> Configuration:
        setting = same.setting
        options = {}
        for name in self.options:
            options[name] = setting.options.get(name, setting.values.get(name))
        conditions = {name: setting.values.get(name) for name in self.conditions}
        chosen = None
        if same.chosen:
            chosen = same.chosen[0]
        return Configuration(
            same.label,
            setting.method,
            options,
            conditions,
            same.rows,
            same.failed,
            same.collapsed,
            chosen,
        )

    @cached_property
    def options(self) -> list[str]:
        """Return the names of the hyper-parameters that have a column: given, chosen, or not the same in all."""
        names: dict[str, None] = {}
        for setting in self.runs.settings:
            names |= dict.fromkeys(setting.given_options)
            for name in self.runs.chosen:
                if name in setting.options:
                    names[name] = None
        names |= dict.fromkeys(self.runs.different_settings)
        for chosen in self.chosen.values():
            for name in chosen.best.numbers:
                if name in self.runs.settings[0].values:
                    names[name] = None
        return list(names)

    @cached_property
    def conditions(self) -> list[str]:
        """Return the names of the conditions that are not the same in all runs, such as the skew."""
        return self.runs.different_conditions

    def _numbers(self, run: RunData, setting: Setting) -> Row:
        """Return the summary of a run with what the table has beside it."""
        summary = run.summary
        row = {**summary, "bytes": summary["bytes_down"] + summary["bytes_up"]}
        row["block"] = (summary["seed"], setting.values.get("split_seed"))
        row[SCORE] = score_of(run, self.goal, self.judging.score)
        row["shared_score"] = None
        if self.goal == "own":
            row["shared_score"] = score_of(run, "shared", "last")
        if self.target:
            row["rounds_to_target"], row["bytes_to_target"] = self._reached(run, self.target)
        return row

    @cached_property
    def are_held_out(self) -> bool:
        """Return whether clients were scored on rows that they do not train on, in all runs."""
        return all(holds_out(run) for run in self.runs.runs)

    @property
    def client_rows(self) -> str:
        """Return the rows on which clients were scored, training ones if that is so in any run."""
        if self.are_held_out:
            return "its held-out rows"
        return "its own training rows"

    @cached_property
    def test_rows(self) -> int | None:
        """Return how many test rows all blocks share; None where every client has its own, or nobody recorded it."""
        if self.goal == "own":
            return None
        counts = {run.summary.get("test_rows") for run in self.runs.runs}
        count = counts.pop()
        if counts or count is None or math.isnan(count):
            return None
        return int(count)
