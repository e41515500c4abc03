"""FLamby's Fed-TCGA-BRCA with its settings, beside its published concordance indices (du Terrail et al. 2022).

A linear Cox model on 39 features as they are, six regions, the published split. The published numbers are the means
over the five seeds of the result files in FLamby's repository (flamby/results/results_benchmark_fed_tcga_brca).

FLamby's clients take 100 steps of 8 rows in each of 5 rounds, however many rows they have. fedskew counts in epochs, so
that the rows of a region are repeated until they fill 100 batches. Regions then count alike, where FLamby counts rows.
The second reading has 3 epochs per round, in which the largest region takes 93 steps, and counts rows. Models that are
trained alone and on pooled rows have 30 epochs of Adam, as FLamby's have.

Scores depend on the seed: each reading is printed for FLamby's count of seeds, five, and for twenty.
"""

from dataclasses import replace

import numpy as np

import fedskew as fs
from fedskew.data.dataset import Dataset

ROUNDS, STEPS, BATCH = 5, 100, 8
FEW, MANY = 5, 20  # seeds
# Method, its learning rate, and the concordance index on pooled test rows in FLamby's result files
STRATEGIES = (
    ("fedavg", 0.1, 0.735),
    ("fedprox:mu=0.1", 0.1, 0.717),
    ("scaffold", 0.01, 0.699),
    ("fedadam:server_lr=0.1,beta2=0.999,tau=1e-8", 0.01, 0.842),
    ("fedyogi:server_lr=0.1,beta2=0.999,tau=1e-8", 0.01, 0.842),
    ("fedadagrad:server_lr=1.0,beta1=0.9,tau=1e-8", 0.01, 0.834),
)
POOLED, LOCAL = 0.704, 0.671


def repeated(data: Dataset) -> Dataset:
    """Return regions whose rows are repeated until they fill all batches of a round."""
    rows = []
    for region in range(len(data.groups)):
        own = np.flatnonzero(data.train.group == region)
        rows.append(np.resize(own, STEPS * BATCH))
    return replace(data, train=data.train.take(np.concatenate(rows)))


def score(
    fed: fs.Federation, method: str, column: str = "test_concordance_last", **settings: object
) -> str:
    """Return the mean concordance index on test rows and its standard deviation, over few and over many seeds."""
    scores = []
    for seed in range(MANY):
        run = fs.train(
            fed,
            "logreg",
            method,
            task="survival",
            batch_size=BATCH,
            seed=seed,
            folder=False,
            **settings,
        )
        scores.append(run.summary[column])
    said = []
    for count in (FEW, MANY):
        some = scores[:count]
        said.append(f"{np.mean(some):.3f} ± {np.std(some, ddof=1):.3f}")
    return "  ".join(said)


def main() -> None:
    data = fs.load("tcga-brca")
    hundred = fs.split(repeated(data), "natural")
    by_rows = fs.split(data, "natural")
    print(
        f"method, published, 100 steps per region, 3 epochs by rows; each over {FEW}, {MANY} seeds"
    )
    for method, lr, published in STRATEGIES:
        alike = score(hundred, method, rounds=ROUNDS, lr=lr)
        counted = score(by_rows, method, rounds=ROUNDS, lr=lr, epochs=3)
        print(f"{method.partition(':')[0]:12} {published:.3f}  {alike}  {counted}", flush=True)
    adam = {"rounds": 1, "epochs": 30, "lr": 0.1, "optimizer": "adam"}
    print(f"{'pooled, Adam':12} {POOLED:.3f}  {score(by_rows, 'central', **adam)}", flush=True)
    alone = score(by_rows, "local", "own_test_concordance_last", **adam)
    print(f"{'local, Adam':12} {LOCAL:.3f}  {alone}")
