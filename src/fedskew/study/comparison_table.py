"""The table of a comparison for readers: its columns, lines and notes, and a data frame."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedskew.runs.folder import Row
from fedskew.runs.summary import mean_and_std
from fedskew.study.compared_runs import compared
from fedskew.study.comparison_rows import BOUND, SHARE, ComparisonRows, Configuration
from fedskew.study.judgement import Judgement
from fedskew.study.significance import said_p
from fedskew.study.study_folder import TARGET, target_of
from fedskew.study.target_score import Target

if TYPE_CHECKING:
    import pandas as pd

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
_MOST_DECIMALS, _LARGE = 8, 1e6  # beyond these, numbers are in powers of ten


@dataclass(frozen=True)
class Comparison:
    """Runs that were compared: their rows, what follows from these, and the table for readers."""

    rows: ComparisonRows
    judgement: Judgement

    @cached_property
    def columns(self) -> dict[str, tuple[str, str, float]]:
        """Return the numbers that at least one run has: title, meaning, and factor in tables for readers."""
        found = {}
        for written, (title, meaning, factor) in _COLUMNS.items():
            key = written.format(metric=self.rows.metric)
            is_sought = key.endswith("_to_target") and self.rows.target is not None
            if is_sought or any(one.values(key) for one in self.rows.configurations):
                titled = title.format(metric=self.rows.metric)
                found[key] = (titled, meaning.format(rows=self.rows.client_rows), factor)
        return found

    def frame(self) -> "pd.DataFrame":
        """Return one row a configuration; options, conditions, means and standard deviations are columns.

        ``attrs`` has the target, the number that methods are compared by, the verdict in words, why cells of a shared
        model are empty, and warnings.
        """
        import pandas as pd

        frame = pd.DataFrame([self._record(one) for one in self.rows.configurations])
        target = None
        if self.rows.target:
            target = f"{self.rows.target.metric}={self.rows.target.value:g}"
        frame.attrs = {
            "target": target,
            "compared_by": self.judgement.score,
            "goal": self.judgement.goal,
            "verdict": self.judgement.verdict.says,
            "without_shared_score": self.judgement.without_shared_score(),
            "warnings": self.judgement.cautions(),
        }
        return frame

    def _record(self, one: Configuration) -> Row:
        """Return the row of a configuration in the data frame."""
        verdict = self.judgement.verdict
        record: Row = {"method": one.method, **one.options, **one.conditions}
        record |= {"seeds": len(one.rows), "failed": len(one.failed)}
        for key in self.columns:
            mean, std = None, None
            if one.values(key):
                mean, std = mean_and_std(one.values(key))
            record |= {key: mean, f"{key}_std": std}
        if self.rows.target:
            record["reached_target"] = None
            if one.has_shared_model:
                record["reached_target"] = len(one.values("rounds_to_target"))
        record["difference_to_best"] = self._difference_to_best(one.label)
        record["p_value"] = verdict.p_values.get(one.label)
        record["winner"] = one.label == verdict.winner
        return record

    def _difference_to_best(self, label: str) -> float | None:
        """Return the score of a method minus that of the best one; None if no block has both."""
        if label == self.judgement.verdict.best:
            return 0.0
        lead_of_best = self.judgement.verdict.differences.get(label)
        if lead_of_best is None:
            return None
        return -self.rows.sign * lead_of_best + 0.0  # adding 0.0 turns -0.0 into 0.0

    def head(self) -> list[str]:
        """Return the titles of the columns for readers."""
        return [
            "method",
            *self.rows.options,
            *self.rows.conditions,
            "seeds",
            *(title for title, _, _ in self.columns.values()),
            "p",
        ]

    def texts(self) -> list[bool]:
        """Return which columns for readers are text: the method, and options and conditions that are no numbers."""
        named = []
        for one in self.rows.configurations:
            named.append({**one.options, **one.conditions})
        plain = []
        for name in (*self.rows.options, *self.rows.conditions):
            plain.append(any(isinstance(one[name], str) for one in named))
        return [True, *plain, False, *[False] * len(self.columns), False]

    def lines(self) -> list[list[str]]:
        """Return the rows for readers: mean ± standard deviation; who is ahead has a star."""
        return [self._line(one) for one in self.rows.configurations]

    def _line(self, one: Configuration) -> list[str]:
        method = one.method
        if one.label == self.judgement.verdict.winner:
            method += " ★"
        seeds = str(len(one.rows))
        if one.failed:
            seeds += f" ({len(one.failed)} failed)"
        line = [method]
        for value in (*one.options.values(), *one.conditions.values()):
            line.append(_spelled(value))
        line.append(seeds)
        for key, (_, _, factor) in self.columns.items():
            line.append(_cell(one, key, factor))
        return [*line, self._p_of(one)]

    def _p_of(self, one: Configuration) -> str:
        """Return the p-value of the difference to the best method, or why there is none."""
        if one not in self.judgement.competing:
            return "bound"
        if one.label == self.judgement.verdict.best:
            return "best"
        p = self.judgement.verdict.p_values.get(one.label)
        if p is None:
            return ""
        return said_p(p)

    def notes(self) -> list[str]:
        """Return what a reader needs to know of the table: first by what methods are compared."""
        found = [self.judgement.goal, *self.findings()]
        found.append(
            "Mean ± standard deviation over seeds; p is that of the difference to the best method, corrected for all "
            "pairs of methods; ★ is a method that is ahead of all others."
        )
        if self.rows.conditions:
            found.append(
                f"best, p and ★ are over all conditions together ({', '.join(self.rows.conditions)}), "
                "and so they are the same in every row of a method."
            )
        if len(self.judgement.competing) < len(self.rows.configurations):
            found.append(
                f"{BOUND} trains on all rows in one place: a bound, which takes no part in the tests."
            )
        for broken in self.rows.runs.failed:
            found.append(f"failed: {broken.name}: {broken.reason}")
        return found

    def findings(self) -> list[str]:
        """Return who is ahead, what to know of that, and the target."""
        found = [
            self.judgement.verdict.says,
            *self.judgement.without_shared_score(),
            *self.judgement.cautions(),
        ]
        if self.rows.target:
            how = f", which is {SHARE:.0%} of the best mean"
            if self.rows.asked:
                if self.rows.given:
                    how = " (as given)"
                else:
                    how = f" (from {TARGET})"
            found.append(
                f"The target is {self.rows.target.metric} = {self.rows.target.value:g} on test rows{how}."
            )
        return found

    def meanings(self) -> dict[str, str]:
        """Return the meaning of every column of numbers, by its title."""
        meanings: dict[str, str] = {}
        for title, meaning, _ in self.columns.values():
            meanings[title] = meaning
        return meanings


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


def comparison(folders: Iterable[Path], target: "Target | str | float | None" = None) -> Comparison:
    """Return the comparison of these runs; the folder of a comparison stands for all its runs.

    Without a target, the first one that a folder has recorded is taken.
    """
    places = list(folders)
    asked = None
    if target is not None:
        asked = Target.of(target)
    for place in places:
        if asked is None:
            asked = target_of(place)
    rows = ComparisonRows(compared(places), asked, target is not None)
    return Comparison(rows, Judgement(rows))
