"""What a client will send after local training: its names, shapes and bytes, known before any client has trained."""

import torch

from fedskew.algorithms.contract import Algorithm, View, overridden
from fedskew.core.trees import Tree, without
from fedskew.engine.job import STATE, parts
from fedskew.topology.collector import BUFFERS
from fedskew.topology.context import RoundContext
from fedskew.topology.participation import NUMBER
from fedskew.topology.run_state import RunState


@torch.no_grad()
def sample_payload(context: RoundContext, state: RunState) -> Tree:
    """Return a payload and buffers with the names and shapes of those that clients will send."""
    job = context.job
    one = torch.ones((), dtype=job.x.dtype, device=job.x.device)
    view = View(
        state.params,
        state.params,
        context.algorithm.broadcast(state.server_state),
        parts(context.fresh_client, STATE),
        _Ones(one=one),
        context.settings.momentum,
        class_counts=one.expand(job.classes),
        full_gradient=state.params,
    )
    buffers = {}
    for name, value in state.buffers.items():
        if name not in job.unsent:
            buffers[name] = value
    payload = without(context.algorithm.payload(view), job.unsent)
    return {**payload, BUFFERS: buffers}


def reported(algorithm: Algorithm) -> list[str]:
    """Return the numbers of clients that a method requires and the table of clients has."""
    names: list[str] = []
    for name in ("loss_before", "loss_after"):
        if name in algorithm.requires:
            names.append(name)
    return names


def reported_bytes(algorithm: Algorithm) -> int:
    """Return the size of those numbers where the server weighs clients by them.

    A method without weights of its own uses them on the client alone, as q-FedAvg does: what follows from them is in
    the payload.
    """
    if not overridden(algorithm, "weight"):
        return 0
    return len(reported(algorithm)) * NUMBER


def bytes_up(context: RoundContext, state: RunState) -> int:
    """Return the bytes that one client will send; the clock needs them before training to find late clients."""
    payload = sample_payload(context, state)
    return context.algorithm.channel.bytes(payload) + reported_bytes(context.algorithm)


class _Ones(dict[str, torch.Tensor]):
    """Returns 1 for every number that a hook may read."""

    def __missing__(self, name: str) -> torch.Tensor:
        return self["one"]
