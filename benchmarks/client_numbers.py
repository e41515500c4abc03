"""Fixed numbers of clients in a round against the norm test, at equal work: digits, 60 clients, two skews."""

import numpy as np

import fedskew as fs

SEEDS = range(5)
CLIENTS = 60
WORK = (300, 1200)  # clients trained so far, over all rounds
FIXED = (4, 10, 30, 60)
BOUNDS = (0.3, 0.5, 1.0)
SKEWS = ("dirichlet:alpha=0.1", "dirichlet:alpha=1")
SETTINGS = {"epochs": 2, "lr": 0.1, "threads": 1, "folder": False}


def main() -> None:
    """Print the table of docs/choosing.md."""
    data = fs.load("digits")
    columns = []
    for skew in SKEWS:
        for work in WORK:
            columns.append(f"{skew.partition('=')[2]}: after {work}")
    print(f"| clients in a round | {' | '.join(columns)} | in the last rounds |")
    print("|" + "---|" * (len(columns) + 2))
    for count in FIXED:
        _print_line(str(count), data, fs.FedAvg(), count)
    for bound in BOUNDS:
        method = fs.FedAvg() + fs.algorithms.NormTest(bound=bound)
        _print_line(f"`norm-test:bound={bound}`", data, method, CLIENTS)


def _print_line(title: str, data: fs.Dataset, method: fs.Algorithm, most: int) -> None:
    """Print the accuracies of one method after so much work."""
    cells = []
    last = []
    for skew in SKEWS:
        found = []
        for seed in SEEDS:
            fed = fs.split(data, skew, clients=CLIENTS, seed=seed)
            rounds = -(-WORK[-1] // 4)  # as many as the fewest clients would need
            if type(method) is fs.FedAvg:
                rounds = WORK[-1] // most
            run = fs.train(
                fed, "mlp:hidden=32", method, seed=seed, rounds=rounds, per_round=most, **SETTINGS
            )
            table = run.rounds
            done = table["clients"].cumsum()
            within = []
            for work in WORK:
                # The mean over the last three rounds within the work, as single rounds scatter
                within.append(table["test_accuracy"][done <= work].iloc[-3:].mean())
            found.append(within)
            last.append(table["clients"][done <= WORK[-1]].iloc[-3:].mean())
        for values in np.array(found).T:
            cells.append(f"{values.mean():.3f} ± {values.std(ddof=1):.3f}")
    print(f"| {title} | {' | '.join(cells)} | {np.mean(last):.0f} |", flush=True)
