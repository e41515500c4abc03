"""FedALA: a client learns, weight by weight, how much of the received model to take."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedskew.algorithms.contract import View, algorithms
from fedskew.algorithms.fedavg import FedAvg
from fedskew.algorithms.initial_weights import InitialWeights
from fedskew.core.errors import FedskewError
from fedskew.core.registry import NonNegative, Positive
from fedskew.core.trees import Tensors, Tree


@algorithms.register("fedala")
@dataclass(frozen=True)
class FedALA(FedAvg):
    """Adaptive local aggregation (Zhang et al. 2023, eqs. 4-5, Algorithm 1).

    Local training starts from ``v + (w - v) * s``, entry by entry, where ``w`` is the received model, ``v`` the
    client's own after its last local training and ``s`` in [0, 1] what it has learnt to take of ``w``. On receipt it
    takes ``ala_steps`` steps ``s <- s - ala_lr (w - v) * grad f`` at that start, cut to [0, 1], on the first batch of
    the round. This concerns the head, the paper's p = 1 layer, or all layers; the others start from ``w``. ``s``
    begins at 1 and stays with the client, as does ``v``. The model that a client uses is that mixture with the shared
    weights as they now are. ``ala_steps = 0`` is FedAvg.

    Readings: the paper learns ``s`` on a share of the client's rows, in its first round until the loss settles and then
    for one pass; here it is a fixed number of steps on one batch, which clients in a stack can take together. In its
    first round a client has no model of its own and starts from ``w``.

    Args:
        ala_steps: steps that learn what to take, on every receipt
        ala_lr: learning rate of these
        part: what is mixed: the head, or all layers

    >>> weights = InitialWeights({"head.weight": torch.zeros(2, 3)}, {}, frozenset({"head.weight"}))
    >>> FedALA().init_client_state(weights)["share"]["head.weight"].tolist()
    [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """

    requires = frozenset({"gradient_at"})

    ala_steps: Annotated[int, NonNegative] = 5
    ala_lr: Annotated[float, Positive] = 1.0
    part: Literal["head", "all"] = "head"

    def init_client_state(self, weights: InitialWeights) -> Tree:
        """Return the initial weights, of which nothing is taken before the first round, and shares of 1."""
        names = set(weights)
        if self.part == "head":
            names &= weights.head
        if not names:
            raise FedskewError(
                f"fedala with part={self.part} mixes weights that clients send, and they send none of these: name "
                "the last layer of the model 'head', or use part=all"
            )
        own: Tensors = {}
        share: Tensors = {}
        for name in sorted(names):
            own[name] = weights[name]
            share[name] = torch.ones_like(weights[name])
        never = next(iter(own.values())).new_zeros(())
        return {"own": own, "share": share, "trained_before": {"yes": never}}

    def on_receive(self, view: View) -> tuple[Tensors, Tree]:
        """Return the mixture from which the client starts, and the shares that it has learnt."""
        state = view.client_state
        own = state["own"]
        share = state["share"]
        before = state["trained_before"]["yes"] > 0
        start = mixture(view.start, own, share, before)
        for _ in range(self.ala_steps):
            grads = view.gradient_at(start)
            moved: Tensors = {}
            for name, value in share.items():
                slope = (view.start[name] - own[name]) * grads[name]
                moved[name] = torch.where(before, (value - self.ala_lr * slope).clamp(0, 1), value)
            share = moved
            start = mixture(view.start, own, share, before)
        return start, {**state, "share": share}

    def client_state(self, view: View) -> Tree:
        """Return the weights after local training, with the shares as they were learnt."""
        state = view.client_state
        own = {name: view.params[name] for name in state["own"]}
        seen = torch.ones_like(state["trained_before"]["yes"])
        return {**state, "own": own, "trained_before": {"yes": seen}}

    def client_model(self, shared: Tensors, kept: Tree) -> Tensors:
        """Return the mixture of the shared model with the client's own weights."""
        model = super().client_model(shared, kept)
        before = kept["state.trained_before"]["yes"] > 0
        return mixture(model, kept["state.own"], kept["state.share"], before)


def mixture(received: Tensors, own: Tensors, share: Tensors, before: Tensor) -> Tensors:
    """Return the received weights, of which a client that has trained ``before`` takes shares.

    >>> mixture({"w": torch.tensor([4.0])}, {"w": torch.tensor([2.0])}, {"w": torch.tensor([0.5])}, torch.tensor(True))
    {'w': tensor([3.])}
    """
    mixed = dict(received)
    for name, value in own.items():
        taken = value + (received[name] - value) * share[name]
        mixed[name] = torch.where(before, taken, received[name])
    return mixed
