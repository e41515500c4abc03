"""Comparisons: the table and its files, the target, names that are no markup, failures, and the Python interface."""

import csv
import json
import re
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest

import fedskew as fs
from fedskew.cli.run_command import COMPARED
from fedskew.core.config import read_file
from fedskew.report.comparison_figures import COLUMN, PAGE, draw_ranks
from fedskew.report.comparison_files import in_latex, in_markdown
from fedskew.report.comparison_table import Target, comparison
from fedskew.report.page import report
from fedskew.runs import sweep
from fedskew.runs.significance import ranks

SMALL = {"rounds": 3, "clients": 4, "model": "logreg", "threads": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a comparison of three configurations x two skews x three seeds."""
    place = tmp_path_factory.mktemp("comparison") / "all"
    fs.compare(
        algorithm=["fedavg", "fedprox"], grid={"mu": [0.01, 10.0]}, skew=["iid", "classes:k=3"], seeds=range(3),
        target=0.5, out=place, **SMALL,
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
    assert set(frame["seeds"]) == {3}
    assert frame["mu"].dtype == float


def test_the_numbers_by_hand(folder: Path) -> None:
    frame = fs.compare(folder).set_index(["method", "mu", "skew"])
    names = [f"fedprox-mu-10-classes-k-3-s{seed}" for seed in range(3)]
    summaries = [json.loads((folder / name / "summary.json").read_text()) for name in names]
    row = frame.loc[("fedprox", 10.0, "classes:k=3")]
    for key in ("test_accuracy_last", "client_accuracy_worst_10_percent", "gini_of_client_weights"):
        values = [summary[key] for summary in summaries]
        assert row[key] == pytest.approx(statistics.mean(values))
        assert row[f"{key}_std"] == pytest.approx(statistics.stdev(values))
    reached, sent = [], []
    for name in names:
        rounds = rows_of(folder / name, "rounds.csv")
        first = next((i for i, one in enumerate(rounds) if float(one["test_accuracy"]) >= 0.5), None)
        if first is not None:
            reached.append(first + 1)
            sent.append(sum(int(one["bytes_down"]) + int(one["bytes_up"]) for one in rounds[: first + 1]))
    assert row["reached_target"] == len(reached)
    easy = frame.loc[("fedprox", 0.01, "iid")]
    assert easy["reached_target"] == 3
    if reached:
        assert row["rounds_to_target"] == pytest.approx(statistics.mean(reached))
        assert row["bytes_to_target"] == pytest.approx(statistics.mean(sent))


def test_significance_is_paired_over_seeds_and_skews(folder: Path) -> None:
    found = comparison([folder])
    assert {label: len(blocks) for label, blocks in found.scores.items()} == dict.fromkeys(
        ["fedavg", "fedprox:mu=0.01", "fedprox:mu=10.0"], 6
    )
    frame = found.frame()
    assert frame.attrs["compared_by"] == "test_accuracy_last"
    slow = frame[frame["mu"] == 10.0]
    best = found.verdict.best
    assert best in ("fedavg", "fedprox:mu=0.01")  # so large a mu holds the model still
    assert set(slow["p_value"]) == {found.verdict.p_values["fedprox:mu=10.0"]}
    mine = [row["test_accuracy_last"] for one in found.configurations if one.label == best for row in one.rows]
    theirs = [
        row["test_accuracy_last"] for one in found.configurations if one.options["mu"] == 10.0 for row in one.rows
    ]
    assert slow["difference_to_best"].iloc[0] == pytest.approx(statistics.mean(theirs) - statistics.mean(mine))
    assert not frame["winner"].any()  # fedavg and a tiny mu are the same
    assert found.verdict.says.startswith("No method is ahead: ")


def test_the_files(folder: Path) -> None:
    frame = pd.read_csv(folder / "comparison.csv")
    pd.testing.assert_frame_equal(frame, fs.compare(folder), check_dtype=False)
    table = [line for line in (folder / "comparison.md").read_text().splitlines() if line.startswith("|")]
    assert len(table) == 2 + 6
    assert len({line.count("|") for line in table}) == 1
    assert "| fedprox | 10 | classes:k=3 | 3 |" in table[-1]
    latex = (folder / "comparison.tex").read_text()
    body = latex.split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines()
    assert len(body) == 6
    assert {line.count(" & ") for line in body} == {latex.split(r"\toprule")[1].splitlines()[1].count(" & ")}
    page = (folder / "report.html").read_text()
    assert "No method is ahead" in page
    assert "Critical differences" in page
    for name, wide in (("curves", PAGE), ("critical_difference", COLUMN)):
        root = ElementTree.parse(folder / f"{name}.svg").getroot()
        assert float(root.attrib["width"].removesuffix("pt")) == pytest.approx(72 * wide, abs=1)
        assert (folder / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    assert not list(folder.glob("*/picture.png"))
    assert len(list(folder.glob("*/report.html"))) == 18


def test_the_same_figures_have_the_same_bytes() -> None:
    found = ranks({name: {seed: place * seed for seed in range(1, 5)} for place, name in enumerate("abc")})
    assert draw_ranks(found) == draw_ranks(found)


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
    assert few.attrs["verdict"].startswith("Nothing can be said about who is ahead: 1 block has a score of both")
    assert few.attrs["target"] == f"accuracy={0.9 * few['test_accuracy_last'].max():.4g}"


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
    assert better["test_mae_last"] < worse["test_mae_last"]
    assert better["difference_to_best"] == 0
    assert worse["difference_to_best"] == pytest.approx(worse["test_mae_last"] - better["test_mae_last"])
    assert better["reached_target"] > worse["reached_target"]


STRANGE = "<script>alert(1)</script> $x_$ a|b & 50%"


def test_names_are_text_in_every_file(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "strange"
    for seed in range(3):
        shutil.copytree(folder / f"fedavg-iid-s{seed}", place / f"s{seed}")
    found = comparison([place / f"s{seed}" for seed in range(3)])
    for run in found.runs.runs:
        run.summary["algorithm"] = STRANGE
        run.record.config["algorithm"] = {"name": STRANGE}
    from fedskew.report.comparison_files import latex, markdown
    from fedskew.report.page import comparison_page

    page = comparison_page(found).decode()
    assert "<script>alert(1)" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; $x_$ a|b &amp; 50%" in page
    text = markdown(found)
    assert "<script" not in text
    row = next(line for line in text.splitlines() if line.startswith("| &lt;script"))
    assert row.count(" | ") == text.splitlines()[2].count(" | ")
    assert r"\$x\_\$ a\|b &amp; 50%" in row
    line = latex(found).split(r"\midrule")[1].split(r"\\")[0]
    assert r"\textless{}script\textgreater{}alert(1)" in line
    assert r"\$x\_\$ a\textbar{}b \& 50\%" in line


def test_signs_of_latex_and_markdown() -> None:
    assert in_latex("a\\b{}~^#\nc") == r"a\textbackslash{}b\{\}\textasciitilde{}\textasciicircum{}\# c"
    assert in_markdown("*a* [b](c) `d`") == r"\*a\* \[b\](c) \`d\`"


def test_failures_are_shown_and_the_others_go_on(
    fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    few = "compare --rounds 4 --model mlp:hidden=8 --clients 3 --algorithm fedavgm --grid server_lr=1,9e18 --seeds 0-2"
    assert fedskew(f"{few} --out group --json") == 1
    told = json.loads(capsys.readouterr().out)["comparison"]
    assert [(row["server_lr"], row["seeds"], row["failed"]) for row in told["rows"]] == [(1.0, 3, 0), (9e18, 0, 3)]
    assert told["rows"][1]["test_accuracy_last"] is None
    lines = Path("group/comparison.md").read_text().splitlines()
    assert any(line.startswith("| fedavgm | 9e+18 | 0 (3 failed) | failed |") for line in lines)
    assert "NaN or infinite" in Path("group/report.html").read_text()
    assert fedskew("resume group") == 1
    assert fedskew("compare group") == 1


def test_run_is_one_run(fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]) -> None:
    Path("e.toml").write_text("rounds = 1\nseeds = [0, 1]\n")
    for given, instead in {
        "--algorithm fedavg --algorithm moon --folder x": "fedskew compare --algorithm fedavg --algorithm moon --out x",
        "--seeds 0-2": "fedskew compare --seeds 0-2",
        "--grid lr=1,2 --folder=x": "fedskew compare --grid lr=1,2 --out=x",
        "e.toml": "fedskew compare e.toml",
        "--target 0.9": "fedskew compare --target 0.9",
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
    assert len(sweep.read(Path("one"))) == 12
    for member in sweep.read(Path("one")):
        for name in ("rounds.csv", "clients.csv", "model.safetensors"):
            assert Path("one", member.name, name).read_bytes() == Path("two", member.name, name).read_bytes()
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
        ("compare nowhere.toml", "there is no experiment file nowhere.toml"),
        ("compare s.toml", "seeds=[0.5] are not whole numbers"),
        ("compare g.toml", "grid: mu = ['x'] are not numbers"),
        ("compare a.toml", "skew = [] is empty"),
    ],
)
def test_what_cannot_be_compared(
    command: str, said: str, fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("done").mkdir()
    Path("s.toml").write_text("seeds = [0.5]\n")
    Path("g.toml").write_text('algorithm = "fedprox"\n[grid]\nmu = ["x"]\n')
    Path("a.toml").write_text("skew = []\n")
    assert fedskew(command) == 2
    assert said in capsys.readouterr().err
    assert not Path("runs").exists()


def test_the_page_of_any_runs_is_that_of_a_comparison(folder: Path, tmp_path: Path) -> None:
    page = report([folder / "fedavg-iid-s0", folder / "fedavg-classes-k-3-s0"], tmp_path / "page.html").read_text()
    assert "There is nothing to compare: fewer than two methods have a score." in page
    found = json.loads(re.search(r'id="report-data">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    assert {"test_accuracy", "test_accuracy-1"} <= found["charts"].keys()


def test_the_python_interface_continues(tmp_path: Path) -> None:
    wanted = {"algorithm": ["fedavg", "scaffold"], "seeds": [0, 1], "out": tmp_path / "both", **SMALL}
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
    from fedskew.cli.comparison_progress import Pace

    now = [100.0]
    pace = Pace({"a": 10, "b": 10}, lambda: now[0])
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
    return re.findall(rf"```{language}\n(.*?)```", PAGE_OF_DOCS.read_text(encoding="utf-8"), re.DOTALL)


def test_every_command_of_the_page(fedskew: Callable[[str], Any]) -> None:
    for line in blocks("sh")[0].splitlines():
        command = line.partition("#")[0].strip()
        assert fedskew(command.removeprefix("fedskew ")) == 0, command
    Path("page.toml").write_text(blocks("toml")[0])
    wanted = sweep.plan(
        {name: value for name, value in read_file(Path("page.toml"), COMPARED).items() if name != "target"}
    )
    assert len(wanted) == 2 * 5 * (2 + 3)
    exec(compile(blocks("python")[0], "compare.md", "exec"), {})
    assert len(list(Path("runs").iterdir())) == 1


def test_a_bound_takes_no_part_in_the_tests(tmp_path: Path):
    methods = ["fedavg", "fedprox:mu=1.0", "central"]
    frame = fs.compare(algorithm=methods, seeds="0-2", rounds=2, model="logreg", out=tmp_path / "bound")
    assert list(frame["method"]) == ["fedavg", "fedprox", "central"]
    assert "central" not in frame.attrs["verdict"]
    text = (tmp_path / "bound" / "comparison.md").read_text(encoding="utf-8")
    assert text.count("| bound |") == 1
    assert "central trains on all rows in one place: a bound, which takes no part in the tests." in text
