"""Folders of images written with Pillow: values, classes, groups, splits, damaged files."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fedskew as fs
from fedskew.core.errors import FedskewError
from fedskew.data import load
from fedskew.data.sources import image_folders
from fedskew.data.stored_rows import StoredRows


def picture(path: Path, color: tuple[int, int, int], size: int = 8) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (size, size), color).save(path)


def raw(x: np.ndarray, notes: tuple[str, ...]) -> np.ndarray:
    """Return the pixels from 0 to 255, with the mean and deviation from the notes."""
    note = next(note for note in notes if "channels standardised" in note)
    means, deviations = note[note.index("(") + 1 : -1].split("; ")
    mean, deviation = (
        np.array([float(part) for part in text.split(", ")])[:, None, None]
        for text in (means, deviations)
    )
    return (x * deviation + mean) * 255


def test_own_folder_values(tmp_path: Path) -> None:
    for n in range(10):
        picture(tmp_path / "cats" / f"{n}.png", (n * 20, 0, 7))
        picture(tmp_path / "dogs" / f"{n}.png", (n * 20, 255, 7))
    (tmp_path / "cats" / "notes.txt").write_text("not an image")
    data = load(f"images:path={tmp_path},test=0.2")
    assert data.classes == ("cats", "dogs")
    assert data.shape == (3, 8, 8)
    assert np.bincount(data.test.y).tolist() == [2, 2]
    pixels = raw(data.train.x, data.notes)
    np.testing.assert_allclose(pixels[:, 1, 3, 4], np.where(data.train.y == 1, 255, 0), atol=0.1)
    everything = np.concatenate([pixels, raw(data.test.x, data.notes)])[:, 0, 0, 0]
    np.testing.assert_allclose(np.sort(everything), np.repeat(np.arange(10) * 20, 2), atol=0.1)
    assert set(data.train.x[:, 2].ravel().tolist()) == {0}  # a constant channel


def test_rows_and_columns_are_not_swapped(tmp_path: Path) -> None:
    for label in ("a", "b"):
        for n in range(2):
            picture(tmp_path / label / f"{n}.png", (0, 0, 0))
            with Image.open(tmp_path / label / f"{n}.png") as image:
                image.putpixel((6, 1), (255, 0, 0))  # column 6 of row 1
                image.save(tmp_path / label / f"{n}.png")
    data = load(f"images:path={tmp_path},test=0.5")
    assert np.argwhere(data.train.x[0] > 1).tolist() == [[0, 1, 6]]


def test_a_folder_by_its_name_alone(tmp_path: Path) -> None:
    for n in range(4):
        picture(tmp_path / "a" / f"{n}.png", (n, n, n))
        picture(tmp_path / "b" / f"{n}.png", (n, n, n))
    data = load(f"{tmp_path}:color=gray,test=0.5")
    assert data.name == f"images:path={tmp_path},color=gray,test=0.5"
    assert data.shape == (1, 8, 8)


def test_own_train_and_test_folders_and_groups(tmp_path: Path) -> None:
    for part, groups in (("train", ("x", "y")), ("test", ("y", "z"))):
        for group in groups:
            for label in ("a", "b"):
                picture(tmp_path / part / group / label / "1.png", (1, 2, 3))
    data = load(f"images:path={tmp_path},layout=group/class")
    assert data.groups == ("x", "y", "z")
    assert data.train.group is not None
    assert data.test.group is not None
    assert (data.train.group.tolist(), data.train.y.tolist()) == ([0, 0, 1, 1], [0, 1, 0, 1])
    assert data.test.group.tolist() == [1, 1, 2, 2]
    same = load(f"images:path={tmp_path}/train,test_path={tmp_path}/test,layout=group/class")
    np.testing.assert_array_equal(same.test.y, data.test.y)


def test_own_folder_problems(tmp_path: Path) -> None:
    with pytest.raises(FedskewError, match="is not a folder"):
        load(f"images:path={tmp_path}/nothing")
    with pytest.raises(FedskewError, match="has no folders in it, expected one per class"):
        load(f"images:path={tmp_path}")
    (tmp_path / "a").mkdir()
    with pytest.raises(FedskewError, match="has no images in it"):
        load(f"images:path={tmp_path}")
    picture(tmp_path / "a" / "1.png", (1, 1, 1))
    with pytest.raises(FedskewError, match=r"holds one class only \(a\)"):
        load(f"images:path={tmp_path}")
    picture(tmp_path / "b" / "1.png", (1, 1, 1), size=9)
    with pytest.raises(FedskewError, match=r"1\.png is 9x9, others are 8x8: give size="):
        load(f"images:path={tmp_path}")
    assert load(f"images:path={tmp_path},size=4,test=0.5").shape == (3, 4, 4)
    whole = (tmp_path / "b" / "1.png").read_bytes()
    for damaged in (whole[:40], b"", b"text"):
        (tmp_path / "b" / "1.png").write_bytes(damaged)
        with pytest.raises(FedskewError, match=r"1\.png is not a readable image"):
            load(f"images:path={tmp_path},size=4,test=0.5")


def test_pacs(data_root: Path) -> None:
    for domain in ("art_painting", "cartoon", "photo"):
        for label in ("dog", "elephant"):
            for n in range(5):
                picture(data_root / "PACS" / domain / label / f"pic_{n}.jpg", (n, 50, 99), size=227)
    with pytest.raises(
        FedskewError, match=r"PACS/sketch is not there; download .*<domain>/<class>"
    ):
        load("pacs")
    for label in ("dog", "elephant"):
        for n in range(5):
            picture(data_root / "PACS" / "sketch" / label / f"{n}.jpg", (0, 0, 0), size=227)
    data = load("pacs:size=16,test=0.4")
    assert data.shape == (3, 16, 16)
    assert data.groups == ("art_painting", "cartoon", "photo", "sketch")
    assert data.test.group is not None
    assert np.bincount(data.test.y * 4 + data.test.group).tolist() == [2] * 8


def test_digits_dg_keeps_its_split(data_root: Path) -> None:
    for position, domain in enumerate(("mnist", "mnist_m", "svhn", "syn")):
        for digit in ("0", "1", "2"):
            for n in range(2):
                picture(
                    data_root / "digits_dg" / domain / "train" / digit / f"{n}.jpg",
                    (position, 0, 0),
                    size=32,
                )
            picture(
                data_root / "digits_dg" / domain / "val" / digit / "1.jpg",
                (position, 0, 0),
                size=32,
            )
    data = load("digits-dg")
    assert (len(data.train), len(data.test), data.shape) == (24, 12, (3, 32, 32))
    assert data.groups == ("mnist", "mnist_m", "svhn", "syn")
    assert data.test.group is not None
    assert data.test.group.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_digits_dg_says_what_to_put_where(data_root: Path) -> None:
    with pytest.raises(
        FedskewError,
        match=rf"unpack it as {data_root}/digits_dg/<domain>/\{{train,val\}}/<class>/\*\.jpg",
    ):
        load("digits-dg")


def write_tiny(root: Path) -> Path:
    top = root / "tiny-imagenet-200"
    for n, wnid in enumerate(("n02", "n01", "n03")):
        for number in range(3):
            picture(
                top / "train" / wnid / "images" / f"{wnid}_{number}.JPEG", (80 * n, 0, 0), size=64
            )
        picture(top / "val" / "images" / f"val_{n}.JPEG", (80 * n, 0, 0), size=64)
    (top / "wnids.txt").write_text("n02\nn01\nn03\n")
    boxes = "".join(
        f"val_{n}.JPEG\t{wnid}\t0\t32\t44\t62\n" for n, wnid in enumerate(("n02", "n01", "n03"))
    )
    (top / "val" / "val_annotations.txt").write_text(boxes)
    return top


def test_tiny_imagenet(data_root: Path) -> None:
    top = write_tiny(data_root)
    data = load("tiny-imagenet")
    assert data.classes == ("n01", "n02", "n03")
    assert data.train.y.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert data.test.y.tolist() == [1, 0, 2]
    np.testing.assert_allclose(raw(data.test.x, data.notes)[:, 0, 0, 0], [0, 80, 160], atol=2)
    annotations = top / "val" / "val_annotations.txt"
    annotations.write_text(annotations.read_text() + "val_9.JPEG\tn09\t0\t0\t0\t0\n")
    with pytest.raises(
        FedskewError, match="line 4 does not name an image and one of the 3 classes"
    ):
        load("tiny-imagenet")
    annotations.write_text("val_9.JPEG\tn01\t0\t0\t0\t0\n")
    with pytest.raises(FedskewError, match=r"val_9\.JPEG is not there"):
        load("tiny-imagenet")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Return a folder of 24 images of several sizes, as JPEG and PNG."""
    draw = np.random.default_rng(0)
    for n in range(24):
        file = tmp_path / "photos" / "abc"[n % 3] / f"{n}.{('jpg', 'png')[n % 2]}"
        file.parent.mkdir(parents=True, exist_ok=True)
        side = int(draw.integers(9, 20))
        Image.fromarray(draw.integers(0, 256, (side, 12, 3), dtype=np.uint8)).save(file)
    return tmp_path / "photos"


