"""Guards of the atlas: a sample of its runs again by the loop engine, and what its variance comes from.

The first prints how far the scores of the plain engine are from the published ones. The second takes three partitions
and four seeds of initial weights and batches, and divides the variance of FedAvg's score, and of SCAFFOLD's gain.
"""

import numpy as np

from fedskew.api import compare
from fedskew.atlas.cell_results import RunRow
from fedskew.atlas.protocol import CellStudy
from fedskew.atlas.published import published_map

EVERY = 50  # judged runs, of which one is repeated
SLOW = ("cnn",)  # parts of names of cells that are left out
CELLS = ("digits-label-50", "covtype-label-50", "heart-disease")
PARTITIONS, SEEDS = range(3), range(4)
_OF_A_STUDY = ("grid", "choose_seeds", "seeds", "control", "algorithm", "goal")


def main() -> None:
    repeat()
    divide()


def settings_of(study: CellStudy) -> dict[str, object]:
    """Return the settings of one run of a study, with the rows that its choosing set aside."""
    given = study.given()
    for name in _OF_A_STUDY:
        given.pop(name)
    if study.goal == "own":
        return {**given, "client_validation": 0.2}
    return {**given, "validation": 0.2}


def score(study: CellStudy, method: str, lr: float, seed: int, **more: object) -> float:
    """Return the score of one run."""
    frame = compare(
        algorithm=method, lr=lr, seeds=[seed], goal=study.goal, **{**settings_of(study), **more}
    )
    return float(frame["score"].iloc[0])


def repeat() -> None:
    """Print the differences of runs that the loop engine repeats."""
    found = published_map()
    gaps = []
    number = 0
    for study in found.protocol.studies:
        if study.name not in found.results or any(part in study.name for part in SLOW):
            continue
        for row in found.results[study.name].judged:
            number += 1
            if number % EVERY or row.score is None:
                continue
            gaps.append(_gap(study, row))
    within = np.mean(np.array(gaps) <= 0.005)
    print(
        f"{len(gaps)} runs by the loop engine: {100 * within:.0f} % within half a point of the published score, "
        f"largest difference {100 * max(gaps):.2f} points, mean {100 * np.mean(gaps):.3f}"
    )


def _gap(study: CellStudy, row: RunRow) -> float:
    """Return how far the score of one run is from the published one."""
    again = score(study, row.method, row.lr, row.seed, engine="loop")
    gap = abs(again - (row.score or 0.0))
    print(
        f"{study.name:28} {row.method:42} seed {row.seed}: {row.score:.4f} {again:.4f}", flush=True
    )
    return gap


def divide() -> None:
    """Print the standard deviations over partitions, and over initial weights and batches."""
    found = published_map()
    for study in found.protocol.studies:
        if study.cell.name not in CELLS or study.goal != "shared":
            continue
        chosen = found.results[study.name].chosen
        scores = np.empty((2, len(PARTITIONS), len(SEEDS)))
        for place, method in enumerate(("fedavg", "scaffold")):
            for partition in PARTITIONS:
                for seed in SEEDS:
                    scores[place, partition, seed] = score(
                        study, method, chosen[method], seed, split_seed=partition
                    )
        print(f"{study.cell.name}: FedAvg's score {_parts(scores[0])}")
        print(f"{study.cell.name}: SCAFFOLD's gain {_parts(scores[1] - scores[0])}", flush=True)


def _parts(values: np.ndarray) -> str:
    """Return the deviations of a random effect per partition, and of seeds within partitions."""
    within = values.var(axis=1, ddof=1).mean()
    between = max(0.0, values.mean(axis=1).var(ddof=1) - within / values.shape[1])
    return (
        f"varies by {100 * np.sqrt(between):.2f} points over partitions, {100 * np.sqrt(within):.2f} over initial "
        "weights and batches"
    )
