"""A split folder carries a checksum per file: whatever is damaged, nothing else than what was written is read."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedskew as fs
from fedskew.core.errors import FedskewError
from fedskew.nodes.split_folder import load_split, read_origin, save_split

FORMS = ("same", "arrays", "index")


@pytest.fixture(params=FORMS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=60), "b": rng.choice(["x", "y"], 60)})
    frame["outcome"] = rng.choice(["sick", "well"], 60)
    frame.to_csv(tmp_path / "all.csv", index=False)
    origin = read_origin(f"{tmp_path / 'all.csv'}:label=outcome")
    fed = fs.split(origin.data, "iid", clients=3, client_test=0.2)
    save_split(tmp_path / "split", origin, fed, {"skew": "iid"}, files=request.param)
    return tmp_path / "split"


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    """Return other bytes: one bit is changed, the end is missing, or there is more of it."""
    changed = bytearray(content)
    place = int(rng.integers(len(changed)))
    kind = int(rng.integers(3))
    if kind == 0:
        changed[place] ^= 1 << int(rng.integers(8))
    elif kind == 1:
        del changed[place:]
    else:
        changed += rng.bytes(7)
    return bytes(changed)


def test_no_damage_is_read(folder: Path) -> None:
    """Of 70 damages each is refused, by its name; JSON with more spaces after it is the same record."""
    expected = load_split(folder).fingerprint
    rng = np.random.default_rng(1)
    files = sorted(folder.iterdir())
    silent = 0
    for _ in range(70):
        victim = files[int(rng.integers(len(files)))]
        content = victim.read_bytes()
        victim.write_bytes(damaged(content, rng))
        try:
            found = load_split(folder).fingerprint
            silent += victim.name != "split.json" or found != expected
        except FedskewError as problem:
            assert victim.name in str(problem)  # noqa: PT017
        victim.write_bytes(content)
    assert silent == 0
    assert load_split(folder).fingerprint == expected


@pytest.mark.parametrize("key", ["format", "sha256", "checksum"])
def test_a_record_without_its_seal_is_refused(folder: Path, key: str) -> None:
    record = json.loads((folder / "split.json").read_text())
    del record[key]
    (folder / "split.json").write_text(json.dumps(record))
    with pytest.raises(FedskewError, match=r"split\.json is damaged"):
        load_split(folder)


def test_a_folder_of_a_former_version_is_read(folder: Path) -> None:
    expected = load_split(folder).fingerprint
    record = json.loads((folder / "split.json").read_text())
    for key in ("format", "sha256", "checksum"):
        del record[key]
    (folder / "split.json").write_text(json.dumps(record))
    assert load_split(folder).fingerprint == expected


@pytest.mark.parametrize("folder", ["same"], indirect=True)
def test_files_of_silos_are_checked(folder: Path) -> None:
    data: dict[str, Any] = {"name": "silos", "paths": (str(folder),), "label": "outcome"}
    assert len(fs.load(data).groups) == 3
    victim = folder / "client-001.csv"
    victim.write_text(victim.read_text().replace("sick", "well", 1))
    with pytest.raises(FedskewError, match=r"client-001\.csv is not what fedskew split wrote"):
        fs.load(data)
    alone = folder.parent / "alone"
    alone.mkdir()
    shutil.copy(victim, alone / "mine.csv")  # a file of its own has no record
    shutil.copy(folder / "client-000.csv", alone / "other.csv")
    assert len(fs.load({**data, "paths": (str(alone),)}).groups) == 2
