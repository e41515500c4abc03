"""A made-up table, and results that are recorded for it."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedskew.papers.cell_settings import configuration
from fedskew.papers.paper_claims import Claim, Value
from fedskew.papers.paper_tables import Entry, PaperTable, Quick
from fedskew.papers.results import Result, Results

SITTING = {
    "command": "fedskew paper made-up", "case": "a", "fedskew": "1", "python": "3", "torch": "2", "numpy": "2",
    "machine": "x86_64 CPU", "seconds": 10.0, "date": "2026-01-01",
}  # fmt: skip
# By case and method: a number for each seed, or why it failed
Runs = Mapping[tuple[str, str], Sequence[float | str]]


@pytest.fixture
def table() -> Callable[..., PaperTable]:
    """Return what makes a table of two cases and methods, with an accuracy in per cent; anything can be another."""

    def made(
        *claims: Claim,
        cases: Sequence[str] = ("a", "b"),
        methods: Sequence[str] = ("new", "old"),
        **given: Any,
    ) -> PaperTable:
        better, paper = given.pop("better", "higher"), given.pop("paper", {})
        values = (Value("accuracy", "score", 100.0, 1, better, paper),)
        return PaperTable(**{
            "paper": "made-up", "name": "table1", "printed": "Table 1", "title": "made up", "quick": Quick(),
            "cases": tuple(map(Entry, cases)), "methods": tuple(map(Entry, methods)), "values": values,
            "claims": claims, **given,
        })  # fmt: skip

    return made


@pytest.fixture
def record(tmp_path: Path) -> Callable[..., Results]:
    """Return what records runs of a table."""

    def recorded(table: PaperTable, runs: Runs, curves: Sequence[dict[str, Any]] = ()) -> Results:
        cases, methods = (
            {entry.name: entry for entry in entries} for entries in (table.cases, table.methods)
        )
        found = []
        for (case, method), numbers in runs.items():
            settings = configuration(table, cases[case], methods[method])
            for seed, number in enumerate(numbers):
                key = (case, method, seed, settings)
                failed = isinstance(number, str)
                found.append(
                    Result(*key, failed=number)
                    if failed
                    else Result(*key, {"score": number}, curves)
                )
        results = Results(tmp_path / "replication", table.label)
        results.add(found, SITTING)
        return results

    return recorded
