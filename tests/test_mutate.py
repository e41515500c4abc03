"""Mutation testing, ``tools/mutate``: its mistakes, which of them a seed draws, and the list of the equivalent."""

import sys
from collections import Counter
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).parents[1] / "tools" / "mutate"
PACKAGE = Path(__file__).parents[1] / "src" / "fedskew"
if not TOOLS.exists():
    pytest.skip("tools are not part of an installed package", allow_module_level=True)


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the tool; its files have names that others may have, too."""
    monkeypatch.syspath_prepend(TOOLS)
    for name in ("mutants", "rooms", "copies"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    spec = spec_from_file_location("mutate", TOOLS / "__main__.py")
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        ("x = a < b", ["a < b -> a <= b", "a < b -> a >= b"]),
        ("x = a is None", ["a is None -> a is not None"]),
        ("x = a + b", ["a + b -> a - b"]),
        ("x = a and not b", ["a and (not b) -> a or not b", "not b -> b"]),
        ("x = min(a, b)", ["min(a, b) -> max(a, b)"]),
        ("x = f(a, b, c)", ["f(a, b, c) -> f(b, a, c)"]),
        ("x = f(a, a)", []),
        ("x = f(*a, b)", []),
        ("x = np.maximum(a, b)", ["np.maximum(a, b) -> np.minimum(a, b)"]),
        ("x = 1", ["1 -> 2", "1 -> 0"]),
        ("x = 0.5", ["0.5 -> 1.5"]),
        ("x = True", ["True -> False"]),
        ("x = a if b else c", ["a if b else c -> c if b else a"]),
        ("x.y = a", ["x.y = a -> nothing"]),
        ("f(a)", ["f(a) -> nothing"]),
        ("x += a", ["x += a -> x -= a", "x += a -> nothing"]),
        ("if a: pass", ["a -> not a"]),
        ("def f() -> 'int | 3': return a", ["return a -> return None"]),
        ("def f(): raise E('text')", ["raise E('text') -> nothing"]),
        ("x: int | None = None", []),
        ("x = f'{1 + 2}'", []),
        ("x = 'text'", []),
    ],
)
def test_the_mistakes_of_a_line(tool: ModuleType, line: str, changes: list[str]) -> None:
    found = tool.mutants_of(line)
    assert [mutant.change for mutant in found] == changes
    sources = {sys.modules["mutants"].mutated(line, mutant) for mutant in found}
    assert len(sources - {line}) == len(changes)  # each is another mistake


def test_a_seed_draws_the_same_mistakes_wherever_their_lines_move(
    tool: ModuleType, tmp_path: Path
) -> None:
    source = (PACKAGE / "study" / "judge.py").read_text()
    (tmp_path / "a.py").write_text(source)
    first = tool.sample(tmp_path, "a.py", 10, 0)
    (tmp_path / "a.py").write_text(f"import os\n\n{source}")
    moved = tool.sample(tmp_path, "a.py", 10, 0)
    assert [(one.text, one.change) for one in moved] == [(one.text, one.change) for one in first]
    assert [one.lines.start for one in moved] == [one.lines.start + 2 for one in first]
    other = tool.sample(tmp_path, "a.py", 10, 1)
    assert [one.number for one in other] != [one.number for one in moved]


def test_every_mistake_that_is_called_equivalent_can_be_made(tool: ModuleType) -> None:
    made: dict[str, set[tuple[str, str]]] = {}
    for (module, line, change), why in tool.equivalent().items():
        if module not in made:
            mutants = tool.sample(PACKAGE, module, None, 0)
            made[module] = {(mutant.text, mutant.change) for mutant in mutants}
        assert (line, change) in made[module], (module, line, change)
        assert len(why.split()) >= 3


def test_rooms_have_modules_and_tests(tool: ModuleType) -> None:
    root = PACKAGE.parents[1]
    for room in tool.ROOMS:
        assert tool.modules_of(PACKAGE, room, [])
        for name in room.tests:
            assert (root / name).exists(), name


@pytest.mark.parametrize(("survived", "code"), [(0, 0), (1, 0), (2, 1)])
def test_fewer_than_95_percent_fail(
    tool: ModuleType, capsys: pytest.CaptureFixture[str], survived: int, code: int
) -> None:
    tally = Counter({"killed": 18, "timed out": 1, "survived": survived, "equivalent": 9})
    assert tool.told({"a.py": tally}) == code
    printed = capsys.readouterr().out
    assert f"{100 * 19 / (19 + survived):.0f} %" in printed


def test_survivors_of_an_output_are_read_back(tool: ModuleType, tmp_path: Path) -> None:
    output = tmp_path / "output"
    output.write_text("killed: b.py:1\n    x\n    y\nsurvived: a/b.py:3\n    c < d\n    < -> <=\n")
    assert tool.survivors_in(str(output)) == {("a/b.py", "c < d", "< -> <=")}
