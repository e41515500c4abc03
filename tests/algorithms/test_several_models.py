"""Methods with several models on the server against calculations in NumPy: IFCA, CFL, FedAMP, FedFomo, FedPAC."""

from itertools import combinations

import numpy as np
import pytest
import torch

import fedskew as fs
from fedskew.aggregation.mixing import least_variance_shares
from fedskew.algorithms import CFL, IFCA, FedFomo, InitialWeights, Stream
from fedskew.algorithms.cluster_models import shuffled
from fedskew.algorithms.fedfomo import _offer
from fedskew.core.errors import FedskewError
from fedskew.engine.loop import Loop
from fedskew.engine.plan import Plan
from fedskew.engine.stacked import Stacked

ENGINES = pytest.mark.parametrize(
    "engine", [Loop(), Stacked(mode="stack")], ids=["loop", "stacked"]
)
PART = pytest.mark.parametrize("per_round", [4, 3])
LR, CLASSES = 0.3, 3


def mean_loss(net, w, client: int) -> float:
    rows = net.held[client]
    z, _, _ = net.represent(w, net.x[rows].astype(np.float64))
    logits = z @ w["head.weight"].T + w["head.bias"]
    chance = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(rows)), net.y[rows]]
    return float(chance.mean())


def moved(w, delta, share: float = 1.0):
    return {name: w[name] + share * delta[name] for name in w}


def apart(one, other):
    return {name: one[name] - other[name] for name in one}


def flat(w) -> np.ndarray:
    return np.concatenate([w[name].ravel() for name in sorted(w)])


def assert_models(server, expected) -> None:
    for client, model in enumerate(expected):
        for name, value in server.client_model(client).items():
            np.testing.assert_allclose(value.numpy(), model[name], rtol=0, atol=1e-12)


def clients_of(result) -> list[int]:
    return [line["client"] for line in result.clients]


# -- IFCA ------------------------------------------------------------------------------------------


def first_of_ifca(net, models: int, part: str):
    start = net.start()
    result = [start]
    names = [name for name in sorted(start) if part == "all" or name.startswith("head")]
    for model in range(1, models):
        other = dict(start)
        for place, name in enumerate(names):
            order = Stream(model, "ifca", place).permutation(start[name].size)
            other[name] = start[name].ravel()[order].reshape(start[name].shape)
        result.append(other)
    return result


@ENGINES
@PART
@pytest.mark.parametrize("part", ["all", "head"])
def test_ifca_by_hand(plain_net, engine, per_round: int, part: str):
    net = plain_net
    server = net.training(f"ifca:models=3,part={part}", engine, per_round=per_round)
    models = first_of_ifca(net, 3, part)
    chosen_ever = set()
    for round, result in enumerate(server.results):
        choices, updates = {}, {}
        for client in clients_of(result):
            losses = [mean_loss(net, model, client) for model in models]
            choices[client] = int(np.argmin(losses))
            start = models[choices[client]]
            updates[client] = apart(net.descend(start, round, client), start)
        assert [line["chosen_model"] for line in result.clients] == list(choices.values())
        chosen_ever |= set(choices.values())
        everybody = net.sizes[list(choices)].sum()
        fresh = [dict(model) for model in models]
        for number, model in enumerate(fresh):
            own = [client for client in choices if choices[client] == number]
            rows = net.sizes[own].sum()
            for name in model:
                alone = part == "all" or name.startswith("head")
                for client in own if alone else choices:
                    share = net.sizes[client] / (rows if alone else everybody)
                    model[name] = model[name] + share * updates[client][name]
        models = fresh
    assert len(chosen_ever) > 1, "the test shows nothing"
    best = []
    for client in range(4):
        best.append(models[int(np.argmin([mean_loss(net, model, client) for model in models]))])
    assert_models(server, best)


def test_finding_the_losses_of_all_models_takes_time(plain_net):
    fleet = "uniform:rows_per_second=100,seconds_per_step=0,latency=0,mbit_per_second=1e9"
    ifca = plain_net.training("ifca:models=3", Loop(), rounds=1, fleet=fleet)
    found = [line["training_seconds"] for line in ifca.results[0].clients]
    # Two epochs of training, and three forward passes at a third of the cost
    np.testing.assert_allclose(found, plain_net.sizes * (2 + 3 / 3) / 100, rtol=1e-9)


