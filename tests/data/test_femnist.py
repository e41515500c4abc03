"""femnist from hand-made LEAF json."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedskew.core.errors import FedskewError
from fedskew.data import load


def write(folder: Path, file: str, writers: dict[str, list[int]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    user_data = {
        name: {"x": [[label / 61] * 784 for label in labels], "y": labels}
        for name, labels in writers.items()
    }
    content = {
        "users": list(writers),
        "num_samples": [len(y) for y in writers.values()],
        "user_data": user_data,
    }
    (folder / file).write_text(json.dumps(content))


def write_all(root: Path) -> None:
    write(
        root / "femnist/train",
        "all_data_0_niid_0_keep_0_train_9.json",
        {"f0001_41": [0, 61], "f0000_14": [10]},
    )
    write(
        root / "femnist/train", "all_data_1_niid_0_keep_0_train_9.json", {"f0500_02": [36, 36, 1]}
    )
    write(
        root / "femnist/test",
        "all_data_0_niid_0_keep_0_test_9.json",
        {"f0001_41": [5], "f0009_00": [3]},
    )


def test_values_and_writers(data_root: Path) -> None:
    write_all(data_root)
    data = load("femnist")
    assert len(data.classes) == 62
    assert [data.classes[label] for label in data.train.y] == ["0", "z", "A", "a", "a", "1"]
    assert data.groups == ("f0000_14", "f0001_41", "f0009_00", "f0500_02")
    assert data.train.group is not None
    assert data.test.group is not None
    assert data.train.group.tolist() == [1, 1, 0, 3, 3, 3]
    assert data.test.group.tolist() == [1, 2]
    grey = np.array([0, 61, 10, 36, 36, 1]) / 61
    np.testing.assert_allclose(
        data.train.x[:, 0, 5, 7], (grey - grey.mean()) / grey.std(), atol=1e-5
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"users": ["a"], "user_da', r"not whole JSON \(line 1, column"),
        ('{"users": ["a"], "user_data": {}}', "not LEAF's FEMNIST"),
        (
            '{"users": ["a"], "user_data": {"a": {"x": [[0, 1]], "y": [1]}}}',
            "not LEAF's FEMNIST: users with 784 pixels",
        ),
        ('{"users": ["a"], "user_data": {"a": {"x": [], "y": [1]}}}', "0 images but 1 labels"),
        ('{"users": ["a"], "user_data": {"a": {"x": [], "y": "word"}}}', "not LEAF's FEMNIST"),
        ("[]", "not LEAF's FEMNIST"),
    ],
)
def test_damaged_files(data_root: Path, content: str, message: str) -> None:
    write_all(data_root)
    (data_root / "femnist/train/all_data_1_niid_0_keep_0_train_9.json").write_text(content)
    with pytest.raises(FedskewError, match=message):
        load("femnist")


def test_label_out_of_range(data_root: Path) -> None:
    write_all(data_root)
    write(data_root / "femnist/test", "all_data_0_niid_0_keep_0_test_9.json", {"a": [62]})
    with pytest.raises(FedskewError, match="label 62"):
        load("femnist")


def test_what_to_put_where(data_root: Path) -> None:
    with pytest.raises(
        FedskewError,
        match=rf"femnist/train is not there; clone https://github.com/TalwalkarLab/leaf.*to {data_root}/femnist/train",
    ):
        load("femnist")
    (data_root / "femnist/train").mkdir(parents=True)
    (data_root / "femnist/test").mkdir()
    with pytest.raises(FedskewError, match=r"there are no \.json files in"):
        load("femnist")
