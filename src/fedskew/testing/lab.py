"""The experiments of the conformance suite: a tiny federation, short trainings on it, and their results in numbers."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch import nn

from fedskew.algorithms.contract import Algorithm, overridden
from fedskew.algorithms.first_gradient import begins_with_gradients
from fedskew.algorithms.topologies import EdgeServers, Graph, Scheduled, Topology
from fedskew.core.config import Settings
from fedskew.core.errors import FedskewError
from fedskew.core.streams import Ints, Stream
from fedskew.core.trees import Tensors
from fedskew.data.dataset import Dataset, Rows
from fedskew.data.federation import Federation
from fedskew.data.partition import Partition
from fedskew.engine.job import Engine
from fedskew.models.build import ModelSpec, build
from fedskew.models.network import Network
from fedskew.server.scorer import RoundResult
from fedskew.server.server import Server
from fedskew.tasks.task import BY_TARGET, resolve
from fedskew.testing.check_report import HOOKS, PARTS, ContractError, NotApplicableError
from fedskew.topology.scheduled_rounds import ScheduledRounds

CLASSES, FEATURES, ROUNDS = 3, 6, 1000
LATE = 6  # rounds in which state that a method hides until the fourth round becomes visible
SIZES = (9, 5, 4, 7, 2, 6)  # batches of 4 leave last batches of 1, 1, 0, 3, 2 and 2 rows
SINGLE_CLASS = 1  # the client with one label only
# All clients, with all rows in every batch
FULL: Mapping[str, Any] = {"batch_size": 64, "per_round": None}


@dataclass(frozen=True)
class Scene:
    """A model and the settings it is trained with."""

    name: str
    model: ModelSpec
    settings: Mapping[str, Any]


def _with_dropout(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Network(nn.Sequential(nn.Linear(shape[0], 8), nn.Tanh(), nn.Dropout(0.5)), 8, classes)


_SGD: Mapping[str, Any] = {"optimizer": "sgd", "momentum": 0.9, "lr": 0.05}
_ADAM: Mapping[str, Any] = {"optimizer": "adam", "lr": 0.01}
PLAIN = Scene("no norm", "mlp:hidden=5", _SGD)
MERGED = Scene("BatchNorm merged", "tabular:hidden=5", {**_SGD, "norm": "aggregate"})
LOCAL = Scene("BatchNorm local", "tabular:hidden=5", {**_SGD, "norm": "local"})
ADAM = Scene("Adam", "mlp:hidden=5", _ADAM)
FLEET = Scene(
    "a fleet with drop-outs", "mlp:hidden=5", {**_SGD, "fleet": "mixed:slow=8,dropout=0.3"}
)
DROPOUT = Scene("dropout", _with_dropout, _SGD)
SCENES = (PLAIN, MERGED, LOCAL, ADAM, FLEET)


@cache
def made_up(purpose: str, count: int) -> Rows:
    """Return rows of Gaussian classes that overlap a little, so that training neither stalls nor finishes early."""
    draw = Stream(0, "conformance", count).generator()
    labels = draw.integers(0, CLASSES, count)
    centres = Stream(0, "conformance centres").generator().normal(size=(CLASSES, FEATURES))
    if purpose == "train":
        first = sum(SIZES[:SINGLE_CLASS])
        labels[first : first + SIZES[SINGLE_CLASS]] = 0
    return Rows((centres[labels] + draw.normal(size=(count, FEATURES))).astype(np.float32), labels)


@cache
def made_up_data() -> Dataset:
    """Return the data of the suite."""
    names = tuple(map(str, range(CLASSES)))
    return Dataset("made up", made_up("train", sum(SIZES)), made_up("test", 8), names)


def some_rows(data: Dataset) -> Dataset:
    """Return as few rows of a data set as the suite needs, drawn at random."""
    if not isinstance(data, Dataset):
        raise FedskewError(
            f"data is a {type(data).__name__}: give a Dataset, as fedskew.load returns it"
        )
    needed = sum(SIZES)
    if len(data.train) < needed:
        raise FedskewError(
            f"data={data.name} has {len(data.train)} training rows, and the checks need {needed}: give more, or "
            "leave data out"
        )
    chosen = np.sort(Stream(0, "conformance rows").sample(len(data.train), needed))
    test = data.test.take(np.arange(min(8, len(data.test))))
    return replace(data, train=data.train.take(chosen), test=test, validation=None, silos=())


def federation(
    rows_by_client: "list[Ints] | None" = None, data: Dataset | None = None
) -> Federation:
    """Return a federation of clients of different sizes, or of clients with these rows."""
    usual = np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])
    if rows_by_client is None:
        rows_by_client = usual
    return Federation(data or made_up_data(), Partition.from_lists(rows_by_client))


@dataclass(frozen=True)
class Trained:
    """A server after some rounds, and the result of each round."""

    server: Server
    results: list[RoundResult]

    def model(self) -> Tensors:
        """Return the global weights, buffers and server state."""
        others: tuple[str, ...] = ("store/", "participation/")
        if not isinstance(self.server.rounds, ScheduledRounds):
            others += ("topology/",)
        found: Tensors = {}
        for name, value in self.server.checkpoint().items():
            if not name.startswith(others):
                found[name] = value
        return found

    def common(self) -> Tensors:
        """Return the same without a server state that has an entry for every client, which depends on their numbers."""
        found = self.model()
        if not overridden(self.server.algorithm, "answer"):
            return found
        return {name: value for name, value in found.items() if not name.startswith("server/")}

    def client_states(self, numbers: Mapping[int, int] | None = None) -> Tensors:
        """Return what clients keep; ``numbers`` maps the clients to include to the numbers to name them by."""
        found: Tensors = {}
        for store in self.server.stores().values():
            for client, called in (numbers or self._all_clients()).items():
                for part, tensors in store.get(np.array([client])).items():
                    for name, value in tensors.items():
                        found[f"client {called} {part}/{name}"] = value[0]
        return found

    def models_in_use(self, numbers: Mapping[int, int] | None = None) -> Tensors:
        """Return the models that clients use, where the method makes or adapts them; renumbered likewise."""
        found: Tensors = {}
        algorithm = self.server.algorithm
        if algorithm.adaptation is None and not overridden(algorithm, "client_model"):
            return found
        for client, called in (numbers or self._all_clients()).items():
            for name, value in self.server.client_model(client).items():
                found[f"client {called} uses {name}"] = value
        return found

    def tables(self, numbers: Mapping[int, int] | None = None) -> Tensors:
        """Return the rows of clients in the tables, renumbered likewise."""
        numbers = numbers or self._all_clients()
        rows = []
        for result in self.results:
            for row in result.clients:
                if row["client"] in numbers:
                    rows.append(row)
        found: Tensors = {}
        for row in rows:
            who = f"round {row['round']} client {numbers[row['client']]}"
            for name, value in row.items():
                if value is not None and name != "client":
                    found[f"{who} {name}"] = torch.tensor(value)
        return found

    def rounds(self) -> Tensors:
        """Return the rows of rounds in the tables."""
        found: Tensors = {}
        for result in self.results:
            row = result.round
            for name, value in row.items():
                if value is not None:
                    found[f"round {row['round']} {name}"] = torch.tensor(value)
        return found

    def everything(self) -> Tensors:
        """Return all that training changes and reports."""
        return {
            **self.model(),
            **self.client_states(),
            **self.models_in_use(),
            **self.tables(),
            **self.rounds(),
        }

    def _all_clients(self) -> dict[int, int]:
        return {client: client for client in range(self.server.trained_on.clients)}


class Lab:
    """Short trainings of one algorithm; ``engines`` are those that can run it, the reference first."""

    def __init__(
        self,
        algorithm: Algorithm,
        engines: tuple[Engine, ...],
        device: str,
        model: ModelSpec | None = None,
        data: Dataset | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.engines = engines
        self.device = device
        self.model = model  # in place of those of the scenes
        self.data = made_up_data()
        if data is not None:
            self.data = some_rows(data)
        self._refusals: dict[str, str | None] = {}

    def fresh(self) -> Algorithm:
        """Return a new, equal algorithm."""
        return replace(self.algorithm)

    def server(
        self,
        scene: Scene,
        engine: Engine,
        fed: Federation | None = None,
        algorithm: Algorithm | None = None,
        **settings: Any,
    ) -> Server:
        """Return a server before its first round; it never evaluates."""
        usual: dict[str, Any] = {
            "rounds": ROUNDS,
            "eval_every": ROUNDS,
            "per_round": 5,
            "epochs": 2,
            "batch_size": 4,
            "threads": 1,
            "dtype": "float64",
            "device": self.device,
        }
        chosen = Settings(**{**usual, **scene.settings, **settings})
        outputs = resolve(BY_TARGET[self.data.target]).width(len(self.data.classes))
        spec = scene.model
        if self.model is not None:
            spec = self.model
        model = build(spec, self.data.shape, outputs, seed=0)
        return Server(fed or self.federation(), model, algorithm or self.fresh(), chosen, engine)

    def federation(self, rows_by_client: "list[Ints] | None" = None) -> Federation:
        """Return a federation of clients of different sizes, or of clients with these rows."""
        return federation(rows_by_client, self.data)

    def run(
        self, rounds: int, scene: Scene, engine: Engine, *args: Any, **settings: Any
    ) -> Trained:
        """Return a server after some rounds."""
        server = self.server(scene, engine, *args, **settings)
        return Trained(server, [server.advance() for _ in range(rounds)])

    def refusal(self, scene: Scene) -> str | None:
        """Return why the method rejects a scene's settings, or None if it does not."""
        if scene.name not in self._refusals:
            self._refusals[scene.name] = self._refusal(scene)
        return self._refusals[scene.name]

    def _refusal(self, scene: Scene) -> str | None:
        try:
            self.server(scene, self.engines[0])
        except FedskewError as reason:
            return str(reason)
        except Exception:  # an error in the method, which is raised again when the scene is run
            return None
        return None

    def scenes(self, *wanted: Scene) -> list[Scene]:
        """Return the scenes that the method does not reject."""
        accepted = [scene for scene in wanted or SCENES if self.refusal(scene) is None]
        if not accepted:
            raise NotApplicableError(
                f"the method rejects the settings: {self.refusal((wanted or SCENES)[0])}"
            )
        return accepted

    def scheduled(self) -> bool:
        """Return whether one model is trained on a sample schedule."""
        return isinstance(self.fresh().topology(0), Scheduled)

    def buffer_size(self) -> int | None:
        """Return how many updates the server waits for; None if it waits for all clients."""
        return getattr(self.fresh().topology(0), "buffer_size", None)

    def on_graph(self) -> bool:
        """Return whether clients exchange models with their neighbours on a graph."""
        return isinstance(self.fresh().topology(0), Graph)

    def has_edges(self) -> bool:
        """Return whether there are edge servers between clients and the cloud."""
        return isinstance(self.fresh().topology(0), EdgeServers)

    def has_ranks(self) -> bool:
        """Return whether the numbers of clients decide which ranks their adapters have."""
        adapters = self.fresh().adapters
        return adapters is not None and bool(adapters.ranks)

    def begins_with_gradients(self) -> bool:
        """Return whether clients do not train in the first round."""
        return begins_with_gradients(self.fresh())

    def pools(self) -> bool:
        """Return whether the method brings all rows to one place."""
        return "pooled_rows" in self.fresh().requires


