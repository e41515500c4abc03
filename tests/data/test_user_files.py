"""The user's own tables and arrays: encoding, missing values, splits, and every kind of faulty file."""

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedskew.core.errors import FedskewError
from fedskew.data import load


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_every_cell_of_a_small_table(tmp_path: Path) -> None:
    train = write(
        tmp_path / "a.csv",
        "id,color,size,ok,flat,y\n1,red,1,True,5,no\n2,,3,False,5,yes\n3,blue,,True,5,no\n4,red,8,True,5,yes\n",
    )
    test = write(
        tmp_path / "b.csv", "id,color,size,ok,flat,y\n5,green,5,False,9,maybe\n6,,,True,5,no\n"
    )
    spec = {"name": "csv", "path": train, "test_path": test, "label": "y", "drop": "id"}
    data = load({**spec, "keep": "flat"})
    assert data.classes == ("maybe", "no", "yes")
    assert data.train.y.tolist() == [1, 2, 1, 2]
    assert data.test.y.tolist() == [0, 1]
    assert data.features == (
        "color=blue",
        "color=missing",
        "color=red",
        "size",
        "ok=False",
        "ok=True",
        "flat",
    )
    size = np.array([1, 3, 3, 8])  # the training median 3 fills the gap
    mean, deviation = size.mean(), size.std()
    expected = [
        [0, 0, 1, (1 - mean) / deviation, 0, 1, 0],
        [0, 1, 0, (3 - mean) / deviation, 1, 0, 0],
        [1, 0, 0, (3 - mean) / deviation, 0, 1, 0],
        [0, 0, 1, (8 - mean) / deviation, 0, 1, 0],
    ]
    np.testing.assert_allclose(data.train.x, expected, atol=1e-6)
    # Green was never seen in training: no category at all. A constant column is only shifted.
    np.testing.assert_allclose(
        data.test.x,
        [[0, 0, 0, (5 - mean) / deviation, 1, 0, 4], [0, 1, 0, (3 - mean) / deviation, 0, 1, 0]],
        atol=1e-6,
    )
    assert data.notes == (
        "2 numeric columns standardised with the mean and deviation of the training rows",
        "4 missing or infinite values in color (2), size (2): numbers filled with the training median, text with "
        "'missing'",
    )
    plain = load(
        {
            "name": "csv",
            "path": train,
            "test_path": test,
            "label": "y",
            "drop": "id",
            "keep": "flat",
            "standardize": False,
        }
    )
    assert plain.train.x[:, 3].tolist() == [1, 3, 3, 8]
    assert plain.test.x[:, 6].tolist() == [9, 5]


def table(rows: int = 60) -> pd.DataFrame:
    n = np.arange(rows)
    return pd.DataFrame({"a": n * 0.5, "who": np.where(n % 2, "ann", "bob"), "y": n % 3 + 4})


