"""Named tensors, of one client or stacked over clients, and operations on them."""

from collections.abc import Iterable
from typing import TypeAlias

import torch
from torch import Tensor

Tensors: TypeAlias = dict[str, Tensor]
Tree: TypeAlias = dict[str, Tensors]  # named groups of named tensors


def stacked(tensors: Tensors, count: int) -> Tensors:
    """Return ``count`` copies of every tensor, stacked on a new first axis."""
    return {name: value.expand(count, *value.shape).clone() for name, value in tensors.items()}


def rows_of(tree: Tree, index: Tensor | slice) -> Tree:
    """Return the clients at ``index`` of a stacked tree."""

    def pick(value: Tensor) -> Tensor:
        return value[index.to(value.device) if isinstance(index, Tensor) else index]

    return {part: {name: pick(value) for name, value in tensors.items()} for part, tensors in tree.items()}


def unsqueezed(tree: Tree) -> Tree:
    """Return one client's tree as a stack of one."""
    return {part: {name: value.unsqueeze(0) for name, value in tensors.items()} for part, tensors in tree.items()}


def without(tree: Tree, names: frozenset[str]) -> Tree:
    """Return the tree without the tensors of these names, in every part."""
    return {
        part: {name: value for name, value in tensors.items() if name not in names} for part, tensors in tree.items()
    }


def size_in_bytes(tree: Tree) -> int:
    """Return the number of bytes of all tensors."""
    return sum(value.numel() * value.element_size() for tensors in tree.values() for value in tensors.values())


def finite_clients(trees: Iterable[Tree], count: int) -> Tensor:
    """Return for each of the ``count`` clients of the stacked trees whether all its numbers are finite."""
    # A sum is finite only if all terms are; it costs one pass and no mask as large as the tensor. The verdict on all
    # tensors is computed where they are and read once.
    sums = [
        value[:, None].flatten(1).sum(1, dtype=torch.float64)
        for tree in trees
        for tensors in tree.values()
        for value in tensors.values()
    ]
    return torch.isfinite(torch.stack(sums)).all(0).cpu() if sums else torch.ones(count, dtype=torch.bool)


def copied(tree: Tree) -> Tree:
    """Return a copy of a tree in memory of its own."""
    return {part: {name: value.clone() for name, value in tensors.items()} for part, tensors in tree.items()}


def flat_names(tree: Tree) -> Tensors:
    """Return copies of a tree's tensors under flat names ``part/name``, for a file that holds no tensor twice."""
    return {f"{part}/{name}": value.clone() for part, tensors in tree.items() for name, value in tensors.items()}


def from_flat(flat: Tensors, like: Tree) -> Tree:
    """Return the tree from the flat names of ``flat_names``, in the order and on the devices of ``like``."""
    return {
        part: {name: flat[f"{part}/{name}"].to(value.device) for name, value in tensors.items()}
        for part, tensors in like.items()
    }