@ENGINES
def test_ifca_begins_with_clusters_of_the_first_updates(plain_net, engine):
    net = plain_net
    server = net.training("ifca:models=2,start=updates", engine, rounds=1)
    start = net.start()
    updates = [apart(net.descend(start, 0, client), start) for client in range(4)]
    unit = np.array([flat(update) / np.linalg.norm(flat(update)) for update in updates])
    # Of all divisions, k-means from far points finds the one that is best here
    best, division = -1.0, None
    for count in (1, 2, 3):
        for first in combinations(range(4), count):
            rest = [client for client in range(4) if client not in first]
            fit = np.linalg.norm(unit[list(first)].sum(0)) + np.linalg.norm(unit[rest].sum(0))
            if 0 in first and fit > best:
                best, division = fit, (list(first), rest)
    expected = []
    for cluster in division:
        shares = net.sizes[cluster] / net.sizes[cluster].sum()
        model = dict(start)
        for client, share in zip(cluster, shares, strict=True):
            model = moved(model, updates[client], share)
        expected.append(model)
    found = server.state.server_state["candidates"]
    for name, value in found.items():
        first = server.state.params[name].numpy()
        np.testing.assert_allclose(first, expected[0][name], rtol=0, atol=1e-12)
        np.testing.assert_allclose(value[0].numpy(), expected[1][name], rtol=0, atol=1e-12)


@ENGINES
@pytest.mark.parametrize("name", ["plain_net", "norm_net"])
def test_ifca_with_one_model_is_fedavg(request, engine, name: str):
    net = request.getfixturevalue(name)
    one = net.training("ifca:models=1", engine, per_round=3, momentum=0.9)
    fedavg = net.training("fedavg", engine, per_round=3, momentum=0.9)
    for weight, value in fedavg.state.model().items():
        assert torch.equal(one.state.model()[weight], value)


def test_more_models_than_clients_of_a_round_cannot_begin_with_updates(desk):
    for settings in ({}, {"per_round": 3}):
        with pytest.raises(FedskewError, match=r"models=6 of as many clusters .* use fewer models"):
            desk.training("ifca:models=6,start=updates", **settings)
    desk.training("ifca:models=6")


def test_a_client_of_several_models_measures_none_of_them_before_it_is_selected(desk):
    with pytest.raises(FedskewError, match="before it knows which model it will train"):
        desk.training("ifca + power-of-choice", per_round=2)


@ENGINES
def test_nobody_chooses_a_model_that_has_diverged(plain_net, engine):
    server = plain_net.training("ifca:models=3", engine, rounds=1)
    broken = server.state.server_state["candidates"]["head.weight"]
    broken[0] = torch.nan
    result = server.advance()
    assert 1 not in {line["chosen_model"] for line in result.clients}
    for client in range(4):
        assert all(value.isfinite().all() for value in server.client_model(client).values())


def test_models_that_start_equal_are_refused():
    ones = InitialWeights({"w": torch.ones(3)}, {}, frozenset())
    with pytest.raises(FedskewError, match="use start=updates"):
        IFCA(models=2).init_server_state(ones)
    assert sorted(shuffled(torch.arange(5.0), Stream(1, "ifca", 0)).tolist()) == [0, 1, 2, 3, 4]


# -- CFL -------------------------------------------------------------------------------------------


@ENGINES
@pytest.mark.parametrize("eps", ["eps1=2,eps2=0.01", "eps1=0.9,eps2=1.2"])
def test_cfl_by_hand(plain_net, engine, eps: str):
    net = plain_net
    server = net.training(f"cfl:{eps},wait=1", engine, rounds=6)
    eps1, eps2 = (float(part.partition("=")[2]) for part in eps.split(","))
    clusters = [[0, 1, 2, 3]]
    models = {0: net.start()}
    longest, rounds = {0: 0.0}, {0: 0}
    for round in range(6):
        for number in list(models):
            clients = clusters[number]
            start = models[number]
            updates = [apart(net.descend(start, round, client), start) for client in clients]
            shares = net.sizes[clients] / net.sizes[clients].sum()
            mean = sum(share * flat(update) for share, update in zip(shares, updates, strict=True))
            for update, share in zip(updates, shares, strict=True):
                models[number] = moved(models[number], update, share)
            longest[number] = max(longest[number], np.linalg.norm(mean))
            rounds[number] += 1
            far = max(np.linalg.norm(flat(update)) for update in updates)
            short = np.linalg.norm(mean) < eps1 * longest[number]
            if len(clients) < 2 or rounds[number] <= 1:
                continue
            if not short or far <= eps2 * longest[number]:
                continue
            half = best_halves(updates)
            new = len(clusters)
            clusters.append([client for i, client in enumerate(clients) if i not in half])
            clusters[number] = [clients[i] for i in half]
            models[new] = dict(models[number])
            longest[number] = longest[new] = 0.0
            rounds[number] = rounds[new] = 0
    assert len(clusters) > 1, "the test shows nothing"
    expected = []
    for client in range(4):
        number = next(i for i, members in enumerate(clusters) if client in members)
        expected.append(models[number])
    assert_models(server, expected)
    together = server.state.server_state["cluster"]["number"].tolist()
    for one, other in combinations(range(4), 2):
        same = any(one in members and other in members for members in clusters)
        assert (together[one] == together[other]) == same


