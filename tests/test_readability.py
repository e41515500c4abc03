"""The ratchet of ``tools/readability``: what it counts, and that a denser room fails."""

import json
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

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
        "functions": 2,
        "conditional expressions": 1,
        "comprehensions": 1,
        "complex functions": 0,
        "highest complexity": 4,
    }


BEFORE = {
    "functions": 10,
    "conditional expressions": 2,
    "comprehensions": 5,
    "complex functions": 0,
    "highest complexity": 8,
}


@pytest.mark.parametrize(
    ("changed", "problems"),
    [
        ({}, []),
        ({"functions": 9}, []),  # a function that nobody used has gone
        ({"functions": 20, "comprehensions": 10}, []),
        ({"comprehensions": 6}, ["6 comprehensions in 10 functions"]),
        (
            {"functions": 11, "conditional expressions": 3},
            ["3 conditional expressions in 11 functions"],
        ),
        ({"highest complexity": 10}, []),
        ({"highest complexity": 11}, ["a function of complexity 11"]),
    ],
)
def test_what_is_denser(tool: ModuleType, changed: dict[str, int], problems: list[str]) -> None:
    assert tool.denser({**BEFORE, **changed}, BEFORE) == problems


def test_a_denser_room_fails(
    tool: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    figures = {room: tool.figures_of(files) for room, files in tool.rooms().items()}
    record = tmp_path / "record.json"
    record.write_text(json.dumps(figures))
    monkeypatch.setattr(tool, "RECORD", record)
    monkeypatch.setattr("sys.argv", ["readability", "--write"])
    assert tool.main() == 0
    figures["core"]["comprehensions"] = 0
    record.write_text(json.dumps(figures))
    assert tool.main() == 1
    assert "core has" in capsys.readouterr().err
    assert json.loads(record.read_text()) == figures
