"""Paired tests, their correction and mean ranks, against published numbers and hand calculations."""

import math
from itertools import permutations, product

import numpy as np
import pytest
from scipy import stats

from fedskew.study.significance import (
    FEWEST_BLOCKS,
    friedman_p,
    holm,
    no_ranks,
    paired_interval,
    paired_p,
    ranks,
    said_p,
    verdict,
)

# Demšar (2006), table 6: the AUC of C4.5 with four ways of choosing its parameters, on 14 data sets. The
# 0.9751 is a 0.975 there that is ranked before another one.
DEMSAR = {
    "C4.5": (
        0.763,
        0.599,
        0.954,
        0.628,
        0.882,
        0.936,
        0.661,
        0.583,
        0.775,
        1.0,
        0.940,
        0.619,
        0.972,
        0.957,
    ),
    "+m": (
        0.768,
        0.591,
        0.971,
        0.661,
        0.888,
        0.931,
        0.668,
        0.583,
        0.838,
        1.0,
        0.962,
        0.666,
        0.981,
        0.978,
    ),
    "+cf": (
        0.771,
        0.590,
        0.968,
        0.654,
        0.886,
        0.916,
        0.609,
        0.563,
        0.866,
        1.0,
        0.965,
        0.614,
        0.9751,
        0.946,
    ),
    "+m+cf": (
        0.798,
        0.569,
        0.967,
        0.657,
        0.898,
        0.931,
        0.685,
        0.625,
        0.875,
        1.0,
        0.962,
        0.669,
        0.975,
        0.970,
    ),
}


def blocks(scores: dict[str, tuple[float, ...]]) -> dict[str, dict[object, float]]:
    return {name: dict(enumerate(values)) for name, values in scores.items()}


def test_the_worked_example_of_demsar() -> None:
    found = ranks(blocks(DEMSAR))
    assert {name: round(mean, 3) for name, mean in found.means.items()} == {
        "+m+cf": 1.964,
        "+m": 2.0,
        "+cf": 2.893,
        "C4.5": 3.143,
    }
    assert found.blocks == 14
    assert found.distance == pytest.approx(1.25, abs=0.005)
    # F = 3.69 with 3 and 39 degrees of freedom there; its p-value, from tables of the F distribution.
    assert 0.01 < found.p < 0.025
    assert [list(group) for group in found.groups] == [["+m+cf", "+m", "+cf", "C4.5"]]


@pytest.mark.parametrize(
    ("methods", "q"), [(3, 2.343), (4, 2.569), (5, 2.728), (6, 2.850), (10, 3.164)]
)
def test_critical_values_are_those_of_demsars_table_5(methods: int, q: float) -> None:
    found = ranks({f"m{i}": {seed: i + seed for seed in range(4)} for i in range(methods)})
    assert found.distance / math.sqrt(methods * (methods + 1) / 24) == pytest.approx(q, abs=0.001)
    # In the second, third and fourth block as in the first
    same_order = math.factorial(methods) ** -3.0
    assert found.p == pytest.approx(same_order, rel=1e-9, abs=0)


def test_groups_of_neighbours() -> None:
    found = ranks({name: dict.fromkeys(range(30), -place) for place, name in enumerate("abcdef")})
    assert found.distance == pytest.approx(1.377, abs=0.001)
    assert [list(group) for group in found.groups] == [
        list(pair) for pair in ("ab", "bc", "cd", "de", "ef")
    ]


def test_students_paired_test_by_hand() -> None:
    # Mean 2, standard deviation 1, three pairs: t = 2 sqrt(3) = 3.4641, p = 1 - t / sqrt(t^2 + 2) = 0.07418.
    assert paired_p([1.0, 2.0, 3.0]) == pytest.approx(1 - math.sqrt(12 / 14), abs=1e-9)
    assert paired_p([0.0, 0.0, 0.0]) == 1
    low, high = paired_interval([1.0, 2.0, 3.0])
    assert (low, high) == pytest.approx(
        (2 - 4.302653 / math.sqrt(3), 2 + 4.302653 / math.sqrt(3)), abs=1e-5
    )


