"""pFedMe: clients smooth their losses by a model of their own near the shared one."""

from dataclasses import dataclass, replace
from typing import Annotated

from fedskew.algorithms.adaptation import Adaptation
from fedskew.algorithms.contract import Cohort, View, Weighting, algorithms
from fedskew.algorithms.ditto import ProximalToGlobal
from fedskew.algorithms.fedavg import FedAvg
from fedskew.core.registry import AtLeastOne, Positive
from fedskew.core.trees import Tensors, Tree


@algorithms.register("pfedme")
@dataclass(frozen=True)
class PFedMe(FedAvg):
    """Personalised learning with Moreau envelopes (Dinh, Tran and Nguyen 2020, eqs. 2-4, Algorithm 1).

    A client minimises ``F(w) = min_t f(t) + lam/2 ||t - w||^2``, whose gradient is ``lam (w - t(w))``. In every local
    step it finds ``t`` by ``inner_steps`` steps ``t <- t - inner_lr (grad f(t) + lam (t - w))`` from ``t = w`` on the
    batch, and follows that gradient with the run's learning rate (the paper's eta). The server moves to ``(1 - beta) w
    + beta sum_k p_k w_k``. The model that a client uses is ``t(w)`` of the shared weights: as many such steps, each on
    another batch of its rows.

    Readings: ``t`` begins at ``w`` in every step, where the authors' code goes on from the last one and uses a client's
    last local ``t``. The paper leaves open how ``t`` is found; it is gradient descent here, as in its experiments, with
    plain steps. Steps overshoot where ``lr lam`` is large. With one inner step, ``lam inner_lr = 1`` and ``beta = 1``
    it is FedAvg.

    Args:
        lam: strength of the proximal term
        inner_steps: steps that find the client's own model in each local step, the paper's K
        inner_lr: learning rate of these
        beta: how far the server moves towards the mean

    >>> import torch
    >>> gradient = lambda weights: weights  # of w^2 / 2
    >>> view = View({"w": torch.tensor([2.0])}, {}, {}, {}, {}, 0.0, gradient_at=gradient)
    >>> PFedMe(lam=1, inner_steps=2, inner_lr=0.5).correct_gradients({"w": torch.tensor([2.0])}, view)  # 2, 1, 1
    {'w': tensor([1.])}
    """

    requires = frozenset({"gradient_at", "sgd"})

    lam: Annotated[float, Positive] = 15.0
    inner_steps: Annotated[int, AtLeastOne] = 5
    inner_lr: Annotated[float, Positive] = 0.05
    beta: Annotated[float, Positive] = 1.0

    @property
    def weighting(self) -> Weighting:
        """Return FedAvg's weighting; the paper weighs clients uniformly."""
        return replace(super().weighting, paper="uniform")

    @property
    def cost_per_row(self) -> float:  # type: ignore[override]
        """Return the number of gradients of a step."""
        return float(self.inner_steps)

    @property
    def adaptation(self) -> Adaptation:
        """Return how a client finds its own model near the shared one."""
        method = ProximalToGlobal(self.lam)
        return Adaptation(method, steps=self.inner_steps, lr=self.inner_lr, plain=True)

    def correct_gradients(self, grads: Tensors, view: View) -> Tensors:
        """Return the gradient of the envelope."""
        own = dict(view.params)
        for step in range(self.inner_steps):
            if step:
                grads = view.gradient_at(own)
            nearer: Tensors = {}
            for name, value in own.items():
                pull = self.lam * (value - view.params[name])
                nearer[name] = value - self.inner_lr * (grads[name] + pull)
            own = nearer
        return {name: self.lam * (value - own[name]) for name, value in view.params.items()}

    def server_update(
        self, weights: Tensors, server_state: Tree, mean: Tree, cohort: Cohort
    ) -> tuple[Tensors, Tree]:
        """Return the weights moved towards the mean."""
        moved = {}
        for name, weight in weights.items():
            moved[name] = weight + self.beta * mean["delta"][name]
        return moved, server_state
