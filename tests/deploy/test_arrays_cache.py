"""A node reads its file twice a run, and not per message; what it keeps is used only if it is whole."""

import json
import os
import stat
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.deploy.silos import SETTINGS, SilosInProcess, assert_same_run, write_silos

from fedskew.core.config import Experiment
from fedskew.core.errors import FedskewError
from fedskew.deploy import arrays_cache
from fedskew.deploy.arrays_cache import ArraysCache, remove_unused, signs_of
from fedskew.deploy.deployment import run_on_nodes
from fedskew.deploy.remote_clients import Nodes
from fedskew.deploy.silo_node import SiloNode

ARRAYS = {"x": np.arange(12.0).reshape(4, 3), "y": np.arange(4), "empty": np.zeros((0, 3))}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "silo.csv"
    path.write_text("a,b\n1,2\n")
    return path


@pytest.fixture
def cache(tmp_path: Path, source: Path) -> ArraysCache:
    made = ArraysCache(tmp_path / "state" / "run" / "features", source, "the schema")
    made.save(ARRAYS, signs_of(source))
    return made


def assert_kept(cache: ArraysCache) -> None:
    found = cache.load()
    assert found is not None
    assert found.keys() == ARRAYS.keys()
    for name, expected in ARRAYS.items():
        np.testing.assert_array_equal(found[name], expected)


def test_what_is_kept_is_found_and_is_its_owners_alone(cache: ArraysCache):
    assert_kept(cache)
    for path in cache.folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700


def test_what_is_written_to_an_array_does_not_reach_the_file(cache: ArraysCache):
    found = cache.load()
    assert found is not None
    found["x"][:] = -1
    assert_kept(cache)


def test_another_meaning_or_file_is_not_found(cache: ArraysCache, source: Path):
    assert ArraysCache(cache.folder, source, "another schema").load() is None
    source.write_text("a,b\n1,3\n")
    assert cache.load() is None
    source.write_text("a,b\n1,2\n")  # the same content with another time
    assert_kept(cache)
    source.unlink()
    assert cache.load() is None


def test_a_change_within_the_step_of_the_clock_is_seen(cache: ArraysCache, source: Path):
    """The file has the size and the time that it had before: only its content tells."""
    before = source.stat()
    source.write_text("a,b\n1,9\n")
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    index = json.loads((cache.folder / "index.json").read_text())
    index["source"]["signs"] = signs_of(source)
    (cache.folder / "index.json").write_text(json.dumps(index))
    assert cache.load() is None


def test_files_that_are_old_are_not_read(cache: ArraysCache, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(arrays_cache, "_STEP", -1.0)  # all files are old enough
    monkeypatch.setattr(arrays_cache, "_digest", lambda path: pytest.fail(f"{path} was read"))
    assert_kept(cache)


def test_a_file_that_changes_while_it_is_read_is_not_kept(cache: ArraysCache, source: Path):
    before = signs_of(source)
    source.write_text("a,b\n5,6\n")
    cache.save(ARRAYS, before)
    assert cache.load() is None


def test_nothing_damaged_is_used(cache: ArraysCache):
    """Bytes that are changed, cut off or added anywhere: what was kept, or nothing."""
    rng = np.random.default_rng(0)
    used = 0
    for _ in range(200):
        victim = sorted(cache.folder.iterdir())[rng.integers(len(ARRAYS) + 1)]
        content = victim.read_bytes()
        damaged = bytearray(content)
        place = int(rng.integers(len(damaged)))
        match rng.integers(3):
            case 0:
                damaged[place] ^= 1 << int(rng.integers(8))
            case 1:
                del damaged[place:]
            case 2:
                damaged += rng.bytes(5)
        victim.write_bytes(damaged)
        found = cache.load()
        if found is not None:
            used += 1
            assert_kept(cache)
        for path in cache.folder.glob("*.part"):
            path.unlink()
        victim.write_bytes(content)
    assert_kept(cache)
    assert used < 60  # those in the times of the index, which are then taken again


def test_what_was_not_used_for_a_week_is_removed(cache: ArraysCache):
    state = cache.folder.parent.parent
    remove_unused(state)
    assert_kept(cache)
    old = time.time() - 8 * 24 * 3600
    os.utime(cache.folder / "index.json", (old, old))
    remove_unused(state)
    assert not cache.folder.exists()


class Counted:
    """Counts how often files are read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads: dict[str, int] = {}
        read = SiloNode.part.func

        def counted(node: SiloNode) -> Any:
            self.reads[node.name] = self.reads.get(node.name, 0) + 1
            return read(node)

        monkeypatch.setattr(SiloNode.part, "func", counted)


def run(silos: SilosInProcess, folder: Path, rounds: int = 3) -> Any:
    values = {"data": "silos:label=outcome", "model": "logreg", "algorithm": "fedavg"}
    experiment = Experiment(**values, **{**SETTINGS, "rounds": rounds, "checkpoint_every": 1})
    return run_on_nodes(Nodes(silos), 3, experiment, folder)


def test_a_run_reads_each_file_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Once to describe it, and once when there is a schema."""
    counted = Counted(monkeypatch)
    silos = SilosInProcess(write_silos(tmp_path), tmp_path / "state")
    done = run(silos, tmp_path / "run")
    assert set(counted.reads.values()) == {2}
    kept = [path.name for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert kept == ["rows.sha256"] * 3  # and nothing else, as the run has ended
    monkeypatch.setattr(ArraysCache, "load", lambda cache: None)
    assert_same_run(run(silos, tmp_path / "again"), done)


def test_a_file_that_changes_during_a_run_is_refused(tmp_path: Path):
    paths = write_silos(tmp_path)
    content = paths[1].read_text()

    class Changing(SilosInProcess):
        def ask(self, requests: Any, about: Any, *patience: Any) -> Any:
            if self.rounds.count("Train") == 1 and self.rounds[-1] != "Train":
                paths[1].write_text(content.replace("red", "blue", 1))
            return super().ask(requests, about, *patience)

    silos = Changing(paths, tmp_path / "state")
    with pytest.warns(UserWarning, match=r"hospital_B\.csv holds other rows than when the run"):
        done = run(silos, tmp_path / "run")
    assert done.rounds["dropped"].tolist() == [0, 1, 1]
    paths[1].write_text(content)
    folder = next((tmp_path / "state" / "hospital_B").iterdir())
    assert (folder / "rows.sha256").exists()


def test_a_full_state_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(path: Path, *given: Any, **named: Any) -> Any:
        raise OSError(28, "No space left on device")

    silos = SilosInProcess(write_silos(tmp_path), tmp_path / "state")
    monkeypatch.setattr(arrays_cache.np, "save", full)
    with pytest.raises(FedskewError, match="the disk is full: free some space"):
        run(silos, tmp_path / "run")
