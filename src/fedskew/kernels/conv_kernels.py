"""Convolutions of stacked clients on a GPU, with bias, 2x2 max-pooling and ReLU in the same kernel (Triton).

Images are channels last, ``[client, row, height, width, channel]``, and every client has weights of its own. A
convolution is a matrix product whose left side is read from the image as it is needed. With pooling, the four pixels
of a window are neighbours in that product: only the largest is stored, with its place in the window, and the gradient
before pooling exists in registers only. Sums over rows are split into a fixed number of parts, which are added in
order: the same bits every time.
"""

from typing import Any, Literal, TypeAlias

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedskew.kernels.geometry import Geometry

PART = 1024  # rows in a part of a sum, unless that would be more than 32 parts

Precision: TypeAlias = Literal["float32", "tf32", "bf16"]
Kind: TypeAlias = Literal["forward", "input", "weight"]

# Precision of products, rows and depth of a tile, warps and stages: the fastest on one H200. Three products of tf32
# have the precision of one of float32.
_TILES: dict[tuple[Precision, Kind], tuple[str, int, int, int, int]] = {
    ("float32", "forward"): ("tf32x3", 128, 32, 4, 3),
    ("float32", "input"): ("tf32x3", 64, 64, 4, 2),
    ("float32", "weight"): ("ieee", 64, 64, 4, 2),
    ("tf32", "forward"): ("tf32", 256, 32, 4, 2),
    ("tf32", "input"): ("tf32", 128, 32, 4, 2),
    ("tf32", "weight"): ("tf32", 128, 64, 4, 2),
    ("bf16", "forward"): ("tf32", 128, 32, 4, 3),
    ("bf16", "input"): ("tf32", 64, 64, 4, 2),
    ("bf16", "weight"): ("tf32", 128, 64, 4, 2),
}
_SHALLOW = (
    32,
    32,
)  # rows and depth of a tile for the gradient of weights, where there are no more than 32 for an output


