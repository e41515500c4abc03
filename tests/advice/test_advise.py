"""Advice: three made federations with known answers, the interval, the budget, and test rows that are not used."""

import itertools
import json
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats
from torch import nn

import fedskew as fs
from fedskew.advice.advise import Advice, advise
from fedskew.advice.recommendation import GOALS, Gain
from fedskew.cli import app
from fedskew.data.federation import Federation
from fedskew.study import trials

LITTLE = {"minutes": 60.0, "seeds": 3, "rounds": 2, "lr": 0.1}


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


@pytest.mark.parametrize("seed", range(5))
def test_clients_alike_make_no_difference(seed: int):
    fed = fs.split(digits(), "iid", clients=4, seed=seed)
    found = advise(fed, "logreg", **{**LITTLE, "seeds": 6, "rounds": 15, "lr": 0.3, "seed": seed})
    assert found.for_goal("everywhere").method == "fedavg"
    assert found.for_goal("own").method in ("fedavg", "local")
    assert "do not differ beyond chance" in found.findings[0]


@pytest.mark.parametrize("seed", range(5))
def test_one_class_a_client_asks_for_stratify(seed: int):
    fed = fs.split(digits(), "classes:k=1", clients=10, seed=seed)
    found = advise(fed, "mlp:hidden=64", **{**LITTLE, "seeds": 6, "rounds": 10, "seed": seed})
    best = found.for_goal("everywhere")
    assert best.method == "stratify-batch"
    assert best.over["fedavg"].low > 0.05
    assert "times as much a round" in best.verdict
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
    assert best.over["fedavg"].low > 0
    assert best.over["local"].low > 0
    assert best.clients.keys() == set(map(str, range(12)))
    assert all(gain.mean > 0 for gain in best.clients.values())
    assert found.findings[1].startswith("features differ strongly")


def test_the_interval_is_that_of_a_paired_t_test():
    ours, theirs = np.array([0.8, 0.9, 0.85, 0.7]), np.array([0.75, 0.8, 0.86, 0.6])
    gain = Gain.of(ours - theirs, 0.95)
    low, high = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert (gain.low, gain.high) == pytest.approx((low, high), abs=1e-12)
    assert gain.mean == pytest.approx(0.06)


def test_test_rows_are_not_used(little: Federation):
    other = replace(little.data.test, y=little.data.test.y[::-1].copy(), x=little.data.test.x * 5)
    swapped = replace(little, data=replace(little.data, test=other))
    first, second = (advise(fed, "logreg", **LITTLE) for fed in (little, swapped))
    for name, scores in first.scores.items():
        np.testing.assert_array_equal(scores.own, second.scores[name].own)


def test_all_methods_are_scored_on_the_same_rows_that_no_client_trains_on(little: Federation):
    made = trials.Trials(little, "logreg", fs.Settings(), 3, 60.0, "accuracy")
    assert len({fed.partition.digest for fed in made.feds}) == 3
    for fed in made.feds:
        assert fed.held_out is not None
        assert not set(fed.partition.rows) & set(fed.held_out.rows)
        assert set(fed.partition.rows) | set(fed.held_out.rows) == set(little.partition.rows)
        np.testing.assert_array_equal(fed.test.y, little.train.y[fed.held_out.rows])
        assert fed.train is little.train  # so that the seeds are trained in one stack


def test_a_number_that_should_be_low_is_compared_that_way():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 4)).astype(np.float32)
    y = (x @ np.array([1.0, -2.0, 0.5, 0.0]) + 0.1 * rng.normal(size=240)).astype(np.float32)
    fed = fs.split((x, y), "iid", clients=4, task="regression")
    found = advise(fed, "logreg", **{**LITTLE, "rounds": 20})
    assert found.metric == "mae"
    assert "stratify-batch" not in found.scores  # it needs classes
    own = found.for_goal("own")
    assert own.method in ("fedavg", "local", "ditto")
    scores = {name: scores.mean_own.mean() for name, scores in found.scores.items()}
    assert scores[own.method] < 1.05 * min(scores.values())


def test_gains_are_those_of_the_method_that_is_recommended(little: Federation):
    found = advise(little, "logreg", **{**LITTLE, "metric": "ece"})
    for goal in GOALS:
        best = found.for_goal(goal)
        of = {
            name: one.everywhere if goal == "everywhere" else one.mean_own
            for name, one in found.scores.items()
        }
        # Clients alone share no model
        baselines = {"fedavg"} if goal == "everywhere" else {"fedavg", "local"}
        assert best.over.keys() == baselines - {best.method}
        for name, gain in best.over.items():
            assert gain.mean == pytest.approx(-(of[best.method] - of[name]).mean(), abs=1e-12)


def test_a_method_without_a_shared_model_is_none_for_the_rows_of_all(little: Federation):
    found = advise(little, normalised, **LITTLE)
    assert {name for name, scores in found.scores.items() if scores.everywhere is None} == {
        "local",
        "fedbn",
    }
    assert found.as_dict()["tried"]["local"]["everywhere"] is None
    line = next(line for line in str(found).splitlines() if line.startswith("fedbn"))
    assert line.split()[1] == "–"
    assert (
        "Clients share no whole model, so that there is none to score on all rows: local, fedbn."
        in found.notes
    )
    kept = advise(little, normalised, norm="local", **LITTLE).for_goal("everywhere")
    assert (
        kept.verdict
        == "There is no answer: with these settings, clients share no whole model (norm)."
    )


def test_where_nothing_but_fedavg_came_to_its_end_nothing_else_is_recommended(
    little: Federation, monkeypatch: pytest.MonkeyPatch
):
    score = trials.Trials.score
    monkeypatch.setattr(
        trials.Trials, "score", lambda self, m, **c: score(self, m, **c) if m == "fedavg" else None
    )
    for best in advise(little, "logreg", **LITTLE).recommendations:
        assert (best.method, best.over, best.clients) == ("fedavg", {}, {})
        assert "Nothing else was tried to the end" in best.verdict


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
    everywhere, own = found["recommendations"]
    assert not everywhere["verdict"].startswith("There is no answer")
    assert (own["method"], own["over"], own["clients"]) == ("fedavg", {}, {})
    assert own["verdict"].startswith("There is no answer")


def test_when_the_time_is_up_it_says_what_was_not_tried(
    little: Federation, monkeypatch: pytest.MonkeyPatch
):
    seconds = itertools.count(0, 1.0)
    monkeypatch.setattr(trials.time, "monotonic", lambda: next(seconds))
    found = advise(little, "logreg", minutes=1.2, seeds=3, rounds=5, lr=0.1)
    assert "fedavg" in found.scores
    assert "ditto" not in found.scores
    assert any("ditto" in note for note in found.notes if note.startswith("Not tried to the end"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"minutes": 0}, "minutes=0"),
        ({"minutes": float("nan")}, "minutes=nan"),
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
    assert (
        len(trials.Trials(little, "logreg", fs.Settings(), 1, 60.0, "accuracy").feds[0].test) == 40
    )
    assert "Each trial is scored on 40 rows only" in text
    for part in (
        "For one model for the rows of all clients:",
        "tried",
        "every client alone",
        "3 seeds, 2 rounds",
    ):
        assert part in text
    assert json.loads(json.dumps(found.as_dict()))["tried"].keys() == found.scores.keys()


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
