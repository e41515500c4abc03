"""Pixels of every image set: standardised over the training rows, or scaled to [0, 1]."""

import inspect
import os
from pathlib import Path

import numpy as np
import pytest

import fedskew as fs
from fedskew.data.dataset import datasets

IMAGE_SETS = {
    "digits",
    "mnist",
    "fashion-mnist",
    "qmnist",
    "femnist",
    "cifar10",
    "cifar100",
    "pacs",
    "digits-dg",
}
IMAGE_SETS |= {"tiny-imagenet", "images"}


def test_every_image_set_has_the_option():
    offered = {
        name for name in datasets if "scale" in inspect.signature(datasets.get(name)).parameters
    }
    assert offered >= IMAGE_SETS
    assert all(datasets.options(name)["scale"].default == "standard" for name in IMAGE_SETS)


@pytest.mark.parametrize("name", ["digits", "mnist", "cifar10"])
def test_from_0_to_1_or_standardised(name: str):
    if (
        name != "digits"
        and not Path(
            os.environ.get("FEDSKEW_DATA", ""), {"cifar10": "cifar-10-batches-bin"}.get(name, name)
        ).is_dir()
    ):
        pytest.skip(f"needs the files of {name} in FEDSKEW_DATA")
    unit, usual = fs.load(f"{name}:scale=unit"), fs.load(name)
    for rows in (unit.train.x, unit.test.x):
        assert (rows.min(), rows.max()) == (0.0, 1.0)
    assert not any("standardised" in note for note in unit.notes)
    axes = (0, 2, 3)
    np.testing.assert_allclose(usual.train.x.mean(axes, dtype=np.float64), 0, atol=1e-5)
    np.testing.assert_allclose(usual.train.x.std(axes, dtype=np.float64), 1, atol=1e-5)
    mean, deviation = (
        unit.train.x.mean(axes, dtype=np.float64),
        unit.train.x.std(axes, dtype=np.float64),
    )
    again = (unit.test.x - mean[:, None, None]) / deviation[:, None, None]
    np.testing.assert_allclose(again, usual.test.x, atol=2e-5)
