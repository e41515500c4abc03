"""FedNova: a client that took more steps does not count for more."""

from dataclasses import dataclass

from torch import Tensor

from fedskew.algorithms.contract import Crowd, View, algorithms, difference
from fedskew.algorithms.fedavg import FedAvg
from fedskew.core.errors import FedskewError
from fedskew.core.trees import Tensors, Tree


@algorithms.register("fednova")
@dataclass(frozen=True)
class FedNova(FedAvg):
    """Normalised averaging (Wang et al. 2020, eqs. 5-6): ``w <- w + (sum_k p_k a_k) sum_k p_k (w_k - w) / a_k``.

    ``a_k`` is the weight that a client's gradients carry in its change: its steps ``s`` for plain SGD, and
    ``(s - rho (1 - rho^s) / (1 - rho)) / (1 - rho)`` with local momentum rho. When all clients take the same number of
    steps it is FedAvg. Weight decay and Nesterov momentum are left out of ``a_k``.

    >>> import torch
    >>> FedNova.carried(torch.tensor(3.0), momentum=0.5)  # 1.75 + 1.5 + 1
    tensor(4.2500)
    """

    def check(self, *, optimizer: str, per_round: int | None, secure: bool) -> None:
        """The normaliser is derived for SGD."""
        if optimizer != "sgd":
            raise FedskewError(
                f"fednova is defined for local SGD, got optimizer={optimizer}: use optimizer=sgd or another method"
            )

    @staticmethod
    def carried(steps: Tensor, momentum: float) -> Tensor:
        """``a_k`` for one client."""
        return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)

    def payload(self, view: View) -> Tree:
        """The change a step, and the number of effective steps."""
        carried = self.carried(view.numbers["steps"], view.momentum)
        delta = difference(view.params, view.start)
        return {"delta": {name: value / carried for name, value in delta.items()}, "carried": {"steps": carried}}

    def step(self, weights: Tensors, server: Tree, mean: Tree, crowd: Crowd) -> tuple[Tensors, Tree]:
        """Mean change a step, times the mean number of steps."""
        steps = mean["carried"]["steps"]
        return {name: weight + steps * mean["delta"][name] for name, weight in weights.items()}, server
