"""Blocks of commands and of Python in README and documentation are run as a reader would; follow.py says which not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.follow import ELSEWHERE, blocks, commands

ROOT = Path(__file__).parents[2]
ELSEWHERE_RUN = {"tutorial-silos.md"}  # with its scripts and its numbers, by tests/examples
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += sorted((ROOT / "docs" / "replication").glob("*.md"))
# Py: a part of a file, which is not run
KNOWN = {"sh", "python", "toml", "text", "{toctree}", "csv", "py"}


def _languages(page: Path) -> set[str]:
    return {language for language, _ in blocks(page.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_says_what_it_is(page: Path):
    assert _languages(page) <= KNOWN
    for language, block in blocks(page.read_text(encoding="utf-8")):
        for command in commands(block) if language == "sh" else []:
            assert command.startswith(("fedskew ", "python ", *ELSEWHERE)), command


RUN = [
    page for page in PAGES if page.name not in ELSEWHERE_RUN and _languages(page) & {"sh", "python"}
]


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_the_blocks_of_a_page(page: Path, tmp_path: Path):
    follow = [sys.executable, str(Path(__file__).with_name("follow.py")), str(page)]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "MPLBACKEND": "agg",
        "PYTHONWARNINGS": "ignore",
    }
    ended = subprocess.run(
        follow, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment
    )
    assert ended.returncode == 0, f"{ended.stdout[-3000:]}\n{ended.stderr[-3000:]}"
