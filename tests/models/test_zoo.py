"""Every model: its size by hand, its head, its errors, and that a stack of copies trains as the copies alone."""

import copy
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap

from fedskew.core.errors import FedskewError
from fedskew.models.blocks import groups_of
from fedskew.models.build import build
from fedskew.models.conv import har_cnn
from fedskew.models.dense import tabular
from fedskew.models.network import Network, models

SMALL = {
    "logreg": ("logreg", (3, 4)),
    "mlp": ("mlp:hidden=8+5", (12,)),
    "tabular": ("tabular:hidden=8+6", (12,)),
    "tabular-group": ("tabular:hidden=8+6,norm=group", (12,)),
    "cnn": ("cnn:width=3", (1, 8, 8)),
    "cnn-hidden": ("cnn:width=3,hidden=7", (2, 5, 9)),
    "leaf-cnn": ("leaf-cnn:width=3,hidden=10", (1, 8, 8)),
    "tabular-cnn": ("tabular-cnn:width=3,hidden=7", (13,)),
    "har-cnn": ("har-cnn:width=3,hidden=7", (2, 16)),
    "resnet9": ("resnet9:width=2", (3, 8, 8)),
    "resnet9-group": ("resnet9:width=2,norm=group", (3, 8, 8)),
    "resnet18": ("resnet18:width=2", (3, 8, 8)),
    "resnet18-group": ("resnet18:width=2,norm=group", (3, 8, 8)),
    "resnet20": ("resnet20:width=2", (1, 8, 8)),
    "char-lstm": ("char-lstm:embedding=3,hidden=5", (7,)),
    "char-transformer": ("char-transformer:width=4,heads=2,layers=1", (7,)),
    "resnet20-group": ("resnet20:width=2,norm=group", (1, 8, 8)),
}


