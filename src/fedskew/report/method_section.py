"""The section of a run's page about what only its method has in its tables."""

from fedskew.report import charts
from fedskew.report.html_page import Page, ends_of, grid, numbers_of_rounds
from fedskew.report.markup import Markup
from fedskew.report.readable import in_words
from fedskew.study.client_columns import PROFILE
from fedskew.study.run_data import RunData

_MOST_OWN = 12  # charts of columns that only this method has
_ROUND_PANELS = {  # titles of charts, by how a method's own columns begin
    "mu_": "Proximal coefficient of each layer",
    "drift_": "Drift of each layer",
    "dp_epsilon": "Privacy spent so far (epsilon)",
    "backdoor_success": "Success of the backdoor",
}
_CLIENT_PANELS = {
    "vulnerable": "Vulnerable clients of each round",
    "hostile": "Hostile clients of each round",
    "variance": "Variance of the clients' gradients",
    "staleness": "Staleness of the updates",
}


def add_method(page: Page, run: RunData) -> None:
    """Add a chart for every group of columns that only this method has."""
    figures = _method_figures(page, run)
    if figures:
        page.section("method", "The method", grid(*figures))


def _method_figures(page: Page, run: RunData) -> list[Markup]:
    figures = []
    remaining = run.drawn.own_columns
    for start, title in _ROUND_PANELS.items():
        columns = {}
        for name in remaining:
            if name.startswith(start):
                columns[name] = name.removeprefix(start) or name
        remaining = [name for name in remaining if name not in columns]
        figures += _figure(page, run, start.strip("_"), title, columns)
    figures += _client_figures(page, run)
    for number, name in enumerate(remaining[:_MOST_OWN]):
        title = in_words(name)
        figures += _figure(page, run, f"own-{number}", title, {name: title})
    return figures


def _client_figures(page: Page, run: RunData) -> list[Markup]:
    """Return the charts of what the clients of each round had, as means, largest values or numbers of clients."""
    profile = {}
    for name in PROFILE:
        if f"mean {name}" in run.curves:
            profile[f"mean {name}"] = name
    title = "Profiles of the clients, mean of each round"
    figures = _figure(page, run, "profile", title, profile)
    for name, title in _CLIENT_PANELS.items():
        columns = {}
        for key in (f"{name} clients", f"mean {name}", f"largest {name}"):
            if key in run.curves:
                columns[key] = key
        figures += _figure(page, run, name, title, columns)
    return figures


def _figure(
    page: Page, run: RunData, name: str, title: str, columns: dict[str, str]
) -> list[Markup]:
    """Return a chart of columns, with what they are called in it; none where there are no columns."""
    if not columns:
        return []
    y_title = ""
    if len(columns) == 1:
        y_title = title
    ends = []
    for column, called in list(columns.items())[:2]:
        ends.append(ends_of(run.curves, column, called))
    says = "; ".join(ends)
    numbers = numbers_of_rounds(run.curves, columns, title)
    return [page.chart(name, title, charts.lines(columns, y_title), f"{says}.", numbers)]
