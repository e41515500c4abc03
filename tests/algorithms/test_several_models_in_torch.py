"""Methods with several models, or none on a server, against plain PyTorch, with momentum and a client of one row."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from fedskew.algorithms import DPSGD, Gossip, Stream
from fedskew.algorithms.contract import resolve
from fedskew.core.config import Settings
from fedskew.data.dataset import Dataset, Rows
from fedskew.data.federation import Federation
from fedskew.data.partition import Partition
from fedskew.engine.loop import Loop
from fedskew.engine.plan import Plan
from fedskew.engine.stacked import Stacked
from fedskew.models.build import build
from fedskew.models.network import Network
from fedskew.server.scorer import RoundResult
from fedskew.server.server import Server

FEATURES, WIDTH, CLASSES = 5, 4, 3
SIZES = np.array([11, 5, 1, 8, 4, 7])  # client 2 has a single row, client 3 a single class
CLIENTS = range(len(SIZES))
MODEL = 8 * (FEATURES * WIDTH + WIDTH + WIDTH * CLASSES + CLASSES)  # bytes
HEAD = 8 * (WIDTH * CLASSES + CLASSES)
NUMBER = 8

Model = dict[str, Tensor]

ENGINES = pytest.mark.parametrize(
    "engine", [Loop(), Stacked(mode="stack")], ids=["loop", "stacked"]
)
SETTINGS = pytest.mark.parametrize(
    "settings",
    [
        {},
        {"per_round": 3, "rounds": 7},
        {"weights": "uniform", "momentum": 0.5, "weight_decay": 0.01, "epochs": 3},
    ],
    ids=["all", "some", "momentum"],
)


@dataclass
class Study:
    """Rows, clients, and local training in plain PyTorch."""

    x: np.ndarray
    y: np.ndarray
    held: list[np.ndarray]

    def module(self) -> nn.Module:
        def make(shape: tuple[int, ...], classes: int) -> nn.Module:
            return Network(nn.Sequential(nn.Linear(shape[0], WIDTH), nn.Tanh()), WIDTH, classes)

        return build(make, (FEATURES,), CLASSES, seed=0)

    def start(self) -> Model:
        weights = {}
        for name, value in self.module().named_parameters():
            weights[name] = value.detach().double().clone()
        return weights

    def server(self, method: str, engine: Any, settings: dict[str, Any]) -> Server:
        usual = {"rounds": 5, "epochs": 2, "batch_size": 4, "lr": 0.3, "dtype": "float64"}
        chosen = Settings(**{**usual, "device": "cpu", "threads": 1, **settings})
        rows = Rows(self.x, self.y)
        fed = Federation(
            Dataset("made up", rows, rows, ("a", "b", "c")), Partition.from_lists(self.held)
        )
        return Server(fed, self.module(), resolve(method), chosen, engine)

    def rows(self, client: int) -> tuple[Tensor, Tensor]:
        held = self.held[client]
        return torch.from_numpy(self.x[held]).double(), torch.from_numpy(self.y[held])

    def features(self, w: Model, x: Tensor) -> Tensor:
        return torch.tanh(x @ w["features.0.weight"].T + w["features.0.bias"])

    def logits(self, w: Model, x: Tensor) -> Tensor:
        return self.features(w, x) @ w["head.weight"].T + w["head.bias"]

    def loss(self, w: Model, client: int) -> float:
        x, y = self.rows(client)
        return float(cross_entropy(self.logits(w, x), y))

    def best(self, models: list[Model], client: int) -> int:
        return int(np.argmin([self.loss(model, client) for model in models]))

    def train(
        self,
        w: Model,
        round: int,
        client: int,
        settings: Settings,
        term: Callable[[Model, Tensor, Tensor], Tensor] | None = None,
        trained: Callable[[int], list[str]] | None = None,
    ) -> Model:
        """Return the weights after a client's local steps; ``term`` is added to its loss.

        ``trained`` says which weights are trained in an epoch.
        """
        w = {name: value.clone().requires_grad_(True) for name, value in w.items()}
        optimizer = torch.optim.SGD(
            w.values(),
            lr=settings.lr,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
        )
        one = np.array([client])
        batch = np.minimum(settings.batch_size, SIZES[one])
        plan = Plan(settings.seed, round, one, SIZES[one], batch, np.array([settings.epochs]))
        positions, counts = plan.table()
        x, y = self.rows(client)
        for step, count in enumerate(counts[:, 0]):
            chosen = torch.from_numpy(positions[step, 0, :count])
            loss = cross_entropy(self.logits(w, x[chosen]), y[chosen])
            if term is not None:
                loss = loss + term(w, x[chosen], y[chosen])
            optimizer.zero_grad()
            loss.backward()
            if trained is not None:
                for name in w.keys() - set(trained(step // int(plan.steps_per_epoch[0]))):
                    w[name].grad = None
            optimizer.step()
        return {name: value.detach() for name, value in w.items()}


@pytest.fixture(scope="module")
def study() -> Study:
    draw = np.random.default_rng(1)
    x = draw.normal(size=(SIZES.sum(), FEATURES)).astype(np.float32)
    y = draw.integers(0, CLASSES, SIZES.sum())
    held = np.split(np.arange(SIZES.sum()), np.cumsum(SIZES)[:-1])
    y[held[3]] = 2
    return Study(x, y, held)


def apart(one: Model, other: Model) -> Model:
    return {name: one[name] - other[name] for name in one}


def flat(w: Model) -> Tensor:
    return torch.cat([w[name].flatten() for name in sorted(w)])


def mixed(models: list[Model], shares: list[float]) -> Model:
    result = {}
    for name in models[0]:
        pairs = zip(models, shares, strict=True)
        result[name] = sum(share * model[name] for model, share in pairs)
    return result


def mean(models: list[Model], counts: list[float]) -> Model:
    return mixed(models, [count / sum(counts) for count in counts])


def moved(w: Model, change: Model) -> Model:
    return {name: w[name] + change[name] for name in w}


def counts_of(clients: list[int], settings: Settings) -> list[float]:
    if settings.weights == "uniform":
        return [1.0 for _ in clients]
    return [float(SIZES[client]) for client in clients]


def trained_in(result: RoundResult) -> list[int]:
    return [line["client"] for line in result.clients if not line["dropped"]]


def assert_in_use(server: Server, expected: list[Model], within: float = 1e-12) -> None:
    for client, model in enumerate(expected):
        found = server.client_model(client)
        for name, value in model.items():
            np.testing.assert_allclose(found[name].numpy(), value.numpy(), rtol=0, atol=within)


# -- IFCA ------------------------------------------------------------------------------------------


def models_of(server: Server) -> list[Model]:
    """Return the models that the server has."""
    first = {name: value.clone() for name, value in server.state.params.items()}
    models = [first]
    others = server.state.server_state["candidates"]
    for number in range(len(next(iter(others.values())))):
        models.append({**first, **{name: value[number] for name, value in others.items()}})
    return models


def ifca_round(
    study: Study, models: list[Model], round: int, clients: list[int], settings: Settings, part: str
) -> list[Model]:
    counts = dict(zip(clients, counts_of(clients, settings), strict=True))
    chosen = {client: study.best(models, client) for client in clients}
    changes = {}
    for client in clients:
        begin = models[chosen[client]]
        changes[client] = apart(study.train(begin, round, client, settings), begin)
    everybody = mean([changes[client] for client in clients], list(counts.values()))
    result = []
    for number, model in enumerate(models):
        own = [client for client in clients if chosen[client] == number]
        change = {name: torch.zeros_like(value) for name, value in model.items()}
        if own:
            change = mean([changes[client] for client in own], [counts[client] for client in own])
        if part == "head":
            for name in change:
                if not name.startswith("head"):
                    change[name] = everybody[name]
        result.append(moved(model, change))
    return result


@ENGINES
@SETTINGS
@pytest.mark.parametrize("part", ["all", "head"])
def test_ifca(study: Study, engine: Any, settings: dict, part: str) -> None:
    server = study.server(f"ifca:models=3,part={part}", engine, settings)
    models = models_of(server)
    for round in range(server.settings.rounds):
        result = server.advance()
        clients = trained_in(result)
        chosen = [study.best(models, client) for client in clients]
        assert [line["chosen_model"] for line in result.clients] == chosen
        models = ifca_round(study, models, round, clients, server.settings, part)
    assert_in_use(server, [models[study.best(models, client)] for client in CLIENTS])
    several = {"all": MODEL, "head": HEAD}[part]
    assert result.round["bytes_down"] == len(clients) * (MODEL + 2 * several)
    assert result.round["bytes_up"] == len(clients) * (MODEL + 3 * NUMBER)


def partition_that_made(
    models: list[Model], start: Model, changes: dict[int, Model], counts: dict[int, float]
) -> list[list[int]]:
    """Return the clusters of clients whose mean updates lead from the start to these models."""
    clients = sorted(changes)
    for labels in product(range(len(models)), repeat=len(clients)):
        if len(set(labels)) < len(models):
            continue
        groups = [[] for _ in models]
        for client, label in zip(clients, labels, strict=True):
            groups[label].append(client)
        far = 0.0
        for group, model in zip(groups, models, strict=True):
            change = mean([changes[client] for client in group], [counts[c] for c in group])
            far = max(far, float(flat(apart(moved(start, change), model)).abs().max()))
        if far < 1e-12:
            return groups
    raise AssertionError("no clusters of clients make these models")


@ENGINES
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_ifca_from_the_first_updates(study: Study, engine: Any, count: int, weights: str) -> None:
    method = f"ifca:models={count},start=updates"
    server = study.server(method, engine, {"weights": weights, "momentum": 0.5})
    start = study.start()
    clients = trained_in(server.advance())
    counts = dict(zip(clients, counts_of(clients, server.settings), strict=True))
    changes = {}
    for client in clients:
        changes[client] = apart(study.train(start, 0, client, server.settings), start)
    models = models_of(server)
    groups = partition_that_made(models, start, changes, counts)
    # Every update is nearest to the mean direction of its own cluster
    unit = {client: flat(change) / flat(change).norm() for client, change in changes.items()}
    centres = [sum(unit[client] for client in group) for group in groups]
    for number, group in enumerate(groups):
        for client in group:
            cosines = [float(unit[client] @ centre / centre.norm()) for centre in centres]
            assert int(np.argmax(cosines)) == number
    for round in range(1, server.settings.rounds):
        clients = trained_in(server.advance())
        models = ifca_round(study, models, round, clients, server.settings, "all")
    assert_in_use(server, [models[study.best(models, client)] for client in CLIENTS])


@ENGINES
@pytest.mark.parametrize("part", ["all", "head"])
def test_ifca_is_fedavg_until_a_round_has_enough_updates(
    study: Study, engine: Any, part: str
) -> None:
    method = f"ifca:models=6,start=updates,part={part}"
    server = study.server(method, engine, {"fleet": "uniform:dropout=0.6", "rounds": 4})
    model = study.start()
    for round in range(4):
        result = server.advance()
        clients = trained_in(result)
        assert 0 < len(clients) < 6
        ended = [study.train(model, round, client, server.settings) for client in clients]
        model = mean(ended, counts_of(clients, server.settings))
        assert_in_use(server, [model for _ in CLIENTS])


# -- CFL -------------------------------------------------------------------------------------------


def halves(changes: dict[int, Model]) -> tuple[list[int], list[int]]:
    """Return the two halves between which the largest cosine is the least, of all that there are."""
    clients = sorted(changes)
    unit = [flat(changes[client]) / flat(changes[client]).norm() for client in clients]
    best: tuple[float, list[int], list[int]] | None = None
    for size in range(1, len(clients)):
        for one in combinations(range(len(clients)), size):
            other = [place for place in range(len(clients)) if place not in one]
            largest = max(float(unit[i] @ unit[j]) for i in one for j in other)
            if best is None or largest < best[0]:
                best = (largest, [clients[i] for i in one], [clients[j] for j in other])
    assert best is not None
    return best[1], best[2]


@ENGINES
@pytest.mark.parametrize(
    ("eps1", "eps2", "wait", "settings", "clusters"),
    [
        (0.8, 0.5, 2, {"rounds": 7}, 3),
        (0.9, 0.1, 0, {"rounds": 6}, 5),
        (0.8, 0.5, 1, {"rounds": 7, "weights": "uniform", "momentum": 0.5}, 5),
        (0.9, 0.1, 1, {"rounds": 6, "per_round": 4}, 1),
    ],
)
def test_cfl(
    study: Study, engine: Any, eps1: float, eps2: float, wait: int, settings: dict, clusters: int
) -> None:
    server = study.server(f"cfl:eps1={eps1},eps2={eps2},wait={wait}", engine, settings)
    # Of each cluster: its clients, its model, its longest mean update, and its rounds since the last division
    known = [(list(CLIENTS), study.start(), 0.0, 0)]
    for round in range(server.settings.rounds):
        result = server.advance()
        trained = trained_in(result)
        now = []
        for clients, model, longest, rounds in known:
            here = [client for client in clients if client in trained]
            changes = {}
            for client in here:
                changes[client] = apart(study.train(model, round, client, server.settings), model)
            change = mean(list(changes.values()), counts_of(here, server.settings))
            model = moved(model, change)
            length = float(flat(change).norm())
            longest = max(longest, length)
            farthest = max(float(flat(one).norm()) for one in changes.values())
            due = rounds >= wait and length < eps1 * longest and farthest > eps2 * longest
            if due and here == clients and len(clients) > 1:
                for half in halves(changes):
                    now.append((half, model, 0.0, 0))
            else:
                now.append((clients, model, longest, rounds + 1))
        known = now
    expected = [study.start() for _ in CLIENTS]
    for clients, model, _, _ in known:
        for client in clients:
            expected[client] = model
    assert len(known) == clusters
    assert_in_use(server, expected)
    assert result.round["bytes_down"] == result.round["bytes_up"] == len(trained) * MODEL


# -- FedAMP and FedFomo ----------------------------------------------------------------------------


@ENGINES
@SETTINGS
@pytest.mark.parametrize("similarity", ["distance", "cosine"])
@pytest.mark.parametrize(("alpha", "sigma"), [(0.5, 0.8), (1.0, 0.5), (0.2, 3.0)])
def test_fedamp(
    study: Study, engine: Any, settings: dict, similarity: str, alpha: float, sigma: float
) -> None:
    options = f"lam=0.7,alpha={alpha},sigma={sigma},own_share=0.3,similarity={similarity}"
    server = study.server(f"fedamp:{options}", engine, settings)
    models = [study.start() for _ in CLIENTS]
    known: set[int] = set()
    for round in range(server.settings.rounds):
        before = list(models)
        result = server.advance()
        trained = trained_in(result)
        for client in trained:
            shares = {}
            for other in sorted(known - {client}):
                mine, theirs = flat(before[client]), flat(before[other])
                if similarity == "distance":
                    square = float((mine - theirs).square().sum())
                    shares[other] = alpha * math.exp(-square / sigma) / sigma
                else:
                    cosine = float(mine @ theirs / (mine.norm() * theirs.norm()))
                    shares[other] = math.exp(sigma * cosine)
            total = sum(shares.values())
            scale = 1 / max(total, 1)
            if similarity == "cosine":
                scale = 0.7 / max(total, 1e-9)
            shares = {other: share * scale for other, share in shares.items()}
            shares[client] = 1 - sum(shares.values())
            mixture = mixed([before[one] for one in shares], list(shares.values()))

            def pull(w: Model, x: Tensor, y: Tensor, mixture: Model = mixture) -> Tensor:
                return 0.7 / (2 * alpha) * (flat(w) - flat(mixture)).square().sum()

            models[client] = study.train(before[client], round, client, server.settings, pull)
        known |= set(trained)
    assert_in_use(server, models)
    assert result.round["bytes_down"] == result.round["bytes_up"] == len(trained) * MODEL


@ENGINES
@SETTINGS
@pytest.mark.parametrize("mixing", ["loss", "equal"])
@pytest.mark.parametrize(("offers", "explore"), [(9, 0.3), (2, 0.0), (3, 0.7)])
def test_fedfomo(
    study: Study, engine: Any, settings: dict, mixing: str, offers: int, explore: float
) -> None:
    method = f"fedfomo:offers={offers},explore={explore},mixing={mixing}"
    server = study.server(method, engine, settings)
    models = [study.start() for _ in CLIENTS]
    sums = np.zeros((len(SIZES), len(SIZES)))
    for round in range(server.settings.rounds):
        offered = server.state.server_state["gains"]["offered"].tolist()
        for client in CLIENTS:
            rest = [other for other in CLIENTS if other not in (client, *offered[client])]
            assert client not in offered[client]
            if round and rest and not explore:
                assert sums[client, offered[client]].min() >= sums[client, rest].max() - 1e-12
        before = list(models)
        result = server.advance()
        trained = trained_in(result)
        for client in trained:
            gains = {}
            for other in offered[client]:
                far = float(flat(apart(before[other], before[client])).norm())
                better = study.loss(before[client], client) - study.loss(before[other], client)
                gains[other] = 0.0
                if far:
                    gains[other] = better / far
                sums[client, other] += gains[other]
            shares = {other: max(gain, 0.0) for other, gain in gains.items()}
            total = sum(shares.values()) or 1.0
            shares = {other: share / total for other, share in shares.items()}
            if mixing == "equal":
                shares = dict.fromkeys(gains, 1 / (len(gains) + 1))
            shares[client] = 1 - sum(shares.values())
            begin = mixed([before[one] for one in shares], list(shares.values()))
            models[client] = study.train(begin, round, client, server.settings)
    assert_in_use(server, models)
    others = len(offered[0])
    assert result.round["bytes_down"] == len(trained) * (1 + others) * MODEL
    assert result.round["bytes_up"] == len(trained) * (MODEL + others * NUMBER)


# -- FedPAC ----------------------------------------------------------------------------------------


def least(form: np.ndarray) -> np.ndarray:
    """Return the shares a with the least ``a' F a``: the best of the solutions on every set of clients."""
    count = len(form)
    best, found = np.inf, np.zeros(count)
    for size in range(1, count + 1):
        for some in map(list, combinations(range(count), size)):
            system = np.ones((size + 1, size + 1))
            system[:size, :size] = 2 * form[np.ix_(some, some)]
            system[size, size] = 0
            shares = np.linalg.lstsq(system, np.eye(size + 1)[size], rcond=None)[0][:size]
            value = shares @ form[np.ix_(some, some)] @ shares
            if shares.min() >= -1e-12 and value < best - 1e-15:
                best, found = value, np.zeros(count)
                found[some] = shares
    return found


