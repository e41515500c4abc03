"""One run of a study: its method, its settings, and what names it; and the list of all runs in the folder."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from fedskew.core.config import Experiment
from fedskew.core.errors import FedskewError
from fedskew.core.files import reading
from fedskew.runs.folder import GROUP

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


def read_members(folder: Path) -> list[Member]:
    """Return the runs of a study."""
    path = folder / GROUP
    with reading(path):
        members = []
        for entry in json.loads(path.read_text(encoding="utf-8")):
            member = Member(**entry)
            damage = _damage(member)
            if damage:
                raise FedskewError(f"{path} is damaged: {damage}")
            members.append(member)
    if not members:
        raise FedskewError(f"{path} cannot be read: it names no run")
    return members


def _damage(member: Member) -> str:
    """Return what is wrong with a run that was read from a file; empty if nothing is."""
    if not isinstance(member.algorithm, str) or not isinstance(member.values, dict):
        return f"{member.name!r} needs an algorithm and values"
    if not isinstance(member.skew, str):
        return f"the skew of {member.name!r} is not text"
    if member.purpose not in get_args(Purpose):
        return f"the purpose of {member.name!r} is {member.purpose!r}"
    if not _are_numbers(member.varied):
        return f"what {member.name!r} varies are not numbers"
    if not re.fullmatch(r"[A-Za-z0-9.+-]+", member.name) or not member.name.strip("."):
        return f"the run {member.name!r} is not a name of a folder in it"
    strange = set(member.values) - {setting.name for setting in fields(Experiment)}
    if strange:
        return f"{member.name} has the unknown settings {', '.join(sorted(strange))}"
    return ""


def _are_numbers(varied: Mapping[str, Any]) -> bool:
    return isinstance(varied, dict) and all(isinstance(n, float) for n in varied.values())
