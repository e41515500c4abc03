"""The forward pass without training: losses and outputs of rows, in evaluation mode."""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedskew.core.streams import Floats, Ints
from fedskew.core.trees import Tensors
from fedskew.engine.cost import largest_output, measure_cost
from fedskew.engine.input_rows import Inputs
from fedskew.engine.lstm import vmappable
from fedskew.engine.read_ahead import read_ahead
from fedskew.engine.stacked_model import StackedModel
from fedskew.models.parameters import copied_model, load_weights
from fedskew.tasks.task import Task

# The data and the numbers of some rows -> their outputs
Forward: TypeAlias = Callable[[Inputs, Tensor], Tensor]

# Numbers that one forward pass makes in its largest layer. On a CPU 8 MB in float32, which stay in the cache from layer
# to layer (above 32 MB, the C library even maps and clears new memory for every layer of every batch). On a GPU
# 256 MB, which keep all of it busy.
_VALUES_PER_BATCH = {"cpu": 2 << 20, "cuda": 64 << 20}
_MOST_ROWS = 8192


def rows_at_once(model: nn.Module, x: Inputs) -> int:
    """Return how many rows are processed together in evaluation mode."""
    return max(1, min(_MOST_ROWS, _VALUES_PER_BATCH[x.device.type] // largest_output(model, x)))


def fastest_layout(model: nn.Module, x: Inputs) -> torch.memory_format:
    """Return the layout of images and weights in evaluation mode: channels-last for convolutions on a CPU."""
    images = x.device.type == "cpu" and x.dim() == 4 and measure_cost(model, x, 1).convolutions
    if images:
        return torch.channels_last
    return torch.contiguous_format


@torch.no_grad()
def row_losses(model: nn.Module, x: Inputs, y: Tensor, task: Task, rows: Tensor) -> Floats:
    """Return the losses of these rows under a model that is in evaluation mode."""
    found = []
    for some in torch.split(rows, rows_at_once(model, x)):
        found.append(task.losses(model(x[some]), y[some], "none"))
    return torch.cat(found).double().cpu().numpy()


class Inference:
    """A copy of a model in evaluation mode, in the layout that is fastest, under one set of weights after another.

    On a GPU a batch is captured as a CUDA graph, which is kept and replayed; a model that cannot be captured is run as
    it is.
    """

    def __init__(self, model: nn.Module, x: Inputs) -> None:
        self._model = copied_model(model).eval()
        self.rows_at_once = rows_at_once(model, x)
        self._layout = fastest_layout(model, x)
        self._model = self._model.to(memory_format=self._layout)  # type: ignore[call-overload]
        self._forward: Forward | None = None

    @torch.inference_mode()
    def outputs(self, tensors: Tensors, x: Inputs, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the outputs of the rows at these numbers in chunks, with the numbers."""
        load_weights(self._model, tensors)
        if self._forward is None:
            if x.device.type == "cuda":
                self._forward = _captured(self._model, x, self.rows_at_once)
            else:
                self._forward = self._eager
        chunks: tuple[Tensor, ...] = ()
        # torch.split makes one empty chunk of no rows
        if len(rows):
            chunks = torch.split(rows, self.rows_at_once)
        with read_ahead(x, chunks) as ahead:
            for some in chunks:
                yield self._forward(ahead, some), some

    def _eager(self, x: Inputs, rows: Tensor) -> Tensor:
        outputs: Tensor = self._model(
            x.index_select(0, rows).contiguous(memory_format=self._layout)
        )
        return outputs

    @torch.inference_mode()
    def stacked_outputs(
        self, stack: Tensors, x: Inputs, pieces: Sequence[Ints]
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield the outputs of many models, each on its own rows, in chunks ``[model, row]``, with rows and flags.

        ``stack`` has the weights of the models on a new first axis. Models come with the most rows first, so that those
        with rows left are a prefix of the stack. A flag says which rows are real; the others are repeated ones.
        """
        sizes = np.array([len(piece) for piece in pieces])
        ends = np.cumsum(sizes)
        every = torch.from_numpy(np.concatenate(pieces)).to(x.device)
        # functional_call leaves its tensors behind in a layer that is used twice
        model = vmappable(copy.deepcopy(self._model))
        first = 0

        def under(tensors: Tensors, x: Tensor) -> Tensor:
            outputs: Tensor = functional_call(model, tensors, (x,))
            return outputs

        while active := int((sizes > first).sum()):
            width = min(max(1, self.rows_at_once // active), int(sizes[0]) - first)
            places = first + np.arange(width)
            real = places < sizes[:active, None]
            at = (ends - sizes)[:active, None] + np.minimum(places, sizes[:active, None] - 1)
            rows = every[torch.from_numpy(at).to(x.device)]
            head = {name: value[:active] for name, value in stack.items()}
            yield vmap(under)(head, x[rows]), rows, torch.from_numpy(real).to(x.device)
            first += width


def _captured(model: nn.Module, x: Inputs, size: int) -> Forward:
    """Return the forward pass of up to ``size`` rows as the replay of a CUDA graph, or as it is if capturing fails."""
    inputs = torch.zeros((size, *x.shape[1:]), dtype=x.dtype, device=x.device)
    layers = StackedModel(model, (), training=False)  # convolutions, pooling and ReLU in one kernel
    weights = {}
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        weights[name] = value.detach().unsqueeze(0)

    def forward(x: Tensor) -> Tensor:
        return layers.forward(weights, x.unsqueeze(0))[0]

    def eager(x: Inputs, rows: Tensor) -> Tensor:
        return forward(x.index_select(0, rows))

    try:
        with torch.cuda.device(x.device):
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                forward(inputs.clone())
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                outputs = forward(inputs)
    except RuntimeError:  # such as a model that reads a value on the host
        return eager

    def replay(x: Inputs, rows: Tensor) -> Tensor:
        # The rest keeps its old rows, which nobody reads
        if isinstance(x, Tensor):
            torch.index_select(x, 0, rows, out=inputs[: len(rows)])
        else:
            inputs[: len(rows)].copy_(x.index_select(0, rows))
        graph.replay()
        chosen: Tensor = outputs[: len(rows)].clone()
        return chosen

    return replay
