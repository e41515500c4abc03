"""The table of a comparison: one row a configuration, with what its runs scored, and what follows from that."""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedskew.core.errors import FedskewError
from fedskew.engine.job import WHOLE
from fedskew.runs.folder import Row
from fedskew.runs.summary import SHARED_MODEL, mean_and_std, without_shared_score
from fedskew.study import sweep
from fedskew.study.compared_runs import Compared, compared
from fedskew.study.run_data import RunData
from fedskew.study.setting import Setting
from fedskew.study.significance import Ranks, Scores, Verdict, no_ranks, ranks, said_p, verdict

if TYPE_CHECKING:
    import pandas as pd

_SHARE = 0.9  # of the best mean, the target of a comparison that was given none
_COLUMNS = {  # of the summaries: title, meaning and factor in tables for readers
    "test_{metric}_last": (
        "test {metric}",
        "the shared model on the test rows at the end; empty without one",
        1,
    ),
    "test_{metric}_at_best_validation": (
        "at best validation",
        "the same in the round that is best on validation",
        1,
    ),
    "test_{metric}_best": ("best", "the same in the best round on the test rows themselves", 1),
    "own_test_{metric}_mean": (
        "personal models",
        "mean over the clients of their own models on the test rows",
        1,
    ),
    "client_{metric}_mean": (
        "clients",
        "mean over the clients of the model that each uses, on {rows}",
        1,
    ),
    "client_{metric}_worst_10_percent": (
        "worst 10 %",
        "likewise, over the worst tenth of the clients",
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
_NAMED = 6  # methods in the sentence about the goal
_MOST_DECIMALS, _LARGE = 8, 1e6  # beyond these, numbers are in powers of ten
BOUND = "central"  # what is shown beside methods and is none of them


@dataclass(frozen=True)
class Target:
    """A score to reach; without a metric it is one of that which decides."""

    value: float
    metric: str | None = None

    def __str__(self) -> str:
        if self.metric:
            return f"{self.metric}={self.value!r}"
        return repr(self.value)

    @staticmethod
    def of(given: "str | float") -> "Target":
        """Return the target of a number, or of a text such as ``0.9`` or ``accuracy=0.9``.

        >>> Target.of("balanced-accuracy=0.9")
        Target(value=0.9, metric='balanced_accuracy')
        """
        metric, _, number = str(given).rpartition("=")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise FedskewError(
                f"target {given!r} is not a number such as 0.9, or a metric with one: accuracy=0.9"
            )
        return Target(value, metric.strip().replace("-", "_") or None)


@dataclass(frozen=True)
class Configuration:
    """A row of the table: a method with its options, under some conditions, and its runs, of which some may be failed.

    ``label`` is the same for all conditions.
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
class Comparison:
    """Runs as a table; ``asked`` is the target, by default 90 % of the best configuration's, where high is good."""

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
        metric = (self.asked.metric if self.asked else None) or self.metric
        if self.asked:
            if not any(_curve(run, metric) for run in self.runs.runs):
                if not self.given:
                    return None  # an older version recorded it for runs without a shared model
                raise FedskewError(
                    f"target {metric}: no run followed it on test rows: choose another, or add --metrics"
                )
            return Target(self.asked.value, metric)
        by_label: dict[str, list[float]] = {}
        for run, setting in zip(self.runs.runs, self.runs.settings, strict=False):
            last = _last(run, metric)
            if last is not None and math.isfinite(last) and setting.method != BOUND:
                by_label.setdefault(self.runs.label_of(setting, False), []).append(last)
        best = max(map(fmean, by_label.values()), default=0.0)
        if self.sign > 0 and best > 0:
            return Target(float(f"{_SHARE * best:.4g}"), metric)
        return None

    @cached_property
    def configurations(self) -> list[Configuration]:
        """Return the rows of the table, in the order of the runs."""
        found: dict[tuple[str, ...], tuple[Setting, list[Row], list[str]]] = {}
        ends = [
            *map(self._numbers, self.runs.runs, self.runs.settings),
            *(run.reason for run in self.runs.failed),
        ]
        for one, end in zip(self.runs.settings, ends, strict=True):
            key = (
                self.runs.label_of(one, False),
                *(str(one.values.get(name)) for name in self.conditions),
            )
            _, rows, failed = found.setdefault(key, (one, [], []))
            (failed if isinstance(end, str) else rows).append(end)  # type: ignore[arg-type]
        return [
            Configuration(
                key[0],
                one.method,
                {name: one.options.get(name, one.values.get(name)) for name in self.options},
                {name: one.values.get(name) for name in self.conditions},
                rows,
                failed,
            )
            for key, (one, rows, failed) in found.items()
        ]

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
        row["block"] = (
            summary["seed"],
            setting.values.get("split_seed"),
            *(str(setting.values.get(name)) for name in self.conditions),
        )
        kind = ""
        # Then the model that is used has another head than in the rounds
        if f"calibrated_test_{metric}" in summary:
            kind = "calibrated_"
            row[f"test_{metric}_best"] = summary.get(f"calibrated_test_{metric}_best")
        row[f"test_{metric}_last"] = _last(run, metric)
        followed, scores = (
            run.rounds.get(f"{kind}{part}_{metric}", []) for part in ("validation", "test")
        )
        chosen = []
        for v, t in zip(followed, scores, strict=False):
            if None not in (v, t):
                chosen.append((self.sign * v, t))
        if chosen:
            row[f"test_{metric}_at_best_validation"] = max(chosen, key=lambda pair: pair[0])[1]
        else:
            row[f"test_{metric}_at_best_validation"] = None
        if self.target:
            row |= dict(
                zip(
                    ("rounds_to_target", "bytes_to_target"),
                    self._reached(run, self.target),
                    strict=True,
                )
            )
        return row

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
    def competing(self) -> list[Configuration]:
        """Return the configurations that may win: with all rows in one place it is no federated method, but a bound."""
        return [one for one in self.configurations if one.method != BOUND] or self.configurations

    @cached_property
    def score(self) -> str:
        """Return the number that methods are compared by: that of the shared model if every method has one.

        Otherwise it is that of the model that each client uses.
        """
        shared = f"test_{self.metric}_last"
        if all(len(one.values(shared)) == len(one.rows) for one in self.competing):
            return shared
        return f"client_{self.metric}_mean"

    @property
    def score_said(self) -> str:
        """Return that number, and the rows that it is of where these are the clients' own."""
        return self.score + (
            f" (on {self.client_rows})" if self.score.startswith("client_") else ""
        )

    @property
    def goal(self) -> str:
        """Return by what methods are compared, and why that is not a shared model's score."""
        said = f"Methods are compared by {self.score_said}"
        if not self.score.startswith("client_"):
            return f"{said}."
        said += ", the clients' own score"
        names = list(
            dict.fromkeys(
                one.label for one in self.competing if one.rows and not one.has_shared_model
            )
        )
        if not names:
            return f"{said}."
        listed = ", ".join(names[:_NAMED]) + (
            f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        )
        return f"{said}: there is no shared model of {listed}."

    def without_shared_score(self) -> list[str]:
        """Return why cells of a shared model are empty."""
        rows = []
        for one in self.configurations:
            for row in one.rows:
                rows.append((one.label, row))
        return without_shared_score([label for label, _ in rows], [row for _, row in rows])

    @cached_property
    def client_rows(self) -> str:
        """Return the rows on which clients were scored, training ones if that is so in any run."""
        summaries = [run.summary for run in self.runs.runs]
        names = (f"client_{self.metric}_rows", "client_accuracy_rows")
        found = set()
        for row in summaries:
            for name in names:
                if name in row:
                    found.add(str(row[name]))
        return max(found, default="its own rows")

    def cautions(self) -> list[str]:
        """Return what is to be known before anything is made of the table."""
        found = self.runs.counted_once()
        if self.on_training_rows:
            found.append(
                "methods are compared on training rows, which say little of other rows: hold some out at every client "
                "(--client-test 0.2)"
            )
        return found

    @cached_property
    def scores(self) -> Scores:
        """Return the scores of every method by block, with the sign by which more is better."""
        found: dict[str, dict[Hashable, float]] = {}
        for one in self.competing:
            mine = found.setdefault(one.label, {})
            for row in one.rows:
                if row.get(self.score) is not None and math.isfinite(row[self.score]):
                    mine[row["block"]] = self.sign * row[self.score]
        return {label: mine for label, mine in found.items() if mine}

    @cached_property
    def verdict(self) -> Verdict:
        """Return which method is ahead, if any is."""
        failed: dict[str, int] = {}
        for one in self.configurations:
            failed[one.label] = failed.get(one.label, 0) + len(one.failed)
        found = verdict(self.scores, failed)
        if found.winner is None or not self.on_training_rows:
            return found
        says = f"No method is called ahead: {found.winner} has the best mean, on rows that clients have trained with."
        return replace(found, winner=None, says=says)

    @property
    def on_training_rows(self) -> bool:
        """Return whether methods are compared on rows that clients have trained with."""
        return self.score.startswith("client_") and self.client_rows.startswith("training")

    @cached_property
    def ranks(self) -> Ranks | None:
        """Return the mean ranks of the methods, where there are enough of them and of blocks."""
        if self.no_ranks:
            return None
        return ranks(self.scores)

    @cached_property
    def no_ranks(self) -> str:
        """Return why there are no mean ranks; empty if there are."""
        return no_ranks(self.scores)

    @cached_property
    def columns(self) -> dict[str, tuple[str, str, float]]:
        """Return the numbers that at least one run has: title, meaning, and factor in tables for readers."""
        named = {
            key.format(metric=self.metric): (
                title.format(metric=self.metric),
                meaning.format(rows=self.client_rows),
                factor,
            )
            for key, (title, meaning, factor) in _COLUMNS.items()
        }
        looked_for = ("rounds_to_target", "bytes_to_target") if self.target else ()
        known = {key for key in named if any(one.values(key) for one in self.configurations)}
        return {key: look for key, look in named.items() if key in known or key in looked_for}

    def frame(self) -> "pd.DataFrame":
        """Return one row a configuration; options, conditions, means and standard deviations are columns.

        ``attrs`` has the target, the number that methods are compared by, the verdict in words, why cells of a shared
        model are empty, and warnings.
        """
        import pandas as pd

        lines = []
        for one in self.configurations:
            line: Row = {"method": one.method, **one.options, **one.conditions}
            line |= {"seeds": len(one.rows), "failed": len(one.failed)}
            for key in self.columns:
                if one.values(key):
                    mean, std = mean_and_std(one.values(key))
                else:
                    mean, std = (None, None)
                line |= {key: mean, f"{key}_std": std}
            if self.target:
                if one.has_shared_model:
                    line["reached_target"] = len(one.values("rounds_to_target"))
                else:
                    line["reached_target"] = None
            is_best = one.label == self.verdict.best
            if is_best:
                line["difference_to_best"] = 0.0
            else:
                line["difference_to_best"] = self._difference(one.label)
            line["p_value"] = self.verdict.p_values.get(one.label)
            line["winner"] = one.label == self.verdict.winner
            lines.append(line)
        frame = pd.DataFrame(lines)
        if self.target:
            target = f"{self.target.metric}={self.target.value:g}"
        else:
            target = None
        frame.attrs = {
            "target": target,
            "compared_by": self.score,
            "goal": self.goal,
            "verdict": self.verdict.says,
            "without_shared_score": self.without_shared_score(),
            "warnings": self.cautions(),
        }
        return frame

    def _difference(self, label: str) -> float | None:
        """Return by how much the score of a method is above that of the best."""
        found = self.verdict.differences.get(label)
        # Never -0.0
        if found is None:
            return None
        return -self.sign * found + 0.0

    def head(self) -> list[str]:
        """Return the titles of the columns for readers."""
        return [
            "method",
            *self.options,
            *self.conditions,
            "seeds",
            *(look[0] for look in self.columns.values()),
            "p",
        ]

    def texts(self) -> list[bool]:
        """Return which columns for readers are text: the method, and options and conditions that are no numbers."""
        named = [{**one.options, **one.conditions} for one in self.configurations]
        plain = []
        for name in (*self.options, *self.conditions):
            plain.append(any(isinstance(one[name], str) for one in named))
        return [True, *plain, False, *[False] * len(self.columns), False]

    def lines(self) -> list[list[str]]:
        """Return the rows for readers: mean ± standard deviation; who is ahead has a star."""
        result = []
        for one in self.configurations:
            if one.label == self.verdict.winner:
                star = " ★"
            else:
                star = ""
            cells = []
            for key, (_, _, factor) in self.columns.items():
                cells.append(_cell(one, key, factor))
            seeds = str(len(one.rows)) + (f" ({len(one.failed)} failed)" if one.failed else "")
            p = self.verdict.p_values.get(one.label)
            named = []
            for value in (*one.options.values(), *one.conditions.values()):
                named.append(_spelled(value))
            if one.label == self.verdict.best:
                ending = "best"
            elif p is None:
                ending = ""
            else:
                ending = said_p(p)
            if one in self.competing:
                ending = ending
            else:
                ending = "bound"
            result.append([one.method + star, *named, seeds, *cells, ending])
        return result

    def notes(self) -> list[str]:
        """Return what a reader needs to know of the table: first by what methods are compared."""
        found = [self.goal, *self.findings()]
        found.append(
            "Mean ± standard deviation over seeds; p is that of the difference to the best method, corrected for all "
            "pairs of methods; ★ is a method that is ahead of all others."
        )
        if self.conditions:
            found.append(
                f"best, p and ★ are over all conditions together ({', '.join(self.conditions)}), and so they are the "
                "same in every row of a method."
            )
        if len(self.competing) < len(self.configurations):
            found.append(
                f"{BOUND} trains on all rows in one place: a bound, which takes no part in the tests."
            )
        for broken in self.runs.failed:
            found.append(f"failed: {broken.name}: {broken.reason}")
        return found

    def findings(self) -> list[str]:
        """Return who is ahead, what to know of that, and the target."""
        found = [self.verdict.says, *self.without_shared_score(), *self.cautions()]
        if self.target:
            how = f", which is {_SHARE:.0%} of the best mean"
            if self.asked:
                if self.given:
                    how = " (as given)"
                else:
                    how = f" (from {sweep.TARGET})"
            found.append(
                f"The target is {self.target.metric} = {self.target.value:g} on test rows{how}."
            )
        return found

    def meanings(self) -> dict[str, str]:
        """Return the meaning of every column of numbers, by its title."""
        return {title: meaning for title, meaning, _ in self.columns.values()}


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
        if key.endswith("_to_target") and one.has_shared_model:
            return "not reached"
        return "–"
    mean, std = mean_and_std(values)
    if key == "rounds_to_target" and len(values) < len(one.rows):
        some = f" ({len(values)} of {len(one.rows)})"
    else:
        some = ""
    return mean_with_std(mean, std) + some


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


def comparison(folders: Iterable[Path], target: "Target | str | float | None" = None) -> Comparison:
    """Return the comparison of these runs; the folder of a comparison stands for all its runs, and has its target."""
    places = list(folders)
    stored = (sweep.target_of(place) for place in places)
    chosen = target if target is not None else next(filter(None, stored), None)
    asked = chosen if isinstance(chosen, Target) or chosen is None else Target.of(chosen)
    return Comparison(compared(places), asked, target is not None)
