"""One run of a study: its method, its settings, and what names it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from fedskew.core.config import Experiment

# What a run is for: numbers are chosen by it, methods are judged by it if its numbers were chosen, or both
Purpose: TypeAlias = Literal["both", "choose", "judge"]
FAILED = "failed.json"  # why a run diverged, in its folder


@dataclass(frozen=True)
class Member:
    """One run: the method as it was written, all settings, and the numbers of the grid among them.

    ``skew`` is that of the run where a study has several, and ``purpose`` says what the run is for.
    """

    name: str
    algorithm: str
    values: Mapping[str, Any]
    varied: Mapping[str, float] = field(default_factory=dict)
    skew: str = ""
    purpose: Purpose = "both"

    @property
    def label(self) -> str:
        """Return the method, its numbers of the grid and its skew: the same for all seeds."""
        words = [self.algorithm, *_spelled(self.varied)]
        if self.skew:
            words.append(f"on {self.skew}")
        return " ".join(words)

    def experiment(self) -> Experiment:
        """Return the validated experiment."""
        return Experiment(**self.values)


def name_of_member(algorithm: str, numbers: Mapping[str, float], skew: str, seed: int) -> str:
    """Return the name of a run, which is also that of its folder.

    >>> name_of_member("fedprox", {"mu": 0.1}, "iid", 3)
    'fedprox-mu-0.1-iid-s3'
    """
    words = [algorithm, *_spelled(numbers)]
    if skew:
        words.append(skew)
    return re.sub(r"[^A-Za-z0-9.+-]+", "-", "-".join(words)).strip("-") + f"-s{seed}"


def _spelled(numbers: Mapping[str, float]) -> list[str]:
    return [f"{name}={value:g}" for name, value in numbers.items()]
