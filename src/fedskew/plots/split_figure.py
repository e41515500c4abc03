"""The figure of a split: classes by client, the feature in which clients differ most, the heterogeneity table."""

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fedskew.core.streams import Floats, Ints
from fedskew.data.federation import Federation
from fedskew.heterogeneity.result import Heterogeneity, Spread
from fedskew.plots.drawing import OKABE_ITO, all_shortened, as_written, shortened
from fedskew.plots.findings_figure import draw_aucs, draw_effects

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_BUBBLES = 20  # clients, and classes, up to which bubbles can be distinguished
_MOST_CLIENTS = 250  # rows of a heat map; above that, clients at even steps
_BINS = 30
_TAIL = 0.01  # share of the rows at each end of a feature that the first and the last bin take in
_VALUES_DRAWN = 2_000_000
_SHARE = "share of the client's rows"
_VIEW_NAMES = {
    "labels": "labels",
    "features": "features",
    "features given label": "features | label",
    "labels given features": "labels | features",
}


@as_written
def draw_split(fed: Federation, found: Heterogeneity, title: str, ending: str = "png") -> bytes:
    """Draw the client x class matrix, the density of the most skewed feature by client, and the heterogeneity table.

    With findings about single clients also their effect sizes and the classifier two-sample test.
    """
    width = 13.0
    columns = [1.15, 1]
    if found.findings is not None:
        width = 18.5
        columns.append(1.15)
    figure = _figure(width, 7.2)
    grid = figure.add_gridspec(2, len(columns), width_ratios=columns, height_ratios=(1.25, 1))
    matrix = figure.add_subplot(grid[:, 0])
    density = figure.add_subplot(grid[0, 1])
    table = figure.add_subplot(grid[1, 1])
    if fed.clients <= _MOST_BUBBLES and len(fed.label_columns.names) <= _MOST_BUBBLES:
        _draw_bubbles(matrix, fed)
    else:
        _draw_heat_map(matrix, fed)
    _draw_density(density, fed, found.most_skewed_feature)
    _draw_table(table, found)
    if found.findings is not None:
        draw_effects(figure.add_subplot(grid[0, 2]), found.findings)
        draw_aucs(figure.add_subplot(grid[1, 2]), found.findings)
    figure.suptitle(shortened(title, 150), fontsize=10)
    return _content(figure, ending)


