"""AFL-CP: clients with balanced labels, few drop-outs and short training times are selected more and weigh more."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from fedskew.algorithms.contract import Algorithm, Report, Requirement, Weighting, algorithms
from fedskew.algorithms.selection import ClientPool, Selection, SelectionTotals, TrainConfig
from fedskew.core.errors import FedskewError
from fedskew.core.registry import Bounds, NonNegative, Positive
from fedskew.core.streams import Floats, Ints, Stream

# Clients whose entropies are computed together, so that memory suffices for millions
_AT_ONCE = 100_000


@algorithms.register("afl-cp")
@dataclass(frozen=True)
class AFLCP(Algorithm):
    """Adaptive federated learning with client profiling (AFL-CP, sections 4.4-4.5).

    A client's profile has three parts in [0, 1]: the entropy of its labels, divided by that of evenly spread ones;
    its reliability, the share of completed rounds among those it was selected for; its speed, from the mean time of
    its local training, without transfers. Its score is their weighted mean, and its weight in the mean of a round is
    proportional to rows times score.

    Readings, since the paper prints no formula. Entropy and reliability are shares as they are; the mean time becomes
    one between the slowest (0) and the fastest (1) of the clients that have completed a round, all 1 where they are
    equal. A client that was selected and never completed a round has speed 0. One not selected yet has the mean of
    the others, or 1 if there are none. "Others" are all clients, also those that are not available now. Participation
    is "adjusted" without excluding any client: clients are drawn with a probability proportional to their score (times
    their rows, if sampling is by size), and no score is below ``floor``. Where all scores are equal, it is FedAvg.

    Section 3.2 also mentions "update consistency", without a definition. With ``consistency`` above 0 it is a
    fourth part of the score: how similar a client's updates were to the server's in the same rounds, the mean of
    ``(1 + cosine) / 2``. Its limits (section 5) list "model update variance" among what is collected, without a
    definition either: ``consistency_of=distance`` takes the mean of ``1 / (1 + |d_k - d|^2 / |d|^2)`` instead, with the
    update ``d`` of the server and ``d_k`` of the client. The server computes both from the updates that it receives.

    The entropy is all that a client reports about its data, once. With ``epsilon`` it adds Laplace noise of scale
    1/epsilon and clips to [0, 1] before it reports: local differential privacy for the whole client, since the entropy
    of any other data differs by at most 1 (docs/training-privacy.md).

    Args:
        entropy: weight of balanced labels in the score, relative to the other two
        reliability: weight of completed rounds
        speed: weight of short training times
        consistency: weight of updates similar to the server's; 0 leaves that part out, as the paper's formula does
        consistency_of: how alike two updates are, by their directions (direction), or by the squared distance between
            them (distance)
        floor: lowest score, so that no client is excluded
        epsilon: privacy of the reported entropy, smaller is more private; none for the plain entropy

    >>> AFLCP().client_selection.client_profile(lambda: np.array([[5, 5], [8, 0]]), Stream(0, "profile"))
    {'entropy': array([1., 0.])}
    >>> seen = ClientPool(
    ...     round=2, sizes=np.array([10, 10, 10]), profile={"entropy": np.array([1.0, 0.0, 0.4])},
    ...     selected=np.array([2, 4, 0]), completed=np.array([2, 1, 0]), seconds=np.array([6.0, 9.0, 0.0]),
    ... )
    >>> for name, values in AFLCP().client_selection.scores(seen).items():
    ...     print(name, values.round(3))
    entropy [1.  0.  0.4]
    reliability [1.    0.25  0.625]
    speed [1.  0.  0.5]
    score [1.    0.1   0.508]
    """

    entropy: Annotated[float, NonNegative] = 1.0
    reliability: Annotated[float, NonNegative] = 1.0
    speed: Annotated[float, NonNegative] = 1.0
    consistency: Annotated[float, NonNegative] = 0.0
    consistency_of: Literal["direction", "distance"] = "direction"
    floor: Annotated[float, Bounds(0, 1, above=True)] = 0.1
    epsilon: Annotated[float | None, Positive] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self._weights().sum() == 0:
            raise FedskewError(
                "algorithm afl-cp: entropy=0, reliability=0 and speed=0 leave no score: raise one of them"
            )

    def _weights(self) -> Floats:
        return np.array([self.entropy, self.reliability, self.speed, self.consistency])

    @property
    def requires(self) -> frozenset[Requirement]:
        """Return what ``consistency`` measures if it is part of the score, ``secret_noise`` with ``epsilon``."""
        needed: set[Requirement] = set()
        if self.consistency > 0 and self.consistency_of == "distance":
            needed.add("update_distance")
        elif self.consistency > 0:
            needed.add("update_agreement")
        if self.epsilon is not None:
            needed.add("secret_noise")
        return frozenset(needed)

    @property
    def weighting(self) -> Weighting:
        """Return the description of the weights: rows times score."""
        return Weighting(name="{base} x score")

    @property
    def client_selection(self) -> "ProfileSelection":
        """Return the selection of clients in proportion to their scores."""
        return ProfileSelection(self)

    def weight(self, report: Report) -> Floats:
        """Return rows times score (section 4.5)."""
        return report.base * report.numbers["score"]


@dataclass(frozen=True)
class ProfileSelection(Selection):
    """Selects clients in proportion to the scores of their profiles; ``method`` holds the options."""

    method: AFLCP

    def client_profile(self, label_counts: Callable[[], Ints], stream: Stream) -> dict[str, Floats]:
        """Return the normalised entropy of each client's labels, with Laplace noise if ``epsilon`` is set."""
        entropy = _entropy(label_counts())
        if self.method.epsilon is not None:
            entropy = np.clip(
                entropy + _laplace(stream, len(entropy)) / self.method.epsilon, 0.0, 1.0
            )
        return {"entropy": entropy}

    def scores(self, pool: ClientPool) -> dict[str, Floats]:
        """Return the parts of every client's score, and the score."""
        known = pool.standing
        rounds = np.maximum(pool.completed, 1)
        chosen = pool.selected > 0
        completed = pool.completed > 0
        time, speeds = _speeds(pool.seconds / rounds, known)
        parts = {
            "entropy": pool.profile["entropy"],
            "reliability": _known(
                pool.completed / np.maximum(pool.selected, 1),
                chosen,
                known.reliability,
                known.selected,
            ),
            "speed": _known(np.where(completed, time, 0.0), chosen, speeds, known.selected),
        }
        if self.method.consistency > 0:
            parts["consistency"] = _known(
                pool.agreement / rounds, completed, known.agreement, known.completed
            )
        weights = self.method._weights()[: len(parts)]
        score = np.tensordot(weights, np.stack([*parts.values()]), 1) / weights.sum()
        return {**parts, "score": np.maximum(score, self.method.floor)}

    def select(self, pool: ClientPool, count: int, stream: Stream) -> Ints:
        """Return different clients drawn in proportion to their scores; where all are equal, with FedAvg's chances.

        A few of many are drawn one by one and kept with their score as probability, so that not all are looked at.
        """
        if pool.sampling == "uniform" and 4 * count < len(pool):
            return np.sort(
                stream.thinned_sample(
                    len(pool), count, lambda some: self.scores(pool.at(some))["score"]
                )
            )
        score = self.scores(pool)["score"]
        if count == len(score) or np.ptp(score) < 1e-12:
            return super().select(pool, count, stream)
        return stream.weighted_sample(
            score * pool.sizes if pool.sampling == "size" else score, count
        )

    def configure_training(
        self, pool: ClientPool, chosen: Ints, probed: Mapping[str, Floats], count: int
    ) -> TrainConfig:
        """Return FedAvg's configuration with the selected clients' profiles, which ``weight`` and the tables use."""
        return replace(
            super().configure_training(pool, chosen, probed, count),
            numbers=self.scores(pool.at(chosen)),
        )


