"""The arithmetic and memory of one client's step, from which stacks, threads and chunk sizes are chosen."""

import math
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fedskew.batchnorm.masked import has_batch_norm
from fedskew.engine.input_rows import Inputs
from fedskew.models.low_rank import FIXED
from fedskew.models.parameters import copied_model, frozen

_known: "WeakKeyDictionary[nn.Module, _RowCost]" = WeakKeyDictionary()

# Weights, start, gradient, momentum, payload, a correction and a temporary; activations with their gradients and a
# temporary.
_COPIES_OF_WEIGHTS, _COPIES_OF_ACTIVATIONS = 7, 3


# Measured on two idle cores (python -m benchmarks rule), in forward multiplications of one client's step. A stack
# saves the overhead of many small operations; where arithmetic dominates, a loop over clients keeps its data in cache
# and wins.
STACK_BELOW = 10_000_000
# Of models with an LSTM, whose layer in PyTorch is fast for one client (python -m benchmarks rule)
STACK_LSTM_BELOW = 2_000_000
# Of all clients of a round together: below this a second thread gains nothing, and is slow if it has to wait for a
# core.
THREADS_PAY_ABOVE = 1_500_000


@dataclass
class _RowCost:
    """The cost of one row through the model."""

    multiplications: int = 0
    activations: int = 0  # bytes
    computed: int = 0  # bytes that a batch makes once, such as the weight of an adapted layer
    largest: int = 0  # numbers in the largest output of a layer
    convolutions: bool = False
    lstm: bool = False
    batch_norm: bool = False
    weights: int = 0  # bytes of the model that a client has for itself


@dataclass(frozen=True)
class Cost:
    """The cost of one batch of one client."""

    multiplications_per_step: int  # forward pass only
    bytes_per_client: int
    convolutions: bool
    lstm: bool
    batch_norm: bool

    def stacking_pays(self, clients: int) -> bool:
        """Return whether a CPU trains faster with all clients stacked than one after the other."""
        most = STACK_BELOW
        if self.lstm:
            most = STACK_LSTM_BELOW
        return clients > 1 and self.multiplications_per_step < most

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
    row = math.prod(x.shape[1:]) * x.element_size() + one.activations
    made = one.computed + batch * row
    memory = _COPIES_OF_WEIGHTS * one.weights + _COPIES_OF_ACTIVATIONS * made
    return Cost(one.multiplications * batch, memory, one.convolutions, one.lstm, one.batch_norm)


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
        if isinstance(output, tuple):
            output = output[0]
        if not isinstance(output, Tensor):
            return
        found.activations += output.nbytes
        found.lstm |= isinstance(module, nn.LSTM)
        found.largest = max(found.largest, _numbers_at_once(module, output))
        weight = getattr(module, "weight", None)
        found.convolutions |= isinstance(weight, Tensor) and weight.dim() > 2
        found.multiplications += _multiplications(module, output)

    tried = copied_model(model).eval()
    hooks = []
    for module in tried.modules():
        if not list(module.children()):
            hooks.append(module.register_forward_hook(count))
    two = row.repeat(2, *(1,) * (row.dim() - 1))
    kept = _kept_by_autograd(tried, row)
    for hook in hooks:
        hook.remove()
    of_a_row = max(0, _kept_by_autograd(tried, two) - kept)
    found.activations = max(found.activations, of_a_row)
    found.computed = max(0, kept - of_a_row)
    return found


def _multiplications(module: nn.Module, output: Tensor) -> int:
    """Return the multiplications of one row with the weights of a layer."""
    if isinstance(module, nn.RNNBase):
        tokens = output.shape[int(module.batch_first)]
        return tokens * sum(value.numel() for value in module.parameters() if value.dim() > 1)
    weight = getattr(module, "weight", None)
    looks_up = isinstance(module, (nn.Embedding, nn.EmbeddingBag))
    if looks_up or not isinstance(weight, Tensor) or weight.dim() < 2:
        return 0
    if weight.dim() == 2:
        return weight.numel() * (output.numel() // len(weight))
    return weight.numel() * output[0, 0].numel()


def _numbers_at_once(module: nn.Module, output: Tensor) -> int:
    """Return how many numbers a layer makes of one row: its output, or before it the gates of all tokens."""
    if isinstance(module, nn.RNNBase):
        recurrent = module.all_weights[0][1]  # of the first layer: gates x units, by units
        return output.numel() * recurrent.numel() // recurrent.shape[1] ** 2
    return output.numel()


def _kept_by_autograd(model: nn.Module, rows: Tensor) -> int:
    """Return the bytes that a forward pass leaves for the backward pass, without weights and buffers.

    Some layers keep more than their output, as attention does its scores and an LSTM its gates.
    """
    own = {value.untyped_storage().data_ptr() for value in (*model.parameters(), *model.buffers())}
    kept: dict[int, Tensor] = {}

    def keep(value: Tensor) -> Tensor:
        place = value.untyped_storage().data_ptr()
        if place not in own:
            kept[place] = value  # held, so that nothing else gets its place
        return value

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        model(rows)
    return sum(value.untyped_storage().nbytes() for value in kept.values())
