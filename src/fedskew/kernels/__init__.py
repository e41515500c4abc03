"""Kernels for GPUs, written in Triton; everything they do also has a plain form."""

from functools import cache
from importlib.util import find_spec


@cache
def available() -> bool:
    """Return whether Triton is installed."""
    return find_spec("triton") is not None
