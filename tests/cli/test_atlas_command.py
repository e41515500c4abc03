"""The commands of the atlas: run with a budget, status, page, look-up, a method of one's own, and reality."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from fedskew.atlas import adding, published, reality
from fedskew.atlas.atlas_map import AtlasMap
from fedskew.atlas.atlas_runs import atlas_in
from fedskew.atlas.look_up import look_up
from fedskew.core.errors import FedskewError

SCHEMAS = json.loads((Path(__file__).parents[2] / "docs" / "schemas.json").read_text())
PROTOCOL = """
[about]
title = "A small atlas"
version = "1"
lr = [0.1, 0.5]
blocks = "0-2"
choose_seeds = "1000"

[settings]
rounds = 2
clients = 3
data = "digits"
device = "cpu"
threads = 1
model = "logreg"

[goal.shared]
metric = "balanced_accuracy"

[[method]]
algorithm = "fedavg"
title = "FedAvg"
goals = ["shared"]

[[method]]
algorithm = "fedlc"
title = "FedLC"
goals = ["shared"]

[[cell]]
name = "iid"
title = "digits, IID"
kind = "none"
family = "digits"
skew = "iid"
"""
OWN = """
from dataclasses import dataclass

from fedskew.algorithms import FedProx, algorithms


@algorithms.register("my-prox")
@dataclass(frozen=True)
class MyProx(FedProx):
    \"\"\"FedProx with another strength.\"\"\"

    mu: float = 0.5
"""


def fits(name: str, value: object) -> None:
    schema = {"$defs": SCHEMAS["$defs"], "$ref": f"#/$defs/{name}"}
    Draft202012Validator(schema).validate(value)


@pytest.fixture
def here(fedskew, tmp_path: Path) -> Path:
    (tmp_path / "own.toml").write_text(PROTOCOL)
    return tmp_path


def test_run_status_and_page(fedskew, here: Path, capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("pyarrow")
    assert fedskew("atlas run --protocol own.toml --out a --budget 0.01s") == 75
    assert "0 of 1 studies are done; give the command again" in capsys.readouterr().err
    assert fedskew("atlas run --out a") == 0
    assert "1 of 1 studies are done" in capsys.readouterr().err
    assert fedskew("atlas status --out a") == 0
    assert "10 of 10 runs are done" in capsys.readouterr().out
    assert fedskew("atlas status --out a --json") == 0
    fits("atlas status", json.loads(capsys.readouterr().out))
    assert fedskew("atlas page --out a") == 0
    assert (here / "a" / "atlas.html").is_file()
    assert "| digits, IID |" in (here / "a" / "atlas.md").read_text()
    assert fedskew("atlas run --out a --cell iids") == 2
    assert "unknown cell 'iids': did you mean 'iid'?" in capsys.readouterr().err
    assert fedskew("atlas status --out b") == 2
    assert "b is not an atlas" in capsys.readouterr().err


def test_clients_are_looked_up_by_what_was_measured(
    fedskew, here: Path, capsys: pytest.CaptureFixture[str]
):
    assert fedskew("measure --data digits --skew dirichlet:alpha=0.5 --clients 10 --json") == 0
    (here / "measured.json").write_text(capsys.readouterr().out)
    assert fedskew("atlas near measured.json") == 0
    said = capsys.readouterr().out
    assert said.startswith("In the nearest cells (digits")
    assert "SCAFFOLD" in said or "scaffold" in said
    assert fedskew("atlas near measured.json --goal own --json") == 0
    fits("atlas near", json.loads(capsys.readouterr().out))
    (here / "measured.json").write_text("{}")
    assert fedskew("atlas near measured.json") == 2
    assert "holds no measures: write them with fedskew measure --json" in capsys.readouterr().err
    with pytest.raises(FedskewError, match="unknown goal 'mine'"):
        look_up(here / "measured.json", "mine")


def test_a_method_of_ones_own_is_drawn_beside_the_others(
    forget_own,
    fedskew,
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    assert fedskew("atlas run --protocol own.toml --out a") == 0
    atlas = atlas_in(here / "a")
    small = AtlasMap(atlas.protocol, atlas.results)
    monkeypatch.setattr(adding, "published_map", lambda: small)
    monkeypatch.setattr(adding, "open_atlas", lambda out: adding.Atlas(out, atlas.protocol))
    (here / "my_prox.py").write_text(OWN)
    assert fedskew("atlas add my_prox.py --out mine") == 0
    capsys.readouterr()
    page = (here / "mine" / "atlas.html").read_text()
    for words in ("my-prox on the atlas", "FedLC", "3 of 3 scores are those of the published runs"):
        assert words in page
    assert fedskew("atlas add fedlc --out mine") == 2
    assert "fedlc is on the atlas already" in capsys.readouterr().err
    assert fedskew("atlas add fedexp --out mine") == 2
    assert "holds the runs of my-prox" in capsys.readouterr().err
    assert fedskew("atlas add feddx --out mine") == 2
    assert "unknown algorithm 'feddx'" in capsys.readouterr().err


def test_reality(
    fedskew, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FEDSKEW_DATA", str(here))
    monkeypatch.setattr(reality, "MADE", ("iid", "classes:k=1"))
    assert fedskew("atlas reality --json") == 0
    captured = capsys.readouterr()
    fits("atlas reality", json.loads(captured.out))
    assert "left out: heart-disease" in captured.err
    assert fedskew("atlas reality --out out") == 0
    assert (here / "out" / "reality.svg").is_file()


def test_the_published_results_are_of_the_protocol():
    found = published.published_map()
    assert found.results
    for name, result in found.results.items():
        assert result.protocol == found.protocol.digest
        assert name in {study.name for study in found.protocol.studies}
    assert published.PUBLISHED.stat().st_size < 20_000_000
