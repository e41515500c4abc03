"""The verdicts on the claims of papers: a bar for each paper, stacked by outcome."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Of Okabe and Ito, in the order of the outcomes, and a colour in which numbers can be read on them
_COLOURS = (("#009E73", "white"), ("#D55E00", "white"), ("#E69F00", "black"), ("#C7C7C7", "black"))


Word = TypeVar("Word", bound=str)  # an outcome


def draw_verdicts(counts: Mapping[str, Mapping[Word, int]], outcomes: Sequence[Word]) -> "Figure":
    """Draw how often each outcome occurs, for every paper; the numbers stand in the bars."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 0.42 * len(counts) + 1.0), layout="constrained", dpi=110)
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    names = list(counts)
    ends = dict.fromkeys(names, 0)
    for outcome, (colour, ink) in zip(outcomes, _COLOURS, strict=True):
        for place, name in enumerate(names):
            _draw_piece(axes, place, ends[name], counts[name].get(outcome, 0), colour, ink)
            ends[name] += counts[name].get(outcome, 0)
        axes.barh(0, 0, color=colour, label=outcome)
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.invert_yaxis()
    axes.locator_params(axis="x", integer=True)
    axes.tick_params(axis="x", labelsize=8)
    axes.set_xlabel("claims of the paper", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, fontsize=9, ncols=len(outcomes), loc="outside lower center")
    return figure


def _draw_piece(axes: "Axes", place: int, start: int, count: int, colour: str, ink: str) -> None:
    """Draw one outcome of one paper, with its number."""
    if not count:
        return
    axes.barh(place, count, left=start, color=colour, height=0.7)
    axes.text(start + count / 2, place, str(count), ha="center", va="center", fontsize=9, color=ink)
