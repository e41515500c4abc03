"""FEMNIST as LEAF writes it: JSON files with the digits and letters of every writer."""

import string
from pathlib import Path
from typing import Any

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.data.dataset import Rows
from fedskew.data.readers.arrays import Arrays, PixelScale, scaled_pixels
from fedskew.data.readers.leaf import UserRows, json_files, read_users
from fedskew.data.source import Source, find, register

# LEAF numbers digits first, then capital, then small letters.
_CLASSES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)

_CONTENT = "LEAF's FEMNIST: users with 784 pixels x and labels y"
_BRIGHTEST = 255  # LEAF writes pixels from 0 to 1


@register(
    "femnist",
    Source(
        "BSD 2-clause (LEAF), images: NIST SD 19, public domain; Caldas et al. 2018",
        files=("femnist/train", "femnist/test"),
        manual=(
            "clone https://github.com/TalwalkarLab/leaf, run ./preprocess.sh -s niid --sf 1.0 -k 0 -t sample in "
            "data/femnist, "
            "and copy its data/train and data/test folders of .json files to {root}/femnist/train and "
            "{root}/femnist/test"
        ),
    ),
)
def femnist(*, scale: PixelScale = "standard") -> Arrays:
    """Handwritten digits and letters in 62 classes, 28x28 grey, with the writer as group (LEAF json).

    Args:
        scale: pixels of mean 0 and deviation 1 over the training rows (standard), or from 0 to 1 (unit)
    """
    # Both are looked for before the first, which takes long, is read
    train_folder = find("femnist", "femnist/train")
    test_folder = find("femnist", "femnist/test")
    train = _read(train_folder)
    test = _read(test_folder)
    names = sorted({*train.users, *test.users})
    return Arrays(
        Rows(train.x, np.array(train.y), train.numbered(names)),
        Rows(test.x, np.array(test.y), test.numbered(names)),
        _CLASSES,
        groups=tuple(names),
        scaled=scaled_pixels(train.x, scale),
    )


def _read(folder: Path) -> UserRows:
    """Return images, labels, writers and the rows of each writer, of all files of a folder."""
    files = json_files(folder)
    if not files:
        raise FedskewError(f"femnist: there are no .json files in {folder}")
    return read_users(files, _CONTENT, _writer)


def _writer(data: dict[str, Any]) -> tuple[Any, Any]:
    x = np.asarray(data["x"], dtype=np.float64).reshape(-1, 1, 28, 28)
    y = data["y"]
    if len(x) != len(y):
        raise ValueError(f"{len(x)} images but {len(y)} labels")
    for label in y:
        if type(label) is not int or not 0 <= label < len(_CLASSES):
            raise ValueError(f"label {label}, they are whole numbers from 0 to {len(_CLASSES) - 1}")
    if not (np.abs(x) <= _BRIGHTEST).all():
        raise ValueError(f"pixels beyond {_BRIGHTEST}")
    return x.astype(np.float32), np.array(y, dtype=np.int64)
