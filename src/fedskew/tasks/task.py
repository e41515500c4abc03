"""The contract of a task: loss, kind of target, number of outputs, prediction and metrics.

Everything else computes losses through ``Task.losses`` and knows no loss by name.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap

from fedskew.core.config import AUTO
from fedskew.core.errors import FedskewError, unknown
from fedskew.core.registry import Choice, Registry, validate
from fedskew.core.streams import Floats, Ints
from fedskew.data.targets import IN_WORDS, MATRICES, Target, Targets
from fedskew.tasks.scores import Range

Reduction: TypeAlias = Literal["mean", "sum", "none"]
# (outputs, targets) -> one number per row
RowFunction: TypeAlias = Callable[[Tensor, Tensor], Tensor]
ClassWeights: TypeAlias = tuple[float, ...] | Literal["balanced"]
# (outputs, targets) -> a number for all rows
Metric: TypeAlias = Callable[[Floats, Targets], float]

_TARGETS: dict[Target, str] = {
    "class": "whole numbers, one class per row",
    "number": "floating-point numbers, one per row",
    "labels": "a matrix of 0 and 1, one column per label",
    "numbers": "a matrix of floating-point numbers, one row of them per row",
    "tokens": "a matrix of whole numbers, one token at each place of a row",
}
BALANCED: Literal["balanced"] = "balanced"  # class weights from the rows of each class
BY_TARGET: dict[Target, str] = {
    "class": "classification",
    "number": "regression",
    "labels": "multilabel",
    "numbers": "sequence-regression",
    "tokens": "next-token",
}
_TRIED = 8  # rows that ``check`` tries a task on


class Headline(NamedTuple):
    """The metric that the best round, early stopping, tables and figures go by; ``sign`` is -1 where low is good."""

    name: str
    sign: int


class Task:
    """A task made from functions. The built-in tasks derive from it.

    Functions get the outputs of the model as ``[rows, outputs]``, or as ``[rows]`` where the task has a single output
    for a class or a number, so that they can be compared with the targets without broadcasting. The mean over a batch
    is the plain mean of the row losses.

    Args:
        loss: the loss of every row from (outputs, targets), two tensors; differentiable, and without ``if`` on a value
        metrics: by name, a number from (outputs, targets), two NumPy arrays; the first one is the headline
        target: class (whole numbers from 0), number, labels (a matrix of 0 and 1), numbers (a matrix of them) or tokens
            (a matrix of whole numbers, -1 where a row has none; outputs are then ``[rows, tokens, vocabulary]``)
        outputs: outputs of the model, none for one per class, label, column of numbers or token of the vocabulary, or
            one for a number
        row_metric: name of the metric that is followed during local training, a mean over rows; none for no such metric
        row_score: that metric for every row, from (outputs, targets), two tensors
        predict: predictions from a tensor of outputs, none for the class with the largest output (of a single output:
            whether it is above 0), the number itself, or the labels with outputs above 0
        higher_is_better: false where a low headline and a low row_metric are good

    >>> task = Task(lambda out, y: (out - y).abs(), {"mae": lambda out, y: abs(out - y).mean()}, "number")
    >>> task.losses(torch.tensor([[1.0], [2.0]]), torch.tensor([1.5, 4.0]), "none")
    tensor([0.5000, 2.0000])
    >>> task.evaluate(np.array([[1.0], [2.0]]), np.array([1.5, 4.0]))
    {'mae': 1.25}
    """

    target: Target = "class"
    outputs: int | None = None
    row_metric: str | None = None
    higher_is_better: bool = True
    rows_alone: bool = True  # whether the loss of a row depends on that row alone
    # What evaluation keeps of every row in place of its outputs, from which all metrics follow; none for the outputs
    row_sums: tuple[str, ...] = ()
    # What the loss and metrics may be, where that is known
    ranges: Mapping[str, Range] = MappingProxyType({})
    _row_score: RowFunction | None = None
    _predictor: Callable[[Tensor], Tensor] | None = None

    def __init__(
        self,
        loss: RowFunction,
        metrics: Mapping[str, Metric],
        target: Target = "class",
        outputs: int | None = None,
        row_metric: str | None = None,
        row_score: RowFunction | None = None,
        predict: Callable[[Tensor], Tensor] | None = None,
        higher_is_better: bool = True,
    ) -> None:
        if target not in _TARGETS:
            raise unknown("target of a task", str(target), _TARGETS)
        _check_outputs(outputs)
        if (row_metric is None) != (row_score is None):
            raise FedskewError(
                "task: row_metric (a name) and row_score (a function) go together: give both or neither"
            )
        if not isinstance(metrics, Mapping) or not metrics:
            raise FedskewError(
                'task: metrics needs at least one function by its name: metrics={"name": function}'
            )
        for name in metrics:
            _check_metric_name(name)
        if row_metric is not None:
            _check_metric_name(row_metric)
        _check_function("loss", loss)
        if row_score is not None:
            _check_function("row_score", row_score)
        if predict is not None:
            _check_function("predict", predict)
        for name, metric in metrics.items():
            _check_function(f"metric {name}", metric)
        self.target, self.outputs = target, outputs
        self.row_metric = row_metric
        self.higher_is_better = higher_is_better
        self._loss = loss
        self._metrics = dict(metrics)
        self._row_score = row_score
        self._predictor = predict

    @classmethod
    def label(cls) -> str:
        """Return its registered name, or the class name."""
        return tasks.name_of(cls) or cls.__name__

    def options(self) -> dict[str, Any]:
        """Return the options by name; for a task of the user's own, what describes it."""
        if is_dataclass(self):
            return {field.name: getattr(self, field.name) for field in fields(self)}
        loss = getattr(self._loss, "__qualname__", type(self._loss).__name__)
        return {
            "loss": loss,
            "metrics": self.metric_names,
            "target": self.target,
            "outputs": self.outputs,
        }

    def __str__(self) -> str:
        return str(choice_of(self))

    # The methods that engines call.

    def losses(self, outputs: Tensor, targets: Tensor, reduction: Reduction = "mean") -> Tensor:
        """Return the losses of all rows: their mean, their sum, or (``none``) one for each row.

        Outputs and targets may have further axes in front, ``[clients, rows, ...]``: then ``none`` gives
        ``[clients, rows]``, and the mean and the sum are over all rows of all of them.
        """
        if reduction not in ("mean", "sum", "none"):
            raise unknown("reduction", str(reduction), ("mean", "sum", "none"))
        shape = self._rows(targets)
        found = self._losses(*_flat(outputs, targets, len(shape)), reduction)
        if reduction == "none" and len(shape) > 1:
            return found.view(shape)
        return found

    def padded(self, targets: Tensor, real: Tensor | None) -> Tensor:
        """Return targets ``[clients, rows, ...]`` in which rows that only pad a stack change the loss of no other row.

        ``real`` says which rows are none of these; None where all are.
        """
        return targets

    def slopes(self, outputs: Tensor, targets: Tensor, share: float | Tensor = 1.0) -> Tensor:
        """Return the gradient of every row's loss with respect to its outputs, times the row's share.

        Axes are those of ``losses``; the share is one number, or one for each row.
        """
        with torch.enable_grad():
            leaf = outputs.detach().requires_grad_()
            (found,) = torch.autograd.grad(self.losses(leaf, targets, "sum"), leaf)
        return found * (
            share.view(*share.shape, *(1,) * (found.dim() - share.dim()))
            if isinstance(share, Tensor)
            else share
        )

    def width(self, classes: int) -> int:
        """Return how many outputs the model needs for data with so many classes, labels, columns or tokens.

        These are 0 where targets are one number per row. The outputs of tokens are so many at each place of a row.
        """
        if self.target == "number" and classes:
            raise FedskewError(
                f"task {self.label()} learns numbers, and the targets of these data are {classes} classes or labels: "
                "use task=classification or multilabel, or other data"
            )
        if self.target != "number" and classes < 1:
            raise FedskewError(
                f"task {self.label()} learns {IN_WORDS[self.target]}, and these data have none: use "
                "task=regression for numbers, or other data"
            )
        return self.outputs or (1 if self.target == "number" else classes)

    def row_scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the ``row_metric`` of every row, in the shape of the rows with any axes in front of them.

        Without one it is the loss, so that engines need no special case; tables then have no column for it.
        """
        if self._row_score is None:
            return self.losses(outputs, targets, "none")
        shape = self._rows(targets)
        outputs, targets = _flat(outputs, targets, len(shape))
        found = self._row_score(self._fitted(outputs, targets), targets)
        return self._one_a_row(found, targets, "row_score").reshape(shape)

    def kept(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return what evaluation keeps of rows: their outputs, or for a task with ``row_sums`` one column for each."""
        return outputs

    def kept_scores(self, kept: Tensor, targets: Tensor) -> Tensor:
        """Return the ``row_metric`` of every row from what is kept of it."""
        return self.row_scores(kept, targets)

    def predict(self, outputs: Tensor) -> Tensor:
        """Return predictions from outputs: classes, numbers, tokens, or a matrix of 0 and 1."""
        if self._single() and outputs.dim() > 1:
            outputs = outputs.squeeze(-1)
        if self._predictor is not None:
            return self._predictor(outputs)
        if self.target in ("number", "numbers"):
            return outputs
        if self.target == "labels" or self._single():
            return (outputs > 0).long()
        return outputs.argmax(-1)

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Return the names of all metrics that ``evaluate`` can return, the headline first."""
        return tuple(self._metrics)

    def range_of(self, name: str) -> Range:
        """Return what the loss or a metric may be: where that is not known, any loss, and any metric or none."""
        return self.ranges.get(name, Range(undefined=name != "loss"))

    def headline(self, metric: str | None = None) -> Headline:
        """Return the metric that decides what is best: the first, or the one that is asked for."""
        first = self.metric_names[0]
        if metric is not None and metric not in self.metric_names:
            raise unknown(f"metric of task {self.label()}", metric, self.metric_names)
        if metric not in (None, first):
            raise FedskewError(
                f"metric={metric}: whether much of it is good is known of the first metric of a fedskew.Task alone, "
                f"which is {first}: put {metric} first in metrics"
            )
        return Headline(first, 1 if self.higher_is_better else -1)

    def fitted(self, counts: Ints) -> "Task":
        """Return the task for data with so many training rows of each class, or with each of several numbers.

        Most tasks are the same for all.
        """
        return self

    def evaluate(
        self, outputs: NDArray[Any], targets: Targets, names: Iterable[str] | None = None
    ) -> dict[str, float]:
        """Return the metrics over some rows, all of them or those named; NaN where one is undefined, as for no rows."""
        outputs = np.asarray(outputs, dtype=np.float64)
        targets = np.asarray(targets)
        if len(outputs) != len(targets):
            raise FedskewError(
                f"task {self.label()}: {len(outputs)} outputs for {len(targets)} targets, not one each"
            )
        return self.measured(self._kept_of(outputs, targets), targets, names)

    def measured(
        self, kept: NDArray[Any], targets: Targets, names: Iterable[str] | None = None
    ) -> dict[str, float]:
        """Return what ``evaluate`` does, from what is kept of the rows."""
        if names is None:
            wanted = self.metric_names
        else:
            wanted = tuple(names)
        for name in wanted:
            if name not in self.metric_names:
                raise unknown(f"metric of task {self.label()}", name, self.metric_names)
        if not len(targets):
            return dict.fromkeys(wanted, float("nan"))
        with np.errstate(all="ignore"):
            measures = self._measures(np.asarray(kept, dtype=np.float64), targets)
            result: dict[str, float] = {}
            for name in wanted:
                result[name] = _number(measures[name](), name, self.label())
            return result

    def check_values(self, where: str, targets: Targets) -> None:
        """Raise an error, with the number of the row, for targets of the right kind that the task cannot learn."""

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Try the task on a few rows, and raise an error that names what was returned if it does not fit."""
        where = f"task {self.label()}"
        outputs = outputs[:_TRIED].detach().cpu()
        targets = targets[:_TRIED].detach().cpu()
        self._check_targets(outputs, targets, where)
        outputs = outputs.clone().requires_grad_()
        each = _tried(where, "the loss", partial(self.losses, outputs, targets, "none"))
        if not each.requires_grad:
            raise FedskewError(
                f"{where}: the loss has no gradient: compute it from the outputs, differentiably"
            )
        outputs = outputs.detach()
        if not _is_built_in(type(self)):
            stack = (outputs.expand(2, *outputs.shape), targets.expand(2, *targets.shape))
            _tried(
                where,
                "the loss under torch.func.vmap (no if on a value, no .item())",
                partial(vmap(partial(self.losses, reduction="none")), *stack),
            )
        predicted = _tried(where, "predict", partial(self.predict, outputs))
        if not isinstance(predicted, Tensor) or predicted.shape[:1] != targets.shape[:1]:
            raise FedskewError(
                f"{where}: predict returned {_described(predicted)}, not one prediction for each of {len(targets)} rows"
            )
        if self.row_metric is not None:
            _tried(where, "row_score", partial(self.row_scores, outputs, targets))
        for name in self.metric_names:
            _tried(
                where,
                f"metric {name}",
                partial(self.evaluate, outputs.numpy(), targets.numpy(), [name]),
            )

    # What a derived task overrides: these three, ``row_scores`` and ``predict``.

    def _losses(self, outputs: Tensor, targets: Tensor, reduction: Reduction) -> Tensor:
        """Return the losses of rows without axes in front."""
        return reduced(
            self._one_a_row(self._loss(self._fitted(outputs, targets), targets), targets, "loss"),
            reduction,
        )

    def _kept_of(self, outputs: Floats, targets: Targets) -> Floats:
        """Return what evaluation keeps of rows."""
        return outputs

    def _measures(self, outputs: Floats, targets: Targets) -> Mapping[str, Callable[[], float]]:
        """Return a function for every metric, from what is kept; values that several of them need are shared."""
        if self._single() and outputs.ndim == 2:
            fitted = outputs.squeeze(-1)
        else:
            fitted = outputs
        result: dict[str, Callable[[], float]] = {}
        for name, metric in self._metrics.items():
            result[name] = partial(metric, fitted, targets)
        return result

    def _check_targets(self, outputs: Tensor, targets: Tensor, where: str) -> None:
        """Raise an error for outputs or targets of another kind than the task takes."""
        if not _are_of(self.target, targets):
            raise FedskewError(
                f"{where} takes {_TARGETS[self.target]} as targets, got {_described(targets)}"
            )
        if not outputs.is_floating_point() or len(outputs) != len(targets) or not len(targets):
            raise FedskewError(
                f"{where}: the model gave {_described(outputs)} for {len(targets)} rows, not numbers for each row"
            )
        if self._single() and outputs.shape[1:] not in ((), (1,)):
            raise FedskewError(
                f"{where}: the model gave {_described(outputs)}, and the task has one output"
            )

    def _single(self) -> bool:
        return (
            self.target not in ("labels", "tokens")
            and (self.outputs or (1 if self.target == "number" else 0)) == 1
        )

    def _fitted(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the outputs as the functions of the task get them: a single output without its axis."""
        if self._single() and outputs.dim() == len(self._rows(targets)) + 1:
            return outputs.squeeze(-1)
        return outputs

    def _rows(self, targets: Tensor) -> torch.Size:
        if self.target in MATRICES:
            return targets.shape[:-1]
        return targets.shape

    def _one_a_row(self, found: Any, targets: Tensor, what: str) -> Tensor:
        if isinstance(found, Tensor) and found.shape == self._rows(targets):
            return found
        raise FedskewError(
            f"task {self.label()}: {what} returned {_described(found)}, not one number for each of "
            f"{self._rows(targets).numel()} rows: do not reduce over rows"
        )


class BuiltIn(Task):
    """A task by name: a frozen dataclass whose fields are its options, validated on construction."""

    names: tuple[str, ...] = ()
    low_is_good: frozenset[str] = frozenset()  # of the names

    def __post_init__(self) -> None:
        for name, value in validate(type(self), self.options(), f"task {self.label()}").items():
            object.__setattr__(self, name, value)

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Return the names of all metrics that ``evaluate`` can return, the headline first."""
        return self.names

    def headline(self, metric: str | None = None) -> Headline:
        """Return the metric that decides what is best: the first, or the one that is asked for."""
        name = metric or self.names[0]
        if name not in self.names:
            raise unknown(f"metric of task {self.label()}", name, self.names)
        return Headline(name, -1 if name in self.low_is_good else 1)

    def _check_weights(self, weights: "ClassWeights | None", classes: int) -> None:
        """Raise an error unless there is one weight for each class (or label)."""
        if weights is not None and weights != BALANCED and len(weights) != classes:
            if self.target == "labels":
                what = "labels"
            else:
                what = "classes"
            raise FedskewError(
                f"task {self.label()}: class_weights has {len(weights)} numbers for {classes} {what}: give one for each"
            )


def _are_of(kind: Target, targets: Tensor) -> bool:
    """Return whether targets are of a kind."""
    axes = 1 + (kind in MATRICES)
    if targets.dim() != axes:
        return False
    if kind in ("number", "numbers"):
        return targets.is_floating_point()
    if kind == "labels":
        return bool(((targets == 0) | (targets == 1)).all())
    return not targets.is_floating_point() and targets.dtype != torch.bool


def _check_outputs(outputs: Any) -> None:
    if outputs is None:
        return
    if isinstance(outputs, bool) or not isinstance(outputs, int) or outputs < 1:
        raise FedskewError(
            f"task: outputs={outputs!r} is not a whole number from 1: give one, or None"
        )


def _check_metric_name(name: Any) -> None:
    if not isinstance(name, str) or not name.isidentifier() or name == "loss":
        raise FedskewError(
            f"task: {name!r} cannot name a metric: use letters, digits and _; loss is reported anyway"
        )


def _check_function(name: str, function: Any) -> None:
    if not callable(function):
        raise FedskewError(f"task: {name} is {function!r}, not a function")


tasks: Registry[type[Task]] = Registry("task", "fedskew.tasks")


def choice_of(task: Task) -> Choice:
    """Return how a task is written, with every option."""
    return Choice(task.label(), task.options())


def resolve(spec: "str | Mapping[str, Any] | Choice | type[Task] | Task") -> Task:
    """Return a task from its spelling, its class or itself.

    >>> str(resolve("regression:loss=huber"))
    'regression:loss=huber,delta=1.0'
    """
    if isinstance(spec, Task):
        return spec
    if isinstance(spec, type) and issubclass(spec, BuiltIn):
        return cast(Callable[[], Task], spec)()
    if isinstance(spec, type):
        raise FedskewError(
            f"{spec.__name__} is not a task by itself: give fedskew.Task(loss=..., metrics=...)"
        )
    choice = tasks.choose(spec)
    return tasks.get(choice.name)(**choice.options)


def task_for(setting: str | Mapping[str, Any], target: Target) -> Task:
    """Return the task that a setting names; with ``auto``, the one that the targets ask for.

    >>> str(task_for("auto", "number"))
    'regression:loss=mse,delta=1.0'
    """
    if setting == AUTO:
        return resolve(BY_TARGET[target])
    return resolve(setting)


def reduced(each: Tensor, reduction: Reduction) -> Tensor:
    """Return one loss for each row, or their mean or sum, as ``reduction`` says."""
    if reduction == "none":
        return each
    if reduction == "mean":
        return each.mean()
    return each.sum()


def constants(values: tuple[float, ...], like: Tensor) -> Tensor:
    """Return numbers as a tensor with the type and the device of another one.

    While a CUDA graph is captured nothing can be copied to the GPU: the numbers are then filled in one by one.
    """
    if like.is_cuda and torch.cuda.is_current_stream_capturing():
        return torch.stack(
            [torch.full((), value, dtype=like.dtype, device=like.device) for value in values]
        )
    return torch.tensor(values, dtype=like.dtype, device=like.device)


def balanced_weights(counts: Ints) -> tuple[float, ...]:
    """Return a weight for each class, ``rows / (classes * rows of the class)``, as scikit-learn's ``balanced``.

    Classes without rows are not counted, and have the weight 1.

    >>> balanced_weights(np.array([6, 2, 0]))
    (0.6666666666666666, 2.0, 1.0)
    """
    present = int(np.count_nonzero(counts))
    return tuple(float(counts.sum() / (present * count)) if count else 1.0 for count in counts)


def numbers(weights: ClassWeights) -> tuple[float, ...]:
    """Return class weights as numbers; an error where they depend on data that the task has not seen."""
    if isinstance(weights, str):
        raise FedskewError(
            f"class_weights={weights} are counted on training rows: task.fitted(rows of each class)"
        )
    return weights


def _flat(outputs: Tensor, targets: Tensor, axes: int) -> tuple[Tensor, Tensor]:
    """Return both with the axes of their rows merged into one."""
    if axes > 1:
        return (outputs.flatten(0, axes - 1), targets.flatten(0, axes - 1))
    return (outputs, targets)


def _number(found: Any, name: str, label: str) -> float:
    try:
        return float(found)
    except (TypeError, ValueError, RuntimeError):
        raise FedskewError(
            f"task {label}: metric {name} returned {_described(found)}, not a number"
        ) from None


def _is_built_in(kind: type[Task]) -> bool:
    """Return whether a task is one of fedskew's own: tests run its loss under vmap, and a run need not.

    The first cross-entropy under vmap makes PyTorch import SymPy, which takes longer than a first round.
    """
    return kind is not Task and kind.__module__.startswith("fedskew.")


def _tried(where: str, what: str, attempt: Callable[[], Any]) -> Any:
    try:
        return attempt()
    except FedskewError:
        raise
    except Exception as error:  # a user's function may fail in any way
        raise FedskewError(f"{where}: {what} failed: {type(error).__name__}: {error}") from error


def _described(found: Any) -> str:
    if isinstance(found, (Tensor, np.ndarray)):
        return f"{type(found).__name__} of shape {list(found.shape)} ({str(found.dtype).removeprefix('torch.')})"
    return f"{type(found).__name__} {found!r:.60}"
