"""Figures of a split: valid files for few and many clients and classes, and what they show."""

from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure

import fedskew as fs
from fedskew.export.split_figure import draw_split, draw_sweep
from fedskew.heterogeneity.heterogeneity import measure


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
    areas = {(int(y), int(x)): area for (x, y), area in zip(discs.get_offsets(), discs.get_sizes(), strict=True)}
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
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [f"client {k}" for k in range(4)]
    outlines = [patch.get_data().values for patch in axes.patches]
    assert len(outlines) == 8  # an outline and a shade each
    np.testing.assert_allclose([values.sum() for values in outlines], 1)


def test_no_feature_varies(drawn: list[Figure]) -> None:
    fed = fs.split((np.ones((40, 2), np.float32), np.arange(40) % 2), "iid", clients=3)
    draw_split(fed, measure(fed), "title")
    assert any("no feature varies" in text.get_text() for axes in drawn[0].axes for text in axes.texts)


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
    feds = {f"alpha={alpha}": federation(10, 4, f"dirichlet:alpha={alpha}") for alpha in (0.01, 0.1, 1, 10, 100)}
    draw_sweep(feds, {name: measure(fed, chance=False) for name, fed in feds.items()}, "title")
    matrices = [axes for axes in drawn[0].axes if axes.images]
    assert [axes.get_title().splitlines()[0] for axes in matrices] == list(feds)
    assert all(axes.images[0].get_array().shape == (10, 4) for axes in matrices)
