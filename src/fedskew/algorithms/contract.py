"""The contract of a method: a frozen dataclass of hyper-parameters with small pure hooks, whose defaults are FedAvg.

``objective``, ``linear_correction``, ``correct_gradients``, ``on_receive``, ``payload`` and ``client_state`` are
written for ONE client: tensors in, tensors out, no ``.item()``, no ``if`` on a tensor's value. Engines run them for
one client at a time or for all clients of a stack at once (``torch.func.vmap``). A method never uses an engine, a
device or a training loop.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import reduce
from operator import add
from types import SimpleNamespace
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar, cast

import numpy as np
from torch import Tensor

from fedskew.aggregation.mean import Aggregator
from fedskew.algorithms.adaptation import Adaptation
from fedskew.algorithms.calibrator import Calibrator
from fedskew.algorithms.channel import Channel
from fedskew.algorithms.composition import Algorithms, composed
from fedskew.algorithms.initial_weights import InitialWeights
from fedskew.algorithms.poison import Poison
from fedskew.algorithms.selection import Selection
from fedskew.algorithms.topologies import Parallel, Topology
from fedskew.batchnorm.policy import BatchNormPolicy
from fedskew.core.errors import FedskewError
from fedskew.core.registry import Choice, compose, parts_of, validate
from fedskew.core.streams import Floats, Ints, Stream
from fedskew.core.trees import Tensors, Tree
from fedskew.models.layout import Layout
from fedskew.models.low_rank import AdapterLayout

Part = TypeVar("Part", bound="Algorithm")
TRAINED = "trained"  # the part of the client state that local steps train
Weights: TypeAlias = Literal["size", "uniform"]
Requirement: TypeAlias = Literal[
    "features",  # the batch has the inputs of the model's head
    # After local training, ``payload`` and ``client_state`` see the sums of the client's features by class
    "class_features",
    "linear_head",  # the model ends in its head, a linear layer
    "classes",  # labels are classes with one output each: other tasks are refused
    "class_counts",  # likewise, and the view has the client's number of rows of each class
    # ``correct_gradients`` and ``on_receive`` may request the gradient at other weights
    "gradient_at",
    # ``correct_gradients`` may also request it on a second batch of as many rows, drawn apart
    "second_batch",
    # The gradient of a client's mean loss on all its rows, at the weights it starts from
    "full_gradient",
    "loss_before",  # a client's mean loss on all its rows before local training, in ``numbers``
    "loss_after",  # likewise after local training
    # Before ``on_receive``, a client's mean loss on all its rows of each model that it may choose from
    "candidate_losses",
    # ``server_update`` sees the payload of every client, in ``cohort.updates``
    "single_updates",
    "answer_in_use",  # the model that a client uses depends on the server's present answer to it
    "optimizer_state",  # the state of the local optimiser is kept from round to round
    # The server measures how similar each client's update is to that of the round
    "update_agreement",
    "update_distance",  # likewise, by their distance in place of their directions
    "sgd",  # the method is defined for local SGD only
    "private_updates",  # clients may send nothing but one update, whose norm is clipped
    # Privacy by noise that nobody else can draw: nodes, which have the seed of a run, are refused
    "secret_noise",
    "updates",  # clients send updates: methods that train one model on all clients are refused
    # All rows are brought to one place, as the bound of what federated learning can reach
    "pooled_rows",
]


@dataclass(frozen=True)
class Batch:
    """The rows of one local step, as ``objective`` sees them.

    ``logits`` are the model's outputs and ``labels`` the targets of the rows; ``loss`` is the task's mean loss of
    other logits for these rows. ``features`` are the inputs of the model's head (for methods that require them).
    ``logits_at`` and ``features_at`` give the same under other weights; names that these lack are taken from the
    client's own, without gradient. ``mean`` is the mean of one number per row: where rows are padded, only it knows
    which of them are real.
    """

    logits: Tensor
    labels: Tensor
    loss: Callable[[Tensor], Tensor]
    mean: Callable[[Tensor], Tensor]
    logits_at: Callable[[Tensors], Tensor]
    features_at: Callable[[Tensors], Tensor]
    head_inputs: Tensor | None = None  # what ``features`` returns, if the method requires it

    @property
    def features(self) -> Tensor:
        """The inputs of the model's head."""
        if self.head_inputs is None:
            raise FedskewError(
                "view.batch.features needs requires = frozenset({'features'}) in the method"
            )
        return self.head_inputs


