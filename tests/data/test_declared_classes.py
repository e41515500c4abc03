"""Classes that may have no row, and rows that have no class."""

import numpy as np
import pytest

import fedskew as fs
from fedskew.core.errors import FedskewError


def rows(count: int = 60, classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(count, 3)).astype(np.float32)
    return x, np.arange(count) % classes


@pytest.mark.parametrize(
    "skew",
    ["iid", "dirichlet:alpha=0.3", "shards:per_client=2", "classes:k=2", "quantity"],
)
def test_absent_classes_have_an_output_and_no_row(skew: str):
    x, y = rows()
    y = 2 * y  # 0, 2, 4 and 6: of 9 declared ones, five are absent
    fed = fs.split((x, y), skew, clients=4, classes=9)
    assert fed.data.classes == tuple(map(str, range(9)))
    assert set(fed.train.y.tolist()) == {0, 2, 4, 6}
    run = fs.train(fed, "logreg", "fedavg", rounds=2, folder=False, device="cpu")
    assert run.weights["head.weight"].shape == (9, 3)
    assert list(run.predict(x[:2], proba=True).columns[1:]) == [
        f"probability {name}" for name in map(str, range(9))
    ] or run.predict(x[:2], proba=True).shape == (2, 10)
    assert set(run.predict(x)["prediction"]) <= set(map(str, range(9)))


def test_names_in_the_order_they_are_declared():
    x, _ = rows(40)
    fed = fs.split((x, ["dog", "cat"] * 20), "iid", 2, classes=["emu", "dog", "cat"])
    assert fed.data.classes == ("emu", "dog", "cat")
    labels = np.concatenate([fed.train.y, fed.test.y])
    assert np.bincount(labels).tolist() == [0, 20, 20]


def test_npz_files_have_the_option(tmp_path):
    x, y = rows()
    np.savez(tmp_path / "words.npz", x=x, y=y)
    assert fs.load(str(tmp_path / "words.npz:classes=7")).classes == tuple(map(str, range(7)))


@pytest.mark.parametrize(
    ("y", "classes", "message"),
    [
        ([0, 1, 5, 1], 4, "class in y of arrays '5'"),
        ([0, 1, 0, 1], 1, "classes=1: at least 2 are needed"),
        ([0, 1, 0, 1], 10**9, "classes=1000000000: at most 1,000,000"),
        ([0, 1, 0, 1], 2.5, "classes=2.5 is neither a whole number nor a list of names"),
        ([0, 1, 0, 1], ["0"], "classes=0: give two or more names"),
        ([0, 1, 0, 1], ["0", "1", "1"], "give two or more names, each once"),
        ([0, 1, -1, 1], 4, r"1 rows \(first: row 2\) have the label -1"),
        ([0, 1, -1, 1], None, r"1 rows \(first: row 2\) have the label -1"),
        ([0.0, -1.0, -1.0, 1.0], None, r"2 rows \(first: row 1\) have the label -1"),
    ],
)
def test_refusals(y, classes, message: str):
    x, _ = rows(4)
    with pytest.raises(FedskewError, match=message):
        fs.split((x, np.array(y)), "iid", 2, classes=classes)


def test_minus_one_and_one_are_two_classes():
    x, y = rows(20, 2)
    assert fs.split((x, 2 * y - 1), "iid", 2).data.classes == ("-1", "1")
    named = fs.split((x, y - 1), "iid", 2, classes=["-1", "0"])
    assert named.data.classes == ("-1", "0")


def test_loaded_data_and_numbers_have_their_own():
    with pytest.raises(FedskewError, match="classes: digits was loaded"):
        fs.split(fs.load("digits"), "iid", 2, classes=12)
    x, _ = rows(20)
    with pytest.raises(FedskewError, match="classes= is for targets that are classes"):
        fs.split((x, np.arange(20) / 7), "iid", 2, task="regression", classes=3)
