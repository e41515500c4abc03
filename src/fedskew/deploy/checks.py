"""Checks of what nodes answer, before a server uses any of it: names, shapes and dtypes are those that it expects."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedskew.algorithms.contract import Report
from fedskew.core.errors import FedskewError
from fedskew.core.trees import Tensors, Tree, tensors_of, unsqueezed
from fedskew.deploy.requests import to_bytes
from fedskew.engine.job import Updates
from fedskew.engine.plan import Plan
from fedskew.tasks.additive import COUNTED, Sums
from fedskew.topology.collector import BUFFERS

LARGEST = 2**28  # bytes of an answer whose size cannot be known
_SLACK = 2**16  # bytes by which an answer may be larger than twice what is expected


def fits(found: Any, like: Any, where: str) -> None:
    """Raise an error unless something has the names, shapes and dtypes of what is expected; its numbers may be any.

    >>> fits({"loss": np.zeros(2)}, {"loss": np.zeros(1)}, "sums")
    Traceback (most recent call last):
        ...
    fedskew.core.errors.FedskewError: sums/loss is float64 of shape (2,), expected float64 of shape (1,)
    """
    if isinstance(like, Mapping) and isinstance(found, Mapping):
        if odd := sorted(str(name) for name in found.keys() ^ like.keys()):
            raise FedskewError(f"{where} has other names than expected: {', '.join(odd[:3])}")
        for name, value in like.items():
            fits(found[name], value, f"{where}/{name}")
    elif type(found) is not type(like):
        raise FedskewError(f"{where} is a {type(found).__name__}, expected a {type(like).__name__}")
    elif isinstance(like, (Tensor, np.ndarray)):
        if found.shape != like.shape or found.dtype != like.dtype:
            raise FedskewError(f"{where} is {_described(found)}, expected {_described(like)}")
    elif is_dataclass(like):
        for field in fields(like):
            fits(getattr(found, field.name), getattr(like, field.name), f"{where}/{field.name}")


def _described(array: Any) -> str:
    return f"{str(array.dtype).removeprefix('torch.')} of shape {tuple(array.shape)}"


def finite(tree: Tree, where: str) -> None:
    """Raise an error unless all numbers are finite."""
    if not all(bool(torch.isfinite(value).all()) for value in tensors_of(tree)):
        raise FedskewError(f"{where} has NaN or infinite numbers")


def checked_sums(found: Sums, most: int, where: str) -> Sums:
    """Return sums that are over no more rows than a client has, and in which rows are counted once."""
    rows = float(found["rows"])
    if not 0 <= rows <= most:
        raise FedskewError(f"{where} are over {rows:,g} rows, expected at most {most:,}")
    counts = [found[name] for name in COUNTED if name in found]
    if not all(bool(((each >= 0) & (each <= rows)).all()) for each in counts):
        raise FedskewError(f"{where} count something else than {rows:,g} rows")
    if "confusion" in found and found["confusion"].sum() != rows:
        raise FedskewError(f"{where}/confusion has {found['confusion'].sum():,g} rows, expected {rows:,g}")
    return found


def expected_update(plan: Plan, sent: Tree, reported: tuple[str, ...]) -> Updates:
    """Return what the only client of a plan answers, with any numbers.

    ``sent`` is what the method lets clients send, with the part ``buffers``, and ``reported`` the numbers that it has
    them report.
    """
    stacked = unsqueezed(sent)
    buffers: Tensors = stacked.pop(BUFFERS)
    numbers = {**plan.numbers, **{name: np.zeros(1) for name in reported}}
    return Updates(
        Report(plan.clients, plan.sizes, plan.steps, np.zeros(1), np.zeros(1), numbers), stacked, buffers, {}
    )


def checked_update(found: Updates, like: Updates) -> Updates:
    """Return an update that is like what was expected; what the server knows itself is not taken from the answer."""
    fits(found, like, "update")
    asked, told = like.report, found.report
    numbers = {name: told.numbers[name] if name in ("loss_before", "loss_after") else value
               for name, value in asked.numbers.items()}  # fmt: skip
    return replace(found, report=replace(asked, loss=told.loss, accuracy=told.accuracy, numbers=numbers))


def most_bytes(like: Any) -> int:
    """Return how large an answer may be that is expected to be like this one."""
    return 2 * len(to_bytes(like)) + _SLACK
