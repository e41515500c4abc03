"""Edge servers on digits: accuracy, traffic with the cloud and simulated time by how often the cloud aggregates."""

import numpy as np

import fedskew as fs
from fedskew.core.streams import Floats

SEEDS = range(5)
CLIENTS = 40
TARGET = 0.85
LINE = {"mbit": 2.0, "latency": 0.5}  # between an edge and the cloud
SETTINGS = {
    "rounds": 60,
    "per_round": 20,
    "epochs": 2,
    "lr": 0.1,
    "fleet": "mixed:slow=10,mbit_per_second=1,latency=0.2,dropout=0.1",
    "threads": 1,
    "folder": False,
}
METHODS = {
    "no edges": fs.FedAvg(),
    "`every=1`": fs.FedAvg() + fs.algorithms.Hierarchical(edges=4, every=1, **LINE),
    "`every=5`": fs.FedAvg() + fs.algorithms.Hierarchical(edges=4, every=5, **LINE),
    "`every=20`": fs.FedAvg() + fs.algorithms.Hierarchical(edges=4, every=20, **LINE),
    "`every=20,by=network`": fs.FedAvg()
    + fs.algorithms.Hierarchical(edges=4, every=20, by="network", **LINE),
    "`every=20,by=labels`": fs.FedAvg()
    + fs.algorithms.Hierarchical(edges=4, every=20, by="labels", **LINE),
}
HEAD = [
    "method",
    "test accuracy, last",
    f"rounds to {TARGET:g}",
    "simulated seconds to it",
    "simulated seconds of 60 rounds",
    "MB with the cloud",
]


def main() -> None:
    """Print the table of docs/hierarchies.md."""
    data = fs.load("digits")
    feds = []
    for seed in SEEDS:
        feds.append(fs.split(data, "dirichlet:alpha=0.2", clients=CLIENTS, seed=seed))
    print(f"| {' | '.join(HEAD)} |")
    print("|" + "---|" * len(HEAD))
    for title, method in METHODS.items():
        found = []
        for seed, fed in zip(SEEDS, feds, strict=True):
            run = fs.train(fed, "mlp:hidden=32", method, seed=seed, **SETTINGS)
            found.append(_measured(run, title == "no edges"))
        cells = [_spread(values) for values in np.array(found).T]
        print(f"| {title} | {' | '.join(cells)} |", flush=True)


def _measured(run: fs.Run, flat: bool) -> list[float]:
    """Return a row of one run: accuracy, rounds and seconds to the target, seconds of all rounds, MB."""
    rounds = run.rounds
    last = rounds.iloc[-1]
    reached = rounds[rounds["test_accuracy"] >= TARGET]
    first = [np.nan, np.nan]
    if len(reached):
        first = [float(reached.iloc[0]["round"]), float(reached.iloc[0]["clock"])]
    columns = ["cloud_bytes_up", "cloud_bytes_down"]
    if flat:
        columns = ["bytes_up", "bytes_down"]
    with_cloud = float(rounds[columns].to_numpy().sum())
    return [float(last["test_accuracy"]), *first, float(last["clock"]), with_cloud / 1e6]


def _spread(values: Floats) -> str:
    """Return mean and standard deviation over the runs that have a number, and how many these are if not all."""
    known = values[~np.isnan(values)]
    if not len(known):
        return "-"
    text = f"{known.mean():.3g} ± {known.std(ddof=1):.2g}"
    if len(known) < len(values):
        text += f" ({len(known)} of {len(values)})"
    return text
