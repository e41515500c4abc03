"""Named tensors, of one client or stacked over clients, and operations on them."""

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Tensors: TypeAlias = dict[str, Tensor]
Tree: TypeAlias = dict[str, Tensors]  # named groups of named tensors


def stacked(tensors: Tensors, count: int) -> Tensors:
    """Return ``count`` copies of every tensor, stacked on a new first axis."""
    result: Tensors = {}
    for name, value in tensors.items():
        result[name] = value.expand(count, *value.shape).clone()
    return result


def rows_of(tree: Tree, index: Tensor | slice) -> Tree:
    """Return the clients at ``index`` of a stacked tree."""

    def pick(value: Tensor) -> Tensor:
        if isinstance(index, Tensor):
            return value[index.to(value.device)]
        return value[index]

    result: Tree = {}
    for part, tensors in tree.items():
        result[part] = {name: pick(value) for name, value in tensors.items()}
    return result


def tensors_of(tree: Tree) -> list[Tensor]:
    """Return all tensors of a tree."""
    found: list[Tensor] = []
    for tensors in tree.values():
        found.extend(tensors.values())
    return found


def unsqueezed(tree: Tree) -> Tree:
    """Return one client's tree as a stack of one."""
    result: Tree = {}
    for part, tensors in tree.items():
        result[part] = {name: value.unsqueeze(0) for name, value in tensors.items()}
    return result


def one_client(tree: Tree) -> Tree:
    """Return the state of the only client in a stack, without the axis of clients."""
    kept: Tree = {}
    for part, tensors in tree.items():
        kept[part] = {}
        for name, value in tensors.items():
            kept[part][name] = value[0]
    return kept


def without(tree: Tree, names: frozenset[str]) -> Tree:
    """Return the tree without the tensors of these names, in every part."""
    result: Tree = {}
    for part, tensors in tree.items():
        result[part] = {name: value for name, value in tensors.items() if name not in names}
    return result


def size_in_bytes(tree: Tree) -> int:
    """Return the number of bytes of all tensors."""
    return sum(value.numel() * value.element_size() for value in tensors_of(tree))


def finite_clients(trees: Iterable[Tree], count: int) -> NDArray[np.bool_]:
    """Return for each of the ``count`` clients of the stacked trees whether all its numbers are finite."""
    values = []
    for tree in trees:
        for value in tensors_of(tree):
            values.append(value[:, None].flatten(1))
    if not values:
        return np.ones(count, dtype=bool)
    # A sum is finite only if all terms are; it costs one pass and no mask as large as the tensor. In the tensors' own
    # precision it is fastest, but may overflow. All sums leave a GPU at once.
    fine = _finite_sums(values, None)
    if not fine.all():
        fine = _finite_sums(values, torch.float64)
    return fine


def _finite_sums(values: list[Tensor], precision: torch.dtype | None) -> NDArray[np.bool_]:
    sums = torch.stack([value.sum(1, dtype=precision) for value in values])
    fine: NDArray[np.bool_] = np.isfinite(sums.cpu().double().numpy()).all(0)
    return fine


def leaves(tensors: Tensors) -> Tensors:
    """Return the same numbers as tensors whose gradients can be asked for; memory is shared."""
    result: Tensors = {}
    for name, value in tensors.items():
        result[name] = value.detach().requires_grad_()
    return result


def copied(tree: Tree) -> Tree:
    """Return a copy of a tree in memory of its own."""
    result: Tree = {}
    for part, tensors in tree.items():
        result[part] = {name: value.clone() for name, value in tensors.items()}
    return result


def flat_names(tree: Tree) -> Tensors:
    """Return copies of a tree's tensors under flat names ``part/name``, for a file that holds no tensor twice."""
    result: Tensors = {}
    for part, tensors in tree.items():
        for name, value in tensors.items():
            result[f"{part}/{name}"] = value.clone()
    return result


def from_flat(flat: Tensors, like: Tree) -> Tree:
    """Return the tree from the flat names of ``flat_names``, in the order and on the devices of ``like``."""
    result: Tree = {}
    for part, tensors in like.items():
        result[part] = {
            name: flat[f"{part}/{name}"].to(value.device) for name, value in tensors.items()
        }
    return result
