"""A page as one HTML file that needs nothing else: its sections, its charts, and the tables that they draw from."""

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from string import Template
from typing import Any

import numpy as np

from fedskew import __version__
from fedskew.report.charts import Option
from fedskew.report.markup import Markup, escaped, joined, shown, table, tag
from fedskew.runs.folder import to_json

MOST_ROWS = 50  # of a table that says what a chart shows


@dataclass
class Page:
    """A page in the making: its sections, its charts, and the tables that they draw from."""

    title: str
    tables: dict[str, Any]
    charts: dict[str, Option] = field(default_factory=dict)
    sections: list[tuple[str, str, list[Markup]]] = field(default_factory=list)

    def section(self, name: str, title: str, *parts: Markup) -> None:
        """Add a section."""
        self.sections.append((name, title, [part for part in parts if part]))

    def warnings(self, texts: Sequence[str]) -> None:
        """Add the section of warnings."""
        content = tag("p", "None.")
        if texts:
            content = tag("ul", *listed(texts))
        self.section("warnings", "Warnings", content)

    def chart(
        self,
        name: str,
        title: str,
        option: Option,
        says: str,
        numbers: Markup,
        tall: int | None = None,
    ) -> Markup:
        """Return a chart with its title, what it says in words, and its numbers as a table."""
        self.charts[name] = option
        style = {}
        if tall:
            style["style"] = f"height:{tall}px"
        place = tag(
            "div",
            class_="chart",
            data_chart=name,
            role="img",
            aria_label=f"{title}. {says}",
            **style,
        )
        caption = tag("figcaption", tag("h3", title), tag("p", says))
        more = tag("details", tag("summary", "Numbers of this chart"), numbers)
        return tag("figure", caption, place, more, id=f"chart-{name}")

    def content(self, axes: Mapping[str, str]) -> dict[str, Any]:
        """Return what is particular to this page: its title, its parts as HTML, and its data."""
        links = []
        body = []
        for name, title, parts in self.sections:
            links.append(tag("a", title, href=f"#{name}"))
            head = tag("h2", title, id=f"{name}-title")
            body.append(tag("section", head, *parts, id=name, aria_labelledby=f"{name}-title"))
        return {
            "title": self.title,
            "links": joined(links),
            "body": joined(body),
            "data": {"tables": self.tables, "charts": self.charts, "axes": axes},
        }


def html_file(content: Mapping[str, Any], live: bool = False) -> bytes:
    """Return a page as a file; a live one asks its server for newer content."""
    script = _asset("page.js")
    library = _asset("vendor/echarts.min.js")
    policy = f"'sha256-{_digest(library)}' 'sha256-{_digest(script)}'"
    state = ""
    if live:
        policy += "; connect-src 'self'"
        state = tag("p", "", id="live")
    data = to_json(content["data"])
    parts = {
        **content,
        "title": escaped(content["title"]),
        "policy": policy,
        "style": _asset("page.css"),
        "live": state,
        "version": escaped(__version__),
        "data": data.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"),
        "library": library,
        "script": script,
    }
    return Template(_asset("page.html")).substitute(parts).encode()


def live_content() -> dict[str, Any]:
    """Return what a live page shows before the first round has ended."""
    return Page("Waiting for the first round", {}).content({})


def live_page() -> bytes:
    """Return a page that asks its server for its content."""
    return html_file(live_content(), live=True)


@cache
def _asset(name: str) -> str:
    return (files("fedskew.report") / name).read_text(encoding="utf-8")


@cache
def _digest(code: str) -> str:
    """Return the hash by which a browser knows the only scripts that it may run."""
    return base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()


def grid(*parts: Markup) -> Markup:
    """Return figures and tables side by side, where the screen is wide enough."""
    return tag("div", *parts, class_="grid")


def curve_switch(axes: Mapping[str, str]) -> Markup:
    """Return the switch of what curves are drawn against; nothing where there is one choice only."""
    if len(axes) < 2:
        return Markup()
    parts = [tag("legend", "Curves against")]
    for name, title in axes.items():
        button = Markup(f'<input type="radio" name="axis" value="{escaped(name)}">')
        parts.append(tag("label", button, title))
    return tag("fieldset", *parts, class_="axes")


def listed(texts: Sequence[str]) -> list[Markup]:
    """Return texts as items of a list."""
    return [tag("li", text) for text in texts]


def pairs(values: Mapping[str, Any], kind: str) -> Markup:
    """Return names with values."""
    items = []
    for name, value in values.items():
        items.append(tag("div", tag("dt", name), tag("dd", shown(value))))
    return tag("dl", *items, class_=kind)


def numbers_of_rounds(
    curves: Mapping[str, Sequence[Any]],
    columns: Mapping[str, str],
    caption: str,
    show: Callable[[Any], Any] = shown,
) -> Markup:
    """Return columns of the table of rounds by their titles, with rows at even steps where there are many."""
    count = len(curves["round"])
    at = np.unique(np.linspace(0, count - 1, min(count, MOST_ROWS)).astype(np.int64)).tolist()
    rows = []
    for place in at:
        row = [curves["round"][place]]
        for name in columns:
            row.append(show(curves[name][place]))
        rows.append(row)
    if len(at) < count:
        caption += f" ({len(at)} of {count} rounds)"
    return table(caption, ["round", *columns.values()], rows)


def ends_of(
    curves: Mapping[str, Sequence[Any]],
    column: str,
    title: str,
    show: Callable[[Any], Any] = shown,
) -> str:
    """Say where a curve begins and ends."""
    known = []
    for number, value in zip(curves["round"], curves[column], strict=True):
        if value is not None:
            known.append((number, value))
    first, start = known[0]
    last, end = known[-1]
    return f"{title}: {show(start)} in round {first}, {show(end)} in round {last}"
