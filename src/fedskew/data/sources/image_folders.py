"""Folders of image files: pacs, digits-dg, tiny-imagenet, and the user's own."""

import logging
import os
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import FedskewError
from fedskew.core.files import must_fit, read_text, reading
from fedskew.core.registry import AtLeastOne, NonNegative
from fedskew.core.streams import Ints
from fedskew.data.cells import numbers_of
from fedskew.data.dataset import Rows, Split, datasets
from fedskew.data.readers.arrays import Arrays, Numbers, PixelScale, scaled_pixels
from fedskew.data.source import Download, Source, TestShare, find, register
from fedskew.data.stored_rows import AnyRows, StoredRows

_ENDINGS = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm"}
_QUIET = logging.NullHandler()  # for Pillow, which otherwise prints what it also raises
_MOST_PIXELS = 64_000_000  # of one image
_DEEP = ("I", "F")  # Pillow's names of images of 32 bits
_DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
_DIGIT_DOMAINS = ("mnist", "mnist_m", "svhn", "syn")


class Picture(NamedTuple):
    """An image file with the names of its class and group."""

    path: Path
    label: str
    group: str = ""


@register(
    "pacs",
    Source(
        "none stated, research use; Li et al. ICCV 2017",
        files=tuple(f"PACS/{domain}" for domain in _DOMAINS),
        manual=(
            "download https://drive.google.com/open?id=1m4X4fROCCXMO0lRLrr6Zz9Vb3974NWhE (linked from the "
            "Dassl.pytorch "
            "project) and put its images as {root}/PACS/<domain>/<class>/*.jpg with the domains "
            + ", ".join(_DOMAINS)
        ),
    ),
)
def pacs(
    *,
    size: Annotated[int, AtLeastOne] = 64,
    test: TestShare = 0.2,
    split_seed: int = 0,
    scale: PixelScale = "standard",
) -> Arrays:
    """Seven kinds of objects as photo, art painting, cartoon and sketch, 9,991 images, with the domain as group.

    Args:
        size: height and width to scale the images to
        test: share of the rows held out for test, in proportion within every class and domain
        split_seed: seed of the split
        scale: pixels of mean 0 and deviation 1 over the training rows (standard), or from 0 to 1 (unit)
    """
    pictures: list[Picture] = []
    for domain in _DOMAINS:
        pictures.extend(_by_folder(find("pacs", f"PACS/{domain}"), group=domain))
    return picture_arrays(pictures, Split("test", test, split_seed), size, scale)


@register(
    "digits-dg",
    Source(
        "that of its parts (MNIST, MNIST-M, SVHN, SYN), research use; Zhou et al. 2020",
        files=tuple(
            f"digits_dg/{domain}/{part}" for domain in _DIGIT_DOMAINS for part in ("train", "val")
        ),
        manual=(
            "download https://drive.google.com/open?id=15V7EsHfCcfbKgsDmzQKj_DfXt_XYp_P7 (linked from the "
            "Dassl.pytorch "
            "project) and unpack it as {root}/digits_dg/<domain>/{{train,val}}/<class>/*.jpg with the domains "
            + ", ".join(_DIGIT_DOMAINS)
        ),
    ),
)
def digits_dg(*, size: Annotated[int, AtLeastOne] = 32, scale: PixelScale = "standard") -> Arrays:
    """Digits of four sources (MNIST, MNIST-M, SVHN, SYN), colour, with the source as group; val part as test.

    Args:
        size: height and width to scale the images to
        scale: pixels of mean 0 and deviation 1 over the training rows (standard), or from 0 to 1 (unit)
    """
    train = _digits_dg_part("train")
    test = _digits_dg_part("val")
    return picture_arrays(
        train, test, size, scale, notes=("the published validation images serve as test rows",)
    )


def _digits_dg_part(part: str) -> list[Picture]:
    pictures: list[Picture] = []
    for domain in _DIGIT_DOMAINS:
        folder = find("digits-dg", f"digits_dg/{domain}/{part}")
        pictures.extend(_by_folder(folder, group=domain))
    return pictures


