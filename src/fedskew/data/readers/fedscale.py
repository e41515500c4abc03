"""Client maps as FedScale writes them: a table with the client, the file and the class of every sample."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from fedskew.core.errors import FedskewError
from fedskew.core.files import read_text
from fedskew.core.registry import NonNegative
from fedskew.data.dataset import Split, datasets
from fedskew.data.readers.arrays import Arrays, PixelScale
from fedskew.data.readers.client_groups import with_clients
from fedskew.data.source import TestShare
from fedskew.data.sources.image_folders import Picture, picture_arrays

COLUMNS = ("client_id", "sample_path", "label_name", "label_id")


class Sample(NamedTuple):
    """A line of a client map."""

    client: str
    path: str
    label: str
    label_id: int


def read_map(file: Path) -> list[Sample]:
    """Read a client map; a header with other columns, a short line or a label number that is none is an error."""
    lines = csv.reader(read_text(file).splitlines())
    header = [title.strip() for title in next(lines, [])]
    if tuple(header) != COLUMNS:
        raise FedskewError(
            f"{file} is not a client map of FedScale: expected the columns {', '.join(COLUMNS)}, "
            f"it has {', '.join(header)}"
        )
    samples = []
    for fields in lines:
        if len(fields) != len(COLUMNS) or not fields[3].strip().isdecimal():
            raise FedskewError(
                f"{file}: line {lines.line_num} does not have {', '.join(COLUMNS)} with a whole number last"
            )
        samples.append(Sample(fields[0], fields[1], fields[2], int(fields[3])))
    if not samples:
        raise FedskewError(f"{file} has no samples")
    return samples


@datasets.register("fedscale")
def fedscale(
    *,
    path: str,
    root: str | None = None,
    test_path: str | None = None,
    size: Annotated[int, NonNegative] = 0,
    color: Literal["rgb", "gray"] = "rgb",
    test: TestShare = 0.2,
    split_seed: int = 0,
    scale: PixelScale = "standard",
) -> Arrays:
    """Images with a client map as FedScale has it: client_data_mapping/train.csv and perhaps test.csv.

    Args:
        path: the map of the training samples, with the columns client_id, sample_path, label_name, label_id
        root: folder that sample_path starts from; by default the folder above that of the map
        test_path: the map of the test samples; by default test.csv beside the map, if there is one
        size: height and width to scale the images to; 0: they all have one size already
        color: rgb for three channels, gray for one
        test: without a map of test samples, share of each client's images held out for test
        split_seed: seed of that split
        scale: pixels of mean 0 and deviation 1 over the training rows (standard), or from 0 to 1 (unit)
    """
    file = Path(path).expanduser()
    folder = file.parent.parent
    if root is not None:
        folder = Path(root).expanduser()
    test_file = file.with_name("test.csv")
    if test_path is not None:
        test_file = Path(test_path).expanduser()
    tested: list[Picture] | Split = Split("test", test, split_seed)
    if test_path is not None or (test_file != file and test_file.is_file()):
        tested = _pictures(test_file, folder)
    arrays = picture_arrays(_pictures(file, folder), tested, size, scale, color)
    return with_clients(replace(arrays, counted=True))


def _pictures(file: Path, folder: Path) -> list[Picture]:
    pictures = []
    for sample in read_map(file):
        pictures.append(Picture(folder / sample.path, sample.label, sample.client))
    return pictures
