"""The selection strategy of a method: which clients take part in a round, and how they are configured to train."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, TypeAlias

import numpy as np

from fedskew.core.device_streams import KEY_BITS
from fedskew.core.streams import Floats, Ints, Stream, bits
from fedskew.core.trees import Tree

# What the server records of every client
RECORDS = ("selected", "completed", "seconds", "agreement")
Probe: TypeAlias = Literal["loss", "loss_variance", "gradient_variance"]


def _full_capacity(clients: Ints) -> Floats:
    return np.ones(len(clients))


@dataclass(frozen=True)
class SelectionTotals:
    """Counts, sums and extremes over all clients that the server has selected so far; every entry has the same shape.

    Args:
        selected: how many clients were ever selected
        completed: how many of them have completed a round
        reliability: sum over the selected ones of their shares of completed rounds
        seconds: sum over those that completed of their mean training times
        squares: sum of the squares of these times
        shortest: the least of these times, infinite if there is none; longest likewise, minus infinity
        agreement: sum over those that completed of how similar their updates were to the server's, on average
    """

    selected: Ints
    completed: Ints
    reliability: Floats
    seconds: Floats
    squares: Floats
    shortest: Floats
    longest: Floats
    agreement: Floats

    @classmethod
    def of(
        cls, selected: Ints, completed: Ints, seconds: Floats, agreement: Floats
    ) -> "SelectionTotals":
        """Return the standing of the clients along the last axis of their records."""
        done = completed > 0
        rounds = np.maximum(completed, 1)
        time = seconds / rounds
        return cls(
            (selected > 0).sum(-1),
            done.sum(-1),
            (completed / np.maximum(selected, 1)).sum(-1),
            np.where(done, time, 0.0).sum(-1),
            np.where(done, time**2, 0.0).sum(-1),
            np.where(done, time, np.inf).min(-1, initial=np.inf),
            np.where(done, time, -np.inf).max(-1, initial=-np.inf),
            np.where(done, agreement / rounds, 0.0).sum(-1),
        )


@dataclass(frozen=True)
class ClientPool:
    """What the server knows about the clients that it may select now; every array has one entry for each of them.

    ``len(pool)`` is their number, and ``pool.at(positions)`` the same about some of them: cheap also where the pool
    has millions of clients, while an array of all of them may have to be made when it is read.

    ``profile`` holds the numbers that clients reported of themselves (``Selection.client_profile``). ``selected`` and
    ``completed`` count rounds, ``seconds`` is the simulated time of local training in the completed ones, and
    ``agreement`` is the sum over these rounds of how similar a client's update was to the server's, for methods that
    require ``update_agreement``. ``capacity`` gives, for positions in the pool, how fast each client's machine is in
    comparison with the fastest one of the fleet, in (0, 1]. ``standing`` sums up the records of all clients, also of
    those that cannot be selected now.
    """

    round: int
    sizes: Ints
    sampling: Literal["uniform", "size"] = "uniform"
    batch_size: int = 32
    epochs: int = 1
    profile: Mapping[str, Floats] = field(default_factory=dict)
    selected: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    completed: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    seconds: Floats = field(default_factory=lambda: np.zeros(0))
    agreement: Floats = field(default_factory=lambda: np.zeros(0))
    capacity: Callable[[Ints], Floats] = _full_capacity
    # What past rounds taught about ``Selection.learns_from``: X'X with X'y as its last column, 1 being the first of X
    lessons: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    # The standing of all clients; None: that of the pool
    all_clients: Callable[[], SelectionTotals] | None = None

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def standing(self) -> SelectionTotals:
        """Return the standing of all clients that the server has selected so far."""
        if self.all_clients:
            return self.all_clients()
        if len(self.agreement):
            agreement = self.agreement
        else:
            agreement = np.zeros(len(self.seconds))
        return SelectionTotals.of(self.selected, self.completed, self.seconds, agreement)

    def at(self, positions: Ints) -> "ClientPool":
        """Return the pool with only the clients at these positions."""
        return replace(
            self,
            sizes=self.sizes[positions],
            profile={name: values[positions] for name, values in self.profile.items()},
            **{name: values[positions] for name in RECORDS if len(values := getattr(self, name))},
            capacity=lambda some: self.capacity(positions[some]),
            all_clients=self.all_clients or (lambda: self.standing),
        )


@dataclass(frozen=True)
class TrainConfig:
    """Which of the selected clients train, and how.

    ``clients`` are positions in the pool; the other arrays follow their order.

    ``numbers`` reach the hooks as ``view.numbers`` and ``report.numbers``, and are columns of the table of clients.
    """

    clients: Ints
    batch_size: Ints
    epochs: Ints
    numbers: Mapping[str, Floats] = field(default_factory=dict)


@dataclass(frozen=True)
class Telling:
    """How clients tell their profiles.

    Args:
        parts: what a client tells at a time, a number each
        refresh: rounds after which a client tells again; None: once
        most: how often a client tells at most; None: without end
        candidates: how many clients are drawn in a round, tell, and are selected from; None: all
        totals: how many numbers each of them adds to sums over all of them, which they get back
        epsilon: the privacy of all that a client tells over the whole run; None: no noise
    """

    parts: tuple[str, ...]
    refresh: int | None = None
    most: int | None = None
    candidates: int | None = None
    totals: int = 0
    epsilon: float | None = None

    @property
    def in_rounds(self) -> bool:
        """Return whether clients tell in rounds, in place of all of them once before the first round."""
        return self.refresh is not None or self.candidates is not None


class Selection:
    """Uniform selection, or selection in proportion to size, with the run's settings as the training configuration.

    A method with another strategy derives from this class and overrides what differs.
    """

    probe: ClassVar[
        tuple[Probe, ...]
    ] = ()  # what each selected client measures on the global model before it is configured
    # Numbers of a ``TrainConfig`` from which the server learns how well a client's update will agree with the others
    learns_from: tuple[str, ...] = ()
    # How clients tell their profiles; None: all of them once, before the first round
    telling: Telling | None = None

    def client_profile(self, label_counts: Callable[[], Ints], stream: Stream) -> dict[str, Floats]:
        """Return numbers that clients report once, before the first round; ``label_counts()`` is clients x classes.

        Where clients tell in rounds (``telling``), these are what they know, and ``tell`` returns what they report.
        """
        return {}

    def tell(
        self, pool: ClientPool, due: Ints, clients: Ints, times: Ints, seed: int
    ) -> dict[str, Floats]:
        """Return the parts of profiles that clients report now, if they tell in rounds (``telling``).

        They are at the positions ``due`` of the pool, have the numbers ``clients``, and told so many ``times`` before.
        """
        return {}

    def clients_wanted(self, server_state: Tree, most: int) -> int:
        """Return how many clients the next round is to have: ``most``, the number of the settings, or fewer."""
        return most

    def select(self, pool: ClientPool, count: int, stream: Stream) -> Ints:
        """Return ``count`` different clients as positions in the pool, drawn uniformly or in proportion to size."""
        population = len(pool)
        if pool.sampling == "uniform" or count == population:
            return np.sort(stream.sample(population, count))
        return stream.weighted_sample(pool.sizes, count)

    def client_numbers(
        self, clients: Ints, population: int, round: int, seed: int
    ) -> dict[str, Floats]:
        """Return numbers that these clients, of so many, know by themselves in a round; nobody sends them.

        They reach the hooks and the table of clients as the ``numbers`` of a ``TrainConfig`` do.
        """
        return {}

    def probe_rows(self, pool: ClientPool, chosen: Ints) -> Ints:
        """Return on how many of its rows each of the ``chosen`` positions measures, capped at all of its rows."""
        return np.full(len(chosen), pool.batch_size)

    def configure_training(
        self, pool: ClientPool, chosen: Ints, probed: Mapping[str, Floats], count: int
    ) -> TrainConfig:
        """Return which of the ``chosen`` positions train, and how; ``probed`` has one entry for each of the chosen.

        ``chosen`` is empty where no client of a round with a deadline has finished measuring in time.
        """
        return TrainConfig(
            chosen, np.full(len(chosen), pool.batch_size), np.full(len(chosen), pool.epochs)
        )


class SelectionAround(Selection):
    """A strategy that changes a part of another one, ``inner``, for additions to any method."""

    def __init__(self, inner: Selection) -> None:
        self.inner = inner

    @property
    def probe(self) -> tuple[Probe, ...]:  # type: ignore[override]
        """Return what each selected client measures for the strategy inside."""
        return self.inner.probe

    def client_profile(self, label_counts: Callable[[], Ints], stream: Stream) -> dict[str, Floats]:
        """Return the numbers that clients report to the strategy inside."""
        return self.inner.client_profile(label_counts, stream)

    @property
    def learns_from(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return from what the server learns for the strategy inside."""
        return self.inner.learns_from

    @property
    def telling(self) -> Telling | None:  # type: ignore[override]
        """Return how clients tell their profiles to the strategy inside."""
        return self.inner.telling

    def tell(
        self, pool: ClientPool, due: Ints, clients: Ints, times: Ints, seed: int
    ) -> dict[str, Floats]:
        """Return what clients tell the strategy inside."""
        return self.inner.tell(pool, due, clients, times, seed)

    def clients_wanted(self, server_state: Tree, most: int) -> int:
        """Return how many clients the strategy inside wants."""
        return self.inner.clients_wanted(server_state, most)

    def select(self, pool: ClientPool, count: int, stream: Stream) -> Ints:
        """Return the clients that the strategy inside selects."""
        return self.inner.select(pool, count, stream)

    def client_numbers(
        self, clients: Ints, population: int, round: int, seed: int
    ) -> dict[str, Floats]:
        """Return the numbers that clients know by the strategy inside."""
        return self.inner.client_numbers(clients, population, round, seed)

    def probe_rows(self, pool: ClientPool, chosen: Ints) -> Ints:
        """Return on how many rows clients measure for the strategy inside."""
        return self.inner.probe_rows(pool, chosen)

    def configure_training(
        self, pool: ClientPool, chosen: Ints, probed: Mapping[str, Floats], count: int
    ) -> TrainConfig:
        """Return who trains, and how, by the strategy inside."""
        return self.inner.configure_training(pool, chosen, probed, count)


def selects_itself(selection: Selection) -> bool:
    """Return whether a strategy selects or measures clients in a way of its own, whatever is around it."""
    while isinstance(selection, SelectionAround):
        if selection.probe:
            return True
        selection = selection.inner
    return type(selection) is not Selection


class PoissonSelection(SelectionAround):
    """Every client of the pool with the same chance, independently of the others: ``count`` clients on average."""

    def select(self, pool: ClientPool, count: int, stream: Stream) -> Ints:
        """Return the selected clients; there may be none."""
        return np.flatnonzero(stream.uniform(len(pool)) < count / len(pool))


class KeyedSelection(SelectionAround):
    """Gives every client a key of 24 bits for its random numbers in a round, under a name."""

    def __init__(self, inner: Selection, name: str) -> None:
        super().__init__(inner)
        self.name = name

    def client_numbers(
        self, clients: Ints, population: int, round: int, seed: int
    ) -> dict[str, Floats]:
        """Return the clients' keys, in addition to what they know otherwise."""
        keys = (bits(seed, self.name, round, clients) >> np.uint64(64 - KEY_BITS)).astype(
            np.float64
        )
        return {**self.inner.client_numbers(clients, population, round, seed), self.name: keys}
