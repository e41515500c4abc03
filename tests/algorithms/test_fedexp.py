"""FedExP against a calculation in NumPy, its identities, and what its clients send."""

import numpy as np
import pytest

from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked

ENGINES = pytest.mark.parametrize(
    "engine", [Loop(), Stacked(mode="stack")], ids=["loop", "stacked"]
)


@ENGINES
@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_by_hand(desk, engine, weights: str):
    epsilon = 1e-4
    share = desk.sizes / desk.sizes.sum() if weights == "size" else np.full(5, 0.2)
    w = desk.start()
    steps = []
    for round in range(3):
        deltas = [desk.descend(w, round, client) - w for client in range(5)]
        mean = np.tensordot(share, np.stack(deltas), 1)
        squares = [(delta**2).sum() for delta in deltas]
        steps.append(max(1.0, share @ squares / (2 * ((mean**2).sum() + epsilon))))
        w = w + steps[-1] * mean
    found, results = desk.train(f"fedexp:epsilon={epsilon}", engine, weights=weights)
    np.testing.assert_allclose(found, w, rtol=0, atol=1e-12)
    assert [result.round["server_step"] for result in results] == pytest.approx(steps, abs=1e-12)
    assert max(steps) > 1


@ENGINES
def test_a_large_epsilon_is_fedavg(desk, engine):
    found, results = desk.train("fedexp:epsilon=1e9", engine)
    np.testing.assert_array_equal(found, desk.train("fedavg", engine)[0])
    assert [result.round["server_step"] for result in results] == [1.0] * 3


@ENGINES
def test_norms_are_of_what_clients_send(norm_net, engine):
    """Check one round in which scale and shift of BatchNorm stay with clients, and do not count."""
    server = norm_net.training("fedexp:epsilon=1e-6", engine, norm="local", rounds=1)
    start = norm_net.start()
    names = [name for name in server.state.params if not name.startswith("features.1")]
    ended = [norm_net.descend(start, 0, client) for client in range(4)]
    squares = [sum(((w[name] - start[name]) ** 2).sum() for name in names) for w in ended]
    mean = {name: norm_net.mean(ended, name) - start[name] for name in names}
    length = sum((change**2).sum() for change in mean.values())
    eta = max(1.0, norm_net.share @ squares / (2 * (length + 1e-6)))
    assert server.results[0].round["server_step"] == pytest.approx(eta, abs=1e-12)


@ENGINES
def test_clients_send_their_change_and_one_number(desk, engine):
    _, results = desk.train("fedexp", engine)
    assert [client["bytes_up"] for client in results[0].clients] == [8 * (3 * 5 + 3 + 1)] * 5
