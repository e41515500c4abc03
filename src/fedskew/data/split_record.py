"""The record of a folder that ``fedskew split`` wrote, with a checksum per file: a changed one is noticed."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedskew.core.errors import FedskewError
from fedskew.core.files import reading

RECORD = "split.json"
_FORMAT, _FILES, _CHECKSUM = "format", "sha256", "checksum"
_CURRENT = 2  # with checksums; former folders have neither a format nor these


def sealed(record: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return a record with the checksums of all files that are in a folder, and one of the record itself."""
    files = {}
    for path in sorted(folder.iterdir()):
        files[path.name] = _digest(path)
    content = {_FORMAT: _CURRENT, **record, _FILES: files}
    return {**content, _CHECKSUM: _checksum(content)}


def read_split_record(folder: Path) -> dict[str, Any]:
    """Return the record of a folder; an error if it, or a file that it lists, is not what was written.

    Files that are not there are left to whoever reads them: a client may have its own alone.
    """
    path = folder / RECORD
    with reading(path):
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(record, dict):
            raise FedskewError(f"{path} is damaged: it is not a record of a split")
    if not {_FORMAT, _FILES, _CHECKSUM} & record.keys():
        return record  # of a former version
    content = dict(record)
    checksum = content.pop(_CHECKSUM, None)
    if checksum != _checksum(content) or content.get(_FORMAT) != _CURRENT:
        raise FedskewError(
            f"{path} is damaged: its checksum is not that of its content; split again"
        )
    for name, digest in record[_FILES].items():
        if (folder / name).is_file() and _digest(folder / name) != digest:
            raise FedskewError(
                f"{folder / name} is not what fedskew split wrote: put it back, split again, or name the files of the "
                "clients themselves"
            )
    return record


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
