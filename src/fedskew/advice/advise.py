"""Which method for these clients: what the measures speak for, tried within a budget, compared with FedAvg."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from fedskew.advice.candidates import Candidate, candidates, findings
from fedskew.advice.recommendation import GOALS, Goal, Recommendation, recommend
from fedskew.algorithms.contract import resolve
from fedskew.batchnorm.masked import has_batch_norm
from fedskew.core.config import Settings
from fedskew.core.errors import FedskewError, unknown
from fedskew.data.federation import Federation
from fedskew.heterogeneity.heterogeneity import measure
from fedskew.models.build import ModelSpec
from fedskew.runs.execute import prepare
from fedskew.study.trials import Scores, Trials

STILL_RISING = 0.02  # of FedAvg's score, in the second half of the trials
NEARLY_ALL = 0.9
FEW_ROWS = 100  # to score on, below which a warning is given
_TITLES = {"fedavg": "FedAvg", "local": "training alone"}
_MOST_CLIENTS = 10  # whose gains are listed
Say = Callable[[str], None]


@dataclass(frozen=True)
class Advice:
    """The result of ``advise``: recommendations, what was tried and what was measured; ``as_dict`` is for JSON."""

    recommendations: Sequence[Recommendation]
    candidates: Sequence[Candidate]
    scores: Mapping[str, Scores]
    metric: str
    lr: float
    rounds: int
    seeds: int
    findings: Sequence[str]
    notes: Sequence[str]

    def for_goal(self, goal: Goal) -> Recommendation:
        """Return the recommendation for a goal: everywhere, or own."""
        return next(found for found in self.recommendations if found.goal == goal)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain dictionaries and numbers."""
        because = self._because()
        tried = {}
        for name, scores in self.scores.items():
            everywhere = None
            if scores.everywhere is not None:
                everywhere = scores.everywhere.tolist()
            tried[name] = {
                "because": because[name],
                "everywhere": everywhere,
                "own": scores.mean_own.tolist(),
                "bytes_a_round": scores.bytes_a_round,
                "seconds": round(scores.seconds, 2),
            }
        return {
            "recommendations": [asdict(found) for found in self.recommendations],
            "tried": tried,
            "metric": self.metric,
            "lr": self.lr,
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
        lines.append("")
        for found in self.recommendations:
            lines += self._lines_of(found)
        return "\n".join([*lines, "", *self._table(), "", *self.notes])

    def _lines_of(self, found: Recommendation) -> list[str]:
        """Return a recommendation with its gains."""
        lines = [f"For {GOALS[found.goal]}: {found.method}", f"  {found.verdict}"]
        for name, gain in found.over.items():
            lines.append(f"  {self.metric} over {_TITLES[name]}: {gain}")
        return lines + _client_lines(found)

    def _table(self) -> list[str]:
        """Return what was tried, one line a method below a heading."""
        because = self._because()
        wide = max(map(len, self.scores)) + 2
        lines = [f"{'tried':<{wide}}{'all rows':>10}{'own rows':>10}{'MB a round':>12}  because"]
        for name, scores in self.scores.items():
            shared = "–"
            if scores.everywhere is not None:
                shared = f"{scores.everywhere.mean():.3f}"
            numbers = f"{shared:>10}{scores.mean_own.mean():>10.3f}"
            sent = f"{scores.bytes_a_round / 1e6:>12.2f}"
            lines.append(f"{name:<{wide}}{numbers}{sent}  {because[name]}")
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
    minutes: float = 2.0,
    seeds: int = 8,
    say: Say | None = None,
    **settings: Any,
) -> Advice:
    """Recommend a method for a federation, from its heterogeneity and from short trials paired over seeds.

    Trials train on three quarters of every client's training rows and are scored on the rest; test rows are not used.

    Args:
        fed: what ``split`` returned
        model: as for ``train``
        minutes: the time budget of the trials
        seeds: trials of every method, at least 3
        say: is called with a line before each trial
        settings: of the training, as for ``train``; ``rounds`` is the most that a trial may have, by default 100, and
            without ``lr`` one of three is chosen for FedAvg and used in all trials
    """
    _check(fed, minutes, seeds, settings)
    chosen = Settings(**{"rounds": 100, **settings})
    server, _ = prepare(fed, model, resolve("fedavg"), chosen)
    metric, sign = server.job.task.headline(chosen.metric)
    heterogeneity = measure(fed)
    to_try = []
    for candidate in candidates(heterogeneity, has_batch_norm(server.job.model)):
        if _is_possible(fed, model, candidate.method, chosen):
            to_try.append(candidate)
    rates = [chosen.lr]
    if "lr" not in settings:
        rates = [0.3 * chosen.lr, chosen.lr, 3 * chosen.lr]
    trials = Trials(fed, model, chosen, seeds, 60 * minutes, metric)
    trials.plan(len(to_try) + len(rates) - 1)
    say = say or _silent
    tuned = _try_rates(trials, rates, say)
    if not tuned:
        raise FedskewError(
            f"FedAvg did not end a trial of {trials.rounds} rounds in {minutes:g} minutes, or diverged: give more "
            "minutes, fewer seeds or a smaller lr"
        )
    lr = max(tuned, key=lambda rate: sign * _mean(tuned[rate]))
    scores = {"fedavg": tuned[lr], **_try_others(trials, to_try[1:], lr, say)}
    notes = []
    if metric == "accuracy":
        notes += _one_class(fed)
    notes.append(_how_tried(trials, lr, tuned=len(rates) > 1))
    notes += _limits(trials, scores, sign)
    missed = [candidate.method for candidate in to_try if candidate.method not in scores]
    if missed:
        notes.append(
            f"Not tried to the end, for lack of time or because they diverged: {', '.join(missed)}."
        )
    return Advice(
        recommendations=[recommend(goal, scores, sign, fed.client_names) for goal in GOALS],
        candidates=to_try,
        scores=scores,
        metric=metric,
        lr=lr,
        rounds=trials.rounds,
        seeds=seeds,
        findings=[*fed.data.differences, *findings(heterogeneity)],
        notes=notes,
    )


