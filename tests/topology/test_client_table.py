"""The table of clients: columns with gaps, which read as rows and as lines of a file."""

import csv
import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedskew.runs.folder import to_csv
from fedskew.topology.client_table import ClientTable, Column

NUMBERS = st.one_of(st.floats(), st.sampled_from([0.0, -0.0, 1 / 3, 1e22, 5e-324]))


@st.composite
def tables(draw: st.DrawFn) -> tuple[ClientTable, list[dict[str, Any]]]:
    """Return a table, and its rows as they were before they became columns."""
    count = draw(st.integers(1, 6))
    rows: list[dict[str, Any]] = [{"client": 3 * i} for i in range(count)]
    columns = {"client": Column(np.arange(0, 3 * count, 3))}
    for name in ("a", "b", "c"):
        kind = draw(st.sampled_from([NUMBERS, st.integers(-(2**40), 2**40), st.just(0.1)]))
        values = draw(st.lists(st.one_of(st.none(), kind), min_size=count, max_size=count))
        places = np.array(
            [i for i, value in enumerate(values) if value is not None], dtype=np.int64
        )
        known = np.array([value for value in values if value is not None])
        columns[name] = Column.at(places, known, count)
        for row, value in zip(rows, values, strict=True):
            row[name] = value
    return ClientTable(columns), rows


@given(tables(), st.booleans())
def test_a_file_has_the_bytes_of_its_rows(
    given: tuple[ClientTable, list[dict[str, Any]]], header: bool
):
    table, rows = given
    text = io.StringIO()
    lines = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    if header:
        lines.writeheader()
    lines.writerows(rows)
    assert to_csv(table, header) == text.getvalue().encode() == to_csv(rows, header)


@given(tables())
def test_it_reads_as_rows(given: tuple[ClientTable, list[dict[str, Any]]]):
    table, rows = given
    assert len(table) == len(rows)
    assert [repr(row) for row in table] == [repr(row) for row in rows]  # types and -0.0 included
    assert repr(table[-1]) == repr(rows[-1])
    assert repr(table[:2]) == repr(rows[:2])


def test_tables_with_the_same_rows_are_equal():
    table = ClientTable(
        {"client": Column(np.array([1, 2])), "loss": Column.at(np.array([1]), np.array([0.5]), 2)}
    )
    rows = [{"client": 1, "loss": None}, {"client": 2, "loss": 0.5}]
    assert table == rows
    assert table == ClientTable(table.columns)
    assert table != rows[:1]
    with pytest.raises(TypeError):
        hash(table)


def test_values_come_in_the_order_of_their_places():
    assert Column.at(np.array([2, 0, 1]), np.array([7, 8, 9]), 3).tolist() == [8, 9, 7]
    assert Column.at(np.array([2, 0]), np.array([7.5, 8.0]), 3).tolist() == [8.0, None, 7.5]
