"""Numbers that are written in another way than with a decimal point: read where that is sure, refused elsewhere."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedskew as fs
from fedskew.core.errors import FedskewError
from fedskew.data.readers.user_files import read_table


def german(number: float, decimals: int) -> str:
    """Return a number as German programs write it, 1.234,5.

    >>> german(1234.5, 1)
    '1.234,5'
    """
    return f"{number:,.{decimals}f}".translate(str.maketrans(",.", ".,"))


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """Return a folder with the same patients as English and as German programs write them, with gaps."""
    draw = np.random.default_rng(0)
    for name in ("A", "B"):
        frame = pd.DataFrame(
            {
                "age": draw.integers(20, 90, 80),
                "crp": draw.lognormal(1, 1, 80).round(2),
                "cost": draw.uniform(300, 9000, 80).round(1),
                "outcome": draw.choice(["ja", "nein"], 80),
            }
        )
        frame.loc[3, "crp"] = np.nan
        frame.to_csv(tmp_path / f"plain_{name}.csv", index=False)
        written = frame.astype(object)
        written["crp"] = [None if np.isnan(value) else german(value, 2) for value in frame["crp"]]
        written["cost"] = [german(value, 1) for value in frame["cost"]]
        written.to_csv(tmp_path / f"german_{name}.csv", index=False, sep=";")
    return tmp_path


def test_a_german_export_is_the_plain_table(exported: Path):
    plain = fs.load(f"{exported}/plain_A.csv:label=outcome")
    found = fs.load(f"{exported}/german_A.csv:label=outcome,separator=semicolon")
    np.testing.assert_array_equal(found.train.x, plain.train.x)
    assert "decimal commas in crp, cost: read as numbers" in found.notes
    assert not any("comma" in note for note in plain.notes)


def test_german_exports_of_several_clients(exported: Path):
    plain = fs.load(f"{exported}/plain_*.csv:label=outcome")
    found = fs.load(f"{exported}/german_*.csv:label=outcome,separator=semicolon")
    np.testing.assert_array_equal(found.train.x, plain.train.x)
    assert found.shape == (3,)


def test_new_rows_are_read_likewise(exported: Path):
    fed = fs.split(fs.load(f"{exported}/german_A.csv:label=outcome,separator=semicolon"), "iid", 2)
    run = fs.train(fed, "logreg", rounds=1, folder=False)
    plain, german = (read_table(exported / f"{name}_B.csv", (), sign) for name, sign in
                     (("plain", "comma"), ("german", "semicolon")))  # fmt: skip
    pd.testing.assert_frame_equal(run.predict(plain, proba=True), run.predict(german, proba=True))


def written(tmp_path: Path, *columns: str) -> str:
    """Return a file of 30 rows with these cells, a column each, and a label."""
    titles = [f"c{place}" for place in range(len(columns))]
    lines = [";".join((*titles, "y"))]
    for row in range(30):
        cells = [column.split()[row % len(column.split())].replace("_", " ") for column in columns]
        lines.append(";".join((*cells, "pq"[row % 2])))
    (tmp_path / "my.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return f"{tmp_path}/my.csv:label=y,separator=semicolon"


@pytest.mark.parametrize(
    "column", ["5,2 7 -1,25e3 0,5", "1.234,5 12,75 1.000.000,00", "+3,1415 2,71828", "0,123 0,456"]
)
def test_decimal_commas(tmp_path: Path, column: str):
    data = fs.load(written(tmp_path, column) + ",standardize=false")
    assert data.shape == (1,)
    plain = {float(text.replace(".", "").replace(",", ".")) for text in column.split()}
    assert {*data.train.x[:, 0].tolist(), *data.test.x[:, 0].tolist()} == {
        np.float32(value).item() for value in plain
    }


@pytest.mark.parametrize(
    "column",
    ["1,234 5,678", "1,234.5 2,345.0", "1_234 2_345,5", "1'234 2'345.5", "1.234.567 2.345.678"],
)
def test_what_may_divide_thousands_is_refused(tmp_path: Path, column: str):
    says = r"column 'c0' holds numbers with commas, or with signs between thousands: write them with a decimal point"
    with pytest.raises(FedskewError, match=says) as refused:
        fs.load(written(tmp_path, column))
    assert not any(
        text.replace("_", " ") in str(refused.value) for text in column.split()
    )  # values stay where they are
    assert fs.load(written(tmp_path, column) + ",categorical=c0").shape == (2,)


def test_a_point_beside_decimal_commas_is_refused(tmp_path: Path):
    """Check 1.000 in a file with decimal commas: it is a thousand, and was read as one."""
    with pytest.raises(
        FedskewError, match=r"column 'c0' has decimal commas, and column 'c1' has points"
    ):
        fs.load(written(tmp_path, "5,2 1,5", "1.000 2.000"))
    assert fs.load(written(tmp_path, "5,2 1,5", "1.000 2.000") + ",drop=c1").shape == (1,)


@pytest.mark.parametrize(
    "column", ["a,b c,d", "12.05.2024 13.05.2024", "10,20,30 40,50", "icu surgery", "1,5 a b c d"]
)
def test_other_texts_are_categories(tmp_path: Path, column: str):
    assert fs.load(written(tmp_path, column)).shape == (len(column.split()),)
