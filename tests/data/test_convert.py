"""Data sets from arrays, tensors and frames in memory."""

import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import fedskew as fs
from fedskew.core.errors import FedskewError
from fedskew.data import from_arrays

X = np.arange(40.0).reshape(20, 2)
Y = np.arange(20) % 2


def test_values_are_taken_as_they_are() -> None:
    data = from_arrays((X, Y + 7), test=(X[:2] + 100, [8, 7]))
    assert data.train.x.tolist() == X.tolist()
    assert data.train.x.dtype == np.float32
    assert data.classes == ("7", "8")
    assert data.test.y.tolist() == [1, 0]
    assert data.notes == ()


@pytest.mark.parametrize(
    "rows",
    [
        (torch.tensor(X, requires_grad=True), torch.tensor(Y)),
        (X.tolist(), Y.tolist()),
        (X, Y[:, None]),
        (X, Y.astype(float)),
        (X.astype(int), Y.astype(bool)),
        (pd.DataFrame(X), pd.Series(Y)),
        [torch.tensor(X).float(), np.where(Y, "yes", "no")],
    ],
)
def test_all_kinds_of_arrays_are_the_same_data(rows) -> None:
    expected, data = from_arrays((X, Y)), from_arrays(rows)
    np.testing.assert_array_equal(data.train.x, expected.train.x)
    np.testing.assert_array_equal(data.test.y, expected.test.y)


def test_groups_and_validation_and_scaling() -> None:
    data = from_arrays(
        (X, Y, np.where(np.arange(20) < 10, "a", "b")),
        test_share=0.2,
        validation=0.25,
        standardize=True,
    )
    assert data.groups == ("a", "b")
    assert data.validation is not None
    assert (len(data.train), len(data.validation), len(data.test)) == (12, 4, 4)
    np.testing.assert_allclose(data.train.x.mean(axis=0), 0, atol=1e-6)
    assert abs(data.validation.x.mean()) > 1e-6


def test_large_offsets_keep_their_precision() -> None:
    x = 1e9 + np.arange(20.0)[:, None]  # single precision would round these to multiples of 64
    data = from_arrays((x, Y), test=(x, Y), standardize=True)
    np.testing.assert_allclose(
        data.test.x[:, 0], (np.arange(20) - 9.5) / np.arange(20).std(), atol=1e-5
    )


def test_data_frame_with_named_columns() -> None:
    frame = pd.DataFrame({"a": X[:, 0], "y": Y, "b": X[:, 1], "who": ["p", "q"] * 10})
    data = from_arrays(frame, label="y", group="who", test=frame.iloc[:3])
    assert data.features == ("a", "b")
    assert data.groups == ("p", "q")
    assert data.train.x.tolist() == X.tolist()


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ((X, Y[:-1]), {}, "20 rows of features but 19 labels"),
        ((X, Y, Y[:3]), {}, "20 rows of features but 3 groups"),
        (
            (np.where(X == 6, np.nan, X), Y),
            {"test": (X, Y)},
            "train: row 3 holds NaN or infinity; fill or drop it",
        ),
        ((X, Y), {"test": (np.where(X == 6, np.inf, X), Y)}, "test: row 3 holds NaN or infinity"),
        ((X.astype(str), Y), {}, "x holds <U.* values, not numbers"),
        ((pd.DataFrame({"a": X[:, 0], "t": "text"}), Y), {}, "column 't' is str, not numbers"),
        ((X, Y + 0.5), {}, r"y holds '0\.5', labels must be whole numbers or text"),
        ((X, np.where(Y, 1, np.nan)), {}, "y is missing in 10 rows"),
        ((X, np.where(Y, 1, np.inf)), {}, "y holds 'inf', labels must be whole numbers or text"),
        ((X, Y * 0), {}, r"y holds one class only \(0\)"),
        ((X[:0], Y[:0]), {}, r"x of shape \(0, 2\) is empty"),
        ((X[:, :0], Y), {}, r"x of shape \(20, 0\) is empty"),
        ((X[:, 0], Y), {}, r"x of shape \(20,\) has no features; use shape \(rows, 1\)"),
        ((X, X), {}, r"labels of shape \(20, 2\)"),
        (([[1, 2], [3]], [0, 1]), {}, "the rows of x have different lengths"),
        ((torch.tensor(X).bfloat16(), Y), {}, "x cannot be read"),
        (X, {}, r"expected \(x, y\), \(x, y, group\) or a data frame with label=, got ndarray"),
        ((X, Y), {"label": "y"}, "label= and group= name columns of a data frame"),
        (pd.DataFrame(X), {}, "a data frame needs label="),
        (pd.DataFrame({"label": Y, "a": Y}), {"label": "labl"}, "did you mean 'label'"),
        (
            (X, Y),
            {"test": (X[:, :1], Y)},
            r"test rows of shape \(1,\), training rows of shape \(2,\)",
        ),
        ((X, Y, Y), {"test": (X, Y)}, "only one of the training and the test part has groups"),
        ((X, Y), {"test_share": 2}, "a held-out share of 2 is out of range"),
    ],
)
def test_what_is_wrong(rows, options, message: str) -> None:
    with pytest.raises(FedskewError, match=message) as error:
        from_arrays(rows, **options)
    assert "\n" not in str(error.value)


def test_the_package_is_imported_without_heavy_libraries() -> None:
    heavy = ("torch", "pandas", "sklearn", "PIL", "pyarrow")
    code = f"import sys, fedskew.data; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class Endless:
    """A dataset of PyTorch's kind, which has a length and never raises IndexError."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
        if place > 1000:
            raise AssertionError("its rows are read without end")
        return torch.zeros(3), place % 2


@pytest.mark.parametrize(
    "data",
    [
        (Endless(), [0, 1, 0, 1]),
        (torch.zeros(4, 3), Endless()),
        ([Endless(), Endless()], [0, 1]),
    ],
    ids=["x", "y", "rows"],
)
def test_datasets_that_give_row_after_row_are_refused(data: Any):
    with pytest.raises(
        FedskewError, match="got Endless: give the data set itself, or one of every client"
    ):
        fs.split(data, "natural")
