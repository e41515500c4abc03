"""The A/A pilot of the atlas: FedAvg against itself, by which the number of blocks and the zone were settled.

Both arms of a block share partition and held-out rows, and differ in initial weights, sampling and batches. The spread
of their differences is what no method can explain.
"""

import numpy as np

from fedskew.api import compare
from fedskew.atlas.protocol import read_protocol
from fedskew.study.judge import LEVEL, paired_interval

CELLS = ("digits-label-50", "covtype-label-50", "heart-disease", "insteval")
BLOCKS = 10
FAMILY = 9  # methods that are compared with one control
LR = 0.3


def main(cells: tuple[str, ...] = CELLS) -> None:
    protocol = read_protocol()
    for study in protocol.studies:
        if study.cell.name not in cells or study.goal != "shared":
            continue
        given = study.given()
        for name in ("grid", "choose_seeds", "seeds", "control", "algorithm"):
            given.pop(name)
        differences = []
        for block in range(BLOCKS):
            scores = []
            for arm in (2 * block, 2 * block + 1):
                frame = compare(
                    algorithm="fedavg", lr=LR, seeds=[2000 + arm], split_seed=2000 + block, **given
                )
                scores.append(float(frame["score"].iloc[0]))
            differences.append(scores[0] - scores[1])
        spread = float(np.std(differences, ddof=1))
        widths = []
        for blocks in (5, 10, 20):
            drawn = list(np.resize([spread, -spread], blocks) * np.sqrt((blocks - 1) / blocks))
            interval = paired_interval(drawn, 1 - LEVEL / FAMILY)
            widths.append(f"{blocks} blocks ±{100 * interval.half_width:.2f}")
        print(
            f"{study.cell.name:20} deviation {100 * spread:.2f} points; {', '.join(widths)}",
            flush=True,
        )
