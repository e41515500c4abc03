"""The cost of private label entropies: AFL-CP on digits, 30 clients of Dirichlet 0.5 on different machines, 8 seeds."""

import numpy as np
from scipy.stats import spearmanr

import fedskew as fs
from fedskew.algorithms.afl_cp import AFLCP
from fedskew.core.streams import Floats, Ints, Stream

EPSILONS = (0.5, 1.0, 2.0, 5.0, 10.0, None)
SEEDS = range(8)
SETTINGS = {
    "rounds": 60,
    "per_round": 10,
    "lr": 0.05,
    "batch_size": 32,
    "fleet": "mixed:dropout=0.2",
    "threads": 1,
}
DRAWS = 200  # of the noise, for the correlation: 30 clients are few


def main() -> None:
    data = fs.load("digits")
    feds = [fs.split(data, "dirichlet:alpha=0.5", clients=30, seed=seed) for seed in SEEDS]
    print(
        "| epsilon | rank correlation | test accuracy, last | Gini of the weights |\n|---|---|---|---|"
    )
    for epsilon in EPSILONS:
        method = AFLCP(epsilon=epsilon)
        told = [_correlation(fed, method) for fed in feds]
        _print_line(str(epsilon or "none"), f"{np.mean(told):.2f}", feds, method)
    _print_line("nothing told, `entropy=0`", "-", feds, AFLCP(entropy=0))
    _print_line("FedAvg", "-", feds, fs.FedAvg())


def _correlation(fed: fs.Federation, method: AFLCP) -> float:
    """Return Spearman's correlation of reported and true entropies, mean over draws; 0 if all reports are equal."""
    counts = np.array(
        [np.bincount(fed.train.y[fed.partition.of(k)], minlength=10) for k in range(fed.clients)]
    )
    true = _told(AFLCP(), counts, 0)
    draws = (_told(method, counts, i) for i in range(DRAWS))
    return float(
        np.mean([spearmanr(true, told).statistic if np.ptp(told) else 0.0 for told in draws])
    )


def _told(method: AFLCP, counts: Ints, seed: int) -> Floats:
    return method.client_selection.client_profile(lambda: counts, Stream(seed, "disclose"))[
        "entropy"
    ]


def _print_line(
    title: str, correlation: str, feds: list[fs.Federation], method: fs.Algorithm
) -> None:
    runs = [
        fs.train(fed, "mlp:hidden=32", method, seed=seed, folder=False, eval_every=60, **SETTINGS)
        for seed, fed in zip(SEEDS, feds, strict=True)
    ]
    accuracy, gini = (
        _spread([run.summary[name] for run in runs])
        for name in ("test_accuracy_last", "gini_of_client_weights")
    )
    print(f"| {title} | {correlation} | {accuracy} | {gini} |", flush=True)


def _spread(values: list[float]) -> str:
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"
