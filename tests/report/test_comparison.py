"""Comparisons: the table and its files, the target, names that are no markup, failures, and the Python interface."""

import csv
import json
import math
import re
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest
import torch
from scipy import stats

import fedskew as fs
from fedskew.cli.console.summary_table import mean_text
from fedskew.cli.run_command import COMPARED
from fedskew.core.config import read_file
from fedskew.plots.comparison_figures import PAGE, draw_forest
from fedskew.plots.forest import Forest, ForestRow
from fedskew.report.comparison_files import in_markdown
from fedskew.report.comparison_latex import in_latex
from fedskew.report.page import report
from fedskew.runs.folder import resume_command
from fedskew.runs.summary import facts
from fedskew.server.scorer import Scorer
from fedskew.server.server import Server
from fedskew.study import study_folder
from fedskew.study.member import read_members
from fedskew.study.read_comparison import comparison
from fedskew.study.settle import plan_of
from fedskew.study.target_score import Target

SMALL = {"rounds": 3, "clients": 4, "model": "logreg", "threads": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a comparison of three configurations x two skews x three seeds."""
    place = tmp_path_factory.mktemp("comparison") / "all"
    fs.compare(
        algorithm=["fedavg", "fedprox"], grid={"mu": [0.01, 10.0]}, skew=["iid", "classes:k=3"], seeds=range(3),
        choose="none", target=0.5, out=place, **SMALL,
    )  # fmt: skip
    return place


def rows_of(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / name).open() as file:
        return list(csv.DictReader(file))


def test_one_row_a_configuration_with_hyper_parameters_as_columns(folder: Path) -> None:
    frame = fs.compare(folder)
    assert list(zip(frame["skew"], frame["method"], frame["mu"].fillna(-1), strict=True)) == [
        (skew, *one)
        for skew in ("iid", "classes:k=3")
        for one in (("fedavg", -1), ("fedprox", 0.01), ("fedprox", 10.0))
    ]
    assert set(frame["blocks"]) == {3}
    assert frame["mu"].dtype == float


def test_the_numbers_by_hand(folder: Path) -> None:
    frame = fs.compare(folder).set_index(["method", "mu", "skew"])
    names = [f"fedprox-mu-10-classes-k-3-s{seed}" for seed in range(3)]
    summaries = [json.loads((folder / name / "summary.json").read_text()) for name in names]
    row = frame.loc[("fedprox", 10.0, "classes:k=3")]
    for key, name in (
        ("score", "test_accuracy_last"),
        ("client_accuracy_worst_10_percent", "client_accuracy_worst_10_percent"),
        ("gini_of_client_weights", "gini_of_client_weights"),
    ):
        values = [summary[name] for summary in summaries]
        assert row[key] == pytest.approx(statistics.mean(values))
        assert row[f"{key}_std"] == pytest.approx(statistics.stdev(values))
    reached, sent = [], []
    for name in names:
        rounds = rows_of(folder / name, "rounds.csv")
        first = next(
            (i for i, one in enumerate(rounds) if float(one["test_accuracy"]) >= 0.5), None
        )
        if first is not None:
            reached.append(first + 1)
            sent.append(
                sum(int(one["bytes_down"]) + int(one["bytes_up"]) for one in rounds[: first + 1])
            )
    assert row["reached_target"] == len(reached)
    easy = frame.loc[("fedprox", 0.01, "iid")]
    assert easy["reached_target"] == 3
    if reached:
        assert row["rounds_to_target"] == pytest.approx(statistics.mean(reached))
        assert row["bytes_to_target"] == pytest.approx(statistics.mean(sent))


def test_every_skew_is_judged_on_its_own(folder: Path) -> None:
    found = comparison([folder])
    assert list(found.judgement.scores) == ["skew iid", "skew classes:k=3"]
    for scores in found.judgement.scores.values():
        counts = {label: len(blocks) for label, blocks in scores.items()}
        assert counts == dict.fromkeys(["fedavg", "fedprox:mu=0.01", "fedprox:mu=10.0"], 3)
    frame = found.frame()
    assert (frame.attrs["goal"], frame.attrs["control"]) == ("shared", "fedavg")
    assert frame.attrs["zone"] == pytest.approx(2 / 359)  # two of the test rows of digits
    skewed = frame[frame["skew"] == "classes:k=3"].set_index("mu")
    folders = {
        "fedavg": "fedavg-classes-k-3-s{}",
        "fedprox": "fedprox-mu-10-classes-k-3-s{}",
    }
    scores = {}
    for name, written in folders.items():
        scores[name] = [
            json.loads((folder / written.format(seed) / "summary.json").read_text())[
                "test_accuracy_last"
            ]
            for seed in range(3)
        ]
    differences = [b - a for a, b in zip(scores["fedavg"], scores["fedprox"], strict=True)]
    mean, deviation = statistics.mean(differences), statistics.stdev(differences)
    half = float(stats.t.ppf(1 - 0.05 / 2 / 2, 2)) * deviation / math.sqrt(3)  # two contrasts
    row = skewed.loc[10.0]
    assert row["difference"] == pytest.approx(mean)
    assert (row["low"], row["high"]) == pytest.approx((mean - half, mean + half))
    assert skewed.loc[0.01, "verdict"] in ("equal", "undecided")  # so small a mu changes little


def test_pooled_over_skews_if_that_is_asked_for(folder: Path) -> None:
    alone = comparison([folder]).as_dict()
    assert alone["pooled"] == []
    pooled = comparison([folder], given={"pool": True}).as_dict()["pooled"]
    assert [one["method"] for one in pooled] == ["fedprox:mu=0.01", "fedprox:mu=10.0"]
    for one in pooled:
        means = []
        for contrast in alone["contrasts"]:
            if contrast["method"] == one["method"]:
                means.append(contrast["difference"])
        assert one["difference"] == pytest.approx(statistics.mean(means))
        assert one["cells_disagree"] == (min(means) < 0 < max(means))


def test_the_files(folder: Path) -> None:
    frame = pd.read_csv(folder / "comparison.csv")
    pd.testing.assert_frame_equal(frame, fs.compare(folder), check_dtype=False)
    table = [
        line for line in (folder / "comparison.md").read_text().splitlines() if line.startswith("|")
    ]
    assert len(table) == 2 + 6
    assert len({line.count("|") for line in table}) == 1
    assert "| fedprox | 10 | classes:k=3 | 3 |" in table[-1]
    latex = (folder / "comparison.tex").read_text()
    body = latex.split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines()
    assert len(body) == 6
    assert {line.count(" & ") for line in body} == {
        latex.split(r"\toprule")[1].splitlines()[1].count(" & ")
    }
    page = (folder / "report.html").read_text()
    assert page.index("Compared with fedavg.") < page.index("<table")
    for name in ("curves", "forest"):
        root = ElementTree.parse(folder / f"{name}.svg").getroot()
        assert float(root.attrib["width"].removesuffix("pt")) == pytest.approx(72 * PAGE, abs=1)
        assert (folder / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    assert not list(folder.glob("*/report.html"))  # a run's own is made when it is asked for


def test_the_same_figures_have_the_same_bytes() -> None:
    lines = [
        ForestRow("", "fedprox", 0.02, -0.01, 0.05, "undecided", ["1 x MB"]),
        ForestRow("", "scaffold", 0.05, None, None, "better", ["2 x MB"]),
    ]
    drawn = [draw_forest(Forest(lines, "difference", 0.01, 3)) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert draw_forest(Forest([], "difference", 0.01, 3)) == {}


def test_another_target_and_a_single_group(folder: Path, tmp_path: Path) -> None:
    hard = fs.compare(folder, target="accuracy=1.0", out=tmp_path / "hard")
    assert set(hard["reached_target"]) == {0}
    assert "not reached" in (tmp_path / "hard/comparison.md").read_text()
    assert fs.compare(folder).attrs["target"] == "accuracy=0.5"  # as it was asked for at first
    with pytest.raises(fs.FedskewError, match="target precision: no run followed it on test rows"):
        fs.compare(folder, target="precision=0.5")
    some = [folder / f"fedavg-iid-s{seed}" for seed in range(2)] + [folder / "fedprox-mu-10-iid-s0"]
    few = fs.compare(*some)
    assert "skew" not in few.columns
    assert few.attrs["verdict"].startswith("Everything is undecided: there is 1 block")
    assert few.attrs["target"] == f"accuracy={0.9 * few['score'].max():.4g}"


@pytest.mark.parametrize("given", ["", "x", "accuracy=", "accuracy=high", "nan", "inf"])
def test_bad_targets(given: str) -> None:
    with pytest.raises(fs.FedskewError, match="is not a number such as"):
        Target.of(given)


def test_low_is_good_of_errors(tmp_path: Path) -> None:
    frame = fs.compare(
        data="diabetes", model="logreg", lr=0.1, rounds=2, clients=3, skew="iid", algorithm=["fedavg", "fedprox:mu=5"],
        seeds="0-2", target=68, out=tmp_path / "numbers",
    )  # fmt: skip
    better, worse = frame.iloc[0], frame.iloc[1]
    assert better["score"] < worse["score"]
    assert worse["difference"] == pytest.approx(worse["score"] - better["score"])
    assert (frame.attrs["zone"], worse["verdict"]) == (None, "worse")
    assert better["reached_target"] > worse["reached_target"]


STRANGE = "<script>alert(1)</script> $x_$ a|b & 50%"


def test_names_are_text_in_every_file(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "strange"
    for seed in range(3):
        shutil.copytree(folder / f"fedavg-iid-s{seed}", place / f"s{seed}")
    found = comparison([place / f"s{seed}" for seed in range(3)])
    for run in found.rows.runs.runs:
        run.summary["algorithm"] = STRANGE
        run.record.config["algorithm"] = {"name": STRANGE}
    from fedskew.report.comparison_files import markdown
    from fedskew.report.comparison_latex import latex_table
    from fedskew.report.comparison_page import comparison_page

    page = comparison_page(found).decode()
    assert "<script>alert(1)" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; $x_$ a|b &amp; 50%" in page
    text = markdown(found)
    assert "<script" not in text
    row = next(line for line in text.splitlines() if line.startswith("| &lt;script"))
    assert row.count(" | ") == text.splitlines()[4].count(" | ")
    assert r"\$x\_\$ a\|b &amp; 50%" in row
    line = latex_table(found).split(r"\midrule")[1].split(r"\\")[0]
    assert r"\textless{}script\textgreater{}alert(1)" in line
    assert r"\$x\_\$ a\textbar{}b \& 50\%" in line


def test_signs_of_latex_and_markdown() -> None:
    assert (
        in_latex("a\\b{}~^#\nc") == r"a\textbackslash{}b\{\}\textasciitilde{}\textasciicircum{}\# c"
    )
    assert in_markdown("*a* [b](c) `d`") == r"\*a\* \[b\](c) \`d\`"


def test_failures_are_shown_and_the_others_go_on(
    fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    few = "compare --rounds 4 --model mlp:hidden=8 --clients 3 --algorithm fedavgm --grid server_lr=1,9e18 --seeds 0-2"
    few += " --choose none"
    assert fedskew(f"{few} --out group --json") == 1
    told = json.loads(capsys.readouterr().out)["comparison"]
    assert [(row["server_lr"], row["blocks"], row["failed"]) for row in told["rows"]] == [
        (1.0, 3, 0),
        (9e18, 3, 3),
    ]
    assert told["rows"][1]["score"] is None
    assert told["rows"][1]["verdict"] == "failed 3 of 3"
    lines = Path("group/comparison.md").read_text().splitlines()
    assert any(
        line.startswith("| fedavgm | 9e+18 | 3 | failed | failed 3 of 3 |") for line in lines
    )
    assert "NaN or infinite" in Path("group/report.html").read_text()
    assert fedskew("resume group") == 1
    assert fedskew("compare group") == 1


def test_run_is_one_run(fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]) -> None:
    Path("e.toml").write_text("rounds = 1\nseeds = [0, 1]\n")
    for given, instead in {
        "--algorithm fedavg --algorithm moon --folder x": "fedskew compare --algorithm fedavg --algorithm moon --out x",
        "--skew iid --skew vop --folder=x": "fedskew compare --skew iid --skew vop --out=x",
        "e.toml": "fedskew compare e.toml",
    }.items():
        assert fedskew(f"run {given}") == 2
        assert capsys.readouterr().err.strip().endswith(f": use {instead}")
    assert [path.name for path in Path().iterdir()] == ["e.toml"]


FILE = """
algorithm = ["fedavg", {name = "fedprox"}]
skew = ["iid", {name = "classes", k = 3}]
seeds = "0-1"
target = 0.4
rounds = 2
clients = 4
model = "logreg"
threads = 1
[grid]
mu = [0.01, 1]
"""


def test_a_file_says_all_of_it_and_jobs_give_the_same(
    fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("e.toml").write_text(FILE)
    assert fedskew("compare e.toml --out one") == 0
    assert fedskew("compare e.toml --out two --jobs 2") == 0
    assert len(read_members(Path("one"))) == 12
    for member in read_members(Path("one")):
        for name in ("rounds.csv", "clients.csv", "model.safetensors"):
            assert (
                Path("one", member.name, name).read_bytes()
                == Path("two", member.name, name).read_bytes()
            )
    assert fs.compare("two").attrs["target"] == "accuracy=0.4"
    capsys.readouterr()
    assert fedskew("compare e.toml --out one --or-resume --rounds 3") == 2
    assert "holds other runs than these" in capsys.readouterr().err
    before = {path: path.stat().st_mtime_ns for path in Path("one").glob("*/summary.json")}
    assert fedskew("compare e.toml --out one --or-resume") == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_failure_in_another_process_is_told(fedskew: Callable[[str], Any]) -> None:
    few = "compare --rounds 4 --model mlp:hidden=8 --clients 3 --algorithm fedavg --algorithm fedavgm:server_lr=9e18"
    assert fedskew(f"{few} --jobs 2 --out group") == 1
    rows = json.loads(Path("group/summary.json").read_text())["runs"]
    assert ["failed" in row for row in rows] == [False, True]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("compare done --rounds 3", "--rounds: finished runs are compared as they are"),
        ("compare done --seeds 0-1", "--seeds: finished runs are compared as they are"),
        ("compare done e.toml", "e.toml: finished runs are compared as they are"),
        ("compare e.toml f.toml", "f.toml: give one experiment file"),
        ("compare --jobs 0", "jobs=0 is not a whole number from 1 to"),
        ("compare --jobs 2 --workers 2", "jobs=2 clashes with workers=2"),
        ("compare --target high", "target 'high' is not a number"),
        ("compare --or-resume", "--or-resume needs --out"),
        ("compare nowhere.toml", "nowhere.toml: there is no such folder or file"),
        ("compare s.toml", "seeds=[0.5] are not whole numbers"),
        ("compare g.toml", "grid: mu = ['x'] are not numbers"),
        ("compare a.toml", "skew = [] is empty"),
        ("compare --grid lr=0.1,1e30", "lr=1e+30 is too large"),
        ("compare done nothere", "nothere: there is no such folder or file"),
        ("compare t.toml", "grid='mu=0.1,1' is not a table of numbers"),
        ("compare one.toml", "seeds=3 may be one seed or so many: give [3]"),
    ],
)
def test_what_cannot_be_compared(
    command: str, said: str, fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("done").mkdir()
    Path("s.toml").write_text("seeds = [0.5]\n")
    Path("g.toml").write_text('algorithm = "fedprox"\n[grid]\nmu = ["x"]\n')
    Path("a.toml").write_text("skew = []\n")
    Path("t.toml").write_text('grid = "mu=0.1,1"\n')
    Path("one.toml").write_text("seeds = 3\n")
    for name in ("e.toml", "f.toml"):
        Path(name).touch()
    assert fedskew(command) == 2
    assert said in capsys.readouterr().err
    assert not Path("runs").exists()


def test_the_page_of_any_runs_is_that_of_a_comparison(folder: Path, tmp_path: Path) -> None:
    page = report(
        [folder / "fedavg-iid-s0", folder / "fedavg-classes-k-3-s0"], tmp_path / "page.html"
    ).read_text()
    assert "There is nothing to compare: fewer than two methods have a score." in page
    found = json.loads(re.search(r'id="report-data">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    assert {"test_accuracy", "test_accuracy-1"} <= found["charts"].keys()


def test_the_python_interface_continues(tmp_path: Path) -> None:
    wanted = {
        "algorithm": ["fedavg", "scaffold"],
        "seeds": [0, 1],
        "out": tmp_path / "both",
        **SMALL,
    }
    first = fs.compare(**wanted)
    with pytest.raises(fs.FedskewError, match="exists"):
        fs.compare(**wanted)
    shutil.rmtree(tmp_path / "both/scaffold-s1")
    again = fs.compare(**wanted, or_resume=True)
    measured = [name for name in first if not name.startswith("seconds")]
    pd.testing.assert_frame_equal(first[measured], again[measured])
    with pytest.raises(fs.FedskewError, match="unknown setting 'round'"):
        fs.compare(round=3)


def test_progress_is_honest() -> None:
    from fedskew.cli.comparison_progress import RoundsDone

    now = [100.0]
    pace = RoundsDone({"a": 10, "b": 10}, clock=lambda: now[0])
    pace.heard("a", 5, 10)  # it was resumed: four rounds were there
    assert str(pace) == "5/20 rounds, 0 of 2 runs done"
    now[0] += 4
    pace.heard("a", 7, 10)  # two rounds in four seconds
    assert pace.left == pytest.approx(2 * 13)
    assert str(pace) == "7/20 rounds, 0 of 2 runs done, about 27 s left"
    now[0] += 6
    pace.heard("a", 10, 10)
    assert pace.left == pytest.approx(2 * 10)
    assert "1 of 2 runs done" in str(pace)


PAGE_OF_DOCS = Path(__file__).parents[2] / "docs" / "compare.md"


def blocks(language: str) -> list[str]:
    """Return the blocks of code of the page."""
    return re.findall(
        rf"```{language}\n(.*?)```", PAGE_OF_DOCS.read_text(encoding="utf-8"), re.DOTALL
    )


def test_every_command_of_the_page(fedskew: Callable[[str], Any]) -> None:
    for line in blocks("sh")[0].splitlines():
        command = line.partition("#")[0].strip()
        assert fedskew(command.removeprefix("fedskew ")) == 0, command
    Path("page.toml").write_text(blocks("toml")[0])
    plan = plan_of(read_file(Path("page.toml"), COMPARED))
    assert len(plan.members) == 2 * 5 * (2 + 3)
    assert plan.judging.choose == "validation"
    exec(compile(blocks("python")[0], "compare.md", "exec"), {})
    assert len(list(Path("runs").iterdir())) == 1


def test_a_bound_takes_no_part_in_the_tests(tmp_path: Path):
    methods = ["fedavg", "fedprox:mu=1.0", "central"]
    frame = fs.compare(
        algorithm=methods, seeds="0-2", rounds=2, model="logreg", out=tmp_path / "bound"
    )
    assert list(frame["method"]) == ["fedavg", "fedprox", "central"]
    assert "central" not in frame.attrs["verdict"]
    assert list(frame["verdict"])[::2] == ["control", "reference"]
    text = (tmp_path / "bound" / "comparison.md").read_text(encoding="utf-8")
    assert text.count("| reference |") == 1
    assert "central: all rows in one place, a reference that is not judged." in text


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [("fedprox", "fedprox:mu=0.01", "algorithm"), ("dirichlet", "dirichlet:alpha=0.5", "skew")],
)
def test_two_spellings_of_one_choice_are_given_twice(
    first: str, second: str, kind: str, tmp_path: Path
) -> None:
    with pytest.raises(
        fs.FedskewError, match=f"{first} is given twice, also as .*{second}: give every"
    ):
        fs.compare(**{kind: [first, second]}, seeds="0-1", out=tmp_path / "x", **SMALL)
    assert not (tmp_path / "x").exists()


def test_a_run_that_is_given_twice_is_counted_once(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "fedavg-iid-s0", tmp_path / "copy")
    frame = fs.compare(folder, folder / "fedavg-iid-s0", tmp_path / "copy", out=tmp_path / "out")
    pd.testing.assert_frame_equal(frame, fs.compare(folder))
    said = f"{folder / 'fedavg-iid-s0'}, {tmp_path / 'copy'}: the same method, settings and seed as another run"
    assert frame.attrs["warnings"] == [f"{said}, counted once"]
    for name in ("comparison.tex", "report.html"):
        assert "as another run, counted once" in (tmp_path / "out" / name).read_text()


def test_python_objects_are_the_same_only_with_the_same_curves(tmp_path: Path) -> None:
    fed = fs.split(fs.load("digits"), "iid", clients=3)
    for name, seed in (("a", 0), ("b", 1), ("c", 1)):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        fs.train(fed, model, rounds=2, folder=tmp_path / name)
    frame = fs.compare(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    assert frame["blocks"].sum() == 2


def test_tasks_are_not_mixed(tmp_path: Path) -> None:
    for name, data in (("a", "digits"), ("b", "diabetes")):
        fs.train(
            fs.split(fs.load(data), "iid", clients=3), "logreg", rounds=2, folder=tmp_path / name
        )
    said = rf"{tmp_path}/a \(classification\) and {tmp_path}/b \(regression\) have different tasks"
    with pytest.raises(fs.FedskewError, match=said):
        fs.compare(tmp_path / "a", tmp_path / "b")
    with pytest.raises(fs.FedskewError, match=said):
        report([tmp_path / "a", tmp_path / "b"], tmp_path / "page.html")


def test_a_curve_that_some_conditions_lack(tmp_path: Path) -> None:
    fed = fs.split(fs.load("digits"), "iid", clients=3)
    fs.train(fed, "logreg", rounds=2, folder=tmp_path / "a")
    fed = fs.split(fs.load("digits", validation=0.2), "iid", clients=3)
    fs.train(fed, "logreg", rounds=2, folder=tmp_path / "b")
    page = report([tmp_path / "a", tmp_path / "b"], tmp_path / "page.html").read_text()
    assert "Validation accuracy, validation 0.2" in page
    assert "Validation accuracy, validation 0<" not in page


def test_training_rows_are_no_goal(tmp_path: Path) -> None:
    given = {"algorithm": ["fedavg", "local"], "out": tmp_path / "x", **SMALL}
    said = (
        r"local: every client keeps a part .*: client_test=0.2 .* --client-test 0.2\) .*goal=shared"
    )
    with pytest.raises(fs.FedskewError, match=said):
        fs.compare(**given)
    with pytest.raises(fs.FedskewError, match="goal=own needs rows of every client"):
        fs.compare(goal="own", **given)
    with pytest.raises(fs.FedskewError, match="goal=shared: every client keeps a part"):
        fs.compare(**{**given, "algorithm": "local"}, goal="shared")
    assert not (tmp_path / "x").exists()
    frame = fs.compare(goal="shared", **given)
    assert frame["score"].notna().tolist() == [True, False]
    assert frame.attrs["without_shared_score"][0].startswith("There is no shared score of local")


def test_finished_runs_of_training_rows_have_no_own_score(tmp_path: Path) -> None:
    fed = fs.split(fs.load("digits"), "classes:k=3", clients=4)
    for method in ("fedavg", "local"):
        fs.train(fed, "logreg", method, rounds=2, folder=tmp_path / method)
    frame = fs.compare(tmp_path / "fedavg", tmp_path / "local")
    assert frame.attrs["goal"] == "shared"
    assert frame["score"].notna().tolist() == [True, False]
    assert "client_test=0.2" in frame.attrs["warnings"][0]
    with pytest.raises(fs.FedskewError, match="goal=own: no run has a score for it"):
        fs.compare(tmp_path / "fedavg", tmp_path / "local", goal="own")


def test_methods_without_a_shared_model_are_judged_by_what_clients_use(
    fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    command = (
        "compare --skew classes:k=2 --rounds 20 --lr 0.1 --client-test 0.2 --seeds 0-2 --out own"
    )
    assert fedskew(f"{command} --algorithm fedavg --algorithm fedper --algorithm lg-fedavg") == 0
    goal = (
        "Goal own: the accuracy of the model that each client uses, on its held-out rows, as the mean over the "
        "clients, after the last round."
    )
    why = "There is no shared score of fedper: every client keeps a part of the model (head.bias, head.weight), and "
    printed = capsys.readouterr().out
    assert printed.splitlines()[0] == goal
    assert printed.count(why) == 1
    assert "lg-fedavg" in printed.split("Better: ")[1].split(".")[0]
    frame = fs.compare("own").set_index("method")
    assert frame.attrs["goal"] == "own"
    assert frame["verdict"].to_dict() == {
        "fedavg": "control", "fedper": frame.loc["fedper", "verdict"], "lg-fedavg": "better", "local": "reference",
        "majority class": "reference",
    }  # fmt: skip
    assert [text.split(":")[0] for text in frame.attrs["without_shared_score"]] == [
        "There is no shared score of fedper",
        "There is no shared score of lg-fedavg, local",
    ]
    assert frame["shared_score"].notna().to_dict() == {
        "fedavg": True, "fedper": False, "lg-fedavg": False, "local": False, "majority class": False,
    }  # fmt: skip
    for method in ("fedavg", "fedper", "lg-fedavg", "local"):
        scores, rates = [], []
        for seed in range(3):
            final = pd.read_csv(f"own/{method}-s{seed}/clients_final.csv")
            scores.append(final["accuracy"].mean())
            rates.append(final["majority_rate"].mean())
        assert frame.loc[method, "score"] == pytest.approx(statistics.mean(scores))
        assert frame.loc["majority class", "score"] == pytest.approx(statistics.mean(rates))
    summary = json.loads(Path("own/summary.json").read_text())
    assert "test_accuracy_last" in summary["means"]["fedavg"]
    assert "test_accuracy_last" not in summary["means"]["fedper"]
    _, _, first, *others = Path("own/comparison.md").read_text().splitlines()
    assert first == in_markdown(goal)
    row = next(line for line in others if line.startswith("| fedper"))
    assert "not reached" not in row
    tex = Path("own/comparison.tex").read_text().splitlines()
    assert tex[2] == f"% {goal}"
    page = Path("own/report.html").read_text()
    assert page.index("Goal own: ") < page.index("<table")
    assert "What each client gains" in page
    assert page.count(why) == 1
    assert fedskew("report own/fedper-s0") == 0
    assert why in Path("own/fedper-s0/report.html").read_text()
    capsys.readouterr()
    assert fedskew("compare own --json") == 0
    assert json.loads(capsys.readouterr().out)["comparison"]["goal"] == "own"
    assert fedskew("run --rounds 1 --algorithm fedper --model mlp --skew iid --clients 3") == 0
    assert capsys.readouterr().out.count(why) == 1


def test_a_run_of_an_older_version_has_no_shared_score_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shared_in_part(scorer: Scorer) -> bool:
        return bool(scorer.state.params.keys() - scorer.context.job.local_names)

    def without(server: Server, config: Any) -> dict[str, Any]:
        return {
            name: value for name, value in facts(server, config).items() if name != "shared_model"
        }

    fed = fs.split(fs.load("digits"), "classes:k=3", clients=4, client_test=0.2)
    with monkeypatch.context() as older:
        older.setattr(Scorer, "has_common_model", property(shared_in_part))
        older.setattr("fedskew.runs.summary.facts", without)
        for method in ("fedavg", "fedper", "ditto", "local"):
            fs.train(fed, "mlp:hidden=8", method, rounds=2, folder=tmp_path / method)
        shutil.copytree(
            tmp_path / "fedper",
            tmp_path / "gone",
            ignore=shutil.ignore_patterns("checkpoints", "journal"),
        )
    assert "test_accuracy_last" in fs.open_run(tmp_path / "fedper").summary  # as it was recorded
    table = fs.compare(
        [tmp_path / name for name in ("fedavg", "fedper", "ditto", "local")]
    ).set_index("method")
    assert table.attrs["goal"] == "own"
    assert table["shared_score"].notna().to_dict() == {
        "fedavg": True, "fedper": False, "ditto": True, "local": False, "majority class": False,
    }  # fmt: skip
    for name in ("fedper", "gone"):
        page = report([tmp_path / name], tmp_path / "page.html").read_text()
        assert "test accuracy, last round" not in page
        assert "There is no shared score of fedper" in page
    assert "its checkpoints do not say whether" in fs.open_run(tmp_path / "gone").shared_model


def test_a_calibrated_model_is_scored_with_its_new_head(tmp_path: Path) -> None:
    frame = fs.compare(
        algorithm=["fedavg", "fedavg + ccvr"], skew="classes:k=3", validation=0.2, seeds="0-2", out=tmp_path / "x",
        **{**SMALL, "model": "mlp:hidden=16"},
    )  # fmt: skip
    plain, calibrated = frame["score"]
    summaries = [
        json.loads((tmp_path / f"x/fedavg-+-ccvr-s{seed}/summary.json").read_text())
        for seed in range(3)
    ]
    assert calibrated == pytest.approx(
        statistics.mean(row["calibrated_test_accuracy"] for row in summaries)
    )
    assert (
        calibrated
        != plain
        == pytest.approx(statistics.mean(row["test_accuracy_last"] for row in summaries))
    )


def test_the_default_target_is_of_one_configuration(tmp_path: Path) -> None:
    frame = fs.compare(
        algorithm="fedavg",
        grid={"lr": [0.0001, 0.1]},
        choose="none",
        out=tmp_path / "x",
        **SMALL,
    )
    low, high = frame["score"]
    assert low < 0.5 < high
    assert frame.attrs["target"] == f"accuracy={float(f'{0.9 * high:.4g}'):g}"


def test_a_target_in_python_is_recorded_and_checked_before_training(tmp_path: Path) -> None:
    given = {"algorithm": ["fedavg", "fedprox:mu=10"], "out": tmp_path / "x", **SMALL}
    fs.compare(target=0.5, **given)
    again = fs.compare(target=0.7, or_resume=True, **given)
    assert again.attrs["target"] == fs.compare(tmp_path / "x").attrs["target"] == "accuracy=0.7"
    fs.compare(tmp_path / "x", target="balanced_accuracy=0.6", out=tmp_path / "x")
    assert fs.compare(tmp_path / "x").attrs["target"] == "balanced_accuracy=0.6"
    before = (tmp_path / "x/target.txt").read_text()
    for more, said in (
        ({"target": "auc=0.5", "or_resume": True, **given}, "unknown metric of the target 'auc'"),
        ({"target": "high", "or_resume": True, **given}, "target 'high' is not a number"),
    ):
        with pytest.raises(fs.FedskewError, match=said):
            fs.compare(**more)
    with pytest.raises(fs.FedskewError, match="target auc: no run followed it on test rows"):
        fs.compare(tmp_path / "x", target="auc=0.5", out=tmp_path / "x")
    assert (tmp_path / "x/target.txt").read_text() == before
    with pytest.raises(fs.FedskewError, match="target auc: no run followed it on test rows"):
        fs.compare(tmp_path / "x", target="auc=0.5", out=tmp_path / "new")
    assert not (tmp_path / "new").exists()
    own = {"algorithm": ["local", "fedper"], "client_test": 0.2, **SMALL, "model": "mlp"}
    with pytest.raises(fs.FedskewError, match="unknown metric of the target 'balanced_accuracy'"):
        fs.compare(target="balanced_accuracy=0.5", out=tmp_path / "y", **own)
    assert not (tmp_path / "y").exists()
    frame = fs.compare(target=0.01, out=tmp_path / "y", **own)
    assert frame["rounds_to_target"].tolist()[:2] == [1, 1]  # in the curves of what clients use


def test_a_target_that_no_run_follows_is_refused_before_training(
    fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedskew("compare --rounds 1 --model logreg --target auc=0.3 --out x") == 2
    assert "unknown metric of the target 'auc'" in capsys.readouterr().err
    assert not Path("x").exists()
    with pytest.raises(fs.FedskewError, match="unknown metric of the target 'auc'"):
        fs.compare(rounds=1, model="logreg", target="auc=0.3", out="x")
    assert fedskew("compare --rounds 1 --model logreg --metrics auc --target auc=2 --out x") == 0
    assert "not reached" in Path("x/comparison.md").read_text()


def test_columns_of_text_are_aligned_to_the_left(folder: Path) -> None:
    head, rule = (folder / "comparison.md").read_text().splitlines()[4:6]
    ways = dict(zip(head.strip("| ").split(" | "), rule.strip("| ").split(" | "), strict=True))
    assert (ways["method"], ways["mu"], ways["skew"], ways["blocks"]) == (
        "---",
        "---:",
        "---",
        "---:",
    )
    assert r"\begin{tabular}{lllrrlr}" in (folder / "comparison.tex").read_text()


def test_the_page_shows_scores_first_and_skews_once(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    head = re.findall(r'<th scope="col".*?>(.*?)</th>', page)
    first = head.index("test accuracy (%)")
    assert head[first - 1 : first + 10] == [
        "method", "test accuracy (%)", "minus fedavg (points)", "verdict", "mu", "skew", "blocks",
        "method", "mu", "skew", "Gini",
    ]  # fmt: skip
    assert '<div class="whole">' in page
    assert '<td class="text">classes:k=3</td>' in page
    charts = json.loads(re.search(r'id="report-data">(.*?)</script>', page, re.DOTALL)[1])["charts"]  # type: ignore[index]
    assert {series["name"] for series in charts["test_accuracy-1"]["series"]} == {
        "fedavg", "fedprox:mu=0.01", "fedprox:mu=10.0"
    }  # fmt: skip
    assert [name.partition(":")[0] for name in charts["forest"]["yAxis"]["data"]] == ["fedprox"] * 2
    assert "forest-1" in charts


def test_the_page_has_scores_in_per_cent_and_the_verdict_first(folder: Path) -> None:
    found = comparison([folder])
    page = (folder / "report.html").read_text()
    row = found.frame().iloc[0]
    cell = re.search(r'<th scope="row">fedavg</th><td>(.*?) ± (.*?)</td>', page)
    assert cell
    assert float(cell[1]) == pytest.approx(100 * row["score"], rel=1e-2)
    assert float(cell[2]) == pytest.approx(100 * row["score_std"], rel=0.1)
    section = page.split('<section id="verdict"')[1].split("</section>")[0]
    verdict = section.index('<ul class="verdict">')
    assert verdict < section.index('<ul class="reasons">') < section.index("Goal shared: ")
    assert section.index("Goal shared: ") < section.index("<figure")
    zone = found.rows.rules.zone or 0.0
    assert f"±{100 * zone:.3g} points" in section
    assert f"±{zone:.3g}" not in section
    charts = json.loads(re.search(r'id="report-data">(.*?)</script>', page, re.DOTALL)[1])["charts"]  # type: ignore[index]
    points = charts["forest"]["series"][-1]["data"]
    means = [row.mean for row in found.forest.of_cell(found.forest.cells[0])]
    assert [point[0] for point in points] == pytest.approx([100 * mean for mean in means])


@pytest.mark.parametrize(("goal", "base"), [("own", "local"), ("shared", "fedavg")])
def test_the_page_has_what_each_client_gains(tmp_path: Path, goal: str, base: str) -> None:
    settings: dict[str, Any] = {**SMALL, "client_test": 0.3, "goal": goal}
    fs.compare(algorithm=["fedavg", "scaffold"], seeds=[0, 1], out=tmp_path / "c", **settings)
    gains = []
    for seed in (0, 1):
        scores = []
        for method in (base, "scaffold"):
            rows = rows_of(tmp_path / "c" / f"{method}-s{seed}", "clients_final.csv")
            scores.append([float(row["accuracy"]) for row in rows])
        gains += [100 * (new - old) for old, new in zip(*scores, strict=True)]
    page = (tmp_path / "c" / "report.html").read_text()
    charts = json.loads(re.search(r'id="report-data">(.*?)</script>', page, re.DOTALL)[1])["charts"]  # type: ignore[index]
    curves = {series["name"]: series for series in charts["gains-0"]["series"]}
    assert base not in curves
    curve = curves["scaffold"]
    assert [gain for _, gain in curve["data"]] == pytest.approx(sorted(gains), abs=1e-3)
    better = sum(gain > 0 for gain in gains) / len(gains)
    section = page.split('<section id="clients"')[1].split("</section>")[0]
    assert f"<td>{100 * better:.1f}\xa0%</td>" in section


def test_the_page_sets_costs_against_gains(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    charts = json.loads(re.search(r'id="report-data">(.*?)</script>', page, re.DOTALL)[1])["charts"]  # type: ignore[index]
    rows = fs.compare(folder)
    rows = rows[rows["skew"] == "classes:k=3"].reset_index()
    for key, factor in (("bytes", 1e3), ("simulated_seconds", 1.0)):
        series = charts[f"cost-{key.replace('_', '-')}-1"]["series"]
        assert [one["name"] for one in series] == ["fedavg", "fedprox:mu=0.01", "fedprox:mu=10.0"]
        costs = [one["data"][0][0] for one in series]
        assert costs == pytest.approx([value / factor for value in rows[key]], rel=1e-3)
        gains = [one["data"][0][1] for one in series]
        assert gains == pytest.approx(
            [0.0, *(100 * value for value in rows["difference"][1:])], abs=1e-3
        )


def test_the_page_has_the_chosen_numbers(tmp_path: Path) -> None:
    fs.compare(
        algorithm=["fedavg", "fedprox"], grid={"mu": [0.01, 10.0]}, seeds=[0], validation=0.2, out=tmp_path / "c",
        **SMALL,
    )  # fmt: skip
    page = (tmp_path / "c" / "report.html").read_text()
    section = page.split('<section id="chosen"')[1].split("</section>")[0]
    rows = comparison([tmp_path / "c"]).rows.configurations
    (chosen,) = (one.chosen for one in rows if one.method == "fedprox" and one.chosen)
    assert f'<td class="text">mu={chosen.best.numbers["mu"]:g}</td>' in section
    assert f"{100 * (chosen.best.mean or 0):.1f}\xa0%" in section
    assert "All 2 tries" in section


def test_what_stands_for_runs_in_python(folder: Path, tmp_path: Path) -> None:
    names = [folder / "fedavg-iid-s0", folder / "fedprox-mu-10-iid-s0"]
    expected = fs.compare(*names)
    pd.testing.assert_frame_equal(fs.compare(names), expected)
    pd.testing.assert_frame_equal(fs.compare([fs.open_run(name) for name in names]), expected)
    assert expected.attrs["folder"] is None
    assert fs.compare(folder).attrs["folder"] == str(folder)
    for given, said in (
        ([], r"compare\(\[\]\) has no run"),
        (3, "compare needs folders of finished runs, got int: methods are given as algorithm="),
    ):
        with pytest.raises(fs.FedskewError, match=said):
            fs.compare(given)  # type: ignore[arg-type]
    with pytest.raises(fs.FedskewError, match=r"give \[3\], or range\(3\)"):
        fs.compare(seeds=3, out=tmp_path / "x", **SMALL)  # type: ignore[arg-type]
    with pytest.raises(fs.FedskewError, match="is not a table of numbers"):
        fs.compare(grid="mu=0.1,1", out=tmp_path / "x", **SMALL)  # type: ignore[arg-type]


def test_another_target_is_recorded(
    fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    few = "compare --rounds 2 --model logreg --clients 4 --algorithm fedavg --algorithm fedprox:mu=10 --out two"
    assert fedskew(few) == 0
    assert "which is 90% of the best mean" in capsys.readouterr().out
    assert fedskew("compare two --target 0.55") == 0
    assert "The target is accuracy = 0.55 on test rows (as given)." in capsys.readouterr().out
    assert fedskew("resume two") == 0
    assert (
        "The target is accuracy = 0.55 on test rows (from target.txt)." in capsys.readouterr().out
    )
    assert fedskew(f"{few} --or-resume --target 0.6") == 0
    assert "accuracy = 0.6 on test rows" in Path("two/comparison.md").read_text()
    assert fedskew(f"{few} --or-resume --target auc=0.6") == 2
    assert Path("two/target.txt").read_text() == "0.6\n"


@pytest.mark.parametrize("there", [True, False])
def test_an_unfinished_comparison_is_resumed_as_a_whole(
    there: bool, folder: Path, fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(folder, "part")
    shutil.rmtree("part/fedavg-iid-s1")
    if there:
        shutil.copytree(
            folder / "fedavg-iid-s1",
            "part/fedavg-iid-s1",
            ignore=shutil.ignore_patterns("summary.json"),
        )
    assert fedskew("compare part") == 2
    assert "is not finished: resume it (fedskew resume part)" in capsys.readouterr().err
    assert resume_command(Path("part/fedavg-iid-s1")) == "fedskew resume part"


def test_the_help_names_the_table_of_the_grid(
    fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedskew("compare --help") == 0
    assert "jobs, [grid] and how" in " ".join(capsys.readouterr().out.split())


def test_ctrl_c_while_the_choices_are_checked(
    fedskew: Callable[[str], Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stopped(*args: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(study_folder, "check", stopped)
    assert fedskew("compare --rounds 1") == 130
    assert "interrupted before the first run: nothing was written" in capsys.readouterr().err


def test_the_table_of_the_terminal(
    fedskew: Callable[[str], Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    few = "compare --rounds 4 --model mlp:hidden=8 --clients 3 --algorithm fedavgm --grid server_lr=1,9e18 --seeds 0-2"
    assert fedskew(f"{few} --choose none --out group") == 1
    lines = capsys.readouterr().out.splitlines()
    head = next(line for line in lines if line.startswith("method"))
    assert head.split()[:5] == ["method", "server_lr", "blocks", "test", "accuracy"]
    assert any(re.match(r"fedavgm +9e\+18 +3 +failed +failed 3 of 3", line) for line in lines)
    assert "(1 of 3)" in mean_text([4, None, None], 1, 0)
    assert mean_text([2e25, 4e25], 1, 1) == "3e+25 ± 1.4e+25"
