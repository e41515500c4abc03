"""Clients as nodes of Flower's simulation: real messages, real processes, the numbers of the loop engine."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from tests.deploy.test_parity import ALONE, METHODS

import fedskew as fs
from fedskew.core.errors import FedskewError
from fedskew.deploy import remote_server
from fedskew.deploy.flower_grid import GridTransport, simulated
from fedskew.deploy.simulated_node import answer

pytest.importorskip("flwr", reason="needs fedskew[flower]")
# Ray leaves the end of its processes to the collector of garbage.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
CLIENTS = 3
SETTINGS: dict[str, Any] = {
    "rounds": 2,
    "dtype": "float64",
    "batch_size": 64,
    "lr": 0.05,
    "threads": 1,
}
COLUMNS = {
    "train_loss",
    "test_loss",
    "test_accuracy",
    "own_test_accuracy",
    "bytes_up",
    "bytes_down",
    "clock",
    "clients",
}


@pytest.fixture(scope="module")
def fed() -> fs.Federation:
    return fs.split(fs.load("digits:test=0.95"), "dirichlet:alpha=0.5", clients=CLIENTS, seed=0)


def assert_same(nodes: Any, plain: Any) -> None:
    for name, value in plain.model.state_dict().items():
        np.testing.assert_allclose(
            nodes.model.state_dict()[name].numpy(), value.numpy(), rtol=1e-9, atol=1e-12
        )
    assert len(COLUMNS & set(plain.rounds)) >= 5
    for name in COLUMNS & set(plain.rounds):
        np.testing.assert_allclose(nodes.rounds[name], plain.rounds[name], rtol=1e-9, err_msg=name)


def test_a_run_and_its_folder_are_those_of_the_loop_engine(fed: fs.Federation, tmp_path):
    plain, nodes = (
        fs.train(
            fed, "tabular:hidden=6", "scaffold", engine=engine, folder=tmp_path / engine, **SETTINGS
        )
        for engine in ("loop", "flower")
    )
    assert_same(nodes, plain)
    # Their state is with the nodes
    files = {path.name for path in (tmp_path / "loop").iterdir()} - {"clients"}
    assert files <= {path.name for path in (tmp_path / "flower").iterdir()}
    assert (
        fs.open_run(tmp_path / "flower").summary["test_accuracy_last"]
        == plain.summary["test_accuracy_last"]
    )


@pytest.fixture(scope="module")
def simulation() -> Iterator[GridTransport]:
    """Start one simulation for many runs: it takes seconds to start."""
    with simulated(answer, CLIENTS, timeout=120) as transport:
        yield transport


@pytest.mark.parametrize("method", METHODS)
def test_every_method(
    fed: fs.Federation, simulation: GridTransport, monkeypatch: pytest.MonkeyPatch, method: str
):
    @contextmanager
    def already(*given: Any) -> Iterator[GridTransport]:
        yield simulation

    monkeypatch.setattr(remote_server, "simulated", already)
    model = ALONE.get(method, "tabular:hidden=6")
    plain, nodes = (
        fs.train(fed, model, method, engine=engine, folder=False, **SETTINGS)
        for engine in ("loop", "flower")
    )
    assert_same(nodes, plain)


def test_python_objects_cannot_be_made_elsewhere(fed: fs.Federation):
    from torch import nn

    with pytest.raises(
        FedskewError,
        match="engine=flower makes clients in other processes from names, and model is",
    ):
        fs.train(
            fed,
            nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),
            engine="flower",
            rounds=1,
            folder=False,
        )
