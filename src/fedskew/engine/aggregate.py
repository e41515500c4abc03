"""The server's side of a round: leave broken updates out, take the weighted mean of the rest as it arrives."""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedskew.algorithms.base import Algorithm, Report, Tensors, Tree, overridden
from fedskew.engine.job import Updates
from fedskew.engine.norm import decode, encode
from fedskew.engine.trees import finite_clients, rows_of, size_in_bytes
from fedskew.streams import Floats, Ints

BUFFERS = "buffers"  # the part in which ``combine`` finds the clients' buffers


@dataclass(frozen=True)
class Arrived:
    """One stack of updates after the check: the sound ones, and how the whole stack was weighed (0 = left out)."""

    sound: Updates
    report: Report
    weights: Floats
    bytes: int  # of the whole stack


def sound_clients(updates: Updates) -> Tensor:
    """Which clients of a stack sent and kept finite numbers only; a client that was not sound keeps its old state."""
    return finite_clients([updates.payload, {BUFFERS: updates.buffers}, updates.own], len(updates.report.clients))


class WeightedMean:
    """Adds up updates stack by stack, so that a round never holds more than one stack in memory.

    For a method with a ``combine`` of its own, all sound updates are kept until the round is over, and combined at once.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self.total = 0.0
        self._combines = overridden(algorithm, "combine")
        self._clients: list[Ints] = []
        self._weights: list[Floats] = []
        self._stacks: list[Tree] = []
        self._sums: Tree = {}
        self._result: Tree | None = None

    @property
    def raw(self) -> Floats:
        """The weights of all sound clients as ``weigh`` gave them, in the order of arrival."""
        return np.concatenate([np.zeros(0), *self._weights])

    def add(self, updates: Updates) -> Arrived:
        """Weigh a stack and add it; clients with NaN or infinite numbers get weight 0 and are left out."""
        report = updates.report
        keep = np.flatnonzero(sound_clients(updates).numpy())
        weights = np.zeros(len(report.clients))
        if len(keep) == len(report.clients):
            sound = updates
        else:
            index = torch.from_numpy(keep)
            sound = Updates(
                _some(report, keep),
                rows_of(updates.payload, index),
                rows_of({"": updates.buffers}, index)[""],
                rows_of(updates.own, index),
            )
        if len(keep):
            weights[keep] = self.algorithm.weigh(sound.report)
            self._accumulate(sound, weights[keep])
        sent = size_in_bytes(updates.payload) + size_in_bytes({BUFFERS: updates.buffers})
        return Arrived(sound, report, weights, sent)

    def _accumulate(self, sound: Updates, weights: Floats) -> None:
        self.total += float(weights.sum())
        self._result = None
        self._clients.append(sound.report.clients)
        self._weights.append(weights)
        sent = {**sound.payload, BUFFERS: encode(sound.buffers)} if sound.buffers else sound.payload
        if self._combines:
            self._stacks.append(sent)
            return
        for part, tensors in sent.items():
            _add_weighted(self._sums.setdefault(part, {}), tensors, weights)

    def payload(self) -> Tree:
        """What the clients sent as one payload: its weighted mean, or what ``combine`` makes of it."""
        return {part: tensors for part, tensors in self._combined().items() if part != BUFFERS}

    def buffers(self, like: Tensors) -> Tensors:
        """The merged buffers; those that nobody sent stay as they are in ``like``."""
        return {**like, **decode(self._combined().get(BUFFERS, {}), like)}

    def _combined(self) -> Tree:
        if self._result is None:
            self._result = self._combine() if self._combines else _divided(self._sums, self.total)
        return self._result

    def _combine(self) -> Tree:
        """All stacks as one, in the order of the clients' numbers, so that it does not matter how an engine cut them."""
        order = np.argsort(np.concatenate(self._clients), kind="stable")
        index = torch.from_numpy(order)
        whole = {
            part: {name: torch.cat([stack[part][name] for stack in self._stacks]) for name in tensors}
            for part, tensors in self._stacks[0].items()
        }
        device = next((value.device for tensors in whole.values() for value in tensors.values()), torch.device("cpu"))
        weights = torch.from_numpy(self.raw[order] / self.total).to(device)
        return self.algorithm.combine(rows_of(whole, index), weights)


def _divided(sums: Tree, total: float) -> Tree:
    return {part: {name: value / total for name, value in tensors.items()} for part, tensors in sums.items()}


def _some(report: Report, keep: Ints) -> Report:
    chosen: dict[str, Any] = {one.name: getattr(report, one.name)[keep] for one in fields(report) if one.name != "numbers"}
    return replace(report, **chosen, numbers={name: values[keep] for name, values in report.numbers.items()})


def _add_weighted(sums: Tensors, tensors: Tensors, weights: Floats) -> None:
    for name, value in tensors.items():
        scale = torch.from_numpy(weights).to(value)
        term: Tensor = torch.tensordot(scale, value, dims=1)
        sums[name] = sums[name].add_(term) if name in sums else term
