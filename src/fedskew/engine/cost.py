"""The arithmetic and memory of one client's step, from which stacks, threads and chunk sizes are chosen."""

import math
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fedskew.batchnorm.masked import has_batch_norm
from fedskew.engine.input_rows import Inputs
from fedskew.models.low_rank import FIXED
from fedskew.models.parameters import frozen

_known: "WeakKeyDictionary[nn.Module, _RowCost]" = WeakKeyDictionary()

# Weights, start, gradient, momentum, payload, a correction and a temporary; activations with their gradients and a
# temporary.
_COPIES_OF_WEIGHTS, _COPIES_OF_ACTIVATIONS = 7, 3


# Measured on two idle cores (python -m benchmarks rule), in forward multiplications of one client's step. A stack
# saves the overhead of many small operations; where arithmetic dominates, a loop over clients keeps its data in cache
# and wins.
STACK_BELOW = 10_000_000
# Of all clients of a round together: below this a second thread gains nothing, and is slow if it has to wait for a
# core.
THREADS_PAY_ABOVE = 1_500_000


@dataclass
class _RowCost:
    """The cost of one row through the model."""

    multiplications: int = 0
    activations: int = 0
    largest: int = 0  # numbers in the largest output of a layer
    convolutions: bool = False
    batch_norm: bool = False
    weights: int = 0  # bytes of the model that a client has for itself


@dataclass(frozen=True)
class Cost:
    """The cost of one batch of one client."""

    multiplications_per_step: int  # forward pass only
    bytes_per_client: int
    convolutions: bool
    batch_norm: bool

    def stacking_pays(self, clients: int) -> bool:
        """Return whether a CPU trains faster with all clients stacked than one after the other."""
        return clients > 1 and self.multiplications_per_step < STACK_BELOW

    def channels_last(self) -> bool:
        """Return whether a loop over clients is faster in channels-last layout: convolutions without BatchNorm."""
        return self.convolutions and not self.batch_norm

    def threads(self, clients: int, cores: int) -> int:
        """Return how many CPU threads to use for rounds of so many clients."""
        if self.multiplications_per_step * clients > THREADS_PAY_ABOVE:
            return cores
        return 1


def measure_cost(model: nn.Module, x: Inputs, batch: int) -> Cost:
    """Return the cost of a batch: that of one row through the model, times the batch size."""
    one = _row_cost(model, x)
    row = (math.prod(x.shape[1:]) + one.activations) * x.element_size()
    memory = _COPIES_OF_WEIGHTS * one.weights + _COPIES_OF_ACTIVATIONS * batch * row
    return Cost(one.multiplications * batch, memory, one.convolutions, one.batch_norm)


def largest_output(model: nn.Module, x: Inputs) -> int:
    """Return how many numbers one row makes in the largest layer, its input included."""
    return max(math.prod(x.shape[1:]), _row_cost(model, x).largest)


def _row_cost(model: nn.Module, x: Inputs) -> _RowCost:
    """Return the cost of one row, computed once for each model."""
    if model not in _known:
        found = _count_row(model, x[:1].clone())  # a model may write to its input
        found.batch_norm = has_batch_norm(model)
        shared = _shared_by_clients(model)
        for name, value in model.state_dict().items():
            if name not in shared:
                found.weights += value.numel() * value.element_size()
        _known[model] = found
    return _known[model]


def _shared_by_clients(model: nn.Module) -> set[str]:
    """Return the tensors that are frozen, and there once for all clients; each has its own adapted weights."""
    shared = set()
    for name in frozen(model):
        if name.rpartition(".")[2] != FIXED:
            shared.add(name)
    return shared


def _count_row(model: nn.Module, row: Tensor) -> _RowCost:
    found = _RowCost()

    def count(module: nn.Module, _: object, output: object) -> None:
        if not isinstance(output, Tensor):
            return
        found.activations += output.numel()
        found.largest = max(found.largest, output.numel())
        weight = getattr(module, "weight", None)
        if isinstance(weight, Tensor) and weight.dim() > 1:
            found.convolutions |= weight.dim() > 2
            found.multiplications += weight.numel() * output[0, 0].numel()

    handles = []
    for module in model.modules():
        if not list(module.children()):
            handles.append(module.register_forward_hook(count))
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            model(row)
    finally:
        model.train(training)
        for handle in handles:
            handle.remove()
    return found
