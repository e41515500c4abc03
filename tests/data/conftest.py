"""An empty data root for the tests that write their own files."""

from pathlib import Path

import pytest


@pytest.fixture
def data_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDSKEW_DATA", str(tmp_path))
    return tmp_path
