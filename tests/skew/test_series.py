"""Windows that overlap: no skew gives two windows of one series to different clients."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedskew
from fedskew.core.errors import FedskewError
from fedskew.data.dataset import Rows
from fedskew.data.partition import Partition
from fedskew.data.readers.windows import cut_windows
from fedskew.skew.partitioning import partition_rows
from fedskew.skew.series import WholeSeries
from fedskew.skew.skews import skews


def windows(series: int, seed: int, per_series: tuple[int, int] = (1, 6)) -> Rows:
    """Return shuffled windows of different series, with gaps in the numbers."""
    random = np.random.default_rng(seed)
    number = random.permutation(
        np.repeat(np.arange(series) * 3, random.integers(*per_series, size=series))
    )
    y = (number // 3 + (random.uniform(size=len(number)) < 0.2)) % 3
    return Rows(random.normal(size=(len(number), 4, 2)).astype(np.float32), y, number // 6, number)


@settings(deadline=None, max_examples=120)
@given(
    st.sampled_from(sorted(set(skews) - {"flower", "fedscale"})),
    st.integers(3, 6),
    st.integers(0, 2**32),
)
def test_no_skew_splits_a_series(name: str, clients: int, seed: int):
    rows = windows(24, seed)
    assert rows.series is not None
    required = {"classes": {"k": 2}, "domains": {"k": 4}}.get(name, {})
    partition = partition_rows({"name": name, **required}, rows, clients, seed).partition
    assert partition.clients == clients
    assert sorted(partition.rows.tolist()) == list(range(len(rows)))
    pairs = np.unique(np.stack([rows.series, partition.owner]), axis=1)
    assert pairs.shape[1] == 24
    assert all(np.all(np.diff(partition.of(client)) > 0) for client in range(clients))


def test_series_overlap_only_as_a_whole():
    rows = windows(30, 1)
    assert rows.series is not None
    partition = partition_rows("wgc:overlap=true", rows, 3, seed=0).partition
    for client in range(3):
        held = partition.of(client)
        assert np.isin(rows.series, np.unique(rows.series[held])).sum() == len(held)


def test_an_item_is_the_majority_the_mean_and_the_group():
    x = np.arange(10, dtype=np.float32).reshape(5, 2)
    rows = Rows(x, np.array([2, 1, 1, 0, 2]), np.array([7, 7, 7, 4, 4]), np.array([9, 9, 9, 5, 5]))
    whole = WholeSeries.of(rows)
    assert whole.item.tolist() == [1, 1, 1, 0, 0]
    assert whole.items.y.tolist() == [0, 1]  # a tie goes to the lower label
    assert whole.items.x.tolist() == [[7, 8], [2, 3]]
    assert whole.items.group is not None
    assert whole.items.group.tolist() == [4, 7]
    assert whole.rows_of(Partition.from_owner(np.array([1, 0]), 2)).of(1).tolist() == [3, 4]


def test_a_function_deals_series_too():
    rows = windows(8, 2)
    seen = []

    def halves(items: Rows, clients: int, stream: object) -> Partition:
        seen.append(len(items))
        return Partition.from_owner(np.arange(len(items)) % clients, clients)

    assert partition_rows(halves, rows, 2, seed=0).partition.clients == 2
    assert seen == [8]


def test_too_few_series():
    with pytest.raises(FedskewError) as caught:
        partition_rows("iid", windows(4, 0), 5, seed=0)
    assert str(caught.value) == (
        "4 series are too few for 5 clients, as windows that overlap stay with their series: "
        "use at most 4 clients, more series (a group column), or a window stride >= the window"
    )


def test_windows_know_their_series():
    group = np.array([4, 1, 4, 1, 4, 4, 1, 4])
    rows = Rows(np.arange(8, dtype=np.float32)[:, None], np.zeros(8, np.int64), group)
    overlapping = cut_windows(rows, window=2, stride=1, classes=1)
    assert overlapping.series is not None
    assert overlapping.series.tolist() == [1, 1, 4, 4, 4, 4]
    assert cut_windows(rows, window=2, stride=2, classes=1).series is None
    alone = cut_windows(Rows(rows.x, rows.y), window=3, stride=2, classes=1)
    assert alone.series is not None
    assert alone.series.tolist() == [0, 0, 0]
    taken = overlapping.take(np.array([3, 0])).series
    assert taken is not None
    assert taken.tolist() == [4, 1]


def test_from_a_file_to_clients_without_a_shared_reading(tmp_path: Path):
    count = np.arange(240)
    frame = pd.DataFrame({"reading": count, "who": count // 20, "y": count // 7 % 2})
    frame.to_csv(tmp_path / "t.csv", index=False)
    spec = f"{tmp_path / 't.csv'}:label=y,group=who,window=6,stride=2,test=0.2,standardize=false,keep=reading"
    data = fedskew.load(spec)
    fed = fedskew.split(data, "dirichlet:alpha=0.5", clients=4, client_test=0.3)
    assert fed.held_out is not None
    hands = [fed.partition.of(client) for client in range(4)] + [
        fed.held_out.of(client) for client in range(4)
    ]
    readings = [set(fed.train.x[rows].ravel().tolist()) for rows in hands] + [
        set(fed.test.x.ravel().tolist())
    ]
    for one in range(len(readings)):
        for other in range(one):
            assert not readings[one] & readings[other]
    with pytest.raises(FedskewError, match="10 series are too few for 11 clients"):
        fedskew.split(data, "iid", clients=11)
    with pytest.raises(FedskewError, match=r"its windows overlap: load\(..., validation=0.2\)"):
        data.hold_out(0.2, seed=0)
