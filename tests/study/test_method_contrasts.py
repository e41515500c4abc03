"""Contrasts of claims by hand: means over cases, what is left out, gaps, trends, and what a curve comes to."""

import pytest

from fedskew.study.curve_measures import CURVE_MEASURES, above_lowest, rising_share
from fedskew.study.judge import Rules
from fedskew.study.method_contrasts import (
    AgainstRival,
    CasePair,
    against_number,
    against_rival,
    as_family,
    between_cases,
    difference_of_gaps,
    trend,
)

RULES = Rules(0.5)


def pair(case: str, differences: dict[int, float], **more: bool) -> CasePair:
    """Return a case in which the rival has 10 everywhere, and the method these differences more."""
    mine = {seed: 10 + difference for seed, difference in differences.items()}
    return CasePair(case, mine, dict.fromkeys(differences, 10.0), **more)


def compared(*pairs: CasePair) -> AgainstRival:
    return against_rival("new", "old", pairs, RULES)


def test_means_over_cases_for_each_seed_by_hand() -> None:
    """2, 4, 6 and 1, -5, 1 are 1.5, -0.5, 3.5 on average: mean 1.5, deviation 2, and 4.303 x 2 / sqrt(3) = 4.968."""
    found = compared(pair("a", {0: 2.0, 1: 4.0, 2: 6.0}), pair("b", {0: 1.0, 1: -5.0, 2: 1.0}))
    assert found.contrast.differences == {0: 1.5, 1: -0.5, 2: 3.5}
    assert (found.wins, found.cases) == (1, 2)
    assert found.contrast.interval == pytest.approx((1.5 - 4.968, 1.5 + 4.968), abs=1e-3)
    assert found.beside() == "better in 1 of 2 cases"


def test_only_seeds_that_all_cases_have() -> None:
    found = compared(pair("a", {0: 1.0, 1: 2.0}), pair("b", {1: 4.0, 2: 9.0}))
    assert found.contrast.differences == {1: 3.0}
    nothing = compared(pair("a", {0: 1.0}), pair("b", {1: 1.0}))
    assert (nothing.contrast.blocks, nothing.wins) == (0, 0)


@pytest.mark.parametrize(
    ("failed", "left_out", "differences"),
    [
        ({}, ["a"], {0: 3.0}),  # the rival has no number at all
        ({0: 1.0}, ["a"], {0: 3.0}),  # it is worse where it has one
        ({0: -1.0}, [], {0: 1.0}),  # it is better there: leaving the case out would hide that
    ],
)
def test_a_case_in_which_the_rival_diverged(
    failed: dict[int, float], left_out: list[str], differences: dict[int, float]
) -> None:
    found = compared(pair("a", failed, rival_failed=True), pair("b", {0: 3.0}))
    assert (found.left_out, found.contrast.differences) == (left_out, differences)


def test_where_the_rival_diverged_everywhere_the_other_seeds_count() -> None:
    found = compared(pair("a", {0: 1.0}, rival_failed=True))
    assert (found.left_out, found.contrast.differences) == ([], {0: 1.0})


def test_what_is_not_measured_is_known() -> None:
    found = compared(pair("a", {0: 1.0, 1: 1.0, 2: 1.0}), pair("b", {}, measured=False))
    assert found.unmeasured == ["b"]
    assert found.contrast.blocks == 3


def test_a_family_has_wider_intervals() -> None:
    one = compared(pair("a", {0: 1.0, 1: 2.0, 2: 3.0})).contrast
    both = as_family([one, one])
    assert one.interval is not None
    assert both[0].interval is not None
    # Quantiles of t with 2 degrees of freedom: 4.303 at 1 - .05/2, 6.205 at 1 - .05/4
    assert both[0].interval.half_width / one.interval.half_width == pytest.approx(
        6.2053 / 4.3027, abs=1e-3
    )


def test_against_a_number() -> None:
    found = against_number("a", {0: 71.0, 1: 72.0, 2: 73.0}, 70.0, Rules(5.0))
    assert list(found.differences.values()) == [1.0, 2.0, 3.0]
    assert found.verdict == "equal"


def test_every_pair_of_cases() -> None:
    cases = {"a": {0: 1.0, 1: 2.0}, "b": {0: 1.5, 1: 2.0}, "c": {1: 4.0}}
    found = between_cases(cases, RULES)
    assert [(one.method, one.control) for one in found] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert [one.family for one in found] == [3, 3, 3]
    assert found[0].differences == {0: -0.5, 1: 0.0}
    assert found[2].differences == {1: -2.0}


def test_the_difference_of_gaps_by_hand() -> None:
    """Seed 0: (4 + 6) / 2 - 1 = 4; seed 1: (5 + 5) / 2 - 2 = 3; seed 2 lacks one case."""
    here = [pair("small", {0: 4.0, 1: 5.0, 2: 9.0}), pair("smaller", {0: 6.0, 1: 5.0})]
    found = difference_of_gaps("old", here, [pair("large", {0: 1.0, 1: 2.0, 2: 3.0})], RULES)
    assert found.differences == {0: 4.0, 1: 3.0}


def test_a_trend_by_hand() -> None:
    """From 5 to 20 there are two doublings: 10, 13, 12 rises by 1 for each, and 10, 8, 6 falls by 2."""
    by_case = [{0: 10.0, 1: 10.0}, {0: 13.0, 1: 8.0}, {0: 12.0, 1: 6.0}]
    found = trend("new", [5, 10, 20], by_case, RULES)
    assert found.differences == pytest.approx({0: 1.0, 1: -2.0})


def test_curves_by_hand() -> None:
    assert rising_share([3.0, 1.0, 2.0, 1.0]) == 0.25  # up 1, down 2 + 1
    assert rising_share([3.0, 2.0, 1.0]) == 0
    assert rising_share([1.0]) == 0
    assert above_lowest([3.0, 1.0, 1.5]) == 0.5
    assert set(CURVE_MEASURES) == {"rising_share", "above_lowest"}
