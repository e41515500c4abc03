"""The contract of an algorithm: a frozen dataclass of hyper-parameters and small pure hooks, whose defaults are FedAvg.

``objective``, ``correct``, ``payload`` and ``memo`` are written for ONE client: tensors in, tensors out, no ``.item()``, no
``if`` on a tensor's value. Engines run them for one client at a time or for a whole stack at once (``torch.func.vmap``).
An algorithm never sees an engine, a device or a loop.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import reduce
from operator import add
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedskew.algorithms.composition import Algorithms, composed
from fedskew.core.errors import FedskewError
from fedskew.core.registry import Choice, compose, parts_of, validate
from fedskew.core.streams import Floats, Ints, Stream
from fedskew.core.trees import Tensors, Tree
from fedskew.data.partition import Partition
from fedskew.models.layout import Layout
from fedskew.topology.holdings import Holdings
from fedskew.topology.sample_schedule import Walk

Topology: TypeAlias = Literal["parallel", "chain", "lockstep"]
Weights: TypeAlias = Literal["size", "uniform"]
Labels: TypeAlias = Literal["nothing", "counts", "shares"]
Probe: TypeAlias = Literal["loss", "loss_variance", "gradient_variance"]


def _everything(clients: Ints) -> Floats:
    return np.ones(len(clients))


@dataclass(frozen=True)
class Roster:
    """What the server knows of the clients that it may choose now: one entry a client in every array.

    ``told`` is what they said of themselves (``disclose``). ``selected``, ``completed``, ``spent`` (simulated seconds of local
    training in the rounds that they completed) and ``agreed`` (the sum over these rounds of how much their change was like the
    server's, for methods with ``needs_agreement``) are their history. ``capacity`` gives, for positions in the roster,
    how much of the largest machine of the fleet each one is, in (0, 1].
    """

    round: int
    sizes: Ints
    sampling: Literal["uniform", "size"] = "uniform"
    batch_size: int = 32
    epochs: int = 1
    told: Mapping[str, Floats] = field(default_factory=dict)
    selected: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    completed: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    spent: Floats = field(default_factory=lambda: np.zeros(0))
    agreed: Floats = field(default_factory=lambda: np.zeros(0))
    capacity: Callable[[Ints], Floats] = _everything


@dataclass(frozen=True)
class Orders:
    """Who of the chosen trains, and how: ``members`` are positions in the roster, everything else has an entry for each.

    ``numbers`` reach the hooks as ``view.numbers`` and ``report.numbers``, and the record as columns of the table of clients.
    """

    members: Ints
    batch: Ints
    epochs: Ints
    numbers: Mapping[str, Floats] = field(default_factory=dict)


@dataclass(frozen=True)
class Batch:
    """The rows of one local step, for methods with ``uses_features``.

    ``features`` is the representation of the rows, the input of the model's head, with gradient. ``represent`` gives it under
    other weights, without gradient; names that these lack are taken from the client's own. ``mean`` is the mean of one number a
    row; where rows are padded, only it knows which are real.
    """

    features: Tensor
    represent: Callable[[Tensors], Tensor]
    mean: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class View:
    """One client during its local training, as the hooks see it.

    ``params`` are being trained, ``start`` is what they were at the start of the round, ``server`` is what ``broadcast``
    sent along, ``memo`` is what the client remembers from the last time. ``numbers`` holds scalars as tensors: ``size`` (rows),
    ``steps`` (local steps in all), ``lr``, and those of the client's orders. ``momentum`` is that of the local optimiser.
    ``full_gradient`` is there for ``memo`` and ``payload``, if ``needs_full_gradient`` asks for it.
    """

    params: Tensors
    start: Tensors
    server: Tree
    memo: Tree
    numbers: Tensors
    momentum: float
    batch: Batch | None = None
    full_gradient: Tensors = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """What came back from some of a round's clients, one entry a client.

    ``numbers`` are those of their orders; with ``measures_fall`` also ``loss_before`` and ``loss_after`` local training, on all
    their rows; ``staleness`` where training is asynchronous.
    """

    clients: Ints
    sizes: Ints
    steps: Ints
    loss: Floats  # mean over the local steps
    accuracy: Floats  # likewise, of the training batches before each step
    numbers: Mapping[str, Floats] = field(default_factory=dict)
    weights: Weights = "size"  # what the run's setting says a client counts by

    @property
    def base(self) -> Floats:
        """What each client counts by itself: its number of rows, or 1 with ``weights=uniform``."""
        return base_weights(self.sizes, self.weights)


def base_weights(sizes: Ints, weights: Weights) -> Floats:
    """What clients with so many rows count by: their rows, or 1 each.

    >>> base_weights(np.array([30, 10]), "size").tolist(), base_weights(np.array([30, 10]), "uniform").tolist()
    ([30.0, 10.0], [1.0, 1.0])
    """
    return np.ones(len(sizes)) if weights == "uniform" else sizes.astype(np.float64)


@dataclass(frozen=True)
class Crowd:
    """Whose payloads ``step`` is given: the weights of the clients that count, as ``weigh`` gave them.

    ``total`` is what all clients of the federation would weigh together, those that were not there too. ``mean`` is the plain
    weighted mean of the payloads of the clients that count, also where a robust rule made something else of them for ``step``.
    """

    weights: Floats
    total: float
    mean: Tree = field(default_factory=dict)

    @property
    def share(self) -> float:
        """Part of the weight of all clients."""
        return float(self.weights.sum()) / self.total


@dataclass(frozen=True)
class Algorithm:
    """FedAvg's way for every hook; an algorithm overrides only its idea."""

    keeps_optimizer: ClassVar[bool] = False  # the local optimiser's state survives between rounds
    uses_features: ClassVar[bool] = False  # hooks look at ``view.batch``
    one_by_one: ClassVar[bool] = False  # steps of one sample, which BatchNorm cannot normalise
    measures_fall: ClassVar[bool] = False  # clients report their loss before and after local training
    looks: ClassVar[int] = 0  # forward passes of other models on every row that a client trains on
    # Parts of the memo whose mean over all clients the server holds as well. A client whose update does not count keeps its old
    # ones, and of payload parts with these names robust rules leave the plain mean.
    mirrored: ClassVar[frozenset[str]] = frozenset()
    paper_weights: ClassVar[Weights] = "size"  # what a client counts by in the method's paper, for weights=paper
    weighs_by: ClassVar[str] = "{base}"  # what tables say of the clients' weights; base is what the run's setting says
    addition: ClassVar[bool] = False  # may be added to any method: derive it from Algorithm, call super() in its hooks
    parts: ClassVar[tuple["type[Algorithm]", ...]] = ()  # of a method with additions, what it is composed of

    def __post_init__(self) -> None:
        for part in self.parts or (type(self),):
            values = validate(part, self._options_of(part), f"algorithm {part.label()}")
            for name, value in values.items():
                object.__setattr__(self, name, value)

    def __add__(self, other: "Algorithm") -> "Algorithm":
        """This method with an addition, or with several: ``FedProx(mu=0.1) + Krum(attackers=2)``."""
        if not isinstance(other, Algorithm):
            return NotImplemented
        parts = [part for one in (self, other) for part in one.parts or (type(one),)]
        return composed(tuple(parts))(**self.options(), **other.options())

    def options(self) -> dict[str, Any]:
        """Hyper-parameters by name."""
        return self._options_of(type(self))

    def _options_of(self, part: "type[Algorithm]") -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(part)}

    @classmethod
    def label(cls) -> str:
        """Its registered name, or the class name; those of all parts for a method with additions."""
        return " + ".join(part.label() for part in cls.parts) or algorithms.name_of(cls) or cls.__name__

    def __str__(self) -> str:
        return str(choice_of(self))

    def check(self, *, optimizer: str, per_round: int | None, secure: bool) -> None:
        """Refuse training settings for which the method is not defined; ``per_round`` is None as long as it is not known."""

    def arrange(self, partition: Partition) -> Partition:
        """Whose data is trained on: the clients' own, unless the method pools it."""
        return partition

    def kept(self, layout: Layout) -> frozenset[str]:
        """Parameters and buffers that never leave their client."""
        return frozenset()

    def fixed(self, layout: Layout) -> frozenset[str]:
        """Parameters and buffers that the server never changes: clients begin every round with them, and do not send theirs."""
        return frozenset()

    def disclose(self, counts: Ints, stream: Stream) -> dict[str, Floats]:
        """What clients say of themselves once, before the first round; ``counts`` are their rows by label: client x label."""
        return {}

    def select(self, roster: Roster, count: int, stream: Stream) -> Ints:
        """The clients of a round, as positions in the roster: ``count`` different ones, drawn uniformly or by their size."""
        population = len(roster.sizes)
        if roster.sampling == "uniform" or count == population:
            return np.sort(stream.sample(population, count))
        # Efraimidis-Spirakis: the largest u^(1/size) are a draw without replacement, proportional to size.
        score = np.log(stream.uniform(population) + 2.0**-54) / roster.sizes
        return np.sort(np.argpartition(score, population - count)[population - count :])

    def probe(self) -> tuple[Probe, ...]:
        """What each chosen client measures at the global model before it gets its orders, on some of its rows."""
        return ()

    def probe_rows(self, roster: Roster, chosen: Ints) -> Ints:
        """On how many of its rows each of the ``chosen`` (positions in the roster) measures; no more than it has are taken."""
        return np.full(len(chosen), roster.batch_size)

    def orders(self, roster: Roster, chosen: Ints, probed: Mapping[str, Floats], count: int) -> Orders:
        """Who of the ``chosen`` (positions in the roster) trains, and how; ``probed`` has an entry for each of the chosen.

        Nobody is in ``chosen`` where no client of a round with a deadline has measured in time.
        """
        return Orders(chosen, np.full(len(chosen), roster.batch_size), np.full(len(chosen), roster.epochs))

    def awaits(self) -> int | None:
        """After how many answers the server takes its step while others are still at work; None: it waits for all of them."""
        return None

    def topology(self, round: int) -> Topology:
        """How a round moves the model: copies train apart (parallel), one is passed on (chain), gradients meet (lockstep)."""
        return "parallel"

    def walk(self, holdings: Holdings, roster: Roster, stream: Stream) -> Walk:
        """For a chain or lock-step: which sample of whom is trained on next, for the whole round."""
        raise NotImplementedError(f"{self.label()} walks in no order: topology() says chain or lockstep, and walk() is missing")

    def reads(self) -> Labels:
        """What a server that schedules by label knows of them: how many there are of each, or every client's share of them.

        With the setting ``secure``, ``holdings`` have placeholders for labels, and the server is told just that.
        """
        return "nothing"

    def check_labels(self, holdings: Holdings) -> None:
        """Refuse holdings that the method cannot schedule; called once, before the first round of a chain or lock-step."""

    def pace(self, roster: Roster) -> float:
        """The learning rate of a walk, as a multiple of the setting's."""
        return 1.0

    def personal(self) -> "Algorithm | None":
        """How each chosen client also trains a model all of its own, on the same batches; it gets the global ``weights``."""
        return None

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

    def shares_norm(self, step: int) -> bool:
        """Whether, at this local step, the clients still at work normalise with common BatchNorm statistics, their mean."""
        return False

    def needs_full_gradient(self) -> bool:
        """Whether each client takes the gradient of its mean loss on all its rows at ``start``, in evaluation mode."""
        return False

    def needs_agreement(self) -> bool:
        """Whether the server measures how much each client's ``delta`` is like that of the round: (1 + cosine) / 2."""
        return False

    def pull(self, view: View) -> Tree:
        """A correction that is linear in the weights and the same at every step of a round: cheaper than ``correct``.

        Gradients get ``scale * weight + offset``, for the tensors named in these two parts; a scale is a number. ``pull_to``
        makes one.
        """
        return {}

    def memo(self, view: View) -> Tree:
        """What the client remembers for the next time, at the end of its local training."""
        return view.memo

    def payload(self, view: View) -> Tree:
        """What the client sends: ``delta``, its change of the weights, and whatever else the method needs."""
        return {"delta": difference(view.params, view.start)}

    def counts_by(self, setting: Weights) -> Weights:
        """What a client counts by in the mean, its rows or 1: as the run's setting says, unless the method insists."""
        return setting

    def weigh(self, report: Report) -> Floats:
        """Relative weight of each client on its own; the engine divides by the sum over the round."""
        return report.base

    def quorum(self) -> int:
        """How many sound updates a round needs; with fewer, the server leaves its weights as they are."""
        return 1

    def combine(self, payloads: Tree, weights: Tensor) -> tuple[Tree, Tensor]:
        """One payload from the stacked ones of a round's clients, and what each client's share in it is.

        ``weights`` sum to 1, and so do the shares that are returned; a client with share 0 was left out. The default is the
        weighted mean, which the engine adds up on arrival.
        """
        return weighted_mean(payloads, weights), weights

    def step(self, weights: Tensors, server: Tree, mean: Tree, crowd: Crowd) -> tuple[Tensors, Tree]:
        """New weights and server state from the combined payloads."""
        return {name: weight + mean["delta"][name] for name, weight in weights.items()}, server

    def notes(self, server: Tree) -> dict[str, float]:
        """Numbers of the server state that the table of rounds shows; the same names every round."""
        return {}

    def calibrates_every(self) -> int | None:
        """After how many rounds a copy of the model with a new head is scored; None: only after the last round."""
        return None

    def tally(self, features: Tensor, labels: Tensor, classes: int) -> Tree:
        """Sums over some rows of a client that ``finish`` needs; ``features`` are the inputs of the head at the end."""
        return {}

    def finish(self, head: Tensors, total: Tree, classify: Callable[[Tensors, Tensor], Tensor], stream: Stream) -> Tensors:
        """A new head after the last round, from the sum of all tallies; ``classify(head, features)`` gives logits."""
        return head


