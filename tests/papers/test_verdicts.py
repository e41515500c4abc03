"""Verdicts on claims: by hand, with every reason, with failed and missing runs."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from scipy.stats import t

from fedskew.core.errors import FedskewError
from fedskew.papers.comparison import summary_table
from fedskew.papers.paper_tables import Claim, Entry, PaperTable, Value
from fedskew.papers.results import Results
from fedskew.papers.verdicts import Verdict, verdicts

Made, Record = Callable[..., PaperTable], Callable[..., Results]
BETTER = Claim("new is better", "better", "accuracy", "new", ("old",))
NEAR = Claim("new is near", "near", "accuracy", "new", tolerance=0.5)
ABOVE = Claim("new is above", "above", "accuracy", "new", bound=70.0)
STEADY = Claim("new is steady", "steady", "accuracy", "new", tolerance=3.0)
GOOD = (0.71, 0.72, 0.70)


def judge(table: PaperTable, results: Results) -> Verdict:
    (found,) = verdicts(table, results)
    return found


def test_better_by_hand(table: Made, record: Record):
    """Differences are 2, 4, 6 in case a and 1, 1, 1 in case b: means of the seeds 1.5, 2.5, 3.5."""
    made = table(BETTER)
    old = {("a", "old"): (0.50, 0.50, 0.50), ("b", "old"): (0.60, 0.60, 0.60)}
    found = judge(
        made,
        record(made, {("a", "new"): (0.52, 0.54, 0.56), ("b", "new"): (0.61, 0.61, 0.61), **old}),
    )
    half = t.ppf(0.975, 2) * 1.0 / 3**0.5
    assert half == pytest.approx(2.4841, abs=1e-4)
    assert found.outcome == "held"
    line = f"against old +2.50 (95 % interval +{2.5 - half:.2f} to +{2.5 + half:.2f}, 3 seeds; better in 2 of 2 cases)"
    assert found.numbers == (line,)


@pytest.mark.parametrize(
    ("better", "old", "outcome"),
    [
        ("higher", (0.61, 0.62, 0.60), "held"),
        ("lower", (0.61, 0.62, 0.60), "not held: reversed against old"),
        ("higher", (0.81, 0.82, 0.80), "not held: reversed against old"),
        ("lower", (0.81, 0.82, 0.80), "held"),
        ("higher", (0.60, 0.82, 0.65), "not held: no difference beyond noise to old"),
        ("higher", GOOD, "not held: no difference beyond noise to old"),
        ("higher", (0.61,), "points that way: fewer than 3 seeds"),
        ("higher", (0.61, 0.62), "points that way: fewer than 3 seeds"),
        ("higher", (0.81, 0.82), "points another way: fewer than 3 seeds"),
    ],
)
def test_outcomes_of_better(
    table: Made, record: Record, better: str, old: tuple[float, ...], outcome: str
):
    made = table(BETTER, cases=("a",), better=better)
    assert str(judge(made, record(made, {("a", "new"): GOOD, ("a", "old"): old}))) == outcome


@pytest.mark.parametrize(
    ("old", "outcome"),
    [
        ((0.715, 0.725, 0.705), "held"),  # half a point worse in every seed
        ((0.735, 0.745, 0.725), "not held: reversed against old"),
        ((0.70, 0.75, 0.68), "not held: no difference beyond noise to old"),
    ],
)
def test_with_a_tolerance_it_may_be_that_much_worse(
    table: Made, record: Record, old: tuple[float, ...], outcome: str
):
    made = table(replace(BETTER, tolerance=1.0), cases=("a",))
    assert str(judge(made, record(made, {("a", "new"): GOOD, ("a", "old"): old}))) == outcome


def test_what_was_chosen_must_be_the_best(table: Made, record: Record):
    runs = {("a", "x"): (0.5, 0.7), ("a", "y"): (0.65, 0.65), ("a", "z"): (0.9, 0.9)}
    for method, others, outcome in (
        ("z", (), "chosen"),
        ("y", (), "not the best"),
        ("y", ("x",), "chosen"),
        ("x", ("y",), "not the best"),
    ):
        made = table(
            Claim("c", "chosen", "accuracy", method, others), cases=("a",), methods=("x", "y", "z")
        )
        found = judge(made, record(made, runs))
        assert (str(found), len(found.numbers)) == (outcome, 2 if others else 3)


def test_another_measure_for_some_methods(table: Made, record: Record):
    made = table(ABOVE, cases=("a",))
    made = replace(
        made, values=(replace(made.values[0], measure="missing", instead={"new": "score"}),)
    )
    assert str(judge(made, record(made, {("a", "new"): (0.71,), ("a", "old"): (0.9,)}))) == "held"


def test_every_rival_counts(table: Made, record: Record):
    claim = Claim("new is best", "better", "accuracy", "new", ("old", "like"))
    made = table(claim, cases=("a",), methods=("new", "old", "like"))
    runs = {("a", "new"): GOOD, ("a", "old"): (0.61, 0.62, 0.60)}
    mixed = judge(made, record(made, {**runs, ("a", "like"): (0.72, 0.70, 0.71)}))
    assert str(mixed) == "not held: mixed, better than old, no difference beyond noise to like"
    assert (
        str(judge(made, record(made, {("a", "like"): (0.8, 0.8, 0.8)})))
        == "not held: reversed against like"
    )


def test_one_rival_decides_that_it_did_not_hold(table: Made, record: Record):
    claim = Claim("new is best", "better", "accuracy", "new", ("old", "other"))
    made = table(claim, cases=("a",), methods=("new", "old", "other"))
    results = record(made, {("a", "new"): GOOD, ("a", "old"): (0.8, 0.8, 0.8)})
    assert str(judge(made, results)) == "not held: reversed against old"
    record(made, {("a", "old"): (0.6, 0.6, 0.6)})
    assert str(judge(made, results)) == "points that way: not everything is measured"


def test_cases_of_the_claim_and_of_the_methods(table: Made, record: Record):
    """In case b new is worse, but the claim is of case a; in case c the rival does not occur."""
    claim = Claim("new is better in a and c", "better", "accuracy", "new", ("old",), ("a", "c"))
    made = table(claim, cases=("a", "b", "c"))
    made = replace(made, methods=(Entry("new"), Entry("old", only=("a", "b"))))
    runs = {("a", "new"): GOOD, ("b", "new"): (0.1, 0.1, 0.1), ("c", "new"): GOOD}
    found = judge(
        made, record(made, {**runs, ("a", "old"): (0.6, 0.6, 0.6), ("b", "old"): (0.6, 0.6, 0.6)})
    )
    assert found.outcome == "held"
    assert "better in 1 of 1 case)" in found.numbers[0]


def test_rounding_is_no_difference(table: Made, record: Record):
    """Three tenths more and less are not zero in floating point, but the same in every seed."""
    made = table(BETTER)
    runs = {
        ("a", "new"): (0.203,) * 3,
        ("a", "old"): (0.2,) * 3,
        ("b", "new"): (0.7,) * 3,
        ("b", "old"): (0.703,) * 3,
    }
    assert (100 * 0.203 - 100 * 0.2) + (100 * 0.7 - 100 * 0.703) > 0
    assert str(judge(made, record(made, runs))) == "not held: no difference beyond noise to old"


def test_only_seeds_with_all_cases_are_averaged(table: Made, record: Record):
    """A fourth seed of case a alone would compare unlike cases."""
    made = table(BETTER)
    runs = {("a", "new"): (*GOOD, 0.99), ("a", "old"): (0.6, 0.6, 0.6, 0.1)}
    found = judge(made, record(made, {**runs, ("b", "new"): GOOD, ("b", "old"): (0.6, 0.6, 0.6)}))
    assert "against old +11.00 " in found.numbers[0]
    assert "3 seeds" in found.numbers[0]


def test_runs_that_failed_are_named(table: Made, record: Record):
    made = table(BETTER)
    fine = {("b", "new"): GOOD, ("b", "old"): (0.6, 0.6, 0.6)}
    own = judge(
        made, record(made, {**fine, ("a", "new"): (0.9, "NaN", 0.9), ("a", "old"): (0.6, 0.6, 0.6)})
    )
    assert str(own) == "not held: new: diverged in 1 of 6 runs (a seed 1)"
    other = judge(
        made, record(made, {**fine, ("a", "new"): GOOD, ("a", "old"): ("NaN", "NaN", "NaN")})
    )
    assert other.outcome == "held"
    assert other.numbers[0].endswith("3 seeds; better in 1 of 1 case; left out: a)")
    assert other.numbers[1] == "old: diverged in 3 of 6 runs (a seed 0, a seed 1, a seed 2)"
    once = judge(made, record(made, {("a", "old"): (0.1, "NaN", 0.1)}))
    assert once.numbers[0] == other.numbers[0]
    assert once.numbers[1] == "old: diverged in 1 of 6 runs (a seed 1)"
    better = judge(made, record(made, {("a", "old"): (0.75, "NaN", 0.75)}))
    assert str(better) == "points that way: fewer than 3 seeds"
    assert better.numbers[0] == "against old +3.00 (2 seeds; better in 1 of 2 cases)"


def test_with_no_case_in_which_all_runs_ended_the_other_seeds_are_compared(
    table: Made, record: Record
):
    made = table(BETTER, cases=("a",))
    found = judge(made, record(made, {("a", "new"): GOOD, ("a", "old"): (0.6, 0.6, "NaN")}))
    assert str(found) == "points that way: fewer than 3 seeds"
    assert found.numbers[0] == "against old +11.50 (2 seeds; better in 1 of 1 case)"


def test_a_rival_that_always_fails_cannot_be_compared(table: Made, record: Record):
    made = table(BETTER, cases=("a",))
    found = judge(made, record(made, {("a", "new"): GOOD, ("a", "old"): ("NaN", "NaN", "NaN")}))
    assert str(found) == "cannot be tested here: no seed with a number of both for old"
    assert found.numbers[-1].startswith("old: diverged in 3 of 3 runs")


def test_what_is_missing_is_said(table: Made, record: Record):
    made = table(BETTER)
    results = record(made, {("a", "new"): GOOD})
    assert str(judge(made, results)) == "no results yet"
    record(made, {("a", "old"): (0.6, 0.6, 0.6)})
    found = judge(made, results)
    assert str(found) == "points that way: not everything is measured"
    assert "not measured yet: b" in found.numbers[0]


def test_no_results_and_no_test(table: Made, record: Record):
    made = table(
        BETTER, NEAR, Claim("it is secure", "untestable", because="no attack is implemented")
    )
    assert [str(one) for one in verdicts(made, record(made, {}))] == [
        "no results yet", "no results yet", "cannot be tested here: no attack is implemented",
    ]  # fmt: skip


def test_results_of_other_settings_do_not_count(table: Made, record: Record):
    results = record(table(settings={"rounds": 2}), {("a", "new"): GOOD})
    assert str(judge(table(ABOVE, settings={"rounds": 3}), results)) == "no results yet"


@pytest.mark.parametrize(
    ("claim", "b", "outcome"),
    [
        (NEAR, GOOD, "held"),
        (NEAR, (0.715, 0.715), "held"),  # half a point above the paper's 71.0
        # Though 71.2 - 71.0 is above 0.2 in floating point
        (replace(NEAR, tolerance=0.2), (0.712,), "held"),
        (NEAR, (0.716,), "not held: off by more than 0.5 in 1 of 2 cases"),
        (NEAR, (0.704,), "not held: off by more than 0.5 in 1 of 2 cases"),
        (ABOVE, (0.70,), "held"),
        (ABOVE, (0.68, 0.71), "not held: below 70 in 1 of 2 cases"),
        (STEADY, (0.74,), "held"),
        (STEADY, (0.67,), "not held: cases differ by more than 3"),
        (NEAR, (), "points that way: not measured: b"),
        (ABOVE, (), "points that way: not measured: b"),
        (STEADY, (), "cannot be tested here: too few cases that can be compared"),
        (ABOVE, (0.9, "NaN"), "not held: new: diverged in 1 of 5 runs (b seed 1)"),
    ],
)
def test_the_level_of_a_method(
    table: Made, record: Record, claim: Claim, b: tuple[float, ...], outcome: str
):
    made = table(claim, paper={"new": {"a": 71.0, "b": 71.0}})
    assert str(judge(made, record(made, {("a", "new"): GOOD, ("b", "new"): b}))) == outcome


def test_better_needs_a_direction(table: Made, record: Record):
    made = table(BETTER, better="")
    with pytest.raises(FedskewError, match="higher or lower"):
        judge(made, record(made, {("a", "new"): GOOD}))


def test_summary_table(table: Made, record: Record):
    made = table(paper={"new": {"a": 72.0}, "old": {"b": 60.0}})
    results = record(
        made, {("a", "new"): GOOD, ("a", "old"): (0.6, "NaN", 0.6), ("b", "new"): (0.5,)}
    )
    assert summary_table(made, results) == [
        ["", "new", "old"],
        ["a", "72.0 / 71.0 ± 1.0 / -1.0", "60.0 ± 0.0 (diverged in 1 of 3 runs)"],
        ["b", "50.0 (1 of 3 seeds)", "60.0 / not measured yet"],
    ]


def test_cells_that_are_not_to_be_measured_and_numbers_that_are_none(table: Made, record: Record):
    made = replace(
        table(paper={"old": {"b": 60.0}}), methods=(Entry("new"), Entry("old", only=("a",)))
    )
    results = record(
        made,
        {
            ("a", "new"): (0.6, math.nan),
            ("a", "old"): (math.inf, math.nan),
            ("b", "new"): (0.5, 0.5),
        },
    )
    assert summary_table(made, results)[1:] == [
        ["a", "60.0 (no number in 1 of 2 runs)", "no number in 2 of 2 runs"],
        ["b", "50.0 ± 0.0", "60.0"],
    ]


def test_several_values_are_named(table: Made, record: Record):
    made = table(
        values=(Value("accuracy", "score", 100.0), Value("share", "score", digits=2)),
        methods=("new",),
    )
    assert summary_table(made, record(made, {("a", "new"): (0.6,), ("b", "new"): (0.5,)})) == [
        ["value", "", "new"], ["accuracy", "a", "60.0"], ["accuracy", "b", "50.0"],
        ["share", "a", "0.60"], ["share", "b", "0.50"],
    ]  # fmt: skip
