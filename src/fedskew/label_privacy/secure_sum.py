"""Secure sums: a server adds up what the clients of a step send and learns the sum, but no client's own numbers.

Numbers become whole numbers modulo 2^64, in fixed point. Every pair of clients has a seed that the server does not
know; one adds the mask that the seed gives for this step, the other subtracts it, so that masks cancel only in the
sum over all of them. If a client is missing nothing cancels and nothing can be read: that step is lost, and the next
one has new masks.
"""

import hashlib
import hmac
import os
import struct
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedskew.core.errors import FedskewError

_ROOM = 63  # bits of a whole number beside its sign


class Dealer:
    """The source of a seed for every pair of clients; the key holder distributes them at enrolment."""

    def __init__(self) -> None:
        self._master = os.urandom(32)

    def seeds(self, me: int, clients: int) -> dict[int, bytes]:
        """Return the seeds that client ``me`` shares with each of the others."""
        result: dict[int, bytes] = {}
        for other in range(clients):
            if other != me:
                result[other] = self._seed(min(me, other), max(me, other))
        return result

    def _seed(self, low: int, high: int) -> bytes:
        return hmac.new(self._master, struct.pack("<QQ", low, high), hashlib.sha256).digest()


class Masks:
    """One client's end of secure sums: ``enter`` a step, then ``hide`` its messages, in the same order at all clients.

    >>> dealer, values = Dealer(), torch.tensor([0.5, -3.0])
    >>> ends = [Masks(me, dealer.seeds(me, 3)) for me in (0, 2)]
    >>> for end in ends:
    ...     end.enter(step=7, present=[0, 2])
    >>> opened(sum(end.hide(values, bits=40) for end in ends), 40, torch.float32)
    tensor([ 1., -6.])

    Args:
        me: the client's number
        seeds: the seed that it shares with each other client
    """

    def __init__(self, me: int, seeds: Mapping[int, bytes]) -> None:
        self.me = me
        self.seeds = seeds
        self._step = -1
        self._sent = 0
        self._others: list[int] = []

    @property
    def clients(self) -> int:
        """Return the number of clients."""
        return len(self.seeds) + 1

    def enter(self, step: int, present: Sequence[int]) -> None:
        """Begin a step of these clients; a step cannot be repeated, since its masks could then be removed."""
        whole = all(type(number) is int for number in (step, *present))
        if not whole or len(set(present)) < len(present):
            raise FedskewError(
                f"client {self.me}: step {step} of clients {list(present)}: give whole numbers, none twice"
            )
        if step <= self._step:
            raise FedskewError(
                f"client {self.me}: step {step} of secure sums was begun before: number steps upwards"
            )
        self._others = [client for client in present if client != self.me]
        unknown = set(self._others) - self.seeds.keys()
        if unknown or len(self._others) == len(present):
            raise FedskewError(
                f"client {self.me}: a secure sum over clients {list(present)} needs this client and others that "
                "share a seed with it: enrol all of them with the same key holder"
            )
        if not self._others:
            raise FedskewError(
                f"client {self.me} is alone in step {step}: a sum over one client is that client's own numbers"
            )
        self._step = step
        self._sent = 0

    def hide(self, values: Tensor, bits: int) -> Tensor:
        """Return the numbers in fixed point with so many binary places, under this client's masks."""
        if not 0 <= bits <= _ROOM:
            raise FedskewError(
                f"client {self.me}: {bits} binary places are out of range, it must be 0 to {_ROOM}"
            )
        limit = 2.0 ** (_ROOM - bits) / (len(self._others) + 1)
        if not bool((values.abs() < limit).all()):
            raise FedskewError(
                f"client {self.me}: a number is not finite, or not below {limit:.3g}, which secure sums have room for: "
                f"standardise the data or lower lr"
            )
        scaled = np.rint(values.detach().cpu().double().flatten().numpy() * 2.0**bits)
        total = scaled.astype(np.int64).view(np.uint64)
        for other in self._others:
            mask = self._mask(other, total.size)
            if self.me < other:
                total = total + mask
            else:
                total = total - mask
        self._sent += 1
        return torch.from_numpy(total.view(np.int64)).reshape(values.shape)

    def _mask(self, other: int, size: int) -> "np.ndarray[tuple[int], np.dtype[np.uint64]]":
        """Return the mask of this pair for this message of this step, which is never used again."""
        address = struct.pack("<QQ", self._step, self._sent)
        data = hashlib.shake_256(self.seeds[other] + address).digest(8 * size)
        return np.frombuffer(data, dtype="<u8").astype(np.uint64)


def opened(total: Tensor, bits: int, dtype: torch.dtype) -> Tensor:
    """Return the sum over all clients of a step: exact to half a unit in the last place per client."""
    return (total.double() * 2.0**-bits).to(dtype)
