"""Messages between processes: JSON text, and a buffer in which tensors and arrays are laid side by side.

Only plain values, tensors, arrays and dataclasses that were registered can be sent, and only these are ever made of
what arrives. Tensors on a GPU have a buffer of their own there.
"""

import json
import math
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedskew.core.errors import FedskewError

# Bytes: tensors begin where they would in memory of their own, so that kernels compute the same bits
ALIGNMENT = 64
_HOST, _GPU = "cpu", "cuda"
# Bytes of an array that is copied on arrival, so that it does not keep the whole buffer in memory
_SMALL = 4096
_WHOLE = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
_TENSORS = (*_WHOLE, "float16", "bfloat16", "float32", "float64", "complex64", "complex128")
_ARRAYS = (*_WHOLE, "float16", "float32", "float64", "complex64", "complex128")
_sendable: dict[str, type[Any]] = {}


def sendable(*kinds: type[Any]) -> None:
    """Allow dataclasses in messages; both sides do so before the first one."""
    for kind in kinds:
        _sendable[kind.__name__] = kind


@dataclass(frozen=True)
class Message:
    """An object as bytes: first the text, then its tensors and arrays; those on a GPU apart."""

    text: int  # bytes
    host: Tensor
    gpu: Tensor

    @property
    def sizes(self) -> Tensor:
        """Return what the other side must know before it receives the buffers."""
        return torch.tensor([self.text, len(self.host), len(self.gpu)])


class _Encoder:
    """Turns an object into JSON values: a tensor or array becomes its number in a list of places in the buffers."""

    def __init__(self) -> None:
        self.places: list[tuple[str, int, str, list[int]]] = []  # buffer, first byte, dtype, shape
        self.found: dict[str, list[tuple[int, Tensor | NDArray[Any]]]] = {_HOST: [], _GPU: []}
        self.ends = {_HOST: 0, _GPU: 0}
        self.known: dict[int, int] = {}  # the number of a tensor that was found before

    def value(self, thing: Any) -> Any:
        """Return the object as JSON: objects have one key, which says what they stand for."""
        kind = type(thing)
        if thing is None or kind in (bool, int, str):
            return thing
        if kind is float:
            return {"float": struct.pack("<d", thing).hex()}
        if kind is list:
            return self._values(thing)
        if kind is tuple:
            return {"tuple": self._values(thing)}
        if kind is dict:
            return self._dictionary(thing)
        if kind is frozenset and _are_texts(thing):
            return {"frozenset": sorted(thing)}
        if isinstance(thing, (Tensor, np.ndarray, np.generic)):
            return self._numbers(thing)
        return self._object(thing)

    def _values(self, things: Iterable[Any]) -> list[Any]:
        return [self.value(one) for one in things]

    def _dictionary(self, thing: dict[Any, Any]) -> Any:
        if _are_texts(thing):
            return {"dict": dict(zip(thing, self._values(thing.values()), strict=True))}
        return {"pairs": [self._values(pair) for pair in thing.items()]}

    def _object(self, thing: Any) -> Any:
        name = type(thing).__name__
        if _sendable.get(name) is not type(thing):
            raise _unsendable(thing)
        values = {}
        for field in fields(thing):
            values[field.name] = self.value(getattr(thing, field.name))
        return {"object": [name, values]}

    def _numbers(self, thing: Any) -> Any:
        """Return a tensor, an array or a NumPy number; derived kinds and other layouts cannot be sent."""
        kind = type(thing)
        if kind is Tensor and thing.layout is torch.strided and _name(thing) in _TENSORS:
            home = _HOST
            if thing.is_cuda:
                home = _GPU
            return {"tensor": self._number(thing, home)}
        if kind is np.ndarray and _name(thing) in _ARRAYS:
            return {"array": self._number(thing, _HOST)}
        if isinstance(thing, np.generic) and _name(thing) in _ARRAYS:
            array = np.asarray(thing)
            self.found[_HOST].append((self._place(array, _HOST), array))
            return {"scalar": len(self.places) - 1}
        raise _unsendable(thing)

    def _number(self, thing: Tensor | NDArray[Any], home: str) -> int:
        if id(thing) not in self.known:
            self.found[home].append((self._place(thing, home), thing))
            self.known[id(thing)] = len(self.places) - 1
        return self.known[id(thing)]

    def _place(self, thing: Tensor | NDArray[Any], home: str) -> int:
        place = self.ends[home]
        self.places.append((home, place, _name(thing), list(thing.shape)))
        self.ends[home] = _aligned(place + thing.nbytes)
        return place


