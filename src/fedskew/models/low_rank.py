"""Low-rank adapters (LoRA): a frozen weight W0 plus ``scale * B A``, of which only A and B are trained.

With ``trains_r`` it is ``scale * B R A``, of which only R is trained; the server finds A and B in the first round.

``AdapterLayout.applied`` puts them into a model before training, and ``merged`` returns a plain model with the products
added to the weights. An adapted layer is a layer of the same kind whose weight is computed whenever it is read, so that
everything that reads weights sees the adapted ones, the fast paths of PyTorch's transformer layers included.
"""

import copy
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.parameter import is_lazy

from fedskew.core.errors import FedskewError
from fedskew.core.streams import Ints, Stream, substream
from fedskew.core.trees import Tensors, Tree
from fedskew.models.layout import head_module
from fedskew.models.parameters import load_weights

# The tensors of an adapted layer: W0, what is added to it as a whole matrix, A, B, and R between these two
FIXED, OFFSET, A, B, R = "lora_fixed", "lora_offset", "lora_a", "lora_b", "lora_r"
KINDS = ("all", "linear", "conv", "attention")


class Adapted(nn.Module):
    """A layer one of whose weights is ``W0 + offset + scale * B R A``; ``lora_of`` is the name of that weight."""

    lora_of: str
    lora_scale: float
    lora_fixed: Tensor
    lora_offset: Tensor
    lora_a: Tensor
    lora_b: Tensor
    lora_r: Tensor

    def adapted_weight(self) -> Tensor:
        """Return the weight; only some methods have an offset, or an R."""
        left = self.lora_b
        if R in self._parameters:
            left = left @ self.lora_r
        added = self.lora_scale * (left @ self.lora_a)
        if OFFSET in self._buffers or OFFSET in self._parameters:
            added = added + self.lora_offset
        return self.lora_fixed + added.view(self.lora_fixed.shape)


class _AdaptedWeight(Adapted):
    @property
    def weight(self) -> Tensor:
        """The adapted weight."""
        return self.adapted_weight()


class AdaptedLinear(_AdaptedWeight, nn.Linear):  # type: ignore[override]
    """A linear layer with an adapter."""


class AdaptedProjection(_AdaptedWeight, NonDynamicallyQuantizableLinear):  # type: ignore[override]
    """The projection after an attention, with an adapter."""


class AdaptedConv1d(_AdaptedWeight, nn.Conv1d):  # type: ignore[override]
    """A convolution with an adapter of its weight as a matrix, outputs by all else."""


class AdaptedConv2d(_AdaptedWeight, nn.Conv2d):  # type: ignore[override]
    """A convolution with an adapter of its weight as a matrix, outputs by all else."""


class AdaptedConv3d(_AdaptedWeight, nn.Conv3d):  # type: ignore[override]
    """A convolution with an adapter of its weight as a matrix, outputs by all else."""


class AdaptedAttention(Adapted, nn.MultiheadAttention):
    """An attention whose projections of queries, keys and values have one adapter, as of a layer with three outputs."""

    @property
    def in_proj_weight(self) -> Tensor:  # type: ignore[override]
        """The adapted projections."""
        return self.adapted_weight()


