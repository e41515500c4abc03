"""MNIST and its relatives in the idx format: mnist, fashion-mnist, and qmnist's writers of the MNIST digits."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.files import read_bytes
from fedskew.core.streams import Ints
from fedskew.data.dataset import Rows
from fedskew.data.readers.arrays import Arrays, Numbers, PixelScale, scaled_pixels
from fedskew.data.source import Download, Source, find, register

_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
_TYPES: dict[int, np.dtype[Any]] = {0x08: np.dtype("u1"), 0x0C: np.dtype(">i4")}
_FASHION = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


def _downloads(
    folder: str, addresses: tuple[str, ...], files: dict[str, tuple[int, str]]
) -> tuple[Download, ...]:
    """Return the downloads of files with their size and SHA-256."""
    downloads = []
    for file, (size, digest) in files.items():
        urls = [address + file for address in addresses]
        downloads.append(Download(f"{folder}/{file}", tuple(urls), f"sha256:{digest}", size))
    return tuple(downloads)


_MNIST = _downloads(
    "mnist",
    # The publisher's own server has long refused downloads; PyTorch's copy has the same checksums.
    ("https://yann.lecun.com/exdb/mnist/", "https://ossci-datasets.s3.amazonaws.com/mnist/"),
    {
        _FILES[0]: (9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        _FILES[1]: (28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        _FILES[2]: (1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        _FILES[3]: (4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    },
)
_FASHION_MNIST = _downloads(
    "fashion-mnist",
    # The address in the paper is http only; the publisher's repository has the same files.
    ("https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",),
    {
        _FILES[0]: (26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
        _FILES[1]: (29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
        _FILES[2]: (4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
        _FILES[3]: (5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
    },
)
_QMNIST = _downloads(
    "qmnist",
    ("https://raw.githubusercontent.com/facebookresearch/qmnist/master/",),
    {
        "qmnist-train-labels-idx2-int.gz": (
            463_024,
            "2c05dc77f6b916b38e455e97ab129a42a444f3dbef09b278a366f82904e0dd9f",
        ),
        "qmnist-test-labels-idx2-int.gz": (
            526_800,
            "9fbcbe594c3766fdf4f0b15c5165dc0d1e57ac604e01422608bb72c906030d06",
        ),
    },
)


def _source(licence: str, downloads: tuple[Download, ...]) -> Source:
    files = [download.path for download in downloads]
    return Source(licence, files=tuple(files), downloads=downloads)


@register("mnist", _source("commonly stated as CC BY-SA 3.0; LeCun, Cortes, Burges", _MNIST))
def mnist(*, scale: PixelScale = "standard") -> Arrays:
    """Handwritten digits, 28x28 grey, 60,000 + 10,000, published split.

    Args:
        scale: pixels of mean 0 and deviation 1 over the training rows (standard), or from 0 to 1 (unit)
    """
    return _images("mnist", "mnist", tuple("0123456789"), scale)


@register("fashion-mnist", _source("MIT; Xiao, Rasul, Vollgraf 2017", _FASHION_MNIST))
def fashion_mnist(*, scale: PixelScale = "standard") -> Arrays:
    """Articles of clothing, 28x28 grey, 60,000 + 10,000, published split.

    Args:
        scale: pixels of mean 0 and deviation 1 over the training rows (standard), or from 0 to 1 (unit)
    """
    return _images("fashion-mnist", "fashion-mnist", _FASHION, scale)


@register("qmnist", _source("BSD style; Yadav, Bottou 2019 (images: MNIST)", _MNIST + _QMNIST))
def qmnist(*, scale: PixelScale = "standard") -> Arrays:
    """MNIST with the writer of every digit as its group: natural clients.

    The images and the split are MNIST's; the writers come from the QMNIST label files (column 2). Other people wrote
    the test digits (297) than the training digits (539), so no writer is in both parts.

    Args:
        scale: pixels of mean 0 and deviation 1 over the training rows (standard), or from 0 to 1 (unit)
    """
    images = _images("qmnist", "mnist", tuple("0123456789"), scale)
    train, test = images.train, images.test
    assert isinstance(test, Rows)
    writers = [
        _writers("qmnist/qmnist-train-labels-idx2-int.gz", train.y),
        # The first 10,000 of its 60,000 are MNIST's
        _writers("qmnist/qmnist-test-labels-idx2-int.gz", test.y),
    ]
    names, numbers = np.unique(np.concatenate(writers), return_inverse=True)
    return Arrays(
        train=Rows(train.x, train.y, numbers[: len(train)].astype(np.int64)),
        test=Rows(test.x, test.y, numbers[len(train) :].astype(np.int64)),
        classes=images.classes,
        groups=tuple(map(str, names)),
        scaled=images.scaled,
        full_scale=images.full_scale,
        notes=("groups are writers; no writer is in both the training and the test part",),
    )


def _images(name: str, folder: str, classes: tuple[str, ...], scale: PixelScale) -> Arrays:
    paths = [find(name, f"{folder}/{file}") for file in _FILES]
    parts = []
    for images, labels in (paths[:2], paths[2:]):
        x = read_idx(images, 3)
        y = read_idx(labels, 1).astype(np.int64)
        if len(x) != len(y):
            raise FedskewError(
                f"{name}: {len(x)} images in {images} but {len(y)} labels in {labels}"
            )
        if len(y) and y.max() >= len(classes):
            raise FedskewError(
                f"{name}: {labels} holds the label {y.max()}, expected 0 … {len(classes) - 1}"
            )
        parts.append(Rows(x[:, None], y))
    return Arrays(
        parts[0], parts[1], classes, scaled=scaled_pixels(parts[0].x, scale), full_scale=255
    )


def _writers(file: str, y: Ints) -> Ints:
    path = find("qmnist", file)
    table = read_idx(path, 2)
    if len(table) < len(y) or table.shape[1] < 3:
        raise FedskewError(
            f"qmnist: {path} holds {table.shape} numbers, expected at least {(len(y), 3)}"
        )
    if not np.array_equal(table[: len(y), 0], y):
        raise FedskewError(
            f"qmnist: the classes in {path} are not those of the files in mnist/: get both again"
        )
    return table[: len(y), 2].astype(np.int64)


def read_idx(path: Path, dimensions: int) -> Numbers:
    """Return the array of an idx file: two zero bytes, a type, the number of dimensions, their sizes, the values."""
    content = read_bytes(path)
    start = 4 + 4 * dimensions
    if (
        len(content) < start
        or content[:2] != b"\0\0"
        or content[2] not in _TYPES
        or content[3] != dimensions
    ):
        raise FedskewError(
            f"{path} is not an idx file with {dimensions} dimensions: it begins with {content[:4].hex(' ')}"
        )
    shape = []
    for size in np.frombuffer(content, dtype=">u4", offset=4, count=dimensions):
        shape.append(int(size))
    kind = _TYPES[content[2]]
    expected = math.prod(shape) * kind.itemsize
    if len(content) - start != expected:
        raise FedskewError(
            f"{path} holds {len(content) - start} bytes of values, expected {expected}: it is cut off or damaged"
        )
    return np.frombuffer(content, dtype=kind, offset=start).reshape(shape)
