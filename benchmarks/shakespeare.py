"""LEAF's LSTM on the plays of Shakespeare by role: accuracy of three seeds, and the seconds of a round.

Two set-ups. ``flute`` is that which FedML (release 0.7.303) and FLUTE (``experiments/nlp_rnn_fedshakespeare``) print:
the character after each of 80, 10 of 715 roles a round, one epoch of batches of 4, SGD with lr 0.8, 1200 rounds. Their
rows are those of TensorFlow Federated, one or more a speech, padded to 80 characters. Here a row is 80 characters of
all that a role says, of the 715 roles with the most text. ``leaf`` has LEAF's target, the one character after 80, of
all roles, a row every 20 characters, with batches of 10.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

import fedskew as fs
from fedskew.algorithms.fedavg import FedAvg
from fedskew.core.config import Settings
from fedskew.core.errors import BudgetSpentError
from fedskew.data.federation import Federation
from fedskew.engine.job import Engine
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked
from fedskew.models.build import build
from fedskew.server.server import Server


@dataclass(frozen=True)
class SetUp:
    """Data, model and settings."""

    data: str
    model: str
    rounds: int
    settings: dict[str, Any]


SET_UPS = {
    "flute": SetUp(
        "shakespeare:targets=sequence,stride=80,roles=715",
        "char-lstm:per_token=true",
        1200,
        {"task": "next-token", "per_round": 10, "batch_size": 4, "lr": 0.8},
    ),
    "leaf": SetUp("shakespeare", "char-lstm", 300, {"per_round": 10, "batch_size": 10, "lr": 0.8}),
}
SEEDS = range(3)
WARM, TIMED = 40, 40  # rounds; shapes of batches that come for the first time are captured on a GPU


def main(folder: str = "runs/shakespeare", budget: str | None = None) -> None:
    """Print the seconds of a round in each engine, and the accuracy of three seeds."""
    for name, chosen in SET_UPS.items():
        fed = fs.split(fs.load(chosen.data), "natural")
        sizes = fed.partition.sizes
        rows = f"{min(sizes)} to {max(sizes)} rows, {len(fed.data.test)} test rows"
        print(f"{name}: {len(sizes)} roles of {rows}")
        out = Path(folder) / name
        if not out.exists():
            print(_seconds("stacked", fed, chosen, Stacked(), WARM, TIMED))
            print(_seconds("loop", fed, chosen, Loop(), 1, 5))
        try:
            table = fs.compare(
                data=chosen.data, skew="natural", model=chosen.model, algorithm="fedavg", seeds=SEEDS,
                rounds=chosen.rounds, eval_every=50, budget=budget, out=out, or_resume=True,
                **chosen.settings,
            )  # fmt: skip
        except BudgetSpentError as unfinished:
            print(unfinished)
            continue
        print(table[["score", "score_std", "seconds"]].to_string())


def _seconds(
    name: str, fed: Federation, chosen: SetUp, engine: Engine, warm: int, timed: int
) -> str:
    """Return the seconds of a round after some others, and the memory that it takes on a GPU."""
    settings = Settings(**{**chosen.settings, "rounds": 10**9, "eval_every": 10**9})
    data = fed.data
    model = build(chosen.model, data.train.x.shape[1:], len(data.classes), seed=0)
    server = Server(fed, model, FedAvg(), settings, engine)
    for _ in range(warm):
        server.advance()
    seconds = []
    for _ in range(timed):
        began = time.perf_counter()
        server.advance()
        seconds.append(time.perf_counter() - began)
    memory = ""
    if torch.cuda.is_available():
        memory = f", {torch.cuda.max_memory_allocated() / 2**20:,.0f} MB"
    return f"{name}: {mean(seconds):.3f} s a round, median {median(seconds):.3f} s{memory}"


if __name__ == "__main__":
    main()
