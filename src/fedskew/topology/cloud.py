"""The cloud above edge servers: one model from those of the edges."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedskew.aggregation.mean import Aggregator, weighted_mean
from fedskew.batchnorm.masked import decode, encode
from fedskew.core.streams import Floats
from fedskew.core.trees import Tensors, Tree
from fedskew.engine.job import parts, prefixed
from fedskew.topology.collector import BUFFERS
from fedskew.topology.run_state import SERVER, RunState

_CHANGES = "delta"


@dataclass(frozen=True)
class Cloud:
    """How the cloud combines the states of edges.

    Args:
        rule: how it combines the changes of their models
        mirrored: parts of the server state that are means over all clients
        unsent: names of the weights and buffers that no client sends
    """

    rule: Aggregator
    mirrored: frozenset[str]
    unsent: Collection[str]

    def combined(
        self, since: RunState, edges: list[RunState], weights: Floats, totals: Floats
    ) -> RunState:
        """Return the state of the cloud from those of the edges, which all began with ``since``.

        ``weights`` are those of the updates that each edge has added up, ``totals`` those of all its clients.
        """
        active = np.flatnonzero(weights)
        if not len(active) or len(active) < self.rule.least_updates:
            return self._without_changes(since, edges, totals)
        sent = []
        for place in active:
            sent.append(self._sent(since, edges[place]))
        payloads = _stacked(sent)
        shares = _shares(weights[active], payloads)
        combined, _ = self.rule.combine(payloads, shares)
        server_state = parts(combined, SERVER)
        if self.mirrored:
            server_state |= self._means(edges, totals)
        params = dict(since.params)
        for name, change in combined[_CHANGES].items():
            params[name] = params[name] + change
        buffers = {**since.buffers, **decode(combined[BUFFERS], since.buffers)}
        ordered = {part: server_state[part] for part in since.server_state}
        return RunState(params, buffers, ordered, since.round)

    def _without_changes(self, since: RunState, edges: list[RunState], totals: Floats) -> RunState:
        """Return the state since which edges have sent too little: only means over all clients move, as these keep."""
        if not self.mirrored:
            return since
        server_state = {**since.server_state, **self._means(edges, totals)}
        return RunState(since.params, since.buffers, server_state, since.round)

    def _sent(self, since: RunState, edge: RunState) -> Tree:
        """Return what an edge sends, in the form in which it is combined."""
        changes: Tensors = {}
        for name, value in edge.shared(self.unsent).items():
            changes[name] = value - since.params[name]
        buffers: Tensors = {}
        for name, value in edge.buffers.items():
            if name not in self.unsent:
                buffers[name] = value
        others: Tree = {}
        for part, tensors in edge.server_state.items():
            if part not in self.mirrored:
                others[part] = tensors
        return {_CHANGES: changes, BUFFERS: encode(buffers), **prefixed(others, SERVER)}

    def _means(self, edges: list[RunState], totals: Floats) -> Tree:
        """Return the parts of the server state that are means over all clients, also over those of idle edges."""
        kept = []
        for edge in edges:
            kept.append({part: edge.server_state[part] for part in sorted(self.mirrored)})
        payloads = _stacked(kept)
        return weighted_mean(payloads, _shares(totals, payloads))


def _stacked(trees: list[Tree]) -> Tree:
    """Return one tree with the tensors of all trees stacked."""
    result: Tree = {}
    for part, tensors in trees[0].items():
        result[part] = {}
        for name in tensors:
            result[part][name] = torch.stack([tree[part][name] for tree in trees])
    return result


def _shares(weights: Floats, payloads: Tree) -> Tensor:
    """Return weights that sum to 1, on the device of the payloads."""
    device = torch.device("cpu")
    for tensors in payloads.values():
        for value in tensors.values():
            device = value.device
    return torch.from_numpy(weights / weights.sum()).to(device)
