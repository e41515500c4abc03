"""Claims judged from numbers alone: every outcome with its reason."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from fedskew.study.claims import (
    Judged,
    Level,
    Superiority,
    judge_above,
    judge_better,
    judge_choice,
    judge_near,
    judge_steady,
)
from fedskew.study.method_contrasts import Contrast


def against(rival: str, *differences: float, unmeasured: Sequence[str] = ()) -> Contrast:
    return Contrast(rival, differences, 1, 1, unmeasured)


AHEAD = against("old", 1.0, 1.1, 0.9)
BEHIND = against("strong", -1.0, -1.1, -0.9)
LEVEL = against("like", 1.0, -1.0, 0.1)


@pytest.mark.parametrize(
    ("claim", "outcome", "reason"),
    [
        (Superiority([AHEAD]), "held", ""),
        (Superiority([AHEAD, BEHIND, LEVEL]), "not held", "reversed against strong"),
        (Superiority([LEVEL]), "not held", "no difference beyond noise to like"),
        (
            Superiority([AHEAD, LEVEL]),
            "not held",
            "mixed, better than old, no difference beyond noise to like",
        ),
        (Superiority([BEHIND], tolerance=2.0), "held", ""),
        (Superiority([against("old", 1.0, 2.0)]), "points that way", "fewer than 3 seeds"),
        (Superiority([against("old", -1.0)]), "points another way", "fewer than 3 seeds"),
        (Superiority([AHEAD], absent=["gone"]), "points that way", "not everything is measured"),
        (Superiority([AHEAD], all_cases=False), "points that way", "not everything is measured"),
        (
            Superiority([replace(AHEAD, unmeasured=["b"])]),
            "points that way",
            "not everything is measured",
        ),
        (Superiority([against("old", unmeasured=["a"])]), "no results yet", ""),
        (
            Superiority([AHEAD, against("other")]),
            "cannot be tested here",
            "no seed with a number of both for other",
        ),
        (
            Superiority([], absent=["gone"]),
            "cannot be tested here",
            "no seed with a number of both for gone",
        ),
        (Superiority([AHEAD], without_number=["new: diverged"]), "not held", "new: diverged"),
    ],
)
def test_better(claim: Superiority, outcome: str, reason: str) -> None:
    found = judge_better(claim)
    assert (found.outcome, found.reason) == (outcome, reason)


def test_the_lines_of_better_in_their_order() -> None:
    claim = Superiority(
        [AHEAD], ["gone"], ["new: diverged"], ["old: no number"], tolerance=0.0, digits=0
    )
    assert judge_better(claim).lines == (
        "new: diverged",
        AHEAD.text(1),
        "against gone: left out of this version of the table",
        "old: no number",
    )


def test_the_best_mean_was_chosen() -> None:
    means = {"x": 1.0, "y": 2.0}
    higher = judge_choice(means, "y", lower_is_better=False, digits=1)
    assert higher == Judged("chosen", lines=("x: 1.0", "y: 2.0"))
    assert judge_choice(means, "y", lower_is_better=True, digits=1).outcome == "not the best"


MEANS = Level({"a": 70.0, "b": 71.0})
FAILED = replace(MEANS, without_number=["new: diverged"])
PRINTED = {"a": 70.0, "b": 70.5}


def test_near_the_printed_numbers() -> None:
    assert judge_near(MEANS, PRINTED, 0.5) == Judged(
        "held",
        lines=(
            "a: 70.00, paper 70.0, difference +0.00",
            "b: 71.00, paper 70.5, difference +0.50",
        ),
    )
    assert judge_near(MEANS, PRINTED, 0.4).reason == "off by more than 0.4 in 1 of 2 cases"


def test_above_a_bound() -> None:
    assert judge_above(MEANS, 70.0) == Judged("held", lines=("a: 70.00", "b: 71.00"))
    assert judge_above(MEANS, 70.5).reason == "below 70.5 in 1 of 2 cases"


def test_steady_over_cases() -> None:
    held = judge_steady(MEANS, 1.0)
    assert held.outcome == "held"
    assert held.lines[-1] == "best and worst case differ by 1.00, at most 1 claimed"
    assert judge_steady(MEANS, 0.9).reason == "cases differ by more than 0.9"


@pytest.mark.parametrize(
    ("level", "outcome", "reason"),
    [
        (FAILED, "not held", "new: diverged"),
        (replace(FAILED, means={}), "not held", "new: diverged"),
        (replace(MEANS, unmeasured=["c", "d"]), "points that way", "not measured: c, d"),
        (Level({}), "cannot be tested here", "too few cases that can be compared"),
    ],
)
def test_a_level_of_which_something_is_missing(level: Level, outcome: str, reason: str) -> None:
    for found in (
        judge_near(level, PRINTED, 9.0),
        judge_above(level, 0.0),
        judge_steady(level, 9.0),
    ):
        assert (found.outcome, found.reason) == (outcome, reason)


def test_one_case_cannot_be_steady() -> None:
    assert judge_steady(Level({"a": 1.0}), 9.0).outcome == "cannot be tested here"
    assert judge_above(Level({"a": 1.0}), 0.0).outcome == "held"
