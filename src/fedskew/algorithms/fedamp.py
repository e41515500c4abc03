"""FedAMP: the server sends each client a mixture of models, more of those that are like its own."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedskew.algorithms.client_models import MODELS, OwnModels, as_rows
from fedskew.algorithms.contract import View, algorithms, difference, proximal
from fedskew.core.registry import NonNegative, Positive, Share
from fedskew.core.streams import Ints
from fedskew.core.trees import Tensors, Tree


@algorithms.register("fedamp")
@dataclass(frozen=True)
class FedAMP(OwnModels):
    """Attentive message passing (Huang et al. 2021, eqs. 3-6 and, for ``similarity=cosine``, HeurFedAMP, eq. 10).

    Every client has a model ``w_i`` of its own, which it trains on and uses. The server sends it
    ``u_i = xi_ii w_i + sum_j xi_ij w_j``, and the client minimises its loss plus
    ``lam / (2 alpha) ||w - u_i||^2``. By distance, ``xi_ij = alpha exp(-||w_i - w_j||^2 / sigma) / sigma`` and
    ``xi_ii`` is what is left to 1. By cosine, the client's own share is ``own_share``, and the others divide the rest
    in proportion to ``exp(sigma cos(w_i, w_j))``. ``lam = 0`` is ``local`` (with an optimiser that begins afresh in
    every round).

    Readings: local training starts from ``w_i``, as the paper gives no other start. Shares of others that sum to more
    than 1, for which the paper has a small ``alpha``, are divided by their sum. Models of clients that have never
    taken part are not mixed in. The server keeps a model of every client.

    Args:
        lam: strength of the pull towards the mixture
        alpha: step of the mixing
        sigma: how fast shares fall with the distance, or grow with the cosine
        similarity: by what clients are alike: distance, or cosine
        own_share: share of the client's own model in its mixture, by cosine

    >>> models = torch.tensor([[0.0], [1.0]])
    >>> FedAMP(similarity="cosine", own_share=0.25).shares(models[:1], models, torch.tensor([[False, True]])).tolist()
    [[0.0, 0.75]]
    """

    lam: Annotated[float, NonNegative] = 1.0
    alpha: Annotated[float, Positive] = 1.0
    sigma: Annotated[float, Positive] = 1.0
    similarity: Literal["distance", "cosine"] = "distance"
    own_share: Annotated[float, Share] = 0.5

    def shares(self, mine: Tensor, models: Tensor, others: Tensor) -> Tensor:
        """Return the share of every client's model in the mixtures of some clients, but for their own.

        ``mine`` are the models of these, a row each, and ``others`` says whose models may be mixed in.
        """
        if self.similarity == "cosine":
            unit = torch.nn.functional.normalize(models, dim=1)
            cosines = torch.nn.functional.normalize(mine, dim=1) @ unit.T
            scores = torch.where(others, self.sigma * cosines, -torch.inf)
            some = others.any(1, keepdim=True)
            likely = torch.softmax(torch.where(some, scores, 0.0), 1)
            return torch.where(some, (1 - self.own_share) * likely, 0.0)
        squares = torch.cdist(mine, models, compute_mode="donot_use_mm_for_euclid_dist").square()
        shares = torch.where(
            others, self.alpha * torch.exp(-squares / self.sigma) / self.sigma, 0.0
        )
        return shares / shares.sum(1, keepdim=True).clamp(min=1.0)

    def answer(self, server_state: Tree, clients: Ints) -> Tree:
        """Return the mixture of each client."""
        models = server_state[MODELS]
        index = torch.from_numpy(clients)
        flat = as_rows(models)
        index = index.to(flat.device)
        others = (server_state["known"][""] > 0).repeat(len(clients), 1)
        others[torch.arange(len(clients)), index] = False
        shares = self.shares(flat[index], flat, others)
        own = 1 - shares.sum(1)
        mixtures: Tensors = {}
        for name, value in models.items():
            mine = value[index]
            mixed = torch.tensordot(shares.to(value), value, dims=1)
            mixtures[name] = own.to(value).view(-1, *[1] * (value.dim() - 1)) * mine + mixed
        return {"model": mixtures}

    def on_receive(self, view: View) -> tuple[Tensors, Tree]:
        """Return the client's own weights."""
        return {**view.start, **view.client_state["own"]}, view.client_state

    def linear_correction(self, view: View) -> Tree:
        """Return the pull towards the mixture."""
        own = view.client_state["own"]
        mixture = {name: view.start[name] for name in own}
        return proximal(mixture, dict.fromkeys(mixture, self.lam / self.alpha))

    def payload(self, view: View) -> Tree:
        """Return how the client's own model has changed."""
        own = view.client_state["own"]
        return {"delta": difference({name: view.params[name] for name in own}, own)}

    def client_state(self, view: View) -> Tree:
        """Return the trained weights."""
        return {"own": {name: view.params[name] for name in view.client_state["own"]}}

    def client_model(self, shared: Tensors, kept: Tree) -> Tensors:
        """Return the client's own model."""
        return {**super().client_model(shared, kept), **kept["state.own"]}
