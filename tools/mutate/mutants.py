"""The mutants of a module: each is its source with one small mistake.

Types, texts, doctests and what is inside of an f-string stay as they are.
"""

import ast
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
JOINED: dict[type[ast.boolop], type[ast.boolop]] = {ast.And: ast.Or, ast.Or: ast.And}
RENAMED = {
    "min": "max",
    "any": "all",
    "minimum": "maximum",
    "argmin": "argmax",
    "floor": "ceil",
    "zeros": "ones",
    "zeros_like": "ones_like",
    "clamp_min": "clamp_max",
}
RENAMED |= {after: before for before, after in RENAMED.items()}
# Functions whose arguments may change places, or that fail at once if they do
SYMMETRIC = frozenset({"max", "min", "maximum", "minimum", "dot", "isinstance"})
REMOVED = (ast.Raise, ast.AugAssign, ast.Delete)
TYPES = ("annotation", "returns", "decorator_list", "bases", "type_params")
UNTOUCHED = (ast.JoinedStr, ast.Import, ast.ImportFrom, ast.Assert)


class Mutant(NamedTuple):
    """One mistake in a module.

    Args:
        number: its place among all mistakes of the module
        lines: where it is
        text: the first of these lines
        change: what becomes what
    """

    number: int
    lines: range
    text: str
    change: str


def mutants_of(source: str) -> list[Mutant]:
    """Return all mutants of a module."""
    lines = source.splitlines()
    found = []
    for number, mistake in enumerate(_mistakes(ast.parse(source))):
        node = mistake.node
        change = f"{_said(node)} -> {_said(mistake.changed)}"
        found.append(Mutant(number, _lines_of(node), lines[node.lineno - 1].strip(), change))
    return found


def mutated(source: str, mutant: Mutant) -> str:
    """Return a module with one mistake."""
    tree = ast.parse(source)
    mistake = next(islice(_mistakes(tree), mutant.number, None))
    if mistake.place is None:
        setattr(mistake.owner, mistake.field, mistake.changed)
    else:
        getattr(mistake.owner, mistake.field)[mistake.place] = mistake.changed
    return ast.unparse(ast.fix_missing_locations(tree))


class _Mistake(NamedTuple):
    """What takes the place of a node: of a field of its owner, or of one of its list there."""

    owner: ast.AST
    field: str
    place: int | None
    node: Any
    changed: ast.AST


def _mistakes(tree: ast.AST) -> Iterator[_Mistake]:
    for owner, field, place, node in _children(tree):
        for changed in _changes(node):
            yield _Mistake(owner, field, place, node, changed)


def _children(node: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, Any]]:
    """Return every node that may be changed, with where it stands."""
    for field, value in ast.iter_fields(node):
        if field in TYPES or isinstance(value, UNTOUCHED):
            continue
        if isinstance(value, ast.AST):
            yield node, field, None, value
            yield from _children(value)
        if isinstance(value, list):
            for place, item in enumerate(value):
                if isinstance(item, ast.AST) and not isinstance(item, UNTOUCHED):
                    yield node, field, place, item
                    yield from _children(item)


def _lines_of(node: Any) -> range:
    """Return the lines of a node; those of its head if other statements are inside of it."""
    if isinstance(node, ast.If):
        node = node.test
    return range(node.lineno, node.end_lineno + 1)


def _said(node: ast.AST) -> str:
    """Return a node in one short line."""
    if isinstance(node, ast.Pass):
        return "nothing"
    if isinstance(node, ast.If):
        node = node.test
    return " ".join(ast.unparse(node).split())


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    """Return what may take the place of a node."""
    if isinstance(node, ast.Compare):
        yield from _compared(node)
    elif isinstance(node, ast.BinOp) and type(node.op) in COMPUTED:
        yield ast.BinOp(node.left, COMPUTED[type(node.op)](), node.right)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(JOINED[type(node.op)](), node.values)
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, ast.Constant):
        yield from _constants(node)
    elif isinstance(node, ast.Call):
        yield from _calls(node)
    elif isinstance(node, ast.IfExp):
        yield ast.IfExp(node.test, node.orelse, node.body)
    elif isinstance(node, ast.stmt):
        yield from _statements(node)


def _compared(node: ast.Compare) -> Iterator[ast.AST]:
    for place, op in enumerate(node.ops):
        for other in COMPARED[type(op)]:
            ops = [*node.ops]
            ops[place] = other()
            yield ast.Compare(node.left, ops, node.comparators)


def _constants(node: ast.Constant) -> Iterator[ast.AST]:
    if isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node.value, int | float):
        yield ast.Constant(node.value + 1)
        if node.value == 1:
            yield ast.Constant(0)


def _calls(node: ast.Call) -> Iterator[ast.AST]:
    function = node.func
    if isinstance(function, ast.Name) and function.id in RENAMED:
        yield ast.Call(ast.Name(RENAMED[function.id]), node.args, node.keywords)
    if isinstance(function, ast.Attribute) and function.attr in RENAMED:
        other = ast.Attribute(function.value, RENAMED[function.attr])
        yield ast.Call(other, node.args, node.keywords)
    if len(node.args) < 2 or _said(function).rpartition(".")[2] in SYMMETRIC:
        return
    first, second, *rest = node.args
    if isinstance(first, ast.Starred) or isinstance(second, ast.Starred):
        return
    if _said(first) != _said(second):
        yield ast.Call(function, [second, first, *rest], node.keywords)


def _statements(node: ast.stmt) -> Iterator[ast.AST]:
    if isinstance(node, ast.Return) and node.value is not None and _said(node.value) != "None":
        yield ast.Return(ast.Constant(None))
    if isinstance(node, ast.If) and not isinstance(node.test, ast.Compare | ast.UnaryOp):
        yield ast.If(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
    if isinstance(node, ast.Continue):
        yield ast.Break()
    if isinstance(node, ast.AugAssign) and type(node.op) in COMPUTED:
        yield ast.AugAssign(node.target, COMPUTED[type(node.op)](), node.value)
    if isinstance(node, REMOVED) or _acts(node):
        yield ast.Pass()


def _acts(node: ast.stmt) -> bool:
    """Return whether a statement does something to what others hold: a call, or a part of something is set."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    return isinstance(node, ast.Assign) and isinstance(
        node.targets[0], ast.Attribute | ast.Subscript
    )
