"""Which runs of a study are wanted, given those that have ended: numbers are chosen first, then methods are judged."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedskew.runs.folder import RunFolder
from fedskew.runs.run import open_run
from fedskew.study.choose import Chosen, Try, choose
from fedskew.study.judging import Judging
from fedskew.study.member import FAILED, Member
from fedskew.study.run_data import RunData
from fedskew.study.run_scores import fails_on_validation, validation_of

# The skew, where a study has several, and the method as it was written
Key = tuple[str, str]


def wanted(folder: Path, members: Sequence[Member], judging: Judging) -> list[Member]:
    """Return the runs that a study needs by what is known so far; those that have ended are among them."""
    first = []
    for member in members:
        if member.purpose != "judge":
            first.append(member)
    if len(first) == len(members):
        return first
    if not all(_has_ended(folder / member.name) for member in first):
        return first
    chosen = chosen_numbers(folder, members, judging)
    for member in members:
        if member.purpose == "judge" and _has_chosen_numbers(member, chosen):
            first.append(member)
    return first


def _has_chosen_numbers(member: Member, chosen: Mapping[Key, Chosen]) -> bool:
    best = chosen[member.skew, member.algorithm].best
    return dict(member.varied) == dict(best.numbers)


def _has_ended(place: Path) -> bool:
    if (place / FAILED).is_file():
        return True
    return place.exists() and RunFolder.open(place).finished


def judged(
    members: Sequence[Member], chosen: Mapping[Key, Chosen], judging: Judging
) -> list[Member]:
    """Return the runs that methods are judged by: with the numbers that were chosen, if any were."""
    kept = []
    for member in members:
        if member.purpose == "choose":
            continue
        if judging.choose == "none" or _has_chosen_numbers(member, chosen):
            kept.append(member)
    return kept


def chosen_numbers(folder: Path, members: Sequence[Member], judging: Judging) -> dict[Key, Chosen]:
    """Return the numbers that are chosen for every method, by the runs that have ended."""
    by_key: dict[Key, dict[str, list[Member]]] = {}
    for member in members:
        if member.purpose != "judge":
            by_numbers = by_key.setdefault((member.skew, member.algorithm), {})
            by_numbers.setdefault(repr(sorted(member.varied.items())), []).append(member)
    chosen = {}
    for key, by_numbers in by_key.items():
        tries = []
        sign = 1
        for same in by_numbers.values():
            tried, sign = _try(folder, same, judging, sign)
            tries.append(tried)
        chosen[key] = choose(tries, sign)
    return chosen


def _try(folder: Path, members: Sequence[Member], judging: Judging, sign: int) -> tuple[Try, int]:
    """Return how the runs with some numbers did on validation rows, and whether high scores are good."""
    assert judging.goal is not None  # it is settled before the first run
    scores = []
    failed = 0
    for member in members:
        place = folder / member.name
        if (place / FAILED).is_file():
            failed += 1
            continue
        run = RunData(open_run(place))
        sign = run.sign
        if fails_on_validation(run, judging.goal):
            failed += 1
        score = validation_of(run, judging.goal, judging.score)
        if score is not None:
            scores.append(score)
    return Try(members[0].varied, scores, failed), sign
