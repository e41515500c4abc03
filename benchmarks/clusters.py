"""Planted clusters of clients, four permutations of the labels: who finds them, and the own accuracy that follows."""

import numpy as np
from sklearn.metrics import rand_score

import fedskew as fs

METHODS = ("fedavg", "local", "ditto", "ifca:models=4", "ifca:models=4,start=updates", "cfl")
FOUND_IN = {"ifca": "chosen_model", "cfl": "cluster"}  # columns of the table of clients
SETTINGS = {"rounds": 60, "epochs": 5, "lr": 0.1, "folder": False, "eval_every": 60}


def planted(fed: fs.Federation) -> list[int]:
    """Return the cluster of each client, by the first client that gives the labels the same meaning."""
    meanings = []
    for client in range(fed.clients):
        rows = fed.partition.of(client)
        meanings.append(dict(zip(fed.data.train.y[rows], fed.train.y[rows], strict=True)))
    clusters = []
    for mine in meanings:
        for number, other in enumerate(meanings):
            if all(mine[label] == other[label] for label in mine.keys() & other.keys()):
                clusters.append(number)
                break
    return clusters


def main(seeds: int = 5) -> None:
    skew = "iid + relabel:fraction=1,permutations=4"
    for seed in range(seeds):
        fed = fs.split(fs.load("digits"), skew, clients=20, client_test=0.2, seed=seed)
        truth = planted(fed)
        for method in METHODS:
            run = fs.train(fed, "mlp", method, seed=seed, **SETTINGS)
            said = f"{run.summary['client_accuracy_mean']:.3f}"
            column = FOUND_IN.get(method.partition(":")[0])
            if column:
                last = run.clients[run.clients["round"] == SETTINGS["rounds"]]
                found = last.sort_values("client")[column]
                said += f"  Rand index {rand_score(truth, found):.2f}"
            print(f"seed {seed}  {method:28} {said}", flush=True)
        print(
            f"seed {seed}  {'central, right clusters':28} {_central(fed, truth, seed):.3f}",
            flush=True,
        )


def _central(fed: fs.Federation, truth: list[int], seed: int) -> float:
    """Return the mean own accuracy of one central model for each planted cluster."""
    scores: list[float] = []
    for cluster in sorted(set(truth)):
        clients = np.flatnonzero(np.array(truth) == cluster)
        alone = fs.Federation(
            fed.data,
            fed.partition.only(clients),
            fed.held_out.only(clients),
            treated=fed.treated,
        )
        run = fs.train(alone, "mlp", "central", seed=seed, **SETTINGS)
        scores += run.final_clients["accuracy"].tolist()
    return float(np.mean(scores))
