"""What follows a matrix product of stacked clients on a GPU, in one kernel each (Triton).

Tensors are ``[client, output, row]`` in memory, as the layers of a stack make them.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST_CLASSES = 2048  # that the kernel for slopes holds at once


@triton.jit
def _slopes(
    z,
    y,
    share,
    o,
    ROWS,
    each,
    K: tl.constexpr,
    BK: tl.constexpr,
    BR: tl.constexpr,
    SHARED: tl.constexpr,
):
    client = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * BR + tl.arange(0, BR)
    k = tl.arange(0, BK)
    there = row < ROWS
    at = client * K * ROWS + k[:, None] * ROWS + row[None, :]
    inside = there[None, :] & (k[:, None] < K)
    logits = tl.load(z + at, mask=inside, other=-float("inf"))
    raised = tl.exp(logits - tl.max(logits, 0)[None, :])
    label = tl.load(y + client * ROWS + row, mask=there, other=0)
    found = raised / tl.sum(raised, 0)[None, :] - (k[:, None] == label[None, :]).to(tl.float32)
    if SHARED:
        found *= tl.load(share + client * ROWS + row, mask=there, other=0.0)[None, :]
    else:
        found *= each
    tl.store(o + at, found, mask=inside)


@triton.jit
def _bias_relu(y, b, ROWS, BLOCK: tl.constexpr):
    line = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(y + line * ROWS + row, mask=row < ROWS) + tl.load(b + line)
    tl.store(y + line * ROWS + row, tl.where(value < 0, 0.0, value), mask=row < ROWS)


def class_slopes(outputs: Tensor, targets: Tensor, share: "float | Tensor") -> Tensor:
    """Return the gradient of cross-entropy times each row's share, for outputs ``[client, row, class]`` in float32."""
    clients, rows, classes = outputs.shape
    flat = outputs.mT.contiguous()
    found = torch.empty(clients, classes, rows, device=outputs.device)
    shared = isinstance(share, Tensor)
    width = 1 << max(0, classes - 1).bit_length()
    block = max(16, min(128, 4096 // width))
    if isinstance(share, Tensor):
        weights = share.contiguous()
    else:
        weights = flat
    if isinstance(share, Tensor):
        each = 0.0
    else:
        each = share
    _slopes[clients, triton.cdiv(rows, block)](
        flat,
        targets.contiguous(),
        weights,
        found,
        rows,
        each,
        K=classes,
        BK=width,
        BR=block,
        SHARED=shared,
    )
    return found.mT


def bias_relu_(y: Tensor, bias: Tensor) -> None:
    """Add a bias ``[client, output]`` to ``[client, output, row]`` and cut off what is below 0, in place."""
    clients, outputs, rows = y.shape
    block = min(256, max(16, 1 << max(0, rows - 1).bit_length()))
    _bias_relu[clients * outputs, triton.cdiv(rows, block)](y, bias.contiguous(), rows, BLOCK=block)