def test_own_split_is_stratified_and_repeatable(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    table().to_csv(path, index=False)
    data = load(f"{path}:label=y,group=who,test=0.25,split_seed=7")
    assert data.name == f"csv:path={path},label=y,group=who,test=0.25,split_seed=7"
    assert data.classes == ("4", "5", "6")
    assert data.groups == ("ann", "bob")
    assert data.features == ("a",)
    assert data.test.group is not None
    assert (len(data.train), len(data.test)) == (45, 15)
    # Ten rows of each class and group: 2 or 3 of each are held out, 5 of each class.
    assert np.bincount(data.test.y).tolist() == [5, 5, 5]
    assert set(np.bincount(data.test.y * 2 + data.test.group).tolist()) == {2, 3}
    assert abs(data.train.x.mean()) < 1e-6
    again = load(data.name)
    np.testing.assert_array_equal(again.test.x, data.test.x)
    other = load(f"{path}:label=y,group=who,test=0.25,split_seed=8")
    assert not np.array_equal(other.test.x, data.test.x)


def test_validation_rows_are_held_out_before_anything_is_fitted(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    table().to_csv(path, index=False)
    raw = load(f"{path}:label=y,group=who,standardize=false", validation=0.5, seed=1)
    data = load(f"{path}:label=y,group=who", validation=0.5, seed=1)
    assert data.validation is not None
    assert raw.validation is not None
    assert (len(data.train), len(data.validation), len(data.test)) == (24, 24, 12)
    mean, deviation = raw.train.x.mean(), raw.train.x.std()
    np.testing.assert_allclose(data.validation.x, (raw.validation.x - mean) / deviation, atol=1e-5)
    cells = np.concatenate([raw.train.x, raw.validation.x, raw.test.x])[:, 0]
    assert sorted(cells) == table()["a"].tolist()


def test_rare_categories_are_pooled(tmp_path: Path) -> None:
    kinds = ["a"] * 6 + ["b"] * 5 + ["c"] * 4 + ["d"] * 2 + ["e"] * 1 + ["a"] * 2
    frame = pd.DataFrame({"kind": kinds, "n": range(20), "y": [0, 1] * 10})
    frame.iloc[:18].to_csv(tmp_path / "train.csv", index=False)
    pd.DataFrame({"kind": ["b", "e", "new"], "n": 1, "y": 0}).to_csv(
        tmp_path / "test.csv", index=False
    )
    spec = f"{tmp_path}/train.csv:label=y,test_path={tmp_path}/test.csv,max_categories=3,standardize=false"
    data = load(spec)
    assert data.features == ("kind=a", "kind=b", "kind=other", "n")
    assert data.train.x[:, :3].sum(axis=0).tolist() == [6, 5, 7]
    assert data.test.x[:, :3].tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 1]]
    assert "column 'kind': the 3 rarest categories pooled as 'other'" in data.notes


def test_numbers_as_categories_on_demand(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "code,y\n" + "".join(f"{n % 3},{n % 2}\n" for n in range(30)))
    data = load(f"{path}:label=y,categorical=code")
    assert data.features == ("code=0", "code=1", "code=2")
    assert data.train.x.sum() == len(data.train)
    mixed = write(
        tmp_path / "m.csv",
        "code,y\n" + "".join(f"{'x' if n == 5 else n % 3},{n % 2}\n" for n in range(30)),
    )
    with pytest.raises(
        FedskewError,
        match=r"column 'code' holds 'x' among numbers; correct it, or say categorical=code or drop=code",
    ):
        load(f"{mixed}:label=y,split_seed=1")
    assert "code=x" in load(f"{mixed}:label=y,split_seed=1,categorical=code").features


def test_infinite_numbers_count_as_missing(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.csv",
        "a,y\n" + "".join(f"{'inf' if n == 3 else n},{n % 2}\n" for n in range(20)),
    )
    data = load(f"{path}:label=y")
    assert np.isfinite(data.train.x).all()
    assert any(note.startswith("1 missing or infinite values in a (1)") for note in data.notes)


