"""AFL-CP: clients with balanced labels, few drop-outs and short training times are selected more and weigh more."""

from dataclasses import dataclass
from typing import Annotated, Literal

from fedskew.algorithms.contract import Algorithm, Report, Requirement, Weighting, algorithms
from fedskew.algorithms.profile_selection import ProfileSelection, check_profile
from fedskew.core.errors import FedskewError
from fedskew.core.registry import AtLeastOne, Bounds, NonNegative, Positive
from fedskew.core.streams import Floats


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

    The entropy is all that a client reports, once; the server finds the rest out. With ``refresh`` clients report the
    whole profile themselves, every so many rounds. With ``epsilon`` Laplace noise makes all that a client reports in
    a run differentially private (docs/private-profiles.md). It hides nothing that the server can measure by itself.

    Args:
        entropy: weight of balanced labels in the score, relative to the others
        reliability: weight of completed rounds
        speed: weight of short training times
        consistency: weight of updates similar to the server's; 0 leaves that part out, as the paper's formula does
        consistency_of: how alike two updates are, by their directions (direction), or by the squared distance between
            them (distance)
        floor: lowest score, so that no client is excluded
        epsilon: privacy of all that a client reports in the run, smaller is more private; none for no noise
        refresh: clients report the whole profile every so many rounds; none for the entropy alone, once
        tellings: how often a client reports at most, with refresh; epsilon is divided by it
        longest: seconds of training above which all count alike, the declared range of a reported time with noise
        candidates: so many drawn clients report in a round and are selected from; none for all clients
        normalise: speed between the shortest and longest time (extremes), or by mean and standard deviation (moments),
            by which with refresh clients compute their scores themselves and report nothing else
        score: weighted by the options (fixed), or by a ridge regression of how well past updates agreed (learnt)

    >>> import numpy as np
    >>> from fedskew.algorithms.selection import ClientPool
    >>> from fedskew.core.streams import Stream
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
    refresh: Annotated[int | None, AtLeastOne] = None
    tellings: Annotated[int | None, AtLeastOne] = None
    longest: Annotated[float | None, Positive] = None
    candidates: Annotated[int | None, AtLeastOne] = None
    normalise: Literal["extremes", "moments"] = "extremes"
    score: Literal["fixed", "learnt"] = "fixed"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not any(self.weights.values()):
            raise FedskewError(
                "algorithm afl-cp: entropy=0, reliability=0 and speed=0 leave no score: raise one of them"
            )
        check_profile(self)

    @property
    def weights(self) -> dict[str, float]:
        """Return the weights of the parts of a score, by the names of what is known of a client."""
        return {
            "entropy": self.entropy,
            "reliability": self.reliability,
            "seconds": self.speed,
            "consistency": self.consistency,
        }

    @property
    def requires(self) -> frozenset[Requirement]:
        """Return what ``consistency`` measures if it is used, ``secret_noise`` with ``epsilon``."""
        needed: set[Requirement] = set()
        if self.consistency > 0 or self.score == "learnt":
            if self.consistency_of == "distance":
                needed.add("update_distance")
            else:
                needed.add("update_agreement")
        if self.epsilon is not None:
            needed.add("secret_noise")
        return frozenset(needed)

    @property
    def weighting(self) -> Weighting:
        """Return the description of the weights: rows times score."""
        return Weighting(name="{base} x score")

    @property
    def client_selection(self) -> ProfileSelection:
        """Return the selection of clients in proportion to their scores."""
        return ProfileSelection(self)

    def weight(self, report: Report) -> Floats:
        """Return rows times score (section 4.5)."""
        return report.base * report.numbers["score"]
