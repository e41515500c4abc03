"""Adding a method to the atlas: what is refused before a run, and leaves no folder or run behind."""

import shutil
from pathlib import Path

import pytest

from fedskew.atlas import adding
from fedskew.atlas.adding import add_method
from fedskew.atlas.atlas_map import AtlasMap
from fedskew.atlas.atlas_runs import Atlas
from fedskew.core.errors import FedskewError
from fedskew.study.sitting import Sitting
from fedskew.study.study_runs import unwatched


def never(line: str) -> None:
    raise AssertionError(line)


def add(method: str, out: Path, cells: tuple[str, ...] = ()) -> Path:
    sitting = Sitting.of(None)
    return add_method(
        method, out, "shared", cells=cells, sitting=sitting, watch=unwatched, say=never
    )


@pytest.mark.parametrize(
    ("method", "cells", "message"),
    [
        ("fedavg", (), "fedavg is on the atlas already"),
        ("fedlc", (), "fedlc is on the atlas already"),
        ("fednova", ("nowhere",), "unknown cell 'nowhere'"),
    ],
)
def test_refusals_leave_no_folder(
    tmp_path: Path, method: str, cells: tuple[str, ...], message: str
):
    with pytest.raises(FedskewError, match=message):
        add(method, tmp_path / "added", cells)
    assert not (tmp_path / "added").exists()


def test_a_folder_of_another_method_is_refused_before_a_run(
    small: Atlas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """With the runs of both in it, the folder would be of no use to either."""
    out = tmp_path / "added"
    shutil.copytree(small.folder, out)
    (out / "results" / "skewed-shared.json").unlink()
    published = AtlasMap(small.protocol, small.results)
    monkeypatch.setattr(adding, "published_map", lambda: published)
    with pytest.raises(FedskewError, match="give fednova a folder of its own"):
        add("fednova", out)
    assert not (out / "results" / "skewed-shared.json").exists()
