"""Collects the updates of a round: excludes invalid ones, and aggregates the rest as they arrive."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedskew.aggregation.mean import weighted_mean
from fedskew.algorithms.contract import Algorithm, Report, Weights
from fedskew.batchnorm.masked import decode, encode
from fedskew.core.streams import Floats, Ints
from fedskew.core.trees import Tensors, Tree, finite_clients, rows_of, tensors_of
from fedskew.engine.job import Updates
from fedskew.fleet.clock import Flags
from fedskew.models.low_rank import narrowed

BUFFERS = "buffers"  # the part in which ``combine`` finds the clients' buffers


@dataclass(frozen=True)
class Arrived:
    """One stack of updates after the check: the reports of all its clients, and what its valid clients keep."""

    report: Report
    valid: Ints  # the clients whose numbers are finite
    kept: Tree  # of the valid clients
    bytes: int | Ints  # sent by each client of the stack


@dataclass(frozen=True)
class Combined:
    """The combined payload of a round, and the clients that contributed to it.

    Args:
        payload: the combined payload: the weighted mean, or the result of a robust rule
        mean: the plain weighted mean of the clients that are not excluded
        buffers: the merged buffers, still encoded
        clients: all valid clients, in order of their numbers
        shares: the share of each of them in the payload; 0 for a client that a rule excluded
        weights: of the clients that are not excluded, as the hook ``weight`` returned them
        agreement: how similar the update of each client is to the payload, in [0, 1]; empty unless required
        updates: what the clients sent, stacked in that order; empty unless required
    """

    payload: Tree
    mean: Tree
    buffers: Tensors
    clients: Ints
    shares: Floats
    weights: Floats
    agreement: Floats = field(default_factory=lambda: np.zeros(0))
    updates: Tree = field(default_factory=dict)

    @property
    def counted(self) -> Ints:
        """Return the clients that no rule excluded."""
        return self.clients[self.shares > 0]

    def merged_buffers(self, like: Tensors) -> Tensors:
        """Return the merged buffers; buffers that no client sent are taken from ``like``."""
        return {**like, **decode(self.buffers, like)}


@dataclass(frozen=True)
class Added:
    """What a collector has added up over some clients of a round, for another collector to merge."""

    total: float  # weight of these clients
    clients: list[Ints]
    weights: list[Floats]
    stacks: list[Tree]  # the updates themselves, for a rule that needs all
    sums: Tree


def valid_clients(updates: Updates) -> Flags:
    """Return which clients of a stack have only finite numbers; an invalid client keeps its old state."""
    return finite_clients(
        [updates.payload, {BUFFERS: updates.buffers}, updates.kept], len(updates.report.clients)
    )


class UpdateCollector:
    """Accumulates updates stack by stack, so that a round never holds more than one stack of payloads in memory.

    For a method with a robust rule, all valid updates are held until the round is over, and combined at once; for one
    that requires single updates they are held as well.
    ``weights`` is what clients count by: their rows or 1. ``mirrored`` names the parts of the client state whose mean
    the server holds.
    """

    def __init__(
        self, algorithm: Algorithm, weights: Weights, mirrored: frozenset[str] = frozenset()
    ) -> None:
        self.algorithm = algorithm
        self.weights = weights
        self.mirrored = mirrored
        self.total = 0.0
        self.aggregator = algorithm.aggregator
        self._single = "single_updates" in algorithm.requires
        self._agreement: Callable[[Tensor, Tensor], Tensor] | None = None
        if "update_agreement" in algorithm.requires:
            self._agreement = _alike_in_direction
        elif "update_distance" in algorithm.requires:
            self._agreement = _near
        self._clients: list[Ints] = []
        self._weights: list[Floats] = []
        self._stacks: list[Tree] = []
        self._sums: Tree = {}

    def __len__(self) -> int:
        return sum(map(len, self._clients))

    def add(self, updates: Updates) -> Arrived:
        """Weight a stack of updates and add it; clients with NaN or infinite numbers are excluded."""
        report = updates.report
        keep = np.flatnonzero(valid_clients(updates))
        valid = updates
        if len(keep) < len(report.clients):
            index = torch.from_numpy(keep)
            valid = Updates(
                _report_of(report, keep),
                rows_of(updates.payload, index),
                rows_of({"": updates.buffers}, index)[""],
                rows_of(updates.kept, index),
            )
        if len(keep):
            weights = self.algorithm.weight(replace(valid.report, weights=self.weights))
            self._accumulate(valid, weights)
        return Arrived(report, valid.report.clients, valid.kept, self._bytes(updates))

    def _bytes(self, updates: Updates) -> int | Ints:
        """Return the bytes that each client of a stack sends."""
        sent = _sent_by_first(updates)
        channel = self.algorithm.channel
        adapters = self.algorithm.adapters
        if adapters is None or not adapters.ranks:
            return channel.bytes(sent)
        of_ranks = [channel.bytes(narrowed(sent, rank)) for rank in adapters.ranks]
        return adapters.dealt(of_ranks, updates.report.clients)

    @property
    def added(self) -> Added:
        """Return what was added so far."""
        return Added(self.total, self._clients, self._weights, self._stacks, self._sums)

    def merge(self, other: Added) -> None:
        """Add what another collector has added up."""
        self.total += other.total
        self._clients += other.clients
        self._weights += other.weights
        self._stacks += other.stacks
        for part, tensors in other.sums.items():
            sums = self._sums.setdefault(part, {})
            for name, value in tensors.items():
                if name in sums:
                    sums[name] = sums[name].add_(value)
                else:
                    sums[name] = value

    def _accumulate(self, valid: Updates, weights: Floats) -> None:
        self.total += float(weights.sum())
        self._clients.append(valid.report.clients)
        self._weights.append(weights)
        buffers: Tree = {}
        if valid.buffers:
            buffers = {BUFFERS: encode(valid.buffers)}
        sent = {**self.aggregator.arrange(valid.payload), **buffers}
        if self._single:
            self._stacks.append({**valid.payload, **buffers})
        elif self.aggregator.needs_all or self._agreement is not None:
            self._stacks.append(sent)
        if self.aggregator.needs_all:
            return
        self._add_weighted(sent, torch.from_numpy(weights))

    def _add_weighted(self, sent: Tree, weights: Tensor) -> None:
        scales: dict[tuple[torch.device, torch.dtype], Tensor] = {}  # moved to a device once
        for part, tensors in sent.items():
            sums = self._sums.setdefault(part, {})
            for name, value in tensors.items():
                kind = (value.device, value.dtype)
                if kind not in scales:
                    scales[kind] = weights.to(value)
                term: Tensor = torch.tensordot(scales[kind], value, dims=1)
                if name in sums:
                    sums[name] = sums[name].add_(term)
                else:
                    sums[name] = term

    def result(self) -> Combined:
        """Return the combination of all added updates.

        It is computed in the order of the client numbers, so it does not depend on how the engine divided the clients.
        """
        clients = np.concatenate(self._clients)
        weights = np.concatenate(self._weights)
        order = np.argsort(clients, kind="stable")
        clients = clients[order]
        weights = weights[order]
        whole: Tree = {}
        if self._stacks:
            whole = self._whole(order)
        if self.aggregator.needs_all:
            combined = self._ruled(whole, clients, weights)
        else:
            combined = self._added_up(clients, weights)
        if self._single:
            combined = replace(combined, updates=_without_buffers(whole))
        if self._agreement is None:
            return combined
        updates, mean = _flattened(whole, combined.payload)
        agreement = np.asarray(self._agreement(updates, mean).cpu().numpy())
        return replace(combined, agreement=agreement)

    def _whole(self, order: Ints) -> Tree:
        """Return all stacks concatenated into one, with the clients in this order."""
        whole: Tree = {}
        for part, tensors in self._stacks[0].items():
            whole[part] = {}
            for name in tensors:
                whole[part][name] = torch.cat([stack[part][name] for stack in self._stacks])
        return rows_of(whole, torch.from_numpy(order))

    def _added_up(self, clients: Ints, weights: Floats) -> Combined:
        mean = _divided(self._sums, self.total)
        payload = _without_buffers(mean)
        return Combined(
            payload, payload, mean.get(BUFFERS, {}), clients, weights / self.total, weights
        )

    def _ruled(self, whole: Tree, clients: Ints, weights: Floats) -> Combined:
        """Return the result of the rule for all parts but those that must stay a mean."""
        ruled = {}
        for part, tensors in whole.items():
            if part not in self.mirrored:
                ruled[part] = tensors
        combined, share = self.aggregator.combine(ruled, _on_device(weights / self.total, whole))
        shares = share.double().cpu().numpy()
        weights = np.where(shares > 0, weights, 0.0)
        mean: Tree = {}
        if self.mirrored:
            mean = weighted_mean(
                _without_buffers(whole), _on_device(weights / weights.sum(), whole)
            )
        payload: Tree = {}
        for part, tensors in mean.items():
            if part in self.mirrored:
                payload[part] = tensors
        payload |= _without_buffers(combined)
        buffers = combined.get(BUFFERS, {})
        return Combined(payload, mean or payload, buffers, clients, shares, weights[shares > 0])


def _flattened(whole: Tree, payload: Tree) -> tuple[Tensor, Tensor]:
    """Return each client's update as a row, and the combined one."""
    updates = [value.unsqueeze(1).flatten(1) for value in whole["delta"].values()]
    combined = [payload["delta"][name].flatten() for name in whole["delta"]]
    return torch.cat(updates, 1).double(), torch.cat(combined).double()


