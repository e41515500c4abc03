"""What to use for one goal: a method that is better than FedAvg beyond the zone, or FedAvg."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedskew.runs.goals import Goal
from fedskew.study.judge import (
    ROUNDED_ROWS,
    VERDICTS,
    Contrast,
    Rules,
    judge_cell,
    paired_interval,
)
from fedskew.study.judging import ALONE, CONTROL
from fedskew.study.trials import Tried

PRICE = 3  # times what FedAvg sends, above which the recommendation says so
GOALS: Mapping[Goal, str] = {
    "shared": "one model for the rows of all clients",
    "own": "a model for each client, for rows like its own",
}


@dataclass(frozen=True)
class Gain:
    """The mean difference of two scores of a client over seeds, with its 95 % interval; above 0 the first is better."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:+.3f} ({self.low:+.3f} to {self.high:+.3f})"


@dataclass(frozen=True)
class Recommendation:
    """What to use for one goal, the verdict on every method that was judged, and what each client gains.

    The gain of a client is over FedAvg, or over training alone where FedAvg is recommended.
    """

    goal: Goal
    method: str
    says: str
    contrasts: Sequence[Contrast]
    clients: Mapping[str, Gain]
    clients_over: str


def recommend(
    goal: Goal, tried: Sequence[Tried], rules: Rules, names: Sequence[str]
) -> Recommendation:
    """Return the method to use for a goal.

    A method is recommended if the interval of its difference to FedAvg lies beyond the zone, and none of its trials
    collapsed. Of several, it is the one that sends least among those that the best one is not better than.

    Args:
        goal: what the model is for
        tried: what became of every candidate, FedAvg first
        rules: what judging goes by
        names: of the clients
    """
    judged = {}
    for one in tried:
        if one.scores(goal):
            judged[one.method] = one
    if CONTROL not in judged:
        says = "There is no answer: with these settings clients share no whole model (norm), or FedAvg has no score."
        return Recommendation(goal, CONTROL, says, [], {}, ALONE)
    scores = {name: one.scores(goal) for name, one in judged.items()}
    contrasts = judge_cell(scores, rules)
    method = _best(goal, contrasts, judged, rules)
    says = f"{_counted(goal, tried)}{_says(method, contrasts, judged, rules)}"
    over = CONTROL
    if method == CONTROL:
        over = ALONE
    clients: dict[str, Gain] = {}
    if goal == "own" and over in judged:
        clients = _gains_of_clients(judged[method], judged[over], rules.sign, names)
    return Recommendation(goal, method, says, contrasts, clients, over)


def _best(
    goal: Goal, contrasts: Sequence[Contrast], judged: Mapping[str, Tried], rules: Rules
) -> str:
    """Return the method to use."""
    beyond = {}
    for contrast in contrasts:
        if _is_beyond(contrast, rules) and not judged[contrast.method].collapsed(goal):
            beyond[contrast.method] = contrast
    if not beyond:
        return CONTROL

    def gain(name: str) -> float:
        return rules.sign * float(beyond[name].mean or 0.0)

    best = max(beyond, key=gain)
    as_good = [best]
    for name in beyond:
        pair = {best: judged[best].scores(goal), name: judged[name].scores(goal)}
        if name != best and judge_cell(pair, replace(rules, control=name))[0].verdict != "better":
            as_good.append(name)
    return min(as_good, key=lambda name: judged[name].bytes_a_round)


def _is_beyond(contrast: Contrast, rules: Rules) -> bool:
    """Return whether a method is better, by more than the zone."""
    if contrast.verdict != "better":
        return False
    return _least_gain(contrast, rules) > (rules.zone or 0.0)


def _least_gain(contrast: Contrast, rules: Rules) -> float:
    """Return the end of the interval that is nearest to no gain."""
    assert contrast.interval is not None  # a better method has one
    if rules.sign > 0:
        return contrast.interval.low
    return -contrast.interval.high


def _counted(goal: Goal, tried: Sequence[Tried]) -> str:
    """Say how many candidates were judged, if not all were; those without a model for the goal are none."""
    candidates = 0
    judged = 0
    for one in tried:
        if one.method == CONTROL:
            continue
        if one.fate != "judged":
            candidates += 1
        elif one.scores(goal):
            candidates += 1
            judged += 1
    if judged == candidates:
        return ""
    if judged == 1:
        return f"1 of {candidates} candidates was judged. "
    return f"{judged} of {candidates} candidates were judged. "


def _says(
    method: str, contrasts: Sequence[Contrast], judged: Mapping[str, Tried], rules: Rules
) -> str:
    """Return why this method, in a sentence or two."""
    for contrast in contrasts:
        if contrast.method == method:
            return _says_of_gain(contrast, judged)
    return _says_of_control(contrasts, rules)


def _says_of_gain(contrast: Contrast, judged: Mapping[str, Tried]) -> str:
    """Return the gain of a method that is recommended, and its price if that is high."""
    assert contrast.interval is not None  # a better method has one
    low, high = contrast.interval
    method = contrast.method
    says = f"{method} is better than fedavg: {contrast.mean:+.3f} ({low:+.3f} to {high:+.3f})"
    factor = judged[method].bytes_a_round / max(judged[CONTROL].bytes_a_round, 1)
    if factor > PRICE:
        says += f", and sends {factor:.0f} times as much a round"
    return f"{says}."


def _says_of_control(contrasts: Sequence[Contrast], rules: Rules) -> str:
    """Return why it is FedAvg, with the verdict on every other method."""
    if not contrasts:
        return "There is nothing that fedavg could be compared with."
    by_verdict: dict[str, list[str]] = {}
    for contrast in contrasts:
        by_verdict.setdefault(contrast.verdict, []).append(contrast.method)
    says = "No method that was judged is better than fedavg."
    if "better" in by_verdict:
        says = f"No method is shown to gain more than {rules.zone or 0.0:.2g} over fedavg."
    for verdict in VERDICTS:
        if verdict in by_verdict:
            says += f" {verdict.capitalize()}: {', '.join(by_verdict[verdict])}."
    if ALONE in by_verdict.get("better", []):
        says += " On average, clients are better off alone."
    return says


def _gains_of_clients(
    mine: Tried, other: Tried, sign: int, names: Sequence[str]
) -> dict[str, Gain]:
    """Return the gain of every client that has a score with every seed."""
    by_client: dict[int, list[float]] = {}
    rows: dict[int, int] = {}
    for seed, trial in mine.trials.items():
        theirs = {row["client"]: row.get(trial.metric) for row in other.trials[seed].final_rows}
        for row in trial.final_rows:
            score, before = row.get(trial.metric), theirs.get(row["client"])
            if score is not None and before is not None and score == score and before == before:
                rows[row["client"]] = int(row.get("test_rows") or 1)
                by_client.setdefault(row["client"], []).append(sign * (score - before))
    gains = {}
    for client, differences in by_client.items():
        if len(differences) == len(mine.trials):
            least = ROUNDED_ROWS / max(rows.get(client, 1), 1)
            low, high = paired_interval(differences, least_deviation=least)
            mean = sum(differences) / len(differences)
            gains[names[client]] = Gain(mean, low, high)
    return gains
