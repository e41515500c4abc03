"""Clients as nodes of Flower's simulation against the engines: seconds a round, and what a round of messages costs."""

from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import fedskew as fs

ENGINES = ("stacked", "loop", "flower")
CASES = (
    (3, "logreg", "fedavg"),
    (10, "mlp", "fedavg"),
    (10, "mlp", "fedpbs"),
    (10, "mlp", "scaffold"),
)


def main(rounds: int = 8) -> None:
    print(
        f"{'digits, every round evaluated':40} {'stacked':>11} {'loop':>11} {'flower':>11} {'more a round':>13}"
    )
    for clients, model, method in CASES:
        fed = fs.split(fs.load("digits"), "dirichlet:alpha=0.5", clients=clients, seed=0)
        seconds = [_round(fed, model, method, engine, rounds) for engine in ENGINES]
        shown = " ".join(f"{one * 1e3:8.1f} ms" for one in seconds)
        more = (seconds[2] - seconds[0]) * 1e3
        print(f"{f'{method}, {model}, {clients} clients':40} {shown} {more:10.1f} ms", flush=True)


def _round(fed: fs.Federation, model: str, method: str, engine: str, rounds: int) -> float:
    """Return the seconds of a round; the first, in which processes start, is left out."""
    with TemporaryDirectory() as place:
        run = fs.train(fed, model, method, engine=engine, rounds=rounds, folder=Path(place) / "run")
        return median(run.rounds["seconds"].tolist()[1:])
