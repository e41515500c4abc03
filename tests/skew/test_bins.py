"""Skews, treatments and measures for targets that are not classes: bins are used instead, or an error is raised."""

from dataclasses import replace

import numpy as np
import pytest

import fedskew as fs
from fedskew.core.errors import FedskewError
from fedskew.data.dataset import Dataset, Rows
from fedskew.skew.partitioning import partition_rows
from fedskew.skew.skews import skews

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(400, 3)).astype(np.float32)
PRICE = np.exp(X[:, 0] + DRAW.normal(size=400)).astype(np.float32)
FLAGS = (X > 0.3).astype(np.uint8)
BY_LABEL = ("dirichlet:alpha=0.3", "classes:k=2", "two-class-dirichlet", "lds", "sldf", "shards")
WITHOUT = (
    "iid",
    "quantity",
    "feature-dirichlet",
    "vop",
    "wgc:clusters=2",
    "sfdl:clusters=3",
    "iid + noise:sigma=0.1",
)


def data(y: np.ndarray, bins: int | None = 5) -> Dataset:
    names = tuple("abc") if y.ndim == 2 else ()
    train, test = Rows(X, y, np.arange(400) % 4), Rows(X[:9], y[:9], np.arange(9) % 4)
    whole = Dataset("d", train, test, names, groups=tuple("0123"))
    return whole.with_bins(bins)


@pytest.mark.parametrize("y", [PRICE, FLAGS], ids=["numbers", "labels"])
@pytest.mark.parametrize("skew", BY_LABEL)
def test_a_skew_by_label_deals_bins_as_it_deals_classes(skew: str, y: np.ndarray):
    rows = data(y).train
    classes = replace(rows, y=rows.labels, bins=None)
    assert (
        partition_rows(skew, rows, 4, 0).partition == partition_rows(skew, classes, 4, 0).partition
    )


@pytest.mark.parametrize("y", [PRICE, FLAGS], ids=["numbers", "labels"])
@pytest.mark.parametrize("skew", BY_LABEL)
def test_without_bins_a_skew_by_label_is_refused(skew: str, y: np.ndarray):
    with pytest.raises(
        FedskewError,
        match=rf"skew {skew.partition(':')[0]} deals out classes, and .*bins=5\)",
    ):
        partition_rows(skew, data(y, None).train, 4, 0)


@pytest.mark.parametrize("y", [PRICE, FLAGS], ids=["numbers", "labels"])
@pytest.mark.parametrize("skew", [*WITHOUT, "natural", "domains:k=2", "dirichlet:by=group"])
def test_a_skew_that_looks_at_no_labels_needs_no_bins(skew: str, y: np.ndarray):
    fed = fs.split(data(y, None), skew, 4)
    assert np.sort(fed.partition.rows).tolist() == list(range(400))


def test_every_skew_is_of_one_kind():
    named = {
        skew.split(" ")[0].partition(":")[0] for skew in (*BY_LABEL, *WITHOUT, "natural", "domains")
    }
    others = {"flower", "fedscale"}  # those of other tools, which have tests of their own
    assert set(skews) - others == named


def test_a_permutation_of_classes_is_refused():
    with pytest.raises(FedskewError, match="relabel permutes classes"):
        fs.split(data(PRICE, None), "iid + relabel", 4)


def test_harsher_bins_make_harsher_clients():
    mild, harsh = (
        fs.measure(fs.split(data(PRICE, None), f"dirichlet:alpha={alpha}", 5, bins=4))
        for alpha in (9, 0.1)
    )
    assert mild.labels["hellinger"].mean < harsh.labels["hellinger"].mean


def test_measures_take_bins_for_classes():
    fed = fs.split(data(PRICE, None), "lds", 4, bins=5)
    rows = fed.train
    found, same = (
        fs.measure(fed),
        fs.measure(replace(rows, y=rows.labels, bins=None), fed.partition, classes=5),
    )
    assert dict(found.views) == dict(same.views)
    assert found.label_entropy == same.label_entropy
    assert "5 bins that stand in for classes" in str(found)


def test_without_bins_only_features_are_measured():
    found = fs.measure(fs.split(data(PRICE, None), "vop", 4))
    assert list(found.views) == ["features"]
    assert found.as_dict()["label_entropy"] == {}
    assert "labels: not measured" in str(found)
    with pytest.raises(FedskewError, match="labels were not measured"):
        _ = found.labels


def test_a_level_can_be_asked_for():
    fed = fs.split(data(PRICE, None), "dirichlet", 5, bins=8, target="hellinger=0.5")
    assert fs.measure(fed).labels["hellinger"].mean == pytest.approx(0.5, abs=0.01)
    with pytest.raises(FedskewError, match="bins"):
        fs.split(data(PRICE, None), "vop", 5, target="hellinger=0.5")


def test_data_can_be_cut_again_with_other_bins():
    fed = fs.split(fs.load("diabetes"), "lds", 3, bins=3)
    again = fs.split(fed.data, "lds", 3, bins=6)
    assert (len(fed.data.label_names), len(again.data.label_names)) == (3, 6)
    assert again.recipe["bins"] == 6
    with pytest.raises(FedskewError, match="deals out classes"):
        fs.split(fed.data, "lds", 3)


def test_a_picture_has_a_column_for_each_class_label_or_bin():
    for y, bins, title, names in (
        (PRICE, 5, "bin of the target", 5),
        (PRICE, None, "bin of the target", 10),
        (FLAGS, None, "label", 3),
        (FLAGS, 4, "combination of labels", 4),
    ):
        fed = fs.split(data(y, bins), "iid", 4, bins=bins)
        columns = fed.label_columns
        assert (columns.title, len(columns.names)) == (title, names)
        counts = columns.counts(fed.partition, np.arange(4))
        expected = FLAGS.sum(0).tolist() if title == "label" else np.bincount(columns.of).tolist()
        assert counts.sum(0).tolist() == expected
