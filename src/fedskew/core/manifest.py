"""Manifests: which files there are, with their sizes and checksums, so that a changed one is noticed."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedskew.core.errors import FedskewError


@dataclass(frozen=True)
class Digest:
    """The content of a file, or the beginning of a growing table: a number of bytes and their SHA-256."""

    size: int
    sha256: str

    @classmethod
    def of(cls, content: bytes) -> "Digest":
        """Return the digest of a whole file."""
        return cls(len(content), hashlib.sha256(content).hexdigest())


def manifest(files: Mapping[str, Digest], format: int, **facts: Any) -> bytes:
    """Return files with their digests as JSON, with a checksum of that itself."""
    content = {
        "format": format,
        **facts,
        "files": {name: vars(digest) for name, digest in files.items()},
    }
    return (json.dumps({**content, "checksum": _checksum(content)}, indent=1) + "\n").encode()


def read_manifest(path: Path, formats: range) -> dict[str, Any]:
    """Return the content of a manifest of one of these formats, with ``files`` as digests.

    Raise an error if it was changed.
    """
    try:
        written = path.read_bytes()
        content: dict[str, Any] = json.loads(written)
        if content["format"] not in formats:
            raise FedskewError(
                f"{path} has the format {content['format']!r}, and this version of fedskew reads {formats[0]} to "
                f"{formats[-1]}: use the version that wrote it"
            )
        del content["checksum"]
        files = {name: Digest(**digest) for name, digest in content.pop("files").items()}
        whole = manifest(files, **content) == written
    except FileNotFoundError:
        raise FedskewError(f"{path} is gone") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        if isinstance(problem, FedskewError):
            raise
        raise FedskewError(
            f"{path} is damaged: it is not a manifest ({type(problem).__name__})"
        ) from None
    if not whole:
        raise FedskewError(f"{path} is damaged: its checksum is not that of its content")
    return {**content, "files": files}


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
