"""Which method for these clients: what the measures speak for, tried within a budget, compared with FedAvg."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import numpy as np

from fedskew.algorithms.contract import resolve
from fedskew.batchnorm.masked import has_batch_norm
from fedskew.core.config import Settings
from fedskew.core.errors import FedskewError, unknown
from fedskew.core.streams import Floats
from fedskew.data.federation import Federation
from fedskew.heterogeneity.heterogeneity import measure
from fedskew.heterogeneity.result import Heterogeneity
from fedskew.models.build import ModelSpec
from fedskew.runs.execute import prepare
from fedskew.study.significance import paired_interval
from fedskew.study.trials import Scores, Trials

WORTH = 0.01  # of FedAvg's score: a smaller gain counts as none
DISTANCE = "hellinger"
SLIGHT, STRONG = 0.05, 0.25  # of this distance above what chance makes of clients of the same sizes
STILL_RISING = 0.02  # of FedAvg's score, in the second half of the trials
NEARLY_ALL = 0.9
MUCH_MORE = 2  # times what FedAvg sends
BASELINES = ("fedavg", "local")
FEW_ROWS = 100  # to score on, below which a warning is given
ALONE = "Do not bother: on average, clients are better off alone."
TOGETHER = "Plain averaging is worth it: on average, it is better than training alone."
_TITLES = {"fedavg": "FedAvg", "local": "training alone"}
Goal = Literal["everywhere", "own"]
GOALS: Mapping[Goal, str] = {
    "everywhere": "one model for the rows of all clients",
    "own": "a model for each client, for rows like its own",
}


@dataclass(frozen=True)
class Candidate:
    """A method that is tried, and what speaks for it."""

    method: str
    because: str


@dataclass(frozen=True)
class Gain:
    """The mean difference of two methods' scores over seeds, with its interval; above 0 the first is better."""

    mean: float
    low: float
    high: float

    @staticmethod
    def of(differences: Floats, share: float) -> "Gain":
        """Return the interval that holds ``share`` of Student's t over the seeds."""
        return Gain(
            float(np.mean(differences)), *paired_interval(differences, share, by_chance=True)
        )

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
        because = {candidate.method: candidate.because for candidate in self.candidates}
        tried = {}
        for name, scores in self.scores.items():
            tried[name] = {
                "because": because[name],
                "everywhere": None if scores.everywhere is None else scores.everywhere.tolist(),
                "own": scores.mean_own.tolist(),
                "bytes_a_round": scores.bytes_a_round,
                "seconds": round(scores.seconds, 2),
            }
        plain = {}
        for name in ("metric", "lr", "rounds", "seeds", "findings", "notes"):
            plain[name] = getattr(self, name)
        return {
            "recommendations": [asdict(found) for found in self.recommendations],
            "tried": tried,
            **plain,
        }

    def __str__(self) -> str:
        because = {candidate.method: candidate.because for candidate in self.candidates}
        wide = max(map(len, self.scores)) + 2
        lines = ["Clients", *(f"  {finding}" for finding in self.findings), ""]
        for found in self.recommendations:
            lines += [f"For {GOALS[found.goal]}: {found.method}", f"  {found.verdict}"]
            for name, gain in found.over.items():
                lines.append(f"  {self.metric} over {_TITLES[name]}: {gain}")
            lines += _client_lines(found)
        lines += [
            "",
            f"{'tried':<{wide}}{'all rows':>10}{'own rows':>10}{'MB a round':>12}  because",
        ]
        for name, scores in self.scores.items():
            if scores.everywhere is None:
                shared = "–"
            else:
                shared = f"{scores.everywhere.mean():.3f}"
            numbers = f"{shared:>10}{scores.mean_own.mean():>10.3f}"
            lines.append(
                f"{name:<{wide}}{numbers}{scores.bytes_a_round / 1e6:>12.2f}  {because[name]}"
            )
        return "\n".join([*lines, "", *self.notes])


