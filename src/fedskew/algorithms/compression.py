"""Compressed updates as additions to a method: the largest entries, or few bits an entry."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedskew.algorithms.channel import Channel
from fedskew.algorithms.contract import Algorithm, Requirement, View, algorithms, difference
from fedskew.algorithms.initial_weights import InitialWeights
from fedskew.algorithms.selection import KeyedSelection, Selection
from fedskew.core.device_streams import uniform
from fedskew.core.errors import FedskewError
from fedskew.core.registry import Bounds
from fedskew.core.trees import Tensors, Tree, size_in_bytes

_ERROR = "error"  # of the client state
_KEY = "rounding"  # of the numbers of a client
_INDEX = 4  # bytes


@dataclass(frozen=True)
class Compression(Algorithm):
    """What all compressions have in common: they change the part ``delta`` of what clients send."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if sum(issubclass(part, Compression) for part in self.parts) > 1:
            raise FedskewError(f"algorithm {self.label()}: both compress the update: keep one")

    @property
    def requires(self) -> frozenset[Requirement]:
        """Return what the method requires, and that clients send updates."""
        return super().requires | {"updates"}

    def _sent(self, view: View) -> tuple[Tree, Tensors]:
        """Return what the method sends without compression, and the update in it."""
        sent = super().payload(view)
        if "delta" not in sent:
            raise FedskewError(
                f"{self.label()} compresses updates (delta), and the method sends {', '.join(sent)}: leave it out"
            )
        return sent, sent["delta"]


@algorithms.register("topk")
@dataclass(frozen=True)
class TopK(Compression):
    """The largest entries of each update, the rest later (Stich et al. 2018, Algorithm 1; Lin et al. 2018).

    A client adds to its update what it has not sent so far, sends the ``share`` of the entries with the largest
    magnitudes, over all parameters together and rounded up, and keeps the others as ``error`` for its next round
    (error feedback). Other parts of what it sends are not compressed. An entry costs its value and 4 bytes for its
    place; where that is more than the whole update, the whole update is counted.

    Args:
        share: share of the entries that are sent

    >>> TopK(share=0.5).largest({"w": torch.tensor([1.0, -4.0, 3.0])})
    {'w': tensor([ 0., -4.,  3.])}
    """

    addition: ClassVar[bool] = True
    read_by_part: ClassVar[frozenset[str]] = frozenset({"share"})

    share: Annotated[float, Bounds(0, 1, above=True)] = 0.1

    @property
    def channel(self) -> Channel:
        """Return a channel for places and values."""
        return SparseChannel(self.own(TopK).share)

    def init_client_state(self, weights: InitialWeights) -> Tree:
        """Return the method's client state, and nothing unsent."""
        unsent = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        return {**super().init_client_state(weights), _ERROR: unsent}

    def payload(self, view: View) -> Tree:
        """Return what the method sends, of the update and the error together only the largest entries."""
        sent, delta = self._sent(view)
        return {**sent, "delta": {**delta, **self.largest(self._due(delta, view))}}

    def client_state(self, view: View) -> Tree:
        """Return the method's client state, and what was not sent."""
        due = self._due(self._sent(view)[1], view)
        return {**super().client_state(view), _ERROR: difference(due, self.largest(due))}

    def _due(self, delta: Tensors, view: View) -> Tensors:
        result: Tensors = {}
        for name, error in view.client_state[_ERROR].items():
            result[name] = delta[name] + error
        return result

    def largest(self, due: Tensors) -> Tensors:
        """Return tensors in which all but the largest entries of all of them are zero."""
        if not due:
            return {}
        flat = torch.cat([value.flatten() for value in due.values()])
        places = flat.abs().topk(_count(self.own(TopK).share, len(flat))).indices
        kept = torch.zeros_like(flat).scatter(0, places, flat.gather(0, places))
        pieces = torch.split(kept, [value.numel() for value in due.values()])
        result: Tensors = {}
        for (name, value), piece in zip(due.items(), pieces, strict=True):
            result[name] = piece.view(value.shape)
        return result


class SparseChannel(Channel):
    """Of the update, a share of the values, each with its place."""

    def __init__(self, share: float) -> None:
        self.share = share

    def bytes(self, sent: Tree) -> int:
        """Return the size of one client's payload, of which the update is sparse where that is shorter."""
        values = list(sent["delta"].values())
        entries = _count(self.share, sum(value.numel() for value in values))
        whole = size_in_bytes({"delta": sent["delta"]})
        sparse = entries * (_INDEX + max((value.element_size() for value in values), default=0))
        return size_in_bytes(sent) - whole + min(whole, sparse)


def _count(share: float, entries: int) -> int:
    # 0.1 of 70 is 7; in floating point it would be 8
    return math.ceil(Fraction(str(share)) * entries)


@algorithms.register("quantize")
@dataclass(frozen=True)
class Quantize(Compression):
    """Few bits for each entry of an update, rounded at random and without bias (QSGD; Alistarh et al. 2017, §3.1).

    In each tensor an entry v becomes ``scale * sign(v) * level / s``, with s = 2^(bits - 1) - 1 and one bit for the
    sign; the level is one of the two whole numbers next to ``s * |v| / scale``, the nearer one with the higher
    probability, so that the mean is v. The scale is the largest magnitude of the tensor, as in the paper's experiments;
    its theory has the L2 norm. A tensor costs its bits, in whole bytes, and the scale; other parts of what a client
    sends are not compressed.

    Args:
        bits: bits of each entry, the sign included

    >>> rounded(torch.tensor([1.0, -0.3, 0.0]), 2, torch.tensor([0.9, 0.2, 0.2]))  # levels -1, 0 and 1
    tensor([ 1., -1.,  0.])
    """

    addition: ClassVar[bool] = True

    bits: Annotated[int, Bounds(2, 16)] = 8

    @property
    def channel(self) -> Channel:
        """Return a channel for bits and scales."""
        return QuantizedChannel(self.bits)

    @property
    def client_selection(self) -> Selection:
        """Return the method's selection, with a key for each client's rounding."""
        return KeyedSelection(super().client_selection, _KEY)

    def payload(self, view: View) -> Tree:
        """Return what the method sends, the update rounded."""
        sent, delta = self._sent(view)
        chances = {}
        for i, name in enumerate(sorted(delta)):
            chances[name] = uniform(view.numbers[_KEY], i, delta[name])
        return {
            **sent,
            "delta": {
                name: rounded(value, self.bits, chances[name]) for name, value in delta.items()
            },
        }


def rounded(value: Tensor, bits: int, chances: Tensor) -> Tensor:
    """Return the entries of a tensor rounded to so many bits; up where their ``chances``, in (0, 1), are low enough."""
    largest = value.abs().amax()
    levels = 2 ** (bits - 1) - 1
    scale = torch.where(largest == 0, torch.ones_like(largest), largest)
    exact = levels * (value.abs() / scale)
    level = exact.floor() + (chances < exact - exact.floor())
    found: Tensor = scale * value.sign() * (level / levels)
    return found


class QuantizedChannel(Channel):
    """Of every tensor of the update, so many bits an entry, and a scale."""

    def __init__(self, bits: int) -> None:
        self.bits = bits

    def bytes(self, sent: Tree) -> int:
        """Return the size of one client's payload with the update in bits."""
        whole = size_in_bytes({"delta": sent["delta"]})
        short = sum(
            -(-value.numel() * self.bits // 8) + value.element_size()
            for value in sent["delta"].values()
        )
        return size_in_bytes(sent) - whole + short
