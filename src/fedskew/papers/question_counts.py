"""How often questions that several tables share were answered better, equal, worse or undecided, in one table."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from fedskew.papers.comparison import Measured
from fedskew.papers.paper_claims import Claim
from fedskew.papers.verdicts import findings_on
from fedskew.study.judge import VERDICTS

ABLATION = "itself without its idea"  # the column of rivals that are not those of every method
NOT_RUN = "not run"
NOTHING_WITHIN = "no number"  # such as a method of which no round fits into a budget


@dataclass
class _Asked:
    """What was asked of one method by one value: how each answer came out, by rival."""

    answers: dict[str, Counter[str]] = field(default_factory=dict)


def shared_questions(tables: Sequence[Measured]) -> list[list[str]]:
    """Return a heading and rows: how often each word occurs, for a method and a value against each rival.

    Only questions of tables with the same printed name, of which there are several, are counted.
    """
    shared = _with_shared_names(tables)
    common = _rivals_of_everybody(shared)
    if not common:
        return []
    asked: dict[tuple[str, str], _Asked] = {}
    for found in shared:
        for claim in found.table.claims:
            here = asked.setdefault((claim.method, claim.value), _Asked())
            for rival, word in _words(found, claim).items():
                column = rival
                if rival not in common:
                    column = ABLATION
                here.answers.setdefault(column, Counter())[word] += 1
    rows = [["method", "by", *common, ABLATION]]
    for (method, value), one in asked.items():
        cells = [_counted(one.answers.get(column, Counter())) for column in (*common, ABLATION)]
        rows.append([method, value, *cells])
    return rows


def _with_shared_names(tables: Sequence[Measured]) -> list[Measured]:
    """Return the tables with questions whose printed name another one has too."""
    asking = []
    for found in tables:
        claims = found.table.claims
        if claims and all(claim.ours for claim in claims):
            asking.append(found)
    names = Counter(found.table.printed for found in asking)
    return [found for found in asking if names[found.table.printed] > 1 and _is_general(found)]


def _is_general(found: Measured) -> bool:
    """Return whether a table asks about several methods."""
    return len({claim.method for claim in found.table.claims}) > 1


def _rivals_of_everybody(tables: Sequence[Measured]) -> list[str]:
    """Return the rivals that every question has, in the order of the first."""
    rivals: list[str] | None = None
    for found in tables:
        for claim in found.table.claims:
            if rivals is None:
                rivals = list(claim.others)
            rivals = [rival for rival in rivals if rival in claim.others]
    return rivals or []


def _words(found: Measured, claim: Claim) -> dict[str, str]:
    """Return the judge's word on each rival of a question, or that there is nothing to compare."""
    missing = NOT_RUN
    findings = findings_on(found, claim)
    if findings.failures:
        missing = NOTHING_WITHIN
    words = dict.fromkeys(claim.others, missing)
    for part in findings.parts:
        words[part.name] = part.verdict
    return words


def _counted(words: Counter[str]) -> str:
    """Return counts such as ``2 better, 1 undecided``."""
    counts = []
    for word in (*VERDICTS, NOTHING_WITHIN, NOT_RUN):
        if words[word]:
            counts.append(f"{words[word]} {word}")
    return ", ".join(counts)
