"""The ratchet of ``tools/readability``: what it counts, and that a denser room fails."""

import json
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PLACE = Path(__file__).parent.parent / "tools" / "readability"
DENSE = """
def one(xs):
    return [x if x else 0 for x in xs if x and xs]

def other():
    pass
"""


@pytest.fixture
def tool() -> ModuleType:
    if not PLACE.exists():
        pytest.skip("tools are not part of an installed package")
    loader = SourceFileLoader("readability", str(PLACE))
    spec = spec_from_loader("readability", loader)
    assert spec
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_what_is_counted(tool: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(DENSE)
    assert tool.figures_of([tmp_path / "a.py"]) == {
        "conditional expressions": 50.0,
        "comprehensions": 50.0,
        "complex functions": 0.0,
        "highest complexity": 4,
    }


def recorded(tool: ModuleType, path: Path, **changed: float) -> dict[str, Any]:
    figures = {room: tool.figures_of(files) for room, files in tool.rooms().items()}
    figures["core"] |= changed
    path.write_text(json.dumps(figures))
    return figures


def test_a_denser_room_fails(
    tool: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(tool, "RECORD", tmp_path / "record.json")
    monkeypatch.setattr("sys.argv", ["readability"])
    recorded(tool, tmp_path / "record.json")
    assert tool.main() == 0
    recorded(tool, tmp_path / "record.json", comprehensions=0.1)
    assert tool.main() == 1
    assert "core: comprehensions" in capsys.readouterr().err


def test_recorded_figures_only_fall(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "RECORD", tmp_path / "record.json")
    monkeypatch.setattr("sys.argv", ["readability", "--write"])
    now = recorded(tool, tmp_path / "record.json")["core"]["comprehensions"]
    recorded(tool, tmp_path / "record.json", comprehensions=999.0)
    assert tool.main() == 0
    assert json.loads((tmp_path / "record.json").read_text())["core"]["comprehensions"] == now