def test_gzip_separator_and_byte_order_mark(tmp_path: Path) -> None:
    text = "\ufeffa;y\n" + "".join(f"{n};{n % 2}\n" for n in range(10))
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(text.encode()))
    data = load(f"{tmp_path}/t.csv.gz:label=y,separator=semicolon")
    assert data.features == ("a",)
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(text.encode())[:-9])
    with pytest.raises(FedskewError, match="is cut off or damaged"):
        load(f"{tmp_path}/t.csv.gz:label=y,separator=semicolon")


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", "label=y", "is empty"),
        ("a,y\n", "label=y", "has no rows"),
        ("a,y\n1,0\n2,1\n", "label=z", r"unknown column of csv:.* 'z': Known: a, y"),
        ("a,label\n1,0\n2,1\n", "label=lable", "did you mean 'label'"),
        ("a,y\n1,0\n2,1\n", "label=y,group=b", "unknown column of .* 'b'"),
        ("a,y\n1,0\n2,1\n", "label=y,drop=b", "unknown column of .* 'b'"),
        ("a,y\n1,0\n2,1\n", "label=y,drop=a", "no feature column is left"),
        ("a,y\n1,0\n2,\n3,1\n4,\n", "label=y", r"column 'y' is missing in 2 rows \(first: row 1\)"),
        ("a,g,y\n1,,0\n2,q,1\n", "label=y,group=g", "column 'g' is missing in 1 rows"),
        (
            "a,b,y\n1,,0\n2,,1\n3,,0\n4,,1\n",
            "label=y,test=0.5,keep=b",
            "column 'b' has no value in any training row; drop=b",
        ),
        (
            "b,y\n,0\n,1\n,0\n,1\n",
            "label=y,test=0.5",
            r"no feature column is left: b \(no value\).*keep=b",
        ),
        ("a,y\n1,0\n2,0\n", "label=y", r"column 'y' holds one class only \(0\)"),
        (
            "a,y\n1,0.5\n2,1\n",
            "label=y",
            r"column 'y' holds '0\.5', labels must be whole numbers or text",
        ),
        (
            "a,b,y\n1,2,0\n2,3",
            "label=y",
            "the last line has 2 of 3 columns, so the file is cut off",
        ),
        ("a,y\n1,0\n2,1,7\n3,0\n", "label=y", "is not a regular table"),
        ("a,y\n1,0,5\n2,1,7\n", "label=y", "is not a regular table"),
        (
            "a,y\n1,0\n2,1\n",
            "label=y,test=0.1",
            r"test share of 0\.1 of 2 rows leaves one part empty: choose",
        ),
        ("a,y\n1,0\n2,1\n", "label=y,test=1", r"test=1 is out of range, it must be > 0 and < 1"),
        ("a,y\n1,0\n2,1\n", "label=y,window=-1", "out of range"),
        ("a,y\n1,0\n2,1\n", "", "needs label=: column with the class"),
        ("a,y\n1,0\n2,1\n", "label=y,lable=z", "did you mean 'label'"),
    ],
)
# A warning that only the test run turns into an error must not be what stops us
@pytest.mark.filterwarnings("ignore")
def test_what_is_wrong_with_a_table(tmp_path: Path, text: str, options: str, message: str) -> None:
    path = write(tmp_path / "t.csv", text)
    with pytest.raises(FedskewError, match=message) as error:
        load(f"{path}:{options}")
    assert "\n" not in str(error.value)


def test_other_bad_files(tmp_path: Path) -> None:
    with pytest.raises(FedskewError, match=r"no\.csv is not there"):
        load(f"{tmp_path}/no.csv:label=y")
    # Bytes that neither UTF-8 nor Latin-1 nor Windows-1252 has
    (tmp_path / "odd.csv").write_bytes(b"a,y\n\x81,1\nb,2\n")
    with pytest.raises(FedskewError, match=r"is not UTF-8 text, nor Latin-1 .* say encoding="):
        load(f"{tmp_path}/odd.csv:label=y")
    names = write(
        tmp_path / "names.csv", "name,y\n" + "".join(f"person{n},{n % 2}\n" for n in range(100))
    )
    with pytest.raises(
        FedskewError, match="column 'name' has 80 texts in 80 training rows; drop=name"
    ):
        load(f"{names}:label=y,keep=name")
    train = write(tmp_path / "train.csv", "a,b,y\n1,1,0\n2,2,1\n")
    test = write(tmp_path / "test.csv", "a,y\n1,0\n")
    with pytest.raises(FedskewError, match="the test table lacks column 'b'"):
        load(f"{train}:label=y,test_path={test}")
    test = write(tmp_path / "test.csv", "a,b,y\n1,x,0\n")
    with pytest.raises(
        FedskewError, match=r"column 'b' holds text \('x'\), and the training rows have numbers"
    ):
        load(f"{train}:label=y,test_path={test}")


def test_a_class_that_is_a_number_here_and_text_there(tmp_path: Path) -> None:
    train = write(tmp_path / "train.csv", "a,y\n1,0\n2,1\n")
    test = write(tmp_path / "test.csv", "a,y\n1,1\n2,unknown\n")
    data = load(f"{train}:label=y,test_path={test}")
    assert data.classes == ("0", "1", "unknown")
    assert data.test.y.tolist() == [1, 2]


