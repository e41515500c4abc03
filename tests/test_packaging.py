"""Requirements of an installation: bounds for every dependency, pins within them, and hashes for the base install."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BASE = [Requirement(line) for line in PROJECT["dependencies"]]
FOR_USERS = [
    Requirement(line)
    for name, lines in PROJECT["optional-dependencies"].items()
    if name != "dev"
    for line in lines
]
PINS = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.M))
PINS = {canonicalize_name(name): version for name, version in PINS.items()}


def locked(file: str) -> dict[str, tuple[str, list[str]]]:
    """Return the entries of a lock: version and hashes by name."""
    text = (ROOT / file).read_text()
    blocks = re.findall(
        r"^([\w.-]+)==(\S+)(?: ; [^\n\\]+)?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", text, re.M
    )
    assert len(blocks) == len(re.findall(r"^[\w.-]+==", text, re.M))  # every line has its hashes
    return {
        canonicalize_name(name): (version, re.findall(r"[0-9a-f]{64}", hashes))
        for name, version, hashes in blocks
    }


@pytest.mark.parametrize("needed", [*BASE, *FOR_USERS], ids=lambda needed: needed.name)
def test_an_untested_major_version_is_never_taken(needed: Requirement):
    tested = PINS[canonicalize_name(needed.name)]
    assert needed.specifier.contains(tested), (
        f"{needed} leaves out {tested}, which the tests run with"
    )
    major = int(tested.split(".")[0])
    assert not needed.specifier.contains(f"{major + 1}.0"), (
        f"{needed} takes {major + 1}.0: add an upper bound"
    )


def test_pythons_without_filters_for_tar_archives_are_left_out():
    python = SpecifierSet(PROJECT["requires-python"])
    assert [version for version in ("3.11.3", "3.11.4", "3.12.0", "3.13.2") if python.contains(version)] == [
        "3.11.4", "3.12.0", "3.13.2",
    ]  # fmt: skip


def test_the_base_install_has_a_hash_for_every_pin():
    found = locked("requirements.lock")
    assert {canonicalize_name(needed.name) for needed in BASE} - found.keys() == {
        "torch"
    }  # tools/no-torch.txt says why
    for name, (version, hashes) in found.items():
        assert version == PINS[name], f"requirements.lock has {name} {version}: make lock"
        assert hashes


def test_the_tools_of_developers_have_a_hash_too():
    found = locked("requirements-dev.lock")
    dev = [Requirement(line) for line in PROJECT["optional-dependencies"]["dev"]]
    assert {canonicalize_name(needed.name) for needed in dev} <= found.keys()
    for name, (version, hashes) in found.items():
        assert version == PINS.get(name, version), f"{name} {version}: make lock"
        assert hashes
    assert "hatchling" in locked("tools/build.lock")


def test_nothing_but_pytorch_is_installed_without_a_hash():
    makefile = (ROOT / "Makefile").read_text()
    installs = [line.strip() for line in makefile.splitlines() if line.startswith("\t$(PIP)")]
    assert len(installs) == 4
    unhashed = [
        line for line in installs if "--require-hashes" not in line and "--no-deps" not in line
    ]
    assert unhashed == ["$(PIP) -c constraints.txt torch"]