def _no_gradient(weights: Tensors) -> Tensors:
    raise FedskewError("view.gradient_at needs requires = frozenset({'gradient_at'}) in the method")


def _no_second_batch(weights: Tensors) -> Tensors:
    raise FedskewError(
        "view.second_gradient_at needs requires = frozenset({'second_batch'}) in the method, and is for "
        "correct_gradients"
    )


@dataclass(frozen=True)
class View:
    """One client during its local training, as the hooks see it.

    ``params`` are being trained, ``start`` is what the client received at the start of the round, ``server`` is what
    ``broadcast`` sent along, ``client_state`` is what the client kept from its last round. ``numbers`` holds scalars
    as tensors: ``size`` (rows), ``steps`` (local steps in all), ``lr``, those of the client's ``TrainConfig`` and,
    for methods that require it, ``loss_before``. ``momentum`` is that of the local optimiser, and ``sent`` are the
    names of the weights that leave the client. ``answer`` is what the server sent this client alone.

    What else a method ``requires`` is in ``class_counts``, ``full_gradient`` and ``class_features`` (for
    ``client_state`` and ``payload``; the latter has, by class, the ``sum`` of the features of the client's rows under
    the trained weights, their ``count``, and ``square``, the sum of their squared lengths), ``gradient_at`` (the
    gradient of what the client minimises on the current batch, at other weights; in ``on_receive``, on the first
    batch), ``second_gradient_at`` (likewise on a second batch of the step) and ``candidate_losses`` (the client's mean
    loss on all its rows under the weights that it received and under each of the ``candidates`` that came with them).
    """

    params: Tensors
    start: Tensors
    server: Tree
    client_state: Tree
    numbers: Tensors
    momentum: float
    batch: Batch | None = None
    class_counts: Tensor | None = None
    full_gradient: Tensors = field(default_factory=dict)
    sent: frozenset[str] = frozenset()
    class_features: Tensors = field(default_factory=dict)
    answer: Tree = field(default_factory=dict)
    candidate_losses: Tensor | None = None
    gradient_at: Callable[[Tensors], Tensors] = _no_gradient
    second_gradient_at: Callable[[Tensors], Tensors] = _no_second_batch


@dataclass(frozen=True)
class Report:
    """The reports of some of a round's clients, one entry for each client.

    ``numbers`` are those of their ``TrainConfig``; also ``loss_before`` and ``loss_after`` local training, on all
    their rows, for methods that require them, and ``staleness`` where the server does not wait for all clients.
    """

    clients: Ints
    sizes: Ints
    steps: Ints
    loss: Floats  # mean over the local steps
    accuracy: Floats  # likewise, of the training batches before each step
    numbers: Mapping[str, Floats] = field(default_factory=dict)
    weights: Weights = "size"  # what a client counts by in the run's setting

    @property
    def base(self) -> Floats:
        """Return what each client counts by: its number of rows, or 1 with ``weights=uniform``."""
        return base_weights(self.sizes, self.weights)


def base_weights(sizes: Ints, weights: Weights) -> Floats:
    """Return what clients with these numbers of rows count by: their rows, or 1 each.

    >>> base_weights(np.array([30, 10]), "size").tolist(), base_weights(np.array([30, 10]), "uniform").tolist()
    ([30.0, 10.0], [1.0, 1.0])
    """
    if weights == "uniform":
        return np.ones(len(sizes))
    return sizes.astype(np.float64)


@dataclass(frozen=True)
class Weighting:
    """How a method weighs clients, beside its hook ``weight``.

    Args:
        by: what a client counts by (``report.base``), its rows or 1; None for the setting of the run
        paper: what a client counts by in the method's paper, for the setting ``weights=paper``
        name: description of the weights in tables; ``{base}`` stands for the run's setting
    """

    by: Weights | None = None
    paper: Weights = "size"
    name: str = "{base}"


