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
from fedskew.papers.replication_page import pages
from fedskew.papers.results import Results
from fedskew.papers.verdicts import verdict

DOCS = Path(__file__).parents[2] / "docs"
TABLES = [table for paper in papers() for table in tables_of(paper)]


def test_the_page_is_true_to_the_results():
    for name, text in pages(DOCS / "replication").items():
        assert (DOCS / name).read_text(encoding="utf-8") == text, name


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.label)
def test_recorded_runs_have_the_settings_of_the_table(table: PaperTable):
    assert measured(table, Results(DOCS / "replication", table.label)).left_out == 0


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
    for name, value in table.quick.settings.items():
        assert f"{name} {value}" in small.title


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
