"""FedNova: updates are normalised by the number of local steps."""

from dataclasses import dataclass

from torch import Tensor

from fedskew.algorithms.contract import Cohort, View, algorithms, difference
from fedskew.algorithms.fedavg import FedAvg
from fedskew.core.trees import Tensors, Tree


@algorithms.register("fednova")
@dataclass(frozen=True)
class FedNova(FedAvg):
    """Normalised averaging (Wang et al. 2020, eqs. 5-6): ``w <- w + (sum_k p_k a_k) sum_k p_k (w_k - w) / a_k``.

    ``a_k`` is the weight that a client's gradients carry in its change: its steps ``s`` for plain SGD, and
    ``(s - rho (1 - rho^s) / (1 - rho)) / (1 - rho)`` with local momentum rho. When all clients take the same number of
    steps it is FedAvg. Weight decay and Nesterov momentum are left out of ``a_k``.

    >>> import torch
    >>> FedNova.effective_steps(torch.tensor(3.0), momentum=0.5)  # 1.75 + 1.5 + 1
    tensor(4.2500)
    """

    requires = frozenset({"sgd"})

    @staticmethod
    def effective_steps(steps: Tensor, momentum: float) -> Tensor:
        """Return ``a_k`` of one client: its steps, weighted by momentum."""
        return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)

    def payload(self, view: View) -> Tree:
        """Return the change per effective step, and the number of effective steps."""
        steps = self.effective_steps(view.numbers["steps"], view.momentum)
        delta = difference(view.params, view.start)
        return {
            "delta": {name: value / steps for name, value in delta.items()},
            "normaliser": {"steps": steps},
        }

    def server_update(
        self, weights: Tensors, server_state: Tree, mean: Tree, cohort: Cohort
    ) -> tuple[Tensors, Tree]:
        """Return the weights moved by the mean change per step times the mean number of steps."""
        steps = mean["normaliser"]["steps"]
        return {
            name: weight + steps * mean["delta"][name] for name, weight in weights.items()
        }, server_state
