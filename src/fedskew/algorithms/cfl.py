"""CFL: the server divides clients into clusters when their updates point in different directions."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from torch import Tensor

from fedskew.algorithms.client_models import MODELS, ClientModels, as_rows, mean_model
from fedskew.algorithms.contract import Cohort, Weighting, Weights, algorithms
from fedskew.algorithms.initial_weights import InitialWeights
from fedskew.core.registry import NonNegative
from fedskew.core.streams import Ints
from fedskew.core.trees import Tensors, Tree


@algorithms.register("cfl")
@dataclass(frozen=True)
class CFL(ClientModels):
    """Clustered federated learning (Sattler et al. 2020, Algorithms 1-3).

    All clients begin in one cluster, whose model they train as in FedAvg. A cluster is divided in two when its mean
    update has become short although some client's update is long: then no model fits all of its clients. The division
    has the least possible cosine between updates of different halves, by single linkage. Each half begins with the
    cluster's model. The client uses the model of its cluster. ``eps1 = 0`` is FedAvg.

    A cluster is divided only in a round in which all its clients have sent an update, so that CFL needs all clients
    per round to find clusters. Short and long are relative to the longest mean update of the cluster so far, as the
    paper advises to set its eps1 and eps2. Its further criterion, which compares the cosines across the division with
    those within the halves (gamma), is left out.

    Args:
        weights: what a client counts by, its rows (size) or 1 (uniform); none for the setting of the run
        eps1: the mean update is short below this share of the longest one so far
        eps2: some client's update must be longer than this share of it
        wait: rounds before the first division, and between two of them

    >>> CFL.halves(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.2]])).tolist()
    [True, False, True]
    """

    requires = frozenset({"single_updates", "answer_in_use"})

    weights: Weights | None = None
    eps1: Annotated[float, NonNegative] = 0.4
    eps2: Annotated[float, NonNegative] = 0.6
    wait: Annotated[int, NonNegative] = 5

    @property
    def weighting(self) -> Weighting:
        """Return FedAvg's weighting, within each cluster."""
        return Weighting(by=self.weights)

    @property
    def no_shared_model(self) -> str:
        """Return that there is a model for each cluster."""
        return "each client uses the model of its cluster"

    def init_server_state(self, weights: InitialWeights) -> Tree:
        """Return one cluster of all clients."""
        zeros = weights.any_tensor.new_zeros(weights.clients)
        about = {"number": zeros, "longest": zeros.clone(), "rounds": zeros.clone()}
        return {**super().init_server_state(weights), "cluster": about}

    def answer(self, server_state: Tree, clients: Ints) -> Tree:
        """Return the model and the number of each client's cluster."""
        number = server_state["cluster"]["number"]
        index = torch.from_numpy(clients).to(number.device)
        models = {name: value[index] for name, value in server_state[MODELS].items()}
        return {"model": models, "numbers": {"cluster": number[index]}}

    def server_update(
        self, weights: Tensors, server_state: Tree, mean: Tree, cohort: Cohort
    ) -> tuple[Tensors, Tree]:
        """Return the models of all clusters, each with the mean update of its clients, and new clusters."""
        if not len(cohort.clients):
            return weights, server_state
        models = {name: value.clone() for name, value in server_state[MODELS].items()}
        about = {name: value.clone() for name, value in server_state["cluster"].items()}
        updates = cohort.updates["delta"]
        flat = as_rows(updates).double()
        sent_by = torch.from_numpy(cohort.clients).to(flat.device)
        counts = torch.from_numpy(cohort.weights).to(flat)
        for number in sorted(set(about["number"].tolist())):
            everybody = about["number"] == number
            here = everybody[sent_by]
            if not here.any():
                continue
            shares = counts * here / (counts * here).sum()
            for name, change in updates.items():
                models[name][everybody] += torch.tensordot(shares.to(change), change, dims=1)
            length = torch.linalg.vector_norm(shares @ flat)
            about["longest"][everybody] = about["longest"][everybody].clamp(min=float(length))
            about["rounds"][everybody] += 1
            if int(here.sum()) == int(everybody.sum()):
                self._divide(about, everybody, flat[here], float(length))
        known = server_state["known"]
        return mean_model(models), {MODELS: models, "known": known, "cluster": about}

    def _divide(self, about: Tensors, everybody: Tensor, updates: Tensor, length: float) -> None:
        """Divide a cluster in two if it is time; ``updates`` are those of its clients, in order of their numbers."""
        longest = float(about["longest"][everybody][0])
        farthest = float(torch.linalg.vector_norm(updates, dim=1).max())
        short = length < self.eps1 * longest
        apart = farthest > self.eps2 * longest
        waited = float(about["rounds"][everybody][0]) > self.wait
        if len(updates) < 2 or not (short and apart and waited):
            return
        first = self.halves(updates)
        second = everybody.nonzero().flatten()[~first]
        about["number"][second] = about["number"].max() + 1
        about["rounds"][everybody] = 0.0
        about["longest"][everybody] = 0.0

    @staticmethod
    def halves(updates: Tensor) -> Tensor:
        """Return which clients are in the first half: the largest cosine across halves is the least possible."""
        unit = torch.nn.functional.normalize(updates.double(), dim=1).cpu().numpy()
        upper = np.triu_indices(len(unit), 1)
        distances = np.clip(1 - (unit @ unit.T)[upper], 0, None)
        half = fcluster(linkage(distances, "single"), 2, "maxclust")
        return torch.from_numpy(half == half[0]).to(updates.device)

    def client_model(self, shared: Tensors, kept: Tree) -> Tensors:
        """Return the model of the client's cluster."""
        return {**super().client_model(shared, kept), **kept["answer.model"]}
