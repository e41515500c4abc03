"""What to use for one goal: a method that is better than the baselines beyond noise, or a baseline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedskew.core.streams import Floats
from fedskew.study.significance import paired_interval
from fedskew.study.trials import Scores

WORTH = 0.01  # of the better baseline's score: a smaller gain counts as none
MUCH_MORE = 2  # times what FedAvg sends
BASELINES = ("fedavg", "local")
ALONE = "Do not bother: on average, clients are better off alone."
TOGETHER = "Plain averaging is worth it: on average, it is better than training alone."
Goal = Literal["everywhere", "own"]
GOALS: Mapping[Goal, str] = {
    "everywhere": "one model for the rows of all clients",
    "own": "a model for each client, for rows like its own",
}


@dataclass(frozen=True)
class Gain:
    """The mean difference of two methods' scores over seeds, with its interval; above 0 the first is better."""

    mean: float
    low: float
    high: float

    @staticmethod
    def of(differences: Floats, share: float) -> "Gain":
        """Return the interval that holds ``share`` of Student's t over the seeds."""
        low, high = paired_interval(differences, share, by_chance=True)
        return Gain(float(np.mean(differences)), low, high)

    def exceeds(self, worth: float) -> bool:
        """Return whether the gain is beyond noise, and larger than ``worth``."""
        return self.low > 0 and self.mean > worth

    def __str__(self) -> str:
        return f"{self.mean:+.3f} ({self.low:+.3f} to {self.high:+.3f})"


@dataclass(frozen=True)
class Recommendation:
    """What to use for one goal, its gain over FedAvg and over training alone (``local``), and that of every client.

    The gain of a client is over FedAvg, or over training alone where FedAvg is recommended.
    """

    goal: Goal
    method: str
    verdict: str
    over: Mapping[str, Gain]
    clients: Mapping[str, Gain]

    @property
    def clients_over(self) -> str:
        """Return the baseline that the gains of the clients are over."""
        return _other_baseline(self.method)


@dataclass(frozen=True)
class _Trial:
    """The scores of every method for one goal, higher is better, by seed; and what a round of each sends."""

    goal: Goal
    scores: Mapping[str, Floats]
    bytes_a_round: Mapping[str, float]

    @property
    def baselines(self) -> list[str]:
        """Return the baselines that have scores."""
        return [name for name in BASELINES if name in self.scores]

    @property
    def base(self) -> str:
        """Return the better baseline."""
        return max(self.baselines, key=self.mean)

    @property
    def worth(self) -> float:
        """Return the gain up to which a difference counts as none."""
        return WORTH * abs(self.mean(self.base))

    def mean(self, name: str) -> float:
        """Return the mean score of a method."""
        return float(self.scores[name].mean())

    def gain(self, name: str, other: str, share: float = 0.95) -> Gain:
        """Return the gain of a method over another one."""
        return Gain.of(self.scores[name] - self.scores[other], share)

    def is_better(self, name: str, other: str) -> bool:
        """Return whether a method is better than another one beyond noise, and by more than what counts as none."""
        return self.gain(name, other).exceeds(self.worth)


def recommend(
    goal: Goal, scores: Mapping[str, Scores], sign: float, names: Sequence[str]
) -> Recommendation:
    """Return a method that is better than the better baseline beyond noise, or that baseline.

    Of several that are as good as each other, it is the one that sends least.

    Args:
        goal: what the model is for
        scores: of every method that was tried to the end
        sign: -1 for a metric that is better the lower it is, otherwise 1
        names: of the clients
    """
    trial = _trial(goal, scores, sign)
    if "fedavg" not in trial.scores:
        verdict = "There is no answer: with these settings, clients share no whole model (norm)."
        return Recommendation(goal, "fedavg", verdict, {}, {})
    if not all(np.isfinite(by_seed).all() for by_seed in trial.scores.values()):
        verdict = "There is no answer: the metric is not defined on these rows (one class a client?): choose another."
        return Recommendation(goal, "fedavg", verdict, {}, {})
    best = _best(trial)
    if best == trial.base:
        best, verdict = _verdict_on_baselines(trial)
    else:
        verdict = _verdict_on_method(trial, best)
    over = {}
    for name in trial.baselines:
        if name != best:
            over[name] = trial.gain(best, name)
    clients = {}
    if goal == "own" and len(trial.baselines) > 1:
        each = sign * (scores[best].own - scores[_other_baseline(best)].own)
        clients = _gains_of_clients(each, names)
    return Recommendation(goal, best, verdict, over, clients)


def _trial(goal: Goal, scores: Mapping[str, Scores], sign: float) -> _Trial:
    """Return the scores that count for a goal, of the methods that have them."""
    of_goal = {}
    sent = {}
    for name, found in scores.items():
        sent[name] = found.bytes_a_round
        if goal == "own":
            of_goal[name] = sign * found.mean_own
        elif found.everywhere is not None:
            of_goal[name] = sign * found.everywhere
    return _Trial(goal, of_goal, sent)


def _best(trial: _Trial) -> str:
    """Return the best method that is better than the better baseline, or that baseline."""
    rivals = [name for name in trial.scores if name not in trial.baselines]
    # Bonferroni: the intervals of all methods hold together with 95 %.
    share = 1 - 0.05 / max(len(rivals), 1)
    gains = {}
    for name in rivals:
        gain = trial.gain(name, trial.base, share)
        if gain.exceeds(trial.worth):
            gains[name] = gain.mean
    if not gains:
        return trial.base
    best = max(gains, key=gains.__getitem__)
    as_good = [name for name in gains if not trial.is_better(best, name)]
    return min(as_good, key=trial.bytes_a_round.__getitem__)


def _verdict_on_method(trial: _Trial, best: str) -> str:
    """Return what is to be said of a method that is better than both baselines."""
    verdict = f"It is better than {trial.base} beyond noise"
    sent = trial.bytes_a_round[best] / max(trial.bytes_a_round["fedavg"], 1)
    if sent > MUCH_MORE:
        return f"{verdict}, and sends {sent:.0f} times as much a round as fedavg."
    return f"{verdict}."


def _verdict_on_baselines(trial: _Trial) -> tuple[str, str]:
    """Return the baseline to use where no method is better, and why."""
    nothing_better = "Nothing that was tried is better beyond noise."
    if any(trial.is_better(trial.base, name) for name in trial.baselines):
        if trial.base == "local":
            return "local", f"{nothing_better} {ALONE}"
        return trial.base, f"{nothing_better} {TOGETHER}"
    if len(trial.scores) == 1:
        which = ""
        if trial.goal == "everywhere":
            which = " that gives one model for all"
        return trial.base, (
            f"Nothing else was tried to the end{which}, so that there is nothing to compare: give more minutes."
        )
    if len(trial.baselines) == 1:
        return trial.base, nothing_better
    return "local", "No difference beyond noise: take the simplest."


def _other_baseline(method: str) -> str:
    """Return the baseline that a client's gain with a method is over."""
    if method == "fedavg":
        return "local"
    return "fedavg"


def _gains_of_clients(each: Floats, names: Sequence[str]) -> dict[str, Gain]:
    """Return the gain of every client that has a score with every seed, given differences by seed and client."""
    gains = {}
    for name, differences in zip(names, each.T, strict=True):
        if np.isfinite(differences).all():
            gains[name] = Gain.of(differences, 0.95)
    return gains