@triton.jit
def _forward(
    x, w, b, y, place, H, W, OH, OW, M,
    CI: tl.constexpr, CO: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr, BIAS: tl.constexpr, POOL: tl.constexpr,
    RELU: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    co = tl.program_id(2) * BN + tl.arange(0, BN)
    K: tl.constexpr = KH * KW * CI
    if POOL:
        window = m // 4
        t = window // (OW // 2)
        oh = t % (OH // 2) * 2 + m % 4 // 2
        ow = window % (OW // 2) * 2 + m % 2
        n = t // (OH // 2)
        images = M // 4 // ((OH // 2) * (OW // 2))
    else:
        ow = m % OW
        oh = m // OW % OH
        n = m // (OW * OH)
        images = M // (OW * OH)
    xc = x + client * images * H * W * CI
    wc = w + client * K * CO
    top = oh * SH - PH
    left = ow * SW - PW
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        tap = k // CI
        h = top[:, None] + (tap // KW * DH)[None, :]
        v = left[:, None] + (tap % KW * DW)[None, :]
        inside = (m[:, None] < M) & (k[None, :] < K) & (h >= 0) & (h < H) & (v >= 0) & (v < W)
        left_side = tl.load(
            xc + ((n[:, None] * H + h) * W + v) * CI + (k % CI)[None, :], mask=inside, other=0.0
        )
        right = tl.load(
            wc + k[:, None] * CO + co[None, :],
            mask=(k[:, None] < K) & (co[None, :] < CO),
            other=0.0,
        )
        acc = tl.dot(left_side, right, acc, input_precision=PREC)
    if BIAS:
        acc += tl.load(b + client * CO + co, mask=co < CO, other=0.0).to(tl.float32)[None, :]
    if POOL:
        rows = tl.program_id(0) * (BM // 4) + tl.arange(0, BM // 4)
        best, where = tl.max(tl.reshape(acc, (BM // 4, 4, BN)), axis=1, return_indices=True)
        at = client * (M // 4) * CO + rows[:, None] * CO + co[None, :]
        there = (rows[:, None] < M // 4) & (co[None, :] < CO)
        if RELU:
            where = tl.where(best > 0, where, 4)
            best = tl.where(best < 0, 0.0, best)
        tl.store(y + at, best.to(y.dtype.element_ty), mask=there)
        tl.store(place + at, where.to(tl.uint8), mask=there)
    else:
        if RELU:
            acc = tl.where(acc < 0, 0.0, acc)
        at = client * M * CO + m[:, None] * CO + co[None, :]
        tl.store(y + at, acc.to(y.dtype.element_ty), mask=(m[:, None] < M) & (co[None, :] < CO))


@triton.jit
def _input_gradient(
    d, place, w, o, H, W, OH, OW, M,
    CI: tl.constexpr, CO: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr, POOL: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    ci = tl.program_id(2) * BN + tl.arange(0, BN)
    K: tl.constexpr = KH * KW * CO
    v = m % W
    h = m // W % H
    n = m // (W * H)
    images = M // (W * H)
    if POOL:
        pixels = (OH // 2) * (OW // 2)
    else:
        pixels = OH * OW
    dc = d + client * images * pixels * CO
    pc = place + client * images * pixels * CO
    wc = w + client * K * CI
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        tap = k // CO
        co = k % CO
        down = h[:, None] + PH - (tap // KW * DH)[None, :]
        right = v[:, None] + PW - (tap % KW * DW)[None, :]
        oh = down // SH
        ow = right // SW
        inside = (
            (m[:, None] < M) & (k[None, :] < K) & (down >= 0) & (right >= 0) & (oh < OH) & (ow < OW)
        )
        if SH * SW > 1:
            inside = inside & (down % SH == 0) & (right % SW == 0)
        if POOL:
            inside = inside & (oh // 2 < OH // 2) & (ow // 2 < OW // 2)
            at = ((n[:, None] * (OH // 2) + oh // 2) * (OW // 2) + ow // 2) * CO + co[None, :]
            chosen = tl.load(pc + at, mask=inside, other=4) == oh % 2 * 2 + ow % 2
            left_side = tl.load(dc + at, mask=inside & chosen, other=0.0)
        else:
            left_side = tl.load(
                dc + ((n[:, None] * OH + oh) * OW + ow) * CO + co[None, :], mask=inside, other=0.0
            )
        weights = tl.load(
            wc + k[:, None] * CI + ci[None, :],
            mask=(k[:, None] < K) & (ci[None, :] < CI),
            other=0.0,
        )
        acc = tl.dot(left_side, weights, acc, input_precision=PREC)
    at = client * M * CI + m[:, None] * CI + ci[None, :]
    tl.store(o + at, acc.to(o.dtype.element_ty), mask=(m[:, None] < M) & (ci[None, :] < CI))


@triton.jit
def _weight_gradient(
    x, d, place, o, ob, H, W, OH, OW, M,
    CI: tl.constexpr, CO: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr, BIAS: tl.constexpr, POOL: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BLOCKS: tl.constexpr,
    PART: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    part = tl.program_id(2)
    block = tl.program_id(0) // BLOCKS
    K: tl.constexpr = KH * KW * CI
    k = block * BK + tl.arange(0, BK)
    co = tl.program_id(0) % BLOCKS * BN + tl.arange(0, BN)
    tap = k // CI
    shift_h = tap // KW * DH - PH
    shift_v = tap % KW * DW - PW
    if POOL:
        images = M // 4 // ((OH // 2) * (OW // 2))
        dc = d + client * (M // 4) * CO
        pc = place + client * (M // 4) * CO
    else:
        images = M // (OH * OW)
        dc = d + client * M * CO
        pc = place
    xc = x + client * images * H * W * CI
    acc = tl.zeros((BK, BN), tl.float32)
    total = tl.zeros((BN,), tl.float32)
    for first in range(0, PART, BM):
        step = first + tl.arange(0, BM)
        m = part * PART + step
        real = (step < PART) & (m < M)
        if POOL:
            window = m // 4
            t = window // (OW // 2)
            oh = t % (OH // 2) * 2 + m % 4 // 2
            ow = window % (OW // 2) * 2 + m % 2
            n = t // (OH // 2)
            at = window[:, None] * CO + co[None, :]
            there = real[:, None] & (co[None, :] < CO)
            chosen = tl.load(pc + at, mask=there, other=4) == (m % 4)[:, None]
            slopes = tl.load(dc + at, mask=there & chosen, other=0.0)
        else:
            ow = m % OW
            oh = m // OW % OH
            n = m // (OW * OH)
            slopes = tl.load(
                dc + m[:, None] * CO + co[None, :],
                mask=real[:, None] & (co[None, :] < CO),
                other=0.0,
            )
        h = (oh * SH)[None, :] + shift_h[:, None]
        v = (ow * SW)[None, :] + shift_v[:, None]
        inside = real[None, :] & (k[:, None] < K) & (h >= 0) & (h < H) & (v >= 0) & (v < W)
        pixels = tl.load(
            xc + ((n[None, :] * H + h) * W + v) * CI + (k % CI)[:, None], mask=inside, other=0.0
        )
        acc = tl.dot(pixels, slopes, acc, input_precision=PREC)
        if BIAS:
            total += tl.sum(slopes.to(tl.float32), 0)
    row = part * tl.num_programs(1) + client
    tl.store(
        o + row * K * CO + k[:, None] * CO + co[None, :],
        acc,
        mask=(k[:, None] < K) & (co[None, :] < CO),
    )
    if BIAS:
        tl.store(ob + row * CO + co, total, mask=(co < CO) & (block == 0))


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, precision: Precision
) -> tuple[Tensor, Tensor]:
    """Return the outputs, pooled and cut off if the geometry says so, and the places of the largest in their windows.

    Args:
        x: images ``[client, row, height, width, channel]``
        weight: weights ``[client, output, input, height, width]``, as a module has them
        bias: ``[client, output]``, or none
        geometry: of the convolution
        precision: of products
    """
    clients, rows, height, width, inputs = x.shape
    outputs = weight.shape[1]
    high, wide = geometry.outputs(height, width)
    flat = weight.permute(0, 3, 4, 2, 1).contiguous()
    if geometry.pool:
        shape = (clients, rows, high // 2, wide // 2, outputs)
    else:
        shape = (clients, rows, high, wide, outputs)
    y = x.new_empty(shape)
    place = torch.empty(shape if geometry.pool else (1,), dtype=torch.uint8, device=x.device)
    if geometry.pool:
        count = rows * (high // 2) * (wide // 2) * 4
    else:
        count = rows * high * wide
    tiles, launch = _tiles(precision, "forward", outputs)
    tiles["BK"] = min(
        tiles["BK"],
        max(16, 1 << (geometry.kernel[0] * geometry.kernel[1] * inputs - 1).bit_length()),
    )
    grid = (triton.cdiv(count, tiles["BM"]), clients, triton.cdiv(outputs, tiles["BN"]))
    _forward[grid](
        x, flat, flat if bias is None else bias.contiguous(), y, place, height, width, high, wide, count,
        CI=inputs, CO=outputs, **_constants(geometry), BIAS=bias is not None, POOL=geometry.pool, RELU=geometry.relu,
        **tiles, **launch,
    )  # fmt: skip
    return y, place


def input_gradient(
    d: Tensor,
    place: Tensor,
    weight: Tensor,
    shape: torch.Size,
    geometry: Geometry,
    precision: Precision,
) -> Tensor:
    """Return the gradient of the images, whose shape is given, from that of the outputs."""
    clients, rows, height, width, inputs = shape
    outputs = weight.shape[1]
    high, wide = geometry.outputs(height, width)
    flat = weight.permute(0, 3, 4, 1, 2).contiguous()
    found = d.new_empty(shape)
    count = rows * height * width
    tiles, launch = _tiles(precision, "input", inputs)
    grid = (triton.cdiv(count, tiles["BM"]), clients, triton.cdiv(inputs, tiles["BN"]))
    _input_gradient[grid](
        d, place, flat, found, height, width, high, wide, count, CI=inputs, CO=outputs, **_constants(geometry),
        POOL=geometry.pool, **tiles, **launch,
    )  # fmt: skip
    return found


def weight_gradient(
    x: Tensor,
    d: Tensor,
    place: Tensor,
    weight: Tensor,
    bias: bool,
    geometry: Geometry,
    precision: Precision,
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of weights and bias, in float32."""
    clients, rows, height, width, inputs = x.shape
    outputs = weight.shape[1]
    kernel_high, kernel_wide = geometry.kernel
    high, wide = geometry.outputs(height, width)
    if geometry.pool:
        count = rows * (high // 2) * (wide // 2) * 4
    else:
        count = rows * high * wide
    depth = kernel_high * kernel_wide * inputs
    tiles, launch = _tiles(precision, "weight", outputs)
    if depth <= _SHALLOW[1]:
        tiles["BM"], tiles["BK"] = _SHALLOW
    parts = max(1, min(count // PART, 32))
    part = triton.cdiv(triton.cdiv(count, parts), tiles["BM"]) * tiles["BM"]
    parts = triton.cdiv(count, part)
    sums = torch.empty(parts, clients, depth, outputs, device=x.device)
    bias_sums = torch.empty(parts, clients, outputs, device=x.device)
    blocks = triton.cdiv(outputs, tiles["BN"])
    grid = (triton.cdiv(depth, tiles["BK"]) * blocks, clients, parts)
    _weight_gradient[grid](
        x, d, place, sums, bias_sums, height, width, high, wide, count, CI=inputs, CO=outputs, **_constants(geometry),
        BIAS=bias, POOL=geometry.pool, **tiles, BLOCKS=blocks, PART=part, **launch,
    )  # fmt: skip
    total = sums.sum(0).view(clients, kernel_high, kernel_wide, inputs, outputs)
    return total.permute(0, 4, 3, 1, 2).contiguous(), bias_sums.sum(0) if bias else None


def _constants(geometry: Geometry) -> dict[str, Any]:
    names = ("KH", "KW", "SH", "SW", "PH", "PW", "DH", "DW")
    values = (*geometry.kernel, *geometry.stride, *geometry.padding, *geometry.dilation)
    return dict(zip(names, values, strict=True))


def _tiles(
    precision: Precision, kind: Kind, channels: int
) -> tuple[dict[str, int], dict[str, Any]]:
    """Return the sizes of a tile, as wide as the channels from 16 to 64, and how a kernel is launched."""
    products, rows, depth, warps, stages = _TILES[precision, kind]
    width = min(64, max(16, 1 << (channels - 1).bit_length()))
    return {"BM": rows, "BN": width, "BK": depth}, {
        "PREC": products,
        "num_warps": warps,
        "num_stages": stages,
    }
