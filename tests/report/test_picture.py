"""The picture: a sound PNG for few and many clients and classes, and what it shows."""

import struct
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

import fedskew as fs
from fedskew.report import picture


def federation(clients: int, classes: int) -> fs.Federation:
    rows = max(4 * clients, 10 * classes)
    x = np.random.default_rng(0).normal(size=(rows, 2)).astype(np.float32)
    return fs.split((x, [f"class {k % classes}" for k in range(rows)]), "quantity:alpha=5", clients=clients)


def rounds(count: int, *parts: str, every: int = 1) -> list[dict[str, Any]]:
    def score(number: int) -> float | None:
        return 1 - 1 / (number + 1) if number % every == 0 or number == count else None

    def loss(number: int) -> float | None:
        found = score(number)
        return None if found is None else 1 - found

    return [
        {"round": n, **{f"{part}_accuracy": score(n) for part in parts}, **{f"{part}_loss": loss(n) for part in parts}}
        for n in range(1, count + 1)
    ]


SUMMARY = {"algorithm": "fedavg", "model": "mlp", "data": "arrays", "skew": "quantity:alpha=5", "seed": 0}


def size_of(png: bytes) -> tuple[int, int]:
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert png[-8:-4] == b"IEND"
    width, height = struct.unpack(">II", png[16:24])
    return width, height


@pytest.mark.parametrize(("clients", "classes"), [(1, 2), (10, 10), (300, 2), (10, 100)])
def test_a_png_for_few_and_many(clients: int, classes: int) -> None:
    png = picture.draw_run(rounds(20, "train", "test"), federation(clients, classes), SUMMARY)
    width, height = size_of(png)
    assert width > 1000
    assert height > 300


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are drawn, without the time that writing them takes."""
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *args, **kwargs: figures.append(figure))
    return figures


def test_every_curve_has_its_name(drawn: list[Figure]) -> None:
    parts = ("train", "validation", "test", "own_test")
    picture.draw_run(rounds(8, *parts), federation(10, 2), SUMMARY)
    accuracy, loss, matrix, *_ = drawn[0].axes
    legend = accuracy.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [
        "global model, training rows",
        "global model, validation rows",
        "global model, test rows",
        "clients' own models, test rows",
    ]
    assert [line.get_xdata().tolist() for line in loss.lines] == [list(range(1, 9))] * 4
    assert matrix.images[0].get_array().shape == (10, 2)
    assert drawn[0].get_suptitle() == "fedavg  ·  mlp  ·  arrays cut by quantity:alpha=5  ·  seed 0"


def test_rounds_without_evaluation_are_no_points(drawn: list[Figure]) -> None:
    picture.draw_run(rounds(7, "train", "test", every=3), federation(2, 2), SUMMARY)
    assert [line.get_xdata().tolist() for line in drawn[0].axes[0].lines] == [[3, 6, 7]] * 2


def test_rounds_are_whole_numbers(drawn: list[Figure]) -> None:
    picture.draw_run(rounds(3, "test"), federation(2, 2), SUMMARY)
    assert all(tick == round(tick) for axes in drawn[0].axes[:2] for tick in axes.get_xticks())


def test_one_round_is_a_point_that_can_be_seen(drawn: list[Figure]) -> None:
    picture.draw_run(rounds(1, "test"), federation(2, 2), SUMMARY)
    assert [line.get_marker() for line in drawn[0].axes[0].lines] == ["o"]


def test_the_matrix_holds_shares_of_each_client(drawn: list[Figure]) -> None:
    fed = federation(5, 4)
    picture.draw_run(rounds(2, "test"), fed, SUMMARY)
    axes = drawn[0].axes[2]
    shown = np.asarray(axes.images[0].get_array())
    counts = fed.partition.counts(fed.train.y, 4)
    np.testing.assert_allclose(shown, counts / counts.sum(axis=1, keepdims=True))
    assert [label.get_text() for label in axes.get_yticklabels()] == [f"{k}  ({n})" for k, n in enumerate(fed.partition.sizes)]


def test_many_clients_are_shown_at_even_steps(drawn: list[Figure]) -> None:
    picture.draw_run(rounds(2, "test"), federation(300, 2), SUMMARY)
    axes = drawn[0].axes[2]
    assert axes.images[0].get_array().shape == (250, 2)
    assert axes.get_ylabel() == "client (250 of 300)"
    assert [label.get_text() for label in axes.get_yticklabels()][::5] == ["0", "299"]


def test_values_that_are_not_finite_do_not_stop_it() -> None:
    lines = rounds(4, "train", "test")
    lines[2]["test_loss"] = float("inf")
    lines[3]["test_loss"] = lines[3]["train_loss"] = float("nan")
    size_of(picture.draw_run(lines, federation(2, 2), SUMMARY))