def _entropy(counts: Ints) -> Floats:
    """Return the entropy of each row of counts divided by its maximum: 0 for a single label, 1 for equal counts."""
    entropy = np.empty(len(counts))
    for first in range(0, len(counts), _AT_ONCE):
        some = counts[first : first + _AT_ONCE]
        rows = np.maximum(some.sum(1), 1)
        nats = np.log(rows) - (some * np.log(np.maximum(some, 1))).sum(1) / rows
        entropy[first : first + _AT_ONCE] = np.clip(
            nats / np.log(max(counts.shape[1], 2)), 0.0, 1.0
        )
    return entropy


def _laplace(stream: Stream, count: int) -> Floats:
    """Return Laplace noise of scale 1: the inverse distribution function at uniform numbers."""
    uniform = np.maximum(stream.uniform(count), 2.0**-54)  # 0 has no finite inverse
    noise: Floats = np.where(uniform < 0.5, np.log(2 * uniform), -np.log(2 * (1 - uniform)))
    return noise


def _speeds(time: Floats, known: SelectionTotals) -> tuple[Floats, float]:
    """Return 1 for the shortest known time, 0 for the longest, linear in between, and the sum of all known ones.

    All are 1 where the known times are equal.
    """
    shortest = float(known.shortest)
    longest = float(known.longest)
    count = int(known.completed)
    # Means of the same time over other numbers of rounds differ in their last bits.
    if not count or longest - shortest <= 1e-9 * longest:
        return np.ones(len(time)), count
    return (longest - time) / (longest - shortest), (count * longest - float(known.seconds)) / (
        longest - shortest
    )


def _known(
    values: Floats, known: NDArray[np.bool_], total: "Floats | float", count: Ints
) -> Floats:
    """Return the values with the mean of all known ones in place of the others; 1 if none is known."""
    return np.where(known, values, total / count if count else 1.0)
