"""Per-layer mu on digits: within clusters, with coefficients chosen per layer, and which layers should be personal."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from scipy.stats import spearmanr

import fedskew as fs
from benchmarks.paired import half_width, interval, verdict
from fedskew.algorithms.contract import Cohort
from fedskew.algorithms.initial_weights import InitialWeights
from fedskew.core.streams import Floats, Ints
from fedskew.core.trees import Tensors, Tree
from fedskew.models.layout import Layout
from fedskew.plots.drawing import OKABE_ITO

SEEDS = range(10)
TUNED_ON = range(10, 13)
MU = 0.1
MUS = (0.0, 0.01, 0.1, 1.0)
MODEL = "mlp:hidden=64+48+32"
LAYERS = ("features.1", "features.3", "features.5", "head")
CLIENTS = 20
SETTINGS = {
    "rounds": 30,
    "epochs": 5,
    "lr": 0.1,
    "threads": 1,
    "device": "cpu",
    "folder": False,
    "eval_every": 30,
}
CLUSTERED = "dirichlet:alpha=0.5 + relabel:fraction=1,permutations=4"
LEVELS = ("0.05", "0.1", "0.3", "1", "10")
OTHER_SKEWS = (
    "iid + noise:sigma=1",
    "dirichlet:alpha=1 + noise:sigma=1",
    "iid + relabel:fraction=0.5",
    CLUSTERED,
)
PICTURE = Path(__file__).parent.parent / "docs" / "images" / "layer-drift.svg"


@dataclass(frozen=True)
class FixedMu(fs.FedProxLayers):
    """A coefficient for each layer that stays as it is."""

    mus: tuple[float, ...] = (MU,) * len(LAYERS)
    adapt: float = 0.0

    def init_server_state(self, weights: Tensors) -> Tree:
        """Return the coefficient of every tensor's layer."""
        state = super().init_server_state(weights)
        for layer, mu in zip(LAYERS, self.mus, strict=True):
            for name, weight in weights.items():
                if name.startswith(layer):
                    state["mu"][name] = weight.new_full((), mu)
        return state


@dataclass(frozen=True)
class Personal(fs.FedAvg):
    """FedAvg with one layer that stays with each client."""

    layer: str = "head"

    def local_names(self, layout: Layout) -> frozenset[str]:
        """Return the tensors of the layer."""
        return frozenset(name for name in layout.parameters if name.startswith(self.layer))


@dataclass(frozen=True)
class Spread(fs.FedAvg):
    """FedAvg that records how far clients' updates of each layer lie from their mean, over the layer's own norm."""

    requires = frozenset({"single_updates"})

    def init_server_state(self, weights: InitialWeights) -> Tree:
        """Return a sum of zero for every layer."""
        return {"spread": {layer: torch.zeros(()) for layer in LAYERS}}

    def server_update(
        self, weights: Tensors, server_state: Tree, mean: Tree, cohort: Cohort
    ) -> tuple[Tensors, Tree]:
        """Return FedAvg's weights, and the spreads of this round."""
        moved, _ = super().server_update(weights, server_state, mean, cohort)
        spread = {}
        for layer in LAYERS:
            square = torch.zeros(())
            norm = torch.zeros(())
            for name, updates in cohort.updates["delta"].items():
                if name.startswith(layer):
                    square += (updates - updates.mean(0)).square().sum() / len(updates)
                    norm += weights[name].square().sum()
            spread[layer] = (square / norm).sqrt()
        return moved, {"spread": spread}

    def metrics(self, server_state: Tree) -> dict[str, float]:
        """Return the spread of every layer."""
        found = {}
        for layer, value in server_state["spread"].items():
            found[f"spread_{layer}"] = float(value)
        return found


def main() -> None:
    """Print the three tables of docs/choosing.md, and draw the figure."""
    data = fs.load("digits", validation=0.2)
    _print_clusters(data)
    _print_chosen(data)
    _print_personal(data)


