"""Where clients lie on the map, by the JSON of ``fedskew measure``."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import cast, get_args

from fedskew.atlas.cell_results import vector_of
from fedskew.atlas.nearest_cells import Nearest, nearest
from fedskew.atlas.published import published_places
from fedskew.core.errors import FedskewError, unknown
from fedskew.core.files import reading
from fedskew.runs.goals import Goal


def _check(measured: Mapping[str, float]) -> None:
    """Raise an error for measures that no clients have."""
    for name, value in measured.items():
        least = 0
        if name in ("clients", "rows", "classes"):
            least = 1
        if not least <= value < math.inf:
            raise ValueError(name)


def look_up(path: Path, goal: str) -> Nearest:
    """Return the nearest cells of the published map, and what they predict."""
    if goal not in get_args(Goal):
        raise unknown("goal", goal, get_args(Goal))
    with reading(path):
        text = path.read_text(encoding="utf-8")
    try:
        measured = vector_of(json.loads(text))
        _check(measured)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise FedskewError(
            f"{path} holds no measures: write them with fedskew measure --json > {path.name}"
        ) from None
    return nearest(published_places(), cast(Goal, goal), measured)
