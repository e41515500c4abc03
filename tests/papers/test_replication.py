"""The page of the repository is what its results make, and the smallest version of each paper's tables runs."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedskew.cli import app as cli
from fedskew.data.source import root
from fedskew.papers.comparison import measured
from fedskew.papers.paper_tables import PaperTable, papers, tables_of
from fedskew.papers.replication_page import diagram, headline, judged_papers, pages
from fedskew.papers.results import Results
from fedskew.papers.verdicts import verdict, verdicts_on

DOCS = Path(__file__).parents[2] / "docs"
TABLES = [table for paper in papers() for table in tables_of(paper)]


def test_the_page_is_true_to_the_results():
    for name, text in pages(DOCS / "replication").items():
        assert (DOCS / name).read_text(encoding="utf-8") == text, name


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.label)
def test_recorded_runs_have_the_settings_of_the_table(table: PaperTable):
    assert measured(table, Results(DOCS / "replication", table.label)).left_out == 0


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.label)
def test_a_table_says_what_of_it_was_not_run(table: PaperTable):
    found = measured(table, Results(DOCS / "replication", table.label))
    assert bool(table.not_run) == (len(found.cells) < table.cell_count)


def test_the_readme_and_the_guides_say_what_became_of_the_claims():
    counts = headline(DOCS / "replication")
    for path in (DOCS.parent / "README.md", DOCS / "index.md", DOCS / "choosing.md"):
        assert counts in " ".join(path.read_text(encoding="utf-8").split()), (path, counts)


def test_nothing_is_refuted_with_fewer_than_five_seeds():
    for table in TABLES:
        found = measured(table, Results(DOCS / "replication", table.label))
        for one in verdicts_on(found):
            if one.outcome == "refuted":
                assert len(found.seeds) >= 5, one.claim.text


def test_the_diagram_is_that_of_the_verdicts():
    drawn = diagram(judged_papers(DOCS / "replication"))
    assert (DOCS / "replication" / "verdicts.svg").read_bytes() == drawn


def test_what_was_chosen_on_validation_rows_is_the_best_there():
    found = [
        (measured(t, Results(DOCS / "replication", t.label)), c) for t in TABLES for c in t.claims
    ]
    chosen = [verdict(results, claim) for results, claim in found if claim.kind == "chosen"]
    assert len(chosen) > 10
    assert {one.outcome for one in chosen} == {"chosen"}


def test_every_result_says_how_it_was_made():
    for table in TABLES:
        results = Results(DOCS / "replication", table.label)
        if results.read():
            assert all(
                sitting["command"].startswith("fedskew paper ") for sitting in results.history()
            ), table.label
            assert all(
                "/" not in sitting["command"] or "--case" in sitting["command"]
                for sitting in results.history()
            )


@pytest.fixture
def fedskew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that runs the command line in an empty folder and returns its exit code."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> Any:
        monkeypatch.setattr(sys, "argv", ["fedskew", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code

    return call


SMALLEST = [
    ("layers", "figure1", "mnist"),
    ("fedpbs", "knobs-uci-har", "UCI HAR Dataset"),
    ("stratify", "table1-mnist", ""),
    ("stratify", "table3", ""),
    ("stratify", "table4", ""),
    ("stratify", "section3b", ""),
    ("afl-cp", "table1-cifar10", ""),
    ("mfedbn", "figure6", "driving-behavior"),
    ("mfedbn", "table2", "driving-behavior"),
    ("fedpbs", "figure3", "UCI HAR Dataset"),
    ("ours", "tuning-uci-har", "UCI HAR Dataset"),
]


@pytest.mark.parametrize(("paper", "table", "data"), SMALLEST)
def test_the_smallest_version_runs(
    fedskew: Callable[..., Any], capsys, paper: str, table: str, data: str
):
    if data and not (root() / data).exists():
        pytest.skip(f"needs {data} in FEDSKEW_DATA")
    if table == "table4":
        pytest.importorskip("tenseal", reason="needs fedskew[he]")
    assert fedskew("paper", paper, "--table", table, "--quick") == 0
    printed = capsys.readouterr().out
    assert "written to replication-quick.md" in printed
    [found] = [entry for entry in tables_of(paper) if entry.name == table]
    small = found.reduced()
    for claim in found.claims:
        assert (f"\n{claim.text} " in printed) == (not found.quick.settings)
    text = (Path("replication-quick") / f"{paper}.md").read_text(encoding="utf-8")
    assert f"## {small.printed}: {small.title}" in text
    runs = Results(Path("replication-quick"), found.label).read()
    assert {run.key for run in runs} == {
        (case.name, method.name, 0) for case in small.cases for method in small.methods_of(case)
    }
    assert not any(run.failed for run in runs)
    for value in found.values:
        assert (
            any(value.measure_of(run.method) in run.numbers for run in runs)
            or "std_of_last" in value.measure
        )


AGAIN = [  # what stands beside them is the data that they need
    ("mfedbn", "table2", "as FedArtML", "VOP", "driving-behavior"),
    ("fedpbs", "figure3", "alpha 0.1", "Dirichlet", "UCI HAR Dataset"),
    ("stratify", "chunks", "digit domains, one alone", "chunk 5, all holders", "digits-domains"),
    ("stratify", "section3b", "initial weights", "MNIST", "mnist"),
]


@pytest.mark.parametrize(("paper", "table", "case", "method", "data"), AGAIN)
def test_a_published_row_comes_out_again_to_the_last_digit(
    fedskew: Callable[..., Any], paper: str, table: str, case: str, method: str, data: str
):
    """Rows without training: the last bits of trained networks are those of a processor and of a version of PyTorch."""
    if not (root() / data).exists():
        pytest.skip(f"needs {data} in FEDSKEW_DATA")
    words = [
        "--table",
        table,
        "--case",
        case,
        "--method",
        method,
        "--seeds",
        "0",
        "--device",
        "cpu",
    ]
    assert fedskew("paper", paper, *words) == 0
    [again] = Results(Path("replication"), f"{paper}-{table}").read()
    published = {run.key: run for run in Results(DOCS / "replication", f"{paper}-{table}").read()}
    assert again == published[case, method, 0]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.label)
def test_another_experiment_has_no_number_of_the_paper_and_no_verdict(table: PaperTable):
    small = table.reduced()
    if not table.quick.settings:
        assert (small.values, small.claims, small.title) == (
            table.values,
            table.claims,
            table.title,
        )
        return
    assert not small.claims
    assert not any(value.paper for value in small.values)
    for setting in table.quick.settings.values():
        assert str(setting) in small.title.removesuffix(table.title)
        assert all(str(setting) in value.name for value in small.values)


def test_without_a_name_the_papers_are_listed(fedskew: Callable[..., Any], capsys):
    assert fedskew("paper") == 0
    printed = capsys.readouterr().out
    for paper in papers().values():
        assert paper.title in printed
    assert "--table table4" in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fedpsb"], "unknown paper 'fedpsb': did you mean 'fedpbs'"),
        (["layers", "--table", "7"], "unknown table of layers '7'"),
        (["layers", "--table", "figure1", "--case", "x"], "unknown case"),
        (["layers", "--table", "figure1", "--method", "x"], "unknown method of layers 'x'"),
        (["layers", "--budget", "soon"], "budget=soon"),
        (["layers", "--seeds", "a"], "'a' is not a number"),
        (["layers", "--device", "gpux"], "gpux"),
    ],
)
def test_bad_words_are_refused_before_anything_is_written(
    fedskew: Callable[..., Any], capsys, words, message: str
):
    assert fedskew("paper", *words) == 2
    assert message in capsys.readouterr().err
    assert not list(Path().iterdir())
