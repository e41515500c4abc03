"""Verdicts on claims: by hand, with every reason, with failed and missing runs."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from scipy.stats import t

from fedskew.core.errors import FedskewError
from fedskew.papers.comparison import measured, summary_table
from fedskew.papers.paper_claims import Claim, Value
from fedskew.papers.paper_tables import Entry, PaperTable
from fedskew.papers.results import Results
from fedskew.papers.verdicts import Verdict, verdicts

Made, Record = Callable[..., PaperTable], Callable[..., Results]
PLACE = "Table 1"
BETTER = Claim(
    "new is better", "better", place=PLACE, value="accuracy", method="new", others=("old",)
)
NEAR = Claim("new is near", "near", place=PLACE, value="accuracy", method="new", tolerance=3.0)
ABOVE = Claim("new is above", "above", place=PLACE, value="accuracy", method="new", bound=70.0)
STEADY = Claim(
    "new is steady", "steady", place=PLACE, value="accuracy", method="new", tolerance=3.0
)
GOOD = (0.71, 0.72, 0.70, 0.71, 0.71)
SIXTY = (0.6,) * 5


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
    line = f"old: +2.50 (interval +{2.5 - half:.2f} to +{2.5 + half:.2f}, 3 seeds; better in 2 of 2 cases): better"
    assert found.numbers == (line,)


WORSE = (0.61, 0.62, 0.60, 0.61, 0.61)
BETTER_ONES = (0.81, 0.82, 0.80, 0.81, 0.81)
WIDE = (0.60, 0.82, 0.65, 0.75, 0.72)


@pytest.mark.parametrize(
    ("better", "old", "outcome"),
    [
        ("higher", WORSE, "held"),
        ("lower", WORSE, "refuted: worse than old"),
        ("higher", BETTER_ONES, "refuted: worse than old"),
        ("lower", BETTER_ONES, "held"),
        ("higher", BETTER_ONES[:4], "undecided: worse than old, but a refutation needs 5 seeds"),
        ("higher", WIDE, "undecided: smallest difference that could have been seen: old ±10.1"),
        ("higher", WORSE[:1], "undecided: an interval needs 3 seeds: old 1 seed"),
        ("higher", WORSE[:2], "undecided: an interval needs 3 seeds: old 2 seeds"),
    ],
)
def test_outcomes_of_better(
    table: Made, record: Record, better: str, old: tuple[float, ...], outcome: str
):
    made = table(BETTER, cases=("a",), better=better)
    assert str(judge(made, record(made, {("a", "new"): GOOD, ("a", "old"): old}))) == outcome


def test_a_share_has_the_zone_of_studies_and_other_numbers_have_none(table: Made, record: Record):
    """A tenth of a point is not a difference in accuracy: that refutes "better", unless nobody has said so."""
    runs = {("a", "new"): GOOD, ("a", "old"): tuple(score + 0.001 for score in GOOD)}
    share = Value("accuracy", "test_accuracy_last", factor=100.0)
    assert (share.zone_in_use, share.width_in_use) == (0.5, 1.0)
    assert Value("seconds", "seconds_of_a_round").zone_in_use is None
    assert Value("rounds", "rounds_to_90_percent_of_best_test_accuracy").zone_in_use is None
    assert replace(share, zone=2.0).zone_in_use == 2.0
    made = table(BETTER, cases=("a",))
    assert str(judge(made, record(made, runs))) == "refuted: worse than old"
    zoned = replace(made, values=(replace(made.values[0], zone=0.5),))
    assert str(judge(zoned, record(zoned, runs))) == "refuted: equal to old within ±0.5"


@pytest.mark.parametrize(
    ("kind", "old", "outcome"),
    [
        ("no worse", (0.715, 0.725, 0.705, 0.715, 0.715), "held"),  # half a point worse everywhere
        ("equal", (0.715, 0.725, 0.705, 0.715, 0.715), "held"),
        ("no worse", BETTER_ONES, "refuted: worse than old"),
        ("no worse", WORSE, "held"),
        ("equal", WORSE, "refuted: old: beyond ±1"),
        ("no worse", WIDE, "undecided: smallest difference that could have been seen: old ±10.1"),
    ],
)
def test_no_worse_and_equal(
    table: Made, record: Record, kind: str, old: tuple[float, ...], outcome: str
):
    made = table(replace(BETTER, kind=kind, tolerance=1.0), cases=("a",))
    found = str(judge(made, record(made, {("a", "new"): GOOD, ("a", "old"): old})))
    assert found.partition("; about")[0] == outcome


@pytest.mark.parametrize(
    ("more", "better", "outcome"),
    [
        ({"margin": 9.0}, "higher", "held"),  # it is ten points better
        ({"margin": 11.0}, "higher", "refuted: not ahead of old by 11"),
        ({"share": 0.1}, "higher", "held"),  # 71 against 61: a sixth more
        ({"share": 0.2}, "higher", "refuted: not ahead of old by 20 %"),
        ({"share": 0.1}, "lower", "held"),  # 61 against 71: a seventh less
        ({"share": 0.2}, "lower", "refuted: not ahead of old by 20 %"),
    ],
)
def test_better_by_so_much(table: Made, record: Record, more: dict, better: str, outcome: str):
    made = table(replace(BETTER, **more), cases=("a",), better=better)
    runs = {("a", "new"): GOOD, ("a", "old"): WORSE}
    if better == "lower":
        runs = {("a", "new"): WORSE, ("a", "old"): GOOD}
    assert str(judge(made, record(made, runs))) == outcome


@pytest.mark.parametrize(
    ("margin", "old", "answer"),
    [
        (9.0, WORSE, "better: old"),  # ten points ahead
        (11.0, WORSE, "equal: old"),  # ahead, and less than the lead is no difference
        (1.0, GOOD, "equal: old"),
        (1.0, BETTER_ONES, "worse: old"),
        (
            10.0,
            (0.60, 0.63, 0.58, 0.62, 0.615),
            "undecided: old ±1.7",
        ),  # t * 1.34 / sqrt(5) around the lead
    ],
)
def test_a_question_with_a_lead_is_answered_by_the_plain_difference_where_it_is_missed(
    table: Made, record: Record, margin: float, old: tuple[float, ...], answer: str
):
    made = table(replace(BETTER, margin=margin, place="", ours=True), cases=("a",))
    found = judge(made, record(made, {("a", "new"): GOOD, ("a", "old"): old}))
    assert str(found) == answer
    assert f"old, beyond a lead of {margin:g}: " in found.numbers[0]


def test_the_gap_is_larger_in_some_cases(table: Made, record: Record):
    """Ahead by ten points in case a, by one in b and c: the gap is nine points larger in a."""
    claim = replace(BETTER, kind="gap", cases=("a",))
    made = table(claim, cases=("a", "b", "c"))
    runs = {("a", "new"): GOOD, ("a", "old"): WORSE}
    for case in "bc":
        runs |= {(case, "new"): (0.61, 0.62, 0.6, 0.61, 0.61), (case, "old"): SIXTY}
    found = judge(made, record(made, runs))
    assert found.outcome == "held"
    assert found.numbers[0].startswith("gap to old: +9.00 (interval ")
    elsewhere = table(replace(claim, cases=("b",), elsewhere=("c",)), cases=("a", "b", "c"))
    between = judge(elsewhere, record(elsewhere, runs))
    assert (between.outcome, between.numbers[0][:17]) == ("undecided", "gap to old: +0.00")
    reversed_ = table(replace(claim, cases=("b", "c")), cases=("a", "b", "c"))
    assert (
        str(judge(reversed_, record(reversed_, runs)))
        == "refuted: gap to old changes the other way"
    )


def test_a_trend_along_cases(table: Made, record: Record):
    """The old method falls by two points for every doubling, the new one stays: their gap grows by as much."""
    names = ("a", "b", "c")
    falls = Claim(
        "old falls",
        "trend",
        place=PLACE,
        value="accuracy",
        method="old",
        cases=names,
        at=(5, 10, 20),
        falls=True,
    )
    grows = replace(BETTER, kind="trend", cases=names, at=(5.0, 10.0, 20.0))
    runs = {}
    for place, case in enumerate(names):
        runs[case, "new"] = GOOD
        runs[case, "old"] = tuple(
            0.7 - 0.02 * place + noise for noise in (0, 0.001, -0.001, 0.002, 0)
        )
    made = table(falls, grows, cases=names)
    found = verdicts(made, record(made, runs))
    assert [one.outcome for one in found] == ["held", "held"]
    assert found[0].numbers[0].startswith("old: +2.00 (interval ")
    assert found[1].numbers[0].startswith("gap to old: +2.00 (interval ")
    other = table(replace(falls, falls=False), cases=names)
    assert str(judge(other, record(other, runs))) == "refuted: old changes the other way"


def test_a_question_of_ours_has_an_answer_in_the_words_of_the_judge(table: Made, record: Record):
    claim = replace(BETTER, ours=True, place="", others=("old", "like"))
    made = table(claim, cases=("a",), methods=("new", "old", "like"))
    runs = {("a", "new"): GOOD, ("a", "old"): WORSE, ("a", "like"): WIDE}
    found = judge(made, record(made, runs))
    assert (found.outcome, found.of_the_paper) == ("answered", False)
    assert str(found).startswith("better: old; undecided: like ±")


def test_what_a_curve_comes_to(table: Made, record: Record):
    """Runs that were recorded without the curve are not measured; they have not failed."""
    made = table(replace(BETTER, value="rises"), cases=("a",))
    rises = Value("rises", "rising_share", curve="test_loss", factor=100, better="lower")
    made = replace(made, values=(*made.values, rises), curves=("test_loss",))
    curve = [{"round": n, "test_loss": loss} for n, loss in enumerate((3, 1, 2, 1), 1)]
    results = record(made, {("a", "new"): GOOD}, curve)
    record(made, {("a", "old"): WORSE})
    assert measured(made, results).cell("a", "new").numbers(rises) == dict.fromkeys(range(5), 25.0)
    assert str(judge(made, results)) == "undecided: not measured yet"
    with pytest.raises(FedskewError, match="unknown measure of a curve"):
        replace(rises, measure="risng_share")


def test_what_was_chosen_must_be_the_best(table: Made, record: Record):
    runs = {("a", "x"): (0.5, 0.7), ("a", "y"): (0.65, 0.65), ("a", "z"): (0.9, 0.9)}
    for method, others, outcome in (
        ("z", (), "chosen"),
        ("y", (), "not the best"),
        ("y", ("x",), "chosen"),
        ("x", ("y",), "not the best"),
    ):
        claim = Claim("c", "chosen", value="accuracy", method=method, others=others)
        made = table(claim, cases=("a",), methods=("x", "y", "z"))
        found = judge(made, record(made, runs))
        assert (str(found), len(found.numbers)) == (outcome, 2 if others else 3)


def test_another_measure_for_some_methods(table: Made, record: Record):
    made = table(ABOVE, cases=("a",))
    made = replace(
        made, values=(replace(made.values[0], measure="missing", instead={"new": "score"}),)
    )
    assert str(judge(made, record(made, {("a", "new"): GOOD, ("a", "old"): (0.9,)}))) == "held"


def test_every_rival_counts(table: Made, record: Record):
    claim = replace(BETTER, others=("old", "like"))
    made = table(claim, cases=("a",), methods=("new", "old", "like"))
    runs = {("a", "new"): GOOD, ("a", "old"): WORSE}
    mixed = judge(made, record(made, {**runs, ("a", "like"): WIDE}))
    assert str(mixed).startswith("undecided: smallest difference that could have been seen: like ±")
    worse = judge(made, record(made, {("a", "like"): (0.8,) * 5}))
    assert str(worse) == "refuted: worse than like"


def test_one_rival_is_enough_to_refute_and_not_to_hold(table: Made, record: Record):
    claim = replace(BETTER, others=("old", "other"))
    made = table(claim, cases=("a",), methods=("new", "old", "other"))
    results = record(made, {("a", "new"): GOOD, ("a", "old"): (0.8,) * 5})
    assert str(judge(made, results)) == "refuted: worse than old"
    record(made, {("a", "old"): SIXTY})
    assert str(judge(made, results)) == "undecided: not measured yet: other in a"


def test_a_rival_refutes_only_what_was_run_of_it_in_all_cases(table: Made, record: Record):
    made = table(BETTER)
    runs = {("a", "new"): GOOD, ("a", "old"): (0.8,) * 5, ("b", "new"): GOOD}
    results = record(made, runs)
    found = judge(made, results)
    assert str(found) == "undecided: not measured yet: old in b"
    assert found.lacks_runs
    record(made, {("b", "old"): (0.8,) * 5})
    found = judge(made, results)
    assert str(found) == "refuted: worse than old"
    assert not found.lacks_runs


def test_cases_of_the_claim_and_of_the_methods(table: Made, record: Record):
    """In case b new is worse, but the claim is of case a; in case c the rival does not occur."""
    claim = replace(BETTER, cases=("a", "c"))
    made = table(claim, cases=("a", "b", "c"))
    made = replace(made, methods=(Entry("new"), Entry("old", only=("a", "b"))))
    runs = {("a", "new"): GOOD, ("b", "new"): (0.1,) * 5, ("c", "new"): GOOD}
    found = judge(made, record(made, {**runs, ("a", "old"): SIXTY, ("b", "old"): SIXTY}))
    assert found.outcome == "held"
    assert "better in 1 of 1 case)" in found.numbers[0]


def test_rounding_is_no_difference(table: Made, record: Record):
    """Three tenths more and less are not zero in floating point, but the same in every seed."""
    made = table(BETTER)
    runs = {
        ("a", "new"): (0.203,) * 5,
        ("a", "old"): (0.2,) * 5,
        ("b", "new"): (0.7,) * 5,
        ("b", "old"): (0.703,) * 5,
    }
    assert (100 * 0.203 - 100 * 0.2) + (100 * 0.7 - 100 * 0.703) > 0
    assert judge(made, record(made, runs)).outcome == "undecided"


def test_only_seeds_with_all_cases_are_averaged(table: Made, record: Record):
    """A sixth seed of case a alone would compare unlike cases."""
    made = table(BETTER)
    runs = {("a", "new"): (*GOOD, 0.99), ("a", "old"): (*SIXTY, 0.1)}
    found = judge(made, record(made, {**runs, ("b", "new"): GOOD, ("b", "old"): SIXTY}))
    assert found.numbers[0].startswith("old: +11.00 ")
    assert "5 seeds" in found.numbers[0]


def test_runs_that_failed_are_named(table: Made, record: Record):
    made = table(BETTER)
    fine = {("b", "new"): GOOD, ("b", "old"): SIXTY}
    some = (0.9, "NaN", 0.9, 0.9, 0.9)
    own = judge(made, record(made, {**fine, ("a", "new"): some, ("a", "old"): SIXTY}))
    assert str(own) == "refuted: new: diverged in 1 of 10 runs (a seed 1)"
    other = judge(made, record(made, {**fine, ("a", "new"): GOOD, ("a", "old"): ("NaN",) * 5}))
    assert other.outcome == "held"
    assert "5 seeds; better in 1 of 1 case; left out: a)" in other.numbers[0]
    assert other.numbers[1].startswith("old: diverged in 5 of 10 runs (a seed 0, a seed 1, ")
    once = judge(made, record(made, {("a", "old"): (0.1, "NaN", 0.1, 0.1, 0.1)}))
    assert once.numbers[0] == other.numbers[0]
    assert once.numbers[1] == "old: diverged in 1 of 10 runs (a seed 1)"
    better = judge(made, record(made, {("a", "old"): (0.75, "NaN", 0.75, 0.75, 0.75)}))
    assert "4 seeds; better in 1 of 2 cases)" in better.numbers[0]


def test_with_no_case_in_which_all_runs_ended_the_other_seeds_are_compared(
    table: Made, record: Record
):
    made = table(BETTER, cases=("a",))
    runs = {("a", "new"): GOOD[:3], ("a", "old"): (0.6, 0.6, "NaN")}
    found = judge(made, record(made, runs))
    assert str(found) == "undecided: an interval needs 3 seeds: old 2 seeds"
    assert found.numbers[0] == "old: +11.50 (2 seeds; better in 1 of 1 case): undecided"


def test_a_rival_that_always_fails_cannot_be_compared(table: Made, record: Record):
    made = table(BETTER, cases=("a",))
    found = judge(made, record(made, {("a", "new"): GOOD, ("a", "old"): ("NaN",) * 5}))
    assert str(found) == "cannot be tested here: no seed with a number of both for old"
    assert found.numbers[-1].startswith("old: diverged in 5 of 5 runs")


def test_what_is_missing_is_said(table: Made, record: Record):
    made = table(BETTER)
    results = record(made, {("a", "new"): GOOD})
    assert str(judge(made, results)) == "undecided: not measured yet"
    record(made, {("a", "old"): SIXTY})
    assert str(judge(made, results)) == "undecided: not measured yet: old in b"
    gone = table(replace(BETTER, cases=("a", "z")), cases=("a",))
    left = "cannot be tested here: z is left out of this version of the table"
    assert str(judge(gone, record(gone, {("a", "new"): GOOD, ("a", "old"): SIXTY}))) == left
    alone = replace(made, methods=(Entry("new"),))
    assert "old is left out of this version" in str(judge(alone, results))


def test_no_results_and_no_test(table: Made, record: Record):
    secure = Claim("it is secure", "untestable", place=PLACE, because="no attack is implemented")
    made = table(BETTER, NEAR, secure, paper={"new": {"a": 71.0, "b": 71.0}})
    assert [str(one) for one in verdicts(made, record(made, {}))] == [
        "undecided: not measured yet",
        "undecided: not measured yet",
        "cannot be tested here: no attack is implemented",
    ]


def test_results_of_other_settings_do_not_count(table: Made, record: Record):
    results = record(table(settings={"rounds": 2}), {("a", "new"): GOOD})
    found = judge(table(ABOVE, settings={"rounds": 3}), results)
    assert str(found) == "undecided: not measured yet"


HIGH = (0.79, 0.80, 0.78, 0.79, 0.79)
LOW = (0.59, 0.60, 0.58, 0.59, 0.59)


@pytest.mark.parametrize(
    ("claim", "b", "outcome"),
    [
        (NEAR, GOOD, "held"),
        (NEAR, (0.72,) * 5, "held"),
        (NEAR, HIGH, "refuted: the printed 71.0 (b): beyond ±3"),
        (NEAR, LOW, "refuted: the printed 71.0 (b): beyond ±3"),
        (NEAR, HIGH[:3], "undecided: the printed 71.0 (b): beyond ±3, but a refutation needs 5 seeds"),
        (NEAR, WIDE, "undecided: smallest difference that could have been seen: the printed 71.0 (b) ±13.4"),
        (ABOVE, HIGH, "held"),
        (ABOVE, LOW, "refuted: worse than the bound 70 (b)"),
        (ABOVE, WIDE, "undecided: smallest difference that could have been seen: the bound 70 (b) ±13.4"),
        (STEADY, (0.72,) * 5, "held"),
        (STEADY, HIGH, "refuted: a against b: beyond ±3"),
        (NEAR, (), "undecided: not measured yet: b"),
        (ABOVE, (), "undecided: not measured yet: b"),
        (STEADY, (), "undecided: not measured yet"),
        (ABOVE, (*HIGH, "NaN"), "refuted: new: diverged in 1 of 11 runs (b seed 5)"),
    ],
)  # fmt: skip
def test_the_level_of_a_method(
    table: Made, record: Record, claim: Claim, b: tuple[float, ...], outcome: str
):
    made = table(claim, paper={"new": {"a": 71.0, "b": 71.0}})
    first = GOOD
    if claim is ABOVE:
        first = HIGH
    found = str(judge(made, record(made, {("a", "new"): first, ("b", "new"): b})))
    assert found.partition("; about")[0] == outcome


def test_a_bound_of_something_that_is_to_be_low(table: Made, record: Record):
    made = table(ABOVE, cases=("a",), better="lower")
    assert judge(made, record(made, {("a", "new"): LOW})).outcome == "held"
    assert judge(made, record(made, {("a", "new"): HIGH})).outcome == "refuted"


def test_summary_table(table: Made, record: Record):
    made = table(paper={"new": {"a": 72.0}, "old": {"b": 60.0}})
    results = record(
        made, {("a", "new"): GOOD[:3], ("a", "old"): (0.6, "NaN", 0.6), ("b", "new"): (0.5,)}
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