_ADAPTED: dict[type[nn.Module], type[Adapted]] = {
    nn.Linear: AdaptedLinear,
    NonDynamicallyQuantizableLinear: AdaptedProjection,
    nn.Conv1d: AdaptedConv1d,
    nn.Conv2d: AdaptedConv2d,
    nn.Conv3d: AdaptedConv3d,
    nn.MultiheadAttention: AdaptedAttention,
}
_PLAIN = dict(zip(_ADAPTED.values(), _ADAPTED.keys(), strict=True))
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class AdapterLayout:
    """Which layers of a model get adapters, and what of them is trained.

    Args:
        rank: of each product; at most the smaller side of the layer's weight
        alpha: the product counts ``alpha / rank``
        target: kinds of layers (all, linear, conv, attention), or ends of their names
        head: whether the head of the model is trained as it is, without an adapter
        trains_a: whether A is trained, or only B
        offset: whether the server adds to the fixed weights
        trains_r: whether an R between B and A is trained in place of these, which the server finds in the first round
        ranks: of the clients, by their numbers and again from the start; where there are none, all have ``rank``
    """

    rank: int
    alpha: float
    target: tuple[str, ...] = ("all",)
    head: bool = True
    trains_a: bool = True
    offset: bool = False
    trains_r: bool = False
    ranks: tuple[int, ...] = ()

    def ranks_of(self, clients: Ints) -> Ints:
        """Return the ranks of these clients."""
        return self.dealt(self.ranks, clients)

    def dealt(self, of_ranks: Sequence[int], clients: Ints) -> Ints:
        """Return a number of each of these clients, from one for each of the ``ranks``.

        >>> AdapterLayout(8, 16.0, ranks=(8, 2)).dealt([80, 20], np.arange(5)).tolist()
        [80, 20, 80, 20, 80]
        """
        return np.array(of_ranks)[clients % len(self.ranks)]

    def applied(self, model: nn.Module, seed: int) -> nn.Module:
        """Put adapters into the model itself, and freeze all else; one that has adapters already stays as it is."""
        if is_adapted(model):
            return model
        _refuse_lazy(model)
        head = None
        if self.head:
            head = _head(model)
        chosen = list(self._chosen(model, head))
        if not chosen:
            raise FedskewError(
                f"adapters: target={'+'.join(self.target)} fits no layer of {type(model).__name__} (head="
                f"{str(self.head).lower()}): {_layers_of(model)}"
            )
        self._check_names(model)
        _refuse_tied(model, chosen)
        model.requires_grad_(False)
        if head is not None:
            head.requires_grad_(True)
        stream = Stream(seed, "adapters")
        for place, module in enumerate(chosen):
            self._adapt(module, substream(stream, place))
        return model

    def _chosen(self, model: nn.Module, head: nn.Module | None) -> Iterator[nn.Module]:
        """Yield the layers that get adapters, in order of their names."""
        in_attention = _parts_of_attentions(model)
        for name, module in model.named_modules():
            if module is head or _weight_of(module) is None:
                continue
            kinds = _kinds_of(module)
            if module in in_attention:
                kinds.add("attention")
            if self._fits(name, kinds):
                yield module

    def _check_names(self, model: nn.Module) -> None:
        """Raise an error for an end of layer names in ``target`` that no layer has; kinds may be without layers."""
        unused = set(self.target) - set(KINDS)
        for name, module in model.named_modules():
            if _weight_of(module) is not None:
                unused -= _ends_of(name)
        for wanted in self.target:
            if wanted in unused:
                raise FedskewError(
                    f"adapters: target={'+'.join(self.target)}: no layer's name ends in {wanted}: {_layers_of(model)}"
                )

    def _fits(self, name: str, kinds: set[str]) -> bool:
        """Return whether a layer of these kinds is a target."""
        for wanted in self.target:
            if wanted in kinds or (wanted not in KINDS and _ends_in(name, wanted)):
                return True
        return False

    def _adapt(self, module: Any, stream: Stream) -> None:
        """Make a layer an adapted one: A is random, and B is 0, so that at first nothing changes."""
        name = _weight_of(module)
        assert name is not None
        weight = module._parameters.pop(name)
        outputs, inputs = weight.flatten(1).shape
        rank = min(self.rank, outputs, inputs)
        module.__class__ = _ADAPTED[type(module)]
        module.lora_of = name
        module.lora_scale = self.alpha / self.rank
        module.register_parameter(FIXED, weight)
        zeros = weight.detach().new_zeros
        if self.trains_r:
            module.register_buffer(A, zeros(rank, inputs))
            module.register_buffer(B, zeros(outputs, rank))
            module.register_parameter(R, nn.Parameter(zeros(rank, rank)))
            return
        first = fresh_a(stream, weight.detach().new_empty(rank, inputs))
        module.register_parameter(A, nn.Parameter(first, requires_grad=self.trains_a))
        module.register_parameter(B, nn.Parameter(zeros(outputs, rank)))
        if self.offset:
            module.register_buffer(OFFSET, zeros(outputs, inputs))


def fresh_a(stream: Stream, like: Tensor) -> Tensor:
    """Return a new A: uniform in ±1 / sqrt(inputs), PyTorch's usual start of a linear layer."""
    reach = 1 / like.shape[1] ** 0.5
    drawn = torch.from_numpy(stream.uniform(like.numel())).view(like.shape)
    start: Tensor = (reach * (2 * drawn - 1)).to(like)
    return start


