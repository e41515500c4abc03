"""Claims judged from contrasts: every outcome with its reason, and the words of the judge for our own questions."""

from dataclasses import replace

import pytest

from fedskew.study.claims import OUTCOMES, Demand, Findings, Part, answer, judge_claim
from fedskew.study.judge import Rules
from fedskew.study.method_contrasts import against_number

ZONE = Rules(0.5)


def part(name: str, *differences: float, demand: Demand = "better", **more: bool) -> Part:
    """Return a part with these differences; its interval is hand-checked in the tests of contrasts."""
    contrast = against_number(name, dict(enumerate(differences)), 0.0, ZONE)
    return Part(name, contrast, demand, **more)


AHEAD = part("old", 3.0, 3.1, 2.9, 3.0, 3.05)
BEHIND = part("strong", -3.0, -3.1, -2.9, -3.0, -3.05)
LIKE = part("like", 0.1, -0.1, 0.0, 0.05, -0.05)
OPEN = part("open", 4.0, -4.0, 0.0, 2.0, -1.0)
FEW_BEHIND = part("strong", -3.0, -3.1, -2.9)
TWO = part("two", 3.0, 3.1)


@pytest.mark.parametrize(
    ("found", "outcome", "reason"),
    [
        (Findings([AHEAD]), "held", ""),
        (Findings([part("old", 3.0, 3.1, 2.9)]), "held", ""),
        (Findings([BEHIND]), "refuted", "worse than strong"),
        # No better than a rival refutes "better", too: the zone says that it has been looked at closely enough
        (Findings([LIKE]), "refuted", "equal to like within ±0.5"),
        (
            Findings([AHEAD, BEHIND, LIKE, OPEN]),
            "refuted",
            "worse than strong; equal to like within ±0.5",
        ),
        (Findings([FEW_BEHIND]), "undecided", "worse than strong, but a refutation needs 5 seeds"),
        (Findings([TWO]), "undecided", "an interval needs 3 seeds: two 2 seeds"),
        (Findings([]), "undecided", "not measured yet"),
        (Findings([AHEAD], unmeasured=["a", "b"]), "undecided", "not measured yet: a, b"),
        (Findings([AHEAD], unmeasured=list("abcd")), "undecided", "not measured yet"),
        (Findings(unmeasured=["a"]), "undecided", "not measured yet"),
        (Findings([AHEAD], incomparable=["gone is out"]), "cannot be tested here", "gone is out"),
        (Findings([BEHIND], incomparable=["gone is out"]), "refuted", "worse than strong"),
        (Findings([AHEAD], failures=["new: diverged"], seeds=5), "refuted", "new: diverged"),
        (Findings([AHEAD], failures=["new: diverged"], seeds=4), "undecided", "new: diverged"),
    ],
)
def test_outcomes(found: Findings, outcome: str, reason: str) -> None:
    judged = judge_claim(found)
    assert (judged.outcome, judged.reason) == (outcome, reason)
    assert judged.outcome in OUTCOMES


def test_what_is_undecided_says_what_could_have_been_seen() -> None:
    """The differences 4, -4, 0, 2, -1 have mean 0.2 and deviation 3.033: 2.776 x 3.033 / sqrt(5) = 3.77."""
    judged = judge_claim(Findings([AHEAD, OPEN]))
    half = judge_claim(Findings([OPEN])).reason
    assert half.startswith("smallest difference that could have been seen: open ±3.8; about ")
    assert half.endswith(" seeds for ±0.5")
    assert judged.outcome == "undecided"


@pytest.mark.parametrize(
    ("demand", "of", "outcome"),
    [
        ("no worse", AHEAD, "held"),
        ("no worse", LIKE, "held"),
        ("no worse", BEHIND, "refuted"),
        ("no worse", OPEN, "undecided"),
        ("equal", LIKE, "held"),
        ("equal", AHEAD, "refuted"),
        ("equal", BEHIND, "refuted"),
        ("equal", FEW_BEHIND, "undecided"),
        ("equal", OPEN, "undecided"),
        # Beyond 0, but not beyond the zone
        ("equal", part("near", 0.45, 0.5, 0.55, 0.5, 0.5), "undecided"),
    ],
)
def test_other_demands(demand: Demand, of: Part, outcome: str) -> None:
    assert replace(of, demand=demand).outcome == outcome


def test_a_change_has_words_of_its_own() -> None:
    assert replace(BEHIND, is_change=True).contradiction() == "strong changes the other way"
    assert replace(LIKE, is_change=True).contradiction() == "like stays the same within ±0.5"


def test_the_lines_in_their_order() -> None:
    one = replace(AHEAD, beside="better in 1 of 1 case")
    found = Findings([one, TWO], failures=["new: diverged"], beside=["old: no number"], digits=1)
    assert judge_claim(found).lines == (
        "new: diverged",
        "old: +3.01 (interval +2.92 to +3.10, 5 seeds; better in 1 of 1 case): better",
        "two: +3.05 (2 seeds): undecided",
        "old: no number",
    )


def test_our_questions_have_the_words_of_the_judge() -> None:
    found = answer(Findings([AHEAD, LIKE, BEHIND, OPEN]))
    assert str(found) == "better: old; equal: like; worse: strong; undecided: open ±3.8"
    assert found.by_verdict.keys() == {"better", "equal", "worse", "undecided"}
    # They need no five seeds: worse is what the judge of comparisons says from three on
    assert str(answer(Findings([FEW_BEHIND]))) == "worse: strong"
    assert str(answer(Findings())) == "not measured yet"
    assert str(answer(Findings([AHEAD], unmeasured=["b"]))) == "better: old; not measured yet: b"
