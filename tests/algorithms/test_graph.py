"""D-PSGD and gossip against calculations by hand: mixing, traffic, time, graphs and what is refused."""

import numpy as np
import pytest
import torch

import fedskew as fs
from fedskew.algorithms import DPSGD, Stream
from fedskew.algorithms.graphs import graph_of, matching, mixing_weights
from fedskew.core.errors import FedskewError
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked

ENGINES = pytest.mark.parametrize(
    "engine", [Loop(), Stacked(mode="stack")], ids=["loop", "stacked"]
)


def mixed(net, server, links_of) -> list:
    """Return the models of all clients after the rounds of a run, from who is linked to whom in each."""
    own = [net.start() for _ in range(4)]
    for round, result in enumerate(server.results):
        clients = [line["client"] for line in result.clients]
        trained = {client: net.descend(own[client], round, client) for client in clients}
        links = links_of(round)
        fresh = {}
        for one in clients:
            near = [other for other in clients if other != one and links[one][other]]
            weights = {}
            for other in near:
                others = [k for k in clients if k != other and links[other][k]]
                weights[other] = 1 / (1 + max(len(near), len(others)))
            weights[one] = 1 - sum(weights.values())
            fresh[one] = {
                name: sum(share * trained[k][name] for k, share in weights.items())
                for name in own[one]
            }
        for client, model in fresh.items():
            own[client] = model
    return own


def assert_models(server, expected) -> None:
    for client, model in enumerate(expected):
        for name, value in server.client_model(client).items():
            np.testing.assert_allclose(value.numpy(), model[name], rtol=0, atol=1e-12)


RING = [[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]]


@ENGINES
@pytest.mark.parametrize("per_round", [4, 3])
def test_d_psgd_on_a_ring_by_hand(plain_net, engine, per_round: int):
    net = plain_net
    server = net.training("d-psgd", engine, per_round=per_round, rounds=4)
    own = mixed(net, server, lambda _: RING)
    assert_models(server, own)
    distances = []
    for model in own:
        squares = 0.0
        for name, value in model.items():
            squares += ((value - sum(other[name] for other in own) / 4) ** 2).sum()
        distances.append(squares)
    found = server.results[-1].round["consensus_distance"]
    assert found == pytest.approx(np.sqrt(np.mean(distances)), rel=1e-12)
    size = sum(value.numel() for value in server.state.params.values()) * 8
    for line in server.results[0].clients:
        here = [other["client"] for other in server.results[0].clients]
        near = sum(RING[line["client"]][other] for other in here)
        assert line["bytes_up"] == line["bytes_down"] == near * size


@ENGINES
def test_gossip_by_hand(plain_net, engine):
    net = plain_net
    server = net.training("gossip:graph=complete", engine, rounds=6)
    graph = np.ones((4, 4), dtype=bool) & ~np.eye(4, dtype=bool)
    pairs = [matching(graph, Stream(0, "server", round)) for round in range(6)]
    assert_models(server, mixed(net, server, lambda round: pairs[round]))
    assert len({tuple(one.ravel()) for one in pairs}) > 1, "the pairs are always the same"


@ENGINES
@pytest.mark.parametrize("epochs", [1, 2])
def test_the_complete_graph_is_fedavg(plain_net, engine, epochs: int):
    settings = {"epochs": epochs, "momentum": 0.9, "rounds": 4}
    graph = plain_net.training("d-psgd:graph=complete", engine, **settings)
    fedavg = plain_net.training("fedavg", engine, weights="uniform", **settings)
    for client in range(4):
        for name, value in fedavg.state.params.items():
            torch.testing.assert_close(graph.client_model(client)[name], value, rtol=0, atol=1e-14)
    assert graph.results[-1].round["consensus_distance"] < 1e-15


def test_a_round_lasts_as_long_as_the_client_with_the_most_neighbours(plain_net, tmp_path):
    star = tmp_path / "star.csv"
    star.write_text("0,1\n0 2\n\n0,3\n")
    fleet = "uniform:rows_per_second=1000,seconds_per_step=0,mbit_per_second=8,latency=0"
    server = plain_net.training(f"d-psgd:graph={star}", Loop(), rounds=1, fleet=fleet)
    size = sum(value.numel() for value in server.state.params.values()) * 8
    sent = [line["bytes_up"] / size for line in server.results[0].clients]
    assert sent == [3, 1, 1, 1]
    seconds = [line["seconds"] for line in server.results[0].clients]
    rows = plain_net.sizes * 2 / 1000
    expected = rows + 2 * np.array([3, 1, 1, 1]) * size * 1e-6
    np.testing.assert_allclose(seconds, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("graph", "clients", "degrees"),
    [
        ("ring", 5, {2}),
        ("ring", 2, {1}),
        ("torus", 12, {4}),
        ("torus", 6, {3}),
        ("complete", 5, {4}),
        ("random", 20, {3, 4}),
    ],
)
def test_graphs_are_symmetric_and_connected(graph: str, clients: int, degrees: set):
    links = graph_of(graph, clients, 4, 0)
    assert (links == links.T).all()
    assert not links.diagonal().any()
    assert set(links.sum(1).tolist()) <= degrees
    weights = mixing_weights(links)
    np.testing.assert_allclose(weights.sum(0), 1.0)
    assert (weights >= 0).all()
    # The second largest eigenvalue is below 1 where models of all clients become alike
    values = np.sort(np.abs(np.linalg.eigvalsh(weights)))
    assert values[-2] < 1 - 1e-9