def truncated(weights: Tensors, ranks: Ints) -> Tensors:
    """Return the factors as clients of these ranks have them, stacked: rows of A and columns of B after these are 0.

    Where both are 0, so are both gradients, and a local optimiser leaves them so.

    >>> truncated({"lora_a": torch.ones(2, 1), "lora_b": torch.ones(1, 2)}, np.array([1]))["lora_b"]
    tensor([[[1., 0.]]])
    """
    found: Tensors = {}
    for prefix in adapters_of(weights):
        a = weights[prefix + A]
        has = within(ranks, a)
        found[prefix + A] = torch.where(has[:, :, None], a, 0.0)
        found[prefix + B] = torch.where(has[:, None], weights[prefix + B], 0.0)
    return found


def within(ranks: Ints, a: Tensor) -> Tensor:
    """Return which rows of a factor A clients of these ranks have: client x row."""
    rows = torch.arange(a.shape[-2], device=a.device)
    return rows < torch.from_numpy(ranks).to(a.device)[:, None]


def narrowed(tree: Tree, rank: int) -> Tree:
    """Return what one client sends or receives, without the rows of A and the columns of B after its rank."""
    found: Tree = {}
    for part, tensors in tree.items():
        found[part] = {}
        for name, value in tensors.items():
            kind = name.rpartition(".")[2]
            if kind == A:
                value = value[:rank]
            elif kind == B:
                value = value[:, :rank]
            found[part][name] = value
    return found


def is_adapted(model: nn.Module) -> bool:
    """Return whether any layer has an adapter."""
    return any(isinstance(module, Adapted) for module in model.modules())


def names_set_by_servers(model: nn.Module) -> frozenset[str]:
    """Return the names of the buffers of adapters, which clients receive and never send: offsets, found factors."""
    offsets = frozenset(name for name, _ in model.named_buffers() if is_offset(name))
    return offsets | found_factors(model)


def found_factors(model: nn.Module) -> frozenset[str]:
    """Return the names of the A and B that the server finds, which clients receive once."""
    return low_rank_names(dict(model.named_buffers()))


def is_offset(name: str) -> bool:
    """Return whether a tensor is what a server adds to the fixed weight of a layer."""
    return name.rpartition(".")[2] == OFFSET


def low_rank_names(names: Collection[str]) -> frozenset[str]:
    """Return which names are those of A, B or R.

    >>> sorted(low_rank_names(["0.lora_a", "lora_b", "0.bias"]))
    ['0.lora_a', 'lora_b']
    """
    found = set()
    for name in names:
        if name.rpartition(".")[2] in (A, B, R):
            found.add(name)
    return frozenset(found)


def adapters_of(weights: Collection[str]) -> list[str]:
    """Return the prefixes of the adapters among named weights: the layer's name with a dot, or nothing.

    >>> adapters_of(["0.lora_a", "0.lora_b", "0.bias"])
    ['0.']
    """
    prefixes = []
    for name in weights:
        if name.rpartition(".")[2] == B:
            prefixes.append(name.removesuffix(B))
    return prefixes


def with_whole_matrices(model: nn.Module) -> nn.Module:
    """Return a copy of an adapted model in which one matrix per adapter, added to W0, is all that is trained."""
    model = copy.deepcopy(model).requires_grad_(False)
    for module in model.modules():
        if isinstance(module, Adapted):
            shape = (len(module.lora_b), module.lora_a.shape[1])
            module.register_parameter(OFFSET, nn.Parameter(module.lora_b.new_zeros(shape)))
    return model


