"""What follows from results: gains, verdicts, false discoveries, tuning curves, predictions and regret, by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from fedskew.atlas.atlas_map import AtlasMap, best_of, between_variance, tuning_curve
from fedskew.atlas.atlas_runs import Atlas
from fedskew.atlas.cell_results import RunRow
from fedskew.atlas.nearest_cells import Gain, Place, coordinates, distance, nearest, regrets
from fedskew.atlas.published import places_of


@pytest.fixture
def found(small: Atlas) -> AtlasMap:
    return AtlasMap(small.protocol, small.results)


def test_a_square_is_the_paired_difference(found: AtlasMap):
    rows = found.results["skewed-shared"].judged
    gains = []
    for seed in range(3):
        scores = {row.method: row.score for row in rows if row.seed == seed}
        gains.append(scores["fedlc"] - scores["fedavg"])
    square = found.square("skewed", "shared", "fedlc")
    assert square is not None
    assert square.gain == pytest.approx(np.mean(gains))
    assert square.p_value == pytest.approx(stats.ttest_1samp(gains, 0).pvalue)
    assert found.methods("shared") == ["fedlc", "scaffold"], (
        "central is a bound, fedavg the control"
    )
    central = np.mean([row.score for row in rows if row.method == "central"])
    control = np.mean([row.score for row in rows if row.method == "fedavg"])
    skewed = found.protocol.cell("skewed")
    assert found.bound_gain(skewed, "shared", "central") == pytest.approx(central - control)


def test_false_discoveries_by_hand(found: AtlasMap):
    values = sorted((square.p_value, square.cell.name, square.method) for square in found.squares)
    kept = 0
    for place, (value, _, _) in enumerate(values, start=1):
        if value <= 0.05 * place / len(values):
            kept = place
    assert len(found.discoveries) == kept


def test_variance_between_cells():
    assert between_variance([0.0, 0.0, 0.0], [1.0, 2.0, 3.0]) == 0
    # Equal variances: the spread of the means, less what they have by themselves
    assert between_variance([1.0, 3.0, 5.0], [0.5, 0.5, 0.5]) == pytest.approx(4.0 - 0.5)


def test_overall_with_equal_variances_is_a_t_interval(found: AtlasMap):
    (one,) = [one for one in found.overall("shared") if one.method == "fedlc"]
    gains = [square.gain for square in found.squares if square.method == "fedlc"]
    assert one.cells == 2
    assert min(gains) <= one.mean <= max(gains)
    assert sum(one.counts.values()) == 2
    assert one.interval.low < one.mean < one.interval.high


def row(method: str, lr: float, seed: int, validation: float, score: float) -> RunRow:
    return RunRow(method, "choose", lr, seed, "done", score=score, validation=validation)


def test_best_of_some_tries():
    rows = [
        row("m", 0.1, 0, 0.5, 0.6),
        row("m", 0.3, 0, 0.7, 0.65),
        row("m", 1.0, 0, 0.6, 0.9),
    ]
    assert best_of(rows, "m", 1) == pytest.approx((0.6 + 0.65 + 0.9) / 3)
    # Of {.1, .3} and {.3, 1} the rate .3 is best on validation rows, of {.1, 1} it is 1
    assert best_of(rows, "m", 2) == pytest.approx((0.65 + 0.65 + 0.9) / 3)
    assert best_of(rows, "m", 3) == pytest.approx(0.65)
    assert best_of(rows, "m", 4) is None
    diverged = RunRow("m", "choose", 3.0, 0, "diverged")
    assert best_of([*rows, diverged], "m", 4) == pytest.approx(0.65)
    assert best_of([*rows, diverged], "m", 1) == pytest.approx((0.6 + 0.65 + 0.9) / 3)


def test_a_tuning_curve_has_a_point_per_try(found: AtlasMap):
    assert len(tuning_curve(found, "shared", "fedlc")) == 2
    assert tuning_curve(found, "shared", "fedavg") == [0, 0]


MEASURED = {
    "clients": 10.0, "rows": 1000.0, "classes": 10.0, "size_gini": 0.1, "labels": 0.5, "labels_by_chance": 0.1,
}  # fmt: skip


def place(name: str, labels: float, family: str, **gains: float) -> Place:
    measured = {**MEASURED, "labels": labels}
    verdicts = {}
    for method, gain in gains.items():
        verdict = "worse"
        if gain > 0:
            verdict = "better"
        verdicts[method] = Gain(gain, verdict, 0.1)
    return Place(name, name, family, "shared", measured, 0.3, verdicts)


def test_coordinates_are_beyond_chance():
    at = coordinates({**MEASURED, "labels": 0.05})
    assert at["labels"] == 0, "less than chance is no heterogeneity"
    assert at["clients"] == 1
    assert at["rows_per_client"] == 2
    assert distance(MEASURED, MEASURED) == 0
    further = {**MEASURED, "labels": 0.75}
    assert distance(MEASURED, further) == pytest.approx(math.sqrt(1 / 4)), "one unit of four parts"


def test_the_nearest_cells_predict():
    places = [
        place("a", 0.5, "a", scaffold=0.02),
        place("b", 0.55, "b", scaffold=0.04),
        place("c", 0.6, "c", scaffold=0.03, fedlc=-0.01),
        place("far", 1.0, "d", scaffold=-0.5),
    ]
    found = nearest(places[:3], "shared", MEASURED)
    assert [one.cell for one in found.places] == ["a", "b", "c"]
    (one,) = found.predictions
    assert one.method == "scaffold", "fedlc was judged in one cell only"
    assert one.mean == pytest.approx(0.03)
    half = stats.t.ppf(0.975, 2) * 0.01 * math.sqrt(1 + 1 / 3)
    assert one.interval.high == pytest.approx(0.03 + half)
    assert found.best == "scaffold"
    assert "scaffold gains +3.0 points" in found.says
    assert "better in 3 of 3" in found.says


def test_no_cell_like_these_clients():
    found = nearest([place("a", 0.5, "a", scaffold=0.1)], "shared", {**MEASURED, "clients": 1e6})
    assert found.is_far
    assert found.best == "fedavg"
    assert found.says == "The atlas has no cell like these clients."


def test_regret_by_hand():
    places = [
        place("a", 0.5, "one", scaffold=0.02, fedlc=0.01),
        place("b", 0.5, "two", scaffold=0.04, fedlc=0.05),
        place("c", 0.5, "three", scaffold=-0.03, fedlc=-0.01),
    ]
    lost = {one.rule: one for one in regrets(places, "shared")}
    assert lost["always fedavg"].mean == pytest.approx((0.02 + 0.05 + 0) / 3)
    assert lost["always scaffold"].mean == pytest.approx((0 + 0.01 + 0.03) / 3)
    assert lost["always scaffold"].worst == pytest.approx(0.03)
    # Two cells are left each time: a sees fedlc ahead (.02 on average), and so does c (.03); b sees nothing above
    # half a point (fedlc .0, scaffold -.005) and takes FedAvg
    assert lost["the map, without the data set"].mean == pytest.approx((0.01 + 0.05 + 0.01) / 3)
    assert lost["the map, without the data set"].cells == 3


def test_places_have_what_cells_measured(found: AtlasMap):
    places = places_of(found)
    assert [one.cell for one in places] == ["iid", "iid", "skewed", "skewed"]
    assert places[0].measured["clients"] == 3
    assert set(places[2].gains) == {"fedlc", "scaffold"}
