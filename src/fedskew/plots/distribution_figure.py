"""The figure of class distributions: one matrix of clients by classes for each case."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedskew.core.streams import Floats

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ACROSS = 3  # panels beside each other


def draw_distributions(counts: Mapping[str, Floats]) -> "Figure | None":
    """Draw the shares of classes (across) at clients (down) for each case, given the rows; nothing without cases."""
    from matplotlib.figure import Figure

    if not counts:
        return None
    down = -(-len(counts) // _ACROSS)
    figure = Figure(figsize=(9, 0.4 + 2.4 * down), layout="constrained")
    panels = figure.subplots(down, _ACROSS, squeeze=False, sharex=True, sharey=True).flat
    for panel, (case, rows) in zip(panels, counts.items(), strict=False):
        shares = rows / rows.sum(axis=1, keepdims=True)
        image = panel.imshow(shares, vmin=0, vmax=1, cmap="Blues", aspect="auto")
        panel.set(title=case, xlabel="class", ylabel="client")
        panel.label_outer()
    for panel in list(panels)[len(counts) :]:
        panel.set_visible(False)
    figure.colorbar(image, ax=figure.axes, label="share of the client's rows")
    return figure
