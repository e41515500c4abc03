"""The figure of class distributions: one matrix of clients by classes for each case."""

import re
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedskew.papers.results import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedskew.papers.comparison import Measured

_ACROSS = 3  # panels beside each other


def matrix_of(run: Result) -> NDArray[np.float64]:
    """Return the rows of every client (down) and class (across) that a run has recorded."""
    found = {}
    for name in run.numbers:
        found[name] = re.fullmatch(r"rows_(\d+)_(\d+)", name)
    places = {}
    for name, match in found.items():
        if match:
            places[name] = (int(match[1]), int(match[2]))
    matrix = np.zeros(np.max(list(places.values()), axis=0) + 1)
    for name, place in places.items():
        matrix[place] = run.numbers[name]
    return matrix


def draw_distributions(found: "Measured") -> "Figure | None":
    """Return a matrix of the shares of classes for each case, of its first seed; nothing without results."""
    from matplotlib.figure import Figure

    cases = {
        case: min(cell.runs, key=lambda run: run.seed) for (case, _), cell in found.cells.items()
    }
    if not cases:
        return None
    down = -(-len(cases) // _ACROSS)
    figure = Figure(figsize=(9, 0.4 + 2.4 * down), layout="constrained")
    panels = figure.subplots(down, _ACROSS, squeeze=False, sharex=True, sharey=True).flat
    for panel, (case, run) in zip(panels, cases.items(), strict=False):
        matrix = matrix_of(run)
        image = panel.imshow(
            matrix / matrix.sum(axis=1, keepdims=True), vmin=0, vmax=1, cmap="Blues", aspect="auto"
        )
        panel.set(title=case, xlabel="class", ylabel="client")
        panel.label_outer()
    for panel in list(panels)[len(cases) :]:
        panel.set_visible(False)
    figure.colorbar(image, ax=figure.axes, label="share of the client's rows")
    return figure
