"""Facts about the published data sets, if their files are present (FEDSKEW_DATA)."""

import numpy as np
import pytest

from fedskew.data import Dataset, listing, load
from fedskew.data.sources.natural_tables import TABLES


@pytest.fixture(scope="module")
def states() -> dict[str, str]:
    return {entry.name: entry.state for entry in listing()}


def need(states: dict[str, str], name: str, *enough: str) -> None:
    if states[name] not in (enough or ("present",)):
        pytest.skip(f"{name} is {states[name]}: set FEDSKEW_DATA to a folder that has it")


def counts(data: Dataset) -> list[int]:
    return (np.bincount(data.train.y) + np.bincount(data.test.y)).tolist()


def test_mnist(states: dict[str, str]) -> None:
    need(states, "mnist")
    data = load("mnist", validation=0.2)
    assert data.validation is not None
    assert (len(data.train), len(data.validation), len(data.test)) == (48_000, 12_000, 10_000)
    plain = load("mnist")
    assert np.bincount(plain.train.y).tolist() == [
        5923,
        6742,
        5958,
        6131,
        5842,
        5421,
        5918,
        6265,
        5851,
        5949,
    ]
    assert plain.notes[0].endswith("(0.1307; 0.3081)")
    assert plain.train.x[:, :, 0, 0].max() == plain.train.x.min()  # the corners are blank


def test_qmnist(states: dict[str, str]) -> None:
    need(states, "qmnist")
    data = load("qmnist")
    assert data.train.group is not None
    assert data.test.group is not None
    train, test = set(data.train.group.tolist()), set(data.test.group.tolist())
    assert (len(train), len(test), len(train & test), len(data.groups)) == (539, 297, 0, 836)


def test_cifar10(states: dict[str, str]) -> None:
    need(states, "cifar10")
    data = load("cifar10")
    assert np.bincount(data.train.y).tolist() == [5000] * 10
    assert np.bincount(data.test.y).tolist() == [1000] * 10
    assert data.notes[0].endswith("(0.4914, 0.4822, 0.4465; 0.2470, 0.2435, 0.2616)")
    assert data.classes[data.train.y[0]] == "frog"


def test_uci_har_training_rows(states: dict[str, str]) -> None:
    need(states, "uci-har", "present", "partly")
    by_subject = load("uci-har:part=train")
    assert by_subject.train.group is not None
    assert by_subject.test.group is not None
    subjects = by_subject.train.group.tolist()
    assert set(subjects).isdisjoint(by_subject.test.group.tolist())
    data = load("uci-har:part=train,split=random")
    assert (len(data.train), len(data.test), data.shape) == (5882, 1470, (561,))
    assert counts(data) == [1226, 1073, 986, 1286, 1374, 1407]
    assert len(data.groups) == 21
    assert len(set(data.features)) == 561
    assert max(abs(data.train.x).max(), abs(data.test.x).max()) <= 1


def test_uci_har_inertial(states: dict[str, str]) -> None:
    need(states, "uci-har-inertial")
    data = load("uci-har-inertial")
    assert data.train.group is not None
    assert data.test.group is not None
    assert (len(data.train), len(data.test), data.shape) == (7352, 2947, (9, 128))
    assert counts(data) == [1722, 1544, 1406, 1777, 1906, 1944]
    assert (len(set(data.train.group.tolist())), len(set(data.test.group.tolist()))) == (21, 9)


def test_covtype(states: dict[str, str]) -> None:
    need(states, "covtype")
    data = load("covtype")
    assert data.shape == (54,)
    np.testing.assert_array_equal(data.train.x[:, 10:14].sum(axis=1), 1)
    np.testing.assert_array_equal(data.train.x[:, 14:].sum(axis=1), 1)
    np.testing.assert_allclose(data.train.x[:, :10].std(axis=0), 1, atol=1e-4)


def test_pacs(states: dict[str, str]) -> None:
    need(states, "pacs")
    data = load("pacs:size=16")
    assert data.train.group is not None
    assert data.test.group is not None
    domains = np.bincount(data.train.group) + np.bincount(data.test.group)
    assert dict(zip(data.groups, domains.tolist(), strict=True)) == {
        "art_painting": 2048,
        "cartoon": 2344,
        "photo": 1670,
        "sketch": 3929,
    }
    assert data.classes == ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")


def test_unsw_nb15_training_file(states: dict[str, str]) -> None:
    need(states, "unsw-nb15", "present", "partly")
    data = load("unsw-nb15:part=train")
    known = {
        "Normal": 37000, "Generic": 18871, "Exploits": 11132, "Fuzzers": 6062, "DoS": 4089,
        "Reconnaissance": 3496, "Analysis": 677, "Backdoor": 583, "Shellcode": 378, "Worms": 44,
    }  # fmt: skip
    if len(data.train) + len(data.test) == 82_332:
        assert dict(zip(data.classes, counts(data), strict=True)) == known
    assert len(data.classes) == 10
    assert not {"id", "label", "attack_cat"} & set(data.features)


def test_driving_behavior(states: dict[str, str]) -> None:
    need(states, "driving-behavior")
    data = load("driving-behavior")
    assert (len(data.train), len(data.test)) == (3644, 3084)
    assert data.classes == ("AGGRESSIVE", "NORMAL", "SLOW")


def test_heart_disease(states: dict[str, str]) -> None:
    need(states, "heart-disease")
    data = load("heart-disease")
    assert len(data.train) + len(data.test) == 920
    flamby = load("heart-disease:version=flamby")
    assert (len(flamby.train), len(flamby.test)) == (486, 254)
    assert flamby.test.group is not None
    assert np.bincount(flamby.test.group).tolist() == [104, 89, 16, 45]
    assert len(flamby.features) == 13


def test_vader(states: dict[str, str]) -> None:
    need(states, "vader")
    data = load("vader")
    assert len(data.train) + len(data.test) == 23_703


@pytest.mark.parametrize("name", TABLES)
def test_natural_tables(states: dict[str, str], name: str) -> None:
    need(states, "natural")
    pytest.importorskip("pyarrow")
    data = load(f"natural:table={name}")
    assert data.train.group is not None
    assert len(data.groups) > 4
    assert np.count_nonzero(np.bincount(data.train.group)) == len(data.groups)
