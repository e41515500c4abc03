"""The layout: nested BatchNorm is found, kinds are separated, and the head is the right one."""

import pytest
import torch
from torch import nn

from fedskew.core.errors import FedskewError
from fedskew.models.build import build
from fedskew.models.layout import head_module, layout


def test_resnet_batch_norm_at_every_depth():
    model = build("resnet18:width=2", (3, 8, 8), 5, seed=0)
    found = layout(model)
    layers = [name for name, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(layers) == 1 + 8 * 2 + 3
    kinds = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    assert found.batch_norm == {f"{layer}.{kind}" for layer in layers for kind in kinds}
    assert found.buffers == {f"{layer}.{kind}" for layer in layers for kind in kinds[2:]}
    assert found.parameters == set(dict(model.named_parameters()))
    assert found.head == {"head.weight", "head.bias"}
    assert found.norm == found.batch_norm
    assert head_module(model) is model.head


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tail = nn.Linear(3, 2)  # the last layer by use, and by order not
        self.parts = nn.ModuleDict(
            {
                "group": nn.GroupNorm(1, 3),
                "layer": nn.LayerNorm(3),
                "rms": nn.RMSNorm(3),
                "instance": nn.InstanceNorm1d(3, affine=True),
                "batch": nn.Sequential(nn.Sequential(nn.BatchNorm1d(3, affine=False))),
            }
        )
        self.register_buffer("clock", torch.zeros(1))


def test_kinds_of_normalisation_are_kept_apart():
    found = layout(Odd())
    assert found.group_norm == {"parts.group.weight", "parts.group.bias"}
    assert found.layer_norm == {"parts.layer.weight", "parts.layer.bias", "parts.rms.weight"}
    assert found.instance_norm == {"parts.instance.weight", "parts.instance.bias"}
    prefix = "parts.batch.0.0."
    assert found.batch_norm == {
        prefix + "running_mean",
        prefix + "running_var",
        prefix + "num_batches_tracked",
    }
    assert (
        found.norm == found.group_norm | found.layer_norm | found.instance_norm | found.batch_norm
    )
    assert "clock" in found.buffers
    assert not found.parameters & found.buffers


def test_head_is_the_attribute_first():
    model = Odd()
    assert head_module(model) is model.tail
    model.head = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    assert head_module(model) is model.head
    assert layout(model).head == {"head.0.weight", "head.0.bias", "head.2.weight", "head.2.bias"}


def test_a_bare_linear_is_its_own_head():
    assert layout(nn.Linear(2, 2)).head == {"weight", "bias"}


def test_a_model_without_a_head_is_named():
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Flatten())
    assert layout(model).head == frozenset()
    with pytest.raises(FedskewError, match="Sequential has no attribute 'head'"):
        head_module(model)
