"""A method against another: by hand, with cases that are left out, and the words."""

import pytest

from fedskew.study.method_contrasts import CasePair, Contrast, contrast, differences_by_seed


def test_means_over_cases_for_each_seed_by_hand() -> None:
    found = contrast(
        "old",
        [CasePair("a", {0: 2.0, 1: 4.0, 2: 6.0}), CasePair("b", {0: 1.0, 1: -5.0, 2: 1.0})],
    )
    assert found.differences == [1.5, -0.5, 3.5]
    assert (found.wins, found.cases, found.complete) == (1, 2, True)
    assert found.interval == pytest.approx((1.5 - 4.968, 1.5 + 4.968), abs=1e-3)
    assert found.text(1) == (
        "against old +1.5 (95 % interval -3.5 to +6.5, 3 seeds; better in 1 of 2 cases)"
    )


def test_only_seeds_that_all_cases_have() -> None:
    found = contrast("old", [CasePair("a", {0: 1.0, 1: 2.0}), CasePair("b", {1: 4.0, 2: 9.0})])
    assert found.differences == [3.0]
    assert found.text(0) == "against old +3 (1 seed; better in 2 of 2 cases)"
    nothing = contrast("old", [CasePair("a", {0: 1.0}), CasePair("b", {1: 1.0})])
    assert (nothing.differences, nothing.wins) == ([], 0)
    assert nothing.text(0) == "against old: no seed with a number of both"


@pytest.mark.parametrize(
    ("failed", "left_out", "differences"),
    [
        ({}, ["a"], [3.0]),  # the rival has no number at all
        ({0: 1.0}, ["a"], [3.0]),  # it is worse where it has one
        ({0: -1.0}, [], [1.0]),  # it is better there: leaving the case out would hide that
    ],
)
def test_a_case_in_which_the_rival_diverged(
    failed: dict[int, float], left_out: list[str], differences: list[float]
) -> None:
    found = contrast("old", [CasePair("a", failed, rival_failed=True), CasePair("b", {0: 3.0})])
    assert (found.left_out, found.differences) == (left_out, differences)


def test_where_the_rival_diverged_everywhere_the_other_seeds_count() -> None:
    found = contrast("old", [CasePair("a", {0: 1.0}, rival_failed=True)])
    assert (found.left_out, found.differences) == ([], [1.0])


def test_what_is_not_measured_is_said() -> None:
    pairs = [CasePair("a", {0: 1.0, 1: 1.0, 2: 1.0}), CasePair("b", {}, measured=False)]
    found = contrast("old", pairs)
    assert not found.complete
    assert found.text(1).endswith("better in 1 of 1 case; not measured yet: b)")
    both = Contrast("old", [], 0, 0, unmeasured=["b"], left_out=["a", "c"])
    assert both.text(1).endswith("number of both; not measured yet: b; left out: a, c")


def test_differences_have_the_sign_of_the_better_one() -> None:
    ours, theirs = {0: 3.0, 1: 5.0, 2: 1.0}, {0: 2.0, 1: 7.0}
    assert differences_by_seed(ours, theirs) == {0: 1.0, 1: -2.0}
    assert differences_by_seed(ours, theirs, lower_is_better=True) == {0: -1.0, 1: 2.0}
