"""The server's side of a round: leave broken updates out, take the weighted mean of the rest as it arrives."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedskew.algorithms.base import Algorithm, Report, Tensors, Tree
from fedskew.engine.job import Updates
from fedskew.engine.norm import decode, encode
from fedskew.engine.trees import finite_clients, rows_of
from fedskew.streams import Floats


@dataclass(frozen=True)
class Arrived:
    """One stack of updates after the check: the sound ones, and how the whole stack was weighed (0 = left out)."""

    sound: Updates
    report: Report
    weights: Floats


def sound_clients(updates: Updates) -> Tensor:
    """Which clients of a stack sent and kept finite numbers only; a client that was not sound keeps its old state."""
    return finite_clients([updates.payload, {"buffers": updates.buffers}, updates.own], len(updates.report.clients))


class WeightedMean:
    """Adds up updates stack by stack, so that a round never holds more than one stack in memory."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self.total = 0.0
        self._payload: Tree = {}
        self._buffers: Tensors = {}

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
        return Arrived(sound, report, weights)

    def _accumulate(self, sound: Updates, weights: Floats) -> None:
        self.total += float(weights.sum())
        for part, tensors in sound.payload.items():
            _add_weighted(self._payload.setdefault(part, {}), tensors, weights)
        _add_weighted(self._buffers, encode(sound.buffers), weights)

    def payload(self) -> Tree:
        """The weighted mean of what the clients sent."""
        return {part: {name: value / self.total for name, value in ts.items()} for part, ts in self._payload.items()}

    def buffers(self, like: Tensors) -> Tensors:
        """The merged buffers; those that nobody sent stay as they are in ``like``."""
        mean = {name: value / self.total for name, value in self._buffers.items()}
        return {**like, **decode(mean, like)}


def _some(report: Report, keep: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> Report:
    return replace(report, **{name: value[keep] for name, value in vars(report).items()})


def _add_weighted(sums: Tensors, tensors: Tensors, weights: Floats) -> None:
    for name, value in tensors.items():
        scale = torch.from_numpy(weights).to(value)
        term: Tensor = torch.tensordot(scale, value, dims=1)
        sums[name] = sums[name].add_(term) if name in sums else term
