"""The figure of a run: accuracy, loss and cost, lost updates, and classes by client."""

import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedskew.core.streams import Ints
from fedskew.data.federation import Federation
from fedskew.plots.drawing import as_written

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = dict[str, Any]

# Colours that colour-blind readers can distinguish (Okabe and Ito).
COLOURS = {
    "train": "#999999",
    "validation": "#009E73",
    "test": "#0072B2",
    "own_test": "#D55E00",
    "trained_test": "#CC79A7",
    "calibrated_test": "#E69F00",
}
NAMES = {
    "train": "global model, training rows",
    "validation": "global model, validation rows",
    "test": "global model, test rows",
    "own_test": "clients' own models, test rows",
    "trained_test": "clients' models after local training, test rows",
    "calibrated_test": "global model with a new head, test rows",
}
FATES = {  # columns of the table of rounds, likewise
    "answered": ("answered", "#56B4E9"),
    "late": ("late", "#E69F00"),
    "dropped": ("dropped out", "#D55E00"),
    "excluded": ("NaN or infinite", "#CC79A7"),
}
# Metrics up to 1
SHARES = ("accuracy", "balanced_accuracy", "macro_f1", "auc", "average_precision")
_MOST_CLIENTS = 250  # rows of the matrix; above that, clients at even steps
# In ascending order; the largest unit with a value of at least two is used.
TIMES = {"s": 1.0, "min": 60.0, "h": 3600.0, "days": 86400.0}
SIZES = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}


