"""Which method for these clients: what the measures speak for, tried within a budget, judged against FedAvg."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from fedskew.advice.candidates import Candidate, candidates, findings
from fedskew.advice.evidence import Evidence, evidence_for, first_learning_rate, ruled_out
from fedskew.advice.recommendation import GOALS, Recommendation, recommend
from fedskew.algorithms.contract import resolve
from fedskew.batchnorm.masked import has_batch_norm
from fedskew.core.config import Settings
from fedskew.core.errors import FedskewError, unknown
from fedskew.data.federation import Federation
from fedskew.heterogeneity.heterogeneity import measure
from fedskew.models.build import ModelSpec
from fedskew.runs.execute import prepare
from fedskew.runs.goals import Goal
from fedskew.study.judge import FEWEST_BLOCKS, Rules, checked_zone
from fedskew.study.judging import CONTROL
from fedskew.study.row_worth import row_and_zone, row_worth
from fedskew.study.study_folder import is_a_share
from fedskew.study.trials import Fate, Trials, Tried
from fedskew.tasks.task import Task

NEARLY_ALL = 0.9
FEW_ROWS = 100  # to score on, below which a warning is given
_RISING = 0.02  # of the score, where there is no zone
_TITLES = {"fedavg": "FedAvg", "local": "training alone"}
_MOST_CLIENTS = 10  # whose gains are listed
Say = Callable[[str], None]


@dataclass(frozen=True)
class Advice:
    """The result of ``advise``: recommendations, what became of every candidate, what was measured, and the atlas.

    ``as_dict`` is for JSON.
    """

    recommendations: Sequence[Recommendation]
    candidates: Sequence[Candidate]
    tried: Sequence[Tried]
    metric: str
    lr: Mapping[str, float]
    rounds: int
    seeds: int
    findings: Sequence[str]
    notes: Sequence[str]
    evidence: Evidence

    def for_goal(self, goal: Goal) -> Recommendation:
        """Return the recommendation for a goal: shared, or own."""
        return next(found for found in self.recommendations if found.goal == goal)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain dictionaries and numbers."""
        because = self._because()
        tried = {}
        for one in self.tried:
            tried[one.method] = {
                "because": because[one.method],
                "fate": one.fate,
                "lr": self.lr.get(one.method),
                "shared": list(one.scores("shared").values()),
                "own": list(one.scores("own").values()),
                "seconds": round(one.seconds, 2),
            }
        recommendations = []
        for found in self.recommendations:
            verdicts = {contrast.method: contrast.verdict for contrast in found.contrasts}
            clients = {name: asdict(gain) for name, gain in found.clients.items()}
            recommendations.append(
                {
                    "goal": found.goal,
                    "method": found.method,
                    "says": found.says,
                    "verdicts": verdicts,
                    "clients": clients,
                    "clients_over": found.clients_over,
                }
            )
        atlas = {}
        for goal, near in self.evidence.items():
            atlas[goal] = {"says": near.says, "cells": near.names, "best": near.best}
        return {
            "atlas": atlas,
            "recommendations": recommendations,
            "tried": tried,
            "metric": self.metric,
            "rounds": self.rounds,
            "seeds": self.seeds,
            "findings": self.findings,
            "notes": self.notes,
        }

    def _because(self) -> dict[str, str]:
        """Return what speaks for each method."""
        return {candidate.method: candidate.because for candidate in self.candidates}

    def __str__(self) -> str:
        lines = ["Clients"]
        for finding in self.findings:
            lines.append(f"  {finding}")
        if self.evidence:
            lines += ["", "The atlas"]
        for goal, near in self.evidence.items():
            lines.append(f"  for {GOALS[goal]}: {near.says}")
        lines.append("")
        for found in self.recommendations:
            lines += [f"For {GOALS[found.goal]}: {found.method}", f"  {found.says}"]
            lines += _client_lines(found)
        return "\n".join([*lines, "", *self._table(), "", *self.notes])

    def _table(self) -> list[str]:
        """Return what became of every candidate, one line per method below a heading."""
        because = self._because()
        wide = max(len(one.method) for one in self.tried) + 2
        fate = max(len(one.fate) for one in self.tried) + 2
        lines = [
            f"{'candidate':<{wide}}{'fate':<{fate}}{'lr':>8}{'shared':>9}{'own':>9}{'MB a round':>12}  because"
        ]
        for one in self.tried:
            numbers = ""
            for goal in GOALS:
                scores = list(one.scores(goal).values())
                mean = "–"
                if scores:
                    mean = f"{np.mean(scores):.3f}"
                numbers += f"{mean:>9}"
            sent = "–"
            if one.trials:
                sent = f"{one.bytes_a_round / 1e6:.3g}"
            rate = "–"
            if one.method in self.lr:
                rate = f"{self.lr[one.method]:g}"
            lines.append(
                f"{one.method:<{wide}}{one.fate:<{fate}}{rate:>8}{numbers}{sent:>12}  {because[one.method]}"
            )
        return lines


