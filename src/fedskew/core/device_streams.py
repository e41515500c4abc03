"""The counter-based streams of ``fedskew.core.streams`` on tensors, for what is drawn on a device or by a hook."""

import math

import torch
from torch import Tensor

# The constants of ``fedskew.core.streams``, which all have the highest bit set, as signed whole numbers
_STEP = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)
# Of a client's key and of its numbers: whole numbers of so many bits are exact in float32
KEY_BITS = 24


def shifted(z: Tensor, places: int) -> Tensor:
    """Return the bits shifted to the right, with zeros from the left."""
    return (z >> places) & ((1 << (64 - places)) - 1)


def hashed(state: Tensor, part: Tensor) -> Tensor:
    """Return the state of a stream after one more part of its address, as ``fedskew.core.streams.bits`` does."""
    z = (state ^ (part * _MIX_2)) + _STEP
    z = (z ^ shifted(z, 30)) * _MIX_1
    z = (z ^ shifted(z, 27)) * _MIX_2
    return z ^ shifted(z, 31)


def uniform(key: Tensor, tensor: int, like: Tensor) -> Tensor:
    """Return numbers in (0, 1) of the shape of ``like``, for the tensor of this number; each key has its own."""
    stream = hashed(key.long(), torch.full((), tensor, device=like.device))
    words = shifted(hashed(stream, torch.arange(like.numel(), device=like.device)), 64 - KEY_BITS)
    return ((words.double() + 0.5) * 2.0**-KEY_BITS).to(like.dtype).view(like.shape)


def normal(key: Tensor, tensor: int, like: Tensor) -> Tensor:
    """Return standard normal numbers likewise, of 24 random bits each: none is beyond 5.4."""
    return math.sqrt(2) * torch.erfinv(2 * uniform(key, tensor, like.double()) - 1).to(like.dtype)