@ENGINES
@pytest.mark.parametrize(
    "settings",
    [{}, {"epochs": 1}, {"per_round": 3, "rounds": 6}, {"weights": "uniform", "momentum": 0.5}],
)
def test_fedpac(study: Study, engine: Any, settings: dict) -> None:
    server = study.server("fedpac:lam=0.8", engine, settings)
    models = [study.start() for _ in CLIENTS]
    heads = ["head.weight", "head.bias"]
    centres, there = torch.zeros(CLASSES, WIDTH).double(), torch.zeros(CLASSES).double()

    def trained(epoch: int) -> list[str]:
        if server.settings.epochs == 1:
            return list(study.start())
        return [name for name in study.start() if (name in heads) == (epoch == 0)]

    for round in range(server.settings.rounds):

        def align(w: Model, x: Tensor, y: Tensor) -> Tensor:
            squares = (study.features(w, x) - centres[y]).square().mean(1)  # noqa: B023
            return 0.8 * (squares * there[y]).mean()  # noqa: B023

        result = server.advance()
        clients = trained_in(result)
        ended = {}
        for client in clients:
            ended[client] = study.train(
                models[client], round, client, server.settings, align, trained
            )
        sums, counts, means, variances = {}, {}, {}, {}
        for client in clients:
            x, y = study.rows(client)
            features, classes = study.features(ended[client], x), one_hot(y, CLASSES).double()
            sums[client], counts[client] = classes.T @ features, classes.sum(0)
            means[client] = sums[client] / len(y)
            spread = features.square().sum() / len(y) - means[client].square().sum()
            variances[client] = float(spread) / len(y)
        total, rows = sum(sums.values()), sum(counts.values())
        centres = torch.where(rows[:, None] > 0, total / rows.clamp(min=1)[:, None], centres)
        there = torch.where(rows > 0, 1.0, there)
        whole = mean(list(ended.values()), counts_of(clients, server.settings))
        for client in CLIENTS:
            head = {name: models[client][name] for name in heads}
            if client in clients:
                far = torch.stack([(means[client] - means[one]).flatten() for one in clients])
                form = (far @ far.T).numpy() + np.diag([variances[one] for one in clients])
                head = mixed([ended[one] for one in clients], least(form).tolist())
            models[client] = {**whole, **{name: head[name] for name in heads}}
    # Both find the least shares to about the condition of the form times the last bit, which later rounds multiply
    assert_in_use(server, models, within=2e-11)
    statistics = 8 * CLASSES * (WIDTH + 2)  # sums, counts, squares
    assert result.round["bytes_up"] == len(clients) * (MODEL + statistics)
    assert result.round["bytes_down"] == len(clients) * (MODEL + 8 * CLASSES * (WIDTH + 1))


