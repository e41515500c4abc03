"""Advice: three made federations with known answers, the interval, the budget, and test rows that are not used."""

import itertools
import json
import re
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch import nn

import fedskew as fs
from fedskew.advice.advise import Advice, advise
from fedskew.advice.recommendation import GOALS, Recommendation, recommend
from fedskew.cli import app
from fedskew.core.errors import DivergedError
from fedskew.data.federation import Federation
from fedskew.runs.goals import Goal
from fedskew.study import trials

LITTLE = {"budget": 60.0, "seeds": 3, "rounds": 2, "lr": 0.1}


def digits() -> tuple[Any, Any]:
    rows = fs.load("digits").train
    return rows.x.reshape(len(rows), -1), rows.y


def normalised(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(
        nn.BatchNorm1d(shape[0]), nn.Linear(shape[0], 32), nn.ReLU(), nn.Linear(32, classes)
    )


@pytest.fixture(scope="module")
def little() -> Federation:
    x, y = digits()
    return fs.split((x[:200], y[:200]), "dirichlet:alpha=0.5", clients=3)


def lowest(found: Recommendation, method: str) -> float:
    """Return the lower end of the interval of a method's difference to FedAvg."""
    contrast = next(one for one in found.contrasts if one.method == method)
    assert contrast.interval is not None
    return contrast.interval.low


def scores_of(found: Advice, goal: Goal) -> dict[str, list[float]]:
    """Return the scores of every method that was judged."""
    return {one.method: list(one.scores(goal).values()) for one in found.tried}


@pytest.mark.parametrize("seed", range(5))
def test_clients_alike_make_no_difference(seed: int):
    fed = fs.split(digits(), "iid", clients=4, seed=seed)
    found = advise(fed, "logreg", **{**LITTLE, "seeds": 6, "rounds": 15, "lr": 0.3, "seed": seed})
    for goal in GOALS:
        assert found.for_goal(goal).method == "fedavg"
    assert "do not differ beyond chance" in found.findings[0]
    assert "stratify-batch" not in {one.method for one in found.tried}


@pytest.mark.parametrize("seed", range(5))
def test_one_class_a_client_asks_for_stratify(seed: int):
    fed = fs.split(digits(), "classes:k=1", clients=10, seed=seed)
    found = advise(fed, "mlp:hidden=64", **{**LITTLE, "seeds": 6, "rounds": 10, "seed": seed})
    best = found.for_goal("shared")
    assert best.method == "stratify-batch"
    assert lowest(best, "stratify-batch") > 0.05
    assert "times as much a round" in best.says
    assert any("rows of one class" in note for note in found.notes)
    assert found.findings[0].startswith("labels differ strongly")


@pytest.mark.parametrize("seed", range(5))
def test_shifted_features_ask_for_batchnorm_of_ones_own(seed: int):
    (x, y), rng = digits(), np.random.default_rng(seed)
    client = np.arange(len(y)) % 12
    scale, shift = np.exp(rng.normal(0, 1, (12, 64))), rng.normal(0, 4, (12, 64))
    fed = fs.split(((x * scale[client] + shift[client]).astype(np.float32), y, client), "natural")
    found = advise(fed, normalised, **{**LITTLE, "seeds": 6, "rounds": 20, "lr": 0.3, "seed": seed})
    best = found.for_goal("own")
    assert best.method == "fedbn"
    assert lowest(best, "fedbn") > 0
    assert best.clients_over == "fedavg"
    assert best.clients.keys() == set(map(str, range(12)))
    assert all(gain.mean > 0 for gain in best.clients.values())
    assert found.findings[1].startswith("features differ strongly")


def test_test_rows_are_not_used(little: Federation):
    other = replace(little.data.test, y=little.data.test.y[::-1].copy(), x=little.data.test.x * 5)
    swapped = replace(little, data=replace(little.data, test=other))
    first, second = (advise(fed, "logreg", **LITTLE) for fed in (little, swapped))
    for goal in GOALS:
        assert scores_of(first, goal) == scores_of(second, goal)


def test_all_methods_are_scored_on_the_same_rows_that_no_client_trains_on(little: Federation):
    made = trials.Trials(little, "logreg", fs.Settings(), 3, 60.0, "accuracy", 1)
    feds = [made.fed_of(seed) for seed in (*made.seeds, *made.choose_seeds)]
    assert len({fed.partition.digest for fed in feds}) == 6
    for fed in feds:
        assert fed.held_out is not None
        assert fed.client_validation is not None
        parts = [set(split.rows) for split in (fed.partition, fed.held_out, fed.client_validation)]
        assert sum(map(len, parts)) == len(set.union(*parts)) == len(little.partition.rows)
        np.testing.assert_array_equal(fed.test.y, little.train.y[fed.held_out.rows])
        assert fed.data.validation is not None
        np.testing.assert_array_equal(
            fed.data.validation.y, little.train.y[fed.client_validation.rows]
        )
        assert fed.train is little.train  # so that the seeds are trained in one stack


def test_a_learning_rate_is_chosen_for_every_method_on_validation_rows_of_other_seeds(
    little: Federation, monkeypatch: pytest.MonkeyPatch
):
    runs: list[tuple[str, tuple[int, ...], float]] = []
    run = trials.Trials._run

    def noted(self: Any, method: str, rounds: int, seeds: Any, changed: Any) -> Any:
        if changed:
            runs.append((method, tuple(seeds), changed["lr"]))
        return run(self, method, rounds, seeds, changed)

    monkeypatch.setattr(trials.Trials, "_run", noted)
    found = advise(little, "logreg", budget=60.0, seeds=3, rounds=2)
    for one in found.tried:
        mine = [(seeds, lr) for method, seeds, lr in runs if method == one.method]
        assert [seeds for seeds, _ in mine] == [(1000, 1001, 1002)] * 3 + [(0, 1, 2)]
        assert one.chosen is not None
        assert [tried.numbers["lr"] for tried in one.chosen.tries] == [lr for _, lr in mine[:3]]
        assert mine[3][1] == one.chosen.best.numbers["lr"] == found.lr[one.method]


def test_a_number_that_should_be_low_is_compared_that_way():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 4)).astype(np.float32)
    y = (x @ np.array([1.0, -2.0, 0.5, 0.0]) + 0.1 * rng.normal(size=240)).astype(np.float32)
    fed = fs.split((x, y), "iid", clients=4, task="regression")
    found = advise(fed, "logreg", **{**LITTLE, "rounds": 20})
    assert found.metric == "mae"
    own = found.for_goal("own")
    assert own.method in ("fedavg", "local", "ditto")
    scores = {name: np.mean(values) for name, values in scores_of(found, "own").items() if values}
    assert scores[own.method] < 1.05 * min(scores.values())