@as_written
def draw_run(
    rounds: Sequence[Row], fed: Federation, summary: Row, metric: str = "accuracy"
) -> bytes:
    """The task's headline metric over rounds, simulated time and traffic, loss, lost updates, who holds what, as a PNG.

    Panels without content are omitted, and their neighbours are larger.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(
        figsize=(13, 7.6), layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08), dpi=110
    )
    FigureCanvasAgg(figure)
    sent = np.cumsum([row["bytes_down"] + row["bytes_up"] for row in rounds])
    lost = any(row[fate] for row in rounds for fate in ("late", "dropped", "excluded"))
    panels = figure.subplot_mosaic(
        [
            ["metric", "loss", "matrix"],
            ["time", "sent" if sent[-1] else "time", "fates" if lost else "matrix"],
        ]
    )
    _draw_curves(panels["metric"], rounds, metric)
    if (rate := _of_one_class(metric, fed, summary)) is not None:
        name = "most frequent class for all test rows"
        panels["metric"].axhline(rate, color="#000000", linestyle=":", linewidth=1.0, label=name)
    _draw_curves(panels["loss"], rounds, "loss")
    _draw_cost(
        panels["time"], rounds, [row["clock"] for row in rounds], "simulated time", TIMES, metric
    )
    if sent[-1]:
        _draw_cost(panels["sent"], rounds, sent.tolist(), "sent so far, both ways", SIZES, metric)
    if lost:
        _draw_fates(panels["fates"], rounds)
    _draw_matrix(panels["matrix"], fed)
    curves = panels["metric"].get_legend_handles_labels()
    figure.legend(*curves, frameon=False, fontsize=9, ncols=4, loc="outside lower center")
    figure.suptitle(_title(summary), fontsize=10)
    content = io.BytesIO()
    figure.savefig(content, format="png", metadata={"Software": None})
    return content.getvalue()


def _of_one_class(metric: str, fed: Federation, summary: Row) -> float | None:
    """Return what predicting one class for all test rows scores; None for metrics where that says little."""
    if "test_majority_rate" not in summary or metric not in ("accuracy", "balanced_accuracy"):
        return None
    if metric == "accuracy":
        return float(summary["test_majority_rate"])
    return 1 / len(np.unique(fed.test.y))


def _title(summary: Row) -> str:
    parts = [
        summary["algorithm"],
        summary["model"],
        f"{summary['data']} partitioned by {summary['skew']}",
        f"seed {summary['seed']}",
    ]
    if summary["fleet"] != "uniform":
        parts.insert(-1, f"fleet {summary['fleet']}")
    text = "  ·  ".join(parts)
    if len(text) < 160:
        return text
    return text[:157] + "..."


def _draw_curves(axes: "Axes", rounds: Sequence[Row], what: str) -> None:
    """A metric or the loss over rounds."""
    _draw_parts(axes, rounds, [row["round"] for row in rounds], what)
    _along_rounds(axes, len(rounds))


def _draw_cost(
    axes: "Axes",
    rounds: Sequence[Row],
    spent: Sequence[float],
    what: str,
    units: Mapping[str, float],
    metric: str,
) -> None:
    """A metric over what had been spent by the end of each round."""
    unit = unit_for(spent[-1], units)
    _draw_parts(axes, rounds, [value / units[unit] for value in spent], metric)
    axes.set_xlim(left=0)
    axes.locator_params(axis="x", nbins=6)
    axes.set_xlabel(f"{what} ({unit})")


def unit_for(most: float, units: Mapping[str, float]) -> str:
    """Return the largest unit in which this value is at least two.

    >>> unit_for(90.0, TIMES), unit_for(1e7, SIZES)
    ('s', 'MB')
    """
    smallest, *larger = units
    return [smallest, *(name for name in larger if 2 * units[name] <= most)][-1]


def _draw_parts(axes: "Axes", rounds: Sequence[Row], x: Sequence[float], what: str) -> None:
    lowest = 0.0
    for part, name in NAMES.items():
        key = f"{part}_{what}"
        points = []
        for at, row in zip(x, rounds, strict=True):
            if row.get(key) is not None:
                points.append((at, row[key]))
        if points:
            if len(points) == 1:
                marker = "o"
            else:
                marker = ""
            lowest = min([lowest, *(value for _, value in points if math.isfinite(value))])
            axes.plot(
                *zip(*points, strict=True),
                color=COLOURS[part],
                label=name,
                linewidth=1.6,
                marker=marker,
            )
    axes.set_ylabel(what)
    axes.update_datalim([(x[0], 0)])  # or the room above a flat curve would be too small
    axes.set_ylim(None if lowest < 0 else 0, 1.02 if what in SHARES else None)
    _tidy(axes)


def _draw_fates(axes: "Axes", rounds: Sequence[Row]) -> None:
    """Draw the outcomes of the clients of each round as stacked areas."""
    counts = {}
    for fate in ("late", "dropped", "excluded"):
        counts[fate] = np.array([row[fate] for row in rounds])
    counts = {
        "answered": np.array([row["clients"] for row in rounds]) - sum(counts.values()),
        **counts,
    }
    edges = np.arange(len(rounds) + 1) + 0.5
    base = np.zeros(len(rounds))
    for fate, (name, colour) in FATES.items():
        if counts[fate].any():
            axes.stairs(
                base + counts[fate], edges, baseline=base, fill=True, color=colour, label=name
            )
            base = base + counts[fate]
    axes.legend(frameon=False, fontsize=8, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    axes.locator_params(axis="y", integer=True)
    axes.set_ylabel("clients of the round")
    _along_rounds(axes, len(rounds))
    _tidy(axes)


def _along_rounds(axes: "Axes", rounds: int) -> None:
    axes.set_xlim(0.5, rounds + 0.5)
    axes.locator_params(axis="x", integer=True, min_n_ticks=1)
    axes.set_xlabel("round")


def _tidy(axes: "Axes") -> None:
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def shown_clients(clients: int) -> Ints:
    """Return the clients that a picture of who holds what has: all, or some at even steps."""
    return np.unique(np.linspace(0, clients - 1, min(clients, _MOST_CLIENTS)).astype(np.int64))


def _draw_matrix(axes: "Axes", fed: Federation) -> None:
    """Draw the share of each class (column) at each client (row), with the clients' rows if there is space."""
    columns = fed.label_columns
    clients = shown_clients(fed.clients)
    sizes = fed.partition.sizes[clients]
    shares = columns.counts(fed.partition, clients) / sizes[:, None]
    image = axes.imshow(
        shares, aspect="auto", cmap="Blues", vmin=0, vmax=1, interpolation="nearest"
    )
    axes.figure.colorbar(image, ax=axes, label="share of the client's rows", shrink=0.9)
    axes.set_xlabel(columns.title)
    axes.set_ylabel("client")
    if len(columns.names) <= 12:
        names = []
        for name in columns.names:
            names.append(name if len(name) <= 10 else name[:9] + "…")
        axes.set_xticks(
            range(len(names)), names, rotation=0 if max(map(len, names)) <= 2 else 60, fontsize=8
        )
    if len(clients) < fed.clients:
        shown = np.linspace(0, len(clients) - 1, 6).astype(np.int64)
        axes.set_yticks(shown, [f"{client:,}" for client in clients[shown]])
        axes.set_ylabel(f"client ({len(clients)} of {fed.clients:,})")
    elif len(clients) <= 20:
        called = []
        for name in fed.client_names:
            called.append(name if len(name) <= 16 else name[:15] + "…")
        axes.set_yticks(
            range(len(clients)),
            [f"{c}  ({n})" for c, n in zip(called, sizes, strict=True)],
            fontsize=8,
        )
        axes.set_ylabel("client (rows)")
