"""The page: its numbers are those of the CSV files, what is missing is said, and the bytes are always the same."""

import csv
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedskew.papers import replication_page
from fedskew.papers.paper_claims import Claim, Value
from fedskew.papers.paper_tables import Entry, Paper, PaperTable, Quick
from fedskew.papers.replication_page import pages, write_page
from fedskew.papers.results import Results

Made, Record = Callable[..., PaperTable], Callable[..., Results]
PAPER = Paper(
    "made-up",
    "MadeUp",
    "A title",
    "An Author",
    "arXiv:0000.00000",
    "It adds a rule.",
    "It is better.",
    ("Is it us? No.",),
    "Run it.",
)
CLAIM = Claim("new is better.", "better", "accuracy", "new", ("old",), place="Table 1")
ASKED = Claim("Is new better?", "better", "accuracy", "new", ("old",), ours=True)
RUNS = {
    ("a", "new"): (0.7123, 0.7251, 0.7019), ("a", "old"): (0.6, 0.6111, "NaN in round 3"),
    ("b", "new"): (0.5456, 0.5321, 0.5999), ("b", "old"): (0.4, 0.4444, 0.4123),
}  # fmt: skip


@pytest.fixture
def of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return what makes these the tables of the only paper."""

    def only(*tables: PaperTable) -> None:
        monkeypatch.setattr(replication_page, "papers", lambda: {"made-up": PAPER})
        monkeypatch.setattr(replication_page, "tables_of", lambda name: list(tables))

    return only


def page(folder: Path, quick: bool = False) -> str:
    """Return the text of all pages."""
    return "\n".join(pages(folder, quick).values())


def cells(text: str, first: str) -> list[list[str]]:
    """Return the rows of the Markdown tables that begin with this."""
    rows = [
        line.strip("| ").split(" | ")
        for line in text.splitlines()
        if line.startswith(f"| {first} |")
    ]
    assert rows, text
    return rows


def test_numbers_are_those_of_the_csv(
    table: Made, record: Record, of: Callable[..., None], tmp_path: Path
):
    made = table(CLAIM, paper={"new": {"a": 70.5}})
    of(made)
    results = record(made, RUNS)
    text = page(results.folder)
    with (results.folder / "made-up-table1.csv").open() as file:
        rows = list(csv.DictReader(file))
    for case in "ab":
        (row,) = cells(text, case)
        for method, cell in zip(("new", "old"), row[1:], strict=True):
            some = [
                100 * float(r["score"])
                for r in rows
                if (r["case"], r["method"]) == (case, method) and r["score"]
            ]
            expected = [round(np.mean(some), 1), round(np.std(some, ddof=1), 1)]
            if (case, method) == ("a", "new"):
                expected = [70.5, *expected, round(np.mean(some) - 70.5, 1)]
            if (case, method) == ("a", "old"):
                assert cell.endswith(" (diverged in 1 of 3 runs)")
                expected += [1, 3]
            np.testing.assert_allclose(
                [float(n) for n in re.findall(r"[+-]?[\d.]+", cell)], expected, atol=1e-9
            )
    assert "accuracy: *paper* / ours, 3 seeds (0, 1, 2) / difference" in text
    assert "*70.5* / 71.3 ± 1.2 / +0.8" in text


def test_what_a_reader_needs(table: Made, record: Record, of: Callable[..., None], tmp_path: Path):
    made = table(
        CLAIM,
        ASKED,
        notes=("Rounds: {rounds}.",),
        settings={"rounds": 5, "data": "digits", "clients": 3, "lr": 0.5},
    )
    of(made)
    results = record(made, RUNS)
    record(made, RUNS)
    text = page(results.folder)
    link = "[Table 1: made up](replication/made-up.md#table-1-made-up)"
    for part in (
        f"| MadeUp | Table 1 | new is better. | **held** | {link} |",
        f"| MadeUp | {link} | 1 | 1 |  |  |  |",
        "Of 1 claims 1 held, 0 are refuted, 0 undecided, and 0 cannot be tested here.",
        "![What became of the claims of each paper](replication/verdicts.svg)",
        "*A title*. An Author. arXiv:0000.00000. It adds a rule.", "**What it says.** It is better.",
        "| [Table 1](#table-1-made-up) | digits | 3 | mlp | 5 x 1 | 32 | sgd, 0.5 | 3 | 1 |  |  |  |",
        "## Table 1: made up", "Run it.", "- Rounds: 5.", "**Why they differ**", "- Is it us? No.",
        "fedskew paper made-up\n", "`rounds=5 data=digits clients=3 lr=0.5`", "(made-up-table1.csv)",
        "Made by `fedskew paper made-up`, fedskew 1, python 3, torch 2, numpy 2, x86_64 CPU: 20 s.",
        "What the paper claims:\n\n- new is better. (Table 1) **held**\n  - old: +14.0", "left out: a)",
        "Seeds are missing: by the stopping rule, 4 of 4 cells need more than they have.",
        "What we asked:\n\n- Is new better? **better: old**", "old: diverged in 1 of 6 runs (a seed 2)",
    ):  # fmt: skip
        assert part in text, part


def test_without_results(table: Made, of: Callable[..., None], tmp_path: Path):
    of(table(CLAIM))
    text = page(tmp_path / "replication")
    assert "Not measured yet." in text
    assert "| **undecided** (not measured yet) |" in text
    assert "Of 1 claims 0 held, 0 are refuted, 1 undecided (1 for lack of runs)" in text
    assert ".csv" not in text
    assert "Made by" not in text


def test_what_was_not_run_is_said(table: Made, of: Callable[..., None], tmp_path: Path):
    made = table(CLAIM, not_run="case b: it takes a month.")
    of(made)
    text = page(tmp_path / "replication")
    assert "**Not run**: case b: it takes a month." in text
    link = "[Table 1: made up](replication/made-up.md#table-1-made-up)"
    assert f"## What was not run\n\n- MadeUp, {link}: case b: it takes a month." in text
    assert made.reduced().not_run == ""


def test_runs_of_other_settings_are_left_out(table: Made, record: Record, of: Callable[..., None]):
    results = record(table(settings={"rounds": 1}), RUNS)
    of(table(CLAIM, settings={"rounds": 2}))
    text = page(results.folder)
    assert "Left out: 12 recorded runs" in text
    assert "Not measured yet." in text


def test_many_methods_are_rows_and_every_value_has_a_table(
    table: Made, record: Record, of: Callable[..., None]
):
    names = [f"m|{k}" for k in range(8)]
    values = (Value("accuracy", "score", 100.0), Value("share", "score", digits=3))
    made = table(methods=names, values=values)
    of(made)
    text = page(record(made, {("a", name): (0.25,) for name in names}).folder)
    assert [row[1:] for row in cells(text, "m\\|3")] == [
        ["25.0", "not measured yet"],
        ["0.250", "not measured yet"],
    ]


def test_the_quick_version(table: Made, record: Record, of: Callable[..., None]):
    made = table(CLAIM, quick=Quick(cases=("a",)), settings={"rounds": 9})
    of(made)
    few = {key: numbers[:1] for key, numbers in RUNS.items() if key[0] == "a"}
    text = page(record(made.reduced(), few).folder, quick=True)
    assert "fedskew paper made-up --quick" in text
    assert "**undecided** (an interval needs 3 seeds: old 1 seed)" in text
    assert "\nCases: " not in text  # they differ in nothing
    assert len(cells(text, "a")) == 1
    assert "| b |" not in text


def test_the_quick_version_of_another_experiment(
    table: Made, record: Record, of: Callable[..., None]
):
    quick = Quick(cases=("a",), settings={"rounds": 1, "data": "digits"})
    made = table(CLAIM, quick=quick, settings={"rounds": 9})
    of(made)
    few = {key: numbers[:1] for key, numbers in RUNS.items() if key[0] == "a"}
    text = page(record(made.reduced(), few).folder, quick=True)
    assert "## Table 1: digits, rounds 1, in place of: made up" in text
    assert "accuracy [digits, rounds 1]: ours" in text
    assert "`rounds=1 data=digits`" in text
    assert "**undecided**" not in text
    assert "verdicts.svg" not in text
    assert "*paper* /" not in text


def test_written_twice_the_bytes_are_the_same(
    table: Made, record: Record, of: Callable[..., None], tmp_path: Path
):
    made = table(CLAIM, cases=("a", "b"), curves=("test_loss",))
    of(made, table(name="table2", printed="Table 2", methods=(Entry("new").name,)))
    record(made, RUNS, [{"round": r, "test_loss": 1 / r} for r in (1, 2, 3)])
    stale = tmp_path / "replication" / "made-up-table1.png"
    stale.write_bytes(b"of a larger figure")
    write_page(tmp_path)
    first = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    write_page(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == first
    folder = tmp_path / "replication"
    links = {
        path: re.findall(r"\]\(([^)#]+)", path.read_text())
        for path in (tmp_path / "replication.md", folder / "made-up.md")
    }
    assert "replication/made-up.md" in links[tmp_path / "replication.md"]
    assert "made-up-table1.svg" in links[folder / "made-up.md"]
    assert all((path.parent / link).exists() for path, some in links.items() for link in some)
    assert not stale.exists()
