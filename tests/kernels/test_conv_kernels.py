"""Convolution kernels against PyTorch's convolution, pooling and ReLU, client by client."""

from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedskew.kernels.geometry import Geometry

pytestmark = pytest.mark.skipif(
    not (torch.cuda.is_available() and find_spec("triton")),
    reason="kernels for a GPU: needs one, and Triton",
)

# clients, rows, height, width, inputs, outputs, kernel, stride, padding, dilation, pooling, ReLU, bias
CASES = [
    (2, 3, 8, 8, 3, 8, 3, 1, 1, 1, True, True, True),
    (2, 2, 9, 7, 5, 6, 3, 1, 1, 1, True, False, True),
    (1, 2, 8, 8, 4, 6, 3, 2, 1, 1, False, True, True),
    (2, 2, 8, 8, 4, 70, 1, 1, 0, 1, False, False, False),
    (2, 2, 9, 9, 3, 5, 3, 1, 2, 2, False, True, True),
    (3, 33, 28, 28, 1, 32, 5, 1, 2, 1, True, True, True),
]


def expected(x: Tensor, weight: Tensor, bias: Tensor | None, case: tuple) -> Tensor:
    """Return the outputs by plain operations, channels last."""
    stride, padding, dilation, pool, relu = case[7:12]
    found = []
    for i in range(len(x)):
        y = F.conv2d(
            x[i].movedim(-1, 1),
            weight[i],
            None if bias is None else bias[i],
            stride,
            padding,
            dilation=dilation,
        )
        y = F.max_pool2d(y, 2) if pool else y
        found.append((y.relu() if relu else y).movedim(1, -1))
    return torch.stack(found)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 3e-6), ("tf32", 3e-2)])
def test_outputs_and_gradients(case: tuple, precision: str, tolerance: float):
    from fedskew.kernels import conv_kernels as kernels

    (
        clients,
        rows,
        height,
        width,
        inputs,
        outputs,
        size,
        stride,
        padding,
        dilation,
        pool,
        relu,
        biased,
    ) = case
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(clients, rows, height, width, inputs, device="cuda", generator=generator)
    weight = torch.randn(clients, outputs, inputs, size, size, device="cuda", generator=generator)
    bias = torch.randn(clients, outputs, device="cuda", generator=generator) if biased else None
    geometry = Geometry(
        (size, size), (stride, stride), (padding, padding), (dilation, dilation), pool, relu
    )
    y, place = kernels.forward(x, weight, bias, geometry, precision)
    leaves = [value.double().requires_grad_() for value in (x, weight, bias) if value is not None]
    reference = expected(leaves[0], leaves[1], leaves[2] if biased else None, case)
    slopes = torch.randn(y.shape, device="cuda", generator=generator)
    wanted = torch.autograd.grad((reference * slopes.double()).sum(), leaves)
    cut = slopes if pool or not relu else slopes * (y > 0)
    of_weight, of_bias = kernels.weight_gradient(x, cut, place, weight, biased, geometry, precision)
    of_x = kernels.input_gradient(cut, place, weight, x.shape, geometry, precision)
    found = [of_x, of_weight, *([of_bias] if of_bias is not None else [])]
    for mine, theirs in zip([y, *found], [reference.detach(), *wanted], strict=True):
        assert float((mine.double() - theirs).norm() / theirs.norm()) < tolerance
    again = kernels.weight_gradient(x, cut, place, weight, biased, geometry, precision)[0]
    assert torch.equal(again, of_weight)  # the same bits every time
