"""Which names of a model's state are parameters, buffers, normalisation or head."""

from dataclasses import dataclass

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from fedskew.core.errors import FedskewError


@dataclass(frozen=True)
class Layout:
    """The names of a model's state, as in ``named_parameters`` and ``named_buffers``; a layer's set has both."""

    parameters: frozenset[str]
    buffers: frozenset[str]
    batch_norm: frozenset[str]
    group_norm: frozenset[str]
    layer_norm: frozenset[str]  # RMSNorm too
    instance_norm: frozenset[str]
    head: frozenset[str]

    @property
    def norm(self) -> frozenset[str]:
        """Return the names in all normalisation layers of any kind."""
        return self.batch_norm | self.group_norm | self.layer_norm | self.instance_norm


def layout(model: nn.Module) -> Layout:
    """Return the layout of any module, at any depth of nesting.

    >>> net = nn.Sequential(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), nn.Linear(3, 2))
    >>> sorted(layout(net).batch_norm)[:3], sorted(layout(net).head)
    (['0.1.bias', '0.1.num_batches_tracked', '0.1.running_mean'], ['1.bias', '1.weight'])
    """
    return Layout(
        parameters=frozenset(name for name, _ in model.named_parameters()),
        buffers=frozenset(name for name, _ in model.named_buffers()),
        batch_norm=_names(model, _BatchNorm),
        group_norm=_names(model, nn.GroupNorm),
        layer_norm=_names(model, nn.LayerNorm, nn.RMSNorm),
        instance_norm=_names(model, _InstanceNorm),
        head=_head_names(model),
    )


def head_module(model: nn.Module) -> nn.Module:
    """Return the layer from the representation to the logits: the attribute ``head``, else the last ``nn.Linear``."""
    head = getattr(model, "head", None)
    if isinstance(head, nn.Module):
        return head
    linear = []
    for module in model.modules():
        if isinstance(module, nn.Linear):
            linear.append(module)
    if not linear:
        raise FedskewError(
            f"{type(model).__name__} has no attribute 'head' and no nn.Linear: name its last layer 'head'"
        )
    return linear[-1]


def _names(model: nn.Module, *kinds: type[nn.Module]) -> frozenset[str]:
    return frozenset(
        name
        for prefix, module in model.named_modules()
        if isinstance(module, kinds)
        for name in _within(prefix, module)
    )


def _head_names(model: nn.Module) -> frozenset[str]:
    """Return the names in the head; empty for a model without one, which only algorithms that need it refuse."""
    try:
        head = head_module(model)
    except FedskewError:
        return frozenset()
    names: list[str] = []
    for prefix, module in model.named_modules():
        if module is head:
            names += _within(prefix, module)
    return frozenset(names)


def _within(prefix: str, module: nn.Module) -> list[str]:
    parts = (module.named_parameters(prefix), module.named_buffers(prefix))
    names: list[str] = []
    for part in parts:
        for name, _ in part:
            names.append(name)
    return names
