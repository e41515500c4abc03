"""Measured phones: speeds by AI-Benchmark scores, and lines by the network profiles of FLASH (Yang et al. 2021)."""

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from fedskew.core.errors import FedskewError
from fedskew.core.files import reading
from fedskew.core.streams import Floats, Ints
from fedskew.data.source import root
from fedskew.fleet.machines import shares

SCORES = "benchmark2score.json"
LINES = "speed_distri.json"
_MBIT = 1024 * 8 / 1e6  # of a kB, which FLASH takes as 1,024 bytes
_LEAST = 0.1  # of a profile's mean: a phone keeps its draw, and some profiles reach 0
_PROFILE = ("down_u", "down_sigma", "up_u", "up_sigma")


@dataclass(frozen=True)
class Phones:
    """Models with their scores, and network profiles with means and deviations in kB/s."""

    models: tuple[str, ...]
    scores: Floats
    profiles: Floats  # profile x (mean down, deviation, mean up, deviation)

    def model_of(self, clients: Ints, seed: int) -> Ints:
        """Return the number of each client's model; all models are equally frequent."""
        return _drawn(clients, seed, "fleet model", len(self.models))

    def speed(self, clients: Ints, seed: int) -> Floats:
        """Return the speed of these clients relative to the fastest model: their scores over the highest one."""
        return np.asarray(self.scores[self.model_of(clients, seed)] / self.scores.max())

    def mbit(self, clients: Ints, seed: int) -> tuple[Floats, Floats]:
        """Return the bandwidth of these clients, down and up, in Mbit/s."""
        profiles = self.profiles[_drawn(clients, seed, "fleet profile", len(self.profiles))]
        down = _positive(profiles[:, 0], profiles[:, 1], shares(seed, "fleet down", clients))
        up = _positive(profiles[:, 2], profiles[:, 3], shares(seed, "fleet up", clients))
        return down * _MBIT, up * _MBIT


def measured_phones() -> Phones:
    """Return the phones of the files below the data root."""
    return _read(root() / "phones")


@lru_cache(maxsize=2)
def _read(folder: Path) -> Phones:
    scores = _table(folder / SCORES)
    lines = _table(folder / LINES)
    profiles = []
    for name, profile in lines.items():
        if not isinstance(profile, dict) or not set(_PROFILE) <= profile.keys():
            raise FedskewError(
                f"{folder / LINES}: profile {name!r} lacks one of {', '.join(_PROFILE)}: get the file again"
            )
        profiles.append([profile[key] for key in _PROFILE])
    return Phones(
        tuple(scores),
        _positive_numbers(list(scores.values()), folder / SCORES),
        _positive_numbers(profiles, folder / LINES),
    )


def _table(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FedskewError(
            f"fleet phones with source=ai-benchmark: there is no {path}; put {SCORES} and {LINES} of FLASH "
            "(github.com/PKU-Chengxu/FLASH) there, or leave source out"
        )
    with reading(path):
        table = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(table, dict) or not table:
        raise FedskewError(f"{path} has no table of names: get the file again")
    return table


def _positive_numbers(values: list[Any], path: Path) -> Floats:
    try:
        numbers = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        numbers = np.full(1, np.nan)
    if not (np.isfinite(numbers).all() and (numbers > 0).all()):
        raise FedskewError(f"{path} has something else than positive numbers: get the file again")
    return numbers


def _drawn(clients: Ints, seed: int, purpose: str, count: int) -> Ints:
    return (shares(seed, purpose, clients) * count).astype(np.int64)


def _positive(mean: Floats, deviation: Floats, share: Floats) -> Floats:
    """Return draws of normal distributions without their negative part, at least a tenth of the mean."""
    below = ndtr(-mean / deviation)
    drawn = mean + deviation * ndtri(below + share * (1 - below))
    return np.asarray(np.maximum(drawn, _LEAST * mean))
