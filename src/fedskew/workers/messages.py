"""Messages between processes: an object is pickled, and its tensors are laid side by side in one buffer a device."""

import io
import pickle
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_ALIGNMENT = 64  # bytes: tensors begin where they would in memory of their own, so that kernels compute the same bits
_HOST, _GPU = "cpu", "cuda"


@dataclass(frozen=True)
class Message:
    """An object as bytes: first the pickled rest of it, then its tensors; those on a GPU apart, in a buffer there."""

    pickled: int  # bytes
    host: Tensor
    gpu: Tensor

    @property
    def sizes(self) -> Tensor:
        """Return what the other side must know before it receives the buffers."""
        return torch.tensor([self.pickled, len(self.host), len(self.gpu)])


class _Pickler(pickle.Pickler):
    """Pickles an object without its tensors, for which it writes where they will be."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.found: dict[str, list[tuple[int, Tensor]]] = {_HOST: [], _GPU: []}
        self.ends = {_HOST: 0, _GPU: 0}

    def persistent_id(self, thing: Any) -> Any:
        if type(thing) is not Tensor or thing.layout is not torch.strided:
            return None
        home, place = _GPU if thing.is_cuda else _HOST, self.ends[_GPU if thing.is_cuda else _HOST]
        self.found[home].append((place, thing.detach()))
        self.ends[home] = _aligned(place + thing.nbytes)
        return home, place, thing.dtype, tuple(thing.shape)


class _Unpickler(pickle.Unpickler):
    """Makes the object again; its tensors are parts of the buffers."""

    def __init__(self, file: io.BytesIO, buffers: dict[str, Tensor]) -> None:
        super().__init__(file)
        self.buffers = buffers

    def persistent_load(self, where: Any) -> Tensor:
        home, place, dtype, shape = where
        return _part(self.buffers[home], place, dtype, shape)


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


def _fill(buffer: Tensor, tensors: list[tuple[int, Tensor]]) -> None:
    for place, value in tensors:
        _part(buffer, place, value.dtype, tuple(value.shape)).copy_(value)


def _part(buffer: Tensor, place: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    count = torch.Size(shape).numel()
    return buffer[place : place + count * dtype.itemsize].view(dtype).view(shape)


def _aligned(place: int) -> int:
    return -(-place // _ALIGNMENT) * _ALIGNMENT
