"""AFL-CP: who has balanced labels, comes back and is quick, is asked more often and counts for more."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedskew.algorithms.contract import Algorithm, Orders, Report, Roster, algorithms
from fedskew.core.errors import FedskewError
from fedskew.core.registry import Bounds, NonNegative, Positive
from fedskew.core.streams import Floats, Ints, Stream


@algorithms.register("afl-cp")
@dataclass(frozen=True)
class AFLCP(Algorithm):
    """Adaptive federated learning with client profiling (AFL-CP, sections 4.4-4.5).

    A client's profile has three parts in [0, 1]: the entropy of its labels, divided by that of evenly spread ones; its
    reliability, the share of the rounds it was chosen for that it completed; its speed, from the mean time of its local
    training, without what its line takes. Its score is their weighted mean, and its weight in the mean of a round is
    proportional to rows times score.

    Readings, since the paper prints no formula. Entropy and reliability are shares as they are; the mean time becomes one
    between the slowest (0) and the fastest (1) of the clients that have completed a round, all 1 where they are equal. A client
    that was chosen and never completed a round is slowest, 0. One not chosen yet has the mean of the others, 1 while there are
    none. Participation is "adjusted" without excluding anyone: clients are drawn with a chance proportional to their score
    (times their rows, if sampling is by size), and no score is below ``floor``. Where all scores are equal, it is FedAvg.

    Section 3.2 also speaks of "update consistency", without saying what that is. With ``consistency`` above 0 it is a fourth
    part of the score: how much a client's changes were like those of the server in the same rounds, the mean of
    ``(1 + cosine) / 2``. The server measures it on what it is sent anyway.

    The entropy is all that a client tells of its data, once. With ``epsilon`` it adds Laplace noise of scale 1/epsilon and
    clips to [0, 1] before it speaks: local differential privacy for the whole client, since the entropy of any other data
    differs by at most 1 (docs/privacy.md).

    Args:
        entropy: weight of balanced labels in the score, relative to the other two
        reliability: weight of coming back
        speed: weight of being quick
        consistency: weight of changes that are like everybody's; 0 leaves that part out, as the paper's formula does
        floor: least score, so that nobody is left out
        epsilon: privacy of the entropy that a client tells, smaller is more private; none for the plain entropy

    >>> AFLCP().disclose(np.array([[5, 5], [8, 0]]), Stream(0, "disclose"))
    {'entropy': array([1., 0.])}
    >>> seen = Roster(
    ...     round=2, sizes=np.array([10, 10, 10]), told={"entropy": np.array([1.0, 0.0, 0.4])},
    ...     selected=np.array([2, 4, 0]), completed=np.array([2, 1, 0]), spent=np.array([6.0, 9.0, 0.0]),
    ... )
    >>> {name: values.round(3).tolist() for name, values in AFLCP().profile(seen).items()}
    {'entropy': [1.0, 0.0, 0.4], 'reliability': [1.0, 0.25, 0.625], 'speed': [1.0, 0.0, 0.5], 'score': [1.0, 0.1, 0.508]}
    """

    weighs_by: ClassVar[str] = "{base} x score"

    entropy: Annotated[float, NonNegative] = 1.0
    reliability: Annotated[float, NonNegative] = 1.0
    speed: Annotated[float, NonNegative] = 1.0
    consistency: Annotated[float, NonNegative] = 0.0
    floor: Annotated[float, Bounds(0, 1, above=True)] = 0.1
    epsilon: Annotated[float | None, Positive] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self._weights().sum() == 0:
            raise FedskewError("algorithm afl-cp: entropy=0, reliability=0 and speed=0 leave no score: raise one of them")

    def _weights(self) -> Floats:
        return np.array([self.entropy, self.reliability, self.speed, self.consistency])

    def needs_agreement(self) -> bool:
        """Only if it counts."""
        return self.consistency > 0

    def disclose(self, counts: Ints, stream: Stream) -> dict[str, Floats]:
        """The normalised entropy of each client's labels, with noise if it is to stay private."""
        told = _entropy(counts)
        if self.epsilon is not None:
            told = np.clip(told + _laplace(stream, len(told)) / self.epsilon, 0.0, 1.0)
        return {"entropy": told}

    def profile(self, roster: Roster) -> dict[str, Floats]:
        """The parts of every client's score, and the score."""
        chosen, completed = roster.selected > 0, roster.completed > 0
        rounds = np.maximum(roster.completed, 1)
        parts = {
            "entropy": roster.told["entropy"],
            "reliability": _known(roster.completed / np.maximum(roster.selected, 1), chosen),
            "speed": _known(np.where(completed, _quickness(roster.spent / rounds, completed), 0.0), chosen),
        }
        if self.consistency > 0:
            parts["consistency"] = _known(roster.agreed / rounds, completed)
        weights = self._weights()[: len(parts)]
        score = np.tensordot(weights, np.stack([*parts.values()]), 1) / weights.sum()
        return {**parts, "score": np.maximum(score, self.floor)}

    def select(self, roster: Roster, count: int, stream: Stream) -> Ints:
        """Different clients, drawn with a chance proportional to their score; FedAvg's draw where all scores are equal."""
        score = self.profile(roster)["score"]
        population = len(score)
        if count == population or np.ptp(score) < 1e-12:
            return super().select(roster, count, stream)
        chance = score * roster.sizes if roster.sampling == "size" else score
        key = np.log(stream.uniform(population) + 2.0**-54) / chance  # as FedAvg draws by size
        return np.sort(np.argpartition(key, population - count)[population - count :])

    def orders(self, roster: Roster, chosen: Ints, probed: Mapping[str, Floats], count: int) -> Orders:
        """As in FedAvg; the profiles of the chosen go on record, and the score comes back to ``weigh``."""
        numbers = {name: values[chosen] for name, values in self.profile(roster).items()}
        return replace(super().orders(roster, chosen, probed, count), numbers=numbers)

    def weigh(self, report: Report) -> Floats:
        """Rows times score (section 4.5)."""
        return report.base * report.numbers["score"]


def _entropy(counts: Ints) -> Floats:
    """Entropy of each line of counts, divided by the greatest there is: 0 for one label only, 1 for all labels alike."""
    rows = np.maximum(counts.sum(1), 1)
    nats = np.log(rows) - (counts * np.log(np.maximum(counts, 1))).sum(1) / rows
    return np.asarray(np.clip(nats / np.log(max(counts.shape[1], 2)), 0.0, 1.0))


def _laplace(stream: Stream, count: int) -> Floats:
    """Laplace noise of scale 1: the inverse of its distribution function at uniform numbers."""
    uniform = np.maximum(stream.uniform(count), 2.0**-54)  # 0 has no finite inverse
    noise: Floats = np.where(uniform < 0.5, np.log(2 * uniform), -np.log(2 * (1 - uniform)))
    return noise


def _quickness(time: Floats, known: NDArray[np.bool_]) -> Floats:
    """1 for the shortest known time, 0 for the longest, in proportion between them; 1 for all where those are equal."""
    if not known.any():
        return np.ones(len(time))
    shortest, longest = time[known].min(), time[known].max()
    if longest - shortest <= 1e-9 * longest:  # means of the same time over other numbers of rounds differ in their last bits
        return np.ones(len(time))
    return np.asarray((longest - time) / (longest - shortest))


def _known(values: Floats, known: NDArray[np.bool_]) -> Floats:
    """The values where they are known, and their mean elsewhere; 1 for all while none is."""
    return np.where(known, values, values[known].mean() if known.any() else 1.0)
