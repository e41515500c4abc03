"""The partition: its arrays, its checks, its file."""

from pathlib import Path

import numpy as np
import pytest

from fedskew.core.errors import FedskewError
from fedskew.data.partition import Partition


def test_from_owner_and_counts():
    partition = Partition.from_owner(np.array([2, 0, 2, 0, 1]), 3)
    assert [partition.of(client).tolist() for client in range(3)] == [[1, 3], [4], [0, 2]]
    assert partition.sizes.tolist() == [2, 1, 2]
    assert partition.counts(np.array([0, 1, 1, 1, 0]), 2).tolist() == [[0, 2], [1, 0], [1, 1]]


def test_equal_by_content():
    first = Partition.from_owner(np.array([0, 1, 0]), 2)
    second = Partition.from_lists([np.array([0, 2]), np.array([1])])
    other = Partition.from_owner(np.array([0, 1, 1]), 2)
    assert first == second
    assert hash(first) == hash(second)
    assert first != other
    assert first != "partition"


@pytest.mark.parametrize(
    ("rows", "overlap", "says"),
    [
        ([[0, 1], []], False, "client 1 has no rows (1 of 2 clients have none)"),
        ([[0, 3], [1, 2]], False, "names row 3, but the rows are 0 … 2"),
        ([[0, -1], [1]], True, "names row -1"),
        ([[0, 1], [1, 2]], False, "row 1 is held by 2 clients"),
        ([[0], [1]], False, "row 2 is held by 0 clients"),
    ],
)
def test_check_refuses(rows: list[list[int]], overlap: bool, says: str):
    partition = Partition.from_lists([np.array(part, np.int64) for part in rows])
    with pytest.raises(FedskewError) as caught:
        partition.check(3, overlap=overlap)
    assert says in str(caught.value)


def test_check_passes():
    exact = Partition.from_lists([np.array([2, 0]), np.array([1])])
    assert exact.check(3) is exact
    shared = Partition.from_lists([np.array([2, 0]), np.array([0])])
    assert shared.check(4, overlap=True) is shared


@pytest.mark.parametrize("owner", [[0, 2], [0, -1]])
def test_owners_out_of_range_are_refused(owner: list[int]):
    with pytest.raises(FedskewError, match="row 1 belongs to client"):
        Partition.from_owner(np.array(owner), 2)


@pytest.mark.parametrize("name", ["cut.npz", "cut"])
def test_file_round_trip(tmp_path: Path, name: str):
    partition = Partition.from_owner(np.array([2, 0, 2, 0, 1]), 3)
    partition.save(tmp_path / name)
    assert Partition.load(tmp_path / name) == partition


def test_bad_files_are_refused(tmp_path: Path):
    path = tmp_path / "cut.npz"
    with pytest.raises(FedskewError, match="there is no partition file"):
        Partition.load(path)
    for content in (b"", b"nonsense", b"PK\x03\x04nonsense"):
        path.write_bytes(content)
        with pytest.raises(FedskewError, match="is not a partition file"):
            Partition.load(path)
    with path.open("wb") as file:
        np.save(file, np.arange(3))
    with pytest.raises(FedskewError, match="is not a partition file"):
        Partition.load(path)
    for arrays in (
        {"rows": [0, 1]},
        {"rows": [0, 1], "offsets": [0, 3]},
        {"rows": [0, 1], "offsets": [0, 2, 1, 2]},
    ):
        np.savez(path, **{key: np.array(value) for key, value in arrays.items()})
        with pytest.raises(FedskewError, match="is not a partition file"):
            Partition.load(path)