def test_a_method_is_recommended_only_beyond_the_zone():
    given = {**LITTLE, "seeds": 6, "rounds": 10}
    found = advise(fs.split(digits(), "classes:k=1", clients=10), "mlp:hidden=64", **given)
    best = found.for_goal("shared")
    assert best.method == "stratify-batch"
    wide = lowest(best, "stratify-batch") + 0.01
    rules = replace(best.contrasts[0].rules, zone=wide)
    names = [str(client) for client in range(10)]
    assert recommend("shared", found.tried, rules, names).method == "fedavg"


def test_the_price_is_in_the_sentence_above_three_times_the_bytes():
    fed = fs.split(digits(), "classes:k=1", clients=10)
    found = advise(fed, "mlp:hidden=64", **{**LITTLE, "seeds": 6, "rounds": 10})
    tried = {one.method: one for one in found.tried}
    factor = tried["stratify-batch"].bytes_a_round / tried["fedavg"].bytes_a_round
    assert factor > 3
    assert f"sends {factor:.0f} times as much a round" in found.for_goal("shared").says


def test_a_method_without_a_shared_model_is_none_for_the_rows_of_all(little: Federation):
    found = advise(little, normalised, **LITTLE)
    assert {name for name, scores in scores_of(found, "shared").items() if not scores} == {
        "local",
        "fedbn",
    }
    assert found.as_dict()["tried"]["local"]["shared"] == []
    line = next(line for line in str(found).splitlines() if line.startswith("fedbn"))
    assert line.split()[:4] == ["fedbn", "judged", "0.1", "–"]
    assert (
        "Clients share no whole model, so that there is none to score on all rows: local, fedbn."
        in found.notes
    )
    kept = advise(little, normalised, norm="local", **LITTLE).for_goal("shared")
    assert kept.says.startswith("There is no answer: with these settings clients share no whole")


def test_where_nothing_but_fedavg_came_to_its_end_nothing_else_is_recommended(
    little: Federation, monkeypatch: pytest.MonkeyPatch
):
    tried = trials.Trials.tried

    def only_fedavg(self: Any, method: str, rates: Any) -> Any:
        if method == "fedavg":
            return tried(self, method, rates)
        return trials.Tried(method, "cut by time", {})

    monkeypatch.setattr(trials.Trials, "tried", only_fedavg)
    found = advise(little, "logreg", **LITTLE)
    for best in found.recommendations:
        assert (best.method, best.contrasts, best.clients) == ("fedavg", [], {})
        assert best.says.startswith("0 of 6 candidates were judged. There is nothing that fedavg")


