"""The stopping rule by hand: five seeds, then ten, then twenty, by the width of intervals and nothing else."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from fedskew.papers.comparison import measured
from fedskew.papers.paper_claims import Claim, Value
from fedskew.papers.paper_tables import PaperTable
from fedskew.papers.results import Results
from fedskew.papers.stopping import STAGES, is_narrow_enough, wanted_seeds

Made, Record = Callable[..., PaperTable], Callable[..., Results]
CLAIM = Claim("c", "better", "accuracy", "new", ("old",), cases=("a",), place="Table 1")


def noisy(base: float, spread: float, seeds: int) -> list[float]:
    """Return scores around a base, up and down by turns."""
    return [base + spread * (-1) ** seed for seed in range(seeds)]


def in_points(table: PaperTable, **more: float) -> PaperTable:
    """Return the table with a value that is a share, so that the width is one point."""
    return replace(table, values=(replace(table.values[0], width=1.0, **more),))


def counts(table: PaperTable, results: Results) -> dict[tuple[str, str], int]:
    return {key: len(seeds) for key, seeds in wanted_seeds(measured(table, results)).items()}


@pytest.mark.parametrize(
    ("spread", "measured_seeds", "wanted"),
    [
        (0.0, 0, 5),
        (0.0, 3, 5),
        # With 5 seeds up and down by s: deviation 1.095 s, half-width 2.776 x 1.095 s / sqrt(5) = 1.36 s
        (0.007, 5, 5),
        (0.008, 5, 10),
        # With 10: deviation 1.054 s, half-width 2.262 x 1.054 s / sqrt(10) = 0.754 s
        (0.013, 10, 5),  # nothing more is wanted than there is
        (0.014, 10, 20),
        (0.014, 7, 10),
        (0.9, 20, 20),
    ],
)
def test_stages(table: Made, record: Record, spread: float, measured_seeds: int, wanted: int):
    made = in_points(table(CLAIM, seeds="0-2"))
    runs = {
        ("a", "new"): noisy(0.7, spread, measured_seeds),
        ("a", "old"): [0.6] * measured_seeds,
    }
    found = counts(made, record(made, runs))
    assert found["a", "new"] == found["a", "old"] == wanted
    # Cells that no claim compares have the seeds of the table
    assert found["b", "new"] == found["b", "old"] == 3


def test_who_is_ahead_does_not_matter(table: Made, record: Record):
    made = in_points(table(CLAIM))
    for sign in (1, -1):
        runs = {("a", "new"): noisy(0.7, 0.008, 5), ("a", "old"): [0.7 + sign * 0.2] * 5}
        assert counts(made, record(made, runs))["a", "new"] == 10


def test_a_value_without_a_width_is_narrow_enough(table: Made, record: Record):
    made = table(CLAIM)
    runs = {("a", "new"): noisy(0.7, 0.3, 5), ("a", "old"): [0.6] * 5}
    results = record(made, runs)
    assert is_narrow_enough(measured(made, results), CLAIM)
    assert counts(made, results)["a", "new"] == 5


def test_a_gap_needs_all_cases(table: Made, record: Record):
    made = in_points(table(replace(CLAIM, kind="gap"), seeds="0-2"))
    assert set(counts(made, record(made, {})).values()) == {5}


def test_choices_and_quick_versions_have_the_seeds_of_the_table(table: Made, record: Record):
    chosen = Claim("c", "chosen", "accuracy", "new")
    untestable = Claim("c", "untestable", because="of time", place="Table 1")
    made = in_points(table(chosen, untestable, seeds="100-101"))
    assert set(counts(made, record(made, {})).values()) == {2}
    quick = in_points(table(CLAIM)).reduced()
    assert set(counts(quick, record(quick, {})).values()) == {1}


def test_the_rule_is_frozen():
    assert STAGES == (5, 10, 20)
    assert Value("accuracy", "test_accuracy_last", 100.0).width_in_use == 1.0
    assert Value("accuracy", "test_accuracy_last").width_in_use == 0.01
