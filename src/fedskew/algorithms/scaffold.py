"""SCAFFOLD: a client takes its own bias out of every step."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch

from fedskew.algorithms.contract import Crowd, View, Weights, algorithms, difference
from fedskew.algorithms.fedavg import FedAvg
from fedskew.algorithms.fednova import FedNova
from fedskew.core.errors import FedskewError
from fedskew.core.registry import Positive
from fedskew.core.trees import Tensors, Tree


@algorithms.register("scaffold")
@dataclass(frozen=True)
class Scaffold(FedAvg):
    """Control variates against client drift (Karimireddy et al. 2020, Algorithm 1 and eqs. 3-5).

    Every client remembers a control ``c_i``, an estimate of its gradient, and the server holds their mean ``c``; all start at
    0. A local step follows ``g - c_i + c`` (eq. 3). At the end of a round its clients renew their controls (eq. 4):

    - option I: the gradient at ``w_t`` on all of the client's rows, without weight decay and in evaluation mode; it costs one
      more pass over them
    - option II: ``c_i - c + (w_t - w_i) / (a lr)``, the mean of the gradients just used; ``a`` is the number of local steps, or
      with local momentum the weight that their gradients carry (see fednova, also for what is left out of it)

    Then ``w <- w + server_lr mean(w_i - w)`` and ``c <- c + |S|/N mean(c_i+ - c_i)`` (eq. 5), so that ``c`` stays the mean of
    all ``c_i``, whoever was absent; by size, ``|S|/N`` is the share of the rows. That must hold, or the corrections grow
    without end: a client whose update a robust rule leaves out keeps its old control, and ``c`` stays a plain mean under any
    rule. What a client keeps for itself is not corrected. The first round is FedAvg. The paper weighs clients uniformly.

    Args:
        weights: what a client counts by, its rows (size) or 1 (uniform); none for the setting of the run
        option: where the new control comes from, I or II
        server_lr: learning rate of the server

    >>> def w(value): return {"w": torch.tensor([value])}
    >>> numbers = {"steps": torch.tensor(2.0), "lr": torch.tensor(0.5)}
    >>> view = View(w(3.0), w(5.0), {"control": w(0.25)}, {"control": w(1.0)}, numbers, momentum=0.0)
    >>> Scaffold().pull(view), Scaffold().memo(view)  # 0.25 - 1 and 1 - 0.25 + (5 - 3) / (2 * 0.5)
    ({'offset': {'w': tensor([-0.7500])}}, {'control': {'w': tensor([2.7500])}})
    """

    mirrored: ClassVar[frozenset[str]] = frozenset({"control"})
    paper_weights: ClassVar[Weights] = "uniform"

    option: Literal["I", "II"] = "II"
    server_lr: Annotated[float, Positive] = 1.0

    def check(self, *, optimizer: str, per_round: int | None, secure: bool) -> None:
        """Option II reads gradients off the change of the weights, which takes SGD."""
        if self.option == "II" and optimizer != "sgd":
            raise FedskewError(f"scaffold:option=II needs local SGD, got optimizer={optimizer}: use optimizer=sgd or option=I")

    def init(self, weights: Tensors) -> Tree:
        """The server's control starts at zero."""
        return self.remember(weights)

    def broadcast(self, server: Tree) -> Tree:
        """The server's control goes with the weights."""
        return server

    def remember(self, weights: Tensors) -> Tree:
        """A client's starts at zero too."""
        return {"control": {name: torch.zeros_like(weight) for name, weight in weights.items()}}

    def pull(self, view: View) -> Tree:
        """Less the client's own control, plus everybody's."""
        return {"offset": difference(view.server["control"], view.memo["control"])}

    def needs_full_gradient(self) -> bool:
        """Option I is one."""
        return self.option == "I"

    def memo(self, view: View) -> Tree:
        """The new control."""
        own, shared = view.memo["control"], view.server["control"]
        if self.option == "I":
            return {"control": {name: view.full_gradient[name] for name in own}}
        reach = view.numbers["lr"] * FedNova.carried(view.numbers["steps"], view.momentum)
        used = {name: (view.start[name] - view.params[name]) / reach for name in own}
        return {"control": {name: old - shared[name] + used[name] for name, old in own.items()}}

    def payload(self, view: View) -> Tree:
        """The change of the weights and of the control."""
        return {**super().payload(view), "control": difference(self.memo(view)["control"], view.memo["control"])}

    def step(self, weights: Tensors, server: Tree, mean: Tree, crowd: Crowd) -> tuple[Tensors, Tree]:
        """Move both; the absent keep their controls, so the mean over all moves by the share of those who were there."""
        moved = {name: weight + self.server_lr * mean["delta"][name] for name, weight in weights.items()}
        control = {name: old + crowd.share * mean["control"][name] for name, old in server["control"].items()}
        return moved, {"control": control}
