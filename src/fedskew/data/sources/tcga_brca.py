"""Survival after breast cancer in six regions (TCGA-BRCA), as FLamby's Fed-TCGA-BRCA."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.files import reading
from fedskew.data.dataset import Rows
from fedskew.data.readers.arrays import Arrays, everything
from fedskew.data.source import Source, find, register

if TYPE_CHECKING:
    from fedskew.data.cells import Frame

_PATIENTS = "tcga-brca/brca.csv"
_SPLIT = "tcga-brca/train_test_split.csv"
_REGIONS = ("northeast", "south", "west", "midwest", "europe", "canada")  # in FLamby's order
_TARGETS = {"T": "time", "E": "event"}


@register(
    "tcga-brca",
    Source(
        "data: GDC's open-access terms (no attempt to identify patients); files: MIT, FLamby, du Terrail et al. 2022",
        files=(_PATIENTS, _SPLIT),
        manual=(
            "copy brca.csv and dataset_creation_scripts/train_test_split.csv from flamby/datasets/fed_tcga_brca of "
            "https://github.com/owkin/FLamby into {root}/tcga-brca/"
        ),
    ),
)
def tcga_brca(*, standardize: bool = False) -> Arrays:
    """Survival of 1,088 patients with breast cancer in six regions, with the region as group: natural clients.

    Targets are the time in days and whether the patient died then, for task=survival. There are 39 features, age and
    indicators of the diagnosis. The split into training and test rows is FLamby's.

    Args:
        standardize: bring every feature to mean 0 and deviation 1 over the training rows; FLamby leaves them as they
            are, age in years among them
    """
    split = _read(find("tcga-brca", _SPLIT), ("pid", "fold2"))
    patients = _read(find("tcga-brca", _PATIENTS), ("pid", *_TARGETS))
    # As FLamby does: the split is of the patients whose region is known
    patients = patients[patients["pid"].isin(split["pid"])]
    fold = patients["pid"].map(dict(zip(split["pid"], split["fold2"], strict=True)))
    features = patients.drop(columns=["pid", *_TARGETS])
    x = features.to_numpy(np.float32)
    y = patients[list(_TARGETS)].to_numpy(np.float32)
    region = fold.str.split("_").str[1].to_numpy(np.int64)
    kept = fold.str.startswith("train").to_numpy(np.bool_)
    scaled = None
    if standardize:
        scaled = everything(x)
    return Arrays(
        Rows(x[kept], y[kept], region[kept]),
        Rows(x[~kept], y[~kept], region[~kept]),
        classes=tuple(_TARGETS.values()),
        groups=_REGIONS,
        features=tuple(map(str, features.columns)),
        notes=("patients, regions and split are those of FLamby",),
        scaled=scaled,
    )


def _read(path: Path, needed: tuple[str, ...]) -> "Frame":
    """Read a table that has these columns."""
    import pandas as pd

    with reading(path), path.open("rb") as file:
        try:
            frame = pd.read_csv(file)
        except (pd.errors.EmptyDataError, pd.errors.ParserError, ValueError) as error:
            raise FedskewError(f"{path} is not a table: {error}") from None
    for column in needed:
        if column not in frame.columns:
            raise FedskewError(
                f"{path} has no column {column!r}: it is cut off or damaged, put the published file there"
            )
    return frame
