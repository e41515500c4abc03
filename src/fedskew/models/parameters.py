"""The trainable parameters of a model, and loading of weights by name."""

import copy

import torch
from torch import nn

from fedskew.core.errors import FedskewError
from fedskew.core.trees import Tensors


def trainable(model: nn.Module) -> Tensors:
    """Return the trainable parameters; frozen ones (``requires_grad=False``) are not changed and never sent."""
    found: Tensors = {}
    for name, value in model.named_parameters():
        if value.requires_grad:
            found[name] = value
    if not found:
        raise FedskewError(
            f"{type(model).__name__} has nothing to train: no parameter has requires_grad=True"
        )
    return found


def frozen(model: nn.Module) -> Tensors:
    """Return the parameters that are not trained, with the statistics of frozen BatchNorm."""
    found: Tensors = {}
    for name, value in model.named_parameters():
        if not value.requires_grad:
            found[name] = value
    return found


def copied_model(model: nn.Module) -> nn.Module:
    """Return a copy; the weights of recurrent layers lie together in memory, as they are fastest on a GPU."""
    other = copy.deepcopy(model)
    for module in other.modules():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()
    return other


@torch.no_grad()
def load_weights(model: nn.Module, tensors: Tensors) -> None:
    """Copy trainable parameters and buffers into a model by name; ``load_state_dict`` would refuse tied weights."""
    for name, value in {**trainable(model), **dict(model.named_buffers())}.items():
        value.copy_(tensors[name])
