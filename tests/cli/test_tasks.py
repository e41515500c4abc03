"""Regression and several labels from the command line: run, compare, resume, list, split, measure."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedskew as fs

DIABETES = (
    "--data diabetes --task regression:loss=huber,delta=20 --skew dirichlet:alpha=0.5 --bins 5 --clients 4 "
    "--model logreg --lr 0.5 --device cpu --threads 1"
)


@pytest.fixture
def table(tmp_path: Path) -> str:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(120, 3))
    frame = pd.DataFrame(x, columns=["a", "b", "c"])
    frame["price"], frame["red"], frame["tall"] = (
        x @ [1, 2, 3],
        (x[:, 0] > 0).astype(int),
        (x[:, 1] > 0).astype(int),
    )
    frame.to_csv(tmp_path / "t.csv", index=False)
    return str(tmp_path / "t.csv")


def test_regression_from_the_command_line(
    fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
):
    assert fedskew(f"run {DIABETES} --rounds 20 --validation 0.2 --metrics r2 --folder run") == 0
    shown = capsys.readouterr()
    assert "test mae " in shown.err
    heads = shown.out.split("\n")[1].split()
    assert [word for word in heads if word in ("mae", "rmse", "r2")] == [
        "mae",
        "mae",
        "rmse",
        "r2",
        "mae",
        "mae",
    ]
    assert "accuracy" not in shown.out
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["task"] == "regression:loss=huber,delta=20.0"
    assert summary["test_r2_last"] > 0.3
    assert not Path("run/confusion.csv").exists()
    assert Path("run/report.html").exists()
    assert fs.open_run("run").final_clients["r2"].notna().all()


def test_the_written_configuration_gives_the_same_run(fedskew: Callable[[str], Any]):
    assert fedskew(f"run {DIABETES} --rounds 3 --folder one") == 0
    assert fedskew("run one/config.toml --folder two") == 0
    for file in ("rounds.csv", "clients.csv", "clients_final.csv", "model.safetensors"):
        assert Path("one", file).read_bytes() == Path("two", file).read_bytes()


def test_several_seeds_of_regression(
    fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
):
    command = f"compare {DIABETES} --rounds 3 --algorithm fedavg --algorithm fedprox:mu=0.1 --seeds 0-1 --out group"
    assert fedskew(command) == 0
    assert " ± " in capsys.readouterr().out
    found = json.loads(Path("group/summary.json").read_text())
    assert len(found["runs"]) == 4
    each = [run["test_mae_last"] for run in found["runs"] if run["algorithm"] == "fedavg"]
    assert found["means"]["fedavg"]["test_mae_last"]["mean"] == pytest.approx(np.mean(each))
    assert fedskew("resume group") == 0


def test_a_run_of_an_older_version_is_gone_on_with(
    fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
):
    command = "run --clients 4 --model logreg --rounds 2 --device cpu --threads 1 --folder run --or-resume"
    assert fedskew(command) == 0
    path = Path("run/config.toml")
    text = path.read_text().replace("metrics = []\n", "").replace('bins = "none"\n', "")
    before, _, after = text.partition("[task]\n")
    path.write_text(before + after[after.index("[") :])
    capsys.readouterr()
    assert fedskew(command + " --task classification:label_smoothing=0.1") == 2
    assert "holds another run, its task is" in capsys.readouterr().err
    # The configuration was changed by hand, and nothing else is wrong with it
    assert fedskew(command) == 2
    assert "config.toml" in capsys.readouterr().err


def test_several_labels_from_a_table(
    fedskew: Callable[[str], Any], table: str, capsys: pytest.CaptureFixture[str]
):
    spec = f"{table}:label=red+tall,target=labels,drop=price"
    options = "--skew dirichlet --bins 4 --clients 3 --rounds 5 --model logreg --folder run"
    assert fedskew(f"run --data {spec} {options}") == 0
    shown = capsys.readouterr()
    assert "test accuracy " in shown.err
    for name in ("exact_match last", "macro_f1 last", "micro_f1 last", "auc last"):
        assert name in shown.out
    assert json.loads(Path("run/summary.json").read_text())["task"] == "multilabel"


def test_tasks_are_listed(fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]):
    assert fedskew("list tasks") == 0
    shown = capsys.readouterr().out
    for word in (
        "binary",
        "classification",
        "multilabel",
        "regression",
        "label_smoothing=",
        "delta=",
    ):
        assert word in shown
    assert fedskew("run --help") == 0
    assert {"--task", "--metrics", "--bins"} <= set(capsys.readouterr().out.split())
    assert fedskew("run --task regresion") == 2
    assert "did you mean 'regression'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--data diabetes", "skew dirichlet deals out classes, and the targets are numbers"),
        (
            "--data diabetes --skew iid --task classification",
            "learns classes, and the targets of diabetes are numbers",
        ),
        ("--data digits --bins 4", "bins=4: the targets of digits are classes"),
        ("--data digits --metrics f1", "unknown metric of task classification 'f1'"),
        ("--data diabetes --skew iid --algorithm afl-cp", "selects clients by their classes"),
        ("--task from-python", "stands for a Python object"),
    ],
)
def test_what_does_not_go_together(
    fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str], options: str, message: str
):
    assert fedskew(f"run {options} --rounds 1") == 2
    assert message in capsys.readouterr().err
    assert not Path("runs").exists()


@pytest.mark.parametrize("how", ["", "--npz", "--index"])
def test_a_split_of_numbers_and_back(fedskew: Callable[[str], Any], table: str, how: str):
    spec = f"{table}:label=price,target=number,drop=red+tall"
    assert (
        fedskew(f"split --data {spec} --skew classes:k=2 --bins 4 --clients 4 --out nodes {how}")
        == 0
    )
    fed = fs.load_split("nodes")
    assert (fed.data.target, fed.clients, len(fed.data.label_names)) == ("number", 4, 4)
    assert np.count_nonzero(fed.partition.counts(fed.train.labels, 4), axis=1).tolist() == [2] * 4
    client = fs.load_split("nodes", 1)
    np.testing.assert_array_equal(
        np.sort(client.train.y), np.sort(fed.train.y[fed.partition.of(1)])
    )
    written = json.loads(Path("nodes/heterogeneity.json").read_text())
    assert fs.measure(fed).as_dict()["labels"] == written["labels"]


@pytest.mark.parametrize("how", ["", "--npz"])
def test_a_split_of_labels_and_back(fedskew: Callable[[str], Any], table: str, how: str):
    spec = f"{table}:label=red+tall,target=labels,drop=price"
    assert (
        fedskew(f"split --data {spec} --skew iid --clients 3 --client-test 0.2 --out nodes {how}")
        == 0
    )
    fed = fs.load_split("nodes")
    assert (fed.data.target, fed.data.classes, fed.train.y.shape) == (
        "labels",
        ("red", "tall"),
        (120, 2),
    )
    assert fs.load_split("nodes", 2).test.y.shape == (8, 2)


def test_numbers_are_measured(fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]):
    assert fedskew("measure --data diabetes --skew vop --clients 3") == 0
    assert "labels: not measured" in capsys.readouterr().out
    assert fedskew("measure --data diabetes --skew lds --bins 5 --clients 3 --json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["labels"]["hellinger"]["mean"] > 0.7
    assert found["bins"] == 5
    assert (
        fedskew(
            "measure --data diabetes --skew vop --sweep strength=0+1 --clients 3 --picture p.png"
        )
        == 0
    )
    assert "mean over pairs, features" in capsys.readouterr().out
    assert fedskew("data check diabetes") == 0
    assert "a number from 25 to 346" in " ".join(capsys.readouterr().out.split())


def examples(language: str) -> list[str]:
    text = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("code", examples("python"))
def test_python_examples_of_the_page_run(code: str, capsys: pytest.CaptureFixture[str]):
    exec(compile(code, "docs/tasks.md", "exec"), {})  # a page of ours
    assert all(math.isfinite(float(number)) for number in capsys.readouterr().out.split())


@pytest.mark.parametrize("command", examples("sh"))
def test_commands_of_the_page_run(fedskew: Callable[[str], Any], command: str):
    assert fedskew(command.strip().removeprefix("fedskew ")) == 0
