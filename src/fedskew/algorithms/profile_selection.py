"""Selection by the scores of client profiles, and its options."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fedskew.algorithms.profiles import (
    Noise,
    from_records,
    label_entropy,
    parts_of,
    ridge,
    totals_of,
    words_of,
)
from fedskew.algorithms.selection import (
    ClientPool,
    Selection,
    SelectionTotals,
    Telling,
    TrainConfig,
)
from fedskew.core.errors import FedskewError
from fedskew.core.streams import Floats, Ints, Stream, bits

if TYPE_CHECKING:
    from fedskew.algorithms.afl_cp import AFLCP

# Of the names of what is known of a client, that of its part of the score where it is another
_PART = {"seconds": "speed"}


def check_profile(method: "AFLCP") -> None:
    """Raise an error for options that contradict each other, or that would do nothing."""
    reason = (
        _repeats_without_end(method) or _without_range(method) or _nothing_to_learn_from(method)
    )
    if reason:
        raise FedskewError(f"algorithm afl-cp: {reason}")


def _repeats_without_end(method: "AFLCP") -> str:
    if method.refresh is None and method.tellings is not None:
        return f"tellings={method.tellings} is for refresh=, and without it clients report once: leave it out"
    if method.refresh is None or method.epsilon is None or method.tellings is not None:
        return ""
    return (
        f"epsilon={method.epsilon:g} is for all that a client reports, and refresh={method.refresh} repeats it "
        "without end: add tellings=, how often at most"
    )


def _without_range(method: "AFLCP") -> str:
    reports_times = method.refresh is not None and method.normalise == "extremes"
    if reports_times and method.epsilon is not None and method.speed > 0:
        if method.longest is None:
            return (
                "noise on reported times needs their range: add longest=, the seconds above which all count alike, "
                "or normalise=moments"
            )
        return ""
    if method.longest is None:
        return ""
    return (
        f"longest={method.longest:g} is for times that clients report with noise (refresh=, epsilon=, "
        "normalise=extremes, speed above 0): leave it out"
    )


def _nothing_to_learn_from(method: "AFLCP") -> str:
    if method.score == "fixed" or method.refresh is None or method.normalise == "extremes":
        return ""
    return (
        "score=learnt needs the parts of profiles, and with refresh= and normalise=moments clients report their "
        "score alone: leave one of them out"
    )


@dataclass(frozen=True)
class ProfileSelection(Selection):
    """Selects clients in proportion to the scores of their profiles; ``method`` holds the options."""

    method: "AFLCP"

    @property
    def telling(self) -> Telling:  # type: ignore[override]
        """Return what clients tell: their entropy; with ``refresh`` all that counts, or their score alone."""
        method = self.method
        parts: tuple[str, ...] = ("entropy",)
        totals = 0
        if self._tell_scores:
            parts = ("score",)
            totals = 5  # how many were selected and completed rounds; sums of reliability, time, its square
            if method.weights["consistency"] > 0:
                totals = 6
        elif method.refresh is not None:
            parts = self._weighed
        return Telling(
            parts, method.refresh, method.tellings, method.candidates, totals, method.epsilon
        )

    @property
    def learns_from(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return the parts of the score if its weights are learnt."""
        if self.method.score == "fixed":
            return ()
        return tuple(_PART.get(name, name) for name in self._used)

    @property
    def _tell_scores(self) -> bool:
        """Whether clients compute their scores themselves."""
        return self.method.refresh is not None and self.method.normalise == "moments"

    @property
    def _weighed(self) -> tuple[str, ...]:
        """The names of what counts in a score."""
        return tuple(name for name, weight in self.method.weights.items() if weight > 0)

    @property
    def _used(self) -> tuple[str, ...]:
        """The names of what is looked at: what the server has without asking is shown even if it does not count."""
        if self.method.refresh is not None:
            return self._weighed
        if self.method.weights["consistency"] > 0:
            return tuple(self.method.weights)
        return ("entropy", "reliability", "seconds")

    @property
    def _noise(self) -> Noise | None:
        if self.method.epsilon is None:
            return None
        return Noise(self.method.epsilon, self.method.tellings or 1, len(self.telling.parts))

    def client_profile(self, label_counts: Callable[[], Ints], stream: Stream) -> dict[str, Floats]:
        """Return the normalised entropy of each client's labels, with Laplace noise if it is reported now."""
        entropy = label_entropy(label_counts())
        noise = self._noise
        if noise and not self.telling.in_rounds:
            entropy = noise.added(entropy, 0.0, 1.0, stream.bits(len(entropy)))
        return {"entropy": entropy}

    def tell(
        self, pool: ClientPool, due: Ints, clients: Ints, times: Ints, seed: int
    ) -> dict[str, Floats]:
        """Return what clients report: the entropy, all that counts of their profiles, or their scores alone."""
        noise = self._noise
        if self._tell_scores:
            told = {"score": self._measured_scores(pool)["score"]}
        else:
            told = from_records(pool)
        reported = {}
        for place, name in enumerate(self.telling.parts):
            values = told[name][due]
            if noise:
                lowest, highest = self._range(name)
                words = words_of(seed, place, times, clients)
                if (
                    self.method.refresh is None
                ):  # the same noise as if all had reported before the first round
                    words = bits(seed, "disclose", clients)
                values = noise.added(values, lowest, highest, words)
            reported[name] = values
        return reported

    def _range(self, name: str) -> tuple[float, float]:
        """Return the declared range of what is reported with noise."""
        if name == "score":
            return self.method.floor, 1.0
        if name == "seconds":
            assert self.method.longest is not None
            return 0.0, self.method.longest
        return 0.0, 1.0

    def scores(self, pool: ClientPool) -> dict[str, Floats]:
        """Return the parts of every client's score, as far as the server knows them, and the score."""
        if self._tell_scores:
            return {"score": pool.profile["score"]}
        if self.method.refresh is not None:
            return self._scored(pool, pool.profile, totals_of(pool.profile))
        return self._measured_scores(pool)

    def _measured_scores(self, pool: ClientPool) -> dict[str, Floats]:
        """Return what follows from entropies and the records of past rounds."""
        return self._scored(pool, from_records(pool), pool.standing)

    def _scored(
        self, pool: ClientPool, known: Mapping[str, Floats], totals: SelectionTotals
    ) -> dict[str, Floats]:
        used = {name: known[name] for name in self._used}
        parts = parts_of(used, totals, self.method.normalise == "moments")
        weights = np.array([self.method.weights[name] for name in self._used])
        stacked = np.stack([*parts.values()])
        if self.method.score == "fixed":
            score = np.tensordot(weights, stacked, 1) / weights.sum()
        else:
            intercept, *learnt = ridge(pool.lessons, np.array([0.0, *(weights / weights.sum())]))
            score = np.minimum(intercept + np.tensordot(np.array(learnt), stacked, 1), 1.0)
        return {**parts, "score": np.maximum(score, self.method.floor)}

    def select(self, pool: ClientPool, count: int, stream: Stream) -> Ints:
        """Return different clients drawn in proportion to their scores; where all are equal, with FedAvg's chances.

        A few of many are drawn one by one and kept with their score as probability, so that not all are looked at.
        Where clients report the whole profile, all reports are compared.
        """
        all_compared = self.method.refresh is not None
        if pool.sampling == "uniform" and 4 * count < len(pool) and not all_compared:
            return np.sort(
                stream.thinned_sample(
                    len(pool), count, lambda some: self.scores(pool.at(some))["score"]
                )
            )
        score = self.scores(pool)["score"]
        if count == len(score) or np.ptp(score) < 1e-12:
            return super().select(pool, count, stream)
        if pool.sampling == "size":
            score = score * pool.sizes
        return stream.weighted_sample(score, count)

    def configure_training(
        self, pool: ClientPool, chosen: Ints, probed: Mapping[str, Floats], count: int
    ) -> TrainConfig:
        """Return FedAvg's configuration with the selected clients' profiles, which ``weight`` and the tables use."""
        if self.method.refresh is None:
            numbers = self.scores(pool.at(chosen))
        else:
            numbers = {name: values[chosen] for name, values in self.scores(pool).items()}
        return replace(super().configure_training(pool, chosen, probed, count), numbers=numbers)
