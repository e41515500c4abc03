"""BatchNorm: masked batches against nn.BatchNorm on the real rows, and running statistics merged as a mixture."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from fedskew.batchnorm.masked import (
    Mask,
    MaskedBatchNorm,
    check_layers,
    decode,
    encode,
    has_batch_norm,
    maskable,
)
from fedskew.core.errors import FedskewError

LAYERS = {
    "1d": (nn.BatchNorm1d(3), (3,)),
    "1d over time": (nn.BatchNorm1d(3), (3, 4)),
    "2d": (nn.BatchNorm2d(3), (3, 2, 2)),
    "3d": (nn.BatchNorm3d(3), (3, 2, 1, 2)),
    "no affine": (nn.BatchNorm2d(3, affine=False), (3, 2, 2)),
    "cumulative": (nn.BatchNorm1d(3, momentum=None), (3,)),
    "cumulative 2d": (nn.BatchNorm2d(3, momentum=None), (3, 2, 2)),
    "no statistics": (nn.BatchNorm1d(3, track_running_stats=False), (3,)),
    "no bias": (nn.BatchNorm1d(3), (3,)),
    "own eps and momentum": (nn.BatchNorm1d(3, eps=0.1, momentum=0.7), (3,)),
}
LAYERS["no bias"][0].register_parameter("bias", None)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("layer", "shape"), LAYERS.values(), ids=LAYERS.keys())
def test_masked_batch_norm_is_batch_norm_on_the_real_rows(
    layer: nn.Module, shape: tuple[int, ...], masked: bool
):
    generator = torch.Generator().manual_seed(0)
    theirs = nn.Sequential(
        nn.Sequential(copy.deepcopy(layer).double()), nn.Flatten()
    ).train()  # nested, as in real models
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    ours, mask = maskable(theirs)
    assert isinstance(ours[0][0], MaskedBatchNorm)
    for step in range(3):
        x = 5 + 2 * torch.randn(6, *shape, generator=generator, dtype=torch.float64)
        real = (
            torch.tensor([True, False, True, True, step > 0, False])
            if masked
            else torch.ones(6, dtype=torch.bool)
        )
        mask.rows = real.double() if masked else None
        mine, yours = x.clone().requires_grad_(), x[real].clone().requires_grad_()
        out, expected = ours(mine)[real], theirs(yours)
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-10)
        slope = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
        grads = torch.autograd.grad((out * slope).sum(), [mine, *ours.parameters()])
        wanted = torch.autograd.grad((expected * slope).sum(), [yours, *theirs.parameters()])
        torch.testing.assert_close(grads[0][real], wanted[0], rtol=0, atol=1e-10)
        assert not grads[0][~real].any()
        for left, right in zip(grads[1:], wanted[1:], strict=True):
            torch.testing.assert_close(left, right, rtol=0, atol=1e-10)
        assert dict(ours.named_buffers()).keys() == dict(theirs.named_buffers()).keys()
        for name, value in theirs.named_buffers():  # running mean, variance and counter
            torch.testing.assert_close(ours.get_buffer(name), value, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("layer", "shape"), LAYERS.values(), ids=LAYERS.keys())
def test_in_evaluation_mode_it_is_batch_norm_too(layer: nn.Module, shape: tuple[int, ...]):
    theirs = nn.Sequential(copy.deepcopy(layer).double())
    ours, _ = maskable(theirs)
    x = 5 + 2 * torch.randn(
        6, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    for model in (ours, theirs):
        model.train()(x)
        model.eval()
    torch.testing.assert_close(ours(x + 1), theirs(x + 1), rtol=0, atol=1e-10)
    for name, value in theirs.named_buffers():
        torch.testing.assert_close(ours.get_buffer(name), value, rtol=0, atol=1e-10)


def test_a_bare_layer_and_a_shared_layer_are_replaced():
    assert isinstance(maskable(nn.BatchNorm1d(2))[0], MaskedBatchNorm)
    layer = nn.BatchNorm1d(2)
    shared, _ = maskable(nn.Sequential(layer, nn.ReLU(), layer, nn.Sequential(layer)))
    assert isinstance(shared[0], MaskedBatchNorm)
    assert shared[0] is shared[2] is shared[3][0]
    assert isinstance(layer, nn.BatchNorm1d)  # the model that was given stays as it is


def test_which_models_have_batch_norm():
    assert has_batch_norm(nn.Sequential(nn.Sequential(nn.BatchNorm2d(2))))
    assert not has_batch_norm(nn.Sequential(nn.GroupNorm(1, 2), nn.LayerNorm(2)))


def test_instance_norm_with_statistics_is_refused():
    check_layers(nn.Sequential(nn.InstanceNorm1d(2)))
    with pytest.raises(FedskewError, match=r"layer '0': .* set track_running_stats=False"):
        check_layers(nn.Sequential(nn.InstanceNorm1d(2, track_running_stats=True)))


def merge(buffers: list[dict[str, torch.Tensor]], weights: np.ndarray) -> dict[str, torch.Tensor]:
    coded = [encode(each) for each in buffers]
    mean = {
        name: sum(w * each[name] for w, each in zip(weights, coded, strict=True))
        for name in coded[0]
    }
    return decode(mean, buffers[0])


def test_merged_statistics_are_those_of_the_pooled_rows():
    draw, sizes = np.random.default_rng(0), np.array([40, 10, 25])
    parts = [draw.normal(loc=3 * k, scale=1 + k, size=(size, 2)) for k, size in enumerate(sizes)]
    buffers = [
        {
            "a.running_mean": torch.tensor(part.mean(0)),
            "a.running_var": torch.tensor(part.var(0)),
            "a.num_batches_tracked": torch.tensor(batches),
        }
        for part, batches in zip(parts, (10, 3, 6), strict=True)
    ]
    merged, pooled = merge(buffers, sizes / sizes.sum()), np.concatenate(parts)
    np.testing.assert_allclose(merged["a.running_mean"], pooled.mean(0), atol=1e-12)
    np.testing.assert_allclose(merged["a.running_var"], pooled.var(0), atol=1e-12)
    assert merged["a.num_batches_tracked"].dtype == torch.int64
    assert merged["a.num_batches_tracked"].item() == 8  # 40*10 + 10*3 + 25*6 = 580, of 75 rows: 7.7


def test_large_mean_and_small_variance_do_not_cancel_in_float32():
    mean, var = torch.tensor([1e4, 1e4 + 0.5]), torch.tensor([1e-2, 3e-2])
    both = [{"running_mean": mean[i : i + 1], "running_var": var[i : i + 1]} for i in range(2)]
    merged = merge(both, np.array([0.5, 0.5]))
    assert merged["running_var"].dtype == torch.float32
    # Within, and between: (0.5 / 2)^2
    assert merged["running_var"].item() == pytest.approx(0.02 + 0.0625, rel=1e-4)
    same = merge([both[0], both[0]], np.array([0.5, 0.5]))
    assert same["running_var"].item() == pytest.approx(1e-2, rel=1e-4)


def test_names_without_a_partner_take_the_plain_mean():
    buffers = [
        {"running_var": torch.tensor([value]), "table": torch.tensor([value, 0.0])}
        for value in (2.0, 4.0)
    ]
    merged = merge(buffers, np.array([0.25, 0.75]))
    assert merged["running_var"].tolist() == [3.5]
    assert merged["table"].tolist() == [3.5, 0.0]


DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]


@pytest.mark.parametrize("device", DEVICES)
def test_inputs_of_lower_precision_are_normalised_in_that_of_the_weights(device: str):
    layer = MaskedBatchNorm(nn.BatchNorm2d(3), Mask()).train().to(device)
    # Four clients
    x = torch.randn(4, 5, 3, 6, 6, generator=torch.Generator().manual_seed(0)).to(device)
    tensors = {**dict(layer.named_parameters()), **dict(layer.named_buffers())}
    values = {
        name: value.detach().expand(4, *value.shape).clone() for name, value in tensors.items()
    }

    def one(weights, rows):
        return functional_call(layer, weights, (rows,))

    found = vmap(one)(values, x.bfloat16())
    assert found.dtype == torch.float32
    for client in range(4):
        rows = x[client].bfloat16().float()
        expected = torch.nn.functional.batch_norm(rows, None, None, training=True)
        torch.testing.assert_close(found[client], expected, rtol=1e-4, atol=1e-5)
