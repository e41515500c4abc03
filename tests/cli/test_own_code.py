"""Methods, skews and models of one's own on the command line: run, TOML files, list, comparisons, resume, workers."""

import importlib
import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedskew as fs
from fedskew.core.plugins import import_modules
from fedskew.runs.choices import brief

CODE = '''
import os
from dataclasses import dataclass

import numpy as np
from torch import nn

from fedskew import Partition
from fedskew.algorithms import FedAvg, algorithms, proximal
from fedskew.data.convert import from_arrays
from fedskew.data.dataset import datasets
from fedskew.models.network import Network, models
from fedskew.skew.skews import skews


@algorithms.register("mine")
@dataclass(frozen=True)
class Mine(FedAvg):
    """A proximal term of my own.

    Args:
        mu: strength of my term
    """

    mu: float = 0.5

    def linear_correction(self, view):
        return proximal(view.start, dict.fromkeys(view.start, self.mu))

    def metrics(self, server_state):
        if os.path.exists("stop"):
            os.remove("stop")
            raise KeyboardInterrupt
        return {}


@skews.register("alternate")
def alternate(rows, clients, stream, /, *, first: int = 0):
    """Every client gets every n-th row.

    Args:
        first: client of the first row
    """
    return Partition.from_owner((np.arange(len(rows)) + first) % clients, clients)


@datasets.register("spots")
def spots(*, rows: int = 80):
    """Rows of my own.

    Args:
        rows: how many
    """
    return from_arrays((np.random.default_rng(0).normal(size=(rows, 64)), np.arange(rows) % 3))


class Narrow(Network):
    """A network with a module of its own."""


@models.register("narrow")
def narrow(shape, classes, /, *, width: int = 4):
    """A narrow network.

    Args:
        width: units of its hidden layer
    """
    return Narrow(nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU()), width, classes)
'''
OWN = (
    "--algorithm mine:mu=0.25 --skew alternate:first=1 --model narrow:width=3 --data spots:rows=120 --clients 4 "
    "--threads 1 --device cpu"
)
TABLES = (
    "rounds.csv",
    "clients.csv",
    "clients_final.csv",
    "model.safetensors",
    "config.toml",
    "partition.npz",
)

Command = Callable[[str], Any]


@pytest.fixture
def own(
    tmp_path: Path,
    fedskew: Command,
    forget_own: Callable[[], None],
) -> Command:
    """Return the command line, with a file ``own.py`` in its folder; every call begins as a new process would."""
    (tmp_path / "own.py").write_text(CODE)

    def call(command: str) -> Any:
        forget_own()
        return fedskew(command)

    return call


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    *_, last = capsys.readouterr().err.splitlines()
    assert last.startswith("fedskew: ")
    return last


def test_on_the_command_line_and_in_a_file(own: Command, tmp_path: Path) -> None:
    assert own(f"--import own.py run {OWN} --rounds 2 --folder run") == 0
    found = tomllib.loads(Path("run/config.toml").read_text())
    assert found["algorithm"] == {"name": "mine", "weights": "none", "mu": 0.25}
    assert found["skew"] == {"name": "alternate", "first": 1}
    assert found["model"] == {"name": "narrow", "width": 3}
    assert found["data"] == {"name": "spots", "rows": 120}
    summary = json.loads(Path("run/summary.json").read_text())
    assert [summary[name] for name in ("algorithm", "skew", "model")] == [
        "mine:mu=0.25",
        "alternate:first=1",
        "narrow:width=3",
    ]
    facts = json.loads(Path("run/environment.json").read_text())
    assert facts["algorithm"]["class"] == "own.Mine"
    assert [(one["module"], one["source"]) for one in facts["imports"]] == [
        ("own", str(tmp_path / "own.py"))
    ]
    assert own("--import own.py run run/config.toml --folder again") == 0
    for name in TABLES:
        assert Path("run", name).read_bytes() == Path("again", name).read_bytes(), name