def rows_for(name: str, count: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Return rows for a model: tokens of the four classes where it looks them up, else numbers."""
    if name.startswith("char-"):
        return torch.randint(4, (count, *shape), generator=generator)
    return torch.randn(count, *shape, generator=generator)


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def size(spec: str, shape: tuple[int, ...], classes: int) -> int:
    with torch.device("meta"):
        name = models.choose(spec)
        return count(models.get(name.name)(shape, classes, **name.options))


def test_every_registered_model_is_among_the_small_ones():
    named = {spec.partition(":")[0] for spec, _ in SMALL.values()}
    of_files = {"hf", "text-linear"}  # see test_hugging_face.py and test_text_linear.py
    assert named | of_files == set(models)


def conv(inputs: int, outputs: int, kernel: int) -> int:
    return inputs * outputs * kernel + outputs


def test_sizes_of_the_small_nets_by_hand():
    assert size("logreg", (28, 28), 10) == 784 * 10 + 10
    assert size("mlp", (561,), 6) == (561 * 128 + 128) + (128 * 64 + 64) + (64 * 6 + 6)
    assert size("cnn", (3, 32, 32), 10) == conv(3, 32, 9) + conv(32, 64, 9) + (8 * 8 * 64 * 10 + 10)
    assert size("cnn:width=6,hidden=50", (1, 8, 8), 10) == conv(1, 6, 9) + conv(6, 12, 9) + (
        48 * 50 + 50
    ) + (50 * 10 + 10)
    # LEAF's, with PyTorch's two biases: embedding, two layers of four gates, head
    gates = 4 * 256
    layers = gates * (8 + 256 + 2) + gates * (256 + 256 + 2)
    assert size("char-lstm", (80,), 80) == 80 * 8 + layers + 256 * 80 + 80
    # Embedding and positions, two blocks (attention, two layers of the inside, two norms), a norm, head
    block = 4 * (64 * 64 + 64) + (64 * 256 + 256) + (256 * 64 + 64) + 4 * 64
    assert size("char-transformer", (80,), 80) == 160 * 64 + 2 * block + 2 * 64 + 64 * 80 + 80
    leaf = conv(1, 32, 25) + conv(32, 64, 25) + (7 * 7 * 64 * 2048 + 2048) + (2048 * 62 + 62)
    assert size("leaf-cnn", (1, 28, 28), 62) == leaf
    har = conv(9, 32, 9) + conv(32, 64, 9) + (32 * 64 * 128 + 128) + (128 * 6 + 6)
    assert size("har-cnn", (9, 128), 6) == har
    # 54 features, halved twice
    covtype = conv(1, 32, 3) + conv(32, 64, 3) + (13 * 64 * 128 + 128) + (128 * 7 + 7)
    assert size("tabular-cnn", (54,), 7) == covtype


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_size_of_the_table_net_by_hand(norm: str):
    widths = [43, 1024, 512, 256, 128, 64]
    linear = sum(a * b for a, b in pairwise(widths))
    assert size(f"tabular:norm={norm}", (43,), 10) == linear + 2 * sum(widths[1:]) + 64 * 10 + 10


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_sizes_of_the_residual_nets_by_hand(norm: str):
    def block(inputs: int, outputs: int) -> int:
        return 9 * inputs * outputs + 9 * outputs * outputs + 4 * outputs

    nine = 9 * (3 * 64 + 64 * 128 + 2 * 128 * 128 + 128 * 256 + 256 * 512 + 2 * 512 * 512)
    nine_norm = 2 * (64 + 3 * 128 + 256 + 3 * 512)
    assert size(f"resnet9:norm={norm}", (3, 32, 32), 10) == nine + nine_norm + 512 * 10 + 10

    stem = 9 * 3 * 64 + 2 * 64
    stages = sum(
        block(a, b) + block(b, b) for a, b in [(64, 64), (64, 128), (128, 256), (256, 512)]
    )
    projections = sum(a * b + 2 * b for a, b in [(64, 128), (128, 256), (256, 512)])
    assert (
        size(f"resnet18:norm={norm}", (3, 64, 64), 200)
        == stem + stages + projections + 512 * 200 + 200
    )

    stem = 9 * 3 * 16 + 2 * 16
    stages = sum(block(a, b) + 2 * block(b, b) for a, b in [(16, 16), (16, 32), (32, 64)])
    assert size(f"resnet20:norm={norm}", (3, 32, 32), 10) == stem + stages + 64 * 10 + 10


@pytest.mark.parametrize("name", SMALL)
def test_logits_are_the_head_of_the_features(name: str):
    spec, shape = SMALL[name]
    model = build(spec, shape, 4, seed=0).eval()
    assert isinstance(model, Network)
    seen: list[Tensor] = []
    model.head.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    x = rows_for(name, 5, shape, torch.Generator().manual_seed(1))
    logits = model(x)
    assert logits.shape == (5, 4)
    assert torch.equal(logits, model.head(seen[0]))
    assert seen[0].shape == (5, model.head.in_features)
    assert not any(isinstance(module, nn.modules.dropout._DropoutNd) for module in model.modules())
    assert not any(getattr(module, "inplace", False) for module in model.modules())


def loss_of(model: nn.Module):
    def loss(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor):
        state = dict(buffers)
        logits = functional_call(model, (parameters, state), (x,))
        return nn.functional.cross_entropy(logits, y), state

    return loss


@pytest.mark.parametrize(
    "name", [name for name in SMALL if name != "char-lstm"]
)  # see test_lstm.py
def test_a_stack_of_copies_equals_each_copy_alone(name: str):
    spec, shape = SMALL[name]
    copies = [build(spec, shape, 4, seed).double().train() for seed in range(3)]
    generator = torch.Generator().manual_seed(7)
    x = rows_for(name, 18, shape, generator).unflatten(0, (3, 6))
    if x.is_floating_point():
        x = x.double()
    y = torch.randint(4, (3, 6), generator=generator)

    alone = []
    for model, rows, labels in zip(copy.deepcopy(copies), x, y, strict=True):
        loss = nn.functional.cross_entropy(model(rows), labels)
        loss.backward()
        gradients = {key: parameter.grad for key, parameter in model.named_parameters()}
        alone.append((loss, gradients, dict(model.named_buffers())))

    parameters, buffers = stack_module_state(copies)
    step = vmap(grad_and_value(loss_of(copies[0]), has_aux=True))
    gradients, (losses, moved) = step(parameters, buffers, x, y)

    for client, (loss, expected_gradients, expected_buffers) in enumerate(alone):
        torch.testing.assert_close(losses[client], loss, rtol=0, atol=1e-10)
        for key, expected in expected_gradients.items():
            torch.testing.assert_close(gradients[key][client], expected, rtol=0, atol=1e-10)
        for key, expected in expected_buffers.items():
            torch.testing.assert_close(moved[key][client], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("spec", "shape", "needs"),
    [
        ("cnn", (784,), "(channels, height, width) with height and width >= 4"),
        ("cnn", (1, 3, 8), "(channels, height, width) with height and width >= 4"),
        ("leaf-cnn", (28, 28), "(channels, height, width)"),
        ("resnet9", (3, 7, 32), "height and width >= 8"),
        ("resnet18", (3, 2, 2), "height and width >= 4"),
        ("resnet20", (561,), "(channels, height, width)"),
        ("har-cnn", (561,), "(channels, length) with length >= 4"),
        ("tabular-cnn", (1, 54), "needs rows of shape (features,) with features >= 4"),
        ("tabular-cnn", (3,), "needs rows of shape (features,) with features >= 4"),
        ("char-lstm", (1, 80), "needs rows of shape (tokens,)"),
        ("char-transformer", (1, 80), "needs rows of shape (tokens,)"),
        ("har-cnn", (9, 3), "(channels, length) with length >= 4"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused_by_name(
    spec: str, shape: tuple[int, ...], needs: str
):
    with pytest.raises(FedskewError) as caught:
        build(spec, shape, 10, seed=0)
    message = str(caught.value)
    assert needs in message
    assert str(shape) in message
    assert spec in message
    assert "\n" not in message


def test_the_smallest_images_pass():
    for spec, side in [
        ("cnn:width=2", 4),
        ("leaf-cnn:width=2,hidden=3", 4),
        ("resnet9:width=2", 8),
        ("resnet20:width=2", 4),
    ]:
        assert build(spec, (1, side, side), 10, seed=0)(torch.zeros(2, 1, side, side)).shape == (
            2,
            10,
        )


def test_group_norm_never_normalises_a_value_by_itself():
    for channels in range(1, 600):
        groups = groups_of(channels)
        assert channels % groups == 0
        assert channels // groups >= min(channels, 16)


def test_functions_can_be_called_without_the_registry():
    assert tabular((3,), 2, hidden=(4,)).head.in_features == 4
    assert har_cnn((1, 8), 2, width=2, hidden=0).head.in_features == 8