@as_written
def draw_sweep(
    feds: Mapping[str, Federation],
    found: Mapping[str, Heterogeneity],
    title: str,
    ending: str = "png",
) -> bytes:
    """Draw a page of client x class matrices, one per partition, as in Fig. 3 of the FedPBS paper."""
    columns = min(len(feds), 4)
    lines = -(-len(feds) // columns)
    figure = _figure(3.3 * columns + 0.8, 3.4 * lines + 0.5)
    all_axes: Any = figure.subplots(lines, columns, squeeze=False)
    image: Any = None
    for axes, (name, fed) in zip(all_axes.flat, feds.items(), strict=False):
        image = _heat(axes, _shares(fed, _some_clients(fed)), 1.0)
        view = "features"
        if "labels" in found[name].views:
            view = "labels"
        distance = found[name].views[view]["hellinger"].mean
        axes.set_title(f"{name}\nHellinger of {view} {distance:.2f}", fontsize=9)
        axes.set_xlabel(fed.label_columns.title, fontsize=8)
        _name_clients(axes, fed, 8)
        axes.tick_params(labelsize=7)
        axes.locator_params(axis="x", integer=True)
    for axes in all_axes.flat[len(feds) :]:
        axes.set_visible(False)
    figure.colorbar(image, ax=all_axes, label=_SHARE, shrink=0.8)
    figure.suptitle(shortened(title, 120), fontsize=10)
    return _content(figure, ending)


def _figure(width: float, height: float) -> "Figure":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", dpi=110)
    FigureCanvasAgg(figure)
    return figure


def _content(figure: "Figure", ending: str) -> bytes:
    """Return the figure as a file without a date in it, so that the same split gives the same bytes."""
    from matplotlib import rc_context

    content = io.BytesIO()
    metadata = {"Date": None}
    if ending == "png":
        metadata = {"Software": None}
    with rc_context({"svg.hashsalt": "fedskew"}):
        figure.savefig(content, format=ending, metadata=metadata)
    return content.getvalue()


# -- classes by client -------------------------------------------------------------------------------------------------


def _some_clients(fed: Federation) -> Ints:
    if fed.clients <= _MOST_CLIENTS:
        return np.arange(fed.clients)
    return np.unique(np.linspace(0, fed.clients - 1, _MOST_CLIENTS).astype(np.int64))


def _shares(fed: Federation, clients: Ints) -> Floats:
    """Share of each class among the rows of each of these clients."""
    shares: Floats = (
        fed.label_columns.counts(fed.partition, clients) / fed.partition.sizes[clients][:, None]
    )
    return shares


def _heat(
    axes: "Axes",
    shares: Floats,
    most: float,
    extent: tuple[float, float, float, float] | None = None,
) -> Any:
    """Draw shares as colours; the colour scale is the square root, so that small shares are visible."""
    from matplotlib.colors import PowerNorm

    norm = PowerNorm(0.5, vmin=0, vmax=most)
    return axes.imshow(
        shares, aspect="auto", cmap="Blues", norm=norm, interpolation="nearest", extent=extent
    )


def _name_clients(axes: "Axes", fed: Federation, most: int = 12) -> None:
    """Label the rows of a heat map with client numbers, and with the number of omitted clients, if any."""
    clients = _some_clients(fed)
    shown = np.unique(np.linspace(0, len(clients) - 1, min(most, len(clients))).astype(np.int64))
    called = [_called(fed, client) for client in clients[shown].tolist()]
    axes.set_yticks(shown, called, fontsize=8)
    if len(clients) == fed.clients:
        axes.set_ylabel("client")
    else:
        axes.set_ylabel(f"client ({len(clients)} of {fed.clients:,})")


def _called(fed: Federation, client: int) -> str:
    if fed.named:
        return shortened(fed.client_names[client], 16)
    return f"{client:,}"


def _draw_heat_map(axes: "Axes", fed: Federation) -> None:
    """Draw a heat map with one row per client and one column per class, for numbers too large for discs."""
    shares = _shares(fed, _some_clients(fed))
    image = _heat(axes, shares, float(shares.max()))
    axes.figure.colorbar(image, ax=axes, label=_SHARE, shrink=0.9)
    _name_clients(axes, fed)
    if len(fed.label_columns.names) <= _MOST_BUBBLES:
        _name_classes(axes, fed)
    title = fed.label_columns.title
    axes.set_xlabel(title)
    if title == "class":
        axes.set_title("classes of each client", fontsize=9)
    else:
        axes.set_title(f"rows of each client by {title}", fontsize=9)


def _name_classes(axes: "Axes", fed: Federation) -> None:
    names = all_shortened(fed.label_columns.names, 12)
    rotation, aligned = 0, "center"
    if sum(map(len, names)) > 60:
        rotation, aligned = 60, "right"
    axes.set_xticks(range(len(names)), names, rotation=rotation, ha=aligned, fontsize=8)


def _draw_bubbles(axes: "Axes", fed: Federation) -> None:
    """Draw a disc for every class of a client, with an area in proportion to its rows."""
    classes = len(fed.label_columns.names)
    title = fed.label_columns.title
    counts = fed.label_columns.counts(fed.partition, np.arange(fed.clients))
    client, label = np.nonzero(counts)
    held = counts[client, label]
    cell = 72 * min(6.6 / classes, 5.6 / fed.clients)  # points
    axes.scatter(
        label,
        client,
        s=(0.86 * cell) ** 2 * held / held.max(),
        color=OKABE_ITO[0],
        alpha=0.85,
        linewidths=0,
    )
    axes.set_xlim(-0.6, classes - 0.4)
    axes.set_ylim(fed.clients - 0.4, -0.6)
    _name_classes(axes, fed)
    rows = fed.partition.sizes
    called = []
    for number in range(fed.clients):
        called.append(f"{_called(fed, number)}  ({rows[number]:,})")
    axes.set_yticks(range(fed.clients), called, fontsize=8)
    axes.set_xlabel(title)
    axes.set_ylabel("client (rows)")
    axes.set_title(
        f"rows by client and {title}; the largest disc is {held.max():,} rows", fontsize=9
    )
    axes.grid(alpha=0.2)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


# -- the most skewed feature -------------------------------------------------------------------------------------------


def _draw_density(axes: "Axes", fed: Federation, feature: int | None) -> None:
    """Draw the distribution of the feature at each client: lines for few clients, a heat map for many."""
    if feature is None:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "no feature varies", ha="center", va="center", color="#555555")
        return
    edges = _edges(fed, feature)
    clients = _some_clients(fed)
    shares = np.stack([_histogram(fed, feature, int(client), edges) for client in clients])
    if fed.clients <= len(OKABE_ITO):
        for client, share in enumerate(shares):
            label = f"client {client}"
            if fed.named:
                label = _called(fed, client)
            axes.stairs(share, edges, color=OKABE_ITO[client], label=label, linewidth=1.6)
            axes.stairs(share, edges, color=OKABE_ITO[client], fill=True, alpha=0.15)
        axes.legend(frameon=False, fontsize=8)
        axes.set_ylabel(_SHARE)
        axes.spines[["top", "right"]].set_visible(False)
    else:
        extent = (float(edges[0]), float(edges[-1]), len(clients) - 0.5, -0.5)
        image = _heat(axes, shares, float(shares.max()), extent)
        axes.figure.colorbar(image, ax=axes, label=_SHARE, shrink=0.9)
        _name_clients(axes, fed, 6)
    axes.set_title("the feature in which clients differ most", fontsize=9)
    axes.set_xlabel(f"{_feature_name(fed, feature)} (outer bins: and beyond)", fontsize=9)


