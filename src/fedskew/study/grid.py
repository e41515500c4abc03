"""Seeds and grids of numbers, as texts or as Python values."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from fedskew.core.errors import FedskewError

MOST_SEEDS = 1_000  # of one study: all are partitioned and checked before the first run
Grid = dict[str, list[float]]


def seeds_of(given: Any) -> list[int]:
    """Return the seeds of a text such as ``0-4``, or of a list or a range of whole numbers."""
    if isinstance(given, str):
        return parse_seeds(given)
    if isinstance(given, int) and not isinstance(given, bool):
        raise FedskewError(
            f"seeds={given} may be one seed or so many: give [{given}], or range({given}) in Python"
        )
    seeds = []
    if isinstance(given, Iterable):
        seeds = list(given)
    if not seeds or not all(isinstance(seed, int) and not isinstance(seed, bool) for seed in seeds):
        raise FedskewError(f"seeds={given!r} are not whole numbers, such as [0, 1, 2] or '0-4'")
    return seeds


def parse_seeds(text: str) -> list[int]:
    """Return the seeds of a text such as ``0-4`` or ``0,3,7``.

    >>> parse_seeds("0-2,7")
    [0, 1, 2, 7]
    """
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if not match or (match[2] and int(match[2]) < int(match[1])):
            raise FedskewError(f"seeds {text!r}: {part!r} is not a number or a range such as 0-4")
        first = int(match[1])
        last = int(match[2] or match[1])
        if last - first >= MOST_SEEDS:
            raise FedskewError(
                f"seeds {part}: that is more than a group holds, give at most {MOST_SEEDS:,} at a time"
            )
        seeds.extend(range(first, last + 1))
    return seeds


def grid_of(given: Any) -> Grid:
    """Return the numbers by name of a table of lists, or of texts such as ``mu=0,0.01,0.1``."""
    if isinstance(given, str):
        raise FedskewError(
            f"grid={given!r} is not a table of numbers, such as mu = [0, 0.01, 0.1] or {{'mu': [0, 0.1]}}"
        )
    if isinstance(given, Mapping):
        return _numbers(given)
    return parse_grid(given)


def _numbers(grid: Mapping[str, Any]) -> Grid:
    """Return the numbers of a table of lists."""
    found: Grid = {}
    for name, given in grid.items():
        numbers = given
        if not isinstance(given, (list, tuple)):
            numbers = [given]
        if not numbers:
            raise FedskewError(f"grid: {name} = [] is empty: give numbers, such as [0, 0.01, 0.1]")
        for number in numbers:
            if not isinstance(number, (int, float)) or isinstance(number, bool):
                raise FedskewError(
                    f"grid: {name} = {numbers} are not numbers, such as mu = [0, 0.01, 0.1]"
                )
        found[name.replace("-", "_")] = [float(number) for number in numbers]
    return found


def several(name: str, given: Any) -> list[Any]:
    """Return the choices of a setting, algorithm or skew, that may be one or a list of them."""
    if not isinstance(given, (list, tuple)):
        return [given]
    if not given:
        raise FedskewError(f"{name} = [] is empty: give one or several (fedskew list {name}s)")
    return list(given)


def parse_grid(texts: Sequence[str]) -> Grid:
    """Return the numbers of texts such as ``mu=0,0.01,0.1``, by name.

    >>> parse_grid(["mu=0,0.1", "server-lr=1"])
    {'mu': [0.0, 0.1], 'server_lr': [1.0]}
    """
    grid: Grid = {}
    for text in texts:
        written, equals, numbers = text.partition("=")
        name = written.strip().replace("-", "_")
        if not equals or not name:
            raise FedskewError(f"grid {text!r} is not a name with numbers, such as mu=0,0.01,0.1")
        if name in grid:
            raise FedskewError(f"grid: {name} is given twice")
        grid[name] = [_number(part, text) for part in numbers.split(",")]
    return grid


def _number(part: str, text: str) -> float:
    try:
        return float(part)
    except ValueError:
        raise FedskewError(f"grid {text!r}: {part!r} is not a number") from None


def combinations_of(grid: Mapping[str, Sequence[float]]) -> list[dict[str, float]]:
    """Return every combination of the numbers of a grid.

    >>> combinations_of({"mu": [0.0, 0.1], "lr": [1.0]})
    [{'mu': 0.0, 'lr': 1.0}, {'mu': 0.1, 'lr': 1.0}]
    """
    combinations = []
    for numbers in product(*grid.values()):
        combinations.append(dict(zip(grid, numbers, strict=True)))
    return combinations
