"""One comparison, whichever door it came through: the command line, a file, or Python."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import fedskew as fs

SMALL: dict[str, Any] = {"rounds": 2, "model": "logreg", "clients": 3}
FLAGS = "--rounds 2 --model logreg --clients 3 --algorithm fedavg --algorithm fedprox"
FLAGS += " --seeds 0-2 --grid mu=0.1,1 --target 0.5"


def of_runs(path: Path) -> Any:
    """Return the runs of a study without the types by which a door gives settings: all of them are validated."""
    members = json.loads(path.read_text())
    for member in members:
        member["values"] = {name: str(value) for name, value in member["values"].items()}
    return members


def table(folder: Path) -> pd.DataFrame:
    """Return the table of a comparison without the seconds that it took."""
    return pd.read_csv(folder / "comparison.csv").drop(columns=["seconds", "seconds_std"])


def test_all_doors_leave_the_same_study(
    fedskew: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("study.toml").write_text(
        'rounds = 2\nmodel = "logreg"\nclients = 3\nalgorithm = ["fedavg", "fedprox"]\n'
        "seeds = [0, 1, 2]\ntarget = 0.5\n[grid]\nmu = [0.1, 1]\n"
    )
    assert fedskew(f"compare {FLAGS} --out flags") == 0
    assert fedskew("compare study.toml --out file") == 0
    fs.compare(
        algorithm=["fedavg", "fedprox"],
        seeds=range(3),
        grid={"mu": [0.1, 1]},
        target=0.5,
        out="python",
        **SMALL,
    )
    for other in ("file", "python"):
        assert of_runs(Path(other) / "group.json") == of_runs(Path("flags/group.json"))
        assert (Path(other) / "target.txt").read_text() == "0.5\n"
        assert table(Path(other)).equals(table(Path("flags")))
        assert (Path(other) / "curves.svg").read_bytes() == Path("flags/curves.svg").read_bytes()
        for run in Path("flags").iterdir():
            if run.is_dir():
                for name in ("rounds.csv", "clients.csv", "model.safetensors"):
                    assert (Path(other) / run.name / name).read_bytes() == (run / name).read_bytes()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"target": "nothing"}, "target 'nothing' is not a number"),
        ({"target": "recall=0.5"}, "unknown metric of the target 'recall'"),
        ({"jobs": 0}, "jobs=0 is not a whole number"),
        ({"jobs": 2, "workers": 2}, "jobs=2 clashes with workers=2"),
        ({"seed": 1, "seeds": [1]}, r"seed=1 clashes with seeds=\[1\]"),
        ({"round": 3}, "unknown setting 'round': did you mean 'rounds'"),
        ({"or_resume": True}, "or_resume needs out"),
    ],
)
def test_a_study_is_checked_before_anything_is_written(
    given: dict[str, Any], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(fs.FedskewError, match=problem):
        fs.compare(**{**SMALL, **given})
    assert list(tmp_path.iterdir()) == []


def test_a_study_is_frozen_before_its_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*given: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedskew.study.compare.execute", stop)
    with pytest.raises(KeyboardInterrupt, match="resume with: fedskew resume"):
        fs.compare(algorithm=["fedavg", "moon"], target=0.4, out=tmp_path / "study", **SMALL)
    assert sorted(path.name for path in (tmp_path / "study").iterdir()) == [
        "group.json",
        "study.json",
        "target.txt",
    ]
