"""Human activity recognition with smartphones (UCI 240): the 561 features, and the raw inertial signals."""

import warnings
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.files import read_bytes, read_npz, reading
from fedskew.core.streams import Ints
from fedskew.data.dataset import Features, Rows, Split
from fedskew.data.readers.arrays import Arrays, everything
from fedskew.data.source import Download, Source, TestShare, find, is_there, register

_FOLDER = "UCI HAR Dataset"
_ACTIVITIES = ("WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS", "SITTING", "STANDING", "LAYING")
_SUBJECTS = tuple(map(str, range(1, 31)))
_SIGNALS = tuple(
    f"Inertial Signals/{sensor}_{axis}"
    for sensor in ("body_acc", "body_gyro", "total_acc")
    for axis in "xyz"
)
_COMPACT = "uci-har-inertial.npz"
_LICENCE = "CC BY 4.0 at UCI, its README prohibits commercial use; Anguita et al. ESANN 2013"
_DOWNLOAD = Download(
    _FOLDER,
    ("https://archive.ics.uci.edu/ml/machine-learning-databases/00240/UCI%20HAR%20Dataset.zip",),
    "sha256:2045e435c955214b38145fb5fa00776c72814f01b203fec405152dac7d5bfeb0",
    60_999_314,
    archive="UCI HAR Dataset.zip",
)
_OVERLAP = "the windows overlap by half, so a random split puts neighbours into both parts: split=subject does not"


def _files(part: str, *kinds: str) -> tuple[str, ...]:
    return tuple(f"{_FOLDER}/{part}/{kind}_{part}.txt" for kind in (*kinds, "y", "subject"))


@register(
    "uci-har",
    Source(
        _LICENCE,
        files=(*_files("train", "X"), *_files("test", "X"), f"{_FOLDER}/features.txt"),
        downloads=(_DOWNLOAD,),
    ),
)
def uci_har(
    *,
    part: Literal["all", "train"] = "all",
    standardize: bool = False,
    test: TestShare = 0.2,
    split_seed: int = 0,
    split: Literal["subject", "random"] = "subject",
) -> Arrays:
    """Six activities from 561 smartphone features, 7,352 + 2,947 windows, with the subject as group.

    The publisher scaled every feature to -1 … 1 already.

    Args:
        part: all for the published split by subject; train for the training rows alone, which are then split
        standardize: bring every feature to mean 0 and deviation 1
        test: with part=train, share of the rows held out for test
        split_seed: with part=train, seed of the split
        split: what is held out: whole subjects, as windows of one overlap, or random rows in proportion within every
            class and subject
    """
    features = _feature_names(find("uci-har", f"{_FOLDER}/features.txt"))
    train = _rows("uci-har", "train", ("X",), len(features))
    scaled = None
    if standardize:
        scaled = np.ones(len(features), dtype=np.bool_)
    notes: tuple[str, ...] = ()
    if split == "random":
        notes = (_OVERLAP,)
    if part == "train":
        assert train.group is not None
        present, group = np.unique(train.group, return_inverse=True)
        return Arrays(
            train=Rows(train.x[:, 0], train.y, group.astype(np.int64)),
            test=Split("test", test, split_seed),
            classes=_ACTIVITIES,
            groups=tuple(_SUBJECTS[number] for number in present),
            features=features,
            scaled=scaled,
            notes=notes,
            whole_groups=split == "subject",
        )
    hint = f", or use uci-har:part=train for a split of the {len(train)} training rows"
    tested = _rows("uci-har", "test", ("X",), len(features), hint)
    return Arrays(
        train=Rows(train.x[:, 0], train.y, train.group),
        test=Rows(tested.x[:, 0], tested.y, tested.group),
        classes=_ACTIVITIES,
        groups=_SUBJECTS,
        features=features,
        scaled=scaled,
        whole_groups=split == "subject",
    )


@register(
    "uci-har-inertial",
    Source(
        _LICENCE,
        files=(*_files("train", *_SIGNALS), *_files("test", *_SIGNALS)),
        instead=(_COMPACT,),
        downloads=(_DOWNLOAD,),
    ),
)
def uci_har_inertial() -> Arrays:
    """Six activities from 9 raw smartphone signals of 128 readings, 7,352 + 2,947 windows, with the subject as group.

    Reads the official "Inertial Signals" text files, or else uci-har-inertial.npz with x (rows, 128, 9), y 1 … 6,
    subject 1 … 30 and split (0 train, 1 test).
    """
    name = "uci-har-inertial"
    if is_there(_COMPACT) and not is_there(_files("train", *_SIGNALS)[0]):
        train, test = _compact(find(name, _COMPACT))
    else:
        train = _rows(name, "train", _SIGNALS, 128)
        test = _rows(name, "test", _SIGNALS, 128)
    return Arrays(
        train, test, _ACTIVITIES, groups=_SUBJECTS, scaled=everything(train.x), whole_groups=True
    )


