"""``fedskew list`` answers from an index of fedskew's own components, and from the classes where others are there."""

import json
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from fedskew.algorithms.purposes import PURPOSES
from fedskew.cli import listing

TOOL = Path(__file__).parents[2] / "tools" / "index"


def test_the_index_is_up_to_date(tmp_path):
    # In a fresh process, as other tests register components of their own
    subprocess.run([sys.executable, TOOL, tmp_path / "now.json"], check=True)
    now = (tmp_path / "now.json").read_text(encoding="utf-8")
    assert listing.INDEX.read_text(encoding="utf-8") == now, "run make index"
    assert list(json.loads(now)) == list(listing.registries()) == list(listing.KINDS)


def test_what_is_registered_from_outside_is_listed_from_the_classes(monkeypatch):
    monkeypatch.setattr(listing, "registered", lambda kinds: {kind: {} for kind in kinds})
    monkeypatch.setattr(listing, "OWN", [])
    monkeypatch.setattr(listing, "entry_points", lambda: EntryPoints())
    assert listing.components(["skews"])["skews"].keys() > {"dirichlet", "iid"}
    monkeypatch.setattr(listing, "OWN", [object()])
    assert listing.components(["skews"]) == {"skews": {}}


@pytest.mark.parametrize(("group", "from_index"), [("skews", False), ("data", True)])
def test_entry_points_count_for_the_kind_that_is_listed(monkeypatch, group, from_index):
    entry = EntryPoint("mine", "my_package", f"fedskew.{group}")
    monkeypatch.setattr(listing, "registered", lambda kinds: {kind: {} for kind in kinds})
    monkeypatch.setattr(listing, "OWN", [])
    monkeypatch.setattr(listing, "entry_points", lambda: EntryPoints([entry]))
    assert bool(listing.components(["skews"])["skews"]) == from_index


def test_every_method_has_one_purpose_and_is_listed_under_it():
    placed: list[str] = []
    for members in PURPOSES.values():
        placed += members.split()
    own = listing.components(["algorithms"])["algorithms"]
    assert sorted(placed) == sorted(own)
    words = [sys.executable, "-m", "fedskew", "list", "algorithms"]
    shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    clusters = shown.index("a model for each cluster of clients")
    assert clusters < shown.index("\n  ifca  ") < shown.index("no server: clients exchange")


def test_the_readme_says_how_many_methods_there_are():
    known = listing.components(["algorithms"])["algorithms"].values()
    additions = sum(listed["addition"] for listed in known)
    readme = (TOOL.parents[1] / "README.md").read_text(encoding="utf-8")
    bounds = 2  # central and local
    assert f"trains them with {len(known) - additions - bounds} methods" in readme
    assert f"{additions} additions combine with them" in readme