def test_parquet_gives_what_csv_gives(tmp_path: Path) -> None:
    frame = table()
    frame["kind"] = pd.Categorical(np.where(frame["a"] > 9, "high", "low"))
    frame["gap"] = pd.array([None if n % 7 == 0 else n for n in range(len(frame))], dtype="Int64")
    frame.to_parquet(tmp_path / "t.parquet")
    frame.to_csv(tmp_path / "t.csv", index=False)
    one, two = (
        load(f"{tmp_path}/t.parquet:label=y,group=who,keep=gap"),
        load(f"{tmp_path}/t.csv:label=y,group=who,keep=gap"),
    )
    np.testing.assert_array_equal(one.train.x, two.train.x)
    assert one.features == two.features == ("a", "kind=high", "kind=low", "gap")
    assert one.notes == two.notes
    assert load(f"{tmp_path}/t.parquet:label=y,drop=who+kind,keep=gap").features == ("a", "gap")


def test_parquet_that_cannot_be_used(tmp_path: Path) -> None:
    frame = table().assign(when=pd.Timestamp("2026-01-01"))
    frame.to_parquet(tmp_path / "t.parquet")
    with pytest.raises(
        FedskewError,
        match=r"column 'when' holds dates or times; leave it out with drop=when, or say dates=days",
    ):
        load(f"{tmp_path}/t.parquet:label=y,keep=when")
    assert "when" not in load(f"{tmp_path}/t.parquet:label=y").features
    with pytest.raises(FedskewError, match="did you mean 'when'"):
        load(f"{tmp_path}/t.parquet:label=y,drop=wen")
    whole = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "t.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FedskewError, match="is not a Parquet file or damaged"):
        load(f"{tmp_path}/t.parquet:label=y")


def test_npz_with_names_groups_and_images(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(3, 2, (20, 3, 4, 4))
    np.savez(
        tmp_path / "t.npz", x=x, y=np.array(["cat", "dog"] * 10), group=np.arange(20) // 10 + 5
    )
    data = load(f"{tmp_path}/t.npz:test=0.2")
    assert data.classes == ("cat", "dog")
    assert data.groups == ("5", "6")
    assert data.shape == (3, 4, 4)
    np.testing.assert_allclose(data.train.x.mean(axis=(0, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(data.train.x.std(axis=(0, 2, 3)), 1, atol=1e-5)


def test_npz_keeps_a_published_split(tmp_path: Path) -> None:
    x, y = np.arange(12.0).reshape(6, 2), np.array([0, 1, 0, 1, 0, 1])
    np.savez(tmp_path / "both.npz", x=x, y=y, x_test=x[:2] + 100, y_test=y[:2])
    np.savez(tmp_path / "test.npz", x=x[:2] + 100, y=y[:2])
    one = load(f"{tmp_path}/both.npz:standardize=false")
    np.savez(tmp_path / "train.npz", x=x, y=y)
    two = load(f"{tmp_path}/train.npz:standardize=false,test_path={tmp_path}/test.npz")
    for data in (one, two):
        assert data.train.x.tolist() == x.tolist()
        assert data.test.x.tolist() == (x[:2] + 100).tolist()


def test_npz_that_cannot_be_used(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    np.savez(path, x=np.ones((4, 2)))
    with pytest.raises(FedskewError, match=r"has no array 'y', it holds x"):
        load(str(path))
    np.savez(path, x=np.array([{}, {}], dtype=object), y=np.arange(2))
    with pytest.raises(FedskewError, match=r"Python objects .* never unpickled"):
        load(str(path))
    np.savez(path, x=np.full((4, 2), np.nan), y=np.array([0, 1, 0, 1]))
    with pytest.raises(FedskewError, match="row 0 holds NaN or infinity"):
        load(f"{path}:test=0.5")
    np.savez(path, x=np.random.default_rng(0).normal(size=(400, 20)), y=np.arange(400) % 2)
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(FedskewError, match=r"is not a readable \.npz archive: damaged"):
        load(str(path))
    path.write_bytes(b"")
    with pytest.raises(FedskewError):
        load(str(path))
    with path.open("wb") as file:
        np.save(file, np.ones(3))
    with pytest.raises(FedskewError, match="single array"):
        load(str(path))
