"""The figure of a run: a valid PNG for few and many clients and classes, and what it shows."""

import struct
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import fedskew as fs
from fedskew.plots import run_figure as picture


def federation(clients: int, classes: int) -> fs.Federation:
    rows = max(4 * clients, 10 * classes)
    x = np.random.default_rng(0).normal(size=(rows, 2)).astype(np.float32)
    return fs.split(
        (x, [f"class {k % classes}" for k in range(rows)]), "quantity:alpha=5", clients=clients
    )


def rounds(count: int, *parts: str, every: int = 1, **more: Any) -> list[dict[str, Any]]:
    """Return rounds of four clients, 0.5 s and 1.5 MB each."""

    def score(number: int) -> float | None:
        return 1 - 1 / (number + 1) if number % every == 0 or number == count else None

    def loss(number: int) -> float | None:
        found = score(number)
        return None if found is None else 1 - found

    cost = {
        "bytes_down": 1_000_000,
        "bytes_up": 500_000,
        "clients": 4,
        "excluded": 0,
        "dropped": 0,
        "late": 0,
    }
    return [
        {"round": n, **cost, "clock": 0.5 * n, **more}
        | {f"{part}_accuracy": score(n) for part in parts}
        | {f"{part}_loss": loss(n) for part in parts}
        for n in range(1, count + 1)
    ]


SUMMARY = {
    "algorithm": "fedavg", "model": "mlp", "data": "arrays", "skew": "quantity:alpha=5", "fleet": "uniform", "seed": 0,
}  # fmt: skip


def panel(figure: Figure, label: str) -> Axes:
    """Return the panel with this title below it."""
    (found,) = (axes for axes in figure.axes if axes.get_xlabel() == label)
    return found


def points(axes: Axes) -> list[list[float]]:
    return [np.asarray(line.get_xdata()).tolist() for line in axes.lines]


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
    """Return the figures that are drawn, without writing them."""
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *args, **kwargs: figures.append(figure))
    return figures


def test_dollar_signs_make_no_formula() -> None:
    png = picture.draw_run(rounds(2, "test"), federation(2, 2), {**SUMMARY, "data": r"$\bad{$"})
    assert png[:4] == b"\x89PNG"


def test_every_curve_has_its_name(drawn: list[Figure]) -> None:
    parts = ("train", "validation", "test", "own_test")
    picture.draw_run(rounds(8, *parts), federation(10, 2), SUMMARY)
    _, loss, matrix, *_ = drawn[0].axes
    (legend,) = drawn[0].legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "global model, training rows",
        "global model, validation rows",
        "global model, test rows",
        "clients' own models, test rows",
    ]
    assert [line.get_xdata().tolist() for line in loss.lines] == [list(range(1, 9))] * 4
    assert matrix.images[0].get_array().shape == (10, 2)
    assert (
        drawn[0].get_suptitle()
        == "fedavg  ·  mlp  ·  arrays partitioned by quantity:alpha=5  ·  seed 0"
    )


@pytest.mark.parametrize(
    ("metric", "level"), [("accuracy", 0.6), ("balanced_accuracy", 0.25), ("macro_f1", None)]
)
def test_one_class_for_all_rows_is_a_line(
    drawn: list[Figure], metric: str, level: float | None
) -> None:
    table = [{**row, f"test_{metric}": row["test_accuracy"]} for row in rounds(3, "test")]
    picture.draw_run(table, federation(2, 4), {**SUMMARY, "test_majority_rate": 0.6}, metric)
    first = drawn[0].axes[0]
    assert first.get_ylabel() == metric
    assert first.get_ylim() == (0, 1.02)
    flat = [line.get_ydata() for line in first.lines if line.get_linestyle() == ":"]
    assert [y[0] for y in flat] == ([] if level is None else [level])


def test_a_fleet_that_was_chosen_is_named(drawn: list[Figure]) -> None:
    picture.draw_run(rounds(2, "test"), federation(2, 2), {**SUMMARY, "fleet": "mixed:slow=5"})
    assert drawn[0].get_suptitle().endswith("·  fleet mixed:slow=5  ·  seed 0")


def test_accuracy_over_simulated_time_and_over_what_was_sent(drawn: list[Figure]) -> None:
    picture.draw_run(rounds(4, "train", "test", every=2), federation(2, 2), SUMMARY)
    time, sent = (
        panel(drawn[0], "simulated time (s)"),
        panel(drawn[0], "sent so far, both ways (MB)"),
    )
    assert points(time) == [[1.0, 2.0]] * 2  # rounds 2 and 4, half a second each
    assert points(sent) == [[3.0, 6.0]] * 2  # and 1.5 MB
    for axes in (time, sent):
        assert np.asarray(axes.lines[0].get_ydata()).tolist() == pytest.approx([2 / 3, 4 / 5])
        assert axes.get_xlim()[0] == 0
        assert axes.get_ylabel() == "accuracy"


