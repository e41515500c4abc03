"""Targets that are numbers or several labels per row: how they are read, checked, binned and split."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedskew as fs
from fedskew.core.errors import FedskewError
from fedskew.data.convert import from_arrays
from fedskew.data.dataset import Dataset, Rows
from fedskew.data.targets import bins_of

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(60, 3)).astype(np.float32)
PRICE = X @ [1.0, 2.0, 3.0] + 100.5
FLAGS = (X[:, :2] > 0).astype(int)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(
        price=PRICE, red=FLAGS[:, 0], tall=FLAGS[:, 1] == 1
    )
    frame["site"] = np.arange(60) % 3
    frame.to_csv(tmp_path / "t.csv", index=False)
    return tmp_path / "t.csv"


# -- bins --------------------------------------------------------------------------------------------------------------


def test_bins_of_numbers_hold_equally_many_rows_in_order():
    y = DRAW.normal(size=1000)
    bins = bins_of(y, 4)
    assert np.bincount(bins.of).tolist() == [250] * 4
    for low in range(3):
        assert y[bins.of == low].max() < y[bins.of == low + 1].min()
    ends = [float(bins.names[0].split(" … ")[0]), float(bins.names[-1].split(" … ")[1])]
    np.testing.assert_allclose(ends, [y.min(), y.max()], rtol=1e-3)


def test_equal_numbers_are_never_put_apart_and_empty_bins_are_left_out():
    y = np.array([0.0] * 70 + [1.0] * 10 + [2.0] * 20)
    bins = bins_of(y, 10)
    assert [set(bins.of[y == value].tolist()) for value in (0, 1, 2)] == [{0}, {1}, {2}]
    assert bins.names == ("0", "1", "2")


def test_bins_of_labels_are_the_most_frequent_combinations():
    y = np.array([[1, 0]] * 5 + [[0, 0]] * 4 + [[0, 1]] * 2 + [[1, 1]])
    assert bins_of(y, 3, ("red", "tall")).names == ("red", "none", "other")
    assert np.bincount(bins_of(y, 3).of).tolist() == [5, 4, 3]
    assert bins_of(y, 4, ("red", "tall")).names == ("red", "none", "tall", "red+tall")


def test_bins_are_for_targets_without_classes():
    with pytest.raises(
        FedskewError, match=r"bins=4: the targets of digits are classes.* leave it out"
    ):
        fs.load("digits").with_bins(4)
    with pytest.raises(FedskewError, match="split: bins=1 is out of range"):
        fs.split((X, PRICE), "iid", task="regression", bins=1)


# -- readers -----------------------------------------------------------------------------------------------------------


def test_a_column_of_numbers(table: Path):
    data = fs.load(f"{table}:label=price,target=number,drop=red+tall,group=site")
    assert (data.target, data.classes, data.features) == ("number", (), ("a", "b", "c"))
    assert data.train.y.dtype == np.float32
    # As written
    assert np.sort(np.concatenate([data.train.y, data.test.y])) == pytest.approx(
        np.sort(PRICE), rel=1e-6
    )
    assert any("10 bins of the target" in note for note in data.notes)


def test_several_columns_of_labels(table: Path):
    data = fs.load(f"{table}:label=red+tall,target=labels,drop=price,test=0.25")
    assert (data.target, data.classes, data.features) == (
        "labels",
        ("red", "tall"),
        ("a", "b", "c", "site"),
    )
    assert data.train.y.dtype == np.uint8
    assert data.train.y.sum(0) + data.test.y.sum(0) == pytest.approx(FLAGS.sum(0))


def test_numbers_are_never_guessed(table: Path):
    with pytest.raises(FedskewError, match=r"labels must be whole numbers or text.*target=number"):
        fs.load(f"{table}:label=price")
    with pytest.raises(FedskewError, match="labels must be whole numbers"):
        fs.split((X, PRICE), "iid")


def test_a_matrix_is_never_guessed():
    with pytest.raises(FedskewError, match=r"labels of shape \(60, 2\)"):
        fs.split((X, FLAGS), "iid")


@pytest.mark.parametrize("target", ["number", "labels"])
def test_arrays_in_a_file(tmp_path: Path, target: str):
    y = PRICE if target == "number" else FLAGS
    np.savez(tmp_path / "d.npz", x=X, y=y, x_test=X[:7], y_test=y[:7])
    data = fs.load(f"{tmp_path / 'd.npz'}:target={target}")
    assert data.target == target
    np.testing.assert_allclose(data.train.y, y, rtol=1e-6)
    np.testing.assert_allclose(data.test.y, y[:7], rtol=1e-6)
    assert data.classes == (() if target == "number" else ("0", "1"))


def test_arrays_and_frames_in_memory():
    fed = fs.split((X, PRICE), "iid", 3, task="regression")
    assert (fed.data.target, fed.clients) == ("number", 3)
    fed = fs.split((X, FLAGS), "iid", 3, task="multilabel")
    assert (fed.data.target, fed.data.classes) == ("labels", ("0", "1"))
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(red=FLAGS[:, 0], tall=FLAGS[:, 1])
    fed = fs.split(frame, "iid", 3, label="red+tall", task="multilabel")
    assert (fed.data.classes, fed.data.features) == (("red", "tall"), ("a", "b", "c"))
    own = fs.Task(
        lambda out, y: (out - y).abs(), {"mae": lambda out, y: abs(out - y).mean()}, "number"
    )
    assert fs.split((X, PRICE), "iid", 3, task=own).data.target == "number"
    assert fs.split((X, FLAGS[:, 0]), "iid", 3, task="binary").data.target == "class"


def test_whole_numbers_are_numbers_when_asked_for():
    fed = fs.split((X, np.arange(60)), "iid", 3, task="regression")
    assert (fed.data.target, fed.train.y.dtype) == ("number", np.float32)


def test_a_loaded_data_set_knows_its_targets():
    assert fs.split(fs.load("diabetes"), "iid", 3, task="regression").data.target == "number"
    with pytest.raises(
        FedskewError, match="takes targets of kind number, and those of digits are of kind class"
    ):
        fs.split(fs.load("digits"), "iid", 3, task="regression")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("label=price,target=number,window=4", "window=4 takes the commonest class.*target=number"),
        ("label=price+red,target=labels", "column 'price' holds .*target=labels takes 0 and 1"),
        ("label=red+tal,target=labels", "did you mean 'tall'"),
        ("label=word,target=number", "holds 'one', and target=number takes numbers"),
        ("label=gap,target=number", "column 'gap' is missing in 1 rows"),
        ("label=huge,target=number", "not a number that float32 can hold"),
        ("label=price,target=numbr", "target=numbr is not one of class, number, labels"),
    ],
)
def test_bad_tables_are_refused(table: Path, spec: str, message: str):
    frame = pd.read_csv(table)
    frame["word"], frame["gap"], frame["huge"] = "one", frame["price"], 1e300
    frame.loc[5, "gap"] = np.nan
    frame.to_csv(table, index=False)
    drop = "+".join({"word", "gap", "huge"} - {spec.split(",")[0].split("=")[1]})
    with pytest.raises(FedskewError, match=message):
        fs.load(f"{table}:{spec},drop={drop}")


@pytest.mark.parametrize(
    ("data", "target", "message"),
    [
        ((X, FLAGS * 2), "labels", "column '0' holds '2', and target=labels takes 0 and 1"),
        ((X, FLAGS[:, 0]), "labels", r"labels of shape \(60,\).*expected a row of 0 and 1"),
        ((X, FLAGS), "number", r"labels of shape \(60, 2\).*expected one number"),
        ((X, FLAGS[:9]), "labels", "60 rows of features but 9 labels"),
        ((X, np.where(PRICE > 100, np.inf, PRICE)), "number", "not a number that float32 can hold"),
    ],
)
def test_bad_arrays_are_refused(data, target, message: str):
    with pytest.raises(FedskewError, match=message):
        from_arrays(data, target=target)


@pytest.mark.parametrize(
    ("y", "classes", "message"),
    [
        (np.zeros(4), (), "expected one float32 number"),
        (np.zeros(4, np.float32), ("a",), "1 classes are named"),
        (np.zeros((4, 2), np.int32), ("a", "b"), "expected a uint8 matrix"),
        (np.zeros((4, 2)), ("a", "b"), "expected 2 float32 numbers per row"),
        (np.zeros((4, 2), np.float32), ("a",), "expected 1 float32 numbers per row"),
        (np.full((4, 2), np.inf, np.float32), ("a", "b"), "the target of row 0 is inf"),
        (np.array([[0, -100]] * 4), ("a", "b"), r"the token -100, .* np.where\(y == -100, -1, y\)"),
        (np.full((4, 2), 2), ("a", "b"), "row 0 has the token 2, expected 0 … 1, or -1"),
        (np.array([[0, 1], [0, -1], [-1, -1], [0, 1]]), ("a", "b"), "row 2 has no token"),
        (np.full((4, 2), 2, np.uint8), ("a", "b"), "expected a uint8 matrix"),
        (np.zeros((4, 2), np.uint8), ("a",), "with 1 columns"),
    ],
)
def test_a_data_set_checks_its_targets(y, classes, message: str):
    rows = Rows(X[:4], y)
    with pytest.raises(FedskewError, match=message):
        Dataset("d", rows, rows, classes)


def test_parts_have_targets_of_one_kind():
    with pytest.raises(FedskewError, match="targets of kind number in test, labels in train"):
        Dataset("d", Rows(X, np.zeros((60, 0), np.uint8)), Rows(X, PRICE.astype(np.float32)), ())


# -- splits ------------------------------------------------------------------------------------------------------------


def test_a_share_of_every_tenth_is_held_out():
    y = np.sort(DRAW.normal(size=500)).astype(np.float32)
    data = from_arrays((np.zeros((500, 1)), y), target="number", test_share=0.2, validation=0.25)
    place = np.searchsorted(y, data.test.y) // 50
    assert np.bincount(place, minlength=10).tolist() == [10] * 10
    assert (len(data.train), len(data.validation), len(data.test)) == (300, 100, 100)


def test_a_share_of_every_combination_is_held_out():
    data = from_arrays(
        (np.zeros((100, 1)), np.repeat([[0, 0], [0, 1], [1, 0], [1, 1]], 25, axis=0)),
        target="labels",
    )
    assert np.unique(data.test.y, axis=0, return_counts=True)[1].tolist() == [5] * 4


def test_clients_hold_out_low_and_high_numbers():
    y = np.repeat([1.0, 100.0], 50)
    fed = fs.split((np.zeros((100, 1)), y), "iid", 4, task="regression", client_test=0.5)
    for client in range(4):
        held, kept = (fed.train.y[part.of(client)] for part in (fed.held_out, fed.partition))
        assert abs(int((held == 1).sum()) - int((kept == 1).sum())) <= 1


def test_rows_keep_their_bins_when_some_are_taken():
    data = fs.load("diabetes").with_bins(5)
    some = np.array([7, 3, 100])
    assert data.train.take(some).labels.tolist() == data.train.labels[some].tolist()
    assert data.with_bins(None).train.bins is None


def test_diabetes_is_scikit_learns():
    from sklearn.datasets import load_diabetes

    data, known = fs.load("diabetes:standardize=false"), load_diabetes(scaled=False)
    assert data.features == tuple(known.feature_names)
    ours = np.concatenate([np.column_stack([part.x, part.y]) for part in (data.train, data.test)])
    theirs = np.column_stack([known.data, known.target]).astype(np.float32)
    assert ours[np.lexsort(ours.T)].tolist() == theirs[np.lexsort(theirs.T)].tolist()
    np.testing.assert_allclose(fs.load("diabetes").train.x.mean(0), 0, atol=1e-5)