def test_lists_have_them(own: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert own("--import own.py list") == 0
    text = capsys.readouterr().out
    for line in (
        "mine  A proximal term of my own.",
        "mu=  strength of my term (a number; default 0.5)",
        "first=",
        "width=",
    ):
        assert line in text
    assert own("list") == 0
    assert "my own" not in capsys.readouterr().out


def test_without_the_option_the_error_names_it(
    own: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ("--algorithm mine", "--skew alternate", "--model narrow", "--data spots"):
        assert own(f"run {words} --rounds 1") == 2
        assert complaint(capsys).endswith(" (one of your own: fedskew --import FILE)")
    assert own("--import nowhere.py list") == 2
    assert complaint(capsys) == "fedskew: --import nowhere.py: there is no such file"
    assert own("--help") == 0
    assert "Importing runs its code" in " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_a_run_is_resumed_with_the_same_import_alone(
    own: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"--import own.py run {OWN} --rounds 3 --checkpoint-every 1 --folder"
    assert own(f"{words} whole") == 0
    Path("stop").touch()
    assert own(f"{words} run") == 130
    assert f"resume with: fedskew --import {tmp_path}/own.py resume run" in capsys.readouterr().err
    shutil.copytree("run", "other")

    assert own("resume run") == 2
    told = complaint(capsys)
    assert (
        f"the run uses code of {tmp_path}/own.py: if you trust that code, import it again:" in told
    )
    assert told.endswith(f"fedskew --import {tmp_path}/own.py resume run")
    assert "own" not in sys.modules
    assert own("resume run --force") == 2
    assert "if you trust that code" in complaint(capsys)
    assert "own" not in sys.modules
    with pytest.raises(fs.FedskewError, match="if you trust that code, import it again"):
        fs.resume("run")

    Path("own.py").write_text(CODE + "# changed\n")
    assert own("--import own.py resume run") == 2
    assert (
        "own.py is not that with which the run began: put it back, or resume anyway: "
        in complaint(capsys)
    )
    assert own("--import own.py resume other --force") == 0
    Path("own.py").unlink()
    assert own("resume run") == 2
    assert f"code of {tmp_path}/own.py (which is not there any more): " in complaint(capsys)

    Path("moved").mkdir()
    Path("moved/own.py").write_text(CODE)
    assert own("--import moved/own.py resume run") == 0
    for name in TABLES:
        assert Path("run", name).read_bytes() == Path("whole", name).read_bytes(), name


def test_a_comparison_is_resumed_with_the_same_import_alone(
    own: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"--import own.py compare {OWN} --algorithm fedavg --rounds 2 --out"
    assert own(f"{words} group") == 0
    shutil.rmtree("group/mine-mu-0.25-s0")
    assert own("resume group") == 2
    assert "import it again" in complaint(capsys)
    Path("own.py").write_text(CODE + "# changed\n")
    assert own("--import own.py resume group") == 2
    assert "is not that with which the run began" in complaint(capsys)
    Path("own.py").write_text(CODE)
    assert own("--import own.py resume group") == 0
    assert Path("group/mine-mu-0.25-s0/summary.json").exists()


@pytest.mark.parametrize(
    "imports", [3, [3], [{}], [{"module": "os"}], [{"module": ["os"], "source": 1, "sha256": {}}]]
)
def test_a_strange_list_of_imports_is_refused(
    imports: Any, own: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("stop").touch()
    assert own(f"--import own.py run {OWN} --rounds 2 --folder run") == 130
    facts = Path("run/environment.json")
    facts.write_text(json.dumps({**json.loads(facts.read_text()), "imports": imports}))
    assert own("--import own.py resume run") == 2
    assert complaint(capsys).startswith("fedskew: run")


def test_workers_import_it_too(own: Command, tmp_path: Path) -> None:
    Path("my-own.py").write_text(CODE)  # a name that a worker cannot import by itself
    run = [
        sys.executable,
        "-m",
        "fedskew",
        "--import",
        "my-own.py",
        "run",
        *OWN.split(),
        "--rounds",
        "2",
        "--workers",
    ]
    for workers in ("1", "2"):
        done = subprocess.run(
            [*run, workers, "--folder", workers], capture_output=True, text=True, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        *run[1:-1],
        "--folder",
        "torchrun",
    ]
    done = subprocess.run(torchrun, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for name in ("rounds.csv", "clients.csv", "model.safetensors"):
        assert (
            Path("1", name).read_bytes()
            == Path("2", name).read_bytes()
            == Path("torchrun", name).read_bytes()
        )


def test_in_python_a_plain_import_is_enough(
    own: Command, forget_own: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("stop").touch()
    assert own(f"--import own.py run {OWN} --rounds 2 --folder run") == 130
    forget_own()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    importlib.import_module("own")
    assert fs.resume("run").summary["algorithm"] == "mine:mu=0.25"


def test_what_is_not_registered_is_recorded_and_refused(
    own: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    fed = fs.split(fs.load("digits"), "iid", clients=3)
    Path("plain.py").write_text(CODE.replace('@algorithms.register("mine")', ""))
    import_modules(["plain.py"])
    module = sys.modules["plain"]
    run = fs.train(
        fed,
        module.Narrow(module.nn.Flatten(), 64, 10),
        module.Mine(mu=0.125),
        rounds=1,
        folder="run",
    )
    assert run.summary["algorithm"] == "plain.Mine:weights=none,mu=0.125"
    assert run.summary["model"] == "plain.Narrow"
    found = tomllib.loads(Path("run/config.toml").read_text())
    assert found["algorithm"] == {
        "name": "from-python",
        "class": "plain.Mine",
        "weights": "none",
        "mu": 0.125,
    }
    both = fs.train(fed, "logreg", module.Mine() + fs.Median(), rounds=1, folder=False)
    assert both.summary["algorithm"].startswith(
        "plain.Mine + fedskew.algorithms.robust.Median:weights=none,mu=0.5"
    )
    assert brief("algorithm", {"name": "from-python", "mu": 1}) == "from-python:mu=1"
    assert own("run run/config.toml --model logreg") == 2
    told = complaint(capsys)
    assert (
        "algorithm=from-python stands for a Python object (plain.Mine): run it from Python, "
        in told
    )
    assert "fedskew --import FILE run" in told
