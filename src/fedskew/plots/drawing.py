"""What all figures have in common."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

# Colours that colour-blind readers can distinguish (Okabe and Ito).
OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
# The same without black, and with a violet.
PALETTE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999", "#8C6BB1"]


@dataclass(frozen=True)
class Curve:
    """Means along an x-axis, and their standard deviations; without deviations there is no band."""

    x: Sequence[float]
    means: Sequence[float]
    deviations: Sequence[float] = ()


def as_written(draw: Callable[P, R]) -> Callable[P, R]:
    """Make a function that draws write texts as they are: dollar signs in names make no formula."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> R:
        from matplotlib import rc_context

        with rc_context({"text.parse_math": False}):
            return draw(*args, **kwargs)

    return drawn


def shortened(text: str, most: int) -> str:
    """Return a text of at most so many characters.

    >>> shortened("alpha", 5), shortened("alphabet", 5)
    ('alpha', 'alph…')
    """
    if len(text) <= most:
        return text
    return text[: most - 1] + "…"


def all_shortened(names: Iterable[str], most: int) -> list[str]:
    """Return names of at most so many characters each; two names that begin alike keep their ends as well.

    >>> all_shortened(["alphabet-one", "alphabet-two", "beta"], 9)
    ['alph…-one', 'alph…-two', 'beta']
    """
    whole = list(names)
    beginnings = [shortened(name, most) for name in whole]
    half = (most - 1) // 2
    short = []
    for name, beginning in zip(whole, beginnings, strict=True):
        if len(name) > most and beginnings.count(beginning) > 1:
            short.append(f"{name[:half]}…{name[-half:]}")
        else:
            short.append(beginning)
    return short


def only_point(x: Sequence[float]) -> str:
    """Return the marker of a curve: a single point would not be seen without one."""
    if len(x) == 1:
        return "o"
    return ""
