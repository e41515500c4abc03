"""The pages agree with the package: hooks, requirements, rooms; and links from outside of the site find their page."""

import re
from pathlib import Path
from typing import get_args

import pytest
from tests.test_house import HOOKS, ORDER

from fedskew.algorithms.contract import Requirement
from fedskew.cli import listing

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
OUTSIDE = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
OUTSIDE += sorted((ROOT / "examples").rglob("README.md"))
LINK = re.compile(r"\]\(([^)#:]+\.md)(?:#([\w-]+))?\)")


def first_cells(page: str) -> list[str]:
    """Return what stands in the first cell of each row of the tables of a page."""
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    return [line.split("|")[1] for line in lines if line.startswith("| `")]


def quoted(page: str) -> set[str]:
    """Return the names in these cells, a hook without its arguments."""
    found = re.findall(r"`([\w.]+)", " ".join(first_cells(page)))
    return {name.removesuffix(".py") for name in found}


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    bare = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.replace(" ", "-") for heading in bare}


def test_the_page_of_hooks_has_all_of_them():
    assert set(get_args(Requirement)) | HOOKS <= quoted("hooks.md")
    assert f"## The {len(HOOKS)} hooks" in (DOCS / "hooks.md").read_text(encoding="utf-8")


def test_the_page_of_the_rooms_has_all_of_them():
    rooms = set().union(*ORDER) - {"__main__"}
    assert quoted("architecture.md") == rooms


@pytest.mark.parametrize("page", OUTSIDE, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_find_their_page(page: Path):
    links = LINK.findall(page.read_text(encoding="utf-8"))
    for target, anchor in links:
        aim = (page.parent / target).resolve()
        assert aim.is_file(), target
        assert not anchor or anchor in anchors(aim), f"{target}#{anchor}"


def test_the_landing_page_says_how_many_methods_there_are():
    known = listing.components(["algorithms"])["algorithms"].values()
    methods = sum(not listed["addition"] for listed in known) - 2  # without central and local
    page = " ".join((DOCS / "index.md").read_text(encoding="utf-8").split())
    assert f"trains them with {methods} methods" in page
