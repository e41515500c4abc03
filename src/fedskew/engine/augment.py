"""Random crops and flips of the images in training batches, on the device where they are.

The numbers are functions of (seed, round, client, step, slot), like the batches of a plan: a client's images are
bit-identical in every engine and do not depend on the other clients.
"""

from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedskew.core.errors import FedskewError
from fedskew.core.streams import Stream, longer
from fedskew.engine.plan import Plan

Augment: TypeAlias = Literal["none", "crop", "flip", "crop+flip"]

PAD = 4  # zeros on every side of an image before it is cropped to its old size
_CHOICES = 2 * PAD + 1
_FIELD, _WIDTH = 0xFFFFF, 20  # a shift is made of 20 bits of a word


def check_images(how: Augment, shape: tuple[int, ...]) -> None:
    """Raise an error if augmentation is set for rows that are not images; ``shape`` is that of one row."""
    if how != "none" and len(shape) != 3:
        raise FedskewError(
            f"augment={how} needs images of shape (channels, height, width), got rows of shape {shape}: leave it out"
        )


def draw_moves(how: Augment, plan: Plan, device: torch.device) -> Tensor | None:
    """Return shifts down, shifts right and flips for every slot of a plan, as ``[3, step, client, slot]``.

    The axes after the first are those of ``plan.table()``, so ``augment(x, *moves[:, step, client, :count])`` is the
    batch of one client at one step. Shifts go from 0 to ``2 * PAD``; without random crops all are ``PAD``, which
    moves nothing. For "none" there are no moves: the result is None.
    """
    if how == "none":
        return None
    step = np.arange(int(plan.steps.max()))[:, None, None]
    slot = np.arange(int(plan.batch.max()))
    streams = longer(plan.streams("augment"), plan.clients)[:, None]
    words = longer(longer(streams, step), slot)
    return moves_of(torch.from_numpy(words.view(np.int64)).to(device), how)


def schedule_moves(
    how: Augment, seed: int, round: int, samples: int, device: torch.device
) -> Tensor | None:
    """Return the same for every sample of a schedule, by its place in it, as ``[3, sample]``."""
    if how == "none":
        return None
    words = Stream(seed, "augment", round).bits(samples)
    return moves_of(torch.from_numpy(words.view(np.int64)).to(device), how)


def moves_of(words: Tensor, how: Augment) -> Tensor:
    """Return shifts down, shifts right and flips from random words of 64 bits."""
    if "crop" in how:
        down = _shift(words >> 44)
        right = _shift(words >> 24)
    else:
        down = right = words * 0 + PAD
    if "flip" in how:
        mirrored = words & 1
    else:
        mirrored = words * 0
    return torch.stack([down, right, mirrored]).to(torch.uint8)


def _shift(words: Tensor) -> Tensor:
    """Return a shift from 0 to ``2 * PAD`` from the lowest bits of random words."""
    return (words & _FIELD) * _CHOICES >> _WIDTH


def augment(x: Tensor, down: Tensor, right: Tensor, flip: Tensor) -> Tensor:
    """Return the images ``x``, of shape ``[..., channels, height, width]``, each moved by its own numbers.

    An image is padded with ``PAD`` zeros on every side, and the piece of its old size that begins at row ``down`` and
    column ``right`` is taken; where ``flip`` is not 0, that piece is mirrored from left to right.
    """
    channels, height, width = x.shape[-3:]
    rows = torch.arange(height, device=x.device)
    columns = torch.arange(width, device=x.device)
    columns = torch.where(flip.flatten()[:, None] != 0, columns.flip(0), columns)
    rows = rows + down.flatten().long()[:, None] - PAD
    columns = columns + right.flatten().long()[:, None] - PAD
    row_inside = (rows >= 0) & (rows < height)
    column_inside = (columns >= 0) & (columns < width)
    inside = row_inside[:, :, None] & column_inside[:, None, :]
    index = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None, :]
    index = index.flatten(1)[:, None].expand(-1, channels, -1)
    moved = x.reshape(-1, channels, height * width).gather(2, index)
    moved = moved.view(-1, channels, height, width)
    return torch.where(inside[:, None], moved, 0).view(x.shape)
