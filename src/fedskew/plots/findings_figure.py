"""Panels about single clients: the effect of every column at every client, and the classifier two-sample test."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedskew.core.streams import Floats
from fedskew.heterogeneity.findings import ClientFindings, Findings
from fedskew.plots.drawing import all_shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_CLIENTS = 30  # at even steps
_MOST_COLUMNS = 10
_LONGEST = 18  # characters of a name
_MOST_NUMBERS = 120  # cells up to which their numbers are written
_LIMIT = 2.0  # standard deviations from which on the colour is the darkest


def draw_effects(axes: "Axes", found: Findings) -> None:
    """Draw the effects of the most different columns, signed for numbers, as colours: one row per client."""
    clients = found.clients[:: -(-len(found.clients) // _MOST_CLIENTS)]
    columns = [one.column for one in found.columns[:_MOST_COLUMNS]]
    if not columns:
        axes.set_axis_off()
        return
    effects = _effects(clients, columns)
    image = axes.imshow(
        np.clip(effects, -_LIMIT, _LIMIT),
        aspect="auto",
        cmap="RdBu_r",
        vmin=-_LIMIT,
        vmax=_LIMIT,
        interpolation="nearest",
    )
    axes.figure.colorbar(
        image, ax=axes, label=f"g (numbers) or V (categories), to ± {_LIMIT:g}", shrink=0.9
    )
    shown = all_shortened(columns, _LONGEST)
    axes.set_xticks(range(len(shown)), shown, rotation=45, ha="right", fontsize=8)
    names = all_shortened((client.name for client in clients), _LONGEST)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_title("each client against all others: effect sizes", fontsize=9)
    if effects.size <= _MOST_NUMBERS:
        _write_numbers(axes, effects)


def _effects(clients: Sequence[ClientFindings], columns: Sequence[str]) -> Floats:
    """Return the effect of every column (across) at every client (down); NaN where there is none."""
    effects = np.full((len(clients), len(columns)), np.nan)
    for line, client in enumerate(clients):
        for one in client.columns:
            if one.column in columns:
                effects[line, columns.index(one.column)] = one.effect
    return effects


def _write_numbers(axes: "Axes", effects: Floats) -> None:
    """Write the effects into their cells, white on dark colours."""
    for (line, place), value in np.ndenumerate(effects):
        if not np.isfinite(value):
            continue
        colour = "black"
        if abs(value) > 0.7 * _LIMIT:
            colour = "white"
        axes.text(place, line, f"{value:.2g}", ha="center", va="center", fontsize=7, color=colour)


def draw_aucs(axes: "Axes", found: Findings) -> None:
    """Draw the AUC of the two-sample test of every tested client, with its interval."""
    names, aucs = [], []
    for client in found.clients:
        if client.auc is not None:
            names.append(client.name)
            aucs.append(client.auc)
    if not names:
        axes.set_axis_off()
        return
    values = np.array(aucs)
    around = np.abs(values[:, 1:].T - values[:, 0])
    axes.errorbar(
        values[:, 0],
        np.arange(len(names)),
        xerr=around,
        fmt="o",
        color="#0072B2",
        capsize=3,
        markersize=4,
    )
    axes.axvline(0.5, color="#000000", linestyle=":", linewidth=1.0)
    axes.set_yticks(range(len(names)), all_shortened(names, _LONGEST), fontsize=8)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(min(0.4, float(values[:, 1].min())), 1.02)
    axes.set_xlabel("AUC with 95 % interval; dotted: chance", fontsize=8)
    axes.set_title("can a classifier tell the client's rows from the others'?", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