def test_holm_by_hand() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005}) == pytest.approx(
        {"d": 0.02, "a": 0.03, "c": 0.06, "b": 0.06}
    )
    assert holm({"a": 0.7, "b": 0.8}) == {"a": 1.0, "b": 1.0}


def test_a_winner_is_better_than_every_other() -> None:
    scores = blocks(
        {
            "a": (0.90, 0.91, 0.92, 0.93),
            "b": (0.80, 0.812, 0.82, 0.831),
            "c": (0.7, 0.711, 0.72, 0.73),
        }
    )
    found = verdict(scores, {})
    assert (found.best, found.winner) == ("a", "a")
    assert found.differences == pytest.approx({"b": 0.09925, "c": 0.19975})
    # Three pairs: the largest of three p-values is not multiplied, the smallest by three.
    single = {
        pair: paired_p([scores[pair[0]][i] - scores[pair[1]][i] for i in range(4)])
        for pair in ("ab", "ac", "bc")
    }
    expected = holm(single)
    assert found.p_values == pytest.approx({"b": expected["ab"], "c": expected["ac"]})
    assert "a is ahead of all others" in found.says
    assert verdict(scores, {"a": 1}).winner is None


def test_no_winner_where_one_rival_is_as_good() -> None:
    scores = blocks({"a": (0.90, 0.85, 0.95), "b": (0.89, 0.87, 0.93), "c": (0.10, 0.11, 0.12)})
    found = verdict(scores, {})
    assert (found.best, found.winner) == ("a", None)
    assert found.says.startswith(
        "No method is ahead: a has the best mean, without a difference beyond noise to b ("
    )


def test_many_rivals_need_more_evidence() -> None:
    pair = {"a": (0.90, 0.91, 0.92, 0.93), "b": (0.80, 0.86, 0.85, 0.84)}
    assert verdict(blocks(pair), {}).winner == "a"
    noise = {
        f"n{i}": tuple(0.1 * i + 0.07 * ((i + seed) % 3) for seed in range(4)) for i in range(8)
    }
    assert verdict(blocks({**pair, **noise}), {}).winner is None


def test_too_few_blocks_say_nothing() -> None:
    found = verdict(blocks({"a": (0.9, 0.8), "b": (0.1, 0.2)}), {})
    assert found.winner is None
    assert found.says.startswith(
        "Nothing can be said about who is ahead: 2 blocks have a score of both a and b, and a "
    )
    assert f"needs {FEWEST_BLOCKS}" in found.says
    assert (
        verdict(blocks({"a": (0.9,)}), {}).says
        == "There is nothing to compare: fewer than two methods have a score."
    )


def test_what_rounding_explains_is_no_difference() -> None:
    found = verdict(blocks({"a": (0.9, 0.8, 0.7), "b": (0.9 - 1e-8, 0.8 - 1e-8, 0.7 - 1e-8)}), {})
    assert (found.winner, found.p_values) == (None, {"b": 1.0})


def test_where_there_is_no_diagram() -> None:
    two = blocks({"a": (1.0, 2.0, 3.0), "b": (2.0, 3.0, 4.0)})
    assert "at least 3 methods, and there are 2" in no_ranks(two)
    lacking = {**two, "c": {0: 1.0, 1: 1.0}}
    assert "in which every method has a score, and there are 2" in no_ranks(lacking)
    assert no_ranks({**two, "c": {0: 1.0, 1: 1.0, 2: 0.0}}) == ""


