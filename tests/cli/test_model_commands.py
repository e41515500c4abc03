"""``fedskew predict`` and ``fedskew export``: what they write, print and refuse."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import fedskew as fs

Command = Callable[[str], Any]


@pytest.fixture
def trained(fedskew: Command, hospitals: dict[str, pd.DataFrame]) -> Command:
    for name, frame in hospitals.items():
        frame.to_csv(f"{name}.csv", index=False, sep=";")
    with pytest.warns(UserWarning, match="hospital"):
        assert fedskew("run --data hospital_*.csv:label=outcome,separator=semicolon --algorithm fedbn --folder out "
                       "--model tabular --batch-size 16 --rounds 2") == 0  # fmt: skip
    hospitals["hospital_D"].drop(columns="outcome").to_csv("new.csv", index=False, sep=";")
    return fedskew


@pytest.mark.filterwarnings("ignore:hospital_|only hospital_|.*csv. semicolons")
def test_predict(trained: Command, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert trained("predict out new.csv --client hospital_D --proba --out p.csv") == 0
    assert capsys.readouterr().out == ""
    found, new = pd.read_csv("p.csv"), pd.read_csv("new.csv", sep=";")
    wanted = fs.open_run("out").predict(new, client="hospital_D", proba=True)
    assert found["row"].tolist() == list(range(len(new)))
    pd.testing.assert_frame_equal(found.drop(columns="row"), wanted, check_dtype=False)
    assert trained("predict out new.csv --client hospital_A") == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "row,prediction"
    assert len(told) == len(new) + 1


@pytest.mark.filterwarnings("ignore:hospital_|only hospital_|.*csv. semicolons")
def test_predict_refuses(trained: Command, capsys: pytest.CaptureFixture[str]) -> None:
    Path("taken.csv").touch()
    pd.read_csv("new.csv", sep=";").rename(columns={"age": "Age"}).to_csv(
        "odd.csv", index=False, sep=";"
    )
    Path("commas.csv").write_text("age,sex\n50,f\n")
    for command, message in [
        (
            "predict out commas.csv --out p.csv",
            "commas.csv lacks column 'creatinine', on which the model was trained",
        ),
        (
            "predict out odd.csv --out p.csv",
            "odd.csv lacks column 'age', on which the model was trained; is 'Age' the",
        ),
        ("predict out new.csv --out p.csv", "every client keeps a part of the model (features"),
        ("predict out new.csv --out taken.csv", "--out taken.csv exists already"),
        (
            "predict out new.csv --client hospital_X --out p.csv",
            "unknown client of out 'hospital_X'",
        ),
        ("predict out nothing.csv --out p.csv", "nothing.csv is not there"),
        ("predict new.csv new.csv --out p.csv", "is not a run folder"),
        (
            "predict out new.npz --out p.csv",
            "new.npz holds arrays, and the model was trained on a table",
        ),
        ("export out --format tf --out m", "unknown format 'tf'"),
    ]:
        assert trained(command) == 2
        assert message in capsys.readouterr().err
        assert not Path("p.csv").exists()


@pytest.mark.filterwarnings("ignore:hospital_|only hospital_|.*csv. semicolons")
def test_export(trained: Command, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert trained("export out --client hospital_A --out model.pt2") == 0
    told = capsys.readouterr().out
    assert "input   numbers float64 ['rows', 3]: age, creatinine, bmi" in told
    assert "output  probabilities" in told
    assert Path("model.pt2").stat().st_size > 1000