class Difference:
    """The largest difference over many comparisons."""

    def __init__(self) -> None:
        self.worst = 0.0

    def compare(self, left: Tensors, right: Tensors, allowed: float, what: str) -> None:
        """Raise an error if two sets of named tensors differ by more than ``allowed``; 0 means bit for bit."""
        for name in sorted(left.keys() ^ right.keys()):
            raise ContractError(f"{what}: only one of the two has {name}")
        gaps = {name: distance(value, right[name]) for name, value in left.items()}
        name, worst = max(gaps.items(), key=lambda item: item[1], default=("nothing", 0.0))
        self.worst = max(self.worst, worst)
        if worst > allowed:
            limit = "the bits must be the same"
            if allowed:
                limit = f"allowed is {allowed:g}"
            raise ContractError(f"{what}: {name} differs by {worst:.1e}, {limit}")


def distance(left: torch.Tensor, right: torch.Tensor) -> float:
    """Return the largest difference, relative to the largest value if above 1; infinite if shapes or NaNs differ."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return float("inf")
    if left.numel() == 0 or torch.equal(left, right):
        return 0.0
    a = left.detach().double().cpu()
    b = right.detach().double().cpu()
    gap = float((a - b).abs().max() / b.abs().max().clamp_min(1.0))
    if np.isfinite(gap):
        return gap
    return float("inf")


Around: TypeAlias = Callable[[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


def watched(algorithm: Algorithm, around: Around) -> Algorithm:
    """Return the algorithm with ``around(hook, method, args, kwargs)`` called in place of every hook."""
    return cast(Algorithm, _Watched(algorithm, around))


class _Watched:
    """A method, or an object that it has, with every hook wrapped."""

    def __init__(self, inside: Any, around: Around) -> None:
        self._inside = inside
        self._around = around

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inside, name)
        if name == "topology":
            return self._topology
        if name in PARTS and value is not None:
            return _Watched(value, self._around)
        if name in HOOKS:
            return self._call(name, value)
        return value

    def _topology(self, round: int) -> Topology:
        topology: Topology = self._inside.topology(round)
        if not isinstance(topology, Scheduled):
            return topology
        schedule = self._call("schedule_samples", topology.schedule_samples)
        return replace(topology, schedule_samples=schedule)

    def _call(self, name: str, value: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return self._around(name, value, args, kwargs)

        # The default of a hook is recognised by its function.
        call.__func__ = getattr(value, "__func__", None)  # type: ignore[attr-defined]
        return call


def names_of(engines: Iterable[Engine]) -> str:
    """Return the names of the engines as a list for messages."""
    return ", ".join(type(engine).__name__ for engine in engines)
