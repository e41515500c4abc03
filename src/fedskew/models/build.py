"""Building a model from its specification; the initial weights depend on the seed alone."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import nn

from fedskew.core.errors import FedskewError
from fedskew.core.files import must_fit
from fedskew.core.registry import Choice
from fedskew.core.streams import bits
from fedskew.models.network import Shape, models

# Of all weights during training, at least: the server's, a client's, its gradient and its update
_COPIES = 4
ModelSpec: TypeAlias = (
    str | Mapping[str, Any] | Choice | nn.Module | Callable[[Shape, int], nn.Module]
)


def build(spec: ModelSpec, shape: Shape, classes: int, seed: int) -> nn.Module:
    """Return the model of ``spec`` on the CPU, without using or changing the global random generators.

    ``spec`` is a name with options (``"mlp:hidden=128+64"``), a table, a choice, a function of (shape, classes) that
    returns a module, or a module: that one is returned as it is, with the weights it has.

    >>> build("mlp:hidden=32", (8, 8), 10, seed=0).head
    Linear(in_features=32, out_features=10, bias=True)
    """
    if isinstance(spec, nn.Module):
        return spec
    if classes < 1 or not shape or min(shape) < 1:
        raise FedskewError(
            f"no model fits rows of shape {shape} and {classes} classes: both must be at least 1"
        )
    make = _maker(spec)
    _refuse_giant(spec, make, shape, classes)
    # Only the CPU's generator is forked and seeded: torch.manual_seed would reset the GPUs' generators as well.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(int(bits(seed, "weights")[0]))
        model = make(shape, classes)
    if not isinstance(model, nn.Module):
        raise FedskewError(
            f"a model function must return a torch.nn.Module, got {type(model).__name__}"
        )
    return model


def _refuse_giant(
    spec: Any, make: Callable[[Shape, int], object], shape: Shape, classes: int
) -> None:
    """Build a model without its weights first, and raise an error if it is too large for any training."""
    if callable(spec):
        return
    try:
        with torch.device("meta"):
            model = make(shape, classes)
    except (RuntimeError, TypeError) as problem:  # sizes that are beyond 64 bits when multiplied
        reason = str(problem).splitlines()[0]
        raise FedskewError(f"model {models.choose(spec)} cannot be built: {reason}") from problem
    assert isinstance(model, nn.Module)
    weights = sum(weight.numel() for weight in model.parameters())
    must_fit(
        f"model {models.choose(spec)} with {weights:,} weights",
        _COPIES * 4 * weights,
        "make it smaller",
    )


def _maker(
    spec: str | Mapping[str, Any] | Choice | Callable[[Shape, int], nn.Module],
) -> Callable[[Shape, int], object]:
    if callable(spec):
        return spec
    choice = models.choose(spec)
    builder = models.get(choice.name)
    return lambda shape, classes: builder(shape, classes, **choice.options)
