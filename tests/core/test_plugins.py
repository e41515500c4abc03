"""Modules of one's own: by path, by name and as entry points of installed packages; errors of one line with the fix."""

import hashlib
import os
import py_compile
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import fedskew.algorithms
from fedskew.algorithms.contract import algorithms, resolve
from fedskew.core.errors import FedskewError
from fedskew.core.plugins import Imported, digest_of, import_again, import_modules, imported
from fedskew.models.network import models
from fedskew.skew.skews import skews, treatments

pytestmark = pytest.mark.usefixtures("forget_own")

METHOD = '''from dataclasses import dataclass
from fedskew.algorithms import FedAvg, algorithms

@algorithms.register("{name}")
@dataclass(frozen=True)
class Mine(FedAvg):
    """A method of my own."""

    mu: float = 0.5
'''


def written(place: Path, text: str = METHOD.format(name="mine")) -> str:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    return str(place)


def test_a_file_is_a_module_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = written(tmp_path / "my-methods.py")
    monkeypatch.chdir(tmp_path)
    import_modules(["my-methods.py", source])  # the same file: once
    assert resolve("mine:mu=2").options()["mu"] == 2
    sha = hashlib.sha256(Path(source).read_bytes()).hexdigest()
    assert imported() == [Imported("my_methods", source, sha)]
    assert sys.modules["my_methods"].Mine is algorithms.get("mine")
    assert "mine" in list(algorithms)


def test_files_of_a_folder_may_import_each_other(tmp_path: Path) -> None:
    second = (
        "from first_own import Mine\nfrom fedskew.algorithms import algorithms\n"
        'algorithms.register("twin")(Mine)\n'
    )
    written(tmp_path / "first_own.py")
    import_modules([written(tmp_path / "second_own.py", second), str(tmp_path / "first_own.py")])
    assert algorithms.get("twin") is algorithms.get("mine")
    assert [one.module for one in imported()] == ["second_own", "first_own"]


def test_a_file_that_only_imports_another_may_be_named_again(tmp_path: Path) -> None:
    written(tmp_path / "first_own.py")
    for _ in range(2):
        import_modules([written(tmp_path / "second_own.py", "import first_own\n")])
    assert [one.module for one in imported()] == ["second_own"]


def test_the_code_that_runs_is_that_of_the_checksum(tmp_path: Path) -> None:
    """Check that a file compiled earlier, with the same size and time, does not run in its place."""
    source = written(tmp_path / "own.py", METHOD.format(name="once"))
    py_compile.compile(source)
    before = (tmp_path / "own.py").stat()
    written(tmp_path / "own.py", METHOD.format(name="then"))
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    import_modules([source])
    assert "then" in algorithms
    assert "once" not in algorithms


def test_another_process_imports_the_same_code(
    tmp_path: Path, forget_own: Callable[[], None]
) -> None:
    source = written(tmp_path / "own.py")
    import_modules([source])
    first = imported()
    forget_own()
    import_again(first)
    assert imported() == first
    forget_own()
    written(tmp_path / "own.py", METHOD.format(name="other"))
    with pytest.raises(FedskewError, match=r"own\.py: the code has changed while the run began"):
        import_again(first)


def test_a_module_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "my_package" / "__init__.py", "from my_package import methods\n")
    written(tmp_path / "my_package" / "methods.py")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    import_modules(["my_package"])
    import_modules(["my_package"])
    assert "mine" in algorithms
    assert [(one.module, one.source) for one in imported()] == [("my_package", "my_package")]
    began = digest_of("my_package.methods")
    (tmp_path / "my_package" / "methods.py").write_text(METHOD.format(name="mine") + "# more\n")
    assert digest_of("my_package.methods") != began
    assert digest_of("my_package") == imported()[0].sha256  # as it was imported
    assert digest_of("no_such_module") is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 1\nx = = 2\n", r"own\.py, line 2: invalid syntax$"),
        ("x = 1\n\n1 / 0\n", r"own\.py, line 3: ZeroDivisionError: division by zero$"),
        (
            "import no_such_module\n",
            r"own\.py, line 1: ModuleNotFoundError: No module named 'no_such_module'$",
        ),
        ("import sys\nsys.exit(3)\n", r"own\.py, line 2: SystemExit: 3$"),
        ("import json\njson.loads('{')\n", r"own\.py, line 2: JSONDecodeError: "),
        ("x = '\0'\n", r"null bytes"),
        (
            "x = 1\n",
            r'registers nothing: write @algorithms\.register\("name"\) before a class of your own',
        ),
        ("from fedskew.algorithms import FedProx\n", "registers nothing"),
        (
            METHOD.format(name="fedavg"),
            r"'fedavg' is registered twice, by fedskew\.algorithms\.fedavg\.FedAvg and own\.Mine: choose another name$",
        ),
        (
            "from fedskew.skew.skews import treatments\n@treatments.register('iid')\ndef mine(rows):\n    'Mine.'\n",
            r"treatment 'iid' is registered twice, by fedskew\.skew\.\w+\.\w+ and own\.mine: choose another name$",
        ),
        (METHOD.format(name="a + b"), r"algorithm 'a \+ b': write its name with letters"),
        (
            "from fedskew.models.network import models\nmodels.register('m')(lambda s, c: 0)\n",
            "needs a docstring",
        ),
    ],
)
def test_what_cannot_be_imported_is_told_in_one_line(text: str, says: str, tmp_path: Path) -> None:
    source = written(tmp_path / "own.py", text)
    with pytest.raises(FedskewError, match=says) as caught:
        import_modules([source])
    assert str(caught.value).startswith(f"--import {source}")
    assert imported() == []
    if "registers nothing" not in says:
        assert "own" not in sys.modules


