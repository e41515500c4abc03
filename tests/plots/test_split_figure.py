"""Figures of a split: valid files for few and many clients and classes, and what they show."""

from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

import fedskew as fs
from fedskew.heterogeneity.heterogeneity import measure
from fedskew.plots.split_figure import draw_split, draw_sweep


def federation(clients: int, classes: int, skew: str = "dirichlet:alpha=0.5") -> fs.Federation:
    rng = np.random.default_rng(0)
    rows = max(6 * clients, 10 * classes)
    y = np.arange(rows) % classes
    x = (rng.normal(size=(rows, 3)) + y[:, None]).astype(np.float32)
    return fs.split((x, [f"class {k}" for k in y]), skew, clients=clients)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Return the figures that are drawn, without writing them."""
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *args, **kwargs: figures.append(figure))
    return figures


def axes_of(figure: Figure, title: str) -> Any:
    return next(axes for axes in figure.axes if title in axes.get_title())


def test_dollar_signs_in_names_make_no_formula() -> None:
    frame = pd.DataFrame({"$x^$": np.linspace(0, 1, 40), "y": [r"$\bad{$", "b"] * 20})
    fed = fs.split(fs.load({r"$\frac$": frame, "$^$": frame}, label="y"))
    drawn = draw_split(fed, measure(fed, each=True), "$^$", "svg").decode()
    assert r"<!-- $\frac$ -->" in drawn
    assert draw_sweep({"$^$": fed}, {"$^$": measure(fed)}, "$^$")[:4] == b"\x89PNG"


@pytest.mark.parametrize(("clients", "classes"), [(1, 2), (4, 2), (4, 100), (250, 2), (300, 100)])
def test_a_sound_png(clients: int, classes: int) -> None:
    fed = federation(clients, classes)
    png = draw_split(fed, measure(fed), "title")
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert png[-8:-4] == b"IEND"


def test_a_sound_svg_and_the_same_bytes_twice() -> None:
    fed = federation(4, 3)
    found = measure(fed)
    svg = draw_split(fed, found, "cut by <dirichlet> & more", "svg")
    assert ElementTree.fromstring(svg.decode()).tag.endswith("svg")
    assert svg == draw_split(fed, found, "cut by <dirichlet> & more", "svg")


def test_a_disc_for_every_class_that_a_client_holds(drawn: list[Figure]) -> None:
    fed = federation(6, 5, "classes:k=2")
    draw_split(fed, measure(fed), "title")
    axes = axes_of(drawn[0], "rows by client and class")
    (discs,) = axes.collections
    counts = fed.partition.counts(fed.train.y, 5)
    assert len(discs.get_offsets()) == np.count_nonzero(counts) == 12
    areas = {
        (int(y), int(x)): area
        for (x, y), area in zip(discs.get_offsets(), discs.get_sizes(), strict=True)
    }
    largest = max(areas.values())
    for (client, label), area in areas.items():
        assert area / largest == pytest.approx(counts[client, label] / counts.max())
    assert axes.get_yticklabels()[0].get_text() == f"0  ({fed.partition.sizes[0]})"


def test_a_line_for_every_client_up_to_250(drawn: list[Figure]) -> None:
    for clients, shown in ((21, 21), (250, 250), (1000, 250)):
        fed = federation(clients, 4)
        draw_split(fed, measure(fed), "title")
        for title in ("classes of each client", "the feature in which"):
            (image,) = axes_of(drawn[-1], title).images
            assert image.get_array().shape[0] == shown
            np.testing.assert_allclose(image.get_array().sum(axis=1), 1)


def test_the_density_is_that_of_the_most_skewed_feature(drawn: list[Figure]) -> None:
    fed = federation(4, 3, "vop:column=1")
    found = measure(fed)
    assert found.most_skewed_feature == 1
    draw_split(fed, found, "title")
    axes = axes_of(drawn[0], "the feature in which")
    assert "feature 1" in axes.get_xlabel()
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        f"client {k}" for k in range(4)
    ]
    outlines = [patch.get_data().values for patch in axes.patches]
    assert len(outlines) == 8  # an outline and a shade each
    np.testing.assert_allclose([values.sum() for values in outlines], 1)


def test_no_feature_varies(drawn: list[Figure]) -> None:
    fed = fs.split((np.ones((40, 2), np.float32), np.arange(40) % 2), "iid", clients=3)
    draw_split(fed, measure(fed), "title")
    assert any(
        "no feature varies" in text.get_text() for axes in drawn[0].axes for text in axes.texts
    )


def test_the_numbers_are_those_that_were_measured(drawn: list[Figure]) -> None:
    fed = federation(4, 3)
    found = measure(fed)
    draw_split(fed, found, "x" * 400)
    (table,) = axes_of(drawn[0], "distance of two clients").tables
    said = [cell.get_text().get_text() for cell in table.get_celld().values()]
    for spreads in found.views.values():
        for spread in spreads.values():
            assert f"{spread.mean:.3f}\n{spread.worst:.3f} / {spread.by_chance:.3f}" in said
    assert len(drawn[0].get_suptitle()) == 150


def test_a_page_has_a_matrix_for_every_cut(drawn: list[Figure]) -> None:
    feds = {
        f"alpha={alpha}": federation(10, 4, f"dirichlet:alpha={alpha}")
        for alpha in (0.01, 0.1, 1, 10, 100)
    }
    draw_sweep(feds, {name: measure(fed, chance=False) for name, fed in feds.items()}, "title")
    matrices = [axes for axes in drawn[0].axes if axes.images]
    assert [axes.get_title().splitlines()[0] for axes in matrices] == list(feds)
    assert all(axes.images[0].get_array().shape == (10, 4) for axes in matrices)


def test_effects_and_classifiers_of_single_clients(drawn: list[Figure]) -> None:
    fed = federation(4, 30, "vop:column=1")
    found = measure(fed, each=True)
    assert found.findings is not None
    draw_split(fed, found, "title")
    effects = axes_of(drawn[0], "effect sizes")
    (image,) = effects.images
    columns = [label.get_text() for label in effects.get_xticklabels()]
    assert columns == [one.column for one in found.findings.columns]
    for line, client in enumerate(found.findings.clients):
        for one in client.columns:
            shown = image.get_array()[line, columns.index(one.column)]
            assert shown == pytest.approx(np.clip(one.effect, -2, 2))
    assert [label.get_text() for label in effects.get_yticklabels()] == [
        f"client {i}" for i in range(4)
    ]
    aucs = axes_of(drawn[0], "can a classifier")
    points = aucs.lines[0].get_xdata()
    assert points.tolist() == [
        one.auc.value for one in found.findings.clients if one.auc is not None
    ]


def test_without_columns_or_tested_clients_the_panels_are_empty(drawn: list[Figure]) -> None:
    fed = fs.split((np.ones((8, 2)), [0, 1] * 4), "iid", clients=2)
    draw_split(fed, measure(fed, each=True), "title")
    assert len(drawn) == 1
    assert not [axes for axes in drawn[0].axes if "can a classifier" in axes.get_title()]
