"""Questions that tables share, counted: by hand, with a rival of one method alone, and with what was not run."""

from collections.abc import Callable
from dataclasses import replace

from fedskew.papers.comparison import measured
from fedskew.papers.paper_claims import Claim
from fedskew.papers.paper_tables import PaperTable
from fedskew.papers.question_counts import shared_questions
from fedskew.papers.results import Results

Made, Record = Callable[..., PaperTable], Callable[..., Results]
METHODS = ("new", "newer", "old", "new without it")
NEW = Claim(
    "Is new better?", "better", "accuracy", "new", ("old", "new without it"), ("a",), ours=True
)
NEWER = Claim("Is newer better?", "better", "accuracy", "newer", ("old",), ("a",), ours=True)
GOOD = (0.71, 0.72, 0.70, 0.71, 0.71)
WORSE = (0.61, 0.62, 0.60, 0.61, 0.61)
RUNS = {("a", "new"): GOOD, ("a", "old"): WORSE, ("a", "new without it"): GOOD}


def test_words_are_counted_by_method_and_rival(table: Made, record: Record):
    first = table(NEW, NEWER, cases=("a",), methods=METHODS)
    second = replace(first, name="table2")
    made = [measured(first, record(first, RUNS)), measured(second, record(second, {}))]
    assert shared_questions(made) == [
        ["method", "by", "old", "itself without its idea"],
        ["new", "accuracy", "1 better, 1 not run", "1 undecided, 1 not run"],
        ["newer", "accuracy", "2 not run", ""],
    ]


def test_a_method_without_a_number_is_told_apart_from_one_that_was_not_run(
    table: Made, record: Record
):
    made = table(NEW, NEWER, cases=("a",), methods=METHODS)
    failed = {**RUNS, ("a", "new"): ("too large",) * 5}
    found = measured(made, record(made, failed))
    assert shared_questions([found, found])[1][2:] == ["2 no number", "2 no number"]


def test_one_table_or_claims_of_a_paper_are_not_counted(table: Made, record: Record):
    made = table(NEW, NEWER, cases=("a",), methods=METHODS)
    alone = measured(made, record(made, RUNS))
    assert shared_questions([alone]) == []
    claimed = replace(made, claims=(replace(NEW, ours=False, place="Table 1"), NEWER))
    assert shared_questions([replace(alone, table=claimed)] * 2) == []