def _rows(name: str, part: str, kinds: tuple[str, ...], width: int, otherwise: str = "") -> Rows:
    """Return one part in the official layout: features (files, width), and the activity and subject of every row."""
    paths = [find(name, file, otherwise) for file in _files(part, *kinds)]
    *values, labels, subjects = paths
    y = _whole_numbers(labels, len(_ACTIVITIES))
    group = _whole_numbers(subjects, len(_SUBJECTS))
    if len(y) != len(group):
        raise FedskewError(
            f"{name}: {len(y)} activities in {labels} but {len(group)} subjects in {subjects}"
        )
    x: Features = np.empty((len(y), len(kinds), width), dtype=np.float32)
    for position, path in enumerate(values):
        numbers = _numbers(path)
        if numbers.size != len(y) * width:
            raise FedskewError(
                f"{path} holds {numbers.size} numbers, expected {len(y)} rows of {width}: it is cut off or damaged"
            )
        x[:, position] = numbers.reshape(-1, width)
    return Rows(x, y, group)


def _numbers(path: Path) -> Features:
    """Return all numbers of a text file, separated by any white space."""
    with reading(path), warnings.catch_warnings():
        # NumPy stops at the first word that is no number, and says so by this warning only.
        warnings.simplefilter("error", DeprecationWarning)
        try:
            numbers: Features = np.fromfile(path, dtype=np.float32, sep=" ")
        except (DeprecationWarning, ValueError):
            raise FedskewError(
                f"{path} holds something that is not a number: get it again"
            ) from None
    if not numbers.size:
        raise FedskewError(f"{path} is empty: get it again")
    return numbers


def _whole_numbers(path: Path, most: int) -> Ints:
    """Return numbers 1 … most as 0 … most-1."""
    return _from_one(str(path), _numbers(path), most)


def _from_one(where: str, values: Any, most: int) -> Ints:
    with np.errstate(invalid="ignore"):  # what is no whole number is refused below
        numbers = np.asarray(values).astype(np.int64)
    whole = numbers.ndim == 1 and numbers.size > 0 and np.array_equal(numbers, values)
    if not whole or not 1 <= numbers.min() <= numbers.max() <= most:
        raise FedskewError(f"{where} holds numbers other than 1 … {most}")
    return numbers - 1


def _feature_names(path: Path) -> tuple[str, ...]:
    """Return the names in lines "1 tBodyAcc-mean()-X"; the number is kept where a name occurs several times."""
    numbers = []
    names = []
    for line in read_bytes(path).decode(errors="replace").splitlines():
        if not line.strip():
            continue
        words = line.split(maxsplit=1)
        if len(words) != 2:
            raise FedskewError(f"{path} is not a list of numbered feature names")
        numbers.append(words[0])
        names.append(words[1])
    features = []
    for number, name in zip(numbers, names, strict=True):
        if names.count(name) > 1:
            features.append(f"{number} {name}")
        else:
            features.append(name)
    return tuple(features)


def _compact(path: Path) -> tuple[Rows, Rows]:
    arrays = read_npz(path)
    lacking = []
    for name in ("x", "y", "subject", "split"):
        if name not in arrays:
            lacking.append(name)
    if lacking or arrays["x"].ndim != 3 or arrays["x"].shape[2] != len(_SIGNALS):
        raise FedskewError(f"{path}: expected x (rows, 128, 9), y, subject and split")
    with reading(path):
        y = _from_one(f"{path}: y", arrays["y"], 6)
        group = _from_one(f"{path}: subject", arrays["subject"], 30)
    if not len(arrays["x"]) == len(y) == len(group) == len(arrays["split"]):
        raise FedskewError(f"{path}: x, y, subject and split have different lengths")
    whole = Rows(arrays["x"].transpose(0, 2, 1), y, group)
    train = whole.take(np.flatnonzero(arrays["split"] == 0))
    test = whole.take(np.flatnonzero(arrays["split"] == 1))
    return train, test
