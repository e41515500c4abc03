"""HTML from Python: every text is escaped, and what is escaped already is not escaped again."""

import html
from collections.abc import Container, Iterable, Sequence
from typing import Any


class Markup(str):
    """A text that is HTML already."""

    __slots__ = ()


def escaped(text: Any) -> Markup:
    """Return a text as HTML.

    >>> escaped("<b>"), escaped(Markup("<b>"))
    ('&lt;b&gt;', '<b>')
    """
    if isinstance(text, Markup):
        return text
    return Markup(html.escape(str(text)))


def tag(kind: str, *inside: Any, **attributes: Any) -> Markup:
    """Return an element; names of attributes may end in ``_``, and other ``_`` stand for ``-``.

    >>> tag("a", "x & y", href="#top", class_="plain")
    '<a href="#top" class="plain">x &amp; y</a>'
    """
    words = [kind]
    for name, text in attributes.items():
        words.append(f'{name.rstrip("_").replace("_", "-")}="{escaped(text)}"')
    return Markup(f"<{' '.join(words)}>{joined(inside)}</{kind}>")


def joined(parts: Iterable[Any]) -> Markup:
    """Return parts one after the other."""
    return Markup("".join(escaped(part) for part in parts))


def table(
    caption: str, head: Sequence[Any], rows: Iterable[Sequence[Any]], texts: Container[str] = ()
) -> Markup:
    """Return a table whose first column names the rows; it scrolls where it is too wide.

    ``texts`` are the titles of other columns that are text, which begin at the left.
    """
    looks: list[dict[str, str]] = []
    titles = []
    for title in head:
        look = {}
        if title in texts:
            look["class_"] = "text"
        looks.append(look)
        titles.append(tag("th", title, scope="col", **look))
    lines = []
    for first, *cells in rows:
        line = [tag("th", first, scope="row")]
        for cell, look in zip(cells, looks[1:], strict=True):
            line.append(tag("td", shown(cell), **look))
        lines.append(tag("tr", *line))
    top = tag("thead", tag("tr", *titles))
    whole = tag("table", tag("caption", caption), top, tag("tbody", *lines))
    return tag("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)


def shown(value: Any) -> Any:
    """Return a number with four digits, and anything else as it is.

    >>> shown(0.123456), shown(1234567), shown(None)
    ('0.1235', '1,234,567', '–')
    """
    if value is None or value != value:  # NaN
        return "–"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}"
