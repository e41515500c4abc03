"""HierFAVG against calculations by hand: models of edges and cloud, traffic, time, rules at both levels, refusals."""

import numpy as np
import pytest
import torch

from fedskew.algorithms import EdgeServers
from fedskew.algorithms.contract import algorithms, resolve
from fedskew.algorithms.edges_of_clients import edges_in_file
from fedskew.core.errors import FedskewError
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked
from fedskew.fleet.clock import transfer_seconds
from fedskew.fleet.machines import fleets

ENGINES = pytest.mark.parametrize(
    "engine", [Loop(), Stacked(mode="stack")], ids=["loop", "stacked"]
)
EDGE_OF = np.array([0, 0, 0, 1, 1])  # of the desk's five clients, by order
ONE_MODEL = 144  # bytes of the regression's 18 weights in float64


def clients_of(results) -> list[list[int]]:
    return [[line["client"] for line in result.clients] for result in results]


def by_hand(desk, rounds: list[list[int]], every: int, mu: float = 0.0) -> list[np.ndarray]:
    """Return the global model after every round, for two edges, from who took part and arrived in each."""
    cloud = desk.start()
    edges = [cloud, cloud]
    counts = [0.0, 0.0]
    after = []
    for number, clients in enumerate(rounds):
        for edge in (0, 1):
            own = [client for client in clients if EDGE_OF[client] == edge]
            if own:
                sizes = desk.sizes[own]
                ended = [desk.descend(edges[edge], number, client, mu=mu) for client in own]
                edges[edge] = sum(n * w for n, w in zip(sizes, ended, strict=True)) / sizes.sum()
                counts[edge] += sizes.sum()
        if sum(counts):
            whole = (counts[0] * edges[0] + counts[1] * edges[1]) / sum(counts)
        after.append(whole)
        if (number + 1) % every == 0:
            edges = [whole, whole]
            counts = [0.0, 0.0]
    return after


@ENGINES
@pytest.mark.parametrize("per_round", [5, 3, 1])
@pytest.mark.parametrize("every", [2, 3])
def test_two_edges_by_hand(desk, engine, per_round: int, every: int):
    method = f"fedprox:mu=0.2 + hierarchical:edges=2,every={every}"
    server = desk.training(method, engine, per_round=per_round, rounds=6)
    results = []
    models = []
    for _ in range(6):
        results.append(server.advance())
        models.append(desk.flat(server.state.params))
    expected = by_hand(desk, clients_of(results), every, mu=0.2)
    np.testing.assert_allclose(models, expected, rtol=0, atol=1e-12)
    for line in (line for result in results for line in result.clients):
        assert line["edge"] == EDGE_OF[line["client"]]
    for result in results:
        assert sum(line["weight"] for line in result.clients) == pytest.approx(1)


@ENGINES
@pytest.mark.parametrize("edges", [1, 2, 5])
@pytest.mark.parametrize("method", ["fedavg", "fedprox:mu=0.3", "scaffold", "fedavgm:beta=0"])
def test_a_cloud_in_every_round_is_the_method_without_edges(desk, engine, edges: int, method: str):
    settings = {"per_round": 3, "rounds": 5}
    flat, plain = desk.train(method, engine, **settings)
    with_edges, results = desk.train(
        f"{method} + hierarchical:edges={edges},every=1", engine, **settings
    )
    np.testing.assert_allclose(with_edges, flat, rtol=0, atol=1e-12)
    for name in ("weight", "local_loss"):
        np.testing.assert_allclose(
            np.concatenate(desk.column(results, name)),
            np.concatenate(desk.column(plain, name)),
            atol=1e-12,
        )


def test_edges_change_the_model_where_the_cloud_is_rare(desk):
    flat, _ = desk.train("fedavg", rounds=4)
    rare, _ = desk.train("fedavg + hierarchical:edges=2,every=4", rounds=4)
    one, _ = desk.train("fedavg + hierarchical:edges=1,every=4", rounds=4)
    assert np.abs(rare - flat).max() > 1e-3
    np.testing.assert_allclose(one, flat, rtol=0, atol=1e-12)  # one edge is the server


@ENGINES
def test_statistics_of_batchnorm_are_merged_as_moments(norm_net, engine):
    plain = norm_net.training("fedavg", engine)
    edges = norm_net.training("fedavg + hierarchical:edges=2,every=1", engine)
    for name, value in plain.state.model().items():
        np.testing.assert_allclose(edges.state.model()[name].numpy(), value.numpy(), atol=1e-12)