def test_a_clash_is_told_of_the_file_in_a_new_process(tmp_path: Path) -> None:
    """Check that it is the file's fault although the module with the built-in name would only be imported later."""
    code = (
        "from fedskew.models.network import models\n"
        "@models.register('mlp')\ndef mine(shape, classes):\n    'Mine.'\n"
    )
    command = [
        sys.executable,
        "-m",
        "fedskew",
        "--import",
        written(tmp_path / "own.py", code),
        "list",
        "models",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert (
        "model 'mlp' is registered twice, by fedskew.models.dense.mlp and own.mine: choose another"
        in done.stderr
    )


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("nowhere.py", "--import nowhere.py: there is no such file"),
        ("a-folder/nowhere", "--import a-folder/nowhere: there is no such file"),
        (
            "no_such_module",
            "there is no such module: install its package, or give the path of a .py file",
        ),
        ("fedskew.no_such_module", "there is no such module"),
        ("fedskew.algorithms.fedprox", "registers nothing"),
        ("", "there is no such file"),
    ],
)
def test_what_is_not_there(source: str, says: str) -> None:
    with pytest.raises(FedskewError, match=says):
        import_modules([source])


@pytest.mark.parametrize("name", ["json", "wave", "sys", "fedskew", "__main__"])
def test_a_file_never_stands_in_for_another_module(name: str, tmp_path: Path) -> None:
    with pytest.raises(FedskewError, match=f"another module has the name {name}: rename the file"):
        import_modules([written(tmp_path / f"{name}.py")])


# -- entry points ------------------------------------------------------------------------------------------------------


def installed(folder: Path, name: str, entries: str, code: str) -> None:
    """Write a package as an installer would."""
    written(folder / f"{name}.py", code)
    written(
        folder / f"{name}-1.5.dist-info" / "METADATA",
        f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n",
    )
    written(folder / f"{name}-1.5.dist-info" / "entry_points.txt", entries)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def test_a_package_is_imported_when_a_name_is_not_known(site: Path) -> None:
    installed(
        site, "made_up", "[fedskew.algorithms]\nany = made_up\n", METHOD.format(name="packed")
    )
    assert resolve("fedprox").label() == "fedprox"
    assert fedskew.algorithms.FedProx is algorithms.get("fedprox")
    assert "made_up" not in sys.modules
    assert resolve("packed:mu=2").options()["mu"] == 2
    assert "made_up" in sys.modules
    assert imported() == []


def test_a_package_is_imported_when_all_are_listed(site: Path) -> None:
    code = (
        "from fedskew.models.network import models\nfrom fedskew.skew.skews import skews, treatments\n"
        "def thing(*given):\n    '''A thing.'''\n"
        "models.register('m')(thing)\nskews.register('s')(thing)\ntreatments.register('t')(thing)\n"
    )
    installed(
        site,
        "made_up",
        "[fedskew.models]\nany = made_up:thing\n[fedskew.treatments]\nother = made_up\n",
        code,
    )
    assert (
        str(skews.choose("dirichlet:alpha=1 + noise:sigma=1"))
        == "dirichlet:alpha=1.0 + noise:sigma=1.0"
    )
    assert "made_up" not in sys.modules
    assert "m" in list(models)
    assert "s" in list(skews)
    assert "t" in list(treatments)


def test_a_broken_package_is_named_in_a_warning(site: Path, forget_own: Callable[[], None]) -> None:
    entries = "[fedskew.algorithms]\nbad = broken\nworse = broken:Nothing\n"
    installed(site, "broken", entries, "raise RuntimeError('two\\nlines')\n")
    installed(
        site, "clashing", "[fedskew.algorithms]\nany = clashing\n", METHOD.format(name="fedavg")
    )
    installed(
        site, "made_up", "[fedskew.algorithms]\nany = made_up\n", METHOD.format(name="packed")
    )
    with pytest.warns(UserWarning, match="cannot be loaded") as caught:
        assert "packed" in list(algorithms)
    texts = sorted(str(one.message) for one in caught)
    assert texts[0] == (
        "broken 1.5: its entry point bad = broken (fedskew.algorithms) cannot be loaded (RuntimeError: two lines): "
        "update or uninstall broken"
    )
    assert texts[2].startswith("clashing 1.5: ")
    assert "by fedskew.algorithms.fedavg.FedAvg and clashing.Mine" in texts[2]
    assert len(texts) == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "packed" in list(algorithms)  # told once