def _check(fed: Federation, minutes: float, seeds: int, settings: Mapping[str, Any]) -> None:
    """Raise an error for what no advice can be given on."""
    if not minutes > 0 or not math.isfinite(minutes):
        raise FedskewError(f"minutes={minutes}: the time budget must be a number above 0")
    if seeds < 3:
        raise FedskewError(f"seeds={seeds}: an interval needs at least 3")
    if fed.clients < 2:
        raise FedskewError(
            "there is one client: with nobody to learn with there is no method to choose"
        )
    known = {field.name for field in fields(Settings)}
    for name in settings:
        if name not in known:
            raise unknown("setting", name, known)


def _is_possible(fed: Federation, model: ModelSpec, method: str, settings: Settings) -> bool:
    """Return whether a method accepts the data, the model and the settings."""
    try:
        prepare(fed, model, resolve(method), settings)
    except FedskewError:
        return False
    return True


def _silent(line: str) -> None:
    """Say nothing of a trial."""


def _try_rates(trials: Trials, rates: Sequence[float], say: Say) -> dict[float, Scores]:
    """Return the scores of FedAvg with every learning rate with which its trials came to their end."""
    tuned = {}
    for rate in rates:
        say(f"fedavg, learning rate {rate:g}: {trials.rounds} rounds, {trials.left:.0f} s left")
        ended = trials.score("fedavg", lr=rate)
        if ended is not None:
            tuned[rate] = ended
    return tuned


def _try_others(
    trials: Trials, to_try: Sequence[Candidate], lr: float, say: Say
) -> dict[str, Scores]:
    """Return the scores of the methods whose trials came to their end while there was time."""
    scores = {}
    for candidate in to_try:
        say(f"{candidate.method}: {trials.rounds} rounds, {max(trials.left, 0):.0f} s left")
        if trials.left <= 0:
            continue
        ended = trials.score(candidate.method, lr=lr)
        if ended is not None:
            scores[candidate.method] = ended
    return scores


def _mean(found: Scores) -> float:
    """Return the mean over seeds of the shared model's score or, without one, of that of the clients' own."""
    if found.everywhere is None:
        return float(found.mean_own.mean())
    return float(found.everywhere.mean())


# -- notes -------------------------------------------------------------------------------------------------------------


def _one_class(fed: Federation) -> list[str]:
    """Return a warning where a constant answer is right on nearly all rows of a client."""
    if fed.data.target != "class":
        return []
    counts = fed.partition.counts(fed.train.y, len(fed.data.classes), np.arange(fed.clients))
    rate = float(np.mean(counts.max(1) / np.maximum(counts.sum(1), 1)))
    if rate <= NEARLY_ALL:
        return []
    return [
        f"Most clients have rows of one class (on average {100 * rate:.0f} %): there a constant answer "
        "is right, so that the second answer says little."
    ]


def _how_tried(trials: Trials, lr: float, tuned: bool) -> str:
    """Return how methods were tried and compared."""
    how = "as given"
    if tuned:
        how = "chosen for FedAvg among three"
    return (
        f"{len(trials.feds)} seeds, {trials.rounds} rounds, learning rate {lr:g} ({how}), the same for all methods; "
        "scored on a quarter of every client's training rows. Intervals are 95 % of Student's t over seeds; whether a "
        "method is better is decided for all of them together (Bonferroni)."
    )


def _limits(trials: Trials, scores: Mapping[str, Scores], sign: float) -> list[str]:
    """Return what limits the answers."""
    notes = []
    rows = len(trials.feds[0].test)
    if rows < FEW_ROWS:
        notes.append(
            f"Each trial is scored on {rows} rows only, and seeds share them: intervals do not tell what others "
            "would give."
        )
    without = [name for name, found in scores.items() if found.everywhere is None]
    if without:
        notes.append(
            f"Clients share no whole model, so that there is none to score on all rows: {', '.join(without)}."
        )
    if _still_rising(scores["fedavg"], sign):
        notes.append(
            "FedAvg was still improving in the second half of the trials: with more rounds (more minutes) the "
            "differences may shrink."
        )
    return notes


def _still_rising(base: Scores, sign: float) -> bool:
    """Return whether scores improved in the second half of the trials."""
    if base.halfway is None:
        return False
    rise = sign * (_mean(base) - float(base.halfway.mean()))
    return rise > STILL_RISING * abs(_mean(base))
