"""The documentation is built without a warning, its notebooks included, and its pages load nothing from elsewhere."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    not all(map(find_spec, ("sphinx", "furo", "myst_nb"))),
    reason="needs sphinx, furo and myst-nb: make pages installs them",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the site, built from a copy of the pages."""
    place = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-d",
        str(place / "trees"),
        "-b",
        "html",
    ]
    ended = subprocess.run(
        [*command, str(ROOT / "docs"), str(place / "html")],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert ended.returncode == 0, ended.stderr[-5000:]
    return place / "html"


def test_every_page_is_there(site: Path):
    written = {
        path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")
    }
    notebooks = {
        path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").glob("*.ipynb")
    }
    made = {path.relative_to(site).with_suffix("") for path in site.rglob("*.html")}
    assert len(notebooks) == 2
    assert written | notebooks <= made
    for name in ("train", "compare", "split", "measure", "Federation", "FederatedClassifier"):
        assert f'id="fedskew.{name}"' in (site / "reference" / "python.html").read_text(
            encoding="utf-8"
        )
    assert "fedskew compare" in (site / "reference" / "commands.html").read_text(encoding="utf-8")
    assert 'id="stratify-batch"' in (site / "reference" / "components.html").read_text(
        encoding="utf-8"
    )


def test_nothing_is_loaded_from_elsewhere(site: Path):
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe|source)[^>]*\ssrc=[\"']([^\"']+)", text)
        loaded += re.findall(
            r"<link[^>]*rel=[\"'](?:stylesheet|preload|icon)[\"'][^>]*href=[\"']([^\"']+)", text
        )
        assert not [one for one in loaded if one.startswith(("http:", "https:", "//"))], page
    for style in site.rglob("*.css"):
        assert not re.findall(r"url\(\s*[\"']?(?:https?:)?//", style.read_text(encoding="utf-8")), (
            style
        )


def test_notebooks_show_what_they_made(site: Path):
    for name in ("notebook-heterogeneity", "notebook-compare"):
        text = (site / f"{name}.html").read_text(encoding="utf-8")
        assert "_images/" in text or "<svg" in text  # a figure
        assert "Traceback" not in text
