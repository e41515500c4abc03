"""Files of several clients on the command line: checked, measured and trained, with the clients' names everywhere."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import fedskew as fs

Command = Callable[[str], Any]


@pytest.fixture
def files(fedskew: Command, hospitals: dict[str, pd.DataFrame]) -> Command:
    for name, frame in hospitals.items():
        frame.to_csv(f"{name}.csv", index=False)
    return fedskew


def test_check_lists_clients_and_differences(
    files: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert files("data check hospital_*.csv:label=outcome") == 0
    told = capsys.readouterr().out
    assert "client    hospital_B: 224 training rows" in told
    assert "differs   hospital_D: column 'creatinine' looks like another unit" in told
    assert files("data check hospital_A.csv:label=outcome hospital_D.csv") == 0
    assert "groups    2" in capsys.readouterr().out


def test_measure_says_what_differs(files: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert files("measure --data hospital_*.csv --label outcome") == 0
    told = capsys.readouterr().out
    assert "partitioned by natural" in told
    assert "difference: hospital_C lacks column 'bmi'" in told
    assert files("measure --data hospital_*.csv --label outcome --json") == 0
    assert len(json.loads(capsys.readouterr().out)["differences"]) == 4


@pytest.mark.filterwarnings("ignore:hospital_|only hospital_")
def test_run_warns_first_and_keeps_the_names(
    files: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = "--data hospital_B.csv:label=outcome --data hospital_A.csv --data hospital_D.csv"
    with pytest.warns(UserWarning, match="hospital_D: column 'creatinine' looks like another unit"):
        assert files(f"run {spec} --rounds 2 --model logreg --folder out") == 0
    config = tomllib.loads(Path("out/config.toml").read_text())
    assert config["skew"]["name"] == "natural"
    assert config["clients"] == 3
    for file in ("clients.csv", "clients_final.csv"):
        assert pd.read_csv(f"out/{file}")["name"].unique().tolist() == [
            "hospital_A",
            "hospital_B",
            "hospital_D",
        ]
    run = fs.open_run("out")
    assert run.final_clients["name"].tolist() == ["hospital_A", "hospital_B", "hospital_D"]
    assert run.clients["name"].tolist()[:3] == ["hospital_A", "hospital_B", "hospital_D"]
    capsys.readouterr()
    assert files(f"run {spec} --rounds 2 --clients 2") == 2
    assert "comes with its 3 clients" in capsys.readouterr().err
    assert not Path("runs").exists()


@pytest.mark.filterwarnings("ignore:hospital_|only hospital_")
def test_several_methods_and_a_resumed_run(files: Command) -> None:
    command = "--data hospital_*.csv:label=outcome --model logreg --rounds 1"
    with pytest.warns(UserWarning, match="hospital_D") as told:
        assert (
            files(f"compare {command} --algorithm fedavg --algorithm fedprox --algorithm central")
            == 0
        )
    # Once for all methods
    assert sum("looks like another unit" in str(one.message) for one in told) == 1
    assert [path.name for path in Path("runs").iterdir()] == ["compare-silos-natural"]
    assert files(f"run {command} --folder one") == 0
    assert files(f"run {command} --folder one --or-resume") == 0


def test_bad_input_writes_nothing(
    files: Command, hospitals: dict[str, pd.DataFrame], capsys: pytest.CaptureFixture[str]
) -> None:
    hospitals["hospital_B"].assign(age="old").to_csv("hospital_B.csv", index=False)
    assert files("run --data hospital_*.csv:label=outcome --rounds 1 --folder out") == 2
    told = capsys.readouterr().err
    assert "hospital_B: column 'age' holds text ('old'), and numbers in hospital_A" in told
    assert not Path("out").exists()
