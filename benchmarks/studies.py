"""A study of nine runs, three skews x three seeds, against one run: seconds in a warm process, interleaved."""

import tempfile
import time
import warnings
from pathlib import Path
from statistics import median
from typing import Any

import fedskew as fs

SKEWS = ["dirichlet:alpha=0.1", "classes:k=2", "dirichlet:alpha=0.5 + noise:sigma=0.5"]
LOGREG = {"data": "digits", "model": "logreg", "clients": 20, "rounds": 30, "lr": 0.05}
MLP = {**LOGREG, "model": "mlp"}
METHODS = ["fedavg", "fedprox:mu=0.1", "scaffold", "feddyn", "fedavgm", "fedlc", "fednova", "moon"]
WANTED = 3.0


def main(turns: int = 5) -> None:
    print(f"{'digits, 20 clients, 30 rounds':40}{'one':>9}{'nine':>9}{'ratio':>8}{'wanted':>8}")
    for title, settings in (("logistic regression", LOGREG), ("mlp", MLP)):
        _study(settings, 9)  # warm
        took: dict[int, list[float]] = {1: [], 9: []}
        for _ in range(turns):
            for runs, seconds in took.items():
                seconds.append(_study(settings, runs))
        one, nine = median(took[1]), median(took[9])
        print(f"{title:40}{one:9.3f}{nine:9.3f}{nine / one:7.2f}x{WANTED:7.1f}x", flush=True)
    many = _study(LOGREG, 9, METHODS)
    runs = 9 * len(METHODS)
    print(
        f"{len(METHODS)} methods x 9 runs of logistic regression: {many:.1f} s, {3600 * runs / many:.0f} runs an hour"
    )


def _study(settings: dict[str, Any], runs: int, methods: list[str] | None = None) -> float:
    """Return the seconds of a study with so many runs of a method, its tables, figures and page included."""
    skews, seeds = SKEWS, range(3)
    if runs == 1:
        skews, seeds = SKEWS[:1], range(1)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        began = time.perf_counter()
        out = Path(folder) / "study"
        fs.compare(algorithm=methods or ["fedavg"], skew=skews, seeds=seeds, out=out, **settings)
        return time.perf_counter() - began