def factors_of(change: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return B, R and A whose product is the nearest matrix of that rank: singular vectors, and values on a diagonal.

    Where the matrix has a lower rank, the vectors that are left are 0: they would be those of rounding errors.

    >>> b, r, a = factors_of(torch.tensor([[0.0, 3.0], [2.0, 0.0]]), 1)
    >>> (b @ r @ a).abs(), r
    (tensor([[0., 3.],
            [0., 0.]]), tensor([[3.]]))
    """
    left, values, right = torch.linalg.svd(change, full_matrices=False)
    least = values[0] * max(change.shape) * torch.finfo(change.dtype).eps
    there = (values[:rank] > least).to(change)
    # LAPACK's matrices lie in memory column by column
    b = (left[:, :rank] * there).contiguous()
    a = (right[:rank] * there[:, None]).contiguous()
    return b, (values[:rank] * there).diag(), a


@torch.no_grad()
def merged(model: nn.Module) -> nn.Module:
    """Return a plain model with the adapted weights: a copy, or the model itself where nothing is adapted."""
    if not is_adapted(model):
        return model
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, Adapted):
            _merge(module)
    return model


def plain_weights(model: nn.Module, tensors: Tensors) -> Tensors:
    """Return weights and buffers by the names of a model without adapters, from those by its names with them.

    ``model`` has the adapters and all that is frozen.
    """
    if not is_adapted(model):
        return tensors
    own = copy.deepcopy(model)
    load_weights(own, tensors)
    plain = merged(own)
    found: Tensors = {}
    for name, value in (*plain.named_parameters(), *plain.named_buffers()):
        found[name] = value.detach()
    return found


def _merge(module: Any) -> None:
    weight = module.adapted_weight().contiguous()
    for name in (FIXED, OFFSET, A, B, R):
        module._parameters.pop(name, None)
        module._buffers.pop(name, None)
    name = module.lora_of
    module.__class__ = _PLAIN[type(module)]
    del module.lora_of, module.lora_scale
    module.register_parameter(name, nn.Parameter(weight))


def _refuse_lazy(model: nn.Module) -> None:
    """Raise an error for a layer whose sizes are not known before it has seen rows."""
    for name, value in model.named_parameters():
        if is_lazy(value):
            raise FedskewError(
                f"adapters: {name} of {type(model).__name__} has no size yet: let the model answer a few rows first"
            )


def _refuse_tied(model: nn.Module, chosen: Collection[nn.Module]) -> None:
    """Raise an error for a layer to adapt whose weight another layer has too: adapted apart, they would differ."""
    owners: dict[int, list[str]] = {}
    for name, module in model.named_modules():
        for own, value in module._parameters.items():
            owners.setdefault(id(value), []).append(f"{name}.{own}".removeprefix("."))
    for module in chosen:
        names = owners[id(module._parameters[str(_weight_of(module))])]
        if len(names) > 1:
            raise FedskewError(
                f"adapters: {' and '.join(names)} are one tensor, which an adapter of one layer would part: leave such "
                "layers out of target"
            )


def _head(model: nn.Module) -> nn.Module:
    try:
        return head_module(model)
    except FedskewError as problem:
        raise FedskewError(f"{problem}; or leave it as it is: head=false") from None


def _weight_of(module: nn.Module) -> str | None:
    """Return the name of the weight of a layer that can be adapted, or None."""
    if type(module) not in _ADAPTED:
        return None
    if not isinstance(module, nn.MultiheadAttention):
        return "weight"
    if module.in_proj_weight is None:  # queries, keys and values of different widths
        return None
    return "in_proj_weight"


def _parts_of_attentions(model: nn.Module) -> set[nn.Module]:
    """Return the modules named so, and all in them; a whole model that is named so is none."""
    parts: set[nn.Module] = set()
    for name, module in model.named_modules():
        if name and "attention" in type(module).__name__.lower():
            parts.update(module.modules())
    return parts


def _kinds_of(module: nn.Module) -> set[str]:
    """Return by which kinds a layer can be chosen, wherever in the model it is."""
    kinds = {"all"}
    if type(module) is nn.Linear:
        kinds.add("linear")
    if isinstance(module, _CONVOLUTIONS):
        kinds.add("conv")
    return kinds


def _ends_in(name: str, wanted: str) -> bool:
    """Return whether a layer's name ends in these whole parts.

    >>> _ends_in("layer.q_proj", "q_proj"), _ends_in("layer.eq_proj", "q_proj")
    (True, False)
    """
    return f".{name}".endswith(f".{wanted}")


def _ends_of(name: str) -> set[str]:
    """Return all ends of a layer's name.

    >>> sorted(_ends_of("layer.q_proj"))
    ['layer.q_proj', 'q_proj']
    """
    parts = name.split(".")
    ends = set()
    for start in range(len(parts)):
        ends.add(".".join(parts[start:]))
    return ends


def _layers_of(model: nn.Module) -> str:
    """Return which layers of a model could be adapted, for an error."""
    found = []
    for name, module in model.named_modules():
        if _weight_of(module) is not None:
            found.append(f"{name or '(the model)'} ({type(module).__name__})")
    if not found:
        return "it has no linear layer, convolution or attention of PyTorch's own"
    listed = ", ".join(found[:8])
    if len(found) > 8:
        listed += ", …"
    return f"it has {listed}; a target is one of {', '.join(KINDS)}, or the end of a layer's name"