def _alike_in_direction(updates: Tensor, combined: Tensor) -> Tensor:
    """Return ``(1 + cosine) / 2`` of each client's update and the combined one; 1/2 where one of them is zero."""
    lengths = torch.linalg.vector_norm(updates, dim=1) * torch.linalg.vector_norm(combined)
    cosine = torch.where(lengths > 0, updates @ combined / lengths, 0.0).clamp(-1, 1)
    return (1 + cosine) / 2


def _near(updates: Tensor, combined: Tensor) -> Tensor:
    """Return ``1 / (1 + q)`` with the squared distance of each update from the combined one over the latter's square.

    >>> _near(torch.tensor([[3.0, 0.0], [1.0, 2.0]]), torch.tensor([1.0, 0.0]))
    tensor([0.2000, 0.2000])
    """
    apart = (updates - combined).square().sum(1)
    square = combined.square().sum()
    total = square + apart
    return torch.where(total > 0, square / total, 1.0)


def _without_buffers(tree: Tree) -> Tree:
    return {part: tensors for part, tensors in tree.items() if part != BUFFERS}


def _on_device(weights: Floats, tree: Tree) -> Tensor:
    device = torch.device("cpu")
    if values := tensors_of(tree):
        device = values[0].device
    return torch.from_numpy(weights).to(device)


def _divided(sums: Tree, total: float) -> Tree:
    mean: Tree = {}
    for part, tensors in sums.items():
        mean[part] = {name: value / total for name, value in tensors.items()}
    return mean


def _sent_by_first(updates: Updates) -> Tree:
    """Return what the first client of a stack sends; all others send as much, but for the ranks of their adapters."""
    sent: Tree = {}
    for part, tensors in {**updates.payload, BUFFERS: updates.buffers}.items():
        sent[part] = {name: value[0] for name, value in tensors.items()}
    return sent


def _report_of(report: Report, keep: Ints) -> Report:
    """Return the report of the clients at these places."""
    chosen: dict[str, Any] = {}
    for column in fields(report):
        if column.name not in ("numbers", "weights"):
            chosen[column.name] = getattr(report, column.name)[keep]
    numbers = {name: values[keep] for name, values in report.numbers.items()}
    return replace(report, **chosen, numbers=numbers)
