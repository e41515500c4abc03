"""What all figures have in common."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def as_written(draw: Callable[P, R]) -> Callable[P, R]:
    """Make a function that draws write texts as they are: dollar signs in names make no formula."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> R:
        from matplotlib import rc_context

        with rc_context({"text.parse_math": False}):
            return draw(*args, **kwargs)

    return drawn
