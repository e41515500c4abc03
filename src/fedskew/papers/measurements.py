"""Cells of a table that need no training."""

from collections.abc import Callable, Mapping
from typing import Any

MEASUREMENTS: Mapping[str, Callable[..., dict[str, float]]] = {}
