"""FLamby's Fed-Heart-Disease with its settings, beside its published scores (du Terrail et al. 2022).

Its clients take 100 steps of 4 rows in each of 15 rounds, however many rows they have. fedskew counts in epochs, so
that the rows of a hospital are repeated until they fill 100 batches. Hospitals then count alike, where FLamby counts
rows. The second reading has 2 epochs per round, in which the largest hospital takes 100 steps, and counts rows.

FLamby's "pooled test" standardises test rows by all hospitals' training rows, while clients train on rows that each
hospital has standardised by its own. Scores on test rows of the latter kind are printed as well.
"""

from dataclasses import replace

import numpy as np

import fedskew as fs
from fedskew.data.dataset import Dataset

ROUNDS, STEPS, BATCH = 15, 100, 4
SEEDS = range(5)
# Method, its learning rate, and the pooled test accuracy in FLamby's table
STRATEGIES = (
    ("fedavg", 0.001, 0.748),
    ("fedprox:mu=0.01", 0.001, 0.748),
    ("scaffold", 0.001, 0.748),
    ("fedadam:server_lr=0.01,beta2=0.999,tau=1e-8", 0.01, 0.779),
    ("fedyogi:server_lr=0.01,beta2=0.999,tau=1e-8", 0.003162, 0.779),
    ("fedadagrad:server_lr=0.316228,beta1=0.9,tau=1e-8", 0.003162, 0.779),
)
POOLED = 0.795


def repeated(data: Dataset) -> Dataset:
    """Return hospitals whose rows are repeated until they fill all batches of a round."""
    rows = []
    for hospital in range(len(data.groups)):
        own = np.flatnonzero(data.train.group == hospital)
        rows.append(np.resize(own, STEPS * BATCH))
    return replace(data, train=data.train.take(np.concatenate(rows)))


def score(fed: fs.Federation, method: str, **settings: object) -> tuple[float, float]:
    """Return the mean test accuracy over seeds, and its standard deviation."""
    scores = []
    for seed in SEEDS:
        run = fs.train(
            fed,
            "logreg",
            method,
            task="binary",
            batch_size=BATCH,
            seed=seed,
            folder=False,
            **settings,
        )
        scores.append(run.summary["test_accuracy_last"])
    return float(np.mean(scores)), float(np.std(scores, ddof=1))


def main() -> None:
    own = fs.load("heart-disease:version=flamby")
    pooled = fs.load("heart-disease:version=flamby,standardize=all")
    as_published = replace(own, test=pooled.test)
    hundred = fs.split(repeated(as_published), "natural")
    by_rows = fs.split(as_published, "natural")
    by_hospital = fs.split(own, "natural")
    print(
        "method, published, 100 steps per hospital, 2 epochs by rows, likewise on rows by hospital"
    )
    for method, lr, published in STRATEGIES:
        numbers = [
            score(hundred, method, rounds=ROUNDS, lr=lr),
            score(by_rows, method, rounds=ROUNDS, lr=lr, epochs=2),
            score(by_hospital, method, rounds=ROUNDS, lr=lr, epochs=2),
        ]
        said = "  ".join(f"{mean:.3f} ± {spread:.3f}" for mean, spread in numbers)
        print(f"{method.partition(':')[0]:12} {published:.3f}  {said}", flush=True)
    together = fs.split(pooled, "natural")
    mean, spread = score(together, "central", rounds=1, epochs=50, lr=0.001, optimizer="adam")
    print(f"{'pooled, Adam':12} {POOLED:.3f}  {mean:.3f} ± {spread:.3f}")
