"""mnist, fashion-mnist and qmnist from hand-made idx files."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from fedskew.core.errors import FedskewError
from fedskew.data import load


def idx(array: np.ndarray, kind: int) -> bytes:
    return (
        struct.pack(f">BBBB{array.ndim}I", 0, 0, kind, array.ndim, *array.shape) + array.tobytes()
    )


def write_mnist(folder: Path, train: int = 6, test: int = 4) -> tuple[np.ndarray, np.ndarray]:
    folder.mkdir()
    images = np.random.default_rng(0).integers(0, 256, (train + test, 28, 28), dtype=np.uint8)
    labels = (np.arange(train + test) % 10).astype(np.uint8)
    for name, part in (("train", slice(0, train)), ("t10k", slice(train, None))):
        (folder / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images[part], 8)))
        (folder / f"{name}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels[part], 8)))
    return images, labels


def write_writers(folder: Path, labels: np.ndarray, writers: list[int], file: str) -> None:
    folder.mkdir(exist_ok=True)
    table = np.zeros((len(labels), 8), dtype=">i4")
    table[:, 0], table[:, 1], table[:, 2] = labels, 4, writers
    (folder / file).write_bytes(gzip.compress(idx(table, 0x0C)))


@pytest.mark.parametrize(("name", "third"), [("mnist", "2"), ("fashion-mnist", "Pullover")])
def test_values_and_names(data_root: Path, name: str, third: str) -> None:
    images, labels = write_mnist(data_root / name)
    data = load(name)
    assert data.classes[2] == third
    assert data.train.x.shape == (6, 1, 28, 28)
    assert data.train.y.tolist() == labels[:6].tolist()
    assert data.test.y.tolist() == labels[6:].tolist()
    mean, deviation = images[:6].mean(), images[:6].std()  # the training rows alone
    np.testing.assert_allclose(data.test.x[:, 0], (images[6:] - mean) / deviation, atol=1e-5)
    assert data.notes == (
        "1 of 1 channels standardised with the mean and deviation of the training rows "
        f"({mean / 255:.4f}; {deviation / 255:.4f})",
    )


def test_unpacked_files_serve_as_well(data_root: Path) -> None:
    write_mnist(data_root / "mnist")
    packed = load("mnist")
    for file in list((data_root / "mnist").iterdir()):
        file.with_suffix("").write_bytes(gzip.decompress(file.read_bytes()))
        file.unlink()
    np.testing.assert_array_equal(load("mnist").train.x, packed.train.x)


def test_qmnist_groups_by_writer(data_root: Path) -> None:
    _, labels = write_mnist(data_root / "mnist")
    write_writers(
        data_root / "qmnist", labels[:6], [30, 7, 7, 30, 7, 7], "qmnist-train-labels-idx2-int.gz"
    )
    more = np.concatenate([labels[6:], [9, 9]])  # the real file goes on beyond MNIST's test digits
    write_writers(
        data_root / "qmnist", more, [8, 100, 8, 8, 1, 1], "qmnist-test-labels-idx2-int.gz"
    )
    data = load("qmnist")
    assert data.groups == ("7", "8", "30", "100")
    assert data.train.group is not None
    assert data.test.group is not None
    assert data.train.group.tolist() == [2, 0, 0, 2, 0, 0]
    assert data.test.group.tolist() == [1, 3, 1, 1]


def test_qmnist_notices_labels_of_other_digits(data_root: Path) -> None:
    _, labels = write_mnist(data_root / "mnist")
    write_writers(
        data_root / "qmnist", labels[:6][::-1], [1] * 6, "qmnist-train-labels-idx2-int.gz"
    )
    with pytest.raises(FedskewError, match=r"classes in .* are not those of the files in mnist/"):
        load("qmnist")


def test_missing_file_says_how_to_get_it(data_root: Path) -> None:
    with pytest.raises(
        FedskewError,
        match=r"mnist/train-images-idx3-ubyte\.gz is not there; run: fedskew data fetch mnist$",
    ):
        load("mnist")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda good: gzip.compress(good)[:-20], "cut off or damaged"),
        (lambda good: b"not gzip at all", "cannot be read"),
        (lambda good: b"", "cut off or damaged|is empty"),
        (lambda good: gzip.compress(b""), "is empty"),
        (lambda good: gzip.compress(good[:-5]), r"holds 4699 bytes of values, expected 4704"),
        (
            lambda good: gzip.compress(b"\x00\x00\x08\x01" + good[4:]),
            "not an idx file with 3 dimensions: it begins with 00 00 08 01",
        ),
        (lambda good: gzip.compress(b"\x00\x00\x0d\x03" + good[4:]), "not an idx file"),
        (lambda good: gzip.compress(good[:9]), "not an idx file"),
    ],
)
def test_damaged_images(data_root: Path, damage, message: str) -> None:
    write_mnist(data_root / "mnist")
    path = data_root / "mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(damage(gzip.decompress(path.read_bytes())))
    with pytest.raises(FedskewError, match=message):
        load("mnist")


def test_labels_must_match_the_images(data_root: Path) -> None:
    write_mnist(data_root / "mnist")
    path = data_root / "mnist" / "train-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(idx(np.zeros(5, dtype=np.uint8), 8)))
    with pytest.raises(FedskewError, match=r"6 images in .* but 5 labels"):
        load("mnist")
    path.write_bytes(gzip.compress(idx(np.full(6, 10, dtype=np.uint8), 8)))
    with pytest.raises(FedskewError, match="holds the label 10, expected 0 … 9"):
        load("mnist")
