"""Messages between parties and a hub: frames of numbers in a fixed binary format, and their validation."""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor

from fedskew.core.errors import FedskewError

_MAGIC = b"FSN1"
# Magic, kind, dtype, axes, step, place, count; then the shape, then the numbers
_HEADER = struct.Struct("<4sBBBxIIQ")
_AXIS = struct.Struct("<I")
_DTYPES = {
    torch.float32: "<f4",
    torch.float64: "<f8",
    torch.int64: "<i8",
    torch.int32: "<i4",
    torch.uint8: "|u1",
    torch.bool: "|b1",
}  # a code is a position in this table
_MOST_AXES = 8


class Kind(IntEnum):
    """The content of a frame."""

    WEIGHT = 1  # down: a parameter or a buffer
    SUM = 2  # of x, by channel
    SPREAD = 3  # sum of squares around the mean
    SLOPE = 4  # sums of dL/dxhat and of xhat dL/dxhat
    GRADIENT = 5  # up: of the summed loss
    SCORE = 6  # up: summed loss and correct predictions
    PRESENT = 7  # down: which clients take part in a step of secure sums


@dataclass(frozen=True)
class Frame:
    """Some numbers and their place: ``place`` counts layers or tensors, ``count`` is how many values were summed."""

    step: int
    kind: Kind
    place: int
    count: int
    values: Tensor

    def pack(self) -> bytes:
        """Return header, shape and the numbers in little-endian order."""
        if self.values.dtype not in _DTYPES:
            raise FedskewError(
                f"numbers of type {self.values.dtype} cannot be sent: use float32 or float64"
            )
        code = list(_DTYPES).index(self.values.dtype)
        axes = b"".join(_AXIS.pack(size) for size in self.values.shape)
        head = _HEADER.pack(
            _MAGIC, self.kind, code, self.values.dim(), self.step, self.place, self.count
        )
        array = self.values.detach().cpu().contiguous().numpy()
        return head + axes + array.astype(_DTYPES[self.values.dtype], copy=False).tobytes()


def unpack(message: bytes) -> list[Frame]:
    """Return the frames of a message; raise an error if it is truncated or invalid."""
    frames, at = [], 0
    while at < len(message):
        frame, at = _unpack_one(message, at)
        frames.append(frame)
    return frames


def _unpack_one(message: bytes, at: int) -> tuple[Frame, int]:
    """Return the frame that begins there, and where it ends."""
    _require(message, at, _HEADER.size)
    magic, kind, code, axes, step, place, count = _HEADER.unpack_from(message, at)
    if magic != _MAGIC or kind not in list(Kind) or code >= len(_DTYPES) or axes > _MOST_AXES:
        raise FedskewError(
            f"byte {at} of a message of {len(message)} begins no frame: both sides must run the same fedskew"
        )
    at += _HEADER.size
    _require(message, at, _AXIS.size * axes)
    shape = []
    for axis in range(axes):
        shape.append(_AXIS.unpack_from(message, at + _AXIS.size * axis)[0])
    at += _AXIS.size * axes
    stored = np.dtype(list(_DTYPES.values())[code])
    size = math.prod(shape) * stored.itemsize
    _require(message, at, size)
    array = np.ndarray(shape, stored, message, at).astype(stored.newbyteorder("="))
    return Frame(step, Kind(kind), place, count, torch.from_numpy(array)), at + size


def _require(message: bytes, at: int, size: int) -> None:
    if at + size > len(message):
        raise FedskewError(
            f"message of {len(message)} bytes is truncated: at byte {at} there should be {size} more"
        )


def frame_bytes(shape: Sequence[int], dtype: torch.dtype) -> int:
    """Return the size of a frame with such numbers."""
    return _HEADER.size + _AXIS.size * len(shape) + math.prod(shape) * dtype.itemsize


def check(frame: Frame, like: Frame, whose: str) -> None:
    """Raise an error for a frame that is not the expected one; count and numbers of ``like`` are not compared."""

    def described(one: Frame) -> str:
        shape = "x".join(map(str, one.values.shape)) or "number"
        dtype = str(one.values.dtype).removeprefix("torch.")
        return f"step {one.step} {one.kind.name.lower()} {one.place} ({shape} {dtype})"

    if described(frame) != described(like):
        raise FedskewError(
            f"{whose} sent {described(frame)} where {described(like)} is due: refused, all must be at the same step"
        )
