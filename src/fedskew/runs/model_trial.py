"""A trial of a model on a few rows: one that does not fit the data or cannot be trained is refused at once."""

import copy

import numpy as np
import torch
from torch import Tensor, nn

from fedskew.core.errors import FedskewError
from fedskew.data.dataset import Rows
from fedskew.data.federation import Federation
from fedskew.models.parameters import trainable
from fedskew.models.tokens import as_input
from fedskew.tasks.task import Task

_ROWS = 8  # that are tried


def try_model(module: nn.Module, fed: Federation, task: Task) -> None:
    """Raise an error for a model that cannot answer the rows of the data, or cannot learn from them."""
    dtype = next(iter(trainable(module).values())).dtype
    rows = as_input(module, torch.from_numpy(np.array(fed.train.x[:_ROWS])), dtype)
    y = torch.from_numpy(fed.train.y[: len(rows)].copy())
    if y.is_floating_point():
        y = y.to(dtype)
    tried = copy.deepcopy(module).cpu()
    names = _names(tried)
    # The random numbers of the run are left as they are.
    with torch.random.fork_rng(devices=[]):
        outputs = _try_answers(tried.eval(), rows, fed, task)
        task.check(outputs, y)
        if not rows.is_floating_point():
            _try_tokens(tried, "training", fed.train, fed, task)
            _try_tokens(tried, "test", fed.test, fed, task)
        if len(rows) > 1:
            _try_step(tried.train(), rows, fed, task)
    added = sorted(_names(tried) ^ names)
    if added:
        raise FedskewError(
            f"the model changes its parameters or buffers while it answers ({', '.join(added[:3])}): make all of them "
            "in __init__"
        )


def _names(module: nn.Module) -> set[str]:
    """Return the names of all parameters and buffers."""
    return {*dict(module.named_parameters()), *dict(module.named_buffers())}


def _try_answers(tried: nn.Module, rows: Tensor, fed: Federation, task: Task) -> Tensor:
    """Return what a model answers to rows, one by one; all of them at once must be answered likewise."""
    with torch.no_grad():
        _answered(tried, rows[:1], fed, task)
        outputs = [_answered(tried, row[None], fed, task) for row in rows]
        _answered(tried, rows, fed, task)
    return torch.cat(outputs)


def _try_tokens(tried: nn.Module, part: str, rows: Rows, fed: Federation, task: Task) -> None:
    """Raise an error for a token that the model does not have; of rows that are not in memory none is looked at."""
    if not isinstance(rows.x, np.ndarray) or not len(rows):
        return
    flat = rows.x.reshape(len(rows), -1)
    extremes = {"smallest": int(flat.min(1).argmin()), "largest": int(flat.max(1).argmax())}
    for which, row in extremes.items():
        one = torch.from_numpy(np.array(rows.x[row])[None]).long()
        with torch.no_grad():
            try:
                _answered(tried, one, fed, task)
            except FedskewError as problem:
                token = {"smallest": flat[row].min(), "largest": flat[row].max()}[which]
                raise FedskewError(
                    f"the model does not take {part} row {row}, which has the {which} token, {token:g}: give it a "
                    f"larger vocabulary, or number tokens from 0 ({problem})"
                ) from problem


def _answered(tried: nn.Module, rows: Tensor, fed: Federation, task: Task) -> Tensor:
    """Return what a model answers to rows, which it may overwrite; an error unless it is what the task expects."""
    try:
        answer = tried(rows.clone())
    except Exception as problem:  # whatever a user's forward raises
        reason = (str(problem).splitlines() or [type(problem).__name__])[0]
        raise FedskewError(
            f"the model does not take rows of shape {fed.data.shape}: {reason}"
        ) from problem
    expected: tuple[int, ...] = (len(rows), task.width(len(fed.data.classes)))
    if task.target == "tokens":
        expected = (len(rows), fed.train.y.shape[1], expected[-1])
    if not isinstance(answer, Tensor):
        raise _wrong_answer(f"a {type(answer).__name__}", expected, fed, task)
    if answer.shape != expected:
        raise _wrong_answer(f"shape {tuple(answer.shape)}", expected, fed, task)
    return answer


def _try_step(tried: nn.Module, rows: Tensor, fed: Federation, task: Task) -> None:
    """Raise an error for a model of whose answers nothing can be learnt."""
    outputs = _answered(tried, rows, fed, task)
    if not outputs.requires_grad:
        raise FedskewError(
            "the answers of the model have no gradient: leave out detach(), no_grad() and the like in its forward"
        )


def _wrong_answer(
    answer: str, expected: tuple[int, ...], fed: Federation, task: Task
) -> FedskewError:
    """Return the error for a model that answers rows with something else than what is expected."""
    what = f"the outputs of task {task.label()}"
    if task.target == "tokens":
        what = "one logit a token of the vocabulary, at each place of a row (char-transformer:per_token=true)"
    elif expected[1] == len(fed.data.classes):
        what = "one logit a class"
    rows = "one row"
    if expected[0] > 1:
        rows = f"{expected[0]} rows"
    return FedskewError(
        f"the model answers {rows} with {answer}, expected a tensor of shape {expected}: {what}"
    )