def test_friedmans_test_is_exact_where_blocks_are_few() -> None:
    scores = {
        "a": (0.9, 0.9, 0.8, 0.9, 0.7),
        "b": (0.9, 0.8, 0.8, 0.7, 0.7),
        "c": (0.5, 0.8, 0.6, 0.7, 0.6),
    }
    chi2 = stats.friedmanchisquare(*scores.values()).statistic
    orders = [sorted(set(permutations(block))) for block in zip(*scores.values(), strict=True)]
    every = [
        stats.friedmanchisquare(*zip(*table, strict=True)).statistic for table in product(*orders)
    ]
    assert ranks(blocks(scores)).p == pytest.approx(
        sum(one >= chi2 - 1e-9 for one in every) / len(every)
    )
    assert ranks(blocks(dict.fromkeys("abc", (0.5, 0.6, 0.7)))).p == 1
    assert ranks(blocks({"a": (0.9, 0.8), "b": (0.7, 0.6), "c": (0.1, 0.2)})).p == pytest.approx(
        1 / 6
    )
    tied = {"a": (0.9, 0.8, 0.9), "b": (0.7, 0.6, 0.7), "c": (0.7, 0.6, 0.7)}
    # Three ways to place the one that is better
    assert ranks(blocks(tied)).p == pytest.approx(1 / 9)


def test_friedmans_test_of_many_methods_is_that_of_iman_and_davenport() -> None:
    draw = np.random.default_rng(0)
    scores = {f"m{i}": tuple(np.round(draw.normal(i / 9, 1, 12), 1)) for i in range(9)}
    chi2 = stats.friedmanchisquare(*scores.values()).statistic
    assert ranks(blocks(scores)).p == pytest.approx(stats.f.sf(11 * chi2 / (12 * 8 - chi2), 8, 88))


def test_no_p_value_is_zero() -> None:
    row = 1 / 360
    # Mean of 1 row, deviation of sqrt(1/6) rows, three pairs: t = sqrt(18), p = 1 - t / sqrt(t^2 + 2) = 0.0513.
    assert paired_p([row] * 3) == pytest.approx(1 - math.sqrt(18 / 20), abs=1e-9)
    assert paired_p([0.9 - 0.897, 0.8 - 0.797, 0.7 - 0.697]) == pytest.approx(paired_p([0.003] * 3))
    found = verdict(blocks({"a": (0.9 + row, 0.8 + row, 0.7 + row), "b": (0.9, 0.8, 0.7)}), {})
    assert found.winner is None
    assert found.says.startswith("No method is ahead")
    assert 0 < paired_p([1.0] * 399 + [1.0 + 1e-3]) < 1e-300
    many = {f"m{place}": dict.fromkeys(range(60), -float(place)) for place in range(30)}
    assert 0 < ranks(many).p < 1e-300


def test_a_tie_is_not_the_best_mean() -> None:
    found = verdict(blocks({"a": (0.9, 0.8, 0.7), "b": (0.7, 0.8, 0.9), "c": (0.1, 0.1, 0.1)}), {})
    assert found.says.startswith(
        "No method is ahead: a and b share the best mean, without a difference beyond noise"
    )


def test_a_p_value_below_the_level_is_shown_below_it() -> None:
    assert [said_p(p) for p in (0.05, 0.0499, 0.0497, 0.0312, 0.2)] == [
        "0.05",
        "0.0499",
        "0.0497",
        "0.031",
        "0.2",
    ]


def test_no_p_value_of_friedmans_test_is_below_that_of_full_agreement():
    """Check one swap of neighbours where all other blocks agree, with too many arrangements to count."""
    ranked = np.tile(np.arange(1.0, 9.0), (6, 1))
    agreed = friedman_p(ranked)
    ranked[0, :2] = 2, 1
    assert friedman_p(ranked) >= agreed > 0


def test_an_interval_of_equal_differences_of_scores_is_no_point():
    equal = [0.02, 0.02, 0.02]
    assert paired_interval(equal) == (0.02, 0.02)
    low, high = paired_interval(equal, by_chance=True)
    assert low < 0 < high  # as the p-value is above 5 %
    assert (paired_p(equal) < 0.05) == (low > 0)
