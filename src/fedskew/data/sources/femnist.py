"""FEMNIST as LEAF writes it: JSON files with the digits and letters of every writer."""

import json
import string
from pathlib import Path
from typing import Any

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.files import read_text, reading
from fedskew.data.cells import numbers_of
from fedskew.data.dataset import Rows
from fedskew.data.readers.arrays import Arrays, PixelScale, scaled_pixels
from fedskew.data.source import Source, find, register

# LEAF numbers digits first, then capital, then small letters.
_CLASSES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)

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
    x, y, writers, counts = _read(train_folder)
    test_x, test_y, test_writers, test_counts = _read(test_folder)
    names = sorted({*writers, *test_writers})
    train = Rows(x, y, np.repeat(numbers_of(writers, names), counts))
    test = Rows(test_x, test_y, np.repeat(numbers_of(test_writers, names), test_counts))
    return Arrays(train, test, _CLASSES, groups=tuple(names), scaled=scaled_pixels(x, scale))


def _read(folder: Path) -> tuple[Any, Any, list[str], list[int]]:
    """Return images, labels, writers and the rows of each writer, of all files of a folder."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise FedskewError(f"femnist: there are no .json files in {folder}")
    images = []
    labels = []
    writers = []
    counts = []
    for file in files:
        for writer, x, y in _writers(file):
            images.append(x)
            labels.append(y)
            writers.append(writer)
            counts.append(len(y))
    return np.concatenate(images), np.concatenate(labels), writers, counts


def _writers(file: Path) -> list[tuple[str, Any, Any]]:
    text = read_text(file)
    with reading(file):
        try:
            content = json.loads(text)
        except json.JSONDecodeError as error:
            raise FedskewError(
                f"{file} is not whole JSON (line {error.lineno}, column {error.colno}): get it again"
            ) from None
        found = []
        try:
            for writer in content["users"]:
                found.append((str(writer), *_writer(content["user_data"][writer])))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise FedskewError(
                f"{file} is not LEAF's FEMNIST: users with 784 pixels x and labels y expected ({error})"
            ) from None
    if not found:
        raise FedskewError(f"{file} is not LEAF's FEMNIST: it names no users")
    return found


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
