"""CIFAR-10 and CIFAR-100 in their official binary version: label bytes, then 3072 pixel bytes per image."""

from typing import Literal

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.files import read_bytes, read_text
from fedskew.data.dataset import Rows
from fedskew.data.readers.arrays import Arrays, Numbers, PixelScale, scaled_pixels
from fedskew.data.source import Download, Source, find, register

_PIXELS = 3 * 32 * 32
_CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
_TRAIN_10 = tuple(f"cifar-10-batches-bin/data_batch_{number}.bin" for number in range(1, 6))
_TEST_10 = "cifar-10-batches-bin/test_batch.bin"
_LICENCE = "none stated, cite Krizhevsky 2009"


def _archive(folder: str, file: str, size: int, digest: str) -> Download:
    return Download(
        folder,
        (f"https://www.cs.toronto.edu/~kriz/{file}",),
        f"sha256:{digest}",
        size,
        archive=file,
    )


_ARCHIVE_10 = _archive(
    "cifar-10-batches-bin",
    "cifar-10-binary.tar.gz",
    170_052_171,
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)
_ARCHIVE_100 = _archive(
    "cifar-100-binary",
    "cifar-100-binary.tar.gz",
    168_513_733,
    "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
)


@register(
    "cifar10",
    Source(
        _LICENCE,
        files=(*_TRAIN_10, _TEST_10),
        downloads=(_ARCHIVE_10,),
    ),
)
def cifar10(*, scale: PixelScale = "standard") -> Arrays:
    """Small photographs in 10 classes, 32x32 colour, 50,000 + 10,000, published split.

    Args:
        scale: pixels of mean 0 and deviation 1 over the training rows (standard), or from 0 to 1 (unit)
    """
    train = _records("cifar10", _TRAIN_10, 1, 0, 10)
    test = _records("cifar10", (_TEST_10,), 1, 0, 10)
    return Arrays(train, test, _CLASSES, scaled=scaled_pixels(train.x, scale), full_scale=255)


@register(
    "cifar100",
    Source(
        _LICENCE,
        files=("cifar-100-binary/train.bin", "cifar-100-binary/test.bin"),
        downloads=(_ARCHIVE_100,),
    ),
)
def cifar100(
    *, labels: Literal["fine", "coarse"] = "fine", scale: PixelScale = "standard"
) -> Arrays:
    """Small photographs in 100 classes (or 20 superclasses), 32x32 colour, 50,000 + 10,000, published split.

    Args:
        labels: fine for the 100 classes, coarse for the 20 superclasses
        scale: pixels of mean 0 and deviation 1 over the training rows (standard), or from 0 to 1 (unit)
    """
    column, count = 0, 20
    if labels == "fine":
        column, count = 1, 100
    train = _records("cifar100", ("cifar-100-binary/train.bin",), 2, column, count)
    test = _records("cifar100", ("cifar-100-binary/test.bin",), 2, column, count)
    return Arrays(
        train,
        test,
        _class_names(labels, count),
        scaled=scaled_pixels(train.x, scale),
        full_scale=255,
    )


def _records(
    name: str, files: tuple[str, ...], label_bytes: int, column: int, classes: int
) -> Rows:
    size = label_bytes + _PIXELS
    batches = []
    for file in files:
        path = find(name, file)
        content = np.frombuffer(read_bytes(path), dtype=np.uint8)
        if len(content) % size:
            raise FedskewError(
                f"{path} holds {len(content)} bytes, which is not a multiple of {size}: it is cut off or damaged"
            )
        batches.append(content.reshape(-1, size))
        if batches[-1][:, column].max() >= classes:
            raise FedskewError(
                f"{path} holds the label {batches[-1][:, column].max()}, expected 0 … {classes - 1}"
            )
    records: Numbers = np.concatenate(batches)
    return Rows(
        records[:, label_bytes:].reshape(-1, 3, 32, 32), records[:, column].astype(np.int64)
    )


def _class_names(labels: str, count: int) -> tuple[str, ...]:
    """Return the names in the official archive's text file, or numbers where only the .bin files were copied."""
    path = find("cifar100", "cifar-100-binary/train.bin").with_name(f"{labels}_label_names.txt")
    if path.exists():
        names = tuple(read_text(path).split())
        if len(names) == count:
            return names
    return tuple(map(str, range(count)))