@pytest.mark.parametrize(
    ("clock", "label", "shown"),
    [
        (119.0, "s", 119),
        (120.0, "min", 2),
        (7199.0, "min", 7199 / 60),
        (3 * 3600.0, "h", 3),
        (5 * 86400.0, "days", 5),
        (0.0, "s", 0),
    ],
)
def test_units_of_time(clock: float, label: str, shown: float, drawn: list[Figure]) -> None:
    picture.draw_run(rounds(1, "test", clock=clock), federation(2, 2), SUMMARY)
    assert points(panel(drawn[0], f"simulated time ({label})")) == [[pytest.approx(shown)]]


@pytest.mark.parametrize(
    ("sent", "label", "shown"),
    [(700, "kB", 0.7), (5 * 10**6, "MB", 5), (7 * 10**9, "GB", 7), (9 * 10**12, "TB", 9)],
)
def test_units_of_what_was_sent(sent: int, label: str, shown: float, drawn: list[Figure]) -> None:
    picture.draw_run(rounds(1, "test", bytes_down=sent, bytes_up=0), federation(2, 2), SUMMARY)
    assert points(panel(drawn[0], f"sent so far, both ways ({label})")) == [[pytest.approx(shown)]]


def test_where_nothing_is_sent_there_is_no_such_panel(drawn: list[Figure]) -> None:
    picture.draw_run(rounds(3, "test", bytes_down=0, bytes_up=0), federation(2, 2), SUMMARY)
    assert not [axes for axes in drawn[0].axes if "sent" in axes.get_xlabel()]


def test_what_became_of_the_clients_of_each_round(drawn: list[Figure]) -> None:
    lines = rounds(3, "test")
    lines[0] |= {"late": 1, "dropped": 2}
    lines[2] |= {"dropped": 4}
    picture.draw_run(lines, federation(2, 2), SUMMARY)
    axes = next(axes for axes in drawn[0].axes if axes.get_ylabel() == "clients of the round")
    found = {patch.get_label(): patch.get_data() for patch in axes.patches}  # type: ignore[attr-defined]
    assert {
        name: (data.baseline.tolist(), data.values.tolist()) for name, data in found.items()
    } == {
        "answered": ([0, 0, 0], [1, 4, 0]),
        "late": ([1, 4, 0], [2, 4, 0]),
        "dropped out": ([2, 4, 0], [4, 4, 4]),
    }
    assert found["late"].edges.tolist() == [0.5, 1.5, 2.5, 3.5]


def test_where_nobody_is_lost_there_is_no_such_panel(drawn: list[Figure]) -> None:
    picture.draw_run(rounds(3, "test"), federation(2, 2), SUMMARY)
    assert not [axes for axes in drawn[0].axes if axes.get_ylabel() == "clients of the round"]
    matrix, time = (
        drawn[0].axes[2].get_subplotspec(),
        panel(drawn[0], "simulated time (s)").get_subplotspec(),
    )
    assert matrix is not None
    assert time is not None
    assert (len(matrix.rowspan), len(time.rowspan)) == (2, 1)  # the matrix takes its place


def test_rounds_without_evaluation_are_no_points(drawn: list[Figure]) -> None:
    picture.draw_run(rounds(7, "train", "test", every=3), federation(2, 2), SUMMARY)
    assert [line.get_xdata().tolist() for line in drawn[0].axes[0].lines] == [[3, 6, 7]] * 2


@pytest.mark.parametrize("count", [1, 3, 40])
def test_rounds_are_whole_numbers(count: int, drawn: list[Figure]) -> None:
    picture.draw_run(rounds(count, "test", late=1), federation(2, 2), SUMMARY)
    along = [axes for axes in drawn[0].axes if axes.get_xlabel() == "round"]
    assert len(along) == 3
    assert all(tick == round(tick) for axes in along for tick in axes.get_xticks())


def test_a_flat_loss_has_room_above_it(drawn: list[Figure]) -> None:
    lines = rounds(3, "test")
    for line, loss in zip(lines, (2.0, 1.98, 1.99), strict=True):
        line["test_loss"] = loss
    picture.draw_run(lines, federation(2, 2), SUMMARY)
    assert drawn[0].axes[1].get_ylim() == pytest.approx((0, 2.1))  # 5 % of 2, not of 0.02


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
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        f"{k}  ({n})" for k, n in enumerate(fed.partition.sizes)
    ]


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
