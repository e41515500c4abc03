"""Names, paths and spellings of data sets, the list of data sets, and the output of check."""

import re
from pathlib import Path

import numpy as np
import pytest

from fedskew.core.errors import FedskewError
from fedskew.core.registry import Choice
from fedskew.data import check, choose, datasets, from_arrays, listing, load, root
from fedskew.data import source as source_module
from fedskew.data.source import sources

ASKED = {
    *(
        "digits",
        "diabetes",
        "fedscale",
        "leaf",
        "mnist",
        "fashion-mnist",
        "qmnist",
        "femnist",
        "shakespeare",
        "cifar10",
        "cifar100",
        "uci-har",
    ),
    "uci-har-inertial",
    *(
        "covtype",
        "pacs",
        "digits-dg",
        "tiny-imagenet",
        "unsw-nb15",
        "nf-unsw-nb15",
        "vehicles",
        "driving-behavior",
    ),
    *("heart-disease", "natural", "tcga-brca", "vader"),
    *("csv", "parquet", "npz", "npy", "images", "silos"),
}
FETCHABLE = {
    *(
        "mnist",
        "fashion-mnist",
        "qmnist",
        "cifar10",
        "cifar100",
        "uci-har",
        "uci-har-inertial",
        "covtype",
        "tiny-imagenet",
    ),
}


def test_the_catalogue_is_complete_and_explained() -> None:
    assert set(datasets) == ASKED
    for entry in listing():
        assert entry.summary.endswith(".")
        assert all(option.help for option in datasets.options(entry.name).values()), entry.name
        assert entry.state == "own" or entry.licence


def test_every_known_set_can_be_had_one_way_or_the_other() -> None:
    list(datasets)
    for name, source in sources.items():
        assert bool(source.downloads) != bool(source.manual) or name in ("digits", "diabetes")
        assert "{root}" in source.manual or not source.manual
        for download in source.downloads:
            kind, _, digest = download.checksum.partition(":")
            assert re.fullmatch("[0-9a-f]+", digest)
            assert len(digest) == {"md5": 32, "sha256": 64}[kind]
            assert all(url.startswith(("https://", "http://")) for url in download.urls)
            assert any(file.startswith(download.path) for file in source.files)


def test_state_of_the_files(data_root: Path) -> None:
    states = {entry.name: entry.state for entry in listing()}
    assert (states["digits"], states["mnist"], states["csv"]) == ("present", "missing", "own")
    (data_root / "unsw-nb15").mkdir()
    (data_root / "unsw-nb15" / "UNSW_NB15_training-set.csv").touch()
    (data_root / "covtype").mkdir()
    (data_root / "covtype" / "covtype.data").touch()
    (data_root / "uci-har-inertial.npz").touch()
    states = {entry.name: entry.state for entry in listing()}
    assert (states["unsw-nb15"], states["covtype"], states["uci-har-inertial"]) == (
        "partly",
        "present",
        "present",
    )
    fetchable = {entry.name for entry in listing() if entry.fetchable}
    assert fetchable == FETCHABLE


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("digits", "digits"),
        ("digits:test=0.5,split-seed=3", "digits:test=0.5,split_seed=3"),
        ("some/my.csv:label=y", "csv:path=some/my.csv,label=y"),
        ("MY.CSV.GZ:label=y", "csv:path=MY.CSV.GZ,label=y"),
        ("t.parquet:label=y,drop=a+b", "parquet:path=t.parquet,label=y,drop=a+b"),
        ("t.npz", "npz:path=t.npz"),
        ({"name": "csv", "path": "a:b,c.csv", "label": "y"}, "csv:path=a:b,c.csv,label=y"),
        ({"name": "my.csv", "label": "y", "drop": ["a", "b"]}, "csv:path=my.csv,label=y,drop=a+b"),
        ({"name": "my.csv", "label": "y", "split-seed": 3}, "csv:path=my.csv,label=y,split_seed=3"),
        (Choice("digits", {"test": 0.5}), "digits:test=0.5"),
    ],
)
def test_spellings(spec, expected: str) -> None:
    assert str(choose(spec)) == expected


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("minst", "did you mean 'mnist'"),
        ("digits:tset=0.5", "did you mean 'test'"),
        ("digits:test=0", "test=0 is out of range, it must be > 0 and < 1"),
        ("digits:test", "'test' is not key=value"),
        ("my.csv:path=other.csv,label=y", "my.csv is a path already; leave out path=other.csv"),
        ("", "empty data set"),
        (7, "write it as text"),
        ("mnist:size=3", "unknown option of data set mnist 'size': Known: scale"),
    ],
)
def test_bad_spellings(spec, message: str) -> None:
    with pytest.raises(FedskewError, match=message):
        load(spec)


def test_bad_validation_share() -> None:
    with pytest.raises(FedskewError, match=r"validation share of 1 is out of range"):
        load("digits", validation=1.0)


def test_digits_facts() -> None:
    facts = check("digits:split_seed=4")
    assert facts.name == "digits:split_seed=4"
    assert facts.rows == {"train": 1438, "test": 359}
    assert facts.shape == (1, 8, 8)
    assert sum(facts.classes.values()) == 1438
    assert facts.classes["0"] in (142, 143)
    assert facts.groups == 0
    assert any("seed 4" in note for note in facts.notes)


def test_seeds_of_the_two_splits_are_apart() -> None:
    one, two = load("digits", validation=0.2, seed=1), load("digits", validation=0.2, seed=2)
    np.testing.assert_array_equal(one.test.y, two.test.y)
    assert one.validation is not None
    assert two.validation is not None
    assert not np.array_equal(one.validation.y, two.validation.y)


def test_a_reader_of_ones_own_may_return_a_finished_data_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def mine(*, rows: int = 10):
        """Mine."""
        return from_arrays((np.arange(rows)[:, None], np.arange(rows) % 2))

    list(datasets)
    monkeypatch.setitem(datasets._things, "mine", mine)
    data = load("mine:rows=20", validation=0.5)
    assert data.name == "mine:rows=20"
    assert data.validation is not None
    assert (len(data.train), len(data.validation), len(data.test)) == (8, 8, 4)


def test_data_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDSKEW_DATA", "~/sets")
    assert root() == Path.home() / "sets"
    monkeypatch.delenv("FEDSKEW_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(source_module.sys, "platform", "linux")
    assert root() == tmp_path / "fedskew"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert root() == Path.home() / ".cache" / "fedskew"
    monkeypatch.setattr(source_module.sys, "platform", "darwin")
    assert root() == Path.home() / "Library" / "Caches" / "fedskew"
    monkeypatch.setattr(source_module.sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert root() == tmp_path / "local" / "fedskew"
