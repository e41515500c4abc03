"""The tables that scikit-learn ships, read without importing it: the very numbers that its loaders return."""

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, load_digits

from fedskew.core.errors import FedskewError
from fedskew.data.dataset import datasets
from fedskew.data.sources import bundled_table as source


def test_digits_have_the_bits_of_scikit_learn():
    rows = datasets.get("digits")().train
    images, labels = load_digits(return_X_y=True)
    assert rows.x.dtype == images.dtype == np.float64
    assert rows.x.tobytes() == np.ascontiguousarray(images).tobytes()
    assert rows.x.shape == (1797, 1, 8, 8)
    assert rows.y.tobytes() == labels.astype(np.int64).tobytes()


def test_diabetes_has_the_bits_of_scikit_learn():
    read = datasets.get("diabetes")()
    known = load_diabetes(scaled=False)
    assert read.train.x.dtype == known.data.dtype == np.float64
    assert read.train.x.tobytes() == known.data.tobytes()
    assert read.train.y.tobytes() == known.target.astype(np.float32).tobytes()
    assert read.features == tuple(known.feature_names)


def test_an_installation_without_the_table_is_told(monkeypatch):
    with pytest.raises(FedskewError, match=r"other\.csv\.gz is not there"):
        source.bundled_table("other.csv.gz")
    monkeypatch.setattr(source, "find_spec", lambda name: None)
    with pytest.raises(FedskewError, match="pip install scikit-learn"):
        source.bundled_table("digits.csv.gz")