class _Decoder:
    """Makes the object of JSON values again; its tensors and arrays are parts of the buffers."""

    def __init__(
        self, places: list[tuple[str, int, str, list[int]]], buffers: dict[str, Tensor]
    ) -> None:
        self.places = places
        self.buffers = buffers
        self.known: dict[int, Any] = {}  # tensors and arrays by their number
        self.makers: dict[str, Callable[[Any], Any]] = {
            "float": lambda value: struct.unpack("<d", bytes.fromhex(value))[0],
            "tuple": lambda value: tuple(map(self.value, value)),
            "dict": self._dictionary,
            "pairs": lambda value: {self.value(key): self.value(one) for key, one in value},
            "frozenset": frozenset,
            "tensor": lambda value: self._part(value, _TENSORS, torch),
            "array": lambda value: self._part(value, _ARRAYS, np),
            "scalar": lambda value: self._part(value, _ARRAYS, np)[()],
            "object": self._object,
        }

    def value(self, thing: Any) -> Any:
        """Return the object that a JSON value stands for."""
        if isinstance(thing, list):
            return [self.value(one) for one in thing]
        if not isinstance(thing, dict):
            return thing
        ((kind, content),) = thing.items()
        return self.makers[kind](content)

    def _dictionary(self, content: dict[str, Any]) -> dict[str, Any]:
        return {key: self.value(one) for key, one in content.items()}

    def _object(self, content: Any) -> Any:
        name, values = content
        if name not in _sendable:
            raise FedskewError(
                f"another process has sent a {name}, which is not known here: use the same version"
            )
        return _sendable[name](**self._dictionary(values))

    def _part(self, number: int, names: tuple[str, ...], library: Any) -> Any:
        if number not in self.known:
            home, place, name, shape = self.places[number]
            assert name in names
            if library is np:
                dtype = np.dtype(name)
            else:
                dtype = getattr(torch, name)
            part = _part(self.buffers[home], place, dtype, tuple(shape))
            if isinstance(part, np.ndarray) and part.nbytes <= _SMALL:
                part = part.copy()
            self.known[number] = part
        return self.known[number]


@torch.no_grad()
def packed(thing: Any) -> Message:
    """Return an object as a message; an error names the type of what cannot be sent."""
    encoder = _Encoder()
    value = encoder.value(thing)
    text = bytearray(json.dumps([value, encoder.places]).encode())
    first = _aligned(len(text))
    # Zeros, because gaps between tensors are sent too: old memory there may hold rows, as the text of a file.
    host = torch.zeros(first + encoder.ends[_HOST], dtype=torch.uint8)
    host[: len(text)] = torch.frombuffer(text, dtype=torch.uint8)
    _fill(host[first:], encoder.found[_HOST])
    gpu = host[:0]
    if tensors := encoder.found[_GPU]:
        gpu = torch.zeros(encoder.ends[_GPU], dtype=torch.uint8, device=tensors[0][1].device)
        _fill(gpu, tensors)
    return Message(len(text), host, gpu)


def unpacked(message: Message) -> Any:
    """Return the object of a message; its tensors are contiguous, whatever they were on the other side."""
    value, places = json.loads(message.host[: message.text].numpy().tobytes())
    buffers = {_HOST: message.host[_aligned(message.text) :], _GPU: message.gpu}
    return _Decoder(places, buffers).value(value)


def _name(thing: Any) -> str:
    """Return the name of a dtype, without the name of its library."""
    if isinstance(thing, Tensor):
        return str(thing.dtype).removeprefix("torch.")
    name: str = thing.dtype.name
    return name


def _are_texts(things: Iterable[Any]) -> bool:
    return all(type(one) is str for one in things)


def _unsendable(thing: Any) -> FedskewError:
    return FedskewError(f"an object of type {_described(thing)} cannot be sent to another process")


def _described(thing: Any) -> str:
    kind = type(thing)
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    if isinstance(thing, (Tensor, np.ndarray, np.generic)):
        return f"{name} of dtype {thing.dtype}"
    return name


def _fill(buffer: Tensor, values: list[tuple[int, Tensor | NDArray[Any]]]) -> None:
    for place, value in values:
        if isinstance(value, Tensor):
            _part(buffer, place, value.dtype, tuple(value.shape)).copy_(value)
        else:
            _part(buffer, place, value.dtype.newbyteorder("="), value.shape)[...] = value


def _part(buffer: Tensor, place: int, dtype: Any, shape: tuple[int, ...]) -> Any:
    mine = buffer[place : place + math.prod(shape) * dtype.itemsize]
    if isinstance(dtype, torch.dtype):
        return mine.view(dtype).view(shape)
    return mine.numpy().view(dtype).reshape(shape)


def _aligned(place: int) -> int:
    return -(-place // ALIGNMENT) * ALIGNMENT
