"""How objects show themselves: one line in a terminal, a small table in a notebook."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any


def one_line(kind: str, text: str) -> str:
    """Return the representation of an object, whatever spaces its names have.

    >>> one_line("Dataset", "two\\nlines: 3 rows")
    '<Dataset two lines: 3 rows>'
    """
    return f"<{kind} {' '.join(text.split())}>"


def few(lines: Sequence[str], most: int = 50) -> list[str]:
    """Return the first lines, and how many more there are.

    >>> few(["a", "b", "c"], most=1)
    ['a', '… and 2 more']
    """
    first = list(lines[:most])
    if len(lines) > most:
        first.append(f"… and {len(lines) - most} more")
    return first


def facts_as_html(caption: str, facts: Mapping[str, Any]) -> str:
    """Return names with values as a table; what is None is left out.

    >>> facts_as_html("a < b", {"rows": 1200, "notes": None})
    '<table><caption>a &lt; b</caption><tbody><tr><th>rows</th><td>1,200</td></tr></tbody></table>'
    """
    rows = [[name, value] for name, value in facts.items() if value is not None]
    return rows_as_html(caption, (), rows)


def rows_as_html(caption: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return rows, whose first entry names them, as a table.

    It has no colours or fonts of its own, so that it follows the theme of the notebook.
    """
    titles = ""
    if head:
        names = "".join(f"<th>{escape(title)}</th>" for title in head)
        titles = f"<thead><tr>{names}</tr></thead>"
    lines = []
    for first, *others in rows:
        cells = "".join(f"<td>{_cell(value)}</td>" for value in others)
        lines.append(f"<tr><th>{escape(str(first))}</th>{cells}</tr>")
    body = "".join(lines)
    return f"<table><caption>{escape(caption)}</caption>{titles}<tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return escape(str(value))
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}"