def _client_lines(found: Recommendation) -> list[str]:
    """Return the gain of each client, those that gain least first."""
    if not found.clients:
        return []
    ordered = sorted(found.clients.items(), key=lambda item: item[1].mean)
    lines = [f"  each client over {_TITLES[found.clients_over]}:"]
    for name, gain in ordered[:_MOST_CLIENTS]:
        lines.append(f"    {name}: {gain}")
    if len(ordered) > _MOST_CLIENTS:
        lines.append(f"    and {len(ordered) - _MOST_CLIENTS} clients that gain more")
    return lines


def advise(
    fed: Federation,
    model: ModelSpec = "mlp",
    *,
    budget: float = 2.0,
    seeds: int = 8,
    equal: float | None = None,
    say: Say | None = None,
    **settings: Any,
) -> Advice:
    """Recommend a method for a federation, from its heterogeneity and from short trials paired over seeds.

    Trials set rows of every client's training rows aside, to judge by and to choose learning rates by; test rows are
    not used. A method is recommended only if it is better than FedAvg by more than the zone. The nearest cells of the
    atlas give a first learning rate, and rule out methods that were no better than FedAvg in any of them.

    Args:
        fed: what ``split`` returned
        model: as for ``train``
        budget: the time of the trials in minutes
        seeds: trials of every method, at least 3
        equal: the zone, differences up to which are of no interest; by default half a point, or two rows
        say: is called with a line before each method
        settings: of the training, as for ``train``; ``rounds`` is the most that a trial may have, by default 100, and
            without ``lr`` one of three around that of the nearest cell is chosen for every method
    """
    _check(fed, budget, seeds, settings)
    zone = checked_zone(equal)
    chosen = Settings(**{"rounds": 100, **settings})
    server, _ = prepare(fed, model, resolve(CONTROL), chosen)
    headline = server.job.task.headline(chosen.metric)
    heterogeneity = measure(fed)
    named = candidates(heterogeneity, has_batch_norm(server.job.model))
    refused = _refusals(fed, model, named, chosen)
    evidence = evidence_for(heterogeneity, fed.data.target)
    left_out = _left_out(named, refused, evidence)
    rates = [chosen.lr]
    if "lr" not in settings:
        middle = first_learning_rate(evidence, chosen.lr)
        rates = [0.3 * middle, middle, 3 * middle]
    trials = Trials(fed, model, chosen, seeds, 60 * budget, *headline)
    methods = [candidate.method for candidate in named if candidate.method not in left_out]
    trials.plan(methods, len(rates))
    tried = _try_all(trials, named, left_out, rates, say or _silent)
    if tried[0].fate != "judged":
        raise FedskewError(
            f"FedAvg did not end its trials of {trials.rounds} rounds in {budget:g} minutes, or diverged: give a "
            "larger budget, fewer seeds or a smaller lr"
        )
    recommendations = []
    for goal in GOALS:
        rules = _rules(trials, goal, server.job.task, zone)
        recommendations.append(recommend(goal, tried, rules, fed.client_names))
    notes = [
        *_one_class(fed, headline.name),
        _how_tried(trials, rates),
        *_limits(trials, tried, _rules(trials, "shared", server.job.task, zone)),
    ]
    for method, reason in refused.items():
        notes.append(f"refused: {method}: {reason}")
    for method, fate in left_out.items():
        if fate == "ruled out":
            notes.append(f"ruled out: {method}: {ruled_out(evidence, method)}")
    return Advice(
        recommendations=recommendations,
        candidates=named,
        tried=tried,
        metric=headline.name,
        lr=_learning_rates(tried, rates[0]),
        rounds=trials.rounds,
        seeds=seeds,
        findings=[*fed.data.doubts, *fed.data.differences, *findings(heterogeneity)],
        notes=notes,
        evidence=evidence,
    )


def _check(fed: Federation, budget: float, seeds: int, settings: Mapping[str, Any]) -> None:
    """Raise an error for what no advice can be given on."""
    if not budget > 0 or not math.isfinite(budget):
        raise FedskewError(f"budget={budget}: the minutes of the trials must be a number above 0")
    if seeds < FEWEST_BLOCKS:
        raise FedskewError(f"seeds={seeds}: an interval needs at least {FEWEST_BLOCKS}")
    if fed.clients < 2:
        raise FedskewError(
            "there is one client: with nobody to learn with there is no method to choose"
        )
    known = {field.name for field in fields(Settings)}
    for name in settings:
        if name not in known:
            raise unknown("setting", name, known)


def _refusals(
    fed: Federation, model: ModelSpec, named: Sequence[Candidate], settings: Settings
) -> dict[str, str]:
    """Return why methods do not accept the data, the model or the settings, of those that do not."""
    refused = {}
    for candidate in named:
        try:
            prepare(fed, model, resolve(candidate.method), settings)
        except FedskewError as problem:
            refused[candidate.method] = str(problem)
    return refused