@dataclass(frozen=True)
class Cohort:
    """The clients whose payloads ``server_update`` gets, with the weights that the hook ``weight`` returned for them.

    ``total`` is the weight of all clients of the federation, including those that did not take part. ``mean``
    is the plain weighted mean of the payloads, also where a robust rule combined them otherwise. ``expected`` is how
    many clients a round has by the settings, and ``stream`` has the random numbers of the server in this round.
    For methods that require ``single_updates``, ``updates`` are the payloads, stacked, and ``clients`` the numbers of
    their clients.
    """

    weights: Floats
    total: float
    mean: Tree = field(default_factory=dict)
    expected: int = 1
    stream: Stream = field(default_factory=lambda: Stream(0, "server"))
    clients: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    updates: Tree = field(default_factory=dict)

    @property
    def share(self) -> float:
        """Return the share of the cohort in the weight of all clients."""
        return float(self.weights.sum()) / self.total


@dataclass(frozen=True)
class Algorithm:
    """Base class of methods: it has FedAvg's version of every hook, and a method overrides what it changes.

    What is not a hook is an object that a method has: its ``client_selection``, ``topology``, ``aggregator``,
    ``channel``, ``calibrator``, ``batchnorm`` policy, ``weighting``, ``personal_method``, ``adaptation`` and
    ``adapters`` and ``poison``. ``requires`` names what it needs from the engine.

    Where the server state and the client state have a part of the same name, the server's is the mean of the clients'.
    A client whose update does not count keeps its old one, and robust rules leave the plain mean of that part.
    """

    # May be added to any method: derive it from Algorithm, call super() in its hooks
    addition: ClassVar[bool] = False
    # Of a method with additions, what it is composed of
    parts: ClassVar[tuple["type[Algorithm]", ...]] = ()
    # Of these, in which field each option is: part -> option -> field
    places: ClassVar[Mapping["type[Algorithm]", Mapping[str, str]]] = {}
    # Options that the class reads by ``own``, so that another part may have one of the same name
    read_by_part: ClassVar[frozenset[str]] = frozenset()
    # Whether rounds with a sample schedule and rounds in which clients train separately follow each other
    mixes_rounds: ClassVar[bool] = False
    # Computation of one training row relative to FedAvg's, for the simulated clock
    cost_per_row: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        for part in self.parts or (type(self),):
            values = validate(part, self._options_of(part), f"algorithm {part.label()}")
            for name, value in values.items():
                object.__setattr__(self, self._place(part, name), value)

    def __add__(self, other: "Algorithm") -> "Algorithm":
        """Return this method with an addition, or with several: ``FedProx(mu=0.1) + Krum(attackers=2)``."""
        if not isinstance(other, Algorithm):
            return NotImplemented
        kinds: list[type[Algorithm]] = []
        for one in (self, other):
            kinds += one.parts or (type(one),)
        made = composed(tuple(kinds))
        values = {}
        for one in (self, other):
            for part in one.parts or (type(one),):
                for name, value in one._options_of(part).items():
                    values[made.places[part][name]] = value
        return made(**values)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to make it again in another process, where a class with additions must be composed first."""
        return _remade, (self.parts or (type(self),), self.options())

    def options(self) -> dict[str, Any]:
        """Return the hyper-parameters by name."""
        return self._options_of(type(self))

    def own(self, part: "type[Part]") -> "Part":
        """Return the options of one part of this method, also where another part has one of the same name."""
        return cast(Part, SimpleNamespace(**self._options_of(part)))

    def _options_of(self, part: "type[Algorithm]") -> dict[str, Any]:
        return {one.name: getattr(self, self._place(part, one.name)) for one in fields(part)}

    def _place(self, part: "type[Algorithm]", option: str) -> str:
        return self.places.get(part, {}).get(option, option)

    @classmethod
    def label(cls) -> str:
        """Return the registered name or the class name; for a method with additions, those of all parts."""
        return (
            " + ".join(part.label() for part in cls.parts)
            or algorithms.name_of(cls)
            or cls.__name__
        )

    def __str__(self) -> str:
        return str(choice_of(self))

    # -- what a method has and needs ---------------------------------------------------------------------------------

    @property
    def requires(self) -> frozenset[Requirement]:
        """Return what the method needs from the engine or requires of the settings."""
        return frozenset()

    def check_clients(self, clients: int) -> None:
        """Raise an error for options that do not go with so many clients."""

    @property
    def client_selection(self) -> Selection:
        """Return the strategy that selects the clients of a round and configures their training."""
        return Selection()

    def topology(self, round: int) -> Topology:
        """Return how this round moves the model.

        A run is Parallel, Buffered, EdgeServers or a Graph throughout, or else Sequential and Synchronous; with
        ``mixes_rounds`` it is Parallel or Synchronous, and Synchronous in the first round if it ever is.
        """
        return Parallel()

    @property
    def aggregator(self) -> Aggregator:
        """Return the rule that combines the updates of a round."""
        return Aggregator()

    @property
    def channel(self) -> Channel:
        """Return how many bytes what clients send has."""
        return Channel()

    @property
    def calibrator(self) -> Calibrator | None:
        """Return how the model's head is calibrated after the last round, or None."""
        return None

    @property
    def batchnorm(self) -> BatchNormPolicy:
        """Return the method's BatchNorm policy, in addition to the run's setting ``norm``."""
        return BatchNormPolicy()

    @property
    def weighting(self) -> Weighting:
        """Return what clients count by in the mean, and the description of the weights in tables."""
        return Weighting()

    @property
    def personal_method(self) -> "Algorithm | None":
        """Return how each client also trains a model of its own on the same batches, or None.

        It receives the global ``weights``.
        """
        return None

    @property
    def no_shared_model(self) -> str:
        """Return why there is no one model for all clients, although they send all weights; empty if there is one."""
        return ""

    @property
    def adaptation(self) -> Adaptation | None:
        """Return how a client trains the model on its own rows before it uses it, or None."""
        return None

    @property
    def adapters(self) -> AdapterLayout | None:
        """Return which layers of the model get low-rank adapters, which are trained in place of the model, or None."""
        return None

    @property
    def poison(self) -> Poison | None:
        """Return what hostile clients do to their rows before the first round, or None."""
        return None

    # -- the hooks: what is kept and sent ------------------------------------------------------------------------------

    def local_names(self, layout: Layout) -> frozenset[str]:
        """Return the parameters and buffers that never leave their client."""
        return frozenset()

    def init_server_state(self, weights: InitialWeights) -> Tree:
        """Return the server state beside the weights, before the first round.

        ``weights`` are those that clients send; the others can be looked up by name (``InitialWeights``).
        """
        return {}

    def broadcast(self, server_state: Tree) -> Tree:
        """Return the part of the server state that is sent to the clients with the weights."""
        return {}

    def answer(self, server_state: Tree, clients: Ints) -> Tree:
        """Return what the server sends each of these clients alone, beside the broadcast, stacked in their order.

        Weights in a part ``model`` are those that the client receives in place of the global ones, and
        ``candidates`` are models to choose from. Numbers in a part ``numbers`` are those of a ``TrainConfig``: hooks
        see them in ``view.numbers``, and the table of clients shows them.
        """
        return {}

    def init_client_state(self, weights: InitialWeights) -> Tree:
        """Return the state of a client before its first round; ``weights`` as in ``init_server_state``.

        Tensors of a part ``trained`` are trained beside the weights, with a local optimiser of their own that begins
        afresh in every round: each step follows the gradient of the ``objective`` with respect to them.
        """
        return {}

    # -- the hooks: local training -------------------------------------------------------------------------------------

    def on_receive(self, view: View) -> tuple[Tensors, Tree]:
        """Return the weights from which a client starts local training, and its client state from then on.

        ``view.start`` are the weights that it received.
        """
        return view.start, view.client_state

    def trainable(self, layout: Layout, epoch: int, epochs: int) -> frozenset[str]:
        """Return the parameters that are trained in local epoch ``epoch`` of ``epochs``; the others do not change."""
        return layout.parameters

    def objective(self, loss: Tensor, view: View) -> Tensor:
        """Return what a client minimises, from its mean loss on a batch."""
        return loss

    def linear_correction(self, view: View) -> Tree:
        """Return a correction of the gradients that is linear in the weights and the same at every step of a round.

        Gradients get ``scale * weight + offset``, for the tensors named in these two parts; a scale is a number. It
        is cheaper than ``correct_gradients``; ``proximal`` makes one.
        """
        return {}

    def correct_gradients(self, grads: Tensors, view: View) -> Tensors:
        """Return the gradients that the local optimiser uses, from those of the objective."""
        return grads

    def client_state(self, view: View) -> Tree:
        """Return what the client keeps for its next round, at the end of its local training."""
        return view.client_state

    def payload(self, view: View) -> Tree:
        """Return what the client sends: ``delta``, its change of the weights, and whatever else the method needs."""
        return {"delta": difference(view.params, view.start)}

    # -- the hooks: what is used ---------------------------------------------------------------------------------------

    def client_model(self, shared: Tensors, kept: Tree) -> Tensors:
        """Return the weights and buffers of the model that a client uses: those that are scored, predict and exported.

        ``shared`` are those of the global model; where tensors never leave their clients, it has their initial values.
        ``kept`` is what this client keeps: the part ``local``, with the tensors that never leave it, and the parts of
        its client state, ``state.NAME``. Where clients train models of their own (``personal_method``), it is what
        they keep of these, and ``local`` is that whole model. Where the broadcast has candidates to choose from,
        ``candidate`` are the weights of the one with the least loss on the client's rows, empty for the global model,
        and where the method requires ``answer_in_use``, ``answer.NAME`` are the parts of the answer. Every tensor of
        ``shared`` must be in the result. Where the method has an ``adaptation``, the client trains the result on its
        own rows first.
        """
        return {**shared, **kept.get("local", {})}

    # -- the hooks: the server -----------------------------------------------------------------------------------------

    def weight(self, report: Report) -> Floats:
        """Return the weight of each client's update, independent of other clients; the server divides by their sum."""
        return report.base

    def server_update(
        self, weights: Tensors, server_state: Tree, mean: Tree, cohort: Cohort
    ) -> tuple[Tensors, Tree]:
        """Return the new weights and the new server state from the aggregated payloads.

        Buffers that clients receive and never send may be among the new weights.
        """
        return {
            name: weight + mean["delta"][name] for name, weight in weights.items()
        }, server_state

    def metrics(self, server_state: Tree) -> dict[str, float]:
        """Return numbers of the server state for the table of rounds; the same names every round."""
        return {}


