"""Panels about single clients: the effect of every column at every client, and the classifier two-sample test."""

from typing import TYPE_CHECKING

import numpy as np

from fedskew.heterogeneity.findings import Findings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_CLIENTS = 30  # at even steps
_MOST_COLUMNS = 10
_MOST_NUMBERS = 120  # cells up to which their numbers are written
_LIMIT = 2.0  # standard deviations from which on the colour is the darkest


def draw_effects(axes: "Axes", found: Findings) -> None:
    """Draw the effects of the most different columns, signed for numbers, as colours: one row a client."""
    clients = found.clients[:: -(-len(found.clients) // _MOST_CLIENTS)]
    columns = [one.column for one in found.columns[:_MOST_COLUMNS]]
    if not columns:
        axes.set_axis_off()
        return
    known = []
    for client in clients:
        known.append({one.column: one.effect for one in client.columns})
    effects = np.array([[each.get(column, np.nan) for column in columns] for each in known])
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
    axes.set_xticks(
        range(len(columns)), [_short(name) for name in columns], rotation=45, ha="right", fontsize=8
    )
    axes.set_yticks(range(len(clients)), [_short(one.name) for one in clients], fontsize=8)
    axes.set_title("each client against all others: effect sizes", fontsize=9)
    if effects.size <= _MOST_NUMBERS:
        for (line, place), value in np.ndenumerate(effects):
            if np.isfinite(value):
                if abs(value) > 0.7 * _LIMIT:
                    colour = "white"
                else:
                    colour = "black"
                axes.text(
                    place, line, f"{value:.2g}", ha="center", va="center", fontsize=7, color=colour
                )


def draw_aucs(axes: "Axes", found: Findings) -> None:
    """Draw the AUC of the two-sample test of every tested client, with its interval."""
    tested = [(one.name, one.auc) for one in found.clients if one.auc is not None]
    if not tested:
        axes.set_axis_off()
        return
    values = np.array([auc for _, auc in tested])
    around = np.abs(values[:, 1:].T - values[:, 0])
    axes.errorbar(
        values[:, 0],
        np.arange(len(tested)),
        xerr=around,
        fmt="o",
        color="#0072B2",
        capsize=3,
        markersize=4,
    )
    axes.axvline(0.5, color="#000000", linestyle=":", linewidth=1.0)
    axes.set_yticks(range(len(tested)), [_short(name) for name, _ in tested], fontsize=8)
    axes.set_ylim(len(tested) - 0.5, -0.5)
    axes.set_xlim(min(0.4, float(values[:, 1].min())), 1.02)
    axes.set_xlabel("AUC with 95 % interval; dotted: chance", fontsize=8)
    axes.set_title("can a classifier tell the client's rows from the others'?", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)


def _short(text: str) -> str:
    if len(text) <= 18:
        return text
    return text[:17] + "…"
