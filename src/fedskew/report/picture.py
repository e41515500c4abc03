"""The picture in a run folder: how training went, and who holds what."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedskew.skew.federation import Federation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = dict[str, Any]

# Blue, orange, green and grey that stay apart for colour-blind eyes (Okabe and Ito).
_COLOURS = {"train": "#999999", "validation": "#009E73", "test": "#0072B2", "own_test": "#D55E00"}
_NAMES = {
    "train": "global model, training rows",
    "validation": "global model, validation rows",
    "test": "global model, test rows",
    "own_test": "clients' own models, test rows",
}
_MOST_CLIENTS = 250  # rows of the matrix; above that, clients at even steps


def draw_run(rounds: Sequence[Row], fed: Federation, summary: Row) -> bytes:
    """Accuracy and loss over rounds, and the client x class matrix, as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.2), layout="constrained", dpi=110)
    FigureCanvasAgg(figure)
    accuracy, loss, matrix = figure.subplots(1, 3)
    _draw_curves(accuracy, rounds, "accuracy")
    accuracy.set_ylim(0, 1.02)
    accuracy.legend(frameon=False, fontsize=8, loc="lower right")
    _draw_curves(loss, rounds, "loss")
    loss.set_ylim(bottom=0)
    _draw_matrix(matrix, fed)
    figure.suptitle(_title(summary), fontsize=10)
    content = io.BytesIO()
    figure.savefig(content, format="png", metadata={"Software": None})
    return content.getvalue()


def _title(summary: Row) -> str:
    parts = [summary["algorithm"], summary["model"], f"{summary['data']} cut by {summary['skew']}", f"seed {summary['seed']}"]
    text = "  ·  ".join(parts)
    return text if len(text) < 160 else text[:157] + "..."


def _draw_curves(axes: "Axes", rounds: Sequence[Row], what: str) -> None:
    for part, name in _NAMES.items():
        points = [(row["round"], row[f"{part}_{what}"]) for row in rounds if row.get(f"{part}_{what}") is not None]
        if points:
            x, y = zip(*points, strict=True)
            axes.plot(x, y, color=_COLOURS[part], label=name, linewidth=1.6, marker="o" if len(points) == 1 else "")
    axes.locator_params(axis="x", integer=True)
    axes.set_xlabel("round")
    axes.set_ylabel(what)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_matrix(axes: "Axes", fed: Federation) -> None:
    """Share of each class (column) at each client (row), with the client's rows on the right while they can be read."""
    classes, clients = len(fed.data.classes), np.arange(fed.clients)
    if fed.clients > _MOST_CLIENTS:
        clients = np.unique(np.linspace(0, fed.clients - 1, _MOST_CLIENTS).astype(np.int64))
    counts = np.stack([np.bincount(fed.train.y[fed.partition.of(int(client))], minlength=classes) for client in clients])
    shares = counts / counts.sum(axis=1, keepdims=True)
    image = axes.imshow(shares, aspect="auto", cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    axes.figure.colorbar(image, ax=axes, label="share of the client's rows", shrink=0.9)
    axes.set_xlabel("class")
    axes.set_ylabel("client")
    if classes <= 12:
        names = [name if len(name) <= 10 else name[:9] + "…" for name in fed.data.classes]
        axes.set_xticks(range(classes), names, rotation=0 if max(map(len, names)) <= 2 else 60, fontsize=8)
    if len(clients) < fed.clients:
        shown = np.linspace(0, len(clients) - 1, 6).astype(np.int64)
        axes.set_yticks(shown, [f"{client:,}" for client in clients[shown]])
        axes.set_ylabel(f"client ({len(clients)} of {fed.clients:,})")
    elif len(clients) <= 20:
        axes.set_yticks(
            range(len(clients)), [f"{c}  ({n})" for c, n in zip(clients, counts.sum(axis=1), strict=True)], fontsize=8
        )
        axes.set_ylabel("client (rows)")