def _values(fed: Federation, feature: int, rows: Ints) -> Floats:
    step = max(len(rows) // _VALUES_DRAWN, 1)
    x = fed.train.x[rows[::step]]
    values: Floats = x.reshape(len(x), -1)[:, feature].astype(np.float64)
    return values


def _edges(fed: Federation, feature: int) -> Floats:
    """Return bins between the 1 % and 99 % quantiles of all rows, or between the extremes if these are equal."""
    values = _values(fed, feature, fed.partition.rows)
    low, high = np.quantile(values, [_TAIL, 1 - _TAIL])
    if low == high:
        low = values.min()
        high = values.max()
    return np.linspace(low, high, _BINS + 1)


def _histogram(fed: Federation, feature: int, client: int, edges: Floats) -> Floats:
    values = np.clip(_values(fed, feature, fed.partition.of(client)), edges[0], edges[-1])
    shares: Floats = np.histogram(values, edges)[0] / len(values)
    return shares


def _feature_name(fed: Federation, feature: int) -> str:
    if len(fed.data.shape) == 1 and feature < len(fed.data.features):
        return shortened(fed.data.features[feature], 60)
    place = ", ".join(map(str, np.unravel_index(feature, fed.data.shape)))
    if len(fed.data.shape) > 1:
        return f"feature ({place})"
    return f"feature {feature}"


# -- the table -------------------------------------------------------------------------------------------------------


def _draw_table(axes: "Axes", found: Heterogeneity) -> None:
    """Draw the table of mean and worst distances of two clients."""
    axes.set_axis_off()
    names = list(next(iter(found.views.values())))
    rows = []
    cells = []
    for view, spreads in found.views.items():
        rows.append(_VIEW_NAMES[view])
        cells.append([_distances(spreads[name]) for name in names])
    place: Any = (0.0, 0.2, 1.0, 0.72)  # the stubs want a Bbox, the documentation four numbers
    table = axes.table(cells, rowLabels=rows, colLabels=names, cellLoc="center", bbox=place)
    table.auto_set_font_size(False)
    table.set_fontsize(8)
    for cell in table.get_celld().values():
        cell.set_edgecolor("#cccccc")
    axes.set_title("distance of two clients: mean, below it worst / mean by chance", fontsize=9)
    sizes, entropy = found.sizes, found.label_entropy
    note = f"rows per client {sizes['least']:,.0f} … {sizes['most']:,.0f}, Gini {sizes['gini']:.3f}"
    if entropy:
        note += f";  label entropy {entropy['least']:.2f} … {entropy['most']:.2f}, mean {entropy['mean']:.2f}"
    axes.text(0.5, 0.08, note, ha="center", va="center", fontsize=8, transform=axes.transAxes)


def _distances(spread: Spread) -> str:
    """Return the mean distance, below it the worst and what chance makes."""
    by_chance = "–"
    if spread.by_chance is not None:
        by_chance = f"{spread.by_chance:.3f}"
    return f"{spread.mean:.3f}\n{spread.worst:.3f} / {by_chance}"
