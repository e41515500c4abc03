"""APFL: a client uses a mixture of the shared model and a model of its own, and learns how much of each."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedskew.algorithms.contract import TRAINED, View, Weighting, algorithms
from fedskew.algorithms.fedavg import FedAvg
from fedskew.core.errors import FedskewError
from fedskew.core.registry import Share
from fedskew.core.trees import Tensors, Tree


@algorithms.register("apfl")
@dataclass(frozen=True)
class APFL(FedAvg):
    """Adaptive personalised federated learning (Deng, Kamani and Mahdavi 2020, Algorithm 1).

    A client trains the shared weights ``w`` as in FedAvg and, on the same batches, weights ``v`` of its own, so that
    the mixture ``u = a v + (1 - a) w`` fits its rows: ``w <- w - lr grad f(w)`` and ``v <- v - lr a grad f(u)``, the
    latter being the gradient with respect to ``v``. The mixture with the shared weights as they now are is the model
    that it uses. ``v`` and ``a`` never leave the client. With ``adaptive`` a client learns ``a`` at the start of
    each of its rounds, on its first batch: ``a <- a - lr <grad f(u), v - w>``, cut to [0, 1]. Without it,
    ``mixture = 0`` is FedAvg, and ``mixture = 1`` is ``local`` (with an optimiser that begins afresh in every round).

    Readings: ``a`` moves once a round, as in the authors' code, where Algorithm 1 has it in every step; the code's
    regulariser of ``a`` is left out. ``v`` has a local optimiser of its own, with the run's settings. BatchNorm
    normalises by the batch in training, and by the shared running statistics in use. Parts of the model that stay
    with the client are in both models. The work of a client is twice FedAvg's, and one gradient a round.

    Args:
        mixture: share of the client's own weights, at the start where it is learnt
        adaptive: whether clients learn the mixture

    >>> view = View({}, {"w": torch.tensor([1.0])}, {}, {}, {}, 0.0)
    >>> APFL().mixed({"w": torch.tensor([3.0])}, view.start, torch.tensor(0.25))  # 0.25 * 3 + 0.75 * 1
    {'w': tensor([1.5000])}
    """

    requires = frozenset({"gradient_at"})
    cost_per_row: ClassVar[float] = 2.0

    mixture: Annotated[float, Share] = 0.5
    adaptive: bool = True

    @property
    def weighting(self) -> Weighting:
        """Return FedAvg's weighting; the paper weighs clients uniformly."""
        return replace(super().weighting, paper="uniform")

    def mixed(self, own: Tensors, shared: Tensors, alpha: Tensor) -> Tensors:
        """Return the mixture of a client's own weights and the shared ones."""
        return {name: alpha * value + (1 - alpha) * shared[name] for name, value in own.items()}

    def init_client_state(self, weights: Tensors) -> Tree:
        """Return the initial weights as the client's own, and the mixture."""
        if not weights:
            raise FedskewError(
                "apfl mixes shared weights with a client's own, and every weight stays with its client: "
                "use norm=aggregate, or local"
            )
        like = next(iter(weights.values()))
        return {TRAINED: weights, "mixture": {"alpha": like.new_tensor(self.mixture)}}

    def on_receive(self, view: View) -> tuple[Tensors, Tree]:
        """Return the weights as they are, and the mixture after a step."""
        state = view.client_state
        if not self.adaptive:
            return view.start, state
        own = state[TRAINED]
        alpha = state["mixture"]["alpha"]
        grads = view.gradient_at(self.mixed(own, view.start, alpha))
        slopes = [(grads[name] * (value - view.start[name])).sum() for name, value in own.items()]
        moved = alpha - view.numbers["lr"] * torch.stack(slopes).sum()
        return view.start, {**state, "mixture": {"alpha": moved.clamp(0, 1)}}

    def objective(self, loss: Tensor, view: View) -> Tensor:
        """Return the loss of the shared weights plus that of the mixture, which trains the client's own alone."""
        batch = view.batch
        assert batch is not None
        shared = {name: value.detach() for name, value in view.params.items()}
        alpha = view.client_state["mixture"]["alpha"]
        mixed = self.mixed(view.client_state[TRAINED], shared, alpha)
        return loss + batch.loss(batch.logits_at(mixed))

    def client_model(self, shared: Tensors, kept: Tree) -> Tensors:
        """Return the shared model with the mixture of its weights and the client's own."""
        model = super().client_model(shared, kept)
        alpha = kept["state.mixture"]["alpha"]
        return {**model, **self.mixed(kept[f"state.{TRAINED}"], shared, alpha)}
