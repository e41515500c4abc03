"""IFCA: the server has several models, and each client trains the one that fits its rows best."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch

from fedskew.aggregation.mean import Aggregator
from fedskew.algorithms.cluster_models import (
    CHOICE,
    ByModel,
    choice,
    copies,
    first_models,
    weighted,
)
from fedskew.algorithms.contract import Cohort, Requirement, View, algorithms, difference
from fedskew.algorithms.fedavg import FedAvg
from fedskew.algorithms.initial_weights import InitialWeights
from fedskew.core.errors import FedskewError
from fedskew.core.registry import Bounds
from fedskew.core.trees import Tensors, Tree


@algorithms.register("ifca")
@dataclass(frozen=True)
class IFCA(FedAvg):
    """Iterative federated clustering (Ghosh et al. 2020, Algorithm 1, model averaging).

    The server sends ``models`` models. Each client finds its mean loss on all its rows under each of them, trains the
    one with the least, and sends its update with the number of that model. The server averages the updates of each
    model's clients, by size; a model that no client chose stays as it is. The model that a client uses is the one with
    the least loss on its training rows, chosen anew for every use, so that newcomers have one too. ``models = 1`` is
    FedAvg.

    With ``start=random``, the paper's, the first model has the run's initial weights, and the others have the same
    numbers in another order within each tensor. One model may then win the clients of two clusters; the paper begins
    again with other models. With ``start=updates`` clients train the first model in the first round, and the server
    clusters their updates by their cosines (spherical k-means): each cluster's mean update makes one model. A round
    with fewer updates than models is one of FedAvg, after which there is still one model, and the next round is the
    first. With ``part=head`` the layers before the head are one for all.

    Args:
        models: how many models the server has
        part: of what there are several: the whole model (all), or its head
        start: how the models come to differ: random, or from the first updates

    >>> weights = InitialWeights({"w": torch.arange(5.0)}, {}, frozenset())
    >>> sorted(IFCA(models=2).init_server_state(weights)["candidates"]["w"][0].tolist())
    [0.0, 1.0, 2.0, 3.0, 4.0]
    """

    models: Annotated[int, Bounds(1, 1000)] = 2
    part: Literal["all", "head"] = "all"
    start: Literal["random", "updates"] = "random"

    @property
    def requires(self) -> frozenset[Requirement]:
        """Return that clients find the loss of every model, and whether the server sees single updates."""
        if self.start == "updates":
            return frozenset({"candidate_losses", "single_updates"})
        return frozenset({"candidate_losses"})

    @property
    def no_shared_model(self) -> str:
        """Return that there are several models; empty if there is one."""
        if self.models == 1:
            return ""
        return f"each client uses one of {self.models} models"

    @property
    def aggregator(self) -> Aggregator:
        """Return the mean of each model's updates."""
        if self.start == "updates":
            return ByModel(fewest=self.models)
        return ByModel()

    def init_server_state(self, weights: InitialWeights) -> Tree:
        """Return the models beside the first one, stacked."""
        names = sorted(self._names(weights))
        random = self.start == "random"
        others: Tensors = {}
        if self.models > 1:
            others = copies(weights, names, self.models - 1, shuffle=random)
        begun = weights.any_tensor.new_tensor(random or self.models == 1)
        return {"candidates": others, "begun": {"": begun}}

    def _names(self, weights: InitialWeights) -> set[str]:
        """Return the names of the tensors of which there are several."""
        names = set(weights)
        if self.part == "head":
            names &= weights.head
        if not names:
            raise FedskewError(
                f"ifca with part={self.part} needs weights that clients send, and they send none of these: name the "
                "last layer of the model 'head', or use part=all"
            )
        return names

    def broadcast(self, server_state: Tree) -> Tree:
        """Return all models but the first, which is sent as the weights."""
        return {"candidates": server_state["candidates"]}

    def on_receive(self, view: View) -> tuple[Tensors, Tree]:
        """Return the model with the least loss on the client's rows."""
        return self._chosen(view), view.client_state

    def _chosen(self, view: View) -> Tensors:
        start = dict(view.start)
        for name, others in view.server["candidates"].items():
            every = torch.cat([view.start[name][None], others])
            mine = choice(view).view(-1, *[1] * (every.dim() - 1)) > 0
            # Not a product, because 0 times a model that has diverged is NaN
            start[name] = torch.where(mine, every, 0.0).sum(0)
        return start

    def payload(self, view: View) -> Tree:
        """Return the change of the chosen model, and which one that is."""
        delta = difference(view.params, self._chosen(view))
        return {"delta": delta, CHOICE: {"model": choice(view)}}

    def server_update(
        self, weights: Tensors, server_state: Tree, mean: Tree, cohort: Cohort
    ) -> tuple[Tensors, Tree]:
        """Return the models, each with the mean of the updates of its own clients."""
        if CHOICE not in mean:  # a round without updates
            return weights, server_state
        if not server_state["begun"][""]:
            if len(cohort.clients) < self.models:
                return self._one_model(weights, server_state, mean)
            return self._first_models(weights, server_state, cohort)
        share = mean[CHOICE]["model"]
        moved: Tensors = {}
        others: Tensors = {}
        for name, value in weights.items():
            change = mean["delta"][name]
            if name in server_state["candidates"]:
                every = torch.cat([value[None], server_state["candidates"][name]])
                each = share.to(change).view(-1, *[1] * value.dim())
                every = every + change / torch.where(each > 0, each, 1.0)
                moved[name] = every[0]
                others[name] = every[1:]
            else:
                moved[name] = value + change.sum(0)
        return moved, {**server_state, "candidates": others}

    def _one_model(self, weights: Tensors, server_state: Tree, mean: Tree) -> tuple[Tensors, Tree]:
        """Return FedAvg's new model, and as many copies of it as there will be models."""
        moved: Tensors = {}
        others: Tensors = {}
        for name, value in weights.items():
            change = mean["delta"][name]
            moved[name] = value + change.sum(0)
            if name in server_state["candidates"]:
                others[name] = moved[name].expand(self.models - 1, *value.shape).clone()
        return moved, {**server_state, "candidates": others}

    def _first_models(
        self, weights: Tensors, server_state: Tree, cohort: Cohort
    ) -> tuple[Tensors, Tree]:
        """Return the models that the first updates make: the mean update of each of their clusters."""
        models = first_models(weights, cohort, sorted(server_state["candidates"]), self.models)
        shares = torch.from_numpy(cohort.weights / cohort.weights.sum())
        moved: Tensors = {}
        others: Tensors = {}
        for name, value in weights.items():
            if name in models:
                moved[name] = models[name][0]
                others[name] = models[name][1:]
            else:
                moved[name] = value + weighted(shares, cohort.updates["delta"][name])
        begun = torch.ones_like(server_state["begun"][""])
        return moved, {"candidates": others, "begun": {"": begun}}

    def client_model(self, shared: Tensors, kept: Tree) -> Tensors:
        """Return the model with the least loss on the client's rows."""
        return {**super().client_model(shared, kept), **kept.get("candidate", {})}
