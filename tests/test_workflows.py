"""The workflows of the repository, which run elsewhere: what they call is there. The version stands in one place."""

import re
import tomllib
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
if not WORKFLOWS:
    pytest.skip("a source distribution has no workflows", allow_module_level=True)


def test_there_are_workflows_for_tests_docs_releases_and_what_is_scheduled():
    assert [path.stem for path in WORKFLOWS] == ["ci", "docs", "release", "scheduled"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_what_the_makefile_has(path: Path):
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    assert workflow["permissions"] == {"contents": "read"}  # a job that needs more says so itself
    for job in workflow["jobs"].values():
        for step in job["steps"]:
            made = re.match(r"make ([\w-]+)", step.get("run", ""))
            assert made is None or made[1] in targets
            assert "uses" not in step or re.fullmatch(
                r"[\w-]+/[\w-]+@(v\d+|release/v1)", step["uses"]
            )
    assert "secrets." not in path.read_text(encoding="utf-8")


def test_the_version_stands_in_one_place():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "version" not in project
    assert (
        re.search(r"^version:", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.M) is None
    )
    source = (ROOT / "src/fedskew/__init__.py").read_text(encoding="utf-8")
    (version,) = re.findall(r'^__version__ = "(\d+\.\d+\.\d+)"$', source, re.M)
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
