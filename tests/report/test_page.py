"""The page of a run: its numbers are those of the tables, names are text, and nothing is loaded from elsewhere."""

import csv
import hashlib
import html
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedskew as fs
from fedskew.core.errors import FedskewError
from fedskew.report.charts import curves, heat_map, histogram, lorenz
from fedskew.report.page import report
from fedskew.study.run_data import RunData

SIZE = 3_000_000
NASTY = "<script>alert(1)</script>"


def federation(clients: int = 8) -> fs.Federation:
    return fs.split(fs.load("digits"), "dirichlet:alpha=0.3", clients=clients)


def trained(folder: Path, algorithm: str = "fedavg", clients: int = 8, **settings: Any) -> Path:
    fs.train(federation(clients), "logreg", algorithm, folder=folder, **{"rounds": 3, **settings})
    return folder


class Page(HTMLParser):
    """The elements of a page, and the text outside of scripts."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.content = path.read_text()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.data = self.script = ""
        self._inside = ""
        self.feed(self.content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = (dict(attrs).get("type") or tag) if tag in ("script", "style") else ""

    def handle_data(self, data: str) -> None:
        if self._inside == "application/json":
            self.data += data
        elif not self._inside:
            self.text += data

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    @property
    def json(self) -> Any:
        return json.loads(self.data)

    @property
    def charts(self) -> set[str]:
        return {
            str(attributes["data-chart"])
            for _, attributes in self.elements
            if "data-chart" in attributes
        }


def column(path: Path, name: str) -> list[float | None]:
    with path.open() as file:
        return [float(row[name]) if row[name] else None for row in csv.DictReader(file)]


def test_the_numbers_are_those_of_the_tables(tmp_path: Path) -> None:
    folder = trained(tmp_path / "run", eval_every=2, rounds=5, fleet="mixed")
    page, found = Page(folder / "report.html"), fs.open_run(folder)
    table = page.json["tables"]["rounds"]
    for name in ("round", "test_accuracy", "test_loss", "train_balanced_accuracy"):
        assert table[name] == column(folder / "rounds.csv", name)
    assert table["test_accuracy"][0] is None  # not evaluated in that round
    sent = np.cumsum(found.rounds["bytes_down"] + found.rounds["bytes_up"])
    assert table["sent (kB)"] == pytest.approx(sent / 1e3)
    assert table["clock (s)"] == column(folder / "rounds.csv", "clock")
    best = found.summary["test_accuracy_best_round"]
    assert [
        n for n, value in zip(table["round"], table["best round"], strict=True) if value is not None
    ] == [best]
    cells = page.json["charts"]["matrix"]["series"][0]["data"]
    counts = federation().partition.counts(federation().train.y, 10)
    assert [cell[3] for cell in cells] == counts.reshape(-1).tolist()
    assert (
        page.json["charts"]["sizes"]["series"][0]["data"] == federation().partition.sizes.tolist()
    )
    assert found.confusion is not None
    assert [cell[3] for cell in page.json["charts"]["confusion"]["series"][0]["data"]] == [
        int(count) for count in found.confusion.to_numpy().reshape(-1)
    ]
    assert f"Gini coefficient {found.summary['gini_of_client_weights']:.3f}" in page.text


def test_nothing_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    path = trained(tmp_path / "run") / "report.html"
    page = Page(path)
    assert path.stat().st_size < SIZE
    for tag, attributes in page.elements:
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            assert re.match(r"#|data:,$", attributes.get(name) or "#"), (tag, attributes)
    library = (Path(fs.__file__).parent / "report/vendor/echarts.min.js").read_text()
    assert library in page.content
    rest = page.content.replace(library, "")
    assert not re.search(r"https?:|@import|url\(", rest)
    assert "default-src 'none'" in rest


def test_the_vendored_file_is_the_recorded_one() -> None:
    vendor = Path(fs.__file__).parent / "report/vendor"
    digest = hashlib.sha256((vendor / "echarts.min.js").read_bytes()).hexdigest()
    assert digest in (vendor / "README.md").read_text()
    assert "Apache License" in (vendor / "LICENSE").read_text()


def test_names_are_shown_and_not_run(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    names = [NASTY, "$x_$", "${title}", "a & b", "{b}", '"quoted"']
    frame = pd.DataFrame({"a": random.normal(size=120), "b": random.normal(size=120)})
    frame["label"] = [names[k % 6] for k in range(120)]
    frame["site"] = [f"{NASTY}{k % 3}" for k in range(120)]
    frame.to_csv(tmp_path / "table.csv", index=False)
    fed = fs.split(fs.load(f"{tmp_path}/table.csv:label=label,group=site"), "natural")
    fs.train(fed, "logreg", rounds=2, folder=tmp_path / "run")
    page = Page(tmp_path / "run/report.html")
    assert NASTY not in page.content
    assert sum(tag == "script" for tag, _ in page.elements) == 3  # data, library, page
    assert page.text.count(NASTY) >= 2
    for name in names:
        assert html.escape(name) in page.content
        assert name in page.json["charts"]["confusion"]["xAxis"]["data"]
    assert page.json["charts"]["sizes"]["xAxis"]["data"] == [f"{NASTY}{k}" for k in range(3)]


USUAL = {
    "accuracy",
    "loss",
    "balanced_accuracy",
    "matrix",
    "sizes",
    "clients",
    "lorenz",
    "participation",
    "confusion",
}
PANELS: dict[str, tuple[set[str], dict[str, Any]]] = {
    "fedavg": (set(), {}),
    "fedprox-layers": ({"mu", "drift"}, {}),
    "fedpbs": ({"vulnerable", "variance", "own-0"}, {}),
    "afl-cp": ({"profile"}, {}),
    "fedbuff:buffer=2": ({"staleness"}, {"fleet": "mixed"}),
    "fedavg + attack:kind=backdoor": ({"hostile", "backdoor_success"}, {}),
    "sfl": ({"own-0", "own-1", "own-2"}, {}),
}


@pytest.mark.parametrize("algorithm", PANELS)
def test_a_panel_is_there_where_its_columns_are(tmp_path: Path, algorithm: str) -> None:
    more, settings = PANELS[algorithm]
    page = Page(trained(tmp_path / "run", algorithm, **settings) / "report.html")
    assert page.charts == USUAL | more
    assert page.json["charts"].keys() == page.charts


def test_lost_updates_and_validation(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    fed = fs.split(fs.load("digits", validation=0.2), "iid", clients=8)
    run = fs.train(fed, "logreg", rounds=6, fleet="uniform:dropout=0.5", folder=folder)
    page = Page(folder / "report.html")
    assert page.charts == USUAL | {"fates"}
    assert (
        f"{run.summary['dropped_updates']} of 48 updates were lost because the client dropped out."
        in page.text
    )
    drawn = page.json["charts"]["fates"]["series"]
    assert (
        sum(next(series["data"] for series in drawn if series["name"] == "dropped out"))
        == run.summary["dropped_updates"]
    )
    assert "validation rows" in [
        series["name"] for series in page.json["charts"]["accuracy"]["series"]
    ]


@pytest.mark.parametrize(
    ("losses", "told"),
    [
        ([1.0, 0.5, 1.1], True),
        ([1.0, 0.2, 0.5], True),
        ([1.0, 0.5, 0.6], False),
        ([2.0, float("nan")], True),
        ([-1.0, -1.5, -1.4], False),
        ([0.5, -0.2, -0.3], False),
        ([-1.0, -1.5, -0.9], True),
    ],
)
def test_a_diverging_loss_is_told(tmp_path: Path, losses: list[float], told: bool) -> None:
    data = RunData(fs.open_run(trained(tmp_path / "run")))
    assert data.warnings() == []
    vars(data)["rounds"] = {**data.rounds, "train_loss": losses}
    assert [("diverges" in text and "train rows" in text) for text in data.warnings()] == [
        True
    ] * told


def test_the_policy_for_batchnorm_is_told(tmp_path: Path) -> None:
    fed = fs.split(
        (np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 2), "iid", clients=3
    )
    fs.train(fed, "tabular:hidden=8", rounds=1, norm="local", folder=tmp_path / "run")
    assert "has BatchNorm. The setting is norm=local;" in Page(tmp_path / "run/report.html").text


def test_regression_has_no_classes(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(200, 3)).astype(np.float32)
    fed = fs.split((x, x.sum(1)), "iid", clients=4, task="regression")
    run = fs.train(fed, "logreg", rounds=2, folder=tmp_path / "run")
    page = Page(tmp_path / "run/report.html")
    assert "confusion" not in page.charts
    assert {"loss", "matrix", run.summary["metric"]} <= page.charts


def test_many_clients_are_aggregated(tmp_path: Path) -> None:
    x = np.zeros((20_000, 1), np.float32)
    fed = fs.split((x, np.arange(20_000) % 2), "iid", clients=10_000)
    fs.train(fed, "logreg", rounds=2, per_round=100, folder=tmp_path / "run")
    path = tmp_path / "run/report.html"
    page = Page(path)
    assert path.stat().st_size < SIZE
    assert len(page.json["charts"]["matrix"]["series"][0]["data"]) == 500
    for name in ("sizes", "clients", "lorenz", "participation"):
        assert len(page.json["charts"][name]["series"][0]["data"]) <= 201
    assert sum(page.json["charts"]["participation"]["series"][0]["data"]) == 10_000
    assert "250 of 10,000 clients, at even steps" in page.text


def test_many_rounds_are_thinned_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = trained(tmp_path / "run", rounds=40)
    monkeypatch.setattr("fedskew.study.run_curves.CELLS", 100)
    report([folder])
    page = Page(folder / "report.html")
    numbers = page.json["tables"]["rounds"]["round"]
    assert len(numbers) < 15
    assert f"{len(numbers)} of 40 rounds are drawn" in page.text
    assert {1, 40, fs.open_run(folder).summary["test_accuracy_best_round"]} <= set(numbers)


def test_scores_are_in_per_cent_and_have_plain_names(tmp_path: Path) -> None:
    folder = trained(tmp_path / "run")
    page = Page(folder / "report.html")
    last = fs.open_run(folder).summary["test_balanced_accuracy_last"]
    assert f"{100 * last:.1f}\xa0% in round 3" in page.text
    before_the_configuration = page.text.split("config.toml")[0]
    for name in ("test_accuracy", "balanced_accuracy", "clients_per_round"):
        assert name not in before_the_configuration
    for name, chart in page.json["charts"].items():
        if name in ("accuracy", "balanced_accuracy"):
            assert chart["yAxis"]["percent"]
            assert chart["yAxis"]["name"] == name.replace("_", " ")
    assert "percent" not in page.json["charts"]["loss"]["yAxis"]


@pytest.mark.parametrize(
    ("skew", "title"),
    [
        ("dirichlet:alpha=0.3", "fedavg on digits, dirichlet:alpha=0.3"),
        ("iid", "fedavg on digits, iid"),
    ],
)
def test_the_title_has_no_setting_that_nobody_gave(tmp_path: Path, skew: str, title: str) -> None:
    fed = fs.split(fs.load("digits"), skew, clients=4)
    fs.train(fed, "logreg", rounds=1, folder=tmp_path / "run")
    content = (tmp_path / "run/report.html").read_text()
    assert f"<h1>{title}</h1>" in content


def test_settings_are_in_groups_and_defaults_are_folded(tmp_path: Path) -> None:
    content = (trained(tmp_path / "run", momentum=0.5) / "report.html").read_text()
    shown, folded = content.split("<h3>Settings</h3>")[1].split(
        "<summary>Settings at their defaults</summary>"
    )
    for title in ("Data and clients", "Method", "Training", "Evaluation"):
        assert f"<h4>{title}</h4>" in shown
    assert "<dt>momentum</dt><dd>0.5</dd>" in shown
    assert "<dt>nesterov</dt>" not in shown
    assert "<dt>split seed</dt>" not in shown  # that of the run
    assert "<dt>nesterov</dt><dd>False</dd>" in folded
    assert "skew, all options" in folded


def test_the_switch_of_the_curves_is_beside_them(tmp_path: Path) -> None:
    content = (trained(tmp_path / "run") / "report.html").read_text()
    section = content.split('<section id="curves"')[1].split("</section>")[0]
    assert section.count('name="axis"') == content.count('<input type="radio" name="axis"') == 3


def test_accessible(tmp_path: Path) -> None:
    page = Page(trained(tmp_path / "run") / "report.html")
    assert ("html", {"lang": "en"}) in page.elements
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in page.elements:
        if "data-chart" in attributes:
            assert attributes["role"] == "img"
            assert len(attributes["aria-label"] or "") > 20, tag
        if tag == "a":
            assert (attributes["href"] or "").removeprefix("#") in ids
    captions = sum(tag == "caption" for tag, _ in page.elements)
    assert captions >= len(page.charts)  # a table for every chart


def test_the_command_repeats_the_run(fedskew: Callable[[str], Any]) -> None:
    assert fedskew("run --rounds 2 --clients 4 --model logreg --folder first") == 0
    command = re.search(r"fedskew (run first/config.toml)", Page(Path("first/report.html")).text)
    assert command
    assert fedskew(f"{command[1]} --folder second") == 0
    assert Path("first/rounds.csv").read_bytes() == Path("second/rounds.csv").read_bytes()


def test_python_objects_have_no_command(tmp_path: Path) -> None:
    fed = fs.split((np.zeros((20, 2), np.float32), np.arange(20) % 2), "iid", clients=2)
    fs.train(fed, "logreg", rounds=1, folder=tmp_path / "run")
    assert "it can be repeated from Python only" in Page(tmp_path / "run/report.html").text


def test_a_damaged_folder_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    whole, damaged = trained(tmp_path / "whole"), trained(tmp_path / "damaged")
    (damaged / "report.html").unlink()
    (damaged / "clients_final.csv").write_text("client\n0\n")
    with pytest.raises(FedskewError, match=r"clients_final\.csv is damaged"):
        report([damaged])
    with pytest.raises(FedskewError, match=r"clients_final\.csv is damaged"):
        report([whole, damaged], tmp_path / "both.html")
    assert not (damaged / "report.html").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged", "whole"]
    with pytest.raises(FedskewError, match="not a run folder"):
        report([tmp_path])
    with pytest.raises(FedskewError, match="--out FILE"):
        report([whole, damaged])
    with pytest.raises(FedskewError, match="not a file in an existing folder"):
        report([whole], tmp_path / "missing/page.html")


def test_a_page_that_cannot_be_made_does_not_fail_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedskew.report.page._page_of_run", lambda run: 1 / 0)
    with pytest.warns(UserWarning, match=r"report\.html could not be made"):
        run = fs.train(federation(), "logreg", rounds=1, folder=tmp_path / "run")
    assert run.summary["rounds"] == 1


def test_several_runs(fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]) -> None:
    small = "--rounds 3 --clients 4 --model logreg"
    assert (
        fedskew(
            f"compare {small} --algorithm fedavg --algorithm fedprox:mu=1.0 --seeds 0-1 --out group"
        )
        == 0
    )
    assert capsys.readouterr().out.splitlines()[-1] == "report: group/report.html"
    page = Page(Path("group/report.html"))
    tables = page.json["tables"]
    assert tables.keys() == {"fedavg", "fedprox:mu=1.0"}
    scores = np.array(
        [column(Path(f"group/fedavg-s{seed}/rounds.csv"), "test_accuracy") for seed in (0, 1)]
    )
    assert tables["fedavg"]["test_accuracy"] == pytest.approx(scores.mean(0))
    assert tables["fedavg"]["test_accuracy high"] == pytest.approx(
        scores.mean(0) + scores.std(0, ddof=1)
    )
    assert tables["fedavg"]["test_accuracy low"] == pytest.approx(
        scores.mean(0) - scores.std(0, ddof=1)
    )
    assert "test_accuracy" in page.charts
    assert "fedavg, fedprox:mu=1.0 on digits" in page.text
    assert "fedskew run group/fedprox-mu-1.0-s1/config.toml" in page.text
    assert fedskew(f"run {small} --lr 0.5 --folder other") == 0
    assert fedskew("report group/fedavg-s0 other --out both.html") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "report: both.html"
    usual = fs.open_run("group/fedavg-s0").config["lr"]
    assert Page(Path("both.html")).json["tables"].keys() == {
        f"fedavg, lr={usual}",
        "fedavg, lr=0.5",
    }
    assert fedskew("report group other --out all.html") == 0
    assert Page(Path("all.html")).json["tables"].keys() == {
        "fedavg",
        "fedprox:mu=1.0",
        "fedavg, lr=0.5",
    }


def test_failed_runs_are_shown_as_failed(fedskew: Callable[[str], Any]) -> None:
    assert (
        fedskew(
            "compare --rounds 2 --clients 4 --model logreg --algorithm fedavg --seeds 0-1 --out group"
        )
        == 0
    )
    Path("group/fedavg-s1/failed.json").write_text(
        '{"algorithm": "fedavg", "seed": 1, "failed": "it <b>diverged</b>"}'
    )
    assert fedskew("report group") == 0
    page = Page(Path("group/report.html"))
    assert "failed: fedavg-s1: it <b>diverged</b>" in page.text
    assert list(page.json["tables"]) == ["fedavg"]
    assert "test_accuracy low" not in page.json["tables"]["fedavg"]  # one seed has no deviation


def test_histograms_count_everyone() -> None:
    whole, rows = histogram([0, 0, 3, 57], "rounds")
    assert whole["xAxis"]["data"][0] == "0 – 2"
    assert [sum(count for _, count in rows), rows[0][1]] == [4, 2]
    assert histogram([5.0, 5.0], "x")[1] == [("5", 2)]
    assert sum(whole for _, whole in histogram(np.linspace(0, 1, 101), "x")[1]) == 101


def test_a_lorenz_curve_of_equal_weights_is_the_diagonal() -> None:
    assert lorenz(np.ones(4))["series"][0]["data"] == [[k / 4, k / 4] for k in range(5)]
    assert lorenz(np.array([0.0, 1.0]))["series"][0]["data"] == [[0, 0], [0.5, 0], [1, 1]]
    assert lorenz(np.zeros(2))["series"][0]["data"][-1] == [1, 1]


def test_all_names_of_few_classes_are_drawn() -> None:
    ones = np.ones((2, 8), np.int64)
    names = [f"a long name of class {number}" for number in range(8)]
    few = heat_map(["a", "b"], names, ones / 8, ones, "client", "class")["xAxis"]["axisLabel"]
    assert (few["interval"], few["rotate"]) == (0, 45)
    short = heat_map(["a", "b"], list("abcdefgh"), ones / 8, ones, "client", "class")["xAxis"][
        "axisLabel"
    ]
    assert (short["interval"], short["rotate"]) == (0, 0)


def test_a_curve_of_one_evaluation_is_a_point_however_many_rounds_there_are() -> None:
    table = {
        "round": [1, 2, 3],
        "train_accuracy": [None, None, 0.5],
        "test_accuracy": [0.4, None, 0.6],
    }
    train, test = curves(table, "accuracy", "accuracy", best=False)["series"]
    assert (train["showSymbol"], test["showSymbol"]) == (True, False)
