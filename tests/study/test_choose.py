"""Numbers are chosen on validation rows, methods are judged on test rows, and everything says the same of it."""

import csv
import html
import json
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedskew as fs
from fedskew.core.units import PERCENT
from fedskew.study.choose import Try, choose, unequal_tries
from fedskew.study.read_comparison import comparison
from fedskew.study.settle import plan_of

SMALL: dict[str, Any] = {"rounds": 3, "model": "logreg", "clients": 4, "threads": 1}
RATES = (0.001, 0.1, 0.5)


# -- pure --------------------------------------------------------------------------------------------------------------


def test_the_best_mean_is_chosen() -> None:
    tries = [Try({"lr": 0.1}, [0.7, 0.9]), Try({"lr": 1.0}, [0.81, 0.81]), Try({"lr": 9.0}, [0.1])]
    found = choose(tries, sign=1)
    assert (found.best, found.at_edge) == (tries[1], [])
    assert choose(tries, sign=-1).at_edge == ["lr"]


def test_a_try_that_failed_is_chosen_only_if_all_did() -> None:
    good, failed = Try({"lr": 1.0}, [0.5, 0.5]), Try({"lr": 2.0}, [0.9], failed=1)
    assert choose([failed, good], sign=1).best is good
    twice = Try({"lr": 3.0}, [0.95], failed=2)
    assert choose([twice, failed], sign=1).best is failed
    nothing = Try({"lr": 4.0}, [], failed=1)
    assert choose([nothing, failed], sign=1).best is failed


def test_equal_tries_take_the_first_and_edges_are_by_name() -> None:
    tries = [Try({"lr": a, "mu": b}, [0.5]) for a in (1.0, 2.0, 3.0) for b in (0.1,)]
    found = choose(tries, sign=1)
    assert found.best is tries[0]
    assert found.at_edge == ["lr"]  # one number was tried of mu: it has no edge


def test_unequal_tries_are_said() -> None:
    assert unequal_tries({"a": 3, "b": 3}) == ""
    assert "a 3, b 9" in unequal_tries({"a": 3, "b": 9})


# -- a study -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("choosing") / "study"
    fs.compare(
        algorithm=["fedavg", "fedprox:mu=1"],
        grid={"lr": list(RATES)},
        seeds=range(3),
        out=place,
        **SMALL,
    )
    return place


def summaries(folder: Path, method: str, lr: float) -> list[dict[str, Any]]:
    found = []
    for seed in range(3):
        name = f"{method}-lr-{lr:g}-s{seed}"
        found.append(json.loads((folder / name / "summary.json").read_text()))
    return found


def mean(rows: list[dict[str, Any]], key: str) -> float:
    return statistics.mean(row[key] for row in rows)


def test_numbers_are_chosen_on_validation_rows_and_judged_on_test_rows(folder: Path) -> None:
    frame = fs.compare(folder).set_index("method")
    assert json.loads((folder / "study.json").read_text())["set_aside"] == {"validation": 0.2}
    chosen = {}
    for method, written in (("fedavg", "fedavg"), ("fedprox", "fedprox-mu-1.0")):
        best = max(
            RATES, key=lambda lr: mean(summaries(folder, written, lr), "validation_accuracy_last")
        )
        chosen[method] = summaries(folder, written, best)
        assert frame.loc[method, "lr"] == best
        assert frame.loc[method, "tries"] == len(RATES)
        assert frame.loc[method, "score"] == pytest.approx(
            mean(chosen[method], "test_accuracy_last")
        )
        assert (frame.loc[method, "at_edge"] == "lr") == (best in (RATES[0], RATES[-1]))
    differences = [
        b["test_accuracy_last"] - a["test_accuracy_last"]
        for a, b in zip(chosen["fedavg"], chosen["fedprox"], strict=True)
    ]
    assert frame.loc["fedprox", "difference"] == pytest.approx(statistics.mean(differences))
    best_mean = max(frame["score"])
    assert frame.attrs["target"] == f"accuracy={float(f'{0.9 * best_mean:.4g}'):g}"


