"""The live page: its numbers are those of the rounds so far, only this machine reads it, and it ends with the run."""

import http.client
import json
import re
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

import fedskew as fs
from fedskew.cli.app import main
from fedskew.report import live
from fedskew.report.html_page import live_page
from fedskew.report.live import LivePage, serving

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
BITS = (
    "rounds.csv",
    "clients.csv",
    "clients_final.csv",
    "model.safetensors",
    "config.toml",
    "partition.npz",
)


@pytest.fixture(autouse=True)
def a_version_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_EVERY", 0.0)
    monkeypatch.setattr(live, "_SHARE", 1e9)
    monkeypatch.setattr(live, "_LAST", 0.1)


@pytest.fixture(scope="module")
def fed() -> fs.Federation:
    return fs.split(fs.load("digits"), "dirichlet:alpha=0.3", clients=5)


def ask(
    url: str, path: str | None = None, method: str = "GET", **headers: str
) -> tuple[int, bytes, dict[str, str]]:
    """Return status, content and headers of the answer; without its own Host header, that of the address."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=10)
    try:
        connection.putrequest(method, place.path if path is None else path, skip_host=bool(headers))
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())
    finally:
        connection.close()


def data(page: LivePage) -> Any:
    status, content, _ = ask(f"{page.url}data")
    assert status == 200
    return json.loads(content)


def listens(page: LivePage) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", int(urlsplit(page.url).port or 0))) == 0


def test_it_shows_the_rounds_so_far_and_the_run_has_the_same_bits(
    fed: fs.Federation, tmp_path: Path
) -> None:
    seen: list[Any] = []
    with serving(True) as (page,):
        before = data(page)
        settings: dict[str, Any] = {"rounds": 4, "eval_every": 2, "fleet": "mixed"}
        callbacks = [page, lambda result, rounds: seen.append(data(page))]
        run = fs.train(fed, "logreg", folder=tmp_path / "run", callbacks=callbacks, **settings)
        after = data(page)
    assert (before["version"], before["says"], before["ended"]) == (
        0,
        "No round has ended yet.",
        False,
    )
    for number, one in enumerate(seen[:3], 1):
        assert re.fullmatch(rf"Round {number} of 4, about \S+ (s|min) left\.", one["says"])
    assert seen[3]["says"] == "Round 4 of 4."
    assert [one["version"] for one in seen] == [1, 2, 3, 4]
    table = seen[2]["data"]["tables"]["rounds"]
    assert table["round"] == [1, 2, 3]
    assert table["test_accuracy"] == [None, run.rounds["test_accuracy"][1], None]
    cells = seen[0]["data"]["charts"]["matrix"]["series"][0]["data"]
    assert [cell[3] for cell in cells] == fed.partition.counts(fed.train.y, 10).reshape(-1).tolist()
    assert f"<dd>{100 * run.summary['test_accuracy_best']:.1f}\xa0%</dd>" in seen[3]["body"]
    assert "confusion" not in seen[3]["data"]["charts"]
    assert after["ended"]
    assert after["says"] == f"The run has ended. Its page is {tmp_path / 'run/report.html'}."
    same = fs.train(fed, "logreg", folder=tmp_path / "same", **settings)
    for name in BITS:
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "same" / name).read_bytes(), (
            name
        )
    plain, lively = ((tmp_path / name / "report.html").read_text() for name in ("same", "run"))
    told = re.compile(r'<script type="application/json" id="report-data">(.*?)</script>')
    assert told.findall(plain) == told.findall(lively)
    assert json.loads(told.findall(lively)[0]) == after["data"]
    assert 'id="live"' not in lively
    assert "connect-src" not in lively.replace(
        (Path(live.__file__).parent / "vendor/echarts.min.js").read_text(), ""
    )
    assert same.summary["test_accuracy_last"] == run.summary["test_accuracy_last"]


def test_only_two_paths_of_this_machine_are_answered(tmp_path: Path) -> None:
    with serving(True) as (page,):
        place = urlsplit(page.url)
        assert place.hostname == "127.0.0.1"
        assert page._http.socket.getsockname()[0] == "127.0.0.1"
        status, content, headers = ask(page.url)
        assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert b'<p id="live"></p>' in content
        assert b"connect-src 'self'" in content
        assert headers["Content-Security-Policy"] == "frame-ancestors 'none'"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "Python" not in headers["Server"]
        for path in (
            "/",
            "/data",
            f"{place.path}page.js",
            f"{place.path}../../etc/passwd",
            f"{place.path}data?x=1",
            "//",
        ):
            assert ask(page.url, path)[0] == 404, path
        for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS"):
            assert ask(page.url, method=method)[0] == 501
        for host in ("evil.example", f"evil.example:{place.port}", "127.0.0.1", "", "localhost:1"):
            assert ask(page.url, Host=host)[0] == 403, host
        assert ask(page.url, Accept="*/*")[0] == 403  # without a host
        assert ask(page.url, Host=f"localhost:{place.port}")[0] == 200
    assert not listens(page)


@pytest.mark.parametrize("problem", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_run_frees_the_port(
    fed: fs.Federation, tmp_path: Path, problem: type[BaseException]
) -> None:
    def stop(result: Any, rounds: int) -> None:
        raise problem

    threads = threading.active_count()
    pages: list[LivePage] = []

    def interrupted() -> None:
        with serving(True) as (page,):
            pages.append(page)
            fs.train(fed, "logreg", rounds=3, folder=tmp_path / "run", callbacks=[page, stop])

    with pytest.raises(problem):
        interrupted()
    assert not listens(pages[0])
    assert threading.active_count() == threads
    state = json.loads((pages[0].answer(f"{urlsplit(pages[0].url).path}data") or ("", b""))[1])
    assert (state["says"], state["ended"]) == ("The run was stopped. Round 1 of 3.", True)


def test_a_resumed_run_begins_with_its_earlier_rounds(fed: fs.Federation, tmp_path: Path) -> None:
    def stop(result: Any, rounds: int) -> None:
        if result.round["round"] == 2:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fs.train(
            fed, "logreg", rounds=3, folder=tmp_path / "run", checkpoint_every=2, callbacks=stop
        )
    seen: list[Any] = []

    class Look(fs.Callback):
        def on_run_start(self, server: Any, folder: Path | None, rows: Any) -> None:
            seen.append(data(page))

    with serving(True) as (page,):
        fs.resume(tmp_path / "run", fed=fed, callbacks=[page, Look()])
    assert seen[0]["says"].startswith("Round 2 of 3, about ")
    assert seen[0]["data"]["tables"]["rounds"]["round"] == [1, 2]


def test_it_takes_a_small_share_of_the_time(
    fed: fs.Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=0.0, sleep=lambda seconds: None)
    clock.monotonic = lambda: clock.now
    rounds: list[int] = []
    made: list[int] = []
    real = live.run_content

    def slow(run: Any) -> Any:
        made.append(len(rounds))
        clock.now += 0.5
        return real(run)

    def tick(result: Any, of: int) -> None:
        rounds.append(of)
        clock.now += 1.0

    monkeypatch.setattr(live, "time", clock)
    monkeypatch.setattr(live, "run_content", slow)
    monkeypatch.setattr(live, "_SHARE", 0.05)
    monkeypatch.setattr(live, "_LAST", 0.0)
    with serving(True) as (page,):
        fs.train(fed, "logreg", rounds=40, folder=tmp_path / "run", callbacks=[tick, page])
    # The first, the last, and one in 20 times the half second that it takes
    assert made == [1, 11, 21, 31, 40]


def test_first_line_and_curves_are_of_the_same_round(
    fed: fs.Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also between two versions of the page, when rounds go on that it does not show yet."""
    monkeypatch.setattr(live, "_EVERY", 1e9)
    seen: list[Any] = []
    with serving(True) as (page,):
        page._made = -2e9  # the first version is due
        callbacks = [page, lambda result, rounds: seen.append(data(page))]
        fs.train(fed, "logreg", rounds=4, folder=tmp_path / "run", callbacks=callbacks)
    assert len(seen) == 4
    for one in seen:
        assert one["says"].startswith("Round 1 of 4, about ")
        assert one["data"]["tables"]["rounds"]["round"] == [1]