@register(
    "tiny-imagenet",
    Source(
        "research use (ImageNet terms); Stanford CS231n",
        files=(
            "tiny-imagenet-200/wnids.txt",
            "tiny-imagenet-200/train",
            "tiny-imagenet-200/val/val_annotations.txt",
            "tiny-imagenet-200/val/images",
        ),
        downloads=(
            Download(
                "tiny-imagenet-200",
                ("https://cs231n.stanford.edu/tiny-imagenet-200.zip",),
                "md5:90528d7ca1a48142e341f4ef8d21d0de",
                248_100_043,
                archive="tiny-imagenet-200.zip",
            ),
        ),
    ),
)
def tiny_imagenet(*, scale: PixelScale = "standard") -> Arrays:
    """200 classes of ImageNet, 64x64 colour, 100,000 + 10,000; the published val part as test (test has no labels).

    Args:
        scale: pixels of mean 0 and deviation 1 over the training rows (standard), or from 0 to 1 (unit)
    """
    name = "tiny-imagenet"
    folder = "tiny-imagenet-200"
    classes = sorted(read_text(find(name, f"{folder}/wnids.txt")).split())
    train: list[Picture] = []
    for wnid in classes:
        train.extend(_files(find(name, f"{folder}/train/{wnid}/images"), wnid))
    annotations = find(name, f"{folder}/val/val_annotations.txt")
    images = find(name, f"{folder}/val/images")
    test = []
    for number, line in enumerate(read_text(annotations).splitlines(), 1):
        file, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0]
        if wnid not in classes:
            raise FedskewError(
                f"{annotations}: line {number} does not name an image and one of the {len(classes)} classes"
            )
        test.append(Picture(images / file, wnid))
    return picture_arrays(
        train, test, 64, scale, notes=("the published validation images serve as test rows",)
    )


@datasets.register("images")
def images(
    *,
    path: str,
    layout: Literal["class", "group/class"] = "class",
    size: Annotated[int, NonNegative] = 0,
    color: Literal["rgb", "gray"] = "rgb",
    test: TestShare = 0.2,
    test_path: str | None = None,
    split_seed: int = 0,
    scale: PixelScale = "standard",
    lazy: bool = False,
) -> Arrays:
    """Your own images: a folder with one folder per class; with train and test folders in it, that split is kept.

    Args:
        path: the folder
        layout: class for <class>/<image>; group/class for <group>/<class>/<image>, where the groups are natural clients
        size: height and width to scale the images to; 0: they all have one size already
        color: rgb for three channels, gray for one
        test: share of the images held out for test, in proportion within every class (and group)
        test_path: a second folder with the test images, instead of a split
        split_seed: seed of the split
        scale: pixels of mean 0 and deviation 1 over the training rows (standard), or from 0 to 1 (unit)
        lazy: decode images when they are used, instead of keeping them in memory; scale=standard is fitted to a sample
            of the training rows where there are more than 4,096
    """
    folder = Path(path).expanduser()
    notes: tuple[str, ...] = ()
    parted = (folder / "train").is_dir() and (folder / "test").is_dir()
    if test_path is None and parted:
        test_path = str(folder / "test")
        folder = folder / "train"
        notes = ("the folders train and test are taken as the split",)
    tested: list[Picture] | Split = Split("test", test, split_seed)
    if test_path is not None:
        tested = _layout(Path(test_path).expanduser(), layout)
    return picture_arrays(_layout(folder, layout), tested, size, scale, color, notes, lazy)


class PixelForm(NamedTuple):
    """What becomes of an image: height and width (0: as it is), Pillow's name of its colours, and when it is read."""

    size: int
    mode: str
    lazy: bool


class PictureFiles:
    """Image files as rows (channels, height, width) of bytes, decoded in threads, as Pillow releases the GIL."""

    def __init__(self, paths: Sequence[Path], form: PixelForm) -> None:
        where = paths[0].parent
        self.paths = paths
        self.form = form
        if not form.lazy:
            must_fit(
                f"{where}: {len(paths)} images of size={form.size}",
                len(paths) * len(form.mode) * form.size**2,
                "choose a smaller size=, or lazy=true",
            )
        first = _pixels(paths[0], form.size, form.mode)
        self.shape = (len(paths), *first.shape)
        self.dtype = first.dtype
        if not form.lazy:
            must_fit(
                f"{where}: {len(paths)} images",
                len(paths) * first.size,
                "give a smaller size=, fewer images, or lazy=true",
            )

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: Ints) -> Numbers:
        images = np.empty((len(index), *self.shape[1:]), dtype=np.uint8)

        def fill(place: int) -> None:
            images[place] = self._image(self.paths[index[place]])

        threads = min(len(index), os.cpu_count() or 1)
        with ThreadPoolExecutor(max(1, threads)) as pool:
            for _ in pool.map(fill, range(len(index))):
                pass
        return images

    def at_once(self) -> Numbers:
        """Return all images."""
        return self[np.arange(len(self))]

    def _image(self, path: Path) -> Numbers:
        """Return an image, which must be as large as the first one."""
        pixels = _pixels(path, self.form.size, self.form.mode)
        if pixels.shape != self.shape[1:]:
            height, width = pixels.shape[1:]
            raise FedskewError(
                f"{path} is {width}x{height}, others are {self.shape[3]}x{self.shape[2]}: give size="
            )
        return pixels


