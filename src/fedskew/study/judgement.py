"""What follows from the rows of a comparison: by what methods are compared, and whether one is ahead."""

import math
from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import cached_property

from fedskew.runs.summary import without_shared_score
from fedskew.study.comparison_rows import BOUND, ComparisonRows, Configuration
from fedskew.study.significance import Ranks, Scores, Verdict, no_ranks, ranks, verdict

_NAMED = 6  # methods in the sentence about the goal


@dataclass(frozen=True)
class Judgement:
    """The score that decides, and what tests say of the methods' differences in it."""

    rows: ComparisonRows

    @cached_property
    def competing(self) -> list[Configuration]:
        """Return the configurations that may win: all but the bound, unless there is nothing else."""
        federated = []
        for one in self.rows.configurations:
            if one.method != BOUND:
                federated.append(one)
        return federated or self.rows.configurations

    @cached_property
    def score(self) -> str:
        """Return the number that methods are compared by: that of the shared model if every method has one.

        Otherwise it is that of the model that each client uses.
        """
        shared = f"test_{self.rows.metric}_last"
        if all(len(one.values(shared)) == len(one.rows) for one in self.competing):
            return shared
        return f"client_{self.rows.metric}_mean"

    @property
    def score_said(self) -> str:
        """Return the name of that number; for a score of the clients, also the rows that it is measured on."""
        if self.score.startswith("client_"):
            return f"{self.score} (on {self.rows.client_rows})"
        return self.score

    @property
    def goal(self) -> str:
        """Return by what methods are compared, and why that is not a shared model's score."""
        said = f"Methods are compared by {self.score_said}"
        if not self.score.startswith("client_"):
            return f"{said}."
        said += ", the clients' own score"
        names: list[str] = []
        for one in self.competing:
            if one.rows and not one.has_shared_model and one.label not in names:
                names.append(one.label)
        if not names:
            return f"{said}."
        listed = ", ".join(names[:_NAMED])
        if len(names) > _NAMED:
            listed += f" and {len(names) - _NAMED} more"
        return f"{said}: there is no shared model of {listed}."

    def without_shared_score(self) -> list[str]:
        """Return why cells of a shared model are empty."""
        labels = []
        rows = []
        for one in self.rows.configurations:
            for row in one.rows:
                labels.append(one.label)
                rows.append(row)
        return without_shared_score(labels, rows)

    def cautions(self) -> list[str]:
        """Return what a reader should know before drawing conclusions from the table."""
        cautions = self.rows.runs.counted_once()
        if self.on_training_rows:
            cautions.append(
                "methods are compared on training rows, which say little of other rows: hold some out at every client "
                "(client_test=0.2)"
            )
        return cautions

    @cached_property
    def scores(self) -> Scores:
        """Return the scores of every method by block, with their sign turned where low is good: more is better."""
        scores: dict[str, dict[Hashable, float]] = {}
        for one in self.competing:
            by_block = scores.setdefault(one.label, {})
            for row in one.rows:
                if row.get(self.score) is not None and math.isfinite(row[self.score]):
                    by_block[row["block"]] = self.rows.sign * row[self.score]
        return {label: by_block for label, by_block in scores.items() if by_block}

    @cached_property
    def verdict(self) -> Verdict:
        """Return which method is ahead, if any is."""
        failed: dict[str, int] = {}
        for one in self.rows.configurations:
            failed[one.label] = failed.get(one.label, 0) + len(one.failed)
        found = verdict(self.scores, failed)
        if found.winner is None or not self.on_training_rows:
            return found
        says = f"No method is called ahead: {found.winner} has the best mean, on rows that clients have trained with."
        return replace(found, winner=None, says=says)

    @property
    def on_training_rows(self) -> bool:
        """Return whether methods are compared on rows that clients have trained with."""
        return self.score.startswith("client_") and self.rows.client_rows.startswith("training")

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