def _left_out(
    named: Sequence[Candidate], refused: Mapping[str, str], evidence: Evidence
) -> dict[str, Fate]:
    """Return the methods that are not tried: refused ones, and those that the atlas rules out."""
    left_out: dict[str, Fate] = {}
    for candidate in named:
        if candidate.method in refused:
            left_out[candidate.method] = "refused"
        elif ruled_out(evidence, candidate.method):
            left_out[candidate.method] = "ruled out"
    return left_out


def _learning_rates(tried: Sequence[Tried], given: float) -> dict[str, float]:
    """Return the learning rate of every method that has one: the chosen one, or the one that was given."""
    rates = {}
    for one in tried:
        if one.chosen is not None:
            rates[one.method] = one.chosen.best.numbers["lr"]
        elif one.fate == "judged":
            rates[one.method] = given
    return rates


def _silent(line: str) -> None:
    """Say nothing of a trial."""


def _try_all(
    trials: Trials,
    named: Sequence[Candidate],
    left_out: Mapping[str, Fate],
    rates: Sequence[float],
    say: Say,
) -> list[Tried]:
    """Return what became of every candidate."""
    tried = []
    for candidate in named:
        if candidate.method in left_out:
            tried.append(Tried(candidate.method, left_out[candidate.method], {}))
            continue
        say(f"{candidate.method}: {trials.rounds} rounds, {max(trials.left, 0):.0f} s left")
        tried.append(trials.tried(candidate.method, rates))
    return tried


def _rules(trials: Trials, goal: Goal, task: Task, zone: float | None) -> Rules:
    """Return what judging goes by, from the rows that trials are scored on."""
    if not is_a_share(task, trials.metric):
        return Rules(zone, 0.0, trials.sign, CONTROL)
    worth = []
    for seed in trials.seeds:
        worth.append(row_worth(trials.fed_of(seed), goal, trials.metric))
    row, zone = row_and_zone(worth, zone)
    return Rules(zone, row, trials.sign, CONTROL)


# -- notes -------------------------------------------------------------------------------------------------------------


def _one_class(fed: Federation, metric: str) -> list[str]:
    """Return a warning where a constant answer is right on nearly all rows of a client."""
    if fed.data.target != "class" or metric != "accuracy":
        return []
    counts = fed.partition.counts(fed.train.y, len(fed.data.classes), np.arange(fed.clients))
    rate = float(np.mean(counts.max(1) / np.maximum(counts.sum(1), 1)))
    if rate <= NEARLY_ALL:
        return []
    return [
        f"Most clients have rows of one class (on average {100 * rate:.0f} %): there a constant answer "
        "is right, so that the second answer says little."
    ]


def _how_tried(trials: Trials, rates: Sequence[float]) -> str:
    """Return how methods were tried and judged."""
    how = f"learning rate {rates[0]:g} as given"
    if len(rates) > 1:
        spelled = ", ".join(f"{rate:g}" for rate in rates)
        how = f"learning rate chosen for each judged method among {spelled}, on validation rows of other seeds"
    return (
        f"{len(trials.seeds)} seeds, {trials.rounds} rounds, {how}; judged on a quarter of every client's training "
        "rows. Intervals are paired t intervals that hold together for all methods of an answer."
    )


def _limits(trials: Trials, tried: Sequence[Tried], rules: Rules) -> list[str]:
    """Return what limits the answers."""
    notes = []
    rows = len(trials.fed_of(trials.seeds[0]).test)
    if rows < FEW_ROWS:
        notes.append(
            f"Each trial is scored on {rows} rows only: intervals do not tell what other rows would give."
        )
    judged = [one for one in tried if one.fate == "judged"]
    without, rising, collapsed = [], [], []
    for one in judged:
        if not one.scores("shared"):
            without.append(one.method)
        if _still_rises(one, rules):
            rising.append(one.method)
        times = max(one.collapsed("shared"), one.collapsed("own"))
        if times:
            collapsed.append(f"{one.method} in {times} of {len(one.trials)}")
    said = {
        "Clients share no whole model, so that there is none to score on all rows: {}.": without,
        f"Trials collapsed, to one class for all rows or to the majority rate: {{}}.{_against_collapse(trials)}": (
            collapsed
        ),
        "Validation scores were still improving at the end: {}. With more rounds (a larger budget) verdicts may "
        "change.": rising,
    }
    for text, methods in said.items():
        if methods:
            notes.append(text.format(", ".join(methods)))
    return notes


def _against_collapse(trials: Trials) -> str:
    """Return what to do about models that predict one class; nothing where it is done already."""
    if "class_weights" in str(trials.settings.task):
        return ""
    if trials.metric == "balanced_accuracy":
        return " Try class weights."
    return " Judge by metric=balanced_accuracy, or try class weights."


def _still_rises(one: Tried, rules: Rules) -> bool:
    """Return whether the score on validation rows rose by more than the zone in the second half of the rounds."""
    goal: Goal = "shared"
    if not one.scores(goal):
        goal = "own"
    scores = list(one.scores(goal).values())
    threshold = rules.zone
    if threshold is None:
        threshold = _RISING * abs(float(np.mean(scores)))
    return one.rise(goal) > threshold