def _layout(folder: Path, layout: str) -> list[Picture]:
    if not folder.is_dir():
        raise FedskewError(f"{folder} is not a folder")
    if layout == "class":
        return _by_folder(folder)
    pictures: list[Picture] = []
    for group in _subfolders(folder):
        pictures.extend(_by_folder(group, group.name))
    return pictures


def _by_folder(folder: Path, group: str = "") -> list[Picture]:
    pictures: list[Picture] = []
    for inner in _subfolders(folder):
        pictures.extend(_files(inner, inner.name, group))
    return pictures


def _subfolders(folder: Path) -> list[Path]:
    inside = []
    for inner in folder.iterdir():
        if inner.is_dir() and not inner.name.startswith("."):
            inside.append(inner)
    if not inside:
        raise FedskewError(f"{folder} has no folders in it, expected one per class")
    return sorted(inside)


def _files(folder: Path, label: str, group: str = "") -> list[Picture]:
    files = []
    for file in folder.iterdir():
        if file.suffix.lower() in _ENDINGS and not file.name.startswith("."):
            files.append(file)
    if not files:
        raise FedskewError(f"{folder} has no images in it ({', '.join(sorted(_ENDINGS))})")
    return [Picture(file, label, group) for file in sorted(files)]


def picture_arrays(
    train: Sequence[Picture],
    test: "Sequence[Picture] | Split",
    size: int,
    scale: PixelScale,
    color: str = "rgb",
    notes: tuple[str, ...] = (),
    lazy: bool = False,
) -> Arrays:
    """Return image files as arrays, with classes and groups in the order of their names.

    ``lazy`` ones are decoded when they are used.
    """
    pictures = list(train)
    if not isinstance(test, Split):
        pictures.extend(test)
    classes = sorted({picture.label for picture in pictures})
    groups = sorted({picture.group for picture in pictures if picture.group})
    if len(classes) < 2:
        raise FedskewError(
            f"{train[0].path.parent.parent} holds one class only ({classes[0]}); there is nothing to learn"
        )
    mode = "L"
    if color == "rgb":
        mode = "RGB"
    form = PixelForm(size, mode, lazy)
    train_rows = _rows(train, classes, groups, form)
    test_rows: Rows | Split
    if isinstance(test, Split):
        test_rows = test
    else:
        test_rows = _rows(test, classes, groups, form)
    return Arrays(
        train=train_rows,
        test=test_rows,
        classes=tuple(classes),
        groups=tuple(groups),
        notes=notes,
        scaled=scaled_pixels(train_rows.x, scale),
        full_scale=255,
    )


def _rows(
    pictures: Sequence[Picture], classes: list[str], groups: list[str], form: PixelForm
) -> Rows:
    files = PictureFiles([picture.path for picture in pictures], form)
    x: AnyRows | Numbers
    if form.lazy:
        x = StoredRows(files, str(pictures[0].path.parent.parent))
    else:
        x = files.at_once()
    y = numbers_of([picture.label for picture in pictures], classes)
    if not groups:
        return Rows(x, y)
    return Rows(x, y, numbers_of([picture.group for picture in pictures], groups))


def _refuse_deep(path: Path, mode: str) -> None:
    """Raise an error for an image whose numbers do not fit into bytes."""
    if mode in _DEEP or mode.startswith("I;16"):
        raise FedskewError(
            f"{path} has pixels of more than 8 bits (mode {mode}), which would be cut off at 255: convert it to 8 "
            "bits, or give arrays (a folder with x.npy)"
        )


def _pixels(path: Path, size: int, mode: str) -> NDArray[np.uint8]:
    from PIL import Image

    logging.getLogger("PIL").addHandler(_QUIET)
    with reading(path), warnings.catch_warnings():
        # Pillow's warnings: either the pixels are read, or there is an error
        warnings.simplefilter("ignore")
        try:
            with Image.open(path) as image:
                if image.width * image.height > _MOST_PIXELS:
                    raise FedskewError(
                        f"{path} is {image.width}x{image.height}, more than {_MOST_PIXELS:,} pixels: scale it down "
                        "first"
                    )
                _refuse_deep(path, image.mode)
                converted = image.convert(mode)
                if size and converted.size != (size, size):
                    converted = converted.resize((size, size), Image.Resampling.LANCZOS)
                pixels = np.asarray(converted, dtype=np.uint8)
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            if isinstance(error, (FedskewError, FileNotFoundError)):
                raise
            raise FedskewError(f"{path} is not a readable image: {error}") from None
    if pixels.ndim == 3:
        return pixels.transpose(2, 0, 1)
    return pixels[None]
