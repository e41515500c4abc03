"""What a client will send after local training: its names, shapes and bytes, known before any client has trained."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from fedskew.algorithms.contract import Algorithm, View, overridden
from fedskew.core.streams import Ints
from fedskew.core.trees import Tensors, Tree, one_client, size_in_bytes, without
from fedskew.engine.features import no_class_sums
from fedskew.engine.job import CHOSEN, STATE, Job, candidates_of, number_of_candidates, parts
from fedskew.models.low_rank import found_factors, narrowed
from fedskew.topology.collector import BUFFERS
from fedskew.topology.context import RoundContext
from fedskew.topology.participation import NUMBER
from fedskew.topology.run_state import RunState

NUMBERS = "numbers"  # the part of an answer with numbers for the table of clients


@torch.no_grad()
def sample_payload(context: RoundContext, state: RunState) -> Tree:
    """Return a payload and buffers with the names and shapes of those that clients will send."""
    job = context.job
    one = torch.ones((), dtype=job.scalar.dtype, device=job.x.device)
    sent_along = job.algorithm.broadcast(state.server_state)
    answer = sample_answer(job.algorithm, state)
    view = View(
        state.params,
        state.params,
        sent_along,
        parts(context.fresh_client, STATE),
        _Ones(one=one),
        context.settings.momentum,
        class_counts=one.expand(job.classes),
        full_gradient=state.params,
        sent=job.sent,
        class_features=_no_features(job),
        answer=answer,
    )
    compared = models_compared(job.algorithm, state)
    if compared:
        view = replace(view, candidate_losses=job.scalar.new_ones(compared))
    buffers = {}
    for name, value in state.buffers.items():
        if name not in job.unsent:
            buffers[name] = value
    payload = without(context.algorithm.payload(view), job.unsent)
    return {**payload, BUFFERS: buffers}


def sample_answer(algorithm: Algorithm, state: RunState) -> Tree:
    """Return what the server sends the first client alone, without the numbers of its table."""
    answer = one_client(algorithm.answer(state.server_state, np.zeros(1, dtype=np.int64)))
    answer.pop(NUMBERS, None)
    return answer


def models_compared(algorithm: Algorithm, state: RunState) -> int:
    """Return under how many models a client finds its loss before it trains, to choose from them."""
    if "candidate_losses" not in algorithm.requires:
        return 0
    sent_along = algorithm.broadcast(state.server_state)
    return number_of_candidates(candidates_of(sent_along, sample_answer(algorithm, state)))


def _no_features(job: Job) -> Tensors:
    """Return sums of features by class, of a client without rows, for methods that require them."""
    if "class_features" not in job.algorithm.requires:
        return {}
    classes, width = job.feature_shape
    return no_class_sums(job.scalar, classes, width)


def reported(algorithm: Algorithm) -> list[str]:
    """Return the numbers of clients that a method requires and the table of clients has."""
    names: list[str] = []
    for name in ("loss_before", "loss_after"):
        if name in algorithm.requires:
            names.append(name)
    if "candidate_losses" in algorithm.requires and algorithm.no_shared_model:
        names.append(CHOSEN)
    return names


def largest_reported(context: RoundContext, state: RunState) -> dict[str, float]:
    """Return these numbers with the largest that each may be."""
    largest = dict.fromkeys(reported(context.algorithm), np.inf)
    if CHOSEN in largest:
        largest[CHOSEN] = models_compared(context.algorithm, state) - 1
    return largest


def reported_bytes(algorithm: Algorithm) -> int:
    """Return the size of those numbers where the server weighs clients by them.

    A method without weights of its own uses them on the client alone, as q-FedAvg does: what follows from them is in
    the payload.
    """
    if not overridden(algorithm, "weight"):
        return 0
    return len(reported(algorithm)) * NUMBER


def bytes_down(context: RoundContext, state: RunState, rank: int | None = None) -> int:
    """Return the bytes that one client receives; weights in an answer are sent in place of the global ones.

    Factors that the server finds are not among them: clients receive these once. ``rank`` is that of the client's
    adapters, where clients have different ones.
    """
    job = context.job
    answer = sample_answer(job.algorithm, state)
    elsewhere = answer.get("model", {}).keys() | found_factors(job.model)
    weights: Tensors = {}
    for name, value in state.leaving(job.local_names).items():
        if name not in elsewhere:
            weights[name] = value
    sent = {"weights": weights}
    if rank is not None:
        sent = narrowed(sent, rank)
    sent_along = job.algorithm.broadcast(state.server_state)
    return size_in_bytes(sent) + size_in_bytes(sent_along) + size_in_bytes(answer)


def bytes_up(context: RoundContext, state: RunState, rank: int | None = None) -> int:
    """Return the bytes that one client will send; the clock needs them before training to find late clients."""
    payload = sample_payload(context, state)
    if rank is not None:
        payload = narrowed(payload, rank)
    return context.algorithm.channel.bytes(payload) + reported_bytes(context.algorithm)


def bytes_by_rank(
    context: RoundContext, state: RunState
) -> Callable[[Ints], tuple[Ints, Ints]] | None:
    """Return what gives the bytes that each client receives and sends, by their ranks; None where all have the same."""
    adapters = context.algorithm.adapters
    if adapters is None or not adapters.ranks:
        return None
    down = [bytes_down(context, state, rank) for rank in adapters.ranks]
    up = [bytes_up(context, state, rank) for rank in adapters.ranks]

    def of_clients(clients: Ints) -> tuple[Ints, Ints]:
        return adapters.dealt(down, clients), adapters.dealt(up, clients)

    return of_clients


class _Ones(dict[str, torch.Tensor]):
    """Returns 1 for every number that a hook may read."""

    def __missing__(self, name: str) -> torch.Tensor:
        return self["one"]