# -- no server -------------------------------------------------------------------------------------

LINKS = {
    "ring": [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0)],
    "torus": [(0, 1), (2, 3), (4, 5), (0, 2), (2, 4), (4, 0), (1, 3), (3, 5), (5, 1)],
    "complete": list(combinations(CLIENTS, 2)),
    "file": [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (0, 3)],
}


def on_a_graph(
    study: Study, server: Server, links: Callable[[int], np.ndarray]
) -> tuple[list[Model], RoundResult]:
    """Return the clients' models after all rounds, and the last result; ``links`` are those of a round."""
    models = [study.start() for _ in CLIENTS]
    for round in range(server.settings.rounds):
        result = server.advance()
        clients = trained_in(result)
        trained = list(models)
        for client in clients:
            trained[client] = study.train(models[client], round, client, server.settings)
        here = np.isin(list(CLIENTS), clients)
        linked = links(round) & here & here[:, None]
        degrees = linked.sum(1)
        for client in CLIENTS:
            shares = np.zeros(len(SIZES))
            for other in np.flatnonzero(linked[client]):
                shares[other] = 1 / (1 + max(degrees[client], degrees[other]))
            shares[client] = 1 - shares.sum()
            models[client] = mixed(trained, shares.tolist())
        centre = mean(models, [1.0 for _ in CLIENTS])
        squares = [float(flat(apart(model, centre)).square().sum()) for model in models]
        far = math.sqrt(sum(squares) / len(squares))
        assert result.round["consensus_distance"] == pytest.approx(far, abs=1e-12)
        sent = {line["client"]: line["bytes_up"] for line in result.clients}
        if server.settings.fleet == "uniform":
            for client in clients:
                assert sent[client] == degrees[client] * MODEL
    return models, result


