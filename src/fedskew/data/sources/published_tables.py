"""Published tables: covtype, unsw-nb15, nf-unsw-nb15, vehicles, driving-behavior."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.files import open_unpacked, reading
from fedskew.core.registry import NonNegative
from fedskew.data.dataset import Rows, Split
from fedskew.data.readers.arrays import Arrays
from fedskew.data.readers.table import Table
from fedskew.data.readers.user_files import read_csv
from fedskew.data.source import Download, Source, TestShare, find, register

if TYPE_CHECKING:
    from fedskew.data.cells import Frame

_COVERS = (
    "Spruce/Fir",
    "Lodgepole Pine",
    "Ponderosa Pine",
    "Cottonwood/Willow",
    "Aspen",
    "Douglas-fir",
    "Krummholz",
)
_COVTYPE_NUMERIC = (
    "Elevation",
    "Aspect",
    "Slope",
    "Horizontal_Distance_To_Hydrology",
    "Vertical_Distance_To_Hydrology",
    "Horizontal_Distance_To_Roadways",
    "Hillshade_9am",
    "Hillshade_Noon",
    "Hillshade_3pm",
    "Horizontal_Distance_To_Fire_Points",
)
_COVTYPE_FEATURES = (
    *_COVTYPE_NUMERIC,
    *(f"Wilderness_Area{number}" for number in range(1, 5)),
    *(f"Soil_Type{number}" for number in range(1, 41)),
)
_COVTYPE_ROWS = 581_012


@register(
    "covtype",
    Source(
        "CC BY 4.0 (UCI 31); Blackard 1998",
        files=("covtype/covtype.data.gz",),
        downloads=(
            Download(
                "covtype/covtype.data.gz",
                (
                    "https://archive.ics.uci.edu/ml/machine-learning-databases/covtype/covtype.data.gz",
                    "https://ndownloader.figshare.com/files/5976039",  # scikit-learn's copy
                ),
                "sha256:614360d0257557dd1792834a85a1cdebfadc3c4f30b011d56afee7ffb5b15771",
                11_240_707,
            ),
        ),
    ),
)
def covtype(
    *,
    file: str = "covtype.data.gz",
    types: Literal["all", "frequent"] = "all",
    test: TestShare = 0.2,
    split_seed: int = 0,
) -> Arrays:
    """Seven forest cover types from 54 cartographic features, 581,012 rows.

    Args:
        file: another file of the same 55 columns in the covtype folder, such as a sample
        types: all seven types, or the two frequent ones alone, Spruce/Fir and Lodgepole Pine, as NIID-Bench has them
        test: share of the rows held out for test, in proportion within every class
        split_seed: seed of the split
    """
    path = find("covtype", f"covtype/{file}")
    values = _numeric_table(path, len(_COVTYPE_FEATURES) + 1)
    with np.errstate(invalid="ignore"):  # what is no whole number is refused below
        y = values[:, -1].astype(np.int64)
    if not np.array_equal(y, values[:, -1]) or not 1 <= y.min() <= y.max() <= len(_COVERS):
        raise FedskewError(f"{path}: the last column must hold cover types 1 … {len(_COVERS)}")
    notes: tuple[str, ...] = ()
    if len(y) != _COVTYPE_ROWS:
        notes = (f"{path.name} holds {len(y):,} of the published {_COVTYPE_ROWS:,} rows",)
    classes: tuple[str, ...] = _COVERS
    if types == "frequent":
        classes = _COVERS[:2]
        frequent = y <= len(classes)
        values = values[frequent]
        y = y[frequent]
    return Arrays(
        train=Rows(values[:, :-1], y - 1),
        test=Split("test", test, split_seed),
        classes=classes,
        features=_COVTYPE_FEATURES,
        notes=notes,
        scaled=np.array([feature in _COVTYPE_NUMERIC for feature in _COVTYPE_FEATURES]),
    )


def _numeric_table(path: Path, columns: int) -> "np.ndarray[tuple[int, int], np.dtype[np.float32]]":
    """Read a CSV file of numbers without a header."""
    import pandas as pd

    with reading(path), open_unpacked(path) as file:
        try:
            frame = pd.read_csv(file, header=None, dtype=np.float32)
        except pd.errors.EmptyDataError:
            raise FedskewError(f"{path} is empty: get it again") from None
        except (pd.errors.ParserError, ValueError) as error:
            raise FedskewError(
                f"{path} is not a table of {columns} numbers a line: {error}"
            ) from None
    values = frame.to_numpy()
    short = np.flatnonzero(np.isnan(values).any(axis=1))
    if values.shape[1] != columns or len(short):
        where = f"{values.shape[1]} columns"
        if len(short):
            where = f"line {short[0] + 1}"
        raise FedskewError(
            f"{path} is not a table of {columns} numbers a line ({where}): it is cut off or damaged"
        )
    return values


_UNSW_TRAINING = "unsw-nb15/UNSW_NB15_training-set.csv"
_UNSW_TESTING = "unsw-nb15/UNSW_NB15_testing-set.csv"
# Flows of each class in NF-UNSW-NB15 (Sarhan et al. 2020), under the names of UNSW-NB15
_NETFLOW_COUNTS = {
    "Normal": 1_550_712,
    "Exploits": 24_736,
    "Fuzzers": 19_463,
    "Reconnaissance": 12_291,
    "Generic": 5_570,
    "DoS": 5_051,
    "Analysis": 1_995,
    "Backdoor": 1_782,
    "Shellcode": 1_365,
    "Worms": 153,
}


@register(
    "unsw-nb15",
    Source(
        "free for academic research, commercial use by permission (UNSW Canberra); Moustafa, Slay 2015",
        files=(_UNSW_TRAINING, _UNSW_TESTING),
        manual=(
            "download UNSW_NB15_training-set.csv and UNSW_NB15_testing-set.csv from "
            "https://research.unsw.edu.au/projects/unsw-nb15-dataset and put both into {root}/unsw-nb15/"
        ),
    ),
)
def unsw_nb15(
    *,
    part: Literal["all", "train"] = "all",
    shares: Literal["own", "netflow"] = "own",
    drop: tuple[str, ...] = (),
    standardize: bool = True,
    test: TestShare = 0.2,
    split_seed: int = 0,
) -> Table:
    """Network flows: normal traffic and nine kinds of attack, 42 features, published split.

    Args:
        part: all for the published split; train for the training file alone, which is then split
        shares: the classes as often as they are (own), or thinned out at random to the shares that they have in
            NF-UNSW-NB15, where 95.5 % of the flows are normal (netflow)
        drop: columns that are not used, a+b+c
        standardize: bring every numeric feature to mean 0 and deviation 1
        test: with part=train, share of the rows held out for test, in proportion within every class
        split_seed: with part=train, seed of the split
    """
    hint = ", or use unsw-nb15:part=train for a split of the training file alone"
    paths = [find("unsw-nb15", _UNSW_TRAINING)]
    if part == "all":
        paths.append(find("unsw-nb15", _UNSW_TESTING, hint))
    frames = []
    for path in paths:
        frame = read_csv(path, drop=("id", "label", *drop))
        if shares == "netflow":
            frame = _with_netflow_shares(frame)
        frames.append(frame)
    tested: Frame | Split = Split("test", test, split_seed)
    if part == "all":
        tested = frames[1]
    notes: tuple[str, ...] = ()
    if len(frames[0]) == 82_332:
        # The publisher has offered the two files under each other's names; both kinds of copies exist.
        notes = (
            "the training file has 82,332 rows, which the paper gives as the testing set: the names are swapped in "
            "this copy",
        )
    return Table(
        train=frames[0], test=tested, label="attack_cat", standardize=standardize, notes=notes
    )


def _with_netflow_shares(frame: "Frame") -> "Frame":
    """Return the flows in stored order, thinned out within each class to the shares of NF-UNSW-NB15.

    As many flows as the classes allow: the one with the fewest for its share keeps them all.
    """
    held = frame["attack_cat"].value_counts()
    lacking = sorted(_NETFLOW_COUNTS.keys() - set(held.index))
    if lacking:
        raise FedskewError(
            f"unsw-nb15: shares=netflow needs flows of all classes, and there are none of {', '.join(lacking)}: use "
            "shares=own"
        )
    scale = float((held / held.index.map(_NETFLOW_COUNTS)).min())
    draw = np.random.default_rng(0)
    kept = []
    for name, count in _NETFLOW_COUNTS.items():
        rows = np.flatnonzero(frame["attack_cat"] == name)
        kept.append(draw.choice(rows, round(scale * count), replace=False))
    return frame.iloc[np.sort(np.concatenate(kept))]


@register(
    "nf-unsw-nb15",
    Source(
        "for research purposes (University of Queensland); Sarhan et al. 2020",
        files=("nf-unsw-nb15/NF-UNSW-NB15.csv",),
        manual=(
            "download NF-UNSW-NB15 (version 1, 1,623,118 flows) from "
            "https://staff.itee.uq.edu.au/marius/NIDS_datasets/ "
            "and put NF-UNSW-NB15.csv into {root}/nf-unsw-nb15/"
        ),
    ),
)
def nf_unsw_nb15(*, test: TestShare = 0.2, split_seed: int = 0) -> Table:
    """Network flows as NetFlow records: benign traffic and nine kinds of attack, 10 features, 1,623,118 rows.

    Of the 14 columns, the two addresses name the attacking machines and Label repeats Attack: they are not used.

    Args:
        test: share of the rows held out for test, in proportion within every class
        split_seed: seed of the split
    """
    frame = read_csv(
        find("nf-unsw-nb15", "nf-unsw-nb15/NF-UNSW-NB15.csv"),
        drop=("IPV4_SRC_ADDR", "IPV4_DST_ADDR", "Label"),
    )
    return Table(train=frame, test=Split("test", test, split_seed), label="Attack")


@register(
    "vehicles",
    Source(
        "see the Kaggle page; Smartilizer Scandinavia AB",
        files=("vehicles",),
        manual=(
            "download https://www.kaggle.com/datasets/smartilizer/commercial-vehicles-sensor-data-set (needs an "
            "account) "
            "and put its .csv files into {root}/vehicles/"
        ),
    ),
)
def vehicles(
    *,
    label: str | None = None,
    drop: tuple[str, ...] | None = None,
    test: TestShare = 0.2,
    split_seed: int = 0,
    window: Annotated[int, NonNegative] = 0,
    stride: Annotated[int, NonNegative] = 0,
) -> Table:
    """Two dump trucks: state (idle, driving, loading, dumping, off) from speed, gyroscope and accelerometer.

    All .csv files of the folder are read; with several, the file is the group.

    Args:
        label: column with the state; by default the one named label, in any case
        drop: columns that are not used, a+b+c; by default those with time or date in their name
        test: share of the rows held out for test, in proportion within every class (and file)
        split_seed: seed of the split
        window: rows of one window, 0 for none; the split then keeps files whole, or divides the series once
        stride: rows from one window to the next, 0 for the length of the window
    """
    import pandas as pd

    frames = _vehicle_frames(drop or ())
    whole = pd.concat(frames.values(), ignore_index=True)
    if drop is None:
        whole = whole.drop(columns=_times(whole.columns))
    if not label:
        named = [name for name in whole.columns if name.lower() == "label"]
        label = "label"
        if named:
            label = named[0]
    group = None
    if len(frames) > 1:
        group = "file"
        whole[group] = np.repeat(list(frames), list(map(len, frames.values())))
    return Table(
        train=whole,
        test=Split("test", test, split_seed),
        label=label,
        group=group,
        window=window,
        stride=stride,
    )


def _vehicle_frames(drop: tuple[str, ...]) -> "dict[str, Frame]":
    """Return the tables of the folder by the names of their files; all have the same columns."""
    folder = find("vehicles", "vehicles")
    paths = sorted(folder.glob("*.csv"))
    if not paths:
        raise FedskewError(
            f"vehicles: there is no .csv file in {folder}; put those of the Kaggle archive there"
        )
    frames = {path.stem: read_csv(path, drop) for path in paths}
    first = frames[paths[0].stem]
    for path in paths:
        if list(frames[path.stem].columns) != list(first.columns):
            raise FedskewError(
                f"vehicles: {path} has other columns than {paths[0]}; keep files of one kind in the folder"
            )
    return frames


def _times(columns: Iterable[str]) -> list[str]:
    """Return the columns with time or date in their name."""
    times = []
    for name in columns:
        if "time" in name.lower() or "date" in name.lower():
            times.append(name)
    return times


_DRIVING_TRAIN = "driving-behavior/train_motion_data.csv"
_DRIVING_TEST = "driving-behavior/test_motion_data.csv"


@register(
    "driving-behavior",
    Source(
        "see the Kaggle page; Cojocaru, Popescu 2022",
        files=(_DRIVING_TRAIN, _DRIVING_TEST),
        manual=(
            "download https://www.kaggle.com/datasets/outofskills/driving-behavior (needs an account) and put "
            "train_motion_data.csv and test_motion_data.csv into {root}/driving-behavior/"
        ),
    ),
)
def driving_behavior(
    *, window: Annotated[int, NonNegative] = 0, stride: Annotated[int, NonNegative] = 0
) -> Table:
    """Driving style (slow, normal, aggressive) from a phone's accelerometer and gyroscope, 3,644 + 3,084 rows.

    Args:
        window: rows of one window, 0 for none
        stride: rows from one window to the next, 0 for the length of the window
    """
    train_path = find("driving-behavior", _DRIVING_TRAIN)
    train = read_csv(train_path, drop=("Timestamp",))
    test_path = find("driving-behavior", _DRIVING_TEST)
    test = read_csv(test_path, drop=("Timestamp",))
    return Table(train=train, test=test, label="Class", window=window, stride=stride)
