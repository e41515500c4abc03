"""Heart disease at four hospitals (UCI 45), as the files are or as FLamby's Fed-Heart-Disease."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.files import reading
from fedskew.core.streams import Floats, Ints
from fedskew.data.dataset import Rows, Split
from fedskew.data.readers.arrays import Arrays
from fedskew.data.readers.table import Table
from fedskew.data.source import Source, TestShare, find, register

if TYPE_CHECKING:
    from fedskew.data.cells import Frame

_HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
_COLUMNS = (
    "age",
    "sex",
    "cp",
    "trestbps",
    "chol",
    "fbs",
    "restecg",
    "thalach",
    "exang",
    "oldpeak",
    "slope",
    "ca",
    "thal",
    "num",
)
_CATEGORIES = ("cp", "restecg", "slope", "thal")
# FLamby (du Terrail et al. 2022): columns that are left out, and those that become one feature per category
_RARELY_MEASURED = ["slope", "ca", "thal"]
_FLAMBY_CATEGORIES = ["cp", "restecg"]
_FLAMBY_TRAIN = 0.66
_FLAMBY_SEED = 43


@register(
    "heart-disease",
    Source(
        "CC BY 4.0 (UCI 45); Janosi, Steinbrunn, Pfisterer, Detrano 1989",
        files=tuple(f"heart-disease/processed.{hospital}.data" for hospital in _HOSPITALS),
        manual=(
            "download processed.cleveland.data, processed.hungarian.data, processed.switzerland.data and "
            "processed.va.data from https://archive.ics.uci.edu/dataset/45/heart+disease and put them into "
            "{root}/heart-disease/"
        ),
    ),
)
def heart_disease(
    *,
    version: Literal["uci", "flamby"] = "uci",
    standardize: Literal["all", "hospital"] = "hospital",
    test: TestShare = 0.2,
    split_seed: int = 0,
) -> Table | Arrays:
    """Heart disease or none at four hospitals, 920 patients, with the hospital as group: natural clients.

    Args:
        version: uci for all 920 patients and 13 columns, with missing entries filled in; flamby for the 740 patients,
            13 features and published split of Fed-Heart-Disease
        standardize: with version=flamby, by the training rows of each hospital, as its clients do (hospital), or by
            those of all, as its pooled baseline does (all)
        test: with version=uci, share of the patients held out for test, in proportion within every class and hospital
        split_seed: with version=uci, seed of the split
    """
    import pandas as pd

    frames = []
    for hospital in _HOSPITALS:
        frame = _read(find("heart-disease", f"heart-disease/processed.{hospital}.data"))
        frames.append(frame.assign(hospital=hospital))
    whole = pd.concat(frames, ignore_index=True)
    if version == "flamby":
        return _as_flamby(whole, standardize)
    whole["disease"] = np.where(whole.pop("num") > 0, "disease", "none")
    return Table(
        train=whole,
        test=Split("test", test, split_seed),
        label="disease",
        group="hospital",
        categorical=_CATEGORIES,
    )


def _read(path: Path) -> "Frame":
    """Read the 14 columns of one hospital; a question mark is a missing entry."""
    import pandas as pd

    with reading(path), path.open("rb") as file:
        try:
            frame = pd.read_csv(file, header=None, na_values="?", dtype=np.float64)
        except (pd.errors.EmptyDataError, pd.errors.ParserError, ValueError) as error:
            raise FedskewError(
                f"{path} is not a table of {len(_COLUMNS)} numbers a line: {error}"
            ) from None
    if frame.shape[1] != len(_COLUMNS) or frame[len(_COLUMNS) - 1].isna().any():
        raise FedskewError(
            f"{path} has {frame.shape[1]} columns, expected {len(_COLUMNS)} with the diagnosis last: it is cut off or "
            "damaged"
        )
    return frame.set_axis(list(_COLUMNS), axis=1)


def _as_flamby(whole: "Frame", standardize: str) -> Arrays:
    """Return patients without missing entries, split and standardised as FLamby does."""
    import pandas as pd

    complete = whole.drop(columns=_RARELY_MEASURED).dropna(ignore_index=True)
    y = np.where(complete.pop("num") > 0, 1, 0)
    hospital = complete.pop("hospital").map(_HOSPITALS.index).to_numpy(np.int64)
    features = pd.get_dummies(complete, columns=_FLAMBY_CATEGORIES, drop_first=True)
    x = features.to_numpy(np.float64)
    kept = np.zeros(len(y), dtype=np.bool_)
    for number in range(len(_HOSPITALS)):
        own = np.flatnonzero(hospital == number)
        kept[own[_trained(y[own])]] = True
        if standardize == "hospital":
            x[own] = _standardised(x[own], kept[own])
    if standardize == "all":
        x = _standardised(x, kept)
    train = Rows(x[kept].astype(np.float32), y[kept], hospital[kept])
    tested = Rows(x[~kept].astype(np.float32), y[~kept], hospital[~kept])
    return Arrays(
        train=train,
        test=tested,
        classes=("none", "disease"),
        groups=_HOSPITALS,
        features=tuple(map(str, features.columns)),
        notes=(f"patients, split and standardisation (by {standardize}) are those of FLamby",),
    )


def _trained(y: Ints) -> Ints:
    """Return the rows of one hospital that FLamby trains on: in proportion if both classes have more than 2 rows."""
    from sklearn.model_selection import train_test_split

    stratify = None
    if np.bincount(y, minlength=2).min() > 2:
        stratify = y
    train, _ = train_test_split(
        np.arange(len(y)),
        train_size=_FLAMBY_TRAIN,
        test_size=1 - _FLAMBY_TRAIN,
        random_state=_FLAMBY_SEED,
        stratify=stratify,
    )
    rows: Ints = np.sort(train)
    return rows


def _standardised(x: Floats, train: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> Floats:
    """Return features of mean 0 and deviation 1 over the training rows; one that is constant there becomes 0."""
    mean = x[train].mean(axis=0)
    deviation = x[train].std(axis=0, ddof=1)
    moved: Floats = (x - mean) / np.where(deviation > 0, deviation, np.inf)
    return moved
