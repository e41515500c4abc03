"""The run folder: tables that grow, files that are complete or absent, and plain errors."""

import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedskew.core.errors import FedskewError
from fedskew.data.partition import Partition
from fedskew.runs.folder import (
    RunFolder,
    must_be_new,
    new_folder,
    resume_command,
    to_json,
    write_atomically,
)

ROWS: list[dict[str, Any]] = [
    {"round": number, "loss": 1 / number, "note": None} for number in (1, 2, 3)
]


@pytest.fixture
def disk(tmp_path: Path) -> RunFolder:
    return RunFolder.create(
        tmp_path / "run", "rounds = 3\n", {"threads": 1}, Partition(np.arange(3), np.array([0, 3]))
    )


def test_a_new_run_is_complete_and_nothing_lies_beside_it(disk: RunFolder) -> None:
    assert sorted(path.name for path in disk.path.iterdir()) == [
        "config.toml",
        "environment.json",
        "partition.npz",
        "start.json",
    ]
    assert [path.name for path in disk.path.parent.iterdir()] == ["run"]
    assert (disk.path / "config.toml").read_text() == "rounds = 3\n"
    assert disk.read_json("environment.json") == {"threads": 1}
    assert not disk.finished
    assert RunFolder.open(disk.path).path == disk.path


def test_an_existing_folder_is_never_touched(tmp_path: Path) -> None:
    with pytest.raises(
        FedskewError,
        match=r"exists already: resume it \(fedskew resume .*\), remove it or choose another",
    ):
        must_be_new(tmp_path)
    must_be_new(tmp_path / "new")


def test_a_folder_that_could_not_be_filled_is_not_there(tmp_path: Path) -> None:
    def fill_half() -> None:
        with new_folder(tmp_path / "new") as part:
            (part / "file").write_text("half")
            raise OSError(errno.ENOSPC, "full")

    with pytest.raises(FedskewError, match="the disk is full: free some space"):
        fill_half()
    assert list(tmp_path.iterdir()) == []


def test_tables_grow_and_numbers_come_back_as_they_were(disk: RunFolder) -> None:
    disk.append("rounds.csv", ROWS[:1])
    disk.append("rounds.csv", ROWS[1:])
    text = (disk.path / "rounds.csv").read_text()
    assert text == "round,loss,note\n1,1.0,\n2,0.5,\n3,0.3333333333333333,\n"
    assert disk.table("rounds.csv") == ROWS
    assert [type(value) for value in disk.table("rounds.csv")[0].values()] == [
        int,
        float,
        type(None),
    ]
    assert disk.table("clients.csv") == []


def test_a_table_is_not_continued_with_other_columns(disk: RunFolder) -> None:
    disk.append("rounds.csv", [{**ROWS[0], "test_loss": 1.0}])
    before = (disk.path / "rounds.csv").read_bytes()
    with pytest.raises(
        FedskewError, match="has other columns than this version of fedskew writes: finish the"
    ):
        disk.append("rounds.csv", ROWS[1:])
    assert (disk.path / "rounds.csv").read_bytes() == before


@pytest.mark.parametrize("torn", ["", "4", "4,0.2", "2", "4,0.2,\n"])
def test_what_came_after_a_checkpoint_is_cut_off(disk: RunFolder, torn: str) -> None:
    disk.append("rounds.csv", ROWS[:2])
    lengths = disk.sync_tables()
    disk.append("rounds.csv", ROWS[2:])
    with (disk.path / "rounds.csv").open("a") as table:
        table.write(torn)
    again = RunFolder(disk.path)
    again.verify(lengths)
    again.cut_back(lengths)
    assert (disk.path / "rounds.csv").read_text() == "round,loss,note\n1,1.0,\n2,0.5,\n"
    again.append("rounds.csv", ROWS[2:])
    assert (
        again.table("rounds.csv")
        == list(again.stream("rounds.csv", ["round", "loss", "note"]))
        == ROWS
    )
    assert list(again.stream("rounds.csv", ["loss"])) == [{"loss": row["loss"]} for row in ROWS]
    RunFolder(disk.path).verify(again.sync_tables())


def test_without_a_checkpoint_tables_begin_anew(disk: RunFolder) -> None:
    disk.cut_back({})
    disk.append("rounds.csv", ROWS)
    disk.cut_back({})
    assert not (disk.path / "rounds.csv").exists()
    disk.append("rounds.csv", ROWS)
    assert disk.table("rounds.csv") == ROWS


def test_a_damaged_table_is_not_patched_over(disk: RunFolder) -> None:
    disk.append("rounds.csv", ROWS)
    lengths = disk.sync_tables()
    path = disk.path / "rounds.csv"
    path.write_text(path.read_text().replace("2,0.5", "2,0.6"))
    with pytest.raises(
        FedskewError, match=r"rounds\.csv is damaged: its content is not what was written"
    ):
        disk.verify(lengths)
    path.unlink()
    with pytest.raises(FedskewError, match=r"rounds\.csv is gone"):
        disk.verify(lengths)


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "checkpoint"
    write_atomically(path, b"old")

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(FedskewError, match="checkpoint: the disk is full: free some space"):
            write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


def test_json_has_no_nan() -> None:
    values = {
        "a": float("nan"),
        "b": [float("inf"), 1.5],
        "c": {"d": float("-inf")},
        "e": True,
        "f": "NaN",
    }
    assert json.loads(to_json(values)) == {
        "a": None,
        "b": [None, 1.5],
        "c": {"d": None},
        "e": True,
        "f": "NaN",
    }


def test_json_that_cannot_be_read(disk: RunFolder) -> None:
    (disk.path / "summary.json").write_text("{")
    with pytest.raises(FedskewError, match=r"summary\.json cannot be read"):
        disk.read_json("summary.json")


def test_the_command_can_be_pasted_into_a_shell() -> None:
    assert resume_command(Path("runs/a")) == "fedskew resume runs/a"
    assert resume_command(Path("my runs/a")) == "fedskew resume 'my runs/a'"
