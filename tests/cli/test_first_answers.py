"""What a command does not import: an answer must not wait for a library that it does not need."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fedskew as fs

HEAVY = {"torch", "sklearn", "scipy", "pandas", "matplotlib", "flwr"}
CODE = """
import sys
from fedskew.cli.app import main
try:
    main()
finally:
    print(" ".join(sys.modules), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with runs: a finished one, and some that cannot be resumed."""
    place = tmp_path_factory.mktemp("runs")
    data = fs.load("digits")
    fed = fs.split(data, "iid", clients=2)
    fs.train(fed, "logreg", rounds=1, folder=place / "finished")
    for name in ("changed", "without-workers", "damaged"):
        shutil.copytree(place / "finished", place / name)
        (place / name / "summary.json").unlink()
    with (place / "changed" / "config.toml").open("a") as file:
        file.write("\n")
    checkpoint = next((place / "damaged" / "checkpoints").glob("*.safetensors"))
    checkpoint.write_bytes(b"")
    rows = fs.split((data.train.x, data.train.y), "iid", clients=2)
    fs.train(rows, "logreg", rounds=1, folder=place / "from-python")
    (place / "from-python" / "summary.json").unlink()
    return place


def answered(folder: Path, arguments: str) -> tuple[int, str, set[str]]:
    """Return the exit code of a command in a new process, what it printed, and the modules that it imported."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, *arguments.split()], cwd=folder, capture_output=True, text=True
    )
    *lines, modules = done.stderr.splitlines()
    return done.returncode, done.stdout + "\n".join(lines), set(modules.split())


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ("list", 0, "fedprox"),
        ("list algorithms", 0, "fedprox"),
        ("list skews", 0, "dirichlet"),
        ("list treatments", 0, "noise"),
        ("list data", 0, "digits"),
        ("list models", 0, "logreg"),
        ("list tasks", 0, "regression"),
        ("list fleets", 0, "uniform"),
        ("list schedules", 0, "constant"),
        ("list nothing", 2, "unknown kind 'nothing'"),
        ("status finished", 0, "finished"),
        ("status damaged --json", 0, '"state": "stopped"'),
        ("status nothing", 2, "is not a run folder"),
        ("report --help", 0, "Write one HTML page"),
        ("run --rounds x", 2, "rounds=x is not a whole number"),
        ("run --rounds 2 --round 3", 2, "no such option --round: did you mean --rounds?"),
        ("run --or-resume", 2, "--or-resume needs --folder"),
        ("run nothing.toml", 2, "there is no experiment file nothing.toml"),
        ("compare --or-resume", 2, "--or-resume needs --out"),
        ("resume nothing", 2, "is not a run folder"),
        ("resume changed", 2, "config.toml is damaged"),
        ("resume damaged", 2, "remove checkpoints to start again"),
        ("resume from-python", 2, "its data was a Python object"),
        ("resume without-workers --workers 2", 2, "the run began without workers"),
    ],
)
def test_an_answer_from_files_imports_no_library(folders, arguments, code, text):
    returned, printed, modules = answered(folders, arguments)
    assert text in printed
    assert returned == code
    assert not {*HEAVY, "numpy"} & modules


def test_a_finished_run_is_told_again_without_what_trains(folders):
    returned, printed, modules = answered(folders, "resume finished")
    assert "finished is finished already" in printed
    assert returned == 0
    assert not HEAVY & modules


def test_a_first_run_imports_what_it_needs(folders):
    returned, printed, modules = answered(folders, "run --rounds 1 --folder first")
    assert "report: first/report.html" in printed
    assert returned == 0
    assert "torch" in modules
    assert not {"sklearn", "scipy.stats", "pandas", "matplotlib", "flwr", "sympy"} & modules


def test_measure_imports_what_it_needs(folders):
    returned, printed, modules = answered(folders, "measure --data digits --clients 2")
    assert "digits partitioned by dirichlet" in printed
    assert returned == 0
    assert not {"torch", "matplotlib", "flwr"} & modules