def _print_clusters(data: fs.Dataset) -> None:
    """Print the own accuracy of methods within the clusters that IFCA finds."""
    methods = {
        "FedAvg": fs.FedAvg(),
        "FedProx": fs.FedProx(mu=MU),
        "per layer": fs.FedProxLayers(mu=MU),
    }
    scores: dict[str, list[float]] = {"one model for all": [], "IFCA": []}
    for title in methods:
        scores[f"within its clusters, {title}"] = []
    for seed in SEEDS:
        fed = fs.split(data, CLUSTERED, clients=CLIENTS, client_test=0.2, seed=seed)
        scores["one model for all"].append(_own(fed, fs.FedAvg(), seed))
        method = fs.algorithms.IFCA(models=4, start="updates")
        run = fs.train(fed, MODEL, method, seed=seed, **SETTINGS)
        scores["IFCA"].append(100 * run.summary["client_accuracy_mean"])
        last = run.clients[run.clients["round"] == SETTINGS["rounds"]]
        clusters = last.sort_values("client")["chosen_model"].to_numpy()
        for title, each in methods.items():
            scores[f"within its clusters, {title}"].append(_within(fed, clusters, each, seed))
    print("| method | own accuracy, % | less FedAvg within the clusters |")
    print("|---|---|---|")
    reference = np.array(scores["within its clusters, FedAvg"])
    for title, found in scores.items():
        difference = np.array(found) - reference
        said = ""
        if difference.any():
            said = f"{interval(difference)}: {verdict(difference)}"
        print(f"| {title} | {interval(np.array(found))} | {said} |", flush=True)
    print(flush=True)


def _own(fed: fs.Federation, method: fs.Algorithm, seed: int) -> float:
    """Return the mean accuracy of the models that clients use, on rows of their own."""
    run = fs.train(fed, MODEL, method, seed=seed, **SETTINGS)
    return 100 * float(run.summary["client_accuracy_mean"])


def _within(fed: fs.Federation, clusters: Ints, method: fs.Algorithm, seed: int) -> float:
    """Return the mean own accuracy over all clients, each cluster trained apart."""
    scores: list[float] = []
    for cluster in np.unique(clusters):
        members = np.flatnonzero(clusters == cluster)
        alone = fs.Federation(
            fed.data, fed.partition.only(members), fed.held_out.only(members), treated=fed.treated
        )
        run = fs.train(alone, MODEL, method, seed=seed, **SETTINGS)
        scores += run.final_clients["accuracy"].tolist()
    return 100 * float(np.mean(scores))


def _print_chosen(data: fs.Dataset) -> None:
    """Print what coefficients chosen layer by layer on validation rows come to."""
    print(
        "| Dirichlet | FedAvg | one mu, chosen | per layer, adaptive | mu of each layer, chosen | which | less one mu |"
    )
    print("|---|---|---|---|---|---|---|")
    for alpha in ("0.05", "0.3"):
        one, each = _chosen_mus(data, alpha)
        adaptive = max(MUS[1:], key=lambda mu: _validated(data, alpha, fs.FedProxLayers(mu=mu)))
        methods = (
            fs.FedAvg(),
            FixedMu(mus=(one,) * len(LAYERS)),
            fs.FedProxLayers(mu=adaptive),
            FixedMu(mus=each),
        )
        found = []
        for method in methods:
            found.append([_scored(data, alpha, method, seed, "test") for seed in SEEDS])
        table = np.array(found)
        cells = [interval(values) for values in table]
        difference = table[3] - table[1]
        said = f"{interval(difference)}: {verdict(difference)}"
        which = ", ".join(f"{mu:g}" for mu in each)
        cells[1] += f" ({one:g})"
        cells[2] += f" ({adaptive:g})"
        print(f"| {alpha} | {' | '.join(cells)} | {which} | {said} |", flush=True)
    print(flush=True)


def _chosen_mus(data: fs.Dataset, alpha: str) -> tuple[float, tuple[float, ...]]:
    """Return the best mu for all layers, and those that are best layer after layer from there."""
    one = max(MUS, key=lambda mu: _validated(data, alpha, FixedMu(mus=(mu,) * len(LAYERS))))
    each = [one] * len(LAYERS)
    for layer in range(len(LAYERS)):
        tried = {}
        for mu in MUS:
            each[layer] = mu
            tried[mu] = _validated(data, alpha, FixedMu(mus=tuple(each)))
        each[layer] = max(tried, key=lambda mu: tried[mu])
    return one, tuple(each)


def _validated(data: fs.Dataset, alpha: str, method: fs.Algorithm) -> float:
    return float(np.mean([_scored(data, alpha, method, seed, "validation") for seed in TUNED_ON]))


