"""What must not be concluded: other rows, other metrics, lost controls, dropped failures, rows too few to tell."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedskew as fs
from fedskew.study.read_comparison import comparison
from fedskew.study.row_worth import row_worth

SMALL: dict[str, Any] = {"rounds": 2, "model": "logreg", "clients": 4, "threads": 1}


def table_of(path: Path, shift: float) -> None:
    """Write a table of two classes."""
    draw = np.random.default_rng(0)
    label = draw.integers(0, 2, 300)
    x = draw.normal(size=(300, 3)) + shift * label[:, None]
    pd.DataFrame(x, columns=["a", "b", "c"]).assign(y=label).to_csv(path, index=False)


def test_a_study_does_not_go_on_with_other_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table_of(Path("d.csv"), 0.2)
    given = {
        "data": "d.csv:label=y",
        "algorithm": ["fedavg", "fedprox:mu=1"],
        "seeds": range(3),
        **SMALL,
    }
    fs.compare(out="study", **given)
    shutil.rmtree("study/fedprox-mu-1.0-s1")
    table_of(Path("d.csv"), 2.0)
    with pytest.raises(
        fs.FedskewError, match="hold other rows than in fedavg-s1: put the data back"
    ):
        fs.compare(out="study", or_resume=True, **given)


def test_finished_runs_on_other_rows_are_no_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for method, shift in (("fedavg", 0.2), ("scaffold", 2.0)):
        table_of(Path("d.csv"), shift)
        fs.train(
            fs.split(fs.load("d.csv:label=y"), "iid", clients=3),
            "logreg",
            method,
            rounds=1,
            folder=method,
        )
    with pytest.raises(
        fs.FedskewError, match="were trained on other rows, though their data and seeds"
    ):
        fs.compare("fedavg", "scaffold")


@pytest.mark.parametrize(
    ("algorithms", "control", "label"),
    [
        (["scaffold", "fedprox:mu=0.01"], "fedprox", "fedprox"),
        (["fedavg", "fedavg:weights=uniform", "fedavg + clip"], None, "fedavg"),
        (
            ["scaffold", "fedprox:mu=0.1 + clip:norm=10"],
            "fedprox:mu=0.1 + clip:norm=10",
            "fedprox:mu=0.1",
        ),
        (["fedavg", "scaffold", "central"], "central", "central"),
    ],
)
def test_the_planned_control_is_kept(
    algorithms: list[str], control: str | None, label: str, tmp_path: Path
) -> None:
    frame = fs.compare(
        algorithm=algorithms, control=control, seeds=range(3), out=tmp_path / "x", **SMALL
    )
    assert frame.attrs["control"].startswith(label)
    found = comparison([tmp_path / "x"])
    assert not any(line.startswith(f"{label}: ") for line in found.references())
    contrasts = found.as_dict()["contrasts"]
    assert len(contrasts) == len(algorithms) - 1
    assert {one["control"] for one in contrasts} == {frame.attrs["control"]}
    with pytest.raises(fs.FedskewError, match="control 'nosuch' is not one of the methods"):
        fs.compare(tmp_path / "x", control="nosuch")


def test_local_may_be_the_control_of_what_clients_use(tmp_path: Path) -> None:
    frame = fs.compare(
        algorithm=["fedavg", "ditto"],
        control="local",
        client_test=0.2,
        seeds=range(3),
        out=tmp_path / "x",
        **SMALL,
    ).set_index("method")
    assert frame.loc["local", "verdict"] == "control"
    assert frame.loc[["fedavg", "ditto"], "difference"].notna().all()


def test_all_runs_are_judged_by_the_metric_of_the_first(tmp_path: Path) -> None:
    fed = fs.split(fs.load("digits"), "classes:k=3", clients=4)
    for method, metric in (("fedavg", "accuracy"), ("fedprox", "balanced_accuracy")):
        fs.train(fed, "logreg", method, rounds=1, metric=metric, folder=tmp_path / method)
    frame = fs.compare(tmp_path / "fedavg", tmp_path / "fedprox").set_index("method")
    summary = fs.open_run(tmp_path / "fedprox").summary
    assert frame.loc["fedprox", "score"] == summary["test_accuracy_last"]
    assert frame.attrs["control"] == "fedavg"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("failures") / "study"
    fs.compare(
        algorithm=["fedavg", "fedprox:mu=1", "scaffold"], skew=["iid", "classes:k=3"], seeds=range(4), pool=True,
        out=place, **SMALL,
    )  # fmt: skip
    return place


def failed(folder: Path, *names: str) -> None:
    """Make runs of a study look as if they had diverged."""
    for name in names:
        (folder / name / "failed.json").write_text(
            json.dumps({"algorithm": "x", "seed": 0, "failed": f"{name}: round 1: NaN"})
        )


def test_a_failure_is_beside_every_verdict(study: Path, tmp_path: Path) -> None:
    shutil.copytree(study, tmp_path / "x")
    failed(tmp_path / "x", "scaffold-classes-k-3-s0")
    found = comparison([tmp_path / "x"])
    told = found.as_dict()
    assert "scaffold (failed 1 of 4)" in told["verdict"]
    row = next(
        row for row in told["rows"] if row["method"] == "scaffold" and row["skew"] == "classes:k=3"
    )
    assert row["verdict"].endswith(", failed 1 of 4")
    line = next(line for line in found.lines() if "failed 1 of 4" in " ".join(line))
    assert "3 of 4" in line
    drawn = [row.verdict for row in found.forest.rows if row.name == "scaffold"]
    assert [text.partition(", ")[2] for text in drawn] == ["", "failed 1 of 4", "failed 1 of 8"]


def test_there_is_no_mean_without_one_of_the_skews(study: Path, tmp_path: Path) -> None:
    shutil.copytree(study, tmp_path / "x")
    failed(tmp_path / "x", *[f"fedprox-mu-1.0-classes-k-3-s{seed}" for seed in range(4)])
    found = comparison([tmp_path / "x"])
    assert [one.contrast.method for one in found.judgement.pooled] == ["scaffold"]
    assert any(line.startswith("There is no mean of fedprox") for line in found.judgement.says)


def test_a_control_without_a_score_is_named(study: Path, tmp_path: Path) -> None:
    shutil.copytree(study, tmp_path / "x")
    failed(
        tmp_path / "x",
        *[f"fedavg-{skew}-s{seed}" for skew in ("iid", "classes-k-3") for seed in range(4)],
    )
    says = comparison([tmp_path / "x"]).judgement.says
    assert says[0].endswith("Nothing is judged: the control fedavg has no score (failed 4 of 4).")


def test_what_is_judged_otherwise_than_planned_says_so(study: Path) -> None:
    frame = fs.compare(study, equal=0.9, control="scaffold")
    said = "judged otherwise than it was planned: control scaffold instead of fedavg, equal 0.9 instead of 0.00557"
    assert said in frame.attrs["warnings"]
    assert "otherwise" not in " ".join(fs.compare(study).attrs["warnings"])


def test_another_goal_has_rows_and_a_zone_of_its_own(tmp_path: Path) -> None:
    fs.compare(
        algorithm=["fedavg", "fedprox"],
        client_test=0.2,
        seeds=range(3),
        out=tmp_path / "x",
        **SMALL,
    )
    shared = fs.compare(tmp_path / "x", goal="shared")
    assert shared.attrs["zone"] == pytest.approx(2 / 359)


def test_one_row_of_a_rare_class_or_of_a_small_client_is_what_rounding_hides() -> None:
    x = np.zeros((1000, 2), np.float32)
    y = np.zeros(1000, np.int64)
    y[::50] = 1
    fed = fs.split((x, y), "iid", clients=4)
    classes = np.bincount(fed.test.y)
    by_hand = np.sqrt((1 / classes[0]) ** 2 + (1 / classes[1]) ** 2) / 2
    assert row_worth(fed, "shared", "balanced_accuracy").rounding == pytest.approx(by_hand)
    assert row_worth(fed, "shared", "accuracy").rounding == 1 / len(fed.test)
    group = np.repeat([0, 1, 2], [480, 480, 40])
    uneven = fs.split((x, y, group), "natural", client_test=0.1)
    assert uneven.held_out is not None
    sizes = uneven.held_out.sizes
    worth = row_worth(uneven, "own", "accuracy")
    assert worth.rounding == pytest.approx(np.sqrt((1 / sizes**2).sum()) / 3)
    assert worth.typical == pytest.approx(1 / (np.median(sizes) * np.sqrt(3)))
    assert worth.rounding > worth.typical


@pytest.mark.parametrize("metric", ["accuracy", "balanced_accuracy"])
@pytest.mark.parametrize("more", [{}, {"client_test": 0.2}])
def test_finished_runs_have_the_rules_of_their_study(
    metric: str, more: dict[str, float], tmp_path: Path
) -> None:
    table_of(tmp_path / "d.csv", 0.5)
    fs.compare(
        data=f"{tmp_path / 'd.csv'}:label=y",
        algorithm=["fedavg", "fedprox"],
        seeds=range(3),
        metric=metric,
        out=tmp_path / "x",
        **more,
        **SMALL,
    )
    planned = comparison([tmp_path / "x"]).rows.rules
    runs = [path for path in (tmp_path / "x").iterdir() if path.is_dir()]
    finished = comparison(runs).rows.rules
    assert finished.zone == planned.zone
    if not more or metric == "accuracy":  # a folder does not say which classes each client held out
        assert finished.row == pytest.approx(planned.row)


def test_too_few_rows_have_no_zone(tmp_path: Path) -> None:
    table_of(tmp_path / "d.csv", 0.5)
    small = pd.read_csv(tmp_path / "d.csv").iloc[:60]
    small.to_csv(tmp_path / "d.csv", index=False)
    frame = fs.compare(
        data=f"{tmp_path / 'd.csv'}:label=y", algorithm=["fedavg", "fedprox"], client_test=0.2, seeds=range(3),
        out=tmp_path / "x", **SMALL,
    )  # fmt: skip
    assert frame.attrs["zone"] is None
    assert "equal" not in set(frame["verdict"])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"pool": True}, "pool needs several skews"),
        ({"choose_seeds": [7, 8]}, "choose_seeds needs a grid"),
    ],
)
def test_what_would_do_nothing_is_refused(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(fs.FedskewError, match=said):
        fs.compare(algorithm=["fedavg", "fedprox"], out=tmp_path / "x", **given, **SMALL)


def test_a_study_without_its_plan_says_what_is_missing(
    tmp_path: Path, fedskew: Callable[[str], Any], capsys: Any
) -> None:
    fs.compare(
        grid={"lr": [0.1, 0.2]}, choose_seeds=[5], seeds=range(2), out=tmp_path / "x", **SMALL
    )
    (tmp_path / "x/study.json").unlink()
    assert fedskew(f"resume {tmp_path / 'x'}") == 2
    assert "study.json is not there: put it back" in capsys.readouterr().err


def test_a_damaged_summary_is_refused_by_name(
    tmp_path: Path, fedskew: Callable[[str], Any], capsys: Any
) -> None:
    fs.compare(algorithm=["fedavg", "fedprox"], out=tmp_path / "x", **SMALL)
    (tmp_path / "x/fedavg-s0/summary.json").write_text("[]")
    assert fedskew(f"resume {tmp_path / 'x'}") == 2
    assert "summary.json" in capsys.readouterr().err


def test_an_interval_that_excludes_0_never_shows_it(tmp_path: Path) -> None:
    fs.compare(
        data="diabetes", algorithm=["fedavg", "fedprox:mu=5", "scaffold"], skew="quantity", seeds=range(4), equal=0.5,
        out=tmp_path / "x", **SMALL,
    )  # fmt: skip
    found = comparison([tmp_path / "x"])
    decided = 0
    for row in found.forest.rows:
        if row.verdict in ("better", "worse"):
            decided += 1
            ends = row.numbers(found.digits).partition("(")[2].rstrip(")").split(" to ")
            assert float(ends[0]) * float(ends[1]) > 0
    assert decided


def test_a_metric_that_no_client_has_is_said(tmp_path: Path) -> None:
    frame = fs.compare(
        algorithm=["fedavg", "fedper"], client_test=0.2, skew="classes:k=1", metric="auc", seeds=range(3),
        out=tmp_path / "x", **{**SMALL, "model": "mlp:hidden=8", "clients": 10},
    )  # fmt: skip
    assert any(
        "there is no score of fedavg, fedper: auc is not defined" in text
        for text in frame.attrs["warnings"]
    )


def test_a_diverging_rate_and_low_errors_are_chosen_by_validation_rows(tmp_path: Path) -> None:
    frame = fs.compare(
        data="diabetes", algorithm=["fedavg", "fedprox:mu=1"], grid={"lr": [0.001, 0.1, 1e9]}, seeds=range(3),
        skew="iid", out=tmp_path / "x", **SMALL,
    )  # fmt: skip
    for written, method in (("fedavg", "fedavg"), ("fedprox-mu-1.0", "fedprox")):
        means = {}
        for lr in (0.001, 0.1):
            values = []
            for seed in range(3):
                summary = json.loads(
                    (tmp_path / f"x/{written}-lr-{lr:g}-s{seed}/summary.json").read_text()
                )
                values.append(summary["validation_mae_last"])
            means[lr] = np.mean(values)
        assert frame.set_index("method").loc[method, "lr"] == min(means, key=means.__getitem__)