def best_halves(updates) -> list[int]:
    """Return the half with the first update, of the division with the least cosine across, by trying them all."""
    unit = [flat(update) / np.linalg.norm(flat(update)) for update in updates]
    best, half = np.inf, []
    everybody = range(len(unit))
    for count in range(1, len(unit)):
        for first in combinations(everybody, count):
            if 0 not in first:
                continue
            rest = [i for i in everybody if i not in first]
            across = max(unit[i] @ unit[j] for i in first for j in rest)
            if across < best:
                best, half = across, list(first)
    return half


@ENGINES
def test_cfl_that_never_divides_is_fedavg(plain_net, engine):
    cfl = plain_net.training("cfl:eps1=0", engine, per_round=3)
    fedavg = plain_net.training("fedavg", engine, per_round=3)
    for name, value in fedavg.state.params.items():
        torch.testing.assert_close(cfl.client_model(3)[name], value, rtol=0, atol=1e-14)


def test_halves_do_not_depend_on_the_length_of_updates():
    updates = torch.tensor([[1.0, 0.0], [0.0, 5.0], [3.0, 0.1], [0.1, 0.2]])
    assert CFL.halves(updates).tolist() == [True, False, True, False]


# -- FedAMP ----------------------------------------------------------------------------------------


@ENGINES
@PART
@pytest.mark.parametrize(
    "options", ["alpha=0.2,sigma=0.3", "alpha=5,sigma=2", "similarity=cosine,own_share=0.3,sigma=4"]
)
def test_fedamp_by_hand(plain_net, engine, per_round: int, options: str):
    net = plain_net
    lam = 0.4
    server = net.training(f"fedamp:lam={lam},{options}", engine, per_round=per_round)
    given = dict(part.split("=") for part in options.split(","))
    alpha, sigma = float(given.get("alpha", 1)), float(given["sigma"])
    own = [net.start() for _ in range(4)]
    known: set[int] = set()
    for round, result in enumerate(server.results):
        trained = {}
        for client in clients_of(result):
            shares = {}
            for other in sorted(known - {client}):
                a, b = flat(own[client]), flat(own[other])
                if "similarity" in given:
                    shares[other] = np.exp(sigma * a @ b / np.linalg.norm(a) / np.linalg.norm(b))
                else:
                    shares[other] = alpha / sigma * np.exp(-((a - b) ** 2).sum() / sigma)
            total = sum(shares.values())
            if "similarity" in given and shares:
                rest = 1 - float(given["own_share"])
                shares = {other: rest * share / total for other, share in shares.items()}
            elif total > 1:
                shares = {other: share / total for other, share in shares.items()}
            mixture = {name: (1 - sum(shares.values())) * own[client][name] for name in own[client]}
            for other, share in shares.items():
                mixture = moved(mixture, own[other], share)
            trained[client] = net.descend(
                own[client], round, client, anchor=mixture, lam=lam / alpha
            )
        for client, model in trained.items():
            own[client] = model
        known |= set(trained)
    assert_models(server, own)


@ENGINES
def test_fedamp_without_a_pull_is_local(plain_net, engine):
    amp = plain_net.training("fedamp:lam=0", engine, per_round=3)
    local = plain_net.training("local", engine, per_round=3)
    for client in range(4):
        for name, value in local.client_model(client).items():
            torch.testing.assert_close(amp.client_model(client)[name], value, rtol=0, atol=1e-14)


# -- FedFomo ---------------------------------------------------------------------------------------


