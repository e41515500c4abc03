"""What nodes are told, and what leaves them: no name of another client, no folder of the server, no rare category."""

import json
import re
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
from tests.deploy.silos import NAMES, SETTINGS, SilosInProcess, write_silos

from fedskew.core.config import Experiment
from fedskew.core.errors import FedskewError
from fedskew.data.fitting import FEWEST_ROWS, ColumnFacts
from fedskew.deploy.deployment import run_on_nodes
from fedskew.deploy.flower_app import Deployment, run_folder
from fedskew.deploy.remote_clients import Nodes


def go(silos: SilosInProcess, folder: Path, **settings: Any) -> Any:
    values = {"data": "silos:label=outcome", "model": "logreg", "algorithm": "scaffold"}
    alias = settings.pop("alias", False)
    experiment = Experiment(**values, **{**SETTINGS, "checkpoint_every": 1, **settings})
    return run_on_nodes(Nodes(silos), len(silos.paths), experiment, folder, alias=alias)


class ByNode(SilosInProcess):
    """Silos that keep what each of them is sent."""

    def ask(self, requests: Any, about: Any, *patience: Any) -> dict[int, bytes]:
        for client, request in requests.items():
            told = self.told.setdefault(self.paths[client].stem, bytearray())
            told += request + json.dumps(dict(about)).encode()
        return super().ask(requests, about, *patience)

    told: ClassVar[dict[str, bytearray]] = {}


def test_a_node_is_told_no_name_and_no_folder(tmp_path: Path):
    silos = ByNode(write_silos(tmp_path), tmp_path / "state")
    silos.told.clear()
    go(silos, tmp_path / "folder_of_the_server" / "run")
    assert silos.told.keys() == set(NAMES)
    for told in silos.told.values():
        assert b"outcome" in told  # it is found what is there
        for name in (*NAMES, "folder_of_the_server", str(tmp_path)):
            assert name.encode() not in told


def test_the_app_names_no_folder_and_the_server_finds_it(tmp_path: Path):
    for name in ("first", "second", "third/of/these"):
        folder = tmp_path / name
        deployment = Deployment(folder, "127.0.0.1:8000", None, 3, 60)
        deployment.write({"data": "silos:label=outcome", "model": "logreg", "algorithm": "fedavg"})
        app = (folder / "app" / "pyproject.toml").read_text()
        assert str(tmp_path) not in app
        assert Path(name).name not in app
        (number,) = re.findall('deployment = "([0-9a-f]{32})"', app)
        if name == "third/of/these":
            assert run_folder(number, tmp_path) == folder / "run"
            with pytest.raises(FedskewError, match=f"{number}.*--runs DIR"):
                run_folder(number, tmp_path / "first")
        assert run_folder(number, folder.parent) == folder / "run"


def test_no_name_is_written_under_aliases(tmp_path: Path):
    silos = SilosInProcess(write_silos(tmp_path), tmp_path / "state")
    done = go(silos, tmp_path / "run", alias=True)
    assert list(done.final_clients["name"]) == ["client 1", "client 2", "client 3"]
    for path in (tmp_path / "run").rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            for name in NAMES:
                assert name.encode() not in content, path.name


def test_a_run_under_aliases_goes_on_with_its_own_nodes_alone(tmp_path: Path):
    class Stopped(SilosInProcess):
        def ask(self, requests: Any, about: Any, *patience: Any) -> dict[int, bytes]:
            if self.rounds.count("Train") == 2:
                raise KeyboardInterrupt
            return super().ask(requests, about, *patience)

    paths = write_silos(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        go(Stopped(paths, tmp_path / "state"), tmp_path / "run", alias=True)
    silos = SilosInProcess(paths, tmp_path / "state")
    other = tmp_path / "clinic.csv"
    silos.paths[0].rename(other)
    silos.paths[0] = other
    with pytest.raises(FedskewError, match="is a run of client 1, client 2, client 3"):
        go(silos, tmp_path / "run", alias=True)
    other.rename(tmp_path / "hospital_A.csv")
    silos.paths = sorted(tmp_path.glob("hospital_?.csv"))
    assert len(go(silos, tmp_path / "run", alias=True).rounds) == 3


def test_rare_rows_are_not_told():
    """Neither which category they have, nor how many they are: the same is told for one to four of them."""
    told = set()
    for rare in range(1, FEWEST_ROWS):
        counts = {"icu": 60 - rare, "ward": 40, "mayor": rare}
        found = ColumnFacts("text", "", 0, counts=counts, texts=3).without_rare()
        assert sum(found.counts.values()) == 100
        told.add(json.dumps([found.counts, found.rare]))
    assert len(told) == 1
    assert "mayor" not in told.pop()


@pytest.mark.parametrize("rows", [1, 4])
def test_a_rare_category_does_not_leave_its_node(tmp_path: Path, rows: int):
    paths = write_silos(tmp_path)
    frame = pd.read_csv(paths[0])
    frame.loc[np.arange(rows), "colour"] = "ultraviolet"
    frame.to_csv(paths[0], index=False)
    silos = SilosInProcess(paths, tmp_path / "state")
    go(silos, tmp_path / "run")
    assert b"ultraviolet" not in b"".join(silos.sent)


@pytest.mark.parametrize(
    ("column", "cell", "options"),
    [
        ("income", "Jane Roe", ""),
        ("outcome", "31337.5", ""),
        ("income", "31337 mg", ""),
        ("outcome", "Jane Roe", ",target=number"),
        ("income", "1.313,37", ",categorical=colour"),
    ],
)
def test_an_error_of_a_node_does_not_quote_its_cells(
    tmp_path: Path, column: str, cell: str, options: str
):
    """The words stay in the log of the node; the server is told which column it is."""
    paths = write_silos(tmp_path)
    frame = pd.read_csv(paths[0], dtype=str)
    if column == "outcome":
        frame["outcome"] = np.where(frame["outcome"] == "sick", "0", "1")
    frame.loc[3, column] = cell
    frame.to_csv(paths[0], index=False)
    silos = SilosInProcess(paths, tmp_path / "state")
    experiment = Experiment(data=f"silos:label=outcome{options}", model="logreg", **SETTINGS)
    with pytest.raises(FedskewError) as caught:
        run_on_nodes(Nodes(silos), 3, experiment, tmp_path / "run")
    assert cell.encode() not in b"".join(silos.sent)
    assert cell not in str(caught.value)
    if "hospital_A" in str(caught.value):
        assert column in str(caught.value)


def test_a_file_that_breaks_during_a_fit_is_not_quoted(tmp_path: Path):
    """What was kept of it does not go any more, so that it is read once more, to count its numbers."""
    paths = write_silos(tmp_path)

    class Breaking(SilosInProcess):
        def ask(self, requests: Any, about: Any, *patience: Any) -> dict[int, bytes]:
            if len(self.rounds) == 1:
                frame = pd.read_csv(paths[0], dtype=str)
                frame.loc[3, "income"] = "31337 mg"
                frame.to_csv(paths[0], index=False)
            return super().ask(requests, about, *patience)

    silos = Breaking(paths, tmp_path / "state")
    with pytest.raises(FedskewError, match=r"hospital_A.*income") as caught:
        go(silos, tmp_path / "run")
    assert "31337" not in str(caught.value)
    assert b"31337" not in b"".join(silos.sent)
