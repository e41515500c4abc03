"""A manifest that was changed is refused."""

import hashlib
from pathlib import Path

import pytest

from fedskew.core.errors import FedskewError
from fedskew.core.manifest import Digest, manifest, read_manifest


@pytest.mark.parametrize("position", range(0, 400, 7))
def test_a_manifest_is_refused_whichever_byte_was_changed(tmp_path: Path, position: int) -> None:
    path = tmp_path / "manifest.json"
    content = manifest(
        {"rounds.csv": Digest.of(b"a"), "clients/00000001.safetensors": Digest.of(b"b")}, 3, round=7
    )
    path.write_bytes(content)
    assert read_manifest(path, range(2, 4))["round"] == 7
    assert read_manifest(path, range(2, 4))["files"]["rounds.csv"] == Digest(
        1, hashlib.sha256(b"a").hexdigest()
    )
    for flipped in range(8):
        changed = bytearray(content)
        changed[position % len(content)] ^= 1 << flipped
        path.write_bytes(bytes(changed))
        with pytest.raises(FedskewError, match=r"manifest\.json (is damaged|has the format)"):
            read_manifest(path, range(2, 4))
