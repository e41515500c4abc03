"""The selection strategy of a method: which clients take part in a round, and how they are configured to train."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias

import numpy as np

from fedskew.core.streams import Floats, Ints, Stream

Probe: TypeAlias = Literal["loss", "loss_variance", "gradient_variance"]


def _full_capacity(clients: Ints) -> Floats:
    return np.ones(len(clients))


@dataclass(frozen=True)
class ClientPool:
    """What the server knows about the clients that it may select now; every array has one entry for each of them.

    ``profile`` holds the numbers that clients reported of themselves (``Selection.client_profile``). ``selected`` and
    ``completed`` count rounds, ``seconds`` is the simulated time of local training in the completed ones, and
    ``agreement`` is the sum over these rounds of how similar a client's update was to the server's, for methods that
    require ``update_agreement``. ``capacity`` gives, for positions in the pool, how fast each client's machine is in
    comparison with the fastest one of the fleet, in (0, 1].
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


class Selection:
    """Uniform selection, or selection in proportion to size, with the run's settings as the training configuration.

    A method with another strategy derives from this class and overrides what differs.
    """

    probe: ClassVar[
        tuple[Probe, ...]
    ] = ()  # what each selected client measures on the global model before it is configured

    def client_profile(self, label_counts: Callable[[], Ints], stream: Stream) -> dict[str, Floats]:
        """Return numbers that clients report once, before the first round; ``label_counts()`` is clients x classes."""
        return {}

    def select(self, pool: ClientPool, count: int, stream: Stream) -> Ints:
        """Return ``count`` different clients as positions in the pool, drawn uniformly or in proportion to size."""
        population = len(pool.sizes)
        if pool.sampling == "uniform" or count == population:
            return np.sort(stream.sample(population, count))
        return stream.weighted_sample(pool.sizes, count)

    def probe_rows(self, pool: ClientPool, chosen: Ints) -> Ints:
        """Return on how many of its rows each of the ``chosen`` positions measures, capped at all of its rows."""
        return np.full(len(chosen), pool.batch_size)

    def configure_training(
        self, pool: ClientPool, chosen: Ints, probed: Mapping[str, Floats], count: int
    ) -> TrainConfig:
        """Return which of the ``chosen`` positions train, and how; ``probed`` has one entry for each of the chosen.

        ``chosen`` is empty where no client of a round with a deadline has finished measuring in time.
        """
        return TrainConfig(chosen, np.full(len(chosen), pool.batch_size), np.full(len(chosen), pool.epochs))