@ENGINES
def test_drop_outs_leave_an_edge_as_it_was(desk, engine):
    server = desk.training(
        "fedavg + hierarchical:edges=2,every=3",
        engine,
        rounds=6,
        per_round=3,
        fleet="uniform:dropout=0.5",
    )
    results = [server.advance() for _ in range(6)]
    assert sum(result.round["dropped"] for result in results) > 3
    arrived = []
    for result in results:
        arrived.append([line["client"] for line in result.clients if not line["dropped"]])
    expected = by_hand(desk, arrived, every=3)[-1]
    np.testing.assert_allclose(desk.flat(server.state.params), expected, rtol=0, atol=1e-12)


def test_clock_and_bytes_by_hand(desk):
    """Edges wait for their own clients between rounds of the cloud, and for each other at the cloud."""
    server = desk.training(
        "fedavg + hierarchical:edges=2,every=2,nearer=5,mbit=0.01,latency=0.3",
        rounds=4,
        per_round=4,
        fleet="mixed:slow=20",
    )
    results = [server.advance() for _ in range(4)]
    machines = fleets.get("mixed")(5, 0, slow=20.0).machines(np.arange(5))
    cloud = 0.3 + 8e-6 * ONE_MODEL / 0.01
    clocks = np.zeros(2)
    now = 0.0
    for number, result in enumerate(results):
        if number % 2 == 0:
            clocks[:] = now + cloud
        slowest = np.zeros(2)
        for line in result.clients:
            client = line["client"]
            steps = len(desk.batches(number, client))
            training = 2 * desk.sizes[client] / machines.rows_per_second[client]
            training += steps * machines.seconds_per_step[client]
            sent = transfer_seconds(machines, ONE_MODEL, ONE_MODEL)[client] / 5
            assert line["seconds"] == pytest.approx(training + sent, rel=1e-12)
            assert line["bytes_down"] == line["bytes_up"] == ONE_MODEL
            edge = EDGE_OF[client]
            slowest[edge] = max(slowest[edge], training + sent)
        clocks += slowest
        now = clocks.max()
        begins = number % 2 == 0
        if not begins:
            now += cloud
        assert result.round["clock"] == pytest.approx(now, rel=1e-12)
        assert result.round["cloud_bytes_down"] == 2 * ONE_MODEL * begins
        assert result.round["cloud_bytes_up"] == 2 * ONE_MODEL * (not begins)
        assert result.round["bytes_down"] == ONE_MODEL * (4 + 2 * begins)
        assert result.round["bytes_up"] == ONE_MODEL * (4 + 2 * (not begins))
    waiting = sum(max(line["seconds"] for line in result.clients) for result in results)
    assert now < waiting + 4 * cloud  # less than if edges had waited for each other in every round


def test_the_state_of_the_server_goes_to_the_cloud_too(desk):
    result = desk.training("fedavgm + hierarchical:edges=2,every=1").advance()
    assert result.round["cloud_bytes_up"] == 2 * 2 * ONE_MODEL


def test_a_late_client_costs_its_edge_the_deadline(desk):
    server = desk.training(
        "fedavg + hierarchical:edges=2,every=1,mbit=1000000,latency=0",
        fleet="mixed:slow=20,deadline=0.25",
    )
    row = server.advance().round
    assert row["late"] > 0
    assert row["clock"] == pytest.approx(0.25, abs=1e-6)


@ENGINES
def test_a_rule_before_hierarchical_is_that_of_the_edges(plain_net, engine):
    net = plain_net
    server = net.training(
        "fedavg + median + hierarchical:edges=2,every=1", engine, rounds=1, weights="uniform"
    )
    ended = [net.descend(net.start(), 0, client) for client in range(4)]
    for name, value in server.state.params.items():
        first = np.median([ended[0][name], ended[1][name]], axis=0)
        second = np.median([ended[2][name], ended[3][name]], axis=0)
        np.testing.assert_allclose(value.numpy(), (first + second) / 2, rtol=0, atol=1e-12)


