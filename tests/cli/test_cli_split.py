"""``fedskew split`` and ``fedskew measure``: what they write, print and reject."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedskew.cli import app as cli
from fedskew.nodes.split_folder import load_split


@pytest.fixture
def fedskew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that runs the command line in a folder with one table and returns its exit code."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    lines = [
        f"{k},{rng.normal():.3f},{3 * rng.normal():.2f},{'abc'[k % 3]},site {k % 5}\n"
        for k in range(150)
    ]
    Path("my.csv").write_text("id,small,wide,y,site\n" + "".join(lines))

    def call(command: str, skew: str = "") -> Any:
        skewed = ["--skew", skew] if skew else []
        monkeypatch.setattr(sys, "argv", ["fedskew", *command.split(), *skewed])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code

    return call


@pytest.fixture
def no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedskew.plots.split_figure.draw_split", lambda *args: b"picture")


MY = "--data my.csv --label y --drop id"


# -- split -------------------------------------------------------------------------------------------------------------


def test_a_split_has_all_that_a_node_and_a_reader_need(
    fedskew: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        fedskew(
            f"split {MY} --skew dirichlet:alpha=0.3 --clients 4 --out nodes --svg --client-test 0.2"
        )
        == 0
    )
    assert sorted(path.name for path in Path("nodes").iterdir()) == [
        *(f"client-{k:03d}{part}.csv" for k in range(4) for part in ("-test", "")),
        "heterogeneity.json", "partition.npz", "picture.png", "picture.svg", "split.json",
    ]  # fmt: skip
    assert Path("nodes/picture.png").read_bytes()[:4] == b"\x89PNG"
    assert Path("nodes/picture.svg").read_text().startswith("<?xml")
    header, *lines = Path("my.csv").read_text().splitlines()
    found = [path.read_text().splitlines() for path in Path("nodes").glob("*.csv")]
    assert {first for first, *_ in found} == {header}
    assert sorted(line for _, *rest in found for line in rest) == sorted(lines)
    out = capsys.readouterr().out
    assert "4 clients of" in out
    assert "hellinger" in out
    assert out.splitlines()[-1] == "folder: nodes"


@pytest.mark.usefixtures("no_picture")
def test_a_target_is_met_and_on_record(
    fedskew: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        fedskew(f"split {MY} --skew lds --target hellinger=0.6 --clients 4 --out nodes --json") == 0
    )
    said = json.loads(capsys.readouterr().out)
    assert said["heterogeneity"]["labels"]["hellinger"]["mean"] == pytest.approx(0.6, abs=0.01)
    record = json.loads(Path("nodes/split.json").read_text())
    assert record["target"] == "labels.hellinger=0.6"
    assert record["skew"] == said["skew"]
    assert fedskew(f"split {MY} --skew {record['skew']} --clients 4 --out again") == 0
    assert load_split("again").partition == load_split("nodes").partition


@pytest.mark.usefixtures("no_picture")
def test_row_numbers_arrays_groups_and_test_rows(
    fedskew: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedskew(f"split {MY} --group site --skew natural --out groups --index") == 0
    rows = np.load("groups/site 1.npy")  # named by its group
    assert (rows % 5 == 1).all()
    assert fedskew(f"split {MY} --clients 3 --out noisy --npz", "iid + noise:sigma=0.1") == 0
    with np.load("noisy/client-000.npz") as arrays:
        assert arrays["x"].dtype == np.float32
    capsys.readouterr()
    assert (
        fedskew("split --data my.csv:label=y,drop=id,test=0.2 --skew iid --clients 3 --out tested")
        == 0
    )
    assert "30 test rows are in test.*" in capsys.readouterr().out
    assert len(Path("tested/test.csv").read_text().splitlines()) == 31


@pytest.mark.parametrize(
    ("command", "skew", "expected"),
    [
        ("split --clients 4 --out nodes", "iid", "--data is missing: give --data FILE"),
        (f"split {MY} --clients 4", "iid", "Missing option '--out'"),
        (
            f"split {MY} --clients 4 --out my.csv",
            "iid",
            "my.csv exists already: remove it, or choose another with --out",
        ),
        (f"split {MY} --clients 4 --out my.csv/nodes", "iid", "a part of the path is a file"),
        ("split --data no.csv --label y --out nodes", "iid", "no.csv is not there"),
        ("split --data my.csv --out nodes", "iid", "needs label="),
        ("split --data my.csv --label kind --out nodes", "iid", "unknown column"),
        ("split --data my.csv:label=y --label y --out nodes", "iid", "label is given twice"),
        (
            "split --data my.csv --label wide --out nodes",
            "iid",
            "labels must be whole numbers or text",
        ),
        (f"split {MY} --index --npz --out nodes", "iid", "--index and --npz clash"),
        (f"split {MY} --clients 4 --out nodes", "dirichlt", "did you mean 'dirichlet'"),
        (f"split {MY} --clients 151 --out nodes", "vop", "151 clients"),
        (f"split {MY} --clients 0 --out nodes", "iid", "clients=0 is out of range"),
        (f"split {MY} --clients 4 --out nodes", "classes:k=4", "use k <= 3"),
        (f"split {MY} --clients 4 --out nodes", "natural", "group"),
        (f"split {MY} --clients 4 --client-test 1 --out nodes", "iid", "client_test=1"),
        (f"split {MY} --clients 4 --out nodes", "iid + noise:sigma=1", "write arrays with --npz"),
        (
            f"split {MY} --clients 4 --target helinger=0.5 --out nodes",
            "dirichlet",
            "did you mean 'hellinger'",
        ),
        (
            f"split {MY} --clients 4 --target hellinger=2 --out nodes",
            "dirichlet",
            "must be >= 0 and <= 1",
        ),
        (
            f"split {MY} --clients 4 --target hellinger=0.99 --out nodes",
            "vop",
            "ask for a level that is reached",
        ),
        (f"split {MY} --clients 4 --target hellinger=0.5 --out nodes", "iid", "has no parameter"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    fedskew: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
    command: str,
    skew: str,
    expected: str,
) -> None:
    assert fedskew(command, skew) == 2
    captured = capsys.readouterr()
    assert expected in captured.err
    assert len(captured.err.splitlines()) == 1
    assert captured.out == ""
    assert [path.name for path in Path().iterdir()] == ["my.csv"]


@pytest.mark.parametrize(
    ("content", "skew", "expected"),
    [
        ("a,y\n" + "1,0\n1,1\n" * 20, "vop", "no feature column is left: a (one value"),
        ("a,y\n" + "1,0\n2,0\n" * 20, "iid", "one class only"),
        ("a,y\n1,0\n2,1\n", "lds", "3 clients"),
        ("a,y\n" + "1,0\n2,\n" * 20, "iid", "missing in 20 rows"),
        ("a,y\n" + ",0\n,1\n" * 20, "iid", "no feature column is left: a (no value)"),
        (
            "a,b,y\n" + "".join(f"{k},name {k},{k % 2}\n" for k in range(100)),
            "iid",
            "no feature column is left: a (a whole number of its own",
        ),
        ("a,y\n" + "1,0\n2,1\n" * 20 + "3", "iid", "cut off"),
        ("", "iid", "is empty"),
    ],
)
def test_bad_tables_are_one_line_and_nothing_is_written(
    fedskew: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
    content: str,
    skew: str,
    expected: str,
) -> None:
    Path("my.csv").write_text(content)
    assert fedskew(f"split --data my.csv --label y --skew {skew} --clients 3 --out nodes") == 2
    captured = capsys.readouterr()
    assert expected in captured.err
    assert len(captured.err.splitlines()) == 1
    assert [path.name for path in Path().iterdir()] == ["my.csv"]


def test_nan_in_arrays_is_refused(
    fedskew: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.ones((20, 2))
    x[7, 1] = np.nan
    np.savez("my.npz", x=x, y=np.arange(20) % 2)
    assert fedskew("split --data my.npz --skew iid --clients 3 --out nodes") == 2
    assert "row 7 holds NaN" in capsys.readouterr().err
    assert not Path("nodes").exists()


# -- measure -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_picture")
def test_the_convention_of_fedartml(
    fedskew: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for convention in ("mean", "fedartml"):
        assert (
            fedskew(
                f"measure {MY} --skew dirichlet:alpha=1 --clients 3 --convention {convention} --json"
            )
            == 0
        )
        found.append(json.loads(capsys.readouterr().out)["labels"])
    assert found[1]["hellinger"]["mean"] > found[0]["hellinger"]["mean"]
    assert set(found[1]) == {"hellinger", "wasserstein"}
    assert fedskew(f"measure {MY} --skew dirichlet:alpha=1 --clients 3 --convention median") != 0
    assert "unknown convention of measure 'median'" in capsys.readouterr().err


def test_measure_names_client_column_and_factor(
    fedskew: Callable[..., Any],
    hospitals: dict[str, pd.DataFrame],
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, frame in hospitals.items():
        frame.to_csv(f"{name}.csv", index=False)
    assert fedskew("measure --data hospital_*.csv:label=outcome --picture seen.png") == 0
    lines = capsys.readouterr().out.splitlines()
    said = next(line for line in lines if line.startswith("features: strong shift"))
    assert "creatinine of hospital_D is 9" in said
    assert "times the others'" in said
    assert any(line.startswith("verdict: ") and "strong feature shift" in line for line in lines)
    table = [line for line in lines if line.startswith("hospital_")]
    assert [line.split()[0] for line in table[:4]] == [f"hospital_{name}" for name in "ABCD"]
    assert "two-sample AUC" in next(line for line in lines if line.startswith("client "))
    assert Path("seen.png").read_bytes().startswith(b"\x89PNG")
    assert fedskew("measure --data hospital_*.csv:label=outcome --json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["by_column"][0]["name"] == "hospital_D"
    assert found["by_column"][0]["column"] == "creatinine"
    assert found["by_client"][1]["absent_classes"] == ["transferred"]
    assert found["by_client"][0]["missing"]["bmi"] > 0
    assert found["by_client"][3]["two_sample_auc"]["low"] > 0.95


def test_a_folder_measures_as_its_cut_does(
    fedskew: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedskew(f"split {MY} --skew lds --clients 3 --out nodes") == 0
    capsys.readouterr()
    results = []
    for what in ("nodes", f"{MY} --skew lds --clients 3"):
        assert fedskew(f"measure {what} --json") == 0
        results.append(json.loads(capsys.readouterr().out))
    written = json.loads(Path("nodes/heterogeneity.json").read_text())
    for result in results:
        assert {name: result[name] for name in written} == written
    assert fedskew("measure nodes") == 0
    out = capsys.readouterr().out
    assert "by chance" in out
    assert "sqrt(sum (sqrt p - sqrt q)^2 / 2)" in out


def test_a_sweep_is_a_line_each_and_a_page(
    fedskew: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        fedskew(
            f"measure {MY} --skew dirichlet --clients 5 --sweep alpha=0.01+1+100 --picture page.png"
        )
        == 0
    )
    head, *lines = capsys.readouterr().out.splitlines()
    assert "hellinger" in head
    assert [line.split()[0] for line in lines] == ["alpha=0.01", "alpha=1", "alpha=100"]
    levels = [float(line.split()[1]) for line in lines]
    assert levels == sorted(levels, reverse=True)
    assert Path("page.png").read_bytes()[:4] == b"\x89PNG"
    assert fedskew(f"measure {MY} --skew dirichlet --clients 5 --sweep alpha=0.01+1 --json") == 0
    assert set(json.loads(capsys.readouterr().out)) == {"alpha=0.01", "alpha=1"}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("measure", "--data is missing"),
        ("measure . ", "it has no split.json"),
        ("measure . --skew iid", "--skew clashes with a folder"),
        (f"measure {MY} --sweep alpha", "write option=a+b+c"),
        (f"measure {MY} --skew dirichlet:alpha=1 --sweep alpha=1+2", "alpha is given twice"),
        (f"measure {MY} --skew dirichlet --sweep beta=1+2", "unknown option"),
        (f"measure {MY} --skew iid --picture my.csv", "ends in .png or .svg"),
    ],
)
def test_bad_measuring_is_one_line(
    fedskew: Callable[..., Any], capsys: pytest.CaptureFixture[str], command: str, expected: str
) -> None:
    assert fedskew(command) == 2
    captured = capsys.readouterr()
    assert expected in captured.err
    assert len(captured.err.splitlines()) == 1


def test_help_of_both_needs_no_torch() -> None:
    code = (
        "import sys; from fedskew.cli import app, measure_command, split_command; "
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_copies_are_said_and_dropped(
    fedskew: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(f"{k * k % 37}.5,{k % 2}\n" for k in range(30))
    Path("my.csv").write_text("a,y\n" + rows * 2)
    mine = "--data my.csv --label y --clients 2"
    for command in (f"split {mine} --out kept", f"measure {mine}"):
        assert fedskew(command, "iid") == 0
        assert "training rows equal an earlier one" in capsys.readouterr().out
    assert fedskew(f"split {mine} --duplicates drop --out dropped", "iid") == 0
    assert "equal an earlier one" not in capsys.readouterr().out
    lines = [path.read_text().splitlines()[1:] for path in Path("dropped").glob("client*.csv")]
    assert sum(map(len, lines)) == len(set(rows.splitlines()))
    assert fedskew(f"split {mine} --duplicates maybe --out other", "iid") == 2
    assert "duplicates=maybe" in capsys.readouterr().err