@pytest.mark.parametrize("scale", ["unit", "standard"])
@pytest.mark.parametrize("color", ["rgb", "gray"])
def test_lazy_images_have_the_bits_of_those_in_memory(photos: Path, scale: str, color: str) -> None:
    spec = f"images:path={photos},size=8,scale={scale},color={color},test=0.25"
    whole = load(spec, validation=0.2)
    lazy = load(f"{spec},lazy=true", validation=0.2)
    assert isinstance(lazy.train.x, StoredRows)
    assert lazy.train.x.stored == np.uint8
    assert lazy.schema == whole.schema
    for part in ("train", "test", "validation"):
        ours, theirs = getattr(lazy, part), getattr(whole, part)
        np.testing.assert_array_equal(ours.x[:], theirs.x)
        np.testing.assert_array_equal(ours.y, theirs.y)


@pytest.mark.parametrize("engine", ["stacked", "loop"])
@pytest.mark.parametrize("scale", ["unit", "standard"])
def test_runs_on_lazy_images_have_the_bits_of_those_in_memory(
    photos: Path, engine: str, scale: str
) -> None:
    found = []
    for lazy in (False, True):
        data = fs.load(f"{photos}:size=8,scale={scale}", lazy=lazy)
        fed = fs.split(data, "iid", 2)
        run = fs.train(
            fed, "cnn", rounds=2, engine=engine, batch_size=4, device="cpu", folder=False
        )
        found.append(run.model.state_dict())
    for name, value in found[0].items():
        np.testing.assert_array_equal(value, found[1][name])


