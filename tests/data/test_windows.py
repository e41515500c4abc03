"""Windows of time series: correct rows and labels, and never a row in two parts."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedskew.core.errors import FedskewError
from fedskew.data import Dataset, Rows, Split, load
from fedskew.data.readers.windows import cut_windows, split_series


def test_windows_of_interleaved_groups() -> None:
    group = np.array([0, 1, 0, 1, 0, 0, 1, 0])
    x = np.stack([np.arange(8), np.arange(8) * 10], axis=1).astype(np.float32)
    result = cut_windows(
        Rows(x, np.array([0, 2, 1, 2, 1, 0, 0, 1]), group), window=2, stride=1, classes=3
    )
    # Group 0 has rows 0 2 4 5 7, group 1 has rows 1 3 6.
    assert result.x[:, 0].tolist() == [[0, 2], [2, 4], [4, 5], [5, 7], [1, 3], [3, 6]]
    assert result.x[:, 1].tolist() == [[0, 20], [20, 40], [40, 50], [50, 70], [10, 30], [30, 60]]
    assert result.group is not None
    assert result.group.tolist() == [0, 0, 0, 0, 1, 1]
    assert result.y.tolist() == [0, 1, 0, 0, 2, 0]  # a tie goes to the lower label


def test_stride_and_remainder() -> None:
    x = np.arange(10, dtype=np.float32)[:, None]
    result = cut_windows(Rows(x, np.zeros(10, dtype=np.int64)), window=4, stride=3, classes=1)
    assert result.x[:, 0].tolist() == [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9]]
    assert result.group is None
    assert (
        len(cut_windows(Rows(x, np.zeros(10, dtype=np.int64)), window=11, stride=1, classes=1)) == 0
    )


@given(st.lists(st.integers(0, 6), min_size=2, max_size=60), st.floats(0.1, 0.9), st.integers(0, 5))
def test_series_split_keeps_groups_whole(groups: list[int], share: float, seed: int) -> None:
    group = np.array(groups)
    rows = np.arange(len(group))
    if len(set(groups)) == 1 and not 0 < round(len(rows) * share) < len(rows):
        return
    kept, held = split_series("t", rows, group, Split("test", share, seed))
    assert sorted([*kept, *held]) == rows.tolist()
    assert len(kept)
    assert len(held)
    if len(set(groups)) > 1:
        assert not set(group[kept]) & set(group[held])
        smallest = np.bincount(group)[np.unique(group)].min()
        assert len(held) <= max(len(rows) * share, smallest)


def values(data: Dataset, part: str) -> set[float]:
    return set(getattr(data, part).x[:, 0].ravel().tolist())


def write(path: Path, rows: int, groups: int) -> Path:
    n = np.arange(rows)
    pd.DataFrame({"t": n, "who": n * groups // rows, "y": n // 5 % 2}).to_csv(path, index=False)
    return path


def test_groups_stay_whole_in_all_three_parts(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", 100, 10)
    data = load(
        f"{path}:label=y,group=who,window=4,stride=2,test=0.3,standardize=false", validation=0.3
    )
    assert data.shape == (1, 4)
    assert data.validation is not None
    owners = [
        set(part.group.tolist())
        for part in (data.train, data.validation, data.test)
        if part.group is not None
    ]
    assert [len(owner) for owner in owners] == [5, 2, 3]
    assert len(set.union(*owners)) == 10
    assert len(data.test) == 3 * 4  # rows 0-3, 2-5, 4-7, 6-9 of every group
    assert any("whole groups" in note for note in data.notes)


def test_without_groups_the_series_is_cut_once(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", 100, 1)
    data = load(
        f"{path}:label=y,drop=who,keep=t,window=8,stride=1,test=0.25,standardize=false",
        validation=0.2,
    )
    assert data.validation is not None
    assert values(data, "train") == set(range(60))
    assert values(data, "validation") == set(range(60, 75))
    assert values(data, "test") == set(range(75, 100))
    assert len(data.train) == 60 - 8 + 1
    assert any("end of the series" in note for note in data.notes)


def test_standardised_with_training_rows_only(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", 100, 1)
    data = load(f"{path}:label=y,drop=who,keep=t,window=5,test=0.2")
    kept = np.arange(80)
    np.testing.assert_allclose(
        data.test.x[0, 0], (np.arange(80, 85) - kept.mean()) / kept.std(), atol=1e-5
    )


def test_a_window_longer_than_a_part(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", 100, 1)
    with pytest.raises(
        FedskewError, match="test: no 30 consecutive rows for one window; choose a smaller window="
    ):
        load(f"{path}:label=y,keep=t,window=30,test=0.2")
    with pytest.raises(FedskewError, match="leaves one part empty"):
        load(f"{path}:label=y,window=3,test=0.001")
