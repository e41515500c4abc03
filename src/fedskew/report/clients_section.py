"""The sections of a run's page about its clients: who holds what, who is left behind, and who took part."""

import numpy as np

from fedskew.report import charts
from fedskew.report.html_page import MOST_ROWS, Page, grid, pairs
from fedskew.report.markup import Markup, table
from fedskew.report.readable import in_words, percent, shows
from fedskew.study.run_data import Holdings, RunData


def add_holdings(page: Page, run: RunData) -> None:
    """Add who holds what: rows by client and label, and the sizes of the clients."""
    figures = []
    if run.holdings is not None:
        figures.append(_matrix(page, run, run.holdings))
    figures.append(_sizes(page, run))
    page.section("data", "Who holds what", pairs(run.facts(), "facts"), grid(*figures))


def _matrix(page: Page, run: RunData, holdings: Holdings) -> Markup:
    """Return the training rows of clients by label, or by what stands in for labels."""
    counts = holdings.counts
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    most = np.sort(np.argsort(-counts.sum(0), kind="stable")[: charts.MOST_CLASSES])
    columns = [holdings.names[k] for k in most]
    option = charts.heat_map(
        holdings.clients, columns, shares[:, most], counts[:, most], "client", holdings.title
    )
    says = "Colour is the share of the client's rows."
    if len(counts) != len(run.sizes):
        says += f" {len(counts)} of {len(run.sizes):,} clients, at even steps."
    if len(columns) != len(holdings.names):
        says += f" The {len(columns)} most frequent of {len(holdings.names)} columns."
    rows = []
    for i, client in enumerate(holdings.clients[:MOST_ROWS]):
        rows.append([client, *counts[i, most].tolist()])
    numbers = table("Training rows of clients", ["client", *columns], rows)
    tall = min(max(300, 24 * len(counts) + 110), 640)
    return page.chart("matrix", f"Clients and {holdings.title}", option, says, numbers, tall)


def _sizes(page: Page, run: RunData) -> Markup:
    """Return one bar for each client, or a histogram where they are many."""
    sizes = run.sizes
    if len(sizes) <= charts.MOST_BARS:
        clients = [str(client) for client in range(len(sizes))]
        if run.holdings is not None:
            clients = run.holdings.clients
        option = charts.bars(clients, sizes.tolist(), "client", "training rows")
        rows = list(zip(clients, sizes.tolist(), strict=True))
        numbers = table("Training rows of each client", ["client", "rows"], rows)
    else:
        option, rows = charts.histogram(sizes, "training rows")
        numbers = table("Clients by training rows", ["rows", "clients"], rows)
    says = f"{sizes.sum():,} training rows at {len(sizes):,} clients."
    return page.chart("sizes", "Sizes of the clients", option, says, numbers)


def add_clients(page: Page, run: RunData) -> None:
    """Add how the clients fare, what their updates weigh, and in how many rounds they took part."""
    figures = []
    worst = Markup()
    if run.scored.metric is not None:
        figures.append(_scores(page, run, run.scored.metric))
        worst = _left_behind(run, run.scored.metric)
    figures.append(_weights(page, run))
    figures.append(_participation(page, run))
    page.section("fairness", "Clients", grid(*figures, worst))


def _scores(page: Page, run: RunData, metric: str) -> Markup:
    scores = run.scored.values()
    name = in_words(metric)
    show = shows(metric)
    if metric in charts.IN_PERCENT:
        option, rows = charts.histogram(100 * scores, f"{name} of a client (%)")
    else:
        option, rows = charts.histogram(scores, f"{name} of a client")
    says = f"{len(scores):,} clients, from {show(scores.min())} to {show(scores.max())}, mean {show(scores.mean())}."
    where = run.summary.get(f"client_{metric}_rows", run.summary.get("client_accuracy_rows"))
    if where:
        says += f" On {where}."
    numbers = table(f"Clients by their {name}", [option["xAxis"]["name"], "clients"], rows)
    title = f"{name[0].upper()}{name[1:]} of the clients"
    return page.chart("clients", title, option, says, numbers)


def _left_behind(run: RunData, metric: str) -> Markup:
    lines = []
    for row in run.scored.left_behind():
        score = shows(metric)(row[metric])
        lines.append([row.get("name") or row["client"], row["rows"], score])
    head = ["client", "rows", in_words(metric)]
    return table("Clients left behind, the worst first", head, lines)


def _weights(page: Page, run: RunData) -> Markup:
    """Return how unequal the weights of the clients are."""
    _, weights = run.participation
    gini = run.summary["gini_of_client_weights"]
    tenth = -(-len(weights) // 10)  # rounded up
    top = np.sort(weights)[::-1][:tenth].sum() / max(weights.sum(), 1e-300)
    says = f"Gini coefficient {gini:.3f}; the tenth of the clients with the largest weights has {percent(top)} of them."
    option = charts.lorenz(weights)
    points = option["series"][0]["data"]
    step = -(-len(points) // MOST_ROWS)
    head = ["share of the clients", "share of the weights"]
    rows = []
    for share, of_weights in points[::step]:
        rows.append([percent(share), percent(of_weights)])
    numbers = table("Lorenz curve", head, rows)
    return page.chart("lorenz", "Weights of the clients (Lorenz curve)", option, says, numbers)


def _participation(page: Page, run: RunData) -> Markup:
    """Return in how many rounds the clients trained."""
    trained, _ = run.participation
    option, rows = charts.histogram(trained, "rounds in which a client trained")
    never = int((trained == 0).sum())
    mean = 0.0
    if never < len(trained):
        mean = float(trained[trained > 0].mean())
    says = f"{never:,} of {len(trained):,} clients never trained; the others did in {mean:.3g} rounds on average."
    numbers = table("Clients by rounds", ["rounds", "clients"], rows)
    return page.chart("participation", "Participation", option, says, numbers)