def test_a_standardisation_of_many_lazy_images_is_fitted_to_some(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedskew.data.readers.arrays._SAMPLE", 5)
    asked: list[Path] = []
    plain = image_folders._pixels

    def noted(path: Path, size: int, mode: str) -> np.ndarray:
        asked.append(path)
        return plain(path, size, mode)

    monkeypatch.setattr(image_folders, "_pixels", noted)
    data = load(f"images:path={photos},size=8,lazy=true,test=0.25")
    assert len(asked) == 6  # the first for its shape
    assert "deviation of 5 training rows" in " ".join(data.notes)


def test_lazy_images_that_cannot_be_read_are_refused_by_their_path(photos: Path) -> None:
    lazy = load(f"images:path={photos},size=8,scale=unit,lazy=true,test=0.25")
    (photos / "c" / "5.png").write_bytes(b"no image")
    with pytest.raises(FedskewError, match=r"c/5.png is not a readable image"):
        lazy.train.x[:], lazy.test.x[:]
    (photos / "c" / "5.png").unlink()
    with pytest.raises(FedskewError, match=r"c/5.png is not there"):
        lazy.train.x[:], lazy.test.x[:]
    odd = load(f"images:path={photos},scale=unit,lazy=true,test=0.25")
    with pytest.raises(FedskewError, match=r"\.(jpg|png) is 12x\d+, others are 12x\d+: give size="):
        odd.train.x[:]


@pytest.mark.parametrize("lazy", [False, True])
def test_images_of_more_than_8_bits_are_refused(photos: Path, lazy: bool) -> None:
    deep = np.linspace(0, 65_535, 64).astype(np.uint16).reshape(8, 8)
    last = sorted(photos.rglob("*.png"))[0]
    Image.fromarray(deep).save(last)
    options = f"size=8,test_path={photos},lazy={lazy}"
    with pytest.raises(FedskewError, match=rf"{last.name} has pixels of more than 8 bits \(mode I"):
        fs.load(f"images:path={photos},{options}")
