"""FedFomo: each client takes from other clients' models as much as they lower its loss."""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from fedskew.algorithms.client_models import MODELS, ClientModels
from fedskew.algorithms.contract import Cohort, View, algorithms
from fedskew.algorithms.initial_weights import InitialWeights
from fedskew.core.errors import FedskewError
from fedskew.core.registry import Positive, Share
from fedskew.core.streams import Floats, Ints, Stream
from fedskew.core.trees import Tensors, Tree


@algorithms.register("fedfomo")
@dataclass(frozen=True)
class FedFomo(ClientModels):
    """First-order model optimisation (Zhang et al. 2021, eqs. 4-5, Algorithm 1).

    The server has the model ``w_i`` of every client. It sends the client that model and ``offers`` of the others. With
    ``L`` its mean loss on its rows, the client finds ``g_n = (L(w_i) - L(w_n)) / ||w_n - w_i||`` for each model
    offered, and starts local training from ``w_i + sum_n a_n (w_n - w_i)``, where ``a_n`` is ``max(g_n, 0)`` over the
    sum of these. Where no model is better than its own, it keeps this. The server adds up ``g_n`` over rounds. It
    offers the models with the largest sums, and in place of each of them a random one with probability ``explore``.
    The client uses its own model as it was last trained. In the first round the models offered are those of the next
    clients by number; of equal sums, random ones come first.

    ``mixing=equal`` gives the models offered and the client's own the same share. With all models offered, and all
    clients in every round, clients start each round from the model of FedAvg with ``weights=uniform``.

    Readings: losses are those on the client's training rows; the paper has validation rows. A model that has just been
    trained on these rows is rarely beaten there, so that FedFomo with all clients in every round is near ``local``. The
    client keeps nothing, so that its own model is sent to it as well.

    Args:
        offers: how many models of other clients a client is sent
        explore: probability with which an offered model is a random one
        mixing: by their losses (loss), or all alike (equal)

    >>> FedFomo.gains(torch.tensor([3.0, 1.0, 4.0]), torch.tensor([2.0, 0.5]))
    tensor([ 1., -2.])
    """

    requires = frozenset({"single_updates", "answer_in_use", "candidate_losses"})

    offers: Annotated[int, Positive] = 5
    explore: Annotated[float, Share] = 0.3
    mixing: Literal["loss", "equal"] = "loss"

    def check_clients(self, clients: int) -> None:
        """Raise an error for a client without others."""
        if clients < 2:
            raise FedskewError(
                "fedfomo offers clients each other's models, and there is 1: use at least 2 clients"
            )

    def init_server_state(self, weights: InitialWeights) -> Tree:
        """Return every client's model, no gains, and at first each client is offered those of the next ones."""
        clients = weights.clients
        gains = weights.any_tensor.new_zeros(clients, clients)
        numbers = torch.arange(clients, device=gains.device)
        next_ones = numbers[1 : 1 + self.offers]
        offered = (numbers[:, None] + next_ones) % clients
        return {**super().init_server_state(weights), "gains": {"sum": gains, "offered": offered}}

    def _offers(self, gains: Tensor, stream: Stream) -> Tensor:
        """Return whose models each client is offered: those with the largest gains, or random ones."""
        clients = len(gains)
        count = min(self.offers, clients - 1)
        draws = stream.uniform(clients * clients + clients * count)
        order = draws[: clients * clients].reshape(clients, clients)
        random = draws[clients * clients :].reshape(clients, count) < self.explore
        rows = []
        for client, sums in enumerate(gains.double().cpu().numpy()):
            rows.append(_offer(client, sums, order[client], random[client]))
        return torch.from_numpy(np.stack(rows)).to(gains.device)

    def answer(self, server_state: Tree, clients: Ints) -> Tree:
        """Return each client's own model, and the models it is offered."""
        models = server_state[MODELS]
        offered = server_state["gains"]["offered"]
        index = torch.from_numpy(clients).to(offered.device)
        own = {name: value[index] for name, value in models.items()}
        others = {name: value[offered[index]] for name, value in models.items()}
        return {"model": own, "candidates": others}

    @staticmethod
    def gains(losses: Tensor, distances: Tensor) -> Tensor:
        """Return what each model offered gains over the client's own, whose loss is the first; 0 for an equal model."""
        apart = distances > 0
        return torch.where(apart, losses[0] - losses[1:], 0.0) / torch.where(apart, distances, 1.0)

    def _gains(self, view: View) -> Tensor:
        assert view.candidate_losses is not None
        squares = torch.zeros_like(view.candidate_losses[1:])
        for name, others in view.answer["candidates"].items():
            squares = squares + (others - view.start[name]).flatten(1).square().sum(1)
        return self.gains(view.candidate_losses, squares.sqrt())

    def on_receive(self, view: View) -> tuple[Tensors, Tree]:
        """Return the client's own model, moved towards those that are better."""
        gains = self._gains(view)
        if self.mixing == "equal":
            shares = torch.full_like(gains, 1 / (len(gains) + 1))
        else:
            better = gains.clamp(min=0)
            total = better.sum()
            shares = better / torch.where(total > 0, total, 1.0)
        start = dict(view.start)
        for name, others in view.answer["candidates"].items():
            away = others - start[name]
            start[name] = start[name] + torch.tensordot(shares.to(away), away, dims=1)
        return start, view.client_state

    def payload(self, view: View) -> Tree:
        """Return the change of the client's own model, and the gains of those it was offered."""
        return {**super().payload(view), "gains": {"": self._gains(view)}}

    def server_update(
        self, weights: Tensors, server_state: Tree, mean: Tree, cohort: Cohort
    ) -> tuple[Tensors, Tree]:
        """Return the models as their clients have trained them, and new offers."""
        if not len(cohort.clients):
            return weights, server_state
        weights, state = super().server_update(weights, server_state, mean, cohort)
        known = server_state["gains"]
        gains = known["sum"].clone()
        index = torch.from_numpy(cohort.clients).to(gains.device)
        offered = known["offered"][index]
        gains[index[:, None], offered] += cohort.updates["gains"][""]
        offers = self._offers(gains, cohort.stream)
        return weights, {**state, "gains": {"sum": gains, "offered": offers}}

    def client_model(self, shared: Tensors, kept: Tree) -> Tensors:
        """Return the client's own model."""
        return {**super().client_model(shared, kept), **kept["answer.model"]}


def _offer(client: int, gains: Floats, order: Floats, random: Floats) -> Ints:
    """Return whose models one client is offered; ``random`` says of each place whether it goes to a random client."""
    others = np.delete(np.arange(len(gains)), client)
    by_chance = others[np.argsort(order[others])]
    drawn = by_chance[: int(random.sum())]
    rest = np.setdiff1d(others, drawn)
    # Of equal gains, those that come first by chance
    best = rest[np.lexsort((order[rest], -gains[rest]))]
    return np.concatenate([drawn, best[: len(random) - len(drawn)]])
