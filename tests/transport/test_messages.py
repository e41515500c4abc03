"""Messages between processes: what arrives is what was sent, in memory of the same layout."""

import struct
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedskew.core.errors import FedskewError
from fedskew.transport import messages
from fedskew.transport.messages import packed, sendable, unpacked


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
    for one, other in zip(
        [*tree["a"].values(), *tree["b"]], [*found["a"].values(), *found["b"]], strict=True
    ):
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


def test_a_small_array_does_not_keep_the_whole_message_in_memory():
    small, large = sent([np.arange(3), np.arange(5_000)])
    assert small.base is None
    assert large.base is not None


def test_a_tensor_that_occurs_twice_travels_once():
    value = torch.zeros(1000)
    assert len(packed([value, value]).host) < 1.5 * value.nbytes
    one, two = sent([value, value])
    assert torch.equal(one, two)


@dataclass(frozen=True)
class Pair:
    """A class that may be sent."""

    one: object
    two: object = None


@dataclass(frozen=True)
class Stranger:
    """A class that nobody has registered."""

    value: int = 0


sendable(Pair)

WHOLE = ["bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]
FLOATS = ["float16", "float32", "float64", "complex64", "complex128"]
SHAPES = st.lists(st.integers(0, 3), max_size=3)


def values_of(dtype, shape, fill):
    """Return an array whose bytes come from a seed, so that NaN of all kinds and infinities are among its values."""
    size = np.dtype(dtype).itemsize * int(np.prod(shape))
    raw = np.random.default_rng(fill).integers(
        0, 2 if dtype == "bool" else 256, size, dtype=np.uint8
    )
    array = raw.view(dtype).reshape(shape)
    if dtype in FLOATS and array.size:
        array.flat[0] = [np.nan, np.inf, -np.inf, -0.0][fill % 4]
    return array


ARRAYS = st.builds(values_of, st.sampled_from(WHOLE + FLOATS), SHAPES, st.integers(0, 1000))
HALVES = st.builds(
    lambda shape, fill: torch.from_numpy(values_of("int16", shape, fill)).view(torch.bfloat16),
    SHAPES,
    st.integers(0, 9),
)
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.frozensets(st.text()), ARRAYS,
    ARRAYS.map(torch.from_numpy), HALVES, ARRAYS.filter(lambda array: array.size).map(lambda array: array.flat[0]),
)  # fmt: skip
KEYS = st.one_of(st.none(), st.integers(), st.text(), st.tuples(st.integers(), st.text()))
THINGS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner), st.lists(inner).map(tuple), st.dictionaries(st.text(), inner), st.dictionaries(KEYS, inner),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=12,
)  # fmt: skip


def assert_same(one, other):
    """Compare types and bits."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert (
            one.flatten().view(torch.uint8).tolist() == other.flatten().view(torch.uint8).tolist()
        )
    elif isinstance(one, (np.ndarray, np.generic)):
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    elif isinstance(one, float):
        assert struct.pack("<d", one) == struct.pack("<d", other)
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    elif isinstance(one, dict):
        assert_same(list(one.items()), list(other.items()))
    elif isinstance(one, Pair):
        assert_same([one.one, one.two], [other.one, other.two])
    else:
        assert one == other


@settings(deadline=None)
@given(THINGS)
def test_all_that_may_be_sent_arrives_with_the_same_bits(thing):
    assert_same(thing, sent(thing))


def test_an_array_of_another_byte_order_keeps_its_values():
    found = sent(np.arange(3, dtype=">i4"))
    assert found.tolist() == [0, 1, 2]
    assert found.dtype == np.int32


@pytest.mark.parametrize(
    ("thing", "name"),
    [
        (Stranger(), "Stranger"),
        ({"a": [Stranger()]}, "Stranger"),
        (nn.Linear(1, 1), "torch.nn.modules.linear.Linear"),
        (nn.Parameter(torch.zeros(1)), "Parameter"),
        (lambda: None, "function"),
        ({1, 2}, "type set"),
        (frozenset({1}), "type frozenset"),
        (OrderedDict(), "collections.OrderedDict"),
        (np.array([None]), "numpy.ndarray of dtype object"),
        (np.array(["a"]), "numpy.ndarray of dtype <U1"),
        (torch.zeros(2).to_sparse(), "Tensor"),
        (Stranger, "type type"),
    ],
)
def test_anything_else_is_refused_by_its_name(thing, name):
    with pytest.raises(FedskewError, match=f"{name}.* cannot be sent to another process"):
        packed(thing)


def test_a_class_of_the_same_name_is_refused():
    other = type("Pair", (), {})
    with pytest.raises(FedskewError, match="Pair cannot be sent"):
        packed(other())


def test_what_is_not_registered_here_is_not_made(monkeypatch):
    message = packed(Pair(1))
    monkeypatch.delitem(messages._sendable, "Pair")
    with pytest.raises(FedskewError, match="has sent a Pair, which is not known here"):
        unpacked(message)


def test_nothing_of_the_memory_before_is_sent(monkeypatch: pytest.MonkeyPatch):
    """Check the gaps between tensors, which lie where they would in memory of their own."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, **kind: empty(*size, **kind).fill_(0xAB))
    message = packed({"a": torch.zeros(3), "b": np.zeros(5, dtype=np.int64), "c": [torch.zeros(1)]})
    beyond = message.host[message.text :]
    assert len(beyond) >= 3 * 64
    assert not beyond.any()