@ENGINES
@pytest.mark.parametrize(("per_round", "rounds"), [(3, 4), (1, 8)])
def test_fedfomo_by_hand(plain_net, engine, per_round: int, rounds: int):
    net = plain_net
    settings = {"per_round": per_round, "rounds": rounds}
    server = net.training("fedfomo:offers=3,explore=0", engine, **settings)
    own = [net.start() for _ in range(4)]
    sums = np.zeros((4, 4))
    took = 0
    for round, result in enumerate(server.results):
        trained = {}
        for client in clients_of(result):
            mine = own[client]
            gains = {}
            for other in range(4):
                distance = np.linalg.norm(flat(own[other]) - flat(mine))
                if other != client and distance > 0:
                    lower = mean_loss(net, mine, client) - mean_loss(net, own[other], client)
                    gains[other] = lower / distance
            better = {other: gain for other, gain in gains.items() if gain > 0}
            took += len(better)
            start = dict(mine)
            for other, gain in better.items():
                share = gain / sum(better.values())
                start = moved(start, apart(own[other], mine), share)
            trained[client] = net.descend(start, round, client)
            for other, gain in gains.items():
                sums[client, other] += gain
        for client, model in trained.items():
            own[client] = model
    assert took > 0, "the test shows nothing"
    assert_models(server, own)
    found = server.state.server_state["gains"]["sum"].numpy()
    np.testing.assert_allclose(found, sums, rtol=0, atol=1e-12)


@ENGINES
def test_fedfomo_with_equal_shares_of_all_models_is_fedavg(plain_net, engine):
    fomo = plain_net.training("fedfomo:offers=3,mixing=equal", engine, rounds=3)
    fedavg = plain_net.training("fedavg", engine, weights="uniform", rounds=3)
    for name, value in fedavg.state.params.items():
        mean = sum(fomo.client_model(client)[name] for client in range(4)) / 4
        torch.testing.assert_close(mean, value, rtol=0, atol=1e-14)


def test_offers_are_of_the_largest_gains_and_some_are_random():
    gains, order = np.array([9.0, 1.0, 3.0, -1.0, 0.0]), np.array([0.5, 0.4, 0.3, 0.2, 0.1])
    none, one = np.array([False, False]), np.array([True, False])
    assert _offer(0, gains, order, none).tolist() == [2, 1]
    assert _offer(0, gains, order, one).tolist() == [4, 2]
    assert _offer(2, gains, order, np.array([True, True])).tolist() == [4, 3]
    many = FedFomo(offers=9, explore=0.5)._offers(torch.zeros(4, 4), Stream(3, "server", 1))
    for client, offered in enumerate(many.tolist()):
        assert sorted([client, *offered]) == [0, 1, 2, 3]


def test_a_client_alone_is_offered_nothing():
    with pytest.raises(FedskewError, match="at least 2 clients"):
        FedFomo().check_clients(1)


# -- FedPAC ----------------------------------------------------------------------------------------


def least_form(form: np.ndarray) -> np.ndarray:
    """Return the shares, at least 0 and summing to 1, with the least quadratic form, by trying every support."""
    best, result = np.inf, None
    everybody = range(len(form))
    for count in range(1, len(form) + 1):
        for support in map(list, combinations(everybody, count)):
            inverse = np.linalg.solve(form[np.ix_(support, support)], np.ones(count))
            shares = np.zeros(len(form))
            shares[support] = inverse / inverse.sum()
            if (shares >= 0).all() and shares @ form @ shares < best:
                best, result = shares @ form @ shares, shares
    return result


def descend_in_phases(net, w, round: int, client: int, push):
    one = np.array([client])
    plan = Plan(0, round, one, net.sizes[one], np.minimum(4, net.sizes[one]), np.array([2]), 1)
    positions, counts = plan.table()
    w = dict(w)
    for step, count in enumerate(counts[:, 0]):
        rows = net.held[client][positions[step, 0, :count]]
        grads = net.gradient(w, net.x[rows].astype(np.float64), net.y[rows], push)
        head_alone = step < plan.steps_per_epoch[0]
        for name, grad in grads.items():
            if name.startswith("head") == head_alone:
                w[name] = w[name] - LR * grad
    return w


