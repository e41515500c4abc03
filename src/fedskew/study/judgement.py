"""What follows from the rows of a comparison: by what methods are judged, and the verdicts."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

from fedskew.core.units import AS_IT_IS, ScoreUnit
from fedskew.runs.summary_reading import without_shared_score
from fedskew.study.choose import unequal_tries
from fedskew.study.comparison_rows import (
    BOUND,
    MAJORITY,
    SCORE,
    ComparisonRows,
    Configuration,
    said_failures,
)
from fedskew.study.judge import Contrast, Pooled, Scores, judge_cell, pool, said

_BINOMIAL = 1.96  # standard deviations on each side of a share, for 95 %
_NAMED = 6  # methods in a sentence


@dataclass(frozen=True)
class Judgement:
    """The score that decides, and the verdicts of every cell."""

    rows: ComparisonRows
    unit: ScoreUnit = AS_IT_IS  # of the scores in sentences

    @cached_property
    def competing(self) -> list[Configuration]:
        """Return the configurations that are judged: all but bounds and references, unless there is nothing else."""
        judged = []
        for one in self.rows.configurations:
            if not self.is_reference(one):
                judged.append(one)
        return judged or self.rows.configurations

    def is_reference(self, one: Configuration) -> bool:
        """Return whether a configuration is shown beside the methods, and not judged; the control is never one."""
        if one.label == self.rows.rules.control:
            return False
        return one.method in (BOUND, MAJORITY, *self.rows.judging.references)

    @property
    def goal_said(self) -> str:
        """Return the goal and the score in a sentence: the first line of everything that is shown."""
        metric = self.rows.metric.replace("_", " ")
        if self.rows.goal == "own":
            said_goal = (
                f"Goal own: the {metric} of the model that each client uses, on {self.rows.client_rows}, as the mean "
                "over the clients"
            )
        else:
            said_goal = f"Goal shared: the {metric} of the shared model on the common test rows"
        when = "after the last round"
        if self.rows.judging.score == "validation-best":
            when = "in the round that is best on validation rows"
        sentences = [f"{said_goal}, {when}."]
        for name, share in self.rows.judging.set_aside.items():
            whose = "the training rows"
            if name == "client_validation":
                whose = "each client's rows"
            sentences.append(f"{share:.0%} of {whose} were set aside to choose by ({name}).")
        return " ".join(sentences)

    # -- scores and contrasts ------------------------------------------------------------------------------------------

    @cached_property
    def scores(self) -> dict[str, Scores]:
        """Return the scores of every cell, by method and block."""
        cells: dict[str, dict[str, dict[Hashable, float]]] = {}
        for one in self.competing:
            by_block = cells.setdefault(one.cell, {}).setdefault(one.label, {})
            for row in one.rows:
                if row[SCORE] is not None and math.isfinite(row[SCORE]):
                    by_block[row["block"]] = row[SCORE]
        found: dict[str, Scores] = {}
        for cell, by_label in cells.items():
            found[cell] = {label: blocks for label, blocks in by_label.items() if blocks}
        return found

    @cached_property
    def families(self) -> dict[str, list[Contrast]]:
        """Return the contrasts of every cell."""
        families = {}
        for cell, scores in self.scores.items():
            families[cell] = judge_cell(scores, self.rows.rules, cell)
        return families

    @property
    def contrasts(self) -> list[Contrast]:
        """Return the contrasts of all cells."""
        found = []
        for family in self.families.values():
            found += family
        return found

    @cached_property
    def pooled(self) -> list[Pooled]:
        """Return the contrasts as means over the cells, if that was asked for and there are several cells."""
        if not self.rows.judging.pool or len(self.families) < 2:
            return []
        return pool(self.contrasts, len(self.families))

    @property
    def pooled_over(self) -> str:
        """Return what the pooled contrasts are means over, in words."""
        if self.rows.conditions == ["skew"]:
            return f"these {len(self.families)} skews"
        return f"these {len(self.families)} conditions"

    def contrast_of(self, one: Configuration) -> Contrast | None:
        """Return the contrast of a configuration with the control; None for the control, references and all pairs."""
        if self.rows.rules.control is None:
            return None
        for contrast in self.families.get(one.cell, []):
            if contrast.method == one.label:
                return contrast
        return None

    def verdict_of(self, one: Configuration) -> str:
        """Return the verdict of a configuration in the table, with its failures beside it."""
        if self.is_reference(one):
            word = "reference"
        elif one.label == self.rows.rules.control:
            word = "control"
        elif self.rows.rules.control is None:
            word = self._counts(one)
        else:
            contrast = self.contrast_of(one)
            word = ""
            if contrast is not None:
                word = contrast.verdict
        return ", ".join(text for text in (word, one.failures) if text)

    def _counts(self, one: Configuration) -> str:
        """Return how often a configuration is better, worse, equal and undecided among all pairs."""
        counts = {"better": 0, "equal": 0, "worse": 0, "undecided": 0}
        opposite = {"better": "worse", "worse": "better"}
        for contrast in self.families.get(one.cell, []):
            if contrast.method == one.label:
                counts[contrast.verdict] += 1
            elif contrast.control == one.label:
                counts[opposite.get(contrast.verdict, contrast.verdict)] += 1
        return ", ".join(f"{word} {count}" for word, count in counts.items() if count)

    # -- in words ------------------------------------------------------------------------------------------------------

    @cached_property
    def says(self) -> list[str]:
        """Return the verdicts in words: a line for every cell, then those of the mean over them."""
        lines = []
        for cell, family in self.families.items():
            line = self._said_of(cell, family)
            if cell:
                line = f"{cell}: {line}"
            lines.append(line)
        if self.pooled:
            over = said([one.contrast for one in self.pooled], self.failures_of(None), self.unit)
            lines.append(f"Mean over {self.pooled_over}: {over}")
            without = self._not_pooled()
            if without:
                names = ", ".join(without[:_NAMED])
                lines.append(
                    f"There is no mean of {names}: one of {self.pooled_over} has no score."
                )
            apart = [one.contrast.method for one in self.pooled if one.disagree]
            if apart:
                lines.append(
                    f"They disagree about the sign of {', '.join(apart[:_NAMED])}: the mean hides that."
                )
        return lines

    def _said_of(self, cell: str, family: Sequence[Contrast]) -> str:
        """Return the verdicts of a cell, or why there are none."""
        control = self.rows.rules.control
        scores = self.scores[cell]
        if not family and control is not None and control not in scores and scores:
            failures = self.failures_of(cell).get(control)
            why = "has no score"
            if failures:
                why += f" ({failures})"
            return f"Nothing is judged: the control {control} {why}."
        return said(family, self.failures_of(cell), self.unit)

    def failures_of(self, cell: str | None) -> dict[str, str]:
        """Return how often each method failed in a cell; without a cell, in all of them together."""
        failed: dict[str, int] = {}
        blocks: dict[str, int] = {}
        for one in self.competing:
            if cell in (None, one.cell):
                count = len(one.failed) + len(one.collapsed)
                failed[one.label] = failed.get(one.label, 0) + count
                blocks[one.label] = blocks.get(one.label, 0) + one.blocks
        found = {}
        for label, count in failed.items():
            found[label] = said_failures(count, blocks[label])
        return found

    def _not_pooled(self) -> list[str]:
        """Return the methods that some cells have a contrast of, and the mean has not."""
        pooled = {one.contrast.method for one in self.pooled}
        others: dict[str, None] = {}
        for contrast in self.contrasts:
            if contrast.method not in pooled:
                others[contrast.method] = None
        return list(others)

    def how_judged(self) -> str:
        """Return the tests and the zone in a sentence."""
        rules = self.rows.rules
        zone = "There is no zone, and so nothing is called equal (equal= gives one)."
        if rules.zone is not None:
            tests = "two one-sided tests at 5 % a contrast"
            width = f"±{self.unit.factor * rules.zone:.3g}{self.unit.of_differences}"
            zone = f"Equal: the plain 90 % interval lies within {width} ({tests})."
        largest = max((len(family) for family in self.families.values()), default=0)
        contrasts = "1 contrast of a skew"
        if largest != 1:
            contrasts = f"{largest} contrasts of a skew together"
        return (
            "Better or worse: the interval excludes 0. It is a paired t interval over blocks, at 1 - .05/m for the "
            f"m = {contrasts}. {zone}"
        )

    def shared_rows(self) -> list[str]:
        """Return that blocks share the test rows, and what that leaves open."""
        rows = self.rows.test_rows
        if rows is None or self.rows.metric != "accuracy":
            return []
        best = 0.0
        for one in self.competing:
            values = one.values(SCORE)
            if values:
                best = max(best, sum(values) / len(values))
        if not self.rows.rules.row or not 0 < best <= 1:
            return []
        half = self.unit.factor * _BINOMIAL * math.sqrt(best * (1 - best) / rows)
        return [
            f"All blocks share the {rows:,} test rows: other test rows would move the best score by about "
            f"±{half:.2g}{self.unit.of_differences} (binomial, 95 %), and differences by less, as methods share the "
            "rows."
        ]

    def without_shared_score(self) -> list[str]:
        """Return why cells of a shared model are empty."""
        labels = []
        rows = []
        for one in self.rows.configurations:
            for row in one.rows:
                labels.append(one.label)
                rows.append(row)
        return without_shared_score(labels, rows)

    def failures(self) -> list[str]:
        """Return why runs failed or collapsed."""
        lines = []
        for broken in self.rows.runs.failed:
            lines.append(f"failed: {broken.said}")
        for one in self.rows.configurations:
            lines += [f"collapsed: {reason}" for reason in one.collapsed]
        return lines

    def cautions(self) -> list[str]:
        """Return what a reader should know before drawing conclusions from the table."""
        cautions = self.rows.runs.counted_once()
        if self.rows.changed:
            cautions.append(f"judged otherwise than it was planned: {', '.join(self.rows.changed)}")
        if self.rows.goal == "own":
            cautions += self._without_rows()
        cautions += self._without_score()
        cautions += self._cautions_of_choice()
        if not self.rows.is_planned and not self.rows.has_scores_of_all:
            cautions.append(
                "some runs have no score for this goal; train them with client_test=0.2 to judge the models that "
                "clients use"
            )
        return cautions

    def _cautions_of_choice(self) -> list[str]:
        """Return what to know of the numbers that were chosen."""
        cautions = []
        tries: dict[str, int] = {}
        for one in self.competing:
            if one.chosen is None:
                continue
            tries[one.label] = max(tries.get(one.label, 0), len(one.chosen.tries))
            if one.chosen.best.failed:
                where = ""
                if one.cell:
                    where = f" ({one.cell})"
                cautions.append(f"every try of {one.label}{where} has a failed run")
        unequal = unequal_tries(tries)
        if unequal:
            cautions.append(unequal)
        return cautions

    def _without_rows(self) -> list[str]:
        """Return how many clients have no part in the score, if there are such."""
        fewest = None
        clients = 0
        for run in self.rows.runs.runs:
            scored = run.summary.get("client_test_clients")
            if scored is not None and (fewest is None or scored < fewest):
                fewest, clients = int(scored), int(run.summary["clients"])
        if fewest is None or fewest >= clients:
            return []
        return [
            f"{clients - fewest} of {clients} clients hold out no rows: they have no part in the score"
        ]

    def _without_score(self) -> list[str]:
        """Return which methods have no score although they share a model, and why that may be."""
        names: dict[str, None] = {}
        for one in self.competing:
            if (
                one.rows
                and not one.values(SCORE)
                and (self.rows.goal == "own" or one.has_shared_model)
            ):
                names[one.label] = None
        if not names:
            return []
        why = f"{self.rows.metric} is not defined on these rows, or none are held out"
        if self.rows.judging.score == "validation-best":
            why = "the model in use was not evaluated on validation rows in every round (ccvr: every=1)"
        return [f"there is no score of {', '.join(names)}: {why}"]

    def chosen_lines(self) -> list[str]:
        """Return what was chosen for each method, among how many tries, and whether it is at the edge of the grid."""
        by_cell: dict[str, list[str]] = {}
        for one in self.rows.configurations:
            if one.chosen is None or len(one.chosen.tries) < 2 or one.chosen.best.mean is None:
                continue
            numbers = []
            for name, value in one.chosen.best.numbers.items():
                numbers.append(f"{name}={value:g}")
            text = f"{one.label} {', '.join(numbers)} (of {len(one.chosen.tries)} tries"
            if one.chosen.at_edge:
                text += f"; at the edge of the grid: {', '.join(one.chosen.at_edge)}"
            by_cell.setdefault(one.cell, []).append(f"{text})")
        lines = []
        for cell, texts in by_cell.items():
            where = ""
            if cell:
                where = f", {cell}"
            lines.append(f"Chosen on validation rows{where}: {'; '.join(texts)}.")
        return lines
