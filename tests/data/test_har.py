"""uci-har and uci-har-inertial from hand-made files in the official layout."""

from pathlib import Path

import numpy as np
import pytest

from fedskew.core.errors import FedskewError
from fedskew.data import load

SIGNALS = [
    f"{sensor}_{axis}" for sensor in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"
]


def lines(rows: np.ndarray) -> str:
    return "".join(
        "  " + " ".join(f"{value: .7e}" for value in row) + "\r\n" for row in np.atleast_2d(rows)
    )


def write_har(root: Path, train: int = 12, test: int = 4) -> dict[str, np.ndarray]:
    top = root / "UCI HAR Dataset"
    names = ["a", "b", "b"]
    (top / "train" / "Inertial Signals").mkdir(parents=True)
    (top / "test" / "Inertial Signals").mkdir(parents=True)
    (top / "features.txt").write_text("".join(f"{n} {name}\n" for n, name in enumerate(names, 1)))
    rng = np.random.default_rng(0)
    values = {}
    for part, count, subjects in (("train", train, [3, 1]), ("test", test, [30, 2])):
        values[part] = rng.normal(size=(count, 3))
        values[f"{part} signals"] = rng.normal(size=(count, 9, 128))
        (top / part / f"X_{part}.txt").write_text(lines(values[part]))
        (top / part / f"y_{part}.txt").write_text("".join(f"{n % 6 + 1}\n" for n in range(count)))
        (top / part / f"subject_{part}.txt").write_text(
            "".join(f"{subjects[n // 6 % 2]}\n" for n in range(count))
        )
        for position, signal in enumerate(SIGNALS):
            path = top / part / "Inertial Signals" / f"{signal}_{part}.txt"
            path.write_text(lines(values[f"{part} signals"][:, position]))
    return values


def test_published_split_as_published(data_root: Path) -> None:
    values = write_har(data_root)
    data = load("uci-har")
    np.testing.assert_allclose(data.train.x, values["train"], atol=1e-6)
    np.testing.assert_allclose(data.test.x, values["test"], atol=1e-6)
    assert data.classes[data.train.y[5]] == "LAYING"
    assert data.train.group is not None
    assert data.test.group is not None
    assert [data.groups[number] for number in data.train.group[[0, 6]]] == ["3", "1"]
    assert data.groups[data.test.group[0]] == "30"
    assert data.features == ("a", "2 b", "3 b")
    scaled = load("uci-har:standardize=true")
    np.testing.assert_allclose(scaled.train.x.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(
        scaled.test.x,
        (values["test"] - values["train"].mean(0)) / values["train"].std(0),
        atol=1e-5,
    )


def test_training_rows_alone(data_root: Path) -> None:
    write_har(data_root)
    (data_root / "UCI HAR Dataset/test/X_test.txt").unlink()
    with pytest.raises(
        FedskewError,
        match=r"X_test\.txt is not there; run: fedskew data fetch uci-har, or use uci-har:part=train",
    ):
        load("uci-har")
    data = load("uci-har:part=train,test=0.5,split_seed=2")
    assert (len(data.train), len(data.test)) == (6, 6)
    assert data.groups == ("1", "3")
    assert data.train.group is not None
    assert data.test.group is not None
    assert set(data.train.group.tolist()).isdisjoint(data.test.group.tolist())
    assert any("whole groups" in note and "seed 2" in note for note in data.notes)
    mixed = load("uci-har:part=train,test=0.5,split_seed=2,split=random")
    assert sorted(mixed.train.y) == list(range(6))
    assert any("overlap" in note for note in mixed.notes)


def test_validation_windows_are_those_of_other_subjects(data_root: Path) -> None:
    write_har(data_root)
    data = load("uci-har", validation=0.25)
    assert data.validation is not None
    assert data.validation.group is not None
    assert data.train.group is not None
    assert set(data.train.group.tolist()).isdisjoint(data.validation.group.tolist())


def test_inertial_signals_from_text(data_root: Path) -> None:
    values = write_har(data_root)
    data = load("uci-har-inertial")
    assert data.shape == (9, 128)
    mean = values["train signals"].mean(axis=(0, 2))[:, None]
    deviation = values["train signals"].std(axis=(0, 2))[:, None]
    np.testing.assert_allclose(data.test.x, (values["test signals"] - mean) / deviation, atol=1e-5)


def test_inertial_signals_from_npz_are_the_same(data_root: Path) -> None:
    values = write_har(data_root)
    official = load("uci-har-inertial")
    x = np.concatenate([values["train signals"], values["test signals"]]).transpose(0, 2, 1)
    parts = (official.train, official.test)
    y, subject = (
        np.concatenate([getattr(part, kind) for part in parts]) + 1 for kind in ("y", "group")
    )
    np.savez(
        data_root / "uci-har-inertial.npz",
        x=x,
        y=y,
        subject=subject,
        split=np.repeat([0, 1], [12, 4]),
    )
    for part in ("train", "test"):
        for file in (data_root / "UCI HAR Dataset" / part / "Inertial Signals").iterdir():
            file.unlink()
    compact = load("uci-har-inertial")
    np.testing.assert_allclose(compact.train.x, official.train.x, atol=1e-5)
    np.testing.assert_array_equal(compact.test.y, official.test.y)
    np.savez(data_root / "uci-har-inertial.npz", x=x[:, :, :5], y=y, subject=subject, split=y)
    with pytest.raises(FedskewError, match=r"expected x \(rows, 128, 9\)"):
        load("uci-har-inertial")
    np.savez(data_root / "uci-har-inertial.npz", x=x, y=y[:-1], subject=subject, split=y)
    with pytest.raises(FedskewError, match="different lengths"):
        load("uci-har-inertial")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (
            "train/X_train.txt",
            "1 2 3\n4 5",
            "holds 5 numbers, expected 12 rows of 3: it is cut off",
        ),
        ("train/X_train.txt", "1 2 x\n", "holds something that is not a number"),
        ("train/X_train.txt", "", "is empty"),
        ("train/y_train.txt", "1\n7\n", "holds numbers other than 1 … 6"),
        ("train/y_train.txt", "1\n2\n", "2 activities in .* but 12 subjects"),
        ("train/subject_train.txt", "1.5\n2\n", "holds numbers other than 1 … 30"),
        ("features.txt", "1\n", "not a list of numbered feature names"),
    ],
)
def test_damaged_files(data_root: Path, file: str, content: str, message: str) -> None:
    write_har(data_root)
    (data_root / "UCI HAR Dataset" / file).write_text(content)
    with pytest.raises(FedskewError, match=message):
        load("uci-har")