def test_a_metric_that_no_client_has_gives_no_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    data = ["--data", "digits", "--skew", "classes:k=1", "--clients", "10", "--metric", "auc"]
    little = ["--model", "logreg", "--rounds", "2", "--seeds", "3", "--lr", "0.2"]
    monkeypatch.setattr(sys, "argv", ["fedskew", "advise", *data, *little, "--json"])
    with pytest.raises(SystemExit):
        app.main()
    printed = capsys.readouterr()
    assert "empty slice" not in printed.err
    found = json.loads(
        printed.out, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON")
    )
    shared, own = found["recommendations"]
    assert not shared["says"].startswith("There is no answer")
    assert (own["method"], own["verdicts"], own["clients"]) == ("fedavg", {}, {})
    assert own["says"].startswith("There is no answer")


def test_when_the_time_is_up_it_says_what_was_not_tried(
    little: Federation, monkeypatch: pytest.MonkeyPatch
):
    seconds = itertools.count(0, 1.0)
    monkeypatch.setattr(trials.time, "monotonic", lambda: next(seconds))
    found = advise(little, "logreg", budget=2.4, seeds=3, rounds=5, lr=0.1)
    fates = {one.method: one.fate for one in found.tried}
    assert fates["fedavg"] == "judged"
    assert fates["ditto"] == "cut by time"
    judged = list(fates.values()).count("judged") - 1
    assert re.match(
        rf"{judged} of {len(fates) - 1} candidates (was|were) judged\.", found.for_goal("own").says
    )


def test_a_method_that_diverges_or_is_refused_has_that_fate(
    little: Federation, monkeypatch: pytest.MonkeyPatch
):
    run = trials.Trials._run

    def with_a_failure(self: Any, method: str, rounds: int, seeds: Any, changed: Any) -> Any:
        ended = list(run(self, method, rounds, seeds, changed))
        if method == "scaffold":
            ended[1] = DivergedError("round 1: NaN")
        return ended

    monkeypatch.setattr(trials.Trials, "_run", with_a_failure)
    found = advise(little, "logreg", **LITTLE)
    assert {one.method: one.fate for one in found.tried}["scaffold"] == "diverged"
    assert found.for_goal("own").says.startswith("5 of 6 candidates were judged.")
    assert found.for_goal("shared").says.startswith("4 of 5 candidates were judged.")  # not local
    refused = advise(little, "logreg", **LITTLE, optimizer="adam")
    fates = {one.method: one.fate for one in refused.tried}
    assert fates["scaffold"] == "refused"
    assert any(note.startswith("refused: scaffold: ") for note in refused.notes)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"budget": 0}, "budget=0"),
        ({"budget": float("nan")}, "budget=nan"),
        ({"equal": -1}, "equal=-1"),
        ({"seeds": 2}, "at least 3"),
        ({"moments": 0.9}, "momentum"),
        ({"metric": "f2"}, "macro_f1"),
    ],
)
def test_bad_input_is_refused_before_any_training(
    little: Federation, given: dict[str, Any], message: str
):
    with pytest.raises(fs.FedskewError, match=message):
        advise(little, "logreg", **{**LITTLE, **given})


def test_one_client_needs_no_method():
    x, y = digits()
    with pytest.raises(fs.FedskewError, match="one client"):
        advise(fs.split((x, y), "iid", clients=1))


def test_the_text_names_methods_clients_and_numbers(little: Federation):
    found = advise(little, "logreg", **LITTLE)
    text = str(found)
    made = trials.Trials(little, "logreg", fs.Settings(), 1, 60.0, "accuracy", 1)
    assert len(made.fed_of(0).test) == 40
    assert "Each trial is scored on 40 rows only" in text
    for part in (
        "For one model for the rows of all clients:",
        "candidate",
        "every client alone",
        "3 seeds, 2 rounds",
    ):
        assert part in text
    assert list(json.loads(json.dumps(found.as_dict()))["tried"]) == [
        one.method for one in found.tried
    ]


def test_the_command_prints_json_and_the_command_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def call(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["fedskew", "advise", *words])
        with pytest.raises(SystemExit) as ended:
            app.main()
        assert ended.value.code in (0, None)
        return capsys.readouterr().out

    words = (
        "--data",
        "digits",
        "--clients",
        "3",
        "--model",
        "logreg",
        "--rounds",
        "2",
        "--seeds",
        "3",
        "--lr",
        "0.2",
    )
    assert isinstance(json.loads(call(*words, "--json"))["recommendations"], list)
    last = call(*words).splitlines()[-1]
    assert last.startswith("fedskew run --data digits --clients 3 --model logreg --algorithm ")
    assert last.endswith(" --lr 0.2")


def test_advice_is_what_advise_returns(little: Federation):
    assert isinstance(fs.advise(little, "logreg", **LITTLE), Advice)
