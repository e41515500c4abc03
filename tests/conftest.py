"""For all tests: other processes find this source tree, installed or not; and the command line as a function."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedskew import cli

SOURCE = str(Path(__file__).parents[1] / "src")
os.environ["PYTHONPATH"] = os.pathsep.join([SOURCE, *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture
def fedskew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """The command line in an empty folder; returns its exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)

    def call(command: str) -> Any:
        monkeypatch.setattr(sys, "argv", ["fedskew", *command.split()])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code

    return call
