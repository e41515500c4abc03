"""cifar10 and cifar100 from hand-made binary records."""

from pathlib import Path

import numpy as np
import pytest

from fedskew.core.errors import FedskewError
from fedskew.data import load


def write_cifar10(root: Path) -> np.ndarray:
    folder = root / "cifar-10-batches-bin"
    folder.mkdir()
    records = np.random.default_rng(0).integers(0, 256, (12, 3073), dtype=np.uint8)
    records[:, 0] = np.arange(12) % 10
    for number in range(5):
        records[2 * number : 2 * number + 2].tofile(folder / f"data_batch_{number + 1}.bin")
    records[10:].tofile(folder / "test_batch.bin")
    return records


def test_cifar10_values(data_root: Path) -> None:
    records = write_cifar10(data_root)
    data = load("cifar10")
    pixels = records[:, 1:].reshape(-1, 3, 32, 32).astype(float)
    mean, deviation = (
        np.array([f(pixels[:10, c]) for c in range(3)])[:, None, None] for f in (np.mean, np.std)
    )
    np.testing.assert_allclose(data.train.x, (pixels[:10] - mean) / deviation, atol=1e-5)
    np.testing.assert_allclose(data.test.x, (pixels[10:] - mean) / deviation, atol=1e-5)
    assert data.train.y.tolist() == list(range(10))
    assert data.classes[3] == "cat"


def write_cifar100(root: Path) -> None:
    folder = root / "cifar-100-binary"
    folder.mkdir()
    for part, fine in (("train", [99, 0, 50]), ("test", [7])):
        records = np.random.default_rng(1).integers(0, 256, (len(fine), 3074), dtype=np.uint8)
        records[:, 0], records[:, 1] = np.array(fine) % 20, fine
        records.tofile(folder / f"{part}.bin")


def test_cifar100_fine_and_coarse(data_root: Path) -> None:
    write_cifar100(data_root)
    assert load("cifar100").train.y.tolist() == [99, 0, 50]
    assert load("cifar100").classes[-1] == "99"
    coarse = load("cifar100:labels=coarse")
    assert coarse.train.y.tolist() == [19, 0, 10]
    assert len(coarse.classes) == 20
    (data_root / "cifar-100-binary" / "fine_label_names.txt").write_text(
        "\n".join(f"name{n}" for n in range(100)) + "\n\n"
    )
    assert load("cifar100").classes[99] == "name99"


def test_truncated_and_wrong_records(data_root: Path) -> None:
    write_cifar10(data_root)
    batch = data_root / "cifar-10-batches-bin" / "data_batch_2.bin"
    good = batch.read_bytes()
    batch.write_bytes(good[:-1])
    with pytest.raises(
        FedskewError, match=r"data_batch_2\.bin holds 6145 bytes, which is not a multiple of 3073"
    ):
        load("cifar10")
    batch.write_bytes(b"\x0a" + good[1:])
    with pytest.raises(FedskewError, match="holds the label 10, expected 0 … 9"):
        load("cifar10")
    batch.write_bytes(b"")
    with pytest.raises(FedskewError, match=r"data_batch_2\.bin is empty"):
        load("cifar10")
    batch.unlink()
    with pytest.raises(
        FedskewError, match=r"data_batch_2\.bin is not there; run: fedskew data fetch cifar10"
    ):
        load("cifar10")