def test_a_matching_cannot_be_larger():
    links = graph_of("ring", 7, 2, 0)
    for round in range(20):
        pairs = matching(links, Stream(0, "server", round))
        assert (pairs == pairs.T).all()
        assert (pairs <= links).all()
        free = pairs.sum(1) == 0
        assert pairs.sum(1).max() == 1
        assert not links[np.ix_(free, free)].any()


def test_graphs_that_cannot_be_made(tmp_path):
    with pytest.raises(FedskewError, match="7 clients make one row: use graph=ring"):
        DPSGD(graph="torus").check_clients(7)
    with pytest.raises(FedskewError, match="use an even number"):
        DPSGD(graph="random", degree=3).check_clients(8)
    with pytest.raises(FedskewError, match="there is no such file"):
        DPSGD(graph="rnig").check_clients(8)
    split = tmp_path / "split.csv"
    split.write_text("0,1\n2,3\n")
    with pytest.raises(FedskewError, match="no path leads from client 0 to client 2"):
        DPSGD(graph=str(split)).check_clients(4)
    for line in ("0,9", "0", "a,b", "0,1,2", "-1,2"):
        split.write_text(f"0,1\n{line}\n")
        with pytest.raises(FedskewError, match="is not a pair of client numbers from 0 to 3"):
            DPSGD(graph=str(split)).check_clients(4)
    split.write_text("0,1\n2,2\n")
    with pytest.raises(FedskewError, match="line 2: '2,2' links a client to itself"):
        DPSGD(graph=str(split)).check_clients(4)
    with pytest.raises(FedskewError, match="degree=4 needs at least 5 clients, and there are 4"):
        DPSGD(graph="random", degree=4).check_clients(4)


def test_a_file_that_has_changed_is_read_again(tmp_path):
    file, method = tmp_path / "links.csv", DPSGD(graph=str(tmp_path / "links.csv"))
    for lines, degrees in (("0,1\n1,2\n", [1, 2, 1]), ("0,1\n0,2\n", [2, 1, 1])):
        file.write_text(lines)
        method.check_clients(3)
        assert method.links(3, Stream(0, "server", 0)).sum(1).tolist() == degrees


@pytest.mark.parametrize("addition", ["topk", "quantize"])
def test_neighbours_cannot_undo_a_compression(desk, addition: str):
    with pytest.raises(FedskewError, match="neighbours do not have each other's"):
        desk.training(f"d-psgd + {addition}")


def test_clients_of_a_graph_count_equally(plain_net):
    server = plain_net.training("d-psgd", weights="size")
    assert server.weights == "uniform"
    assert {line["weight"] for line in server.results[-1].clients} == {0.25}


def test_a_graph_has_no_server_that_selects(desk):
    with pytest.raises(FedskewError, match="on a graph there is none"):
        desk.training("d-psgd + power-of-choice")


def test_a_run_on_a_graph_has_no_shared_model(desk):
    run = fs.train(
        desk.federation(), "logreg", "gossip", rounds=3, folder=False, batch_size=4, device="cpu"
    )
    assert "consensus_distance" in run.rounds
    assert run.summary["shared_model"] == "each client has a model of its own"
    assert run.rounds["consensus_distance"].iloc[-1] > 0


def test_a_resumed_run_has_the_links_it_began_with(plain_net, tmp_path):
    links = tmp_path / "links.csv"
    links.write_text("0,1\n1,2\n2,3\n")
    began = plain_net.training(f"d-psgd:graph={links}", Loop(), rounds=2)
    links.write_text("0,1\n1,2\n2,3\n3,0\n")
    resumed = plain_net.training(f"d-psgd:graph={links}", Loop(), rounds=1)
    resumed.restore(began.checkpoint())
    with pytest.raises(FedskewError, match="has other links than when the run began"):
        resumed.advance()
