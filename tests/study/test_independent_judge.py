"""The numbers and words of comparisons against a judge that was written from their definitions alone."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.study.independent_judge import judge

SHARED = "--dtype float64 --rounds 6 --model logreg --grid lr=0.5,0.7,0.9"
OWN = "--dtype float64 --rounds 5 --model mlp:hidden=16 --client-test 0.2 --skew classes:k=2 --grid lr=0.2,0.25"


@pytest.mark.parametrize(
    ("goal", "command", "methods", "verdicts"),
    [
        (
            "shared",
            SHARED,
            ["fedavg", "fedprox:mu=0.0001", "fedprox:mu=1.0", "scaffold"],
            ["equal", "worse", "undecided"],
        ),
        ("own", OWN, ["fedavg", "fedper", "lg-fedavg"], ["better", "better"]),
    ],
)
def test_numbers_and_verdicts_are_those_of_the_definitions(
    fedskew: Callable[[str], Any],
    capsys: pytest.CaptureFixture[str],
    goal: str,
    command: str,
    methods: list[str],
    verdicts: list[str],
) -> None:
    named = " ".join(f"--algorithm {method}" for method in methods)
    assert fedskew(f"compare {command} {named} --seeds 0-4 --out all --json") == 0
    told = json.loads(capsys.readouterr().out)["comparison"]
    expected = judge(Path("all"), goal, methods)
    assert told["goal"] == goal
    assert told["zone"] == pytest.approx(expected["zone"], rel=1e-9)
    rows = [row for row in told["rows"] if row["method"] != "majority class"]
    judged = [*methods, "local"] if goal == "own" else methods
    for method, row in zip(judged, rows, strict=True):
        chosen = expected["chosen"][method]
        assert (row["method"], row["lr"]) == (method.partition(":")[0], chosen["lr"])
        assert row["score"] == pytest.approx(chosen["score"], rel=1e-9)
        assert row["score_std"] == pytest.approx(chosen["std"], rel=1e-9)
    for method, contrast in zip(methods[1:], told["contrasts"], strict=True):
        assert (contrast["method"], contrast["control"]) == (method, "fedavg")
        assert (contrast["blocks"], contrast["family"]) == (5, len(methods) - 1)
        for number in ("difference", "low", "high", "low_90", "high_90"):
            mine = expected["contrasts"][method][number]
            assert contrast[number] == pytest.approx(mine, rel=1e-9, abs=1e-15)
        assert contrast["verdict"] == expected["contrasts"][method]["verdict"]
    assert [contrast["verdict"] for contrast in told["contrasts"]] == verdicts
    elsewhere = expected["chosen"][judged[-1]]  # test rows would have chosen another rate
    assert elsewhere["lr"] != elsewhere["on_test"]
    if goal == "shared":  # no row differs, and the interval has some width
        assert told["contrasts"][0]["difference"] == 0 < told["contrasts"][0]["high"]