def test_page_latex_console_and_json_say_the_same(
    folder: Path, fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedskew(f"compare {folder} --json") == 0
    captured = capsys.readouterr()
    told = json.loads(captured.out)["comparison"]
    assert told["schema"] == 1
    console = captured.err
    page = html.unescape((folder / "report.html").read_text())
    latex = (folder / "comparison.tex").read_text()
    markdown = (folder / "comparison.md").read_text().replace("\\", "")
    found = comparison([folder])
    (contrast,) = told["contrasts"]
    row = next(row for row in told["rows"] if row["method"] == "fedprox")
    with (folder / "comparison.csv").open() as file:
        stored = {line["method"]: line for line in csv.DictReader(file)}
    assert float(stored["fedprox"]["difference"]) == contrast["difference"] == row["difference"]
    assert stored["fedprox"]["verdict"] == contrast["verdict"] == row["verdict"]
    (drawn,) = found.forest.rows
    numbers = drawn.numbers(found.digits)
    low, high = contrast["low"], contrast["high"]
    form = f"+.{found.digits}f"
    assert numbers == f"{contrast['difference']:{form}} ({low:{form}} to {high:{form}})"
    for text in (console, markdown):
        assert numbers in text
        assert told["verdict"] in text
        assert found.judgement.goal_said in text
        for line in told["chosen"]:
            assert line in text
    in_points = found.in_unit(PERCENT)
    (drawn,) = in_points.forest.rows
    said = in_points.forest.rows[0].numbers(in_points.digits)
    points = f"{100 * contrast['difference']:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
    assert [float(part) for part in re.findall(r"[+-][0-9.]+", points)] == pytest.approx(
        [float(part) for part in re.findall(r"[+-][0-9.]+", said)], abs=0.1
    )
    for text in (said, " ".join(in_points.judgement.says), in_points.judgement.goal_said):
        assert text in page
    form = f"+.{max(found.digits, 3)}f"
    in_latex = f"{contrast['difference']:{form}} ({low:{form}} to {high:{form}})"
    assert in_latex.replace("-", "$-$") in latex
    lines = [line for line in latex.splitlines() if line.startswith("FedProx")]
    assert lines[0].split(" & ")[-2] == contrast["verdict"]
    assert told["verdict"] in latex.replace(r"\_", "_")
    for text in (console, page, markdown, latex):
        for word in ("ahead", "no difference", "beyond noise", "level with", "★"):
            assert word not in text


def test_latex_has_at_most_seven_columns_and_a_caption(folder: Path) -> None:
    latex = (folder / "comparison.tex").read_text()
    alignment = re.search(r"\\begin\{tabular\}\{(\w+)\}", latex)
    assert alignment is not None
    assert len(alignment[1]) <= 7
    caption = latex.split(r"\caption{")[1].split("\n")[0]
    for part in (
        "digits",
        "4 clients",
        "dirichlet",
        "3 blocks",
        "Goal shared",
        "0.00557",
        "paired t interval",
    ):
        assert part in caption
    cells = []
    for line in latex.split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines():
        cells.append(re.findall(r"(\d+)\.(\d+)", line.split(" & ")[2]))
    decimals = {len(part) for line in cells for _, part in line}
    assert decimals == {3}


def test_all_configurations_are_compared_with_choose_none(folder: Path, tmp_path: Path) -> None:
    frame = fs.compare(
        algorithm="fedavg", grid={"lr": [0.001, 0.1, 0.5]}, choose="none", seeds=range(3), out=tmp_path / "x", **SMALL
    )  # fmt: skip
    assert list(frame["lr"]) == [0.001, 0.1, 0.5]
    assert frame.attrs["control"] is None
    contrasts = comparison([tmp_path / "x"]).as_dict()["contrasts"]
    assert len(contrasts) == 3
    assert {one["family"] for one in contrasts} == {3}
    with pytest.raises(fs.FedskewError, match="control=fedavg is run with 2 numbers"):
        plan_of({"grid": {"lr": [1, 2]}, "choose": "none", "control": "fedavg"})


def test_other_seeds_choose_and_only_the_chosen_are_judged(tmp_path: Path) -> None:
    place = tmp_path / "x"
    given = {
        "algorithm": ["fedavg", "scaffold"], "grid": {"lr": [0.001, 0.1]}, "seeds": range(3),
        "choose_seeds": [100, 101], "out": place, **SMALL,
    }  # fmt: skip
    frame = fs.compare(**given)
    assert set(frame["lr"]) == {0.1}
    assert set(frame["blocks"]) == {3}
    runs = sorted(path.name for path in place.iterdir() if path.is_dir())
    assert runs == sorted(
        [
            f"{method}-lr-{lr}-s{seed}"
            for method in ("fedavg", "scaffold")
            for lr in (0.001, 0.1)
            for seed in (100, 101)
        ]
        + [f"{method}-lr-0.1-s{seed}" for method in ("fedavg", "scaffold") for seed in range(3)]
    )
    again = fs.compare(**given, or_resume=True)
    assert again["score"].tolist() == frame["score"].tolist()


def test_rows_of_each_client_choose_for_the_goal_own(tmp_path: Path) -> None:
    frame = fs.compare(
        algorithm=["fedavg", "ditto"], grid={"lr": [0.001, 0.2]}, client_test=0.2, seeds=range(3), out=tmp_path / "x",
        **SMALL,
    )  # fmt: skip
    assert json.loads((tmp_path / "x/study.json").read_text())["set_aside"] == {
        "client_validation": 0.2
    }
    for method in ("fedavg", "ditto", "local"):
        means = {}
        for lr in (0.001, 0.2):
            means[lr] = mean(
                summaries(tmp_path / "x", method, lr), "client_validation_accuracy_mean"
            )
        row = frame[frame["method"] == method].iloc[0]
        assert row["lr"] == max(means, key=means.__getitem__)
        chosen = summaries(tmp_path / "x", method, row["lr"])
        assert row["score"] == pytest.approx(mean(chosen, "client_accuracy_mean"))
    assert (
        "each client's rows were set aside to choose by"
        in comparison([tmp_path / "x"]).judgement.goal_said
    )


def test_the_round_that_is_best_on_validation_rows(tmp_path: Path) -> None:
    place = tmp_path / "x"
    frame = fs.compare(
        algorithm=["fedavg", "fedprox:mu=1"], score="validation-best", seeds=range(3), lr=2.0, out=place,
        **{**SMALL, "rounds": 6},
    )  # fmt: skip
    scores = []
    for seed in range(3):
        with (place / f"fedavg-s{seed}/rounds.csv").open() as file:
            rounds = list(csv.DictReader(file))
        best = max(rounds, key=lambda row: float(row["validation_accuracy"]))
        scores.append(float(best["test_accuracy"]))
    assert frame["score"][0] == pytest.approx(statistics.mean(scores))
    assert "in the round that is best on validation rows" in (place / "comparison.md").read_text()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"goal": "both"}, "unknown goal 'both'"),
        ({"score": "best"}, "unknown score 'best'"),
        ({"choose": "test"}, "unknown choose 'test'"),
        ({"equal": -1}, "equal=-1 is not a difference"),
        ({"control": "scaffold"}, "unknown control 'scaffold'"),
        ({"choose_seeds": "0-1", "seeds": "1-3"}, "seed 1 is also one that methods are judged by"),
        ({"choose_seeds": "8-9", "choose": "none"}, "choose_seeds=8-9 clashes with choose=none"),
    ],
)
def test_what_cannot_be_judged_is_refused_before_anything_is_written(
    given: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(fs.FedskewError, match=said):
        fs.compare(algorithm=["fedavg", "fedprox"], out=tmp_path / "x", **{**SMALL, **given})
    assert not (tmp_path / "x").exists()


def test_a_study_is_judged_as_it_was_planned(folder: Path) -> None:
    given = {
        "algorithm": ["fedavg", "fedprox:mu=1"],
        "grid": {"lr": list(RATES)},
        "seeds": range(3),
        **SMALL,
    }
    with pytest.raises(fs.FedskewError, match=r"was begun with equal=0.005.*, and this is 0.1"):
        fs.compare(**given, equal=0.1, out=folder, or_resume=True)
    with pytest.raises(
        fs.FedskewError, match="was begun with control=fedavg, and this is fedprox:mu=1"
    ):
        fs.compare(**given, control="fedprox", out=folder, or_resume=True)
    wide = fs.compare(folder, equal=0.9).set_index("method")  # finished runs, judged otherwise
    assert wide.loc["fedprox", "verdict"] == "equal"


@pytest.mark.parametrize(
    "damage",
    ["{", "[]", '{"schema": 9}', '{"schema": 1, "goal": "shared"}', None],
)
def test_a_damaged_plan_is_refused(damage: str | None, folder: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(folder, tmp_path / "x", ignore=shutil.ignore_patterns("checkpoints"))
    if damage is None:
        values = json.loads((folder / "study.json").read_text())
        damage = json.dumps({**values, "goal": "everything"})
    (tmp_path / "x/study.json").write_text(damage)
    with pytest.raises(fs.FedskewError, match=r"study\.json"):
        fs.compare(tmp_path / "x")


def test_a_collapsed_run_is_a_failure(tmp_path: Path) -> None:
    frame = fs.compare(
        algorithm=["fedavg", "fedavgm:server_lr=40"],
        seeds=range(3),
        out=tmp_path / "x",
        **{**SMALL, "model": "mlp"},
    ).set_index("method")
    found = comparison([tmp_path / "x"])
    one = found.rows.configurations[1]
    assert one.collapsed
    assert frame.loc["fedavgm", "failed"] == len(one.collapsed) + len(one.failed)
    assert f"failed {frame.loc['fedavgm', 'failed']} of 3" in frame.loc["fedavgm", "verdict"]
    assert len(one.rows) + len(one.failed) == 3  # none is dropped
    assert any(line.startswith("collapsed: fedavgm") for line in found.judgement.failures())


def test_a_try_that_diverged_or_collapsed_is_not_chosen(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    best = fs.compare(folder).set_index("method").loc["fedavg", "lr"]
    shutil.copytree(folder, tmp_path / "x")
    name = f"fedavg-lr-{best:g}-s0"
    failed = {"algorithm": "fedavg", "seed": 0, "failed": f"{name}: round 1: NaN"}
    (tmp_path / f"x/{name}/failed.json").write_text(json.dumps(failed))
    assert fs.compare(tmp_path / "x").set_index("method").loc["fedavg", "lr"] != best

    def collapsed(run: Any, goal: str) -> bool:
        return bool(run.record.config["lr"] == best)

    monkeypatch.setattr("fedskew.study.stages.fails_on_validation", collapsed)
    assert fs.compare(folder).set_index("method").loc["fedavg", "lr"] != best
