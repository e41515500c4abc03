"""Per-FedAvg: clients train a model that is good after one step on their own rows."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from fedskew.algorithms.adaptation import Adaptation
from fedskew.algorithms.contract import View, Weighting, algorithms
from fedskew.algorithms.fedavg import FedAvg
from fedskew.algorithms.finetune import PartTraining
from fedskew.core.registry import NonNegative, Positive
from fedskew.core.trees import Tensors


@algorithms.register("per-fedavg")
@dataclass(frozen=True)
class PerFedAvg(FedAvg):
    """Model-agnostic meta-learning over clients (Fallah, Mokhtari and Ozdaglar 2020, Algorithm 1).

    A client minimises ``f(w - a grad f(w))``, its loss after one step of length ``a``. With ``u = w - a grad f(w; D)``
    on the batch ``D`` of a local step and ``g = grad f(u; D')`` on a second one, its gradient is ``(I - a H) g``, where
    ``H`` is the Hessian at ``w``. The first-order version (FO) leaves ``H`` out; the Hessian-free one (HF) takes ``H g
    = (grad f(w + d g) - grad f(w - d g)) / (2 d)``. The step itself is that of the run, with its learning rate (the
    paper's beta). Before a client uses the model it takes one such step of length ``a`` on a batch of its rows.

    Readings: the Hessian of HF is taken on ``D``, where the paper draws a third batch ``D''``. The second batches of an
    epoch are those of another shuffle of the client's rows. ``inner_lr = 0`` is FedAvg, on the second batches.

    Args:
        inner_lr: length of the step that the model is trained for, the paper's alpha
        version: first order (fo), or Hessian-free (hf)
        delta: distance of the two gradients of the Hessian-free version

    >>> import torch
    >>> gradient = lambda weights: weights  # of w^2 / 2
    >>> view = View({"w": torch.tensor([2.0])}, {}, {}, {}, {}, 0.0, gradient_at=gradient, second_gradient_at=gradient)
    >>> methods = [PerFedAvg(inner_lr=0.5, version=version) for version in ("fo", "hf")]
    >>> found = [method.correct_gradients({"w": torch.tensor([2.0])}, view)["w"] for method in methods]
    >>> [round(float(value), 3) for value in found]  # (1 - 0.5) * 2, and (1 - 0.5 H) of it, with H = 1
    [1.0, 0.5]
    """

    requires = frozenset({"gradient_at", "second_batch", "sgd"})

    inner_lr: Annotated[float, NonNegative] = 0.01
    version: Literal["fo", "hf"] = "fo"
    delta: Annotated[float, Positive] = 1e-3

    @property
    def weighting(self) -> Weighting:
        """Return FedAvg's weighting; the paper weighs clients uniformly."""
        return replace(super().weighting, paper="uniform")

    @property
    def cost_per_row(self) -> float:  # type: ignore[override]
        """Return the number of gradients of a step."""
        if self.version == "hf":
            return 4.0
        return 2.0

    @property
    def adaptation(self) -> Adaptation | None:
        """Return the step before use; None for a step of length 0."""
        if self.inner_lr == 0:
            return None
        return Adaptation(PartTraining(), steps=1, lr=self.inner_lr, plain=True)

    def correct_gradients(self, grads: Tensors, view: View) -> Tensors:
        """Return the gradient of the loss after a step."""
        outer = view.second_gradient_at(moved(view.params, grads, -self.inner_lr))
        if self.version == "fo":
            return outer
        above = view.gradient_at(moved(view.params, outer, self.delta))
        below = view.gradient_at(moved(view.params, outer, -self.delta))
        scale = self.inner_lr / (2 * self.delta)
        return {name: value - scale * (above[name] - below[name]) for name, value in outer.items()}


def moved(weights: Tensors, direction: Tensors, length: float) -> Tensors:
    """Return weights moved along a direction."""
    return {name: weights[name] + length * value for name, value in direction.items()}