def test_the_time_left_is_that_of_the_last_rounds(fed: fs.Federation, tmp_path: Path) -> None:
    run = live.RunData(fs.train(fed, "logreg", rounds=2, folder=tmp_path / "run"))
    lines = (tmp_path / "run/timing.csv").read_text().splitlines()
    at = lines[0].split(",").index("seconds")
    for number, seconds in ((1, "3.0"), (2, "5.0")):
        cells = lines[number].split(",")
        cells[at] = seconds
        lines[number] = ",".join(cells)
    (tmp_path / "run/timing.csv").write_text("\n".join([*lines, ""]))
    assert live._stands(run, 12) == "Round 2 of 12, about 40 s left."
    assert live._stands(run, 2) == "Round 2 of 2."


def test_an_error_of_the_page_is_a_warning(
    fed: fs.Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(run: Any) -> Any:
        raise ValueError("no chart")

    monkeypatch.setattr(live, "run_content", broken)
    with (
        serving(True) as (page,),
        pytest.warns(UserWarning, match="the live page could not be made.*no chart"),
    ):
        run = fs.train(fed, "logreg", rounds=2, folder=tmp_path / "run", callbacks=[page])
    assert run.summary["rounds"] == 2


def test_names_are_text(tmp_path: Path) -> None:
    nasty = "<script>alert(1)</script>"
    labels = [[nasty, "$x_$"][k % 2] for k in range(60)]
    fed = fs.split((np.random.default_rng(0).normal(size=(60, 2)), labels), "iid", clients=3)
    seen: list[Any] = []
    with serving(True) as (page,):
        fs.train(
            fed, "logreg", rounds=1, folder=tmp_path / "run",
            callbacks=[page, lambda result, rounds: seen.append(data(page))],
        )  # fmt: skip
    assert nasty not in seen[0]["body"]
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in seen[0]["body"]


def call(words: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("sys.argv", ["fedskew", *words.split()])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


def test_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small = "--clients 3 --rounds 2 --skew iid --model logreg"
    assert call(f"run {small} --live --json --folder run", monkeypatch) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["rounds"] == 2
    found = re.match(r"live: http://127\.0\.0\.1:(\d+)/[\w-]{12}/\n", err)
    assert found
    with socket.socket() as one:
        one.bind(("127.0.0.1", int(found[1])))  # it is free again
    assert (
        call(f"run {small} --live --algorithm fedavg --algorithm fedprox --folder two", monkeypatch)
        == 2
    )
    assert not Path("two").exists()


# -- in a browser ------------------------------------------------------------------------------------------------------


@contextmanager
def browser_on(page: LivePage) -> Iterator[Any]:
    """Yield a browser's page that has asked for content; its console may only say that the server is gone."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="needs playwright, which make test installs"
    )
    said: list[str] = []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        shown = browser.new_page(viewport={"width": 1280, "height": 900})
        shown.set_default_timeout(60_000)
        shown.on("console", lambda message: said.append(message.text))
        shown.on("pageerror", lambda problem: said.append(str(problem)))
        with shown.expect_response("**/data"):
            shown.goto(page.url)
        yield shown
        browser.close()
    assert [text for text in said if "ERR_CONNECTION_REFUSED" not in text] == []


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")
def test_a_browser_follows_the_run_to_its_end(
    fed: fs.Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_LAST", 30.0)  # it waits until the browser has the last version
    with serving(True) as (page,), browser_on(page) as shown:
        training = threading.Thread(
            target=fs.train,
            args=(fed, "logreg"),
            kwargs={"rounds": 3, "folder": tmp_path / "run", "callbacks": [page]},
        )
        training.start()
        shown.wait_for_selector("#live[role=status]")
        training.join()
        assert (
            shown.inner_text("#live")
            == f"The run has ended. Its page is {tmp_path / 'run/report.html'}."
        )
        assert shown.inner_text("h1").startswith("fedavg on digits")
        places = shown.locator("[data-chart]").count()
        assert places >= 8  # the confusion matrix, too
        assert shown.get_attribute("html", "data-drawn") == str(places)
        assert shown.locator("[data-chart] svg").count() >= places


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")
def test_a_browser_tells_that_the_server_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_LAST", 0.0)  # as after kill -9: there is no last version
    page = LivePage()
    page.start()
    with browser_on(page) as shown:
        page.stop()
        shown.wait_for_selector("#live[role=status]")
        gone = "The server is gone: the run has ended or was stopped. This is what it showed last."
        assert shown.inner_text("#live") == gone


def test_before_the_first_round(
    fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert b"<h1>Waiting for the first round</h1>" in live_page()
    assert fedskew("run --help") == 0
    said = re.sub(r"[\s│]+", " ", capsys.readouterr().out)
    assert "print an address on this machine; open it in a browser" in said