@ENGINES
def test_a_rule_after_hierarchical_is_that_of_the_cloud(desk, engine):
    """Three edges of two, two and one clients; the median of their models coordinate by coordinate."""
    server = desk.training("fedavg + hierarchical:edges=3,every=1 + median", engine)
    server.advance()
    start = desk.start()
    models = []
    for clients in ([0, 1], [2, 3], [4]):
        sizes = desk.sizes[clients]
        ended = [desk.descend(start, 0, client) for client in clients]
        models.append(sum(n * w for n, w in zip(sizes, ended, strict=True)) / sizes.sum())
    np.testing.assert_allclose(
        desk.flat(server.state.params), np.median(models, axis=0), rtol=0, atol=1e-12
    )


def test_a_hostile_edge_is_stopped_by_the_rule_of_the_cloud(desk):
    """Every client of one edge sends NaN-free nonsense: the mean follows it, the median of the cloud does not."""
    attack = "fedavg + attack:kind=sign-flip,share=0.2,strength=100"
    free, _ = desk.train("fedavg", rounds=1)
    gaps = []
    for rule in ("", " + median"):
        hit, _ = desk.train(f"{attack} + hierarchical:edges=5,every=1{rule}", rounds=1)
        gaps.append(np.abs(hit - free).max())
    assert gaps[1] < gaps[0] / 10


@pytest.mark.parametrize(
    "method", ["scaffold", "fedadam", "ditto", "fedavg + power-of-choice", "fedavg + ccvr:every=2"]
)
def test_a_run_that_was_interrupted_between_rounds_of_the_cloud(desk, method: str):
    spelled = f"{method} + hierarchical:edges=2,every=3"
    settings = {"rounds": 5, "per_round": 3, "fleet": "mixed:slow=9,dropout=0.2"}
    whole = desk.training(spelled, **settings)
    expected = [whole.advance() for _ in range(5)]
    first = desk.training(spelled, **settings)
    for _ in range(2):
        first.advance()
    second = desk.training(spelled, **settings)
    second.restore(first.checkpoint())
    found = [second.advance() for _ in range(3)]
    assert repr([result.round for result in found]) == repr([r.round for r in expected[2:]])
    for name, value in whole.checkpoint().items():
        assert torch.equal(value, second.checkpoint()[name]), name


def test_edges_by_network_labels_and_file(desk, tmp_path):
    server = desk.training("hierarchical:edges=2,by=network", fleet="mixed")
    down = fleets.get("mixed")(5, 0).machines(np.arange(5)).down
    edge_of = server.rounds.edge_of
    assert down[edge_of == 0].max() < down[edge_of == 1].min()
    assert np.bincount(edge_of).tolist() == [3, 2]
    labels = desk.training("hierarchical:edges=2,by=labels").rounds.edge_of
    assert sorted(np.unique(labels)) == [0, 1]
    file = tmp_path / "edges.csv"
    file.write_text("client,edge\n4,0\n3,1\n2,1\n1 0\n0,0\n")
    assert edges_in_file(str(file), 5, 2).tolist() == [0, 0, 1, 1, 0]
    assert desk.training(f"hierarchical:edges=2,by={file}").rounds.edge_of.tolist() == [
        0,
        0,
        1,
        1,
        0,
    ]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("0,0\n1,0\n2,1\n3,1\n", "client 4 has no edge"),
        ("0,0\n1,0\n2,0\n3,0\n4,0\n", "edge 1 has no client"),
        ("0,0\n0,1\n", "line 2: '0,1': client 0 has an edge already"),
        ("5,0\n", "clients are 0 to 4"),
        ("4,2\n", "edges 0 to 1"),
        ("a,0\n", "is not the numbers of a client and its edge"),
        ("1,0,3\n", "is not the numbers of a client and its edge"),
    ],
)
def test_a_file_without_sense_is_refused(desk, tmp_path, text: str, error: str):
    file = tmp_path / "edges.csv"
    file.write_text(text)
    with pytest.raises(FedskewError, match=error):
        desk.training(f"hierarchical:edges=2,by={file}")


