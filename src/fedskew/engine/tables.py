"""Row numbers and image moves of a plan, drawn on the device with the same counter-based streams as on the host."""

import numpy as np
import torch
from torch import Tensor

from fedskew.core.device_streams import hashed, shifted
from fedskew.core.streams import Ints
from fedskew.engine.plan import Plan

# Of a plan's clients on the device
COLUMNS = ("clients", "first", "sizes", "batch", "steps", "steps_per_epoch")
_LAST = 1 << 40  # larger than all keys


def stream_words(plan: Plan, purpose: str) -> Ints:
    """Return the state of every client's random stream before its number, as signed numbers of 64 bits."""
    return np.broadcast_to(plan.streams(purpose).view(np.int64), plan.clients.shape)


def row_table(
    plan: Tensor, words: Tensor, rows: Tensor, steps: int, width: int, epochs: int, longest: int
) -> tuple[Tensor, Tensor]:
    """Return row numbers ``[step, client, slot]`` and batch sizes ``[step, client]``, as ``Plan.table`` has positions.

    Args:
        plan: one row for each of ``COLUMNS``; a client with 0 steps is not there
        words: the states of the clients' random streams, from ``stream_words``
        rows: the rows of all clients, one after the other
        steps: how many steps the table has room for; ``width``, ``epochs`` and ``longest`` (most rows of a client)
            likewise
    """
    client, first, size, batch, taken, per_epoch = plan
    device = plan.device
    position = torch.arange(longest, device=device)
    segments = hashed(hashed(words, client)[:, None], torch.arange(epochs, device=device))
    keys = shifted(hashed(segments[..., None], position), 24)
    key = torch.where(position < size[:, None, None], keys, _LAST)
    order = key.argsort(dim=-1, stable=True).flatten(1)
    step = torch.arange(steps, device=device)[:, None]
    within = step % per_epoch
    count = torch.where(step < taken, torch.minimum(batch, size - within * batch), 0)
    begin = torch.where(count > 0, step // per_epoch * longest + within * batch, 0)
    slot = torch.arange(width, device=device)
    index = begin[..., None] + torch.where(slot < count[..., None], slot, 0)
    chosen = (
        order.gather(1, index.transpose(0, 1).flatten(1))
        .view(len(client), steps, width)
        .transpose(0, 1)
    )
    return rows[first[:, None] + chosen], count


def move_words(plan: Tensor, words: Tensor, steps: int, width: int) -> Tensor:
    """Return the random words of image moves, ``[step, client, slot]``."""
    step = torch.arange(steps, device=plan.device)
    slot = torch.arange(width, device=plan.device)
    steps_of = hashed(hashed(words, plan[0])[None, :], step[:, None])
    return hashed(steps_of[..., None], slot)
