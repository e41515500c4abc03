"""What methods share whose server keeps a model of every client."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedskew.algorithms.contract import Algorithm, Cohort, Weighting
from fedskew.algorithms.initial_weights import InitialWeights
from fedskew.core.errors import FedskewError
from fedskew.core.trees import Tensors, Tree

MODELS = "models"


def as_rows(models: Tensors) -> Tensor:
    """Return stacked weights with all numbers of a client in one row."""
    return torch.cat([value.flatten(1) for value in models.values()], 1)


def mean_model(models: Tensors) -> Tensors:
    """Return the mean of stacked weights over the clients."""
    return {name: value.mean(0) for name, value in models.items()}


@dataclass(frozen=True)
class ClientModels(Algorithm):
    """The server keeps the weights of every client's model: memory for as many models as there are clients.

    At first all are the initial ones. A client sends how its own model has changed. Which clients have ever sent an
    update is in the part ``known`` of the server state. The global weights are the plain mean of the models.
    """

    requires = frozenset({"single_updates"})

    @property
    def weighting(self) -> Weighting:
        """Return that clients count equally, whatever the setting of the run."""
        return Weighting(by="uniform")

    @property
    def no_shared_model(self) -> str:
        """Return that clients have models of their own."""
        return "each client has a model of its own"

    def init_server_state(self, weights: InitialWeights) -> Tree:
        """Return the initial weights for every client."""
        if not weights:
            raise FedskewError(
                f"{self.label()} mixes weights of clients, and every weight stays with its client: use norm=aggregate, "
                "or local"
            )
        models: Tensors = {}
        for name, value in weights.items():
            models[name] = value.expand(weights.clients, *value.shape).clone()
        return {MODELS: models, "known": {"": weights.any_tensor.new_zeros(weights.clients)}}

    def server_update(
        self, weights: Tensors, server_state: Tree, mean: Tree, cohort: Cohort
    ) -> tuple[Tensors, Tree]:
        """Return the models with the changes that their clients sent, and their mean as the global weights."""
        if not len(cohort.clients):
            return weights, server_state
        models = dict(server_state[MODELS])
        index = torch.from_numpy(cohort.clients)
        for name, change in cohort.updates["delta"].items():
            models[name] = models[name].index_add(0, index.to(change.device), change)
        known = server_state["known"][""]
        known = known.index_fill(0, index.to(known.device), 1.0)
        return mean_model(models), {**server_state, MODELS: models, "known": {"": known}}


@dataclass(frozen=True)
class OwnModels(ClientModels):
    """Clients keep and use the models that they have trained; the server has copies of them, to mix."""

    def init_client_state(self, weights: InitialWeights) -> Tree:
        """Return the initial weights as the client's own."""
        return {"own": dict(weights)}