@pytest.mark.parametrize(
    ("method", "error"),
    [
        ("fedbuff + hierarchical", "waits for all of them"),
        ("fedasync + hierarchical", "waits for all of them"),
        ("d-psgd + hierarchical", "waits for all of them"),
        ("sfl + hierarchical", "waits for all of them"),
        ("stratify-batch + hierarchical", "waits for all of them"),
        ("fedavg + hierarchical + stratify-rounds", "waits for all|waited for"),
        ("fedavg + stratify-rounds + hierarchical", "waits for all|waited for"),
        ("fedavg + dp + hierarchical", "does not cover"),
        ("central + hierarchical:edges=1", "all rows are in one place"),
        ("ifca + hierarchical", "several models"),
        ("ifca:models=1 + hierarchical", "several models"),
        ("cfl + hierarchical", "several models"),
        ("fedamp + hierarchical", "several models"),
        ("fedavg + hierarchical:edges=6", "needs as many clients, and there are 5"),
        ("fedavg + hierarchical:by=there", "no such file; use order, network, labels"),
        ("fedavg + krum + hierarchical", "needs the updates of at least 5 clients"),
        ("fedavg + hierarchical:edges=3 + krum", "needs 5 updates per round, got 3"),
        ("fedavg + hierarchical:edges=1 + median", "needs more than edges=1"),
    ],
)
def test_what_has_no_meaning_is_refused_before_training(desk, method: str, error: str):
    if "dp" in method:
        pytest.importorskip("dp_accounting")
    with pytest.raises(FedskewError, match=error):
        desk.training(method)


def test_shared_statistics_and_nodes_are_refused(norm_net):
    from fedskew.core.config import Settings
    from fedskew.deploy.remote_server import refuse

    with pytest.raises(FedskewError, match="share statistics in every step"):
        norm_net.training("fedtan + hierarchical")
    with pytest.raises(FedskewError, match="no mean over edges"):
        norm_net.training("fedproto + hierarchical")
    with pytest.raises(FedskewError, match="edge servers between nodes"):
        refuse(resolve("fedavg + hierarchical"), Settings())


REFUSED = [
    "central", "ifca", "cfl", "fedamp", "fedfomo", "fedpac", "fedproto", "fedtan", "fedasync", "fedbuff", "sfl",
    "stratify-batch", "stratify-single", "stratify-hybrid", "stratify-rounds", "d-psgd", "gossip", "hierarchical",
    "dp", "krum", "norm-test", "fedex-lora", "flora", "fed-sb",
]  # fmt: skip


@pytest.mark.parametrize("name", list(algorithms))
def test_every_method_has_edges_or_is_refused(desk, name: str):
    """Both engines agree beyond a round of the cloud; Krum lacks clients here."""
    spelled = f"{name} + hierarchical:edges=2,every=2"
    if name == "dp":
        pytest.importorskip("dp_accounting")
    servers = []
    for engine in (Loop(), Stacked(mode="stack")):
        settings = {"model": "mlp:hidden=4", "rounds": 3, "per_round": 4}
        if name in REFUSED:
            with pytest.raises(FedskewError):
                desk.training(spelled, engine, **settings)
            continue
        server = desk.training(spelled, engine, **settings)
        assert isinstance(server.algorithm.topology(0), EdgeServers)
        for _ in range(3):
            server.advance()
        servers.append(server)
    if servers:
        one, other = servers
        for part, value in one.state.params.items():
            found = other.state.params[part].numpy()
            np.testing.assert_allclose(value.numpy(), found, atol=1e-9)


def test_too_few_edges_for_the_rule_of_the_cloud_leave_the_control_a_mean(desk):
    """Clients keep their new controls, so the server's must follow, though its weights stay where they are."""
    method = "scaffold + hierarchical:edges=5,every=2 + krum:attackers=1"
    server = desk.training(method, per_round=3, rounds=4)
    shares = torch.from_numpy(desk.sizes / desk.sizes.sum())
    for _ in range(4):
        server.advance()
        np.testing.assert_array_equal(desk.flat(server.state.params), desk.start())
        own = server.clients.store.get(np.arange(5))["state.control"]
        for name, control in server.state.server_state["control"].items():
            mean = torch.tensordot(shares, own[name], dims=1)
            assert mean.abs().max() > 1e-6
            torch.testing.assert_close(control, mean, rtol=0, atol=1e-12)


def test_a_rule_of_the_cloud_that_never_has_enough_edges_is_refused(desk):
    method = "fedavg + hierarchical:edges=5,every={} + krum:attackers=1"
    with pytest.raises(FedskewError, match=r"3 clients between rounds of the cloud .* needs 5"):
        desk.training(method.format(1), per_round=3)
    desk.training(method.format(2), per_round=3)
