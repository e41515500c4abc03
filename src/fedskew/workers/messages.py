"""Messages between processes: an object is pickled, and its tensors and arrays are laid side by side in a buffer.

Tensors on a GPU have a buffer of their own there.
"""

import io
import math
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALIGNMENT = 64  # bytes: tensors begin where they would in memory of their own, so that kernels compute the same bits
_HOST, _GPU = "cpu", "cuda"
_SMALL = 4096  # bytes of an array that is pickled with the rest


@dataclass(frozen=True)
class Message:
    """An object as bytes: first the pickled rest of it, then its tensors and arrays; those on a GPU apart."""

    pickled: int  # bytes
    host: Tensor
    gpu: Tensor

    @property
    def sizes(self) -> Tensor:
        """Return what the other side must know before it receives the buffers."""
        return torch.tensor([self.pickled, len(self.host), len(self.gpu)])


class _Pickler(pickle.Pickler):
    """Pickles an object without its tensors and arrays, for which it writes where they will be."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.found: dict[str, list[tuple[int, Tensor | NDArray[Any]]]] = {_HOST: [], _GPU: []}
        self.ends = {_HOST: 0, _GPU: 0}
        self.known: dict[int, tuple[Any, ...]] = {}  # where a tensor is that was found before

    def persistent_id(self, thing: Any) -> Any:
        if type(thing) is Tensor and thing.layout is torch.strided:
            home = _GPU if thing.is_cuda else _HOST
        elif type(thing) is np.ndarray and thing.nbytes > _SMALL and thing.dtype.kind in "biuf":
            home = _HOST
        else:
            return None
        if id(thing) not in self.known:
            place = self.ends[home]
            self.known[id(thing)] = home, place, thing.dtype, tuple(thing.shape)
            self.found[home].append((place, thing))
            self.ends[home] = _aligned(place + thing.nbytes)
        return self.known[id(thing)]


class _Unpickler(pickle.Unpickler):
    """Makes the object again; its tensors and arrays are parts of the buffers."""

    def __init__(self, file: io.BytesIO, buffers: dict[str, Tensor]) -> None:
        super().__init__(file)
        self.buffers = buffers

    def persistent_load(self, where: Any) -> Tensor | NDArray[Any]:
        home, place, dtype, shape = where
        return _part(self.buffers[home], place, dtype, shape)


@torch.no_grad()
def packed(thing: Any) -> Message:
    """Return an object as a message; it may be anything that can be pickled."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(thing)
    text = file.getbuffer()
    first = _aligned(len(text))
    host = torch.empty(first + pickler.ends[_HOST], dtype=torch.uint8)
    host[: len(text)] = torch.frombuffer(text, dtype=torch.uint8)
    _fill(host[first:], pickler.found[_HOST])
    gpu = host[:0]
    if tensors := pickler.found[_GPU]:
        gpu = torch.empty(pickler.ends[_GPU], dtype=torch.uint8, device=tensors[0][1].device)
        _fill(gpu, tensors)
    return Message(len(text), host, gpu)


def unpacked(message: Message) -> Any:
    """Return the object of a message; its tensors are contiguous, whatever they were on the other side."""
    buffers = {_HOST: message.host[_aligned(message.pickled) :], _GPU: message.gpu}
    return _Unpickler(io.BytesIO(message.host[: message.pickled].numpy().tobytes()), buffers).load()


def _fill(buffer: Tensor, values: list[tuple[int, Tensor | NDArray[Any]]]) -> None:
    for place, value in values:
        part = _part(buffer, place, value.dtype, tuple(value.shape))
        if isinstance(part, Tensor):
            part.copy_(torch.as_tensor(value))
        else:
            part[...] = value


def _part(buffer: Tensor, place: int, dtype: Any, shape: tuple[int, ...]) -> Tensor | NDArray[Any]:
    mine = buffer[place : place + math.prod(shape) * dtype.itemsize]
    return mine.view(dtype).view(shape) if isinstance(dtype, torch.dtype) else mine.numpy().view(dtype).reshape(shape)


def _aligned(place: int) -> int:
    return -(-place // _ALIGNMENT) * _ALIGNMENT
