"""A node that lies before round 1: the run stops, and its error names the node and what it told."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.deploy.silos import NAMES, SETTINGS, SilosInProcess, write_silos

from fedskew.core.config import Experiment
from fedskew.core.errors import FedskewError
from fedskew.data.fitting import ColumnFacts, Description, Moments, Request
from fedskew.data.readers.table import Table
from fedskew.deploy.deployment import run_on_nodes
from fedskew.deploy.fit_checks import checked_description
from fedskew.deploy.remote_clients import Nodes
from fedskew.deploy.requests import RowCounts, from_bytes, to_bytes

LIAR = 1
Change = Callable[[Any], Any]


@dataclass
class Lying(SilosInProcess):
    """One of the silos changes its answers to a kind of question; if it is late, from the second such question on."""

    what: str = ""
    change: Change = lambda told: told
    late: bool = False

    def ask(
        self, requests: Mapping[int, bytes], about: Mapping[str, Any], *patience: Any
    ) -> dict[int, bytes]:
        answers = super().ask(requests, about, *patience)
        told = from_bytes(answers[LIAR])
        if kind_of(told) == self.what:
            answers[LIAR] = answers[LIAR] if self.late else to_bytes(self.change(told))
            self.late = False
        return answers


def kind_of(told: Any) -> str:
    """Return which question an answer is for."""
    if not isinstance(told, dict):
        return type(told).__name__
    return "moments" if isinstance(next(iter(told.values())), Moments) else "counts"


def column(**facts: Any) -> Change:
    """Return a lie about the column ``age``."""
    return lambda told: replace(
        told, columns={**told.columns, "age": replace(told.columns["age"], **facts)}
    )


def colours(**facts: Any) -> Change:
    return lambda told: replace(
        told, columns={**told.columns, "colour": replace(told.columns["colour"], **facts)}
    )


def described(**parts: Any) -> Change:
    return lambda told: replace(told, **parts)


DESCRIPTIONS: dict[str, tuple[Change, str]] = {
    "no rows": (
        described(rows=0),
        "hospital_B: rows: told 0, expected a whole number from 1 to 100,000,000",
    ),
    "text as rows": (described(rows="48"), "hospital_B: rows: told '48'"),
    "more rows than a server has room for": (
        described(rows=10**12),
        "rows: told 1000000000000, expected",
    ),
    "a name that moves the cursor": (
        described(name="\x1b[2J"),
        r"its name: told '\\x1b\[2J', expected 1 to 200",
    ),
    "a formula as name": (
        described(name="=1+1"),
        r"its name: told '=1\+1', expected no formula: rename",
    ),
    "an array as name": (described(name=np.zeros(3)), r"its name: told array\(\[0., 0., 0.\]\)"),
    "columns in a list": (
        described(columns=["age"]),
        r"columns: told \['age'\], expected columns by name",
    ),
    "columns without facts": (
        described(columns={"age": 3}),
        "column 'age': told 3, expected facts about a column",
    ),
    "a kind": (column(kind="dates"), "hospital_B: column 'age': kind: told 'dates'"),
    "an array as kind": (column(kind=np.zeros(2)), r"kind: told array\(\[0., 0.\]\)"),
    "an example": (column(example=None), "example: told None, expected a text"),
    "missing below 0": (
        column(missing=-1),
        "column 'age': missing: told -1, expected a whole number from 0 to 48",
    ),
    "more missing than rows": (column(missing=49), "missing: told 49"),
    "infinite ends": (column(low=-math.inf), "low and high: told -inf, expected a finite number"),
    "NaN at an end": (column(high=math.nan), "low and high: told nan"),
    "arrays as ends": (
        column(low=np.zeros(2), high=np.zeros(2)),
        "low and high: told .*expected two numbers",
    ),
    "ends in the wrong order": (
        column(low=90.0, high=10.0),
        r"told \(90.0, 10.0\), expected the smaller one first",
    ),
    "ends without numbers": (
        colours(low=1.0, high=2.0),
        "column 'colour': low and high: .*none without numbers",
    ),
    "two quartiles": (column(quartiles=(1.0, 2.0)), r"quartiles: told \(1.0, 2.0\), expected 3"),
    "NaN as quartile": (
        column(quartiles=(50.0, math.nan, 60.0)),
        "quartiles: told nan, expected a finite number",
    ),
    "quartiles out of order": (
        column(quartiles=(60.0, 55.0, 50.0)),
        "quartiles: .*numbers in order, from low to high",
    ),
    "counts below 0": (colours(counts={"red": -5}), "column 'colour': counts of 'red': told -5"),
    "counts of too many": (
        colours(counts={"red": 40, "blue": 40}),
        "counts: told .*expected 48 rows in all",
    ),
    "counts by number": (
        colours(counts={3: 48}),
        r"counts: told \{3: 48\}, expected categories by name",
    ),
    "texts": (colours(texts=1.5), "texts: told 1.5"),
    "counts that are none": (colours(counts=None), "counts: told None, expected numbers by name"),
    "no classes": (
        described(classes={}),
        r"hospital_B: classes: told \{\}, expected the classes of 48 rows and more",
    ),
    "classes below 0": (described(classes={"sick": -3, "well": 60}), "classes of 'sick': told -3"),
    "a class that is no number": (described(classes={math.nan: 60}), r"classes: told \[nan\]"),
    "a table as arrays": (
        described(shape=(4,)),
        "columns: told .*expected those of arrays of shape",
    ),
    "a long shape": (
        described(shape=(2**28,)),
        r"columns: told .*expected those of arrays of shape \(268435456,\)",
    ),
    "a shape": (described(shape=(0, -1)), r"shape: told \(0, -1\), expected sizes"),
    "a shape without end": (described(shape=(10**6, 10**6)), r"shape: told \(1000000, 1000000\)"),
}


def first_bin(by: int) -> Change:
    """Return a lie about how many numbers are in a bin."""

    def change(told: dict[str, Any]) -> dict[str, Any]:
        counts = [each.copy() for each in told["age"]]
        counts[0][0] += by
        return {**told, "age": counts}

    return change


def moments(**parts: Any) -> Change:
    return lambda told: {**told, "age": replace(told["age"], **parts)}


LATER: dict[str, tuple[str, Change, str]] = {
    "one number more": (
        "counts",
        first_bin(1),
        "counts of column 'age': told 49, expected 48 numbers in interval",
    ),
    "a count below 0": (
        "counts",
        first_bin(-1000),
        "counts of column 'age': told array.*expected numbers from 0 to",
    ),
    "other bins": (
        "counts",
        lambda told: {**told, "age": [told["age"][0][:7]]},
        r"'int64 of shape \(7,\)', expected",
    ),
    "fractions": (
        "counts",
        lambda told: {**told, "age": [told["age"][0] / 2]},
        "'float64 of shape",
    ),
    "no arrays": (
        "counts",
        lambda told: {**told, "age": 48},
        "counts of column 'age': told 48, expected 1 arrays|2 arrays",
    ),
    "a column less": (
        "counts",
        lambda told: {"age": told["age"]},
        r"counts: columns: told \['income'\], expected",
    ),
    "moments of a column less": (
        "moments",
        lambda told: {"age": told["age"]},
        r"moments: columns: told \['income'\]",
    ),
    "no moments": (
        "moments",
        lambda told: {**told, "age": 4.0, "income": told["income"]},
        "told 4.0, expected moments",
    ),
    "of more rows": (
        "moments",
        moments(count=10**9),
        "moments of column 'age': count: told 1000000000, expected 48",
    ),
    "a NaN": (
        "moments",
        moments(mean=math.nan),
        "moments of column 'age': mean: told nan, expected a finite number",
    ),
    "squares below 0": (
        "moments",
        moments(squares=-1.0),
        "squares: told -1.0, expected a sum of squares",
    ),
    "a mean beyond the ends": (
        "moments",
        moments(mean=1e300),
        r"'age': mean: told 1e\+300, expected one from \d",
    ),
    "an error of the mean": (
        "moments",
        moments(error=-1e300),
        r"'age': error: told -1e\+300, expected one of at most",
    ),
    "squares beyond the ends": (
        "moments",
        moments(squares=1e9),
        "'age': squares: told 1000000000.0, expected at most",
    ),
    "another name": (
        "RowCounts",
        described(name="hospital_A"),
        "its name: told 'hospital_A', expected 'hospital_B'",
    ),
    "an array as a name": ("RowCounts", described(name=np.zeros(2)), r"its name: told array"),
    "three classes": (
        "RowCounts",
        described(train=np.array([40, 4, 4])),
        r"train rows: .*shape \(3,\).*of shape \(2,\)",
    ),
    "rows below 0": (
        "RowCounts",
        described(train=np.array([-2, 50])),
        r"train rows: told array\(\[-2, 50\]\), expected",
    ),
    "an overflow": (
        "RowCounts",
        described(test=np.array([2**62, 2**62])),
        "test rows: told array.*from 0 to 100,000,000",
    ),
    "no test rows": (
        "RowCounts",
        described(test=np.zeros(2, np.int64)),
        "test rows: told 0, expected a whole number from 1",
    ),
    "none at all": (
        "RowCounts",
        described(test=None),
        r"test rows: told None, expected int64 of shape \(2,\)",
    ),
    "other rows than described": (
        "RowCounts",
        described(train=np.array([10, 10])),
        "train rows: told 20, expected 48",
    ),
    "other classes": (
        "RowCounts",
        lambda told: replace(told, train=told.train[::-1].copy()),
        "rows of each class: told",
    ),
    "validation that nobody asked for": (
        "RowCounts",
        described(validation=np.array([1, 1])),
        "validation rows: told",
    ),
    "rows held out": (
        "RowCounts",
        described(held_out=np.array([1, 1])),
        "held_out rows: told .*expected none",
    ),
}


def run(tmp_path: Path, what: str, change: Change, late: bool = False) -> None:
    silos = Lying(write_silos(tmp_path), tmp_path / "state", what=what, change=change, late=late)
    experiment = Experiment(data="silos:label=outcome", model="logreg", **SETTINGS)
    run_on_nodes(Nodes(silos), 3, experiment, tmp_path / "run")


@pytest.mark.parametrize("case", DESCRIPTIONS)
def test_a_lie_about_the_table(tmp_path: Path, case: str):
    change, message = DESCRIPTIONS[case]
    with pytest.raises(
        FedskewError, match=rf"1 of 3 clients did not answer: client 1: (hospital_B: )?.*{message}"
    ):
        run(tmp_path, "Description", change)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("case", LATER)
def test_a_lie_about_counts_sums_and_rows(tmp_path: Path, case: str):
    what, change, message = LATER[case]
    with pytest.raises(
        FedskewError, match=rf"1 of 3 clients did not answer: client {NAMES[LIAR]}: .*({message})"
    ):
        run(tmp_path, what, change)
    assert not (tmp_path / "run").exists()


def test_counts_that_do_not_go_with_those_before(tmp_path: Path):
    """Each of two answers is possible, and both are not."""
    with pytest.raises(
        FedskewError,
        match=r"client hospital_B: counts of column 'age': told \d+, expected \d+ numbers",
    ):
        run(tmp_path, "counts", first_bin(1), late=True)


def test_who_tells_the_truth_is_believed(tmp_path: Path):
    """Columns of every kind, empty and with gaps; classes as numbers, truth values and text."""
    rows = 60
    frame = pd.DataFrame({
        "number": np.where(np.arange(rows) % 7, np.linspace(-1e9, 1e-9, rows), np.nan),
        "constant": 0.1,
        "infinite": np.where(np.arange(rows) == 5, np.inf, 1.0),
        "text": np.where(np.arange(rows) % 3, "a", None),
        "names": [f"person {number}" for number in range(rows)],
        "empty": np.nan,
        "time": pd.date_range("2024-01-01", periods=rows),
        "once": [3.5] + [np.nan] * (rows - 1),
        "truth": np.arange(rows) % 2 == 0,
    })  # fmt: skip
    for label in (
        np.arange(rows) % 3,
        np.arange(rows) % 2 == 1,
        np.array(["x", "y"])[np.arange(rows) % 2],
    ):
        table = Table(frame.assign(y=label), None, "y", categorical=("truth",), max_categories=8)
        told = table.parted("a", "a", None).silo.describe(table.request(compared=True))
        assert from_bytes(to_bytes(checked_description(told, table.request(compared=True)))) == told
    found = told.columns
    assert {facts.kind for facts in found.values()} == {"number", "text", "time", "empty"}
    assert (found["names"].counts, found["names"].texts, found["once"].missing) == (
        {},
        rows,
        rows - 1,
    )


def test_arrays_have_no_gaps():
    facts = ColumnFacts("number", "1", 0, 1.0, 2.0, (1.0, 1.5, 2.0))
    honest, request = Description("a", 5, {"0": facts}, {0: 5}, shape=(1,)), Request("y")
    assert checked_description(honest, request) is honest
    for odd in (
        replace(facts, missing=1),
        replace(facts, kind="time", low=math.inf, high=-math.inf, quartiles=None),
    ):
        with pytest.raises(
            FedskewError, match=r"a: column '0': told .*, expected numbers without gaps"
        ):
            checked_description(replace(honest, columns={"0": odd}), request)


@pytest.mark.parametrize(
    ("lie", "what"),
    [
        ({"distinct": 6}, "distinct"),
        ({"distinct": 1}, "distinct"),
        ({"distinct": -1}, "distinct"),
        ({"whole": 1}, "whole"),
        ({"whole": True, "low": 0.5}, "whole"),
        ({"dates": "yes"}, "dates"),
    ],
)
def test_facts_by_which_a_column_is_an_id_are_checked(lie: dict[str, Any], what: str):
    facts = ColumnFacts("number", "1", 0, 1.0, 2.0, (1.0, 1.5, 2.0), distinct=3)
    honest, request = Description("a", 5, {"x": facts}, {0: 5}), Request("y")
    assert checked_description(honest, request) is honest
    with pytest.raises(FedskewError, match=rf"a: column 'x': {what}: told"):
        checked_description(replace(honest, columns={"x": replace(facts, **lie)}), request)


@pytest.mark.parametrize("target", ["number", "labels"])
def test_other_targets_have_no_classes(target: Any):
    facts = ColumnFacts("number", "1", 0, 1.0, 2.0, (1.0, 1.5, 2.0))
    honest, request = Description("a", 5, {"x": facts}, {}), Request("y", target)
    assert checked_description(honest, request) is honest
    with pytest.raises(FedskewError, match=r"a: classes: told \{'u': 5\}, expected none"):
        checked_description(replace(honest, classes={"u": 5}), request)


def test_windows_are_fewer_than_rows(tmp_path: Path):
    """Rows of a series become windows, of which the row counts tell; a node that tells of more is named."""
    paths = write_silos(tmp_path)
    data = "silos:label=outcome,window=5,stride=1"
    experiment = Experiment(data=data, model="logreg", **{**SETTINGS, "rounds": 1})
    honest = SilosInProcess(list(paths), tmp_path / "state")
    assert len(run_on_nodes(Nodes(honest), 3, experiment, tmp_path / "honest").rounds) == 1

    def more(told: RowCounts) -> RowCounts:
        return replace(told, train=told.train + 100)

    liar = Lying(list(paths), tmp_path / "state", what="RowCounts", change=more)
    with pytest.raises(
        FedskewError,
        match=r"client hospital_B: train rows: told \d+, expected a whole number from 1",
    ):
        run_on_nodes(Nodes(liar), 3, experiment, tmp_path / "run")
