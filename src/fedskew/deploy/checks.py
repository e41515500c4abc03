"""Checks of what nodes answer, before a server uses any of it: names, shapes, dtypes, and which numbers can be."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedskew.algorithms.contract import Report
from fedskew.core.errors import FedskewError
from fedskew.core.streams import Floats, Ints
from fedskew.core.trees import Tensors, Tree, tensors_of, unsqueezed
from fedskew.deploy.requests import to_bytes
from fedskew.engine.job import CHOSEN, ScheduleResult, Updates
from fedskew.engine.plan import Plan
from fedskew.server.final_evaluation import RATES
from fedskew.tasks.additive import COUNTED, OUTCOMES, SIZES, Sums
from fedskew.tasks.scores import Range
from fedskew.tasks.task import Task
from fedskew.topology.collector import BUFFERS, valid_clients
from fedskew.transport.frames import Frame, Kind, unpack

_LOSSES = ("loss_before", "loss_after")  # that a client reports where a method needs them
_SQUARES = {"square", "change"}  # parts of an optimiser's state that are means of squares
_SLACK = 2**16  # bytes by which an answer may be larger than twice what is expected


def fits(found: Any, like: Any, where: str) -> None:
    """Raise an error unless something has the names, shapes and dtypes of what is expected; its numbers may be any.

    >>> fits({"loss": np.zeros(2)}, {"loss": np.zeros(1)}, "sums")
    Traceback (most recent call last):
        ...
    fedskew.core.errors.FedskewError: sums/loss is float64 of shape (2,), expected float64 of shape (1,)
    """
    if isinstance(like, Mapping) and isinstance(found, Mapping):
        _check_names(found, like, where)
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


def _check_names(found: Mapping[Any, Any], like: Mapping[Any, Any], where: str) -> None:
    odd = sorted(str(name) for name in found.keys() ^ like.keys())
    if odd:
        raise FedskewError(f"{where} has other names than expected: {', '.join(odd[:3])}")


def _described(array: Any) -> str:
    return f"{str(array.dtype).removeprefix('torch.')} of shape {tuple(array.shape)}"


def finite(tree: Tree, where: str) -> None:
    """Raise an error unless all numbers are finite."""
    for value in tensors_of(tree):
        if not bool(torch.isfinite(value).all()):
            raise FedskewError(f"{where} has NaN or infinite numbers")


def in_range(value: float, allowed: Range, where: str) -> None:
    """Raise an error unless a number is one of those that a loss or a metric may be.

    >>> in_range(5.0, Range(0, 1), "update/report/accuracy")
    Traceback (most recent call last):
        ...
    fedskew.core.errors.FedskewError: update/report/accuracy: told 5.0, expected a finite number from 0 to 1
    """
    if not allowed.holds(value):
        raise FedskewError(f"{where}: told {value!r}, expected {allowed}")


def all_in_range(values: Floats, allowed: Range, where: str) -> None:
    """Raise an error unless all of these numbers are in the range."""
    for value in values.tolist():
        in_range(value, allowed, where)


def checked_sums(
    found: Sums, least: int, most: int, task: Task, where: str, places: int = 1
) -> Sums:
    """Return sums over the rows that a client has of a part, in which each is counted once; losses are losses.

    A row has at most so many ``places`` with a token, and at least one.
    """
    rows = float(found["rows"])
    if not (least <= rows <= most and rows.is_integer()):
        expected = f"at most {most:,}"
        if least == most:
            expected = f"{most:,}"
        raise FedskewError(f"{where} are over {rows:,g} rows, expected {expected}")
    _check_counts(found, rows, where)
    if "tokens" in found:
        _check_tokens(found, rows, places, where)
    in_range(float(found["loss"]) / max(rows, 1), task.range_of("loss"), f"{where}/loss of a row")
    for name in found.keys() - {"rows", "loss", *COUNTED}:
        low = -math.inf
        if name in SIZES:
            low = 0.0
        all_in_range(found[name].reshape(-1), Range(low), f"{where}/{name}")
    return found


def _check_counts(found: Sums, rows: float, where: str) -> None:
    """Raise an error unless each of so many rows is counted once, wherever rows are counted."""
    for name in COUNTED:
        if name in found and not _are_whole(found[name], rows):
            raise FedskewError(f"{where} count something else than {rows:,g} rows")
    if "confusion" in found and found["confusion"].sum() != rows:
        raise FedskewError(
            f"{where}/confusion has {found['confusion'].sum():,g} rows, expected {rows:,g}"
        )
    if "hits" in found and not _are_whole(np.sum([found[name] for name in OUTCOMES], axis=0), rows):
        raise FedskewError(f"{where} count a label of a row twice: {', '.join(OUTCOMES)}")


def _check_tokens(found: Sums, rows: float, places: int, where: str) -> None:
    """Raise an error unless rows have as many tokens as they can have, and no more are predicted."""
    tokens = float(found["tokens"])
    right = float(found["right"])
    if not (rows <= tokens <= rows * places and tokens.is_integer()):
        raise FedskewError(
            f"{where} are over {tokens:,g} tokens, expected {rows:,g} to {rows * places:,g}"
        )
    if not (0 <= right <= tokens and right.is_integer()):
        raise FedskewError(
            f"{where} have {right:,g} tokens that are predicted, of {tokens:,g} in all"
        )


def _are_whole(counts: Floats, most: float) -> bool:
    """Return whether all are whole numbers from 0 on, up to the number of rows."""
    return bool(((counts >= 0) & (counts <= most) & (counts == np.floor(counts))).all())


def checked_scores(
    found: Any, names: Iterable[str], task: Task, empty: bool, where: str
) -> dict[str, float]:
    """Return scores by these names, each of them a number that its metric may be; NaN over ``empty`` sets of rows."""
    wanted = dict.fromkeys(names, 0.0)
    fits(found, wanted, where)
    for name in wanted:
        allowed = _range_of(name, task)
        if empty:
            allowed = allowed._replace(undefined=True)
        in_range(found[name], allowed, f"{where}/{name}")
    return {name: found[name] for name in wanted}


def _range_of(column: str, task: Task) -> Range:
    """Return what may be in a column of scores."""
    name = column.removeprefix("global_").removeprefix("own_test_")
    if name in RATES:
        return Range(0, 1)
    return task.range_of(name)


def checked_confusion(found: Any, like: Ints | None, rows: int) -> None:
    """Raise an error unless a confusion matrix is over so many rows; None where there is none."""
    fits(found, like, "confusion matrix")
    if like is None:
        return
    if not ((found >= 0).all() and (found <= rows).all() and found.sum() == rows):
        raise FedskewError(
            f"confusion matrix: told {found.sum():,} rows, expected {rows:,}, and none below 0"
        )


def expected_update(plan: Plan, sent: Tree, reported: Mapping[str, float]) -> Updates:
    """Return what the only client of a plan answers, with any weights.

    ``sent`` is what the method lets clients send, with the part ``buffers``, and ``reported`` the numbers that it has
    them report, with the largest that each may be.
    """
    stacked = unsqueezed(sent)
    buffers: Tensors = stacked.pop(BUFFERS)
    numbers = dict(plan.numbers)
    for name, most in reported.items():
        numbers[name] = np.array([most], dtype=np.float64)
    report = Report(plan.clients, plan.sizes, plan.steps, np.zeros(1), np.zeros(1), numbers)
    return Updates(report, stacked, buffers, {})


def checked_update(found: Updates, like: Updates, task: Task) -> Updates:
    """Return an update that is like what was expected; what the server knows itself is not taken from the answer.

    One with NaN or infinite weights is of a client that has diverged, and is left out of the mean later: its losses may
    be NaN or infinite too.
    """
    fits(found, like, "update")
    check_buffers(found.buffers, "update/buffers")
    asked, told = like.report, found.report
    reported = {}
    for name in _LOSSES:
        if name in asked.numbers:
            reported[name] = told.numbers[name]
    diverged = not valid_clients(found).all()
    for name, values in {"loss": told.loss, "accuracy": told.accuracy, **reported}.items():
        allowed = task.range_of("loss")
        if name == "accuracy":
            allowed = task.range_of(task.row_metric or "loss")
        if not diverged or np.isfinite(values).all():
            all_in_range(values, allowed, f"update/report/{name}")
    if CHOSEN in asked.numbers:
        reported[CHOSEN] = told.numbers[CHOSEN]
        most = float(asked.numbers[CHOSEN][0])
        if not _are_whole(reported[CHOSEN], most):
            raise FedskewError(
                f"update/report/{CHOSEN} is {reported[CHOSEN][0]:g}, and models have the numbers 0 to {most:g}"
            )
    numbers = {**asked.numbers, **reported}
    report = replace(asked, loss=told.loss, accuracy=told.accuracy, numbers=numbers)
    return replace(found, report=report)


def check_buffers(buffers: Tensors, where: str) -> None:
    """Raise an error for statistics of BatchNorm that are below 0 where squares and steps were counted."""
    for name, value in buffers.items():
        if name.endswith(("running_var", "num_batches_tracked")) and bool((value < 0).any()):
            raise FedskewError(f"{where}/{name} has numbers below 0")


def checked_visit(found: ScheduleResult, like: ScheduleResult, task: Task) -> ScheduleResult:
    """Return what a client made of the model that has come to it: finite, or all that follow would have it."""
    fits(found, like, "model")
    finite({"params": found.params, "buffers": found.buffers, **found.optimizer}, "model")
    check_buffers(found.buffers, "model/buffers")
    for part in _SQUARES & found.optimizer.keys():
        for value in found.optimizer[part].values():
            if bool((value < 0).any()):
                raise FedskewError(f"model/optimizer/{part} has numbers below 0")
    all_in_range(found.losses, task.range_of("loss"), "model/losses")
    all_in_range(found.scores, task.range_of(task.row_metric or "loss"), "model/scores")
    return found


def check_part_of_step(message: bytes, rows: int, task: Task) -> None:
    """Raise an error for a party's message of a synchronous step that is not finite, or over other rows than asked."""
    for frame in unpack(message):
        what = f"its {frame.kind.name.lower()} {frame.place}"
        if not bool(torch.isfinite(frame.values).all()):
            raise FedskewError(f"{what} has NaN or infinite numbers: lower lr or check the data")
        if not _is_over(frame, rows):
            raise FedskewError(
                f"{what} is over {frame.count:,} values, expected those of {rows:,} rows"
            )
        if frame.kind == Kind.SPREAD and bool((frame.values < 0).any()):
            raise FedskewError(f"{what} has sums of squares below 0")
        if frame.kind == Kind.SCORE and frame.values.shape == (2,):
            loss, score = (frame.values.double() / rows).tolist()
            in_range(loss, task.range_of("loss"), "its loss of a row")
            in_range(score, task.range_of(task.row_metric or "loss"), "its score of a row")


def _is_over(frame: Frame, rows: int) -> bool:
    """Return whether a frame is over so many rows: statistics may have several values of each row."""
    if frame.kind in (Kind.GRADIENT, Kind.SCORE):
        return frame.count == rows
    return frame.count != 0 and frame.count % rows == 0


def most_bytes(like: Any) -> int:
    """Return how large an answer may be that is expected to be like this one."""
    return 2 * len(to_bytes(like)) + _SLACK
