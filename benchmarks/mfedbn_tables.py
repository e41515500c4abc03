"""MFedBN's Tables 2 and 4 beside ours: heterogeneity after VOP, WGC, LDS, SFDL and SLDF, on substitute data."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.stats import wasserstein_distance

from fedskew.data.dataset import Rows
from fedskew.data.source import find
from fedskew.export.split_folder import read_origin
from fedskew.heterogeneity.heterogeneity import levels
from fedskew.heterogeneity.study import Convention
from fedskew.skew.partitioning import Partitioned, partition_rows

SKEWS = ("vop", "wgc", "lds", "sfdl", "sldf")
CELLS = ("features hellinger", "features wasserstein", "labels hellinger", "labels wasserstein")
READINGS = ("mean over features", "most skewed feature", "as FedArtML")
OF_LABELS = (0, 2)  # readings that differ where there is one variable only
CLIENTS, SEEDS = 4, range(5)

Levels: TypeAlias = NDArray[np.float64]  # skews x cells
Claim: TypeAlias = tuple[str, str, Callable[[Levels], bool]]  # what it says, of which kind of cells, whether it holds


def _most(skew: str, cell: str) -> Claim:
    line, column = SKEWS.index(skew), CELLS.index(cell)
    return f"{cell} is greatest after {skew}", cell, lambda found: bool(np.argmax(found[:, column]) == line)


def _sldf_alone_keeps_labels(found: Levels) -> bool:
    labels = found[:, 2:].max(axis=1)
    return bool(labels[-1] < 0.01 < labels[:-1].min())


KEEPS: Claim = ("sldf, and it alone, has equal label shares (below 0.01)", "labels", _sldf_alone_keeps_labels)


@dataclass(frozen=True)
class PaperTable:
    number: int
    theirs: str
    ours: str
    name: str
    file: str
    options: str
    lds: str  # in Fig. 9 the commonest label is 0
    paper: tuple[tuple[float, float, float, float], ...]  # a row for each of SKEWS, in the order of CELLS
    claims: tuple[Claim, ...]  # what the paper's text reads off the table

    def rows(self) -> Rows:
        """Return all rows of the substitute, in stored order and in the units of the file, as VOP uses variances."""
        return read_origin(f"csv:path={find(self.name, self.file)},standardize=false,{self.options}").data.train


TABLES = (
    PaperTable(
        2, "Commercial Vehicles Sensor, 1,699,983 rows, 5 states",
        "driving-behavior, 3,644 rows, 3 driving styles, 6 features",
        "driving-behavior", "driving-behavior/train_motion_data.csv", "label=Class,drop=Timestamp", "lds",
        ((1.00, 0.56, 1.00, 0.48), (1.00, 0.46, 1.00, 0.57), (1.00, 0.66, 1.00, 0.73), (1.00, 0.58, 1.00, 0.75),
         (1.00, 0.67, 0.00, 0.00)),
        (KEEPS, _most("sldf", "features wasserstein"), _most("sfdl", "labels wasserstein")),
    ),
    PaperTable(
        4, "NF-UNSW-NB15, 1,623,118 flows, 10 classes", "UNSW-NB15, 82,332 flows, 10 classes, its 39 numeric features",
        "unsw-nb15", "unsw-nb15/UNSW_NB15_training-set.csv", "label=attack_cat,drop=id+label+proto+service+state",
        "lds:order=frequency",
        ((1.00, 0.62, 1.00, 0.31), (1.00, 0.56, 1.00, 0.29), (1.00, 0.30, 1.00, 0.42), (0.67, 0.22, 1.00, 0.28),
         (1.00, 0.55, 0.00, 0.004)),
        (KEEPS, _most("vop", "features wasserstein"), _most("lds", "labels wasserstein")),
    ),
)  # fmt: skip


def main() -> None:
    found = []
    for table in TABLES:
        rows = table.rows()
        found.append(_measure(rows, table.lds))
        _print_table(table, found[-1].mean(axis=1))
        _print_orderings(table, found[-1])
        _print_lists_of_shares(rows, table.lds)
    paper = [np.mean([line[1] for line in table.paper]) for table in TABLES]
    means = f"{paper[0]:.2f} and {paper[1]:.2f}"
    print(f"\nThe paper calls Table 4 less heterogeneous: features wasserstein, mean of the five, {means}.")
    for reading, (two, four) in zip(READINGS, zip(*found, strict=True), strict=True):
        print(f"Ours, {reading}: {two[..., 1].mean():.3f} and {four[..., 1].mean():.3f}.")


def _measure(rows: Rows, lds: str) -> NDArray[np.float64]:
    """Return the measurements as readings x seeds x skews x cells."""
    result = np.empty((len(READINGS), len(SEEDS), len(SKEWS), len(CELLS)))
    for seed, skew in np.ndindex(len(SEEDS), len(SKEWS)):
        made = _made(skew, rows, lds, SEEDS[seed])
        labels = _two(made, made.rows, "labels")
        single = [_two(made, replace(rows, x=rows.x[:, [column]]), "features") for column in _varying(rows)]
        result[0, seed, skew] = (*np.mean(single, axis=0), *labels)
        result[1, seed, skew] = (*np.max(single, axis=0), *labels)
        result[2, seed, skew] = (*_two(made, rows, "features", "fedartml"), *_two(made, rows, "labels", "fedartml"))
    return result


def _made(skew: int, rows: Rows, lds: str, seed: int) -> Partitioned:
    return partition_rows(lds if SKEWS[skew] == "lds" else SKEWS[skew], rows, CLIENTS, seed)


def _print_lists_of_shares(rows: Rows, lds: str) -> None:
    """Print the result of FedArtML's code, which compares clients' lists of label shares as samples of numbers."""
    found = []
    for skew, name in enumerate(SKEWS):
        counts = _made(skew, rows, lds, 0).partition.counts(rows.y, int(rows.y.max()) + 1)
        shares = counts / counts.sum(axis=1, keepdims=True)
        apart = [wasserstein_distance(shares[a], shares[b]) for a, b in combinations(range(CLIENTS), 2)]
        found.append(f"{name} {np.sqrt(np.mean(apart)):.3f}")
    print(f"\nLabels wasserstein between lists of shares, as FedArtML's code has it, seed 0: {', '.join(found)}.")


def _varying(rows: Rows) -> list[int]:
    return [int(column) for column in np.flatnonzero(np.ptp(rows.x, axis=0))]


def _two(made: Partitioned, rows: Rows, of: str, convention: Convention = "mean") -> tuple[float, float]:
    found = levels(rows, made.partition, of, convention=convention)
    return found["hellinger"], found["wasserstein"]


def _print_table(table: PaperTable, ours: NDArray[np.float64]) -> None:
    print(f"\n## Table {table.number}\n\nPaper: {table.theirs}. Ours: {table.ours}, as a stand-in.\n")
    heads = []
    for cell in CELLS:
        whose = (
            [f"ours, {reading}" for reading in READINGS]
            if cell.startswith("features")
            else ["ours", "ours, as FedArtML"]
        )
        heads += [f"{cell}: paper", *whose]
    print(f"| skew | {' | '.join(heads)} |\n|---|{'---|' * len(heads)}")
    for line, skew in enumerate(SKEWS):
        cells = []
        for column, cell in enumerate(CELLS):
            mine = ours[:, line, column] if cell.startswith("features") else ours[OF_LABELS, line, column]
            cells += [f"*{table.paper[line][column]:g}*", *(f"{value:.3f}" for value in mine)]
        print(f"| {skew} | {' | '.join(cells)} |")


def _print_orderings(table: PaperTable, ours: NDArray[np.float64]) -> None:
    paper, mean = np.array(table.paper), ours.mean(axis=1)
    print(f"\n| the paper says | {' | '.join(READINGS)} |\n|---|{'---|' * len(READINGS)}")
    for text, cell, holds in table.claims:
        times = [sum(holds(levels) for levels in by_seed) for by_seed in ours]
        _print_verdicts(text, cell, [f"{_verdict(count)}, {count} of {len(SEEDS)} seeds" for count in times])
    for column, cell in enumerate(CELLS):
        pairs = [(a, b) for a, b in combinations(range(len(SKEWS)), 2) if paper[a, column] != paper[b, column]]
        same = [
            sum((paper[a, column] > paper[b, column]) == (found[a, column] > found[b, column]) for a, b in pairs)
            for found in mean
        ]
        _print_verdicts(
            f"order of the skews by {cell}", cell, [f"{count} of the {len(pairs)} pairs that differ" for count in same]
        )


def _print_verdicts(text: str, cell: str, verdicts: list[str]) -> None:
    shown = verdicts if cell.startswith("features") else [verdicts[0], "the same", verdicts[2]]
    print(f"| {text} | {' | '.join(shown)} |")


def _verdict(times: int) -> str:
    return "holds" if times == len(SEEDS) else "refuted" if not times else "undecided"
