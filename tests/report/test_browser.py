"""The page in a real browser: everything is drawn and printed, without errors and without any request."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import fedskew as fs
from fedskew.report.page import report

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")
# Appended to a copy of the page: what it may not say by itself. Its hash is not allowed, so the policy goes as well.
PROBE = """<script>
window.addEventListener("load", () => {
  const places = [...document.querySelectorAll("[data-chart]")];
  const drawn_now = () => places.filter((place) => place.querySelectorAll("svg path").length > 4).length;
  const drawn_first = drawn_now();
  document.querySelectorAll("input[name=axis]").forEach((choice) => choice.click());
  document.getElementById("theme").click();
  const wide = document.documentElement.scrollWidth > innerWidth;
  window.dispatchEvent(new Event("beforeprint"));
  const found = {
    drawn: drawn_first, printed: drawn_now(), places: places.length, theme: root.dataset.theme,
    axis: axis, wide: wide,
    requests: performance.getEntriesByType("resource").length,
  };
  document.body.innerHTML = Object.entries(found).map(([name, value]) => `${name}=${value};`).join(" ");
});
</script>"""

# The tables of which a part is out of sight
CUT = """[...document.querySelectorAll(".scroll")].filter((one) => one.scrollWidth > one.clientWidth + 1)
  .map((one) => one.getAttribute("aria-label"))"""
# Where the axes of curves end
LAST_ROUNDS = """[...drawn.values()].filter((chart) => chart.getOption().axis)
  .map((chart) => chart.getModel().getComponent("xAxis").axis.scale.getExtent()[1])"""


def browse(page: Path, folder: Path, width: int = 1280, *options: str) -> tuple[str, str]:
    """Return what the browser has made of a page, and what its console says."""
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
        "--enable-logging=stderr", f"--user-data-dir={folder}", f"--window-size={width},900", "--dump-dom",
        "--virtual-time-budget=5000", *options, page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


def with_script(content: str, script: str) -> str:
    """Return a page with a further script at its end."""
    before, end, after = content.rpartition("</body>")
    return before + script + end + after


def probed(page: Path, folder: Path, width: int = 1280) -> dict[str, str]:
    """Return what a script found after it had used the switches of the page."""
    content = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text())
    copy = folder / "probed.html"
    copy.write_text(with_script(content, PROBE))
    dom, console = browse(copy, folder / "probed", width)
    assert console == ""
    return dict(re.findall(r"(\w+)=([^;<]*);", dom))


def runs(folder: Path) -> dict[str, Path]:
    """Return the pages of a run with few clients, of one with many, and of a comparison."""
    few, many = (
        fs.split(fs.load("digits"), "dirichlet:alpha=0.3", clients=count) for count in (10, 250)
    )
    fs.train(few, "logreg", rounds=5, folder=folder / "few")
    fs.train(many, "logreg", "afl-cp", rounds=20, fleet="edge", folder=folder / "many")
    for seed in (0, 1):
        fs.train(
            few, "logreg", "fedprox:mu=1.0", seed=seed, rounds=5, folder=folder / f"prox-{seed}"
        )
    places = [folder / "few", folder / "prox-0", folder / "prox-1"]
    return {
        "few": folder / "few/report.html",
        "many": folder / "many/report.html",
        "several": report(places, folder / "several.html"),
    }


def test_pages_are_drawn(tmp_path: Path) -> None:
    for name, page in runs(tmp_path).items():
        dom, console = browse(page, tmp_path / name)
        assert console == "", name
        places = len(re.findall(r"data-chart=", dom.split('id="report-data"')[0]))
        assert f'data-drawn="{places}"' in dom
        (tmp_path / f"{name}-probe").mkdir()
        found = probed(page, tmp_path / f"{name}-probe", 500)
        assert found["drawn"] == found["printed"] == found["places"] == str(places), (name, found)
        assert found["requests"] == "0"
        assert found["wide"] == "false"
        assert found["theme"] == "dark"
        assert found["axis"] != "round"


def test_names_are_not_run(tmp_path: Path) -> None:
    nasty = "<img src=x onerror=console.error(1)>"
    labels = [
        [nasty, "$x_$", "</script><script>console.error(2)</script>"][k % 3] for k in range(60)
    ]
    fed = fs.split((np.random.default_rng(0).normal(size=(60, 2)), labels), "iid", clients=3)
    fs.train(fed, "logreg", rounds=2, folder=tmp_path / "run")
    dom, console = browse(tmp_path / "run/report.html", tmp_path / "profile")
    assert console == ""
    assert "data-drawn=" in dom
    assert nasty not in dom


def test_a_script_that_is_not_the_pages_own_is_refused(tmp_path: Path) -> None:
    fed = fs.split(
        (np.random.default_rng(0).normal(size=(60, 2)), np.arange(60) % 2), "iid", clients=3
    )
    fs.train(fed, "logreg", rounds=1, folder=tmp_path / "run")
    page = tmp_path / "run/report.html"
    page.write_text(with_script(page.read_text(), "<script>console.error('it ran')</script>"))
    dom, console = browse(page, tmp_path / "profile")
    assert "data-drawn=" in dom
    assert "Content Security Policy" in console
    assert "it ran" not in console


def test_a_reader_uses_the_page_of_a_comparison(tmp_path: Path) -> None:
    """Legends hide and show a method, the axis changes, keys reach the switches, and the page prints."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="needs playwright, which make test installs"
    )
    methods = ["fedavg", "fedprox:mu=1.0", "scaffold"]
    fs.compare(algorithm=methods, seeds="0-2", rounds=3, model="logreg", out=tmp_path / "compared")
    said: list[str] = []
    asked: list[str] = []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda problem: said.append(str(problem)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto((tmp_path / "compared" / "report.html").as_uri())
        page.wait_for_selector("[data-drawn]")
        chart = page.locator("[data-chart]", has=page.locator("svg text", has_text="scaffold")).last
        lines = chart.locator("svg path[stroke]:not([stroke=none])")
        before = lines.count()
        chart.locator("svg text", has_text="scaffold").first.click()
        page.wait_for_timeout(600)
        assert lines.count() < before
        chart.locator("svg text", has_text="scaffold").first.click()
        page.wait_for_timeout(600)
        assert lines.count() == before
        assert set(page.evaluate(LAST_ROUNDS)) == {3}
        page.locator("input[name=axis]").first.focus()
        page.keyboard.press("ArrowRight")
        assert page.locator("input[name=axis]:checked").get_attribute("value") != "round"
        page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
        assert page.evaluate(CUT) == []
        assert page.pdf()[:5] == b"%PDF-"
        page.emulate_media(media="print")
        page.set_viewport_size({"width": 718, "height": 900})  # A4 without its margins
        assert page.evaluate(CUT) == []
        browser.close()
    assert said == []
    assert all(url.startswith(("file:", "data:", "blob:")) for url in asked), asked