@ENGINES
@PART
def test_fedpac_by_hand(plain_net, engine, per_round: int):
    net, lam = plain_net, 0.7
    server = net.training(f"fedpac:lam={lam}", engine, per_round=per_round)
    shared = net.start()
    heads = [{name: shared[name] for name in ("head.weight", "head.bias")} for _ in range(4)]
    prototypes, known = np.zeros((CLASSES, 4)), np.zeros(CLASSES)
    mixed_some = False
    for round, result in enumerate(server.results):
        clients = clients_of(result)
        trained, h, v = {}, [], []
        sums, counts = np.zeros((CLASSES, 4)), np.zeros(CLASSES)
        for client in clients:

            def push(z, x, prototypes=prototypes, known=known):
                y = np.array([net.y[np.flatnonzero((net.x == row).all(1))[0]] for row in x])
                return lam * known[y][:, None] * 2 * (z - prototypes[y]) / 4 / len(x)

            start = {**shared, **heads[client]}
            trained[client] = descend_in_phases(net, start, round, client, push)
            rows = net.held[client]
            z, _, _ = net.represent(trained[client], net.x[rows].astype(np.float64))
            own = np.zeros((CLASSES, 4))
            for row, label in zip(z, net.y[rows], strict=True):
                own[label] += row
                counts[label] += 1
            sums += own
            mean = own.ravel() / len(rows)
            h.append(mean)
            v.append(((z**2).sum() / len(rows) - mean @ mean) / len(rows))
        here = counts > 0
        prototypes, known = prototypes.copy(), known.copy()
        prototypes[here], known[here] = sums[here] / counts[here, None], 1
        for place, client in enumerate(clients):
            away = np.array([h[place] - other for other in h])
            shares = least_form(np.diag(v) + away @ away.T)
            mixed_some |= (shares > 0).sum() > 1
            head = {}
            for name in heads[client]:
                head[name] = sum(
                    share * trained[other][name]
                    for share, other in zip(shares, clients, strict=True)
                )
            heads[client] = head
        weights = net.sizes[clients] / net.sizes[clients].sum()
        for name in shared:
            shared[name] = sum(
                weight * trained[client][name]
                for weight, client in zip(weights, clients, strict=True)
            )
    assert mixed_some, "the test shows nothing"
    assert_models(server, [{**shared, **head} for head in heads])
    found = server.state.server_state["prototypes"]["mean"].numpy()
    np.testing.assert_allclose(found, prototypes, rtol=0, atol=1e-12)


def test_shares_of_equal_clients_are_equal_and_of_a_far_one_nothing():
    shares = least_variance_shares(np.array([[0.0, 1.0], [0.0, 1.0], [9.0, 9.0]]), np.ones(3))
    np.testing.assert_allclose(shares[0], [0.5, 0.5, 0.0], atol=0.01)
    np.testing.assert_allclose(shares.sum(1), 1.0)
    alone = least_variance_shares(np.zeros((3, 2)), np.array([1.0, 0.0, 0.0]))
    assert alone[0][0] < 1e-6, "a client without spread counts instead"


@pytest.mark.parametrize("method", ["fedpac"])
def test_a_model_that_is_a_head_is_refused(desk, method: str):
    with pytest.raises(FedskewError, match="before"):
        desk.training(method)


# -- together ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["ifca", "cfl", "fedamp", "fedfomo", "fedpac", "d-psgd"])
@pytest.mark.parametrize(
    ("addition", "message"),
    [
        ("median", "leave the rule out"),
        ("dp", "leave dp out|leave one of them out"),
        ("ccvr", "leave ccvr out"),
    ],
)
def test_what_needs_one_model_is_refused(plain_net, method: str, addition: str, message: str):
    with pytest.raises(FedskewError, match=message):
        plain_net.training(f"{method} + {addition}")


@pytest.mark.parametrize("method", ["cfl", "fedamp", "fedfomo", "fedpac", "d-psgd", "gossip"])
def test_models_of_all_clients_that_need_too_much_memory_are_refused(
    plain_net, monkeypatch: pytest.MonkeyPatch, method: str
):
    monkeypatch.setattr("fedskew.server.refusals.SERVER_MEMORY", 1e-9)
    with pytest.raises(FedskewError, match="keeps models of all 4 clients on the server"):
        plain_net.training(method)


def test_ifca_finds_planted_clusters():
    data = fs.load("digits")
    fed = fs.split(data, "iid + relabel:fraction=1,permutations=2", 8, client_test=0.2, seed=0)
    settings = {"rounds": 8, "epochs": 2, "lr": 0.1, "folder": False, "eval_every": 8}
    run = fs.train(fed, "mlp:hidden=32", "ifca:models=2,start=updates", device="cpu", **settings)
    meanings = []
    for client in range(8):
        rows = fed.partition.of(client)
        meanings.append(dict(zip(data.train.y[rows], fed.train.y[rows], strict=True)))
    last = run.clients[run.clients["round"] == 8].set_index("client")["chosen_model"]
    for one, other in combinations(range(8), 2):
        shared = meanings[one].keys() & meanings[other].keys()
        alike = all(meanings[one][label] == meanings[other][label] for label in shared)
        assert (last[one] == last[other]) == alike
    assert len(set(last)) == 2
    plain = fs.train(fed, "mlp:hidden=32", "fedavg", device="cpu", **settings)
    assert run.summary["client_accuracy_mean"] > plain.summary["client_accuracy_mean"] + 0.2
