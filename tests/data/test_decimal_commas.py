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
    found = fs.load(f"{exported}/german_A.csv:label=outcome")
    np.testing.assert_array_equal(found.train.x, plain.train.x)
    (said,) = found.doubts
    for part in (
        "german_A.csv",
        "semicolons",
        "decimal commas in crp, cost",
        "points between thousands in cost",
    ):
        assert part in said
    assert plain.doubts == ()


def test_german_exports_of_several_clients(exported: Path):
    plain = fs.load(f"{exported}/plain_*.csv:label=outcome")
    found = fs.load(f"{exported}/german_*.csv:label=outcome,separator=semicolon")
    np.testing.assert_array_equal(found.train.x, plain.train.x)
    assert found.shape == (3,)


def test_new_rows_are_read_likewise(exported: Path):
    fed = fs.split(fs.load(f"{exported}/plain_A.csv:label=outcome"), "iid", 2)
    run = fs.train(fed, "logreg", rounds=1, folder=False)
    plain, german = (read_table(exported / f"{name}_B.csv") for name in ("plain", "german"))
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
    "column", ["1,234.5 2,345.0", "1_234 2_345,5", "1'234 2'345.5", "1.234.567 2.345.678"]
)
def test_thousands(tmp_path: Path, column: str):
    data = fs.load(written(tmp_path, column) + ",standardize=false")
    plain = column.replace("_", "").replace("'", "").replace("2345,5", "2345.5")
    plain = plain.replace("1,2", "12").replace("2,3", "23")
    if column.count(".") == 4:
        plain = plain.replace(".", "")
    assert {*data.train.x[:, 0].tolist(), *data.test.x[:, 0].tolist()} == {
        np.float32(text).item() for text in plain.split()
    }
    assert "between thousands in c0" in " ".join(data.doubts)


def test_what_may_divide_thousands_is_refused(tmp_path: Path):
    """Check 1,234 alone: values stay where they are, and either option settles it."""
    spec = written(tmp_path, "1,234 5,678")
    with pytest.raises(
        FedskewError, match=r"my\.csv: column 'c0'.*thousands=comma or decimal=comma"
    ) as refused:
        fs.load(spec)
    assert "1,234" not in str(refused.value)
    assert fs.load(spec + ",categorical=c0").shape == (2,)
    large, small = (
        fs.load(f"{spec},standardize=false,{option}")
        for option in ("thousands=comma", "decimal=comma")
    )
    np.testing.assert_allclose(large.train.x, 1000 * small.train.x)


def test_a_point_beside_decimal_commas_is_refused(tmp_path: Path):
    """Check 1.000 in a file with decimal commas: it is a thousand, and was read as one."""
    spec = written(tmp_path, "5,2 1,5", "1.000 2.000")
    with pytest.raises(FedskewError, match=r"column 'c1' has points.*thousands=point"):
        fs.load(spec)
    assert fs.load(spec + ",drop=c1").shape == (1,)
    whole = fs.load(spec + ",thousands=point,standardize=false")
    assert set(whole.train.x[:, 1].tolist()) == {1000.0, 2000.0}


def test_two_ways_of_writing_in_one_file_are_refused(tmp_path: Path):
    with pytest.raises(FedskewError, match=r"columns 'c0' and 'c1'.*drop=c1"):
        fs.load(written(tmp_path, "5,2 1,5", "5.25 1.5"))
    with pytest.raises(FedskewError, match=r"column 'c0' has numbers of two ways of writing"):
        fs.load(written(tmp_path, "5,2 1.5"))


@pytest.mark.parametrize("column", ["a,b c,d", "10,20,30 40,50", "icu surgery", "1,5 a b c d"])
def test_other_texts_are_categories(tmp_path: Path, column: str):
    assert fs.load(written(tmp_path, column)).shape == (len(column.split()),)
