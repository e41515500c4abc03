"""How large updates of nodes are: one that is far from the others' is told, and one beyond a limit is refused."""

import warnings
from collections.abc import Mapping

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.trees import Tree, tensors_of
from fedskew.engine.job import Updates

FAR = 20.0  # times the median of the others, each as the norm of one step
_FEWEST = 2  # others that a client is compared with


def norm_of(tree: Tree) -> float:
    """Return the norm of all numbers in a tree, as one vector.

    >>> import torch
    >>> norm_of({"delta": {"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}})
    5.0
    """
    largest = 0.0
    for value in tensors_of(tree):
        if value.numel():
            largest = max(largest, float(value.abs().max()))
    if largest == 0.0 or not np.isfinite(largest):
        return largest
    # Scaled, as the square of a large number is infinite
    squares = 0.0
    for value in tensors_of(tree):
        squares += float((value.double() / largest).square().sum())
    return float(largest * np.sqrt(squares))


def check_norm(tree: Tree, most: float | None) -> None:
    """Raise an error for what a client sends with a norm above the limit."""
    if most is None:
        return
    norm = norm_of(tree)
    if norm > most:
        raise FedskewError(f"an update with the norm {norm:.4g}, above --max-update-norm {most:g}")


def warn_of_far_norms(updates: Mapping[int, Updates], names: Mapping[int, str]) -> None:
    """Warn of updates whose norm, as a mean over steps, is far above those of the other clients of a round."""
    norms = {}
    for client, update in updates.items():
        steps = max(1, int(update.report.steps.sum()))
        norms[client] = norm_of(update.payload) / steps
    for client, norm in norms.items():
        others = [value for other, value in norms.items() if other != client]
        if len(others) < _FEWEST or not np.isfinite(norm):
            continue
        usual = float(np.median(others))
        if norm > FAR * usual > 0:
            warnings.warn(
                f"client {names[client]}: its update has a norm of {norm:.4g} a step, {norm / usual:.4g} times the "
                "median of the others: look at its file, or refuse such updates with --max-update-norm",
                stacklevel=2,
            )
