"""What the atlas says of clients: the nearest cells, a first learning rate, and what it rules out."""

from dataclasses import replace

import pytest

import fedskew as fs
from fedskew.advice.advise import _against_collapse
from fedskew.advice.evidence import evidence_for, first_learning_rate, ruled_out
from fedskew.atlas.nearest_cells import Gain, Nearest, Place, Prediction
from fedskew.atlas.published import published_map
from fedskew.study.judge import Interval
from fedskew.study.trials import Trials


@pytest.fixture(scope="module")
def measured():
    fed = fs.split(fs.load("digits"), "dirichlet:alpha=0.6", clients=10, seed=0)
    return fs.measure(fed)


def test_clients_of_a_cell_are_near_it(measured):
    found = evidence_for(measured, "class")
    assert set(found) == {"shared", "own"}
    near = found["shared"]
    assert "digits-label-50" in near.names[:2]
    assert near.distances[0] < 0.3
    chosen = published_map().results[f"{near.names[0]}-shared"].chosen
    assert first_learning_rate(found, 7.0) == chosen["fedavg"]


def test_there_is_no_evidence_for_numbers_or_for_clients_unlike_any_cell(measured):
    assert evidence_for(measured, "number") == {}
    planet = replace(measured, clients=10**7, rows=10**10)
    assert evidence_for(planet, "class") == {}
    assert first_learning_rate({}, 7.0) == 7.0
    assert ruled_out({}, "scaffold") == ""


def near(*verdicts: str) -> Nearest:
    gains = {"fedprox": Gain(0.0, verdicts[0], 0.1)}
    place = Place("a", "a", "a", "shared", {}, 0.1, gains)
    prediction = Prediction("fedprox", 0.0, Interval(-0.01, 0.01), verdicts)
    return Nearest([place] * len(verdicts), [0.1] * len(verdicts), [prediction])


def test_a_method_is_ruled_out_where_it_was_nowhere_better():
    out = ruled_out({"shared": near("equal", "worse", "equal")}, "fedprox:mu=0.01")
    assert out == "equal to FedAvg or worse in the 3 nearest cells of the atlas"
    assert ruled_out({"shared": near("equal", "undecided")}, "fedprox:mu=0.01") == ""
    both = {"shared": near("equal", "equal"), "own": near("equal", "better")}
    assert ruled_out(both, "fedprox") == ""
    assert ruled_out({"shared": near("equal")}, "scaffold") == "", "it was not judged there"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, " Judge by metric=balanced_accuracy, or try class weights."),
        ({"metric": "balanced_accuracy"}, " Try class weights."),
        ({"metric": "balanced_accuracy", "task": "classification:class_weights=balanced"}, ""),
    ],
)
def test_nothing_is_advised_that_is_done_already(settings, says: str):
    fed = fs.split(fs.load("digits"), "iid", clients=3, seed=0)
    trials = Trials(
        fed, "logreg", fs.Settings(**settings), 3, 60, settings.get("metric", "accuracy"), 1
    )
    assert _against_collapse(trials) == says