def advise(
    fed: Federation,
    model: ModelSpec = "mlp",
    *,
    minutes: float = 2.0,
    seeds: int = 8,
    say: Callable[[str], None] | None = None,
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
    if not minutes > 0 or not math.isfinite(minutes):
        raise FedskewError(f"minutes={minutes}: the time budget must be a number above 0")
    if seeds < 3:
        raise FedskewError(f"seeds={seeds}: an interval needs at least 3")
    if fed.clients < 2:
        raise FedskewError(
            "there is one client: with nobody to learn with there is no method to choose"
        )
    known = {field.name for field in fields(Settings)}
    if wrong := next((name for name in settings if name not in known), None):
        raise unknown("setting", wrong, known)
    chosen = Settings(**{"rounds": 100, **settings})
    server, _ = prepare(fed, model, resolve("fedavg"), chosen)
    metric, sign = server.job.task.headline(chosen.metric)
    found = measure(fed)
    candidates = [
        candidate
        for candidate in _candidates(found, has_batch_norm(server.job.model))
        if _possible(fed, model, candidate.method, chosen)
    ]
    rates = (chosen.lr,) if "lr" in settings else (0.3 * chosen.lr, chosen.lr, 3 * chosen.lr)
    trials = Trials(fed, model, chosen, seeds, 60 * minutes, metric)
    say = say or (lambda line: None)
    trials.plan(len(candidates) + len(rates) - 1)
    tuned = {}
    for rate in rates:
        say(f"fedavg, learning rate {rate:g}: {trials.rounds} rounds, {trials.left:.0f} s left")
        if ended := trials.score("fedavg", lr=rate):
            tuned[rate] = ended
    if not tuned:
        raise FedskewError(
            f"FedAvg did not end a trial of {trials.rounds} rounds in {minutes:g} minutes, or diverged: give more "
            "minutes, fewer seeds or a smaller lr"
        )
    lr = max(tuned, key=lambda rate: sign * _mean(tuned[rate]))
    scores, missed = {"fedavg": tuned[lr]}, []
    for candidate in candidates[1:]:
        say(f"{candidate.method}: {trials.rounds} rounds, {max(trials.left, 0):.0f} s left")
        got = trials.score(candidate.method, lr=lr) if trials.left > 0 else None
        if got is None:
            missed.append(candidate.method)
        else:
            scores[candidate.method] = got
    recommendations = [_recommend(goal, scores, sign, fed.client_names) for goal in GOALS]
    return Advice(
        recommendations,
        candidates,
        scores,
        metric,
        lr,
        trials.rounds,
        seeds,
        [*fed.data.differences, *_findings(found)],
        [
            *(_one_class(fed) if metric == "accuracy" else []),
            *_notes(trials, scores, missed, len(rates) > 1, lr, sign),
        ],
    )


def _candidates(found: Heterogeneity, normalised: bool) -> list[Candidate]:
    """Return the methods to try, the most promising first; the baselines come before all."""
    labels = _excess(found, "labels")
    features = _excess(found, _of_features(found))
    differ, shift = (
        f"{what} {'differ' if excess >= SLIGHT else 'hardly differ'} ({excess:.2f})"
        for what, excess in (("labels", labels), ("features", features))
    )
    drift = "clients' updates drift apart where they differ"
    label_methods = [
        Candidate("stratify-batch", f"{differ}: steps over all clients in balanced batches"),
        Candidate("scaffold", f"{drift}: control variates correct it"),
        Candidate("fedlc", f"{differ}: the loss is corrected for a client's label shares"),
        Candidate("fedprox:mu=0.01", f"{drift}: a proximal term holds them back"),
    ]
    own_methods = [
        *([Candidate("fedbn", f"{shift}: each client keeps its BatchNorm")] if normalised else []),
        Candidate("ditto", "each client gets a model of its own, held near the common one"),
    ]
    if features > labels:
        ordered = [*own_methods, *label_methods]
    else:
        ordered = [*label_methods, *own_methods]
    return [Candidate("fedavg", "the baseline"), Candidate("local", "every client alone"), *ordered]


def _possible(fed: Federation, model: ModelSpec, method: str, settings: Settings) -> bool:
    """Return whether a method accepts the data, the model and the settings."""
    try:
        prepare(fed, model, resolve(method), settings)
    except FedskewError:
        return False
    return True


def _excess(found: Heterogeneity, view: str) -> float:
    """Return by how much the distance between clients exceeds what chance makes of clients of the same sizes."""
    spread = found.views.get(view, {}).get(DISTANCE)
    if spread is None or not math.isfinite(spread.mean):
        return 0.0
    return max(spread.mean - (spread.by_chance or 0.0), 0.0)


def _of_features(found: Heterogeneity) -> str:
    """Return the view of the features to go by: among rows of one label, where clients have enough of these."""
    given = "features given label"
    if DISTANCE in found.views.get(given, {}):
        return given
    return "features"


def _findings(found: Heterogeneity) -> list[str]:
    """Return what the measures say, in words."""
    lines = []
    for view in ("labels", _of_features(found)):
        if view in found.views:
            what = view.replace("given label", "of rows with the same label")
            excess = _excess(found, view)
            if excess < SLIGHT:
                how = "do not differ beyond chance"
            elif excess < STRONG:
                how = "differ"
            else:
                how = "differ strongly"
            lines.append(
                f"{what} {how} between clients ({DISTANCE} distance {excess:.2f} above chance)"
            )
    sizes = found.sizes
    return [*lines, f"they have {sizes['least']:g} to {sizes['most']:g} rows"]


def _recommend(
    goal: Goal, scores: Mapping[str, Scores], sign: float, names: Sequence[str]
) -> Recommendation:
    """Return a method that is better than the better baseline beyond noise, or that baseline.

    Of several that are as good as each other, it is the one that sends least.
    """
    of: dict[str, Floats] = {}
    for name, found in scores.items():
        if goal == "everywhere":
            mine = found.everywhere
        else:
            mine = found.mean_own
        if mine is not None:
            of[name] = sign * mine
    if "fedavg" not in of:
        verdict = "There is no answer: with these settings, clients share no whole model (norm)."
        return Recommendation(goal, "fedavg", verdict, {}, {})
    if not all(np.isfinite(scores).all() for scores in of.values()):
        verdict = "There is no answer: the metric is not defined on these rows (one class a client?): choose another."
        return Recommendation(goal, "fedavg", verdict, {}, {})
    baselines = [name for name in BASELINES if name in of]
    base = max(baselines, key=lambda name: float(of[name].mean()))
    rivals = [name for name in of if name not in baselines]
    worth = WORTH * abs(float(of[base].mean()))
    # Bonferroni: the intervals of all methods hold together with 95 %.
    gains = {name: Gain.of(of[name] - of[base], 1 - 0.05 / max(len(rivals), 1)) for name in rivals}
    better = [name for name, gain in gains.items() if gain.low > 0 and gain.mean > worth]
    best = max(better, key=lambda name: gains[name].mean, default=base)
    as_good = [name for name in better if not _beyond_noise(of[best] - of[name], worth)]
    best = min(as_good, key=lambda name: scores[name].bytes_a_round, default=best)
    sent = scores[best].bytes_a_round / max(scores["fedavg"].bytes_a_round, 1)
    if best != base:
        verdict = f"It is better than {base} beyond noise" + (
            f", and sends {sent:.0f} times as much a round as fedavg." if sent > MUCH_MORE else "."
        )
    elif any(_beyond_noise(of[best] - of[name], worth) for name in baselines):
        verdict = f"Nothing that was tried is better beyond noise. {ALONE if best == 'local' else TOGETHER}"
    elif len(of) == 1:
        if goal == "everywhere":
            which = " that gives one model for all"
        else:
            which = ""
        verdict = f"Nothing else was tried to the end{which}, so that there is nothing to compare: give more minutes."
    elif len(baselines) == 1:
        verdict = "Nothing that was tried is better beyond noise."
    else:
        verdict = "No difference beyond noise: take the simplest."
        best = "local"
    over = {name: Gain.of(of[best] - of[name], 0.95) for name in baselines if name != best}
    clients = {}
    if goal == "own" and len(baselines) > 1:
        each = sign * (scores[best].own - scores["local" if best == "fedavg" else "fedavg"].own)
        clients = {
            name: Gain.of(row, 0.95)
            for name, row in zip(names, each.T, strict=True)
            if np.isfinite(row).all()
        }
    return Recommendation(goal, best, verdict, over, clients)


def _mean(found: Scores) -> float:
    """Return the mean over seeds of the shared model's score or, without one, of that of the clients' own."""
    if found.everywhere is None:
        scores = found.mean_own
    else:
        scores = found.everywhere
    return float(scores.mean())


def _beyond_noise(differences: Floats, worth: float) -> bool:
    gain = Gain.of(differences, 0.95)
    return gain.low > 0 and gain.mean > worth


def _client_lines(found: Recommendation, most: int = 10) -> list[str]:
    """Return the gain of each client, those that gain least first."""
    against = _TITLES["local" if found.method == "fedavg" else "fedavg"]
    ordered = sorted(found.clients.items(), key=lambda item: item[1].mean)
    lines = [f"    {name}: {gain}" for name, gain in ordered[:most]]
    if len(ordered) > most:
        more = [f"    and {len(ordered) - most} clients that gain more"]
    else:
        more = []
    if lines:
        return [f"  each client over {against}:", *lines, *more]
    return []


def _one_class(fed: Federation) -> list[str]:
    """Return a warning where a constant answer is right on nearly all rows of a client."""
    if fed.data.target != "class":
        return []
    counts = fed.partition.counts(fed.train.y, len(fed.data.classes), np.arange(fed.clients))
    rate = float(np.mean(counts.max(1) / np.maximum(counts.sum(1), 1)))
    if rate > NEARLY_ALL:
        return [
            f"Most clients have rows of one class (on average {100 * rate:.0f} %): there a constant answer "
            "is right, so that the second answer says little."
        ]
    return []


def _notes(
    trials: Trials,
    scores: Mapping[str, Scores],
    missed: Sequence[str],
    tuned: bool,
    lr: float,
    sign: float,
) -> list[str]:
    base = scores["fedavg"]
    if tuned:
        how = "chosen for FedAvg among three"
    else:
        how = "as given"
    notes = [
        f"{len(trials.feds)} seeds, {trials.rounds} rounds, learning rate {lr:g} ({how}), the same for all methods; "
        "scored on a quarter of every client's training rows. Intervals are 95 % of Student's t over seeds; whether a "
        "method is better is decided for all of them together (Bonferroni)."
    ]
    if (rows := len(trials.feds[0].test)) < FEW_ROWS:
        notes.append(
            f"Each trial is scored on {rows} rows only, and seeds share them: intervals do not tell what others "
            "would give."
        )
    if without := [name for name, found in scores.items() if found.everywhere is None]:
        notes.append(
            f"Clients share no whole model, so that there is none to score on all rows: {', '.join(without)}."
        )
    if base.halfway is not None and sign * (
        _mean(base) - float(base.halfway.mean())
    ) > STILL_RISING * abs(_mean(base)):
        notes.append(
            "FedAvg was still improving in the second half of the trials: with more rounds (more --minutes) the "
            "differences may shrink."
        )
    if missed:
        notes.append(
            f"Not tried to the end, for lack of time or because they diverged: {', '.join(missed)}."
        )
    return notes
