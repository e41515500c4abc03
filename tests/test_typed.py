"""What type checkers see of the library: its names, the options of methods, and the examples that users begin with."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedskew as fs
from fedskew import algorithms

HERE = Path(__file__).parents[1]
SOURCE = HERE / "src"
WRONG = """import fedskew as fs

fs.FedProx(mux=3)
fs.trian
"""


def imported(module: Path) -> dict[str, str]:
    """Return the names that a module imports for type checkers alone, each with the module that it is from."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    found = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        for name in node.names:
            assert name.name == name.asname
            found[name.name] = str(node.module)
    return found


def test_the_front_door_is_what_python_finds():
    methods = {kind.__name__: "fedskew.algorithms" for kind in algorithms._classes()}
    assert imported(SOURCE / "fedskew/__init__.py") == {**methods, **fs._PUBLIC}


def test_the_contract_is_what_python_finds():
    methods = {kind.__name__: kind.__module__ for kind in algorithms._classes()}
    assert imported(SOURCE / "fedskew/algorithms/__init__.py") == {
        **methods,
        **algorithms._CONTRACT,
    }


def block(page: str, language: str) -> str:
    """Return the first block of a page in this language."""
    text = (HERE / page).read_text(encoding="utf-8")
    found = re.search(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    assert found
    return found[1]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return a folder with the method of CONTRIBUTING, the Python of README, and what must be found."""
    method = (
        block("CONTRIBUTING.md", "py")
        .replace('"fedprox"', '"mine"')
        .replace("class FedProx", "class Mine")
    )
    derived = "\n\nimport fedskew as fs\n\n\nclass Own(fs.FedAvg):\n    pass\n"
    (tmp_path / "method.py").write_text(method + derived, encoding="utf-8")
    (tmp_path / "readme.py").write_text(block("README.md", "python"), encoding="utf-8")
    (tmp_path / "wrong.py").write_text(WRONG, encoding="utf-8")
    return tmp_path


def test_mypy(files: Path):
    pytest.importorskip("mypy")
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file",
        str(HERE / "pyproject.toml"),
    ]
    command += ["--cache-dir", str(HERE / ".mypy_cache"), "--no-error-summary"]
    told = subprocess.run(
        [*command, "method.py", "readme.py", "wrong.py"],
        cwd=files,
        env={**os.environ, "MYPYPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line for line in told.stdout.splitlines() if ": error: " in line]
    assert len(errors) == 2, told.stdout + told.stderr
    assert 'wrong.py:3: error: Unexpected keyword argument "mux" for "FedProx"' in errors[0]
    assert 'wrong.py:4: error: Module has no attribute "trian"' in errors[1]


def test_pyright(files: Path):
    pytest.importorskip("pyright")
    (files / "pyrightconfig.json").write_text(
        f'{{"extraPaths": ["{SOURCE.as_posix()}"]}}', encoding="utf-8"
    )
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable]
    told = subprocess.run(command, cwd=files, capture_output=True, text=True, check=False)
    if not re.search(r"^\d+ errors?, ", told.stdout, flags=re.MULTILINE):
        pytest.skip(
            f"pyright, which npm brings at its first use, cannot be run here: {told.stderr[-200:]}"
        )
    errors = [line.strip() for line in told.stdout.splitlines() if " - error: " in line]
    assert len(errors) == 2, told.stdout
    assert 'wrong.py:3:12 - error: No parameter named "mux"' in errors[0]
    assert 'wrong.py:4:4 - error: "trian" is not a known attribute of module "fedskew"' in errors[1]