def weighted_mean(payloads: Tree, weights: Tensor) -> Tree:
    """The sum of stacked payloads, each times its client's weight."""
    return {
        part: {name: torch.tensordot(weights.to(value), value, dims=1) for name, value in tensors.items()}
        for part, tensors in payloads.items()
    }


def difference(left: Tensors, right: Tensors) -> Tensors:
    """``left - right``, tensor by tensor."""
    return {name: value - right[name] for name, value in left.items()}


def pull_to(anchor: Tensors, strength: Mapping[str, float | Tensor]) -> Tree:
    """The pull with the gradient ``strength * (weight - anchor)``, for the tensors that have a strength."""
    scale = {
        name: number.to(anchor[name]) if isinstance(number, Tensor) else anchor[name].new_full((), number)
        for name, number in strength.items()
    }
    return {"scale": scale, "offset": {name: -number * anchor[name] for name, number in scale.items()}}


def pulled(grads: Tensors, params: Tensors, pull: Tree) -> Tensors:
    """Gradients with a pull."""
    result = dict(grads)
    for name, scale in pull.get("scale", {}).items():
        result[name] = result[name] + scale * params[name]
    for name, offset in pull.get("offset", {}).items():
        result[name] = result[name] + offset
    return result


def overridden(algorithm: Algorithm, hook: str) -> bool:
    """Whether a method says something of its own here; the default costs nothing then."""
    return getattr(getattr(algorithm, hook), "__func__", None) is not getattr(Algorithm, hook)


algorithms = Algorithms("algorithm", "fedskew.algorithms")


def choice_of(algorithm: Algorithm) -> Choice:
    """How an algorithm is written, with every option of every part."""
    parts = algorithm.parts or (type(algorithm),)
    return compose(Choice(part.label(), algorithm._options_of(part)) for part in parts)


def resolve(spec: "str | Mapping[str, Any] | Choice | type[Algorithm] | Algorithm") -> Algorithm:
    """An algorithm from its spelling, its class or itself."""
    if isinstance(spec, Algorithm):
        return spec
    if isinstance(spec, type) and issubclass(spec, Algorithm):
        return spec()
    if isinstance(spec, type):
        raise FedskewError(f"{spec.__name__} is not an algorithm: derive it from fedskew.Algorithm")
    parts: list[Choice] = parts_of(algorithms.choose(spec), algorithms.kind)
    return reduce(add, (algorithms.get(part.name)(**part.options) for part in parts))