@ENGINES
@SETTINGS
@pytest.mark.parametrize("graph", [*LINKS, "random"])
def test_d_psgd(study: Study, engine: Any, settings: dict, graph: str, tmp_path: Any) -> None:
    name = graph
    if graph == "file":
        name = str(tmp_path / "links.txt")
        lines = [f"{one} {other}\n" for one, other in LINKS["file"]]
        (tmp_path / "links.txt").write_text("".join(lines))
    links = np.zeros((len(SIZES), len(SIZES)), dtype=bool)
    for one, other in LINKS.get(graph, []):
        links[one, other] = links[other, one] = True
    if graph == "random":
        links = DPSGD(graph="random").links(len(SIZES), Stream(5, "any", 0))
        assert (links == links.T).all()
        assert not links.diagonal().any()
    server = study.server(f"d-psgd:graph={name}", engine, settings)
    models, _ = on_a_graph(study, server, lambda round: links)
    assert_in_use(server, models)


@ENGINES
@pytest.mark.parametrize("fleet", ["uniform", "uniform:dropout=0.3"])
@pytest.mark.parametrize("graph", ["ring", "complete"])
def test_gossip(study: Study, engine: Any, fleet: str, graph: str) -> None:
    server = study.server(f"gossip:graph={graph}", engine, {"fleet": fleet, "seed": 2})

    def links(round: int) -> np.ndarray:
        pairs = Gossip(graph=graph).links(len(SIZES), Stream(2, "server", round))
        assert pairs.sum(1).max() == 1
        return pairs

    models, _ = on_a_graph(study, server, links)
    assert_in_use(server, models)


# -- what a client measures before it is selected --------------------------------------------------


@pytest.mark.parametrize("method", ["cfl:eps1=2,eps2=0,wait=0", "fedfomo", "fedpac"])
def test_a_probe_is_of_the_model_that_a_client_receives(study: Study, method: str) -> None:
    server = study.server(method, Loop(), {})
    for _ in range(4):
        server.advance()
    clients = np.array(list(CLIENTS))
    plan = Plan(0, 4, clients, SIZES, SIZES, np.ones_like(SIZES))
    rounds = server.rounds
    start = rounds.start(plan, 0.3, rounds._answers_to(clients))
    expected = [study.loss(server.client_model(client), client) for client in CLIENTS]
    for engine in (Loop(), Stacked(mode="stack")):
        found = engine.probe(server.job, start, plan, ("loss",))["loss"]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
