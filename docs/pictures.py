"""The pictures of the pages on concepts and architecture; ``python docs/pictures.py`` draws them again.

Concepts: rows of two features in three classes, divided among three clients. The library makes every partition and
measures it. Architecture: the rooms of the package from the front door down, and the way of one row through them.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import fedskew as fs
from fedskew.plots.drawing import OKABE_ITO

ROWS = 600
CLIENTS = 3
MARKERS = "osD"
KINDS = {
    "none": "iid",
    "labels": "classes:k=2",
    "features": "vop",
    "concept": "iid + relabel:fraction=0.67",
    "sizes": "quantity:alpha=2",
}
VIEWS = ("labels", "features", "labels given features")

# From the front door down, as in tests/test_house.py
ROOMS = (
    ("cli", "estimators", "api"),
    ("advice", "papers", "deploy"),
    ("atlas",),
    ("report", "nodes"),
    ("study",),
    ("runs", "testing"),
    ("inference", "plots"),
    ("server",),
    ("topology",),
    ("engine",),
    ("algorithms",),
    ("aggregation", "batchnorm", "sample_schedules"),
    ("label_privacy", "fleet", "skew"),
    ("heterogeneity",),
    ("tasks", "models"),
    ("data",),
    ("kernels", "transport"),
    ("core",),
)
WAY = {
    "cli": "1  flags become settings",
    "study": "2  settings become a frozen plan of runs; 6  choose, judge",
    "runs": "3  data, partition, model, folder; 5  row, checkpoint, summary",
    "server": "4  one round after another",
    "topology": "how a round moves the model",
    "engine": "clients train, one by one or in a stack",
    "algorithms": "what a method changes",
    "report": "7  table, figures, page",
}


def data() -> tuple[Any, Any]:
    """Return three clouds of points, one per class."""
    rng = np.random.default_rng(0)
    y = np.arange(ROWS) % 3
    centres = np.array([[-1.6, -0.6], [1.6, -0.6], [0.0, 1.2]])
    return centres[y] + rng.normal(scale=0.55, size=(ROWS, 2)), y


def draw(skew: str) -> Figure:
    """Return the figure of one partition: a panel per client, and what was measured."""
    fed = fs.split(data(), skew, clients=CLIENTS, seed=1)
    figure = Figure(figsize=(7.2, 2.5), layout="constrained")
    FigureCanvasSVG(figure)
    panels = figure.subplots(1, CLIENTS, sharex=True, sharey=True)
    for client, axes in enumerate(panels):
        own = fed.partition.of(client)
        for label, marker in enumerate(MARKERS):
            x = fed.train.x[own[fed.train.y[own] == label]]
            axes.scatter(*x.T, s=9, marker=marker, color=OKABE_ITO[label], linewidths=0)
        axes.set_title(f"client {client + 1}: {len(own)} rows", fontsize=9)
        axes.set_xticks([])
        axes.set_yticks([])
    views = fs.measure(fed).views
    measured = []
    for view in VIEWS:
        if view in views:  # too few rows in common have no distance
            measured.append(f"{view} {views[view]['hellinger'].mean:.2f}")
    figure.supxlabel(f"{skew}     Hellinger distance: " + ", ".join(measured), fontsize=9)
    return figure


def house() -> Figure:
    """Return the figure of the rooms, a line per floor; rooms on the way of a row are filled."""
    figure = Figure(figsize=(8.4, 6.6), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.subplots()
    for floor, rooms in enumerate(ROOMS):
        for place, room in enumerate(rooms):
            colour = "white"
            if room in WAY:
                colour = "#cfe3f5"
            axes.add_patch(
                Rectangle((place, -floor), 0.96, 0.8, facecolor=colour, edgecolor="#555555")
            )
            axes.text(place + 0.48, 0.4 - floor, room, ha="center", va="center", fontsize=9)
        said = [WAY[room] for room in rooms if room in WAY]
        axes.text(3.1, 0.4 - floor, "".join(said), va="center", fontsize=9)
    axes.set_xlim(-0.02, 6.2)
    axes.set_ylim(0.9 - len(ROOMS), 0.9)
    axes.set_axis_off()
    return figure


def write(folder: Path) -> None:
    """Write one picture per kind of heterogeneity, and that of the rooms."""
    with rc_context({"svg.hashsalt": "fedskew", "svg.fonttype": "path"}):
        for kind, skew in KINDS.items():
            draw(skew).savefig(folder / f"concept-{kind}.svg", metadata={"Date": None})
        house().savefig(folder / "architecture.svg", metadata={"Date": None})


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "images")