def _remade(parts: tuple[type[Algorithm], ...], options: Mapping[str, Any]) -> Algorithm:
    return composed(parts)(**options)


def difference(left: Tensors, right: Tensors) -> Tensors:
    """Return ``left - right``, tensor by tensor."""
    return {name: value - right[name] for name, value in left.items()}


def proximal(anchor: Tensors, strength: Mapping[str, float | Tensor]) -> Tree:
    """Return the linear correction ``strength * (weight - anchor)``, for the tensors that have a strength."""
    scale = {}
    for name, number in strength.items():
        if isinstance(number, Tensor):
            scale[name] = number.to(anchor[name])
        else:
            scale[name] = anchor[name].new_full((), number)
    return {
        "scale": scale,
        "offset": {name: -number * anchor[name] for name, number in scale.items()},
    }


def corrected(grads: Tensors, params: Tensors, correction: Tree) -> Tensors:
    """Return the gradients with a linear correction added."""
    result = dict(grads)
    for name, scale in correction.get("scale", {}).items():
        result[name] = result[name] + scale * params[name]
    for name, offset in correction.get("offset", {}).items():
        result[name] = result[name] + offset
    return result


def overridden(algorithm: Algorithm, hook: str) -> bool:
    """Return whether a method overrides this hook; engines skip defaults that return their input."""
    return getattr(getattr(algorithm, hook), "__func__", None) is not getattr(Algorithm, hook)


algorithms = Algorithms("algorithm", "fedskew.algorithms")


def choice_of(algorithm: Algorithm) -> Choice:
    """Return how an algorithm is written, with every option of every part."""
    parts = algorithm.parts or (type(algorithm),)
    return compose(Choice(part.label(), algorithm._options_of(part)) for part in parts)


def resolve(spec: "str | Mapping[str, Any] | Choice | type[Algorithm] | Algorithm") -> Algorithm:
    """Return an algorithm from its spelling, its class or itself."""
    if isinstance(spec, Algorithm):
        return spec
    if isinstance(spec, type) and issubclass(spec, Algorithm):
        return spec()
    if isinstance(spec, type):
        raise FedskewError(f"{spec.__name__} is not an algorithm: derive it from fedskew.Algorithm")
    parts: list[Choice] = parts_of(algorithms.choose(spec), algorithms.kind)
    return reduce(add, (algorithms.get(part.name)(**part.options) for part in parts))
