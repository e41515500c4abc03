"""The judge: intervals and verdicts by hand, and how often it errs and finds in thousands of simulated studies."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from fedskew.core.errors import FedskewError
from fedskew.study.judge import (
    Contrast,
    Interval,
    Rules,
    checked_zone,
    judge_cell,
    paired_interval,
    pool,
    said,
    usual_zone,
)

STUDIES = 10_000
MOST_ERRORS = 0.055


def one(differences: list[float], rules: Rules, family: int = 1) -> Contrast:
    """Return the first contrast of a family of so many methods with the same differences to their control."""
    scores: dict[str, dict[object, float]] = {
        "control": dict.fromkeys(range(len(differences)), 0.5)
    }
    for number in range(family):
        scores[f"method {number}"] = {
            block: 0.5 + difference for block, difference in enumerate(differences)
        }
    return judge_cell(scores, Rules(rules.zone, rules.row, rules.sign, "control"))[0]


def test_an_interval_by_hand() -> None:
    # mean 2, deviation 1, t with 2 degrees of freedom at 97.5 % is 4.302653
    low, high = paired_interval([1.0, 2.0, 3.0])
    assert low == pytest.approx(2 - 4.302653 / math.sqrt(3))
    assert high == pytest.approx(2 + 4.302653 / math.sqrt(3))


@pytest.mark.parametrize("family", [1, 2, 7])
def test_intervals_are_those_of_scipy(family: int) -> None:
    differences = [0.01, 0.03, -0.02, 0.05, 0.04]
    found = one(differences, Rules(zone=0.005), family)
    assert found.family == family
    for interval, share in ((found.interval, 1 - 0.05 / family), (found.inner_interval, 0.9)):
        expected = stats.ttest_1samp(differences, 0).confidence_interval(share)
        assert interval == pytest.approx((expected.low, expected.high))


def test_equal_differences_have_an_interval_of_some_width() -> None:
    found = one([0.01] * 3, Rules(zone=0.005, row=1 / 400))
    deviation = math.sqrt(1 / 6) / 400
    half = 4.302653 * deviation / math.sqrt(3)
    assert found.interval == pytest.approx((0.01 - half, 0.01 + half))
    unknown_rows = one([0.01] * 3, Rules(zone=None))
    assert isinstance(unknown_rows.interval, Interval)
    assert 0 < unknown_rows.interval.half_width < 1e-5


@pytest.mark.parametrize(
    ("differences", "rules", "verdict"),
    [
        ([0.10, 0.11, 0.12], Rules(0.005), "better"),
        ([0.10, 0.11, 0.12], Rules(0.005, sign=-1), "worse"),
        ([-0.10, -0.11, -0.12], Rules(0.005), "worse"),
        ([-0.10, -0.11, -0.12], Rules(0.005, sign=-1), "better"),
        ([0.001, -0.001, 0.0005], Rules(0.005), "equal"),
        ([0.0010, 0.0011, 0.0012], Rules(0.005), "equal"),  # although 0 is excluded
        ([0.0010, 0.0011, 0.0012], Rules(None), "better"),  # nothing may be called equal
        ([0.0, 0.0, 0.0], Rules(None), "undecided"),
        ([0.10, -0.05, 0.12], Rules(0.005), "undecided"),
        ([0.10, 0.11], Rules(0.005), "undecided"),  # two blocks
        ([0.005, 0.005, 0.005], Rules(0.005), "better"),  # the border is not inside
    ],
)
def test_verdicts(differences: list[float], rules: Rules, verdict: str) -> None:
    assert one(differences, rules).verdict == verdict


def test_the_family_widens_the_interval_that_decides_and_not_the_one_of_equal() -> None:
    differences = [0.10, 0.11, 0.13]
    assert one(differences, Rules(0.005)).verdict == "better"
    assert one(differences, Rules(0.005), family=20).verdict == "undecided"
    close = [0.001, -0.001, 0.0005]
    assert one(close, Rules(0.005), family=20).verdict == "equal"


def test_undecided_says_how_many_blocks_it_would_take() -> None:
    found = one([0.10, -0.05, 0.12, 0.02], Rules(0.02))
    needed = found.blocks_needed
    assert needed is not None

    def half(blocks: int) -> float:
        deviation = float(np.std([0.10, -0.05, 0.12, 0.02], ddof=1))
        return float(stats.t.ppf(0.975, blocks - 1)) * deviation / math.sqrt(blocks)

    assert half(needed) <= 0.02 < half(needed - 1)
    assert f"±{half(4):.2g}, {needed} blocks for ±0.02" in said([found])
    assert one([0.10, -0.05, 0.12], Rules(None)).blocks_needed is None
    assert one([0.10, 0.11, 0.12], Rules(0.02)).blocks_needed is None


def test_the_family_needs_more_blocks_and_the_border_is_outside() -> None:
    differences = [0.10, -0.05, 0.12, 0.02]
    alone, among = one(differences, Rules(0.02)), one(differences, Rules(0.02), family=9)
    assert alone.blocks_needed is not None
    assert among.blocks_needed is not None
    assert among.blocks_needed > alone.blocks_needed
    close = [0.001, -0.002, 0.003, 0.001]
    inner = one(close, Rules(0.5)).inner_interval
    assert inner is not None
    border = max(abs(inner.low), abs(inner.high))
    assert one(close, Rules(border)).verdict != "equal"
    assert one(close, Rules(border * 1.000001)).verdict == "equal"


def test_only_blocks_of_both_count_and_differences_of_rounding_are_none() -> None:
    scores = {"a": {0: 0.5, 1: 0.6, 2: 0.7, 3: 0.8}, "b": {1: 0.5, 2: 0.7 * (1 + 1e-8), 9: 0.1}}
    (found,) = judge_cell(scores, Rules(0.005, control="b"))
    assert found.differences == {1: pytest.approx(0.1), 2: 0.0}
    assert judge_cell(scores, Rules(0.005, control="c")) == []


def test_rounding_is_a_share_of_the_larger_score() -> None:
    large = {"a": {0: 1.0, 1: 1.0, 2: 1e-9}, "b": {0: 1 + 0.9e-6, 1: 1 + 1.1e-6, 2: 0.0}}
    (found,) = judge_cell(large, Rules(None, control="b"))
    assert found.differences == {0: 0.0, 1: pytest.approx(-1.1e-6), 2: 1e-9}
    # 1e-6 of the larger of two is more than 1e-6 of the smaller
    border = 1.0 + 1e-6 + 0.5e-12
    (close,) = judge_cell({"a": {0: border}, "b": {0: 1.0}}, Rules(None, control="b"))
    assert close.differences == {0: 0.0}


def test_without_rows_the_least_deviation_is_a_share_of_the_largest_score() -> None:
    scores = {"a": {0: 0.002, 1: -0.004}, "b": {0: 0.001, 1: 0.003, 2: 0.0005}}
    (found,) = judge_cell(scores, Rules(None, control="b"))
    assert found.least_deviation == pytest.approx(1e-6 * 0.004)


def test_without_a_control_all_pairs_are_one_family() -> None:
    scores = {name: {0: 0.1, 1: 0.2, 2: 0.3} for name in "abcd"}
    found = judge_cell(scores, Rules(0.005))
    assert len(found) == 6
    assert {contrast.family for contrast in found} == {6}


def test_the_zone_of_a_share() -> None:
    assert usual_zone(1 / 10_000) == 0.005
    assert usual_zone(1 / 200) == 0.01
    assert usual_zone(1 / 20) is None  # two of twenty rows are ten points


@pytest.mark.parametrize(
    ("given", "zone"), [(None, None), (0.005, 0.005), ("0.02", 0.02), (0, 0.0)]
)
def test_a_zone_that_was_given(given: object, zone: float | None) -> None:
    assert checked_zone(given) == zone


@pytest.mark.parametrize("given", ["x", -0.1, "nan", "inf"])
def test_a_zone_that_is_none(given: object) -> None:
    with pytest.raises(FedskewError, match="is not a difference in the metric's own unit"):
        checked_zone(given)


def test_pooled_over_skews_by_seed() -> None:
    rules = Rules(0.005, row=0.01, control="b")
    first = judge_cell({"a": {0: 0.5, 1: 0.6, 2: 0.7}, "b": {0: 0.4, 1: 0.4, 2: 0.4}}, rules, "iid")
    second = judge_cell({"a": {0: 0.3, 1: 0.4}, "b": {0: 0.5, 1: 0.4, 2: 0.4}}, rules, "k=2")
    (found,) = pool([*first, *second], 2)
    assert found.contrast.differences == {0: pytest.approx(-0.05), 1: pytest.approx(0.1)}
    assert found.disagree
    assert found.contrast.least_deviation == pytest.approx(math.sqrt(1 / 12) * 0.01)
    (alike,) = pool([*first, *first], 2)
    assert not alike.disagree
    assert pool(first, 2) == []  # the second skew has no score of it
    third = judge_cell({"a": {0: 0.3}, "b": {0: 0.5}, "c": {0: 0.4}}, rules, "k=3")
    assert {one.contrast.family for one in pool(third, 1)} == {2}  # one family over the skews, too


def test_what_is_said_of_few_blocks_and_of_nothing() -> None:
    rules = Rules(0.005, control="b")
    few = judge_cell({"a": {0: 0.5, 1: 0.5}, "b": {0: 0.4, 1: 0.4}}, rules)
    assert said(few).startswith(
        "Everything is undecided: there are 2 blocks, and an interval needs 3"
    )
    assert said([]).startswith("There is nothing to compare")
    one_block = judge_cell({"a": {0: 0.5}, "b": {0: 0.4}}, rules)
    assert said(one_block).startswith("Everything is undecided: there is 1 block, and")


# -- simulated studies -------------------------------------------------------------------------------------------------

Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
ROWS = 360


def normal(draw: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return draw.normal(size=shape)


def heavy(draw: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return draw.standard_t(3, size=shape) / math.sqrt(3)


def studies(draw_noise: Draw, blocks: int, methods: int, gain: float, seed: int) -> np.ndarray:
    """Return scores by study, method and block, the control first; differences have a deviation of about 1."""
    draw = np.random.default_rng(seed)
    scores = draw_noise(draw, (STUDIES, methods + 1, blocks)) / math.sqrt(2)
    scores[:, 1:] += gain
    return scores


def verdicts(scores: np.ndarray, rules: Rules) -> list[list[str]]:
    """Return the verdicts of every study, by method."""
    found = []
    for study in scores:
        named = {str(place): dict(enumerate(row.tolist())) for place, row in enumerate(study)}
        found.append([contrast.verdict for contrast in judge_cell(named, rules)])
    return found


# Every number of blocks with every number of methods, and each of both with every kind of noise
CASES = [
    (3, 1, "normal"),
    (3, 5, "t3"),
    (3, 23, "whole rows"),
    (5, 1, "t3"),
    (5, 5, "whole rows"),
    (5, 23, "normal"),
    (10, 1, "whole rows"),
    (10, 5, "normal"),
    (10, 23, "t3"),
]


def scores_of(
    kind: str, blocks: int, methods: int, gain: float, seed: int
) -> tuple[np.ndarray, float]:
    """Return scores whose differences have a deviation of about 1 (of half a test row, for whole rows), and a row."""
    if kind == "t3":
        return studies(heavy, blocks, methods, gain, seed), 0.0
    scores = studies(normal, blocks, methods, gain, seed)
    if kind == "normal":
        return scores, 0.0
    # Two deviations are one row: rounding hides much
    return np.rint(scores / 2 + 0.9 * ROWS) / ROWS, 1 / ROWS


@pytest.mark.parametrize(("blocks", "methods", "kind"), CASES)
def test_without_a_difference_few_families_err(blocks: int, methods: int, kind: str) -> None:
    scores, row = scores_of(kind, blocks, methods, 0.0, seed=blocks)
    found = verdicts(scores, Rules(None, row, control="0"))
    wrong = [set(study) & {"better", "worse"} for study in found]
    assert np.mean([bool(one) for one in wrong]) <= MOST_ERRORS


@pytest.mark.parametrize("kind", ["normal", "t3", "whole rows"])
@pytest.mark.parametrize("blocks", [3, 5, 10])
def test_at_the_border_few_contrasts_are_equal(blocks: int, kind: str) -> None:
    gain = 3.0
    scores, row = scores_of(kind, blocks, 1, gain, seed=blocks)
    zone = gain
    if row:
        zone = gain / 2 * row
    found = verdicts(scores, Rules(zone, row, control="0"))
    assert np.mean([study == ["equal"] for study in found]) <= MOST_ERRORS


def test_a_gain_of_four_deviations_is_found() -> None:
    scores = studies(normal, 5, 5, 4.0, seed=1)
    found = verdicts(scores, Rules(0.1, control="0"))
    assert np.mean([verdict == "better" for study in found for verdict in study]) >= 0.9


def test_no_difference_is_called_equal() -> None:
    scores = studies(normal, 10, 1, 0.0, seed=2)
    found = verdicts(scores, Rules(1.0, control="0"))
    assert np.mean([study == ["equal"] for study in found]) >= 0.75
