"""The state of a run between rounds: the global model, what the method's server keeps, and the number of rounds."""

from collections.abc import Collection
from dataclasses import dataclass

import torch

from fedskew.core.trees import Tensors, Tree, flat_names, from_flat
from fedskew.engine.job import Job, initial_weights
from fedskew.models.parameters import trainable

# Groups of names in a checkpoint
PARAMS, BUFFERS, SERVER = "params", "buffers", "server"


@dataclass
class RunState:
    """The weights and buffers of the global model, the server state of the method, and how many rounds are done."""

    params: Tensors
    buffers: Tensors
    server_state: Tree
    round: int = 0

    @classmethod
    def initial(cls, job: Job) -> "RunState":
        """Return the state before the first round."""
        params: Tensors = {}
        for name, value in trainable(job.model).items():
            # Contiguous, whatever the layout of the given model: a checkpoint file requires it.
            params[name] = value.detach().clone(memory_format=torch.contiguous_format)
        buffers: Tensors = {}
        for name, value in job.model.named_buffers():
            buffers[name] = value.detach().clone()
        state = cls(params, buffers, {})
        state.server_state = job.algorithm.init_server_state(
            initial_weights(params, job.unsent, job.layout, job.partition.clients)
        )
        return state

    def model(self) -> Tensors:
        """Return weights and buffers of the global model."""
        return {**self.params, **self.buffers}

    def shared(self, unsent: Collection[str]) -> Tensors:
        """Return the weights that clients send: all but these."""
        return _without(self.params, unsent)

    def leaving(self, local_names: Collection[str]) -> Tensors:
        """Return what the server sends of the global model: all but what stays with clients."""
        return _without(self.model(), local_names)

    def flat(self) -> Tensors:
        """Return weights, buffers and server state as flat named tensors, for a checkpoint."""
        groups = {
            PARAMS: self.params,
            BUFFERS: self.buffers,
            SERVER: flat_names(self.server_state),
        }
        return grouped(groups)

    def restore(self, flat: Tensors, device: torch.device) -> None:
        """Restore what ``flat`` returned, and the number of rounds."""
        # In the order of an uninterrupted run, not of the file: a method may sum over all of them.
        params = group_of(flat, PARAMS)
        buffers = group_of(flat, BUFFERS)
        self.params = {name: params[name].to(device) for name in self.params}
        self.buffers = {name: buffers[name].to(device) for name in self.buffers}
        self.server_state = from_flat(group_of(flat, SERVER), self.server_state)
        self.round = int(flat["round"])


def grouped(groups: dict[str, Tensors]) -> Tensors:
    """Return the tensors of named groups as ``GROUP/NAME``."""
    flat: Tensors = {}
    for group, tensors in groups.items():
        for name, value in tensors.items():
            flat[f"{group}/{name}"] = value
    return flat


def group_of(flat: Tensors, group: str) -> Tensors:
    """Return the tensors of one group by their names in it: the inverse of ``grouped``."""
    prefix = f"{group}/"
    members: Tensors = {}
    for name, value in flat.items():
        if name.startswith(prefix):
            members[name.removeprefix(prefix)] = value
    return members


def _without(tensors: Tensors, names: Collection[str]) -> Tensors:
    others: Tensors = {}
    for name, value in tensors.items():
        if name not in names:
            others[name] = value
    return others
