"""The contract of an algorithm: a frozen dataclass of hyper-parameters and small pure hooks, whose defaults are FedAvg.

``objective``, ``correct``, ``payload`` and ``memo`` are written for ONE client: tensors in, tensors out, no ``.item()``, no
``if`` on a tensor's value. Engines run them for one client at a time or for a whole stack at once (``torch.func.vmap``).
An algorithm never sees an engine, a device or a loop.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from torch import Tensor

from fedskew.errors import FedskewError
from fedskew.models.layout import Layout
from fedskew.registry import Choice, Registry, validate
from fedskew.skew.partition import Partition
from fedskew.streams import Floats, Ints, Stream

Tensors: TypeAlias = dict[str, Tensor]
Tree: TypeAlias = dict[str, Tensors]  # named groups of named tensors


@dataclass(frozen=True)
class Roster:
    """What the server knows of the clients when it chooses: one entry a client in every array."""

    round: int
    sizes: Ints
    sampling: Literal["uniform", "size"] = "uniform"


@dataclass(frozen=True)
class View:
    """One client during its local training, as the hooks see it.

    ``params`` are being trained, ``start`` is what they were at the start of the round, ``server`` is what ``broadcast``
    sent along, ``memo`` is what the client remembers from the last time. ``numbers`` holds scalars as tensors: ``size`` (rows),
    ``steps`` (local steps in all), ``lr``. ``momentum`` is that of the local optimiser.
    """

    params: Tensors
    start: Tensors
    server: Tree
    memo: Tree
    numbers: Tensors
    momentum: float


@dataclass(frozen=True)
class Report:
    """What came back from some of a round's clients, one entry a client."""

    clients: Ints
    sizes: Ints
    steps: Ints
    loss: Floats  # mean over the local steps
    accuracy: Floats  # likewise, of the training batches before each step


@dataclass(frozen=True)
class Algorithm:
    """FedAvg's way for every hook; an algorithm overrides only its idea."""

    keeps_optimizer: ClassVar[bool] = False  # the local optimiser's state survives between rounds

    def __post_init__(self) -> None:
        values = validate(type(self), self.options(), f"algorithm {self.label()}")
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def options(self) -> dict[str, Any]:
        """Hyper-parameters by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def label(cls) -> str:
        """Its registered name, or the class name."""
        return algorithms.name_of(cls) or cls.__name__

    def __str__(self) -> str:
        return str(Choice(self.label(), self.options()))

    def check(self, *, optimizer: str) -> None:
        """Refuse training settings for which the method is not defined."""

    def arrange(self, partition: Partition) -> Partition:
        """Whose data is trained on: the clients' own, unless the method pools it."""
        return partition

    def kept(self, layout: Layout) -> frozenset[str]:
        """Parameters and buffers that never leave their client."""
        return frozenset()

    def select(self, roster: Roster, count: int, stream: Stream) -> Ints:
        """The clients of a round: ``count`` different ones, drawn uniformly or in proportion to their size."""
        population = len(roster.sizes)
        if roster.sampling == "uniform" or count == population:
            return np.sort(stream.sample(population, count))
        # Efraimidis-Spirakis: the largest u^(1/size) are a draw without replacement, proportional to size.
        score = np.log(stream.uniform(population) + 2.0**-54) / roster.sizes
        return np.sort(np.argpartition(score, population - count)[population - count :])

    def init(self, weights: Tensors) -> Tree:
        """Server state beside the weights, before the first round."""
        return {}

    def broadcast(self, server: Tree) -> Tree:
        """The part of the server state that is sent to the clients with the weights."""
        return {}

    def remember(self, weights: Tensors) -> Tree:
        """The memo of a client that was never chosen before."""
        return {}

    def objective(self, loss: Tensor, view: View) -> Tensor:
        """What a client minimises, from its mean loss on a batch."""
        return loss

    def correct(self, grads: Tensors, view: View) -> Tensors:
        """What happens to the gradient before the local optimiser sees it."""
        return grads

    def memo(self, view: View) -> Tree:
        """What the client remembers for the next time, at the end of its local training."""
        return view.memo

    def payload(self, view: View) -> Tree:
        """What the client sends: ``delta``, its change of the weights, and whatever else the method needs."""
        return {"delta": difference(view.params, view.start)}

    def weigh(self, report: Report) -> Floats:
        """Relative weight of each client on its own; the engine divides by the sum over the round."""
        return report.sizes.astype(np.float64)

    def step(self, weights: Tensors, server: Tree, mean: Tree) -> tuple[Tensors, Tree]:
        """New weights and server state from the weighted mean of the payloads."""
        return {name: weight + mean["delta"][name] for name, weight in weights.items()}, server


def difference(left: Tensors, right: Tensors) -> Tensors:
    """``left - right``, tensor by tensor."""
    return {name: value - right[name] for name, value in left.items()}


algorithms: Registry[type[Algorithm]] = Registry("algorithm", "fedskew.algorithms")


def resolve(spec: "str | Mapping[str, Any] | Choice | type[Algorithm] | Algorithm") -> Algorithm:
    """An algorithm from its spelling, its class or itself."""
    if isinstance(spec, Algorithm):
        return spec
    if isinstance(spec, type) and issubclass(spec, Algorithm):
        return spec()
    if isinstance(spec, type):
        raise FedskewError(f"{spec.__name__} is not an algorithm: derive it from fedskew.Algorithm")
    choice = algorithms.choose(spec)
    return algorithms.get(choice.name)(**choice.options)