def _scored(data: fs.Dataset, alpha: str, method: fs.Algorithm, seed: int, rows: str) -> float:
    """Return the last accuracy of the shared model, in %."""
    fed = fs.split(data, f"dirichlet:alpha={alpha}", clients=CLIENTS, seed=seed)
    run = fs.train(fed, MODEL, method, seed=seed, **SETTINGS)
    return 100 * float(run.summary[f"{rows}_accuracy_last"])


def _print_personal(data: fs.Dataset) -> None:
    """Print the drift of each layer and what it gains to keep that layer with the clients; draw the drifts."""
    heads = " | ".join(f"`{layer}`: spread; gain" for layer in LAYERS)
    print(f"| clients | {heads} |")
    print("|" + "---|" * (len(LAYERS) + 1))
    drifts = {}
    spreads = {}
    gains = {}
    skews = [f"dirichlet:alpha={alpha}" for alpha in LEVELS]
    for skew in (*skews, *OTHER_SKEWS):
        drifts[skew], spreads[skew], gains[skew] = _layers(data, skew)
        cells = []
        for spread, gain in zip(spreads[skew].T, gains[skew].T, strict=True):
            cells.append(f"{spread.mean():.2f}; {interval(gain)}")
        print(f"| `{skew}` | {' | '.join(cells)} |", flush=True)
    mean_gains = np.concatenate([found.mean(0) for found in gains.values()])
    for title, measured in (("drift of the mean", drifts), ("spread of the clients", spreads)):
        values = np.concatenate([found.mean(0) for found in measured.values()])
        within = [spearmanr(measured[skew].mean(0), gains[skew].mean(0))[0] for skew in gains]
        print(
            f"{title}: rank correlation with the gain over all layers and clients "
            f"{spearmanr(values, mean_gains)[0]:.2f}; over the layers of one line, mean {np.mean(within):.2f}"
        )
    figure = Figure(figsize=(9.6, 3.6), layout="constrained")
    FigureCanvasSVG(figure)
    left, right = figure.subplots(1, 2)
    _draw(left, [drifts[skew] for skew in skews], "move of the layer's mean update, a round")
    _draw(
        right,
        [spreads[skew] for skew in skews],
        "spread of the clients' updates, over the layer's norm",
    )
    right.legend(fontsize=9)
    with rc_context({"svg.hashsalt": "fedskew", "svg.fonttype": "path"}):
        figure.savefig(PICTURE, metadata={"Date": None})


def _layers(data: fs.Dataset, skew: str) -> tuple[Floats, Floats, Floats]:
    """Return drift, spread and gain of each layer, a line per seed."""
    drifts = []
    spreads = []
    gains = []
    for seed in SEEDS:
        fed = fs.split(data, skew, clients=CLIENTS, client_test=0.2, seed=seed)
        run = fs.train(fed, MODEL, fs.FedProxLayers(mu=0, group="module"), seed=seed, **SETTINGS)
        drifts.append(run.rounds.filter(like="drift_").to_numpy()[10:].mean(0))
        run = fs.train(fed, MODEL, Spread(), seed=seed, **SETTINGS)
        spreads.append(run.rounds.filter(like="spread_").to_numpy()[10:].mean(0))
        shared = 100 * float(run.summary["client_accuracy_mean"])
        gains.append([_own(fed, Personal(layer=layer), seed) - shared for layer in LAYERS])
    return np.array(drifts), np.array(spreads), np.array(gains)


def _draw(axes: Axes, levels: Sequence[Floats], title: str) -> None:
    """Draw one line per layer over the levels of heterogeneity, with intervals."""
    places = [float(alpha) for alpha in LEVELS]
    for number, layer in enumerate(LAYERS):
        means = [values[:, number].mean() for values in levels]
        halves = [half_width(values[:, number]) for values in levels]
        axes.errorbar(
            places,
            means,
            halves,
            label=layer,
            color=OKABE_ITO[number],
            marker="osD^"[number],
            capsize=2,
        )
    axes.set_xscale("log")
    axes.set_xlabel("Dirichlet alpha (smaller is more heterogeneous)")
    axes.set_ylim(0)
    axes.set_title(title, fontsize=10)
