"""Per-layer mu on digits: with learning rates that fall, and how far each layer drifts by heterogeneity."""

import numpy as np

import fedskew as fs
from benchmarks.paired import interval

SEEDS = range(5)
SCHEDULES = ("constant", "cosine", "step:every=20,factor=0.5")
ALPHAS = (0.1, 1.0)
LEVELS = (0.05, 0.1, 0.3, 1.0, 10.0)
MODEL = "mlp:hidden=64+32"
MU = 0.1
SETTINGS = {"rounds": 60, "epochs": 5, "lr": 0.1, "threads": 1, "folder": False, "eval_every": 60}


def main() -> None:
    """Print the two tables of docs/choosing.md."""
    data = fs.load("digits")
    print(
        f"| schedule | Dirichlet | FedAvg | FedProx, mu {MU} | per layer, mu_0 {MU} | difference |"
    )
    print("|---|---|---|---|---|---|")
    for schedule in SCHEDULES:
        for alpha in ALPHAS:
            _print_schedule(data, schedule, alpha)
    print()
    _print_drifts(data)


def _print_schedule(data: fs.Dataset, schedule: str, alpha: float) -> None:
    """Print the last accuracy of three methods, and the paired difference of the last two."""
    methods = (fs.FedAvg(), fs.FedProx(mu=MU), fs.FedProxLayers(mu=MU))
    found = []
    for seed in SEEDS:
        fed = fs.split(data, f"dirichlet:alpha={alpha}", clients=20, seed=seed)
        scores = []
        for method in methods:
            run = fs.train(fed, MODEL, method, seed=seed, schedule=schedule, **SETTINGS)
            scores.append(100 * run.summary["test_accuracy_last"])
        found.append(scores)
    table = np.array(found)
    cells = [f"{values.mean():.1f}" for values in table.T]
    cells.append(interval(table[:, 2] - table[:, 1]))
    print(f"| `{schedule}` | {alpha:g} | {' | '.join(cells)} |", flush=True)


def _print_drifts(data: fs.Dataset) -> None:
    """Print how far the global weights of each layer move in a round, after the first ten, by heterogeneity."""
    names: list[str] = []
    for alpha in LEVELS:
        found = []
        for seed in SEEDS:
            fed = fs.split(data, f"dirichlet:alpha={alpha}", clients=20, seed=seed)
            method = fs.FedProxLayers(mu=MU, group="module")
            run = fs.train(fed, MODEL, method, seed=seed, **SETTINGS)
            drifts = run.rounds.filter(like="drift_")
            names = [str(name).removeprefix("drift_") for name in drifts.columns]
            found.append(drifts.to_numpy()[10:].mean(0))
        if alpha == LEVELS[0]:
            print(f"| Dirichlet | {' | '.join(f'`{name}`' for name in names)} | first over last |")
            print("|" + "---|" * (len(names) + 2))
        table = np.array(found)
        cells = [interval(values, ".3f") for values in table.T]
        cells.append(interval(table[:, 0] / table[:, -1], ".2f"))
        print(f"| {alpha:g} | {' | '.join(cells)} |", flush=True)
