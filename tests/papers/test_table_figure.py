"""Figures of tables: what is drawn, and the same bytes twice."""

import math
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure

from fedskew.papers.comparison import measured
from fedskew.papers.paper_tables import PaperTable
from fedskew.papers.results import Result, Results
from fedskew.papers.table_figure import draw_table, figure_of, numbers_of
from fedskew.plots import replication_figures

Made, Record = Callable[..., PaperTable], Callable[..., Results]
CURVES = [{"round": r, "test_loss": 2 / r, "test_accuracy": r / 10} for r in range(1, 6)]


def shown(figure: Figure | None) -> list[Any]:
    assert figure is not None
    return [axes for axes in figure.axes if axes.get_visible()]


def test_one_panel_a_curve_and_case_one_line_a_method(table: Made, record: Record):
    made = table(cases=[f"case {k}" for k in "abcdefgh"], curves=("test_loss", "test_accuracy"))
    runs = {(case.name, method.name): (0.5, 0.6) for case in made.cases for method in made.methods}
    panels = shown(figure_of(measured(made, record(made, runs, CURVES))))
    assert [axes.get_title() for axes in panels] == [f"case {k}" for k in "abcdef"] * 2
    assert {len(axes.lines) for axes in panels} == {2}
    for axes, column in ((panels[0], "test_loss"), (panels[-1], "test_accuracy")):
        np.testing.assert_allclose(
            axes.lines[0].get_xydata(), [(p["round"], p[column]) for p in CURVES], 1e-3
        )


def test_mean_and_band_over_the_rounds_of_all_seeds(table: Made, record: Record):
    made = table(cases=("a", "b"), methods=("new",), curves=("test_loss",))
    results = record(made, {("a", "new"): (0.5,)}, CURVES)
    other = [{"round": r, "test_loss": 4 / r if r != 2 else math.inf} for r in range(1, 4)]
    results.add([Result("a", "new", 1, results.read()[0].configuration, {"score": 0.5}, other)], {})
    (axes,) = shown(figure_of(measured(made, results)))
    np.testing.assert_allclose(axes.lines[0].get_xydata(), [(1, 3.0), (3, 1.0)], atol=1e-3)
    low, high = (edge(axes.collections[0].get_paths()[0].vertices[:, 1]) for edge in (min, max))
    assert (low, high) == pytest.approx((1 - math.sqrt(2) / 3, 3 + math.sqrt(2)), abs=1e-3)


def test_values_over_cases_with_numbers_in_their_order(table: Made, record: Record):
    made = table(cases=("alpha 10", "alpha 0.1", "alpha 1"))
    runs = {
        ("alpha 10", "new"): (0.3, 0.5),
        ("alpha 0.1", "new"): (0.1,),
        ("alpha 1", "old"): (0.2, "NaN"),
    }
    (axes,) = shown(figure_of(measured(made, record(made, runs))))
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0.1", "1", "10"]
    assert axes.get_xlabel() == "alpha"
    new, old = (container.lines[0].get_xydata().tolist() for container in axes.containers)
    np.testing.assert_allclose(new, [(0, 10), (2, 40)])
    np.testing.assert_allclose(old, [(1, 20)])


@pytest.mark.parametrize(
    "names", [("a", "b", "c"), ("alpha 1", "beta 2", "alpha 3"), ("alpha 1", "alpha 2")]
)
def test_cases_that_are_no_axis_are_not_drawn(table: Made, record: Record, names: tuple[str, ...]):
    assert numbers_of(names) is None
    made = table(cases=names)
    assert (
        draw_table(measured(made, record(made, {(name, "new"): (0.5,) for name in names}))) is None
    )


def test_nothing_measured_nothing_drawn(table: Made, record: Record):
    made = table(cases=("1", "2", "3"), curves=("test_loss",))
    assert draw_table(measured(made, record(made, {}))) is None
    assert draw_table(measured(made, record(made, {("1", "new"): ("NaN", "NaN")}))) is None


def test_a_loss_that_grows_without_bound_has_a_logarithmic_axis(table: Made, record: Record):
    made = table(curves=("test_loss", "test_accuracy"))
    curves = [
        {"round": 1, "test_loss": 0.5, "test_accuracy": 0.1},
        {"round": 2, "test_loss": 50, "test_accuracy": 0.9},
    ]
    panels = shown(
        figure_of(
            measured(made, record(made, {("a", "new"): (0.5,), ("b", "new"): (0.5,)}, curves))
        )
    )
    assert [axes.get_yscale() for axes in panels] == ["log", "log", "linear", "linear"]


def test_the_same_bytes_twice_and_a_png_if_it_is_large(
    table: Made, record: Record, monkeypatch: pytest.MonkeyPatch
):
    made = table(
        cases=("1 client", "2 client", "3 client"), methods=[f"<method> & {k}" for k in range(10)]
    )
    found = measured(
        made, record(made, {(c.name, m.name): (0.5, 0.6) for c in made.cases for m in made.methods})
    )
    ending, svg = draw_table(found) or ("", b"")
    assert ending == "svg"
    assert ElementTree.fromstring(svg.decode()).tag.endswith("svg")
    assert draw_table(found) == ("svg", svg)
    monkeypatch.setattr(replication_figures, "_MOST_BYTES", len(svg) - 1)
    ending, png = draw_table(found) or ("", b"")
    assert (ending, png[:8]) == ("png", b"\x89PNG\r\n\x1a\n")
    assert draw_table(found) == ("png", png)
