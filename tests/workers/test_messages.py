"""Messages between processes: what arrives is what was sent, in memory of the same layout."""

import numpy as np
import pytest
import torch
from torch import nn

from fedskew.algorithms.contract import resolve
from fedskew.models.build import build
from fedskew.workers.messages import packed, unpacked


def sent(thing):
    return unpacked(packed(thing))


def test_anything_with_tensors_arrives():
    tree = {
        "a": {"w": torch.arange(6.0).view(2, 3), "n": torch.tensor(7)},
        "b": [torch.zeros(0, 4, dtype=torch.float64), torch.tensor([True, False, True])],
        "rows": np.arange(5),
        "many": [np.arange(20_000.0).reshape(100, 200).T, np.arange(5_000, dtype=np.uint64)],
        "word": ("x", None, 1.5),
    }
    found = sent(tree)
    assert found["word"] == tree["word"]
    assert found["rows"].tolist() == [0, 1, 2, 3, 4]
    for one, other in zip(tree["many"], found["many"], strict=True):
        assert np.array_equal(one, other)
        assert one.dtype == other.dtype
    for one, other in zip([*tree["a"].values(), *tree["b"]], [*found["a"].values(), *found["b"]], strict=True):
        assert torch.equal(one, other)
        assert one.dtype == other.dtype


def test_tensors_are_contiguous_and_aligned_whatever_they_were():
    values = [torch.arange(12.0).view(3, 4).T, torch.arange(20.0)[3::2], torch.ones(1).expand(5)]
    for one, other in zip(values, sent(values), strict=True):
        assert torch.equal(one, other)
        assert other.is_contiguous()
        assert other.data_ptr() % 64 == 0


def test_what_arrives_is_a_copy():
    value = torch.zeros(3)
    found = sent(value)
    value += 1
    assert found.tolist() == [0, 0, 0]


def test_a_tensor_that_occurs_twice_travels_once():
    value = torch.zeros(1000)
    assert len(packed([value, value]).host) < 1.5 * value.nbytes
    one, two = sent([value, value])
    assert torch.equal(one, two)


def test_a_model_arrives_with_its_frozen_and_its_tied_weights():
    model = build("mlp:hidden=4", (6,), 3, seed=0)
    first, *_ = model.parameters()
    first.requires_grad_(False)
    model.again = next(module for module in model.modules() if isinstance(module, nn.Linear))
    found = sent(model)
    assert [p.requires_grad for p in found.parameters()] == [p.requires_grad for p in model.parameters()]
    assert len(list(found.parameters())) == len(list(model.parameters()))
    for one, other in zip(model.state_dict().values(), found.state_dict().values(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("spec", ["fedprox:mu=0.3", "fedprox:mu=0.3 + krum:attackers=1 + clip", "ditto", "fedbuff"])
def test_a_method_with_additions_arrives(spec):
    algorithm = resolve(spec)
    assert sent(algorithm) == algorithm
    assert str(sent(algorithm)) == str(algorithm)
