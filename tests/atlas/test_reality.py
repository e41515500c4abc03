"""How heterogeneous natural federations are: distances and intervals by hand, and what is written."""

from pathlib import Path

import numpy as np
import pytest

import fedskew as fs
from fedskew.atlas.reality import interval, label_distances, measure_reality, write_reality
from fedskew.core.streams import Stream


def test_distances_are_those_of_measure():
    fed = fs.split(fs.load("digits"), "dirichlet:alpha=0.5", clients=6, seed=0)
    counts = fed.partition.counts(fed.train.labels, 10, np.arange(6))
    apart = label_distances(counts)
    pairs = apart[np.triu_indices(6, 1)]
    assert pairs.mean() == pytest.approx(fs.measure(fed).labels["hellinger"].mean, abs=1e-9)


def test_an_interval_covers_the_mean_of_a_population():
    """Clients of two kinds: the interval holds the mean of all pairs in nearly all samples."""
    random = np.random.default_rng(0)
    inside = 0
    for sample in range(60):
        kinds = random.integers(0, 2, 20)
        apart = (kinds[:, None] != kinds[None, :]).astype(np.float64)
        low, high = interval(apart, Stream(sample, "test"))
        inside += low <= 0.5 <= high
    assert inside >= 51
    assert interval(np.zeros((3, 3)), Stream(0, "test")) == (0, 0)
    apart = 1.0 - np.eye(3)
    assert interval(apart, Stream(0, "test")) == (1, 1), "a client is no pair with itself"


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FEDSKEW_DATA", str(tmp_path))
    rows, missing = measure_reality(str, wanted=["vader"])
    assert len(missing) == 1
    assert "vaderSentiment" in missing[0]
    assert not any(row.natural for row in rows)
    levels = {row.data: row.labels for row in rows}
    assert levels["digits, classes:k=1"] == pytest.approx(1)
    assert levels["digits, dirichlet:alpha=0.1"] > levels["digits, dirichlet:alpha=1"]
    names = {path.name for path in write_reality(rows, tmp_path / "out")}
    assert names == {"reality.csv", "reality.md", "reality.pdf", "reality.svg"}
    assert "| `digits, iid` | 10 made |" in (tmp_path / "out" / "reality.md").read_text()
