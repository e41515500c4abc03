"""Clients as nodes of Flower's simulation: real messages, real processes, the numbers of the loop engine."""

import numpy as np
import pytest

import fedskew as fs
from fedskew.core.errors import FedskewError

pytest.importorskip("flwr", reason="needs fedskew[flower]")


@pytest.fixture(scope="module")
def fed() -> fs.Federation:
    return fs.split(fs.load("digits"), "dirichlet:alpha=0.5", clients=3, seed=0)


def test_a_run_and_its_folder_are_those_of_the_loop_engine(fed: fs.Federation, tmp_path):
    settings = {"rounds": 2, "dtype": "float64", "batch_size": 64}
    plain, nodes = (
        fs.train(fed, "tabular:hidden=6", "scaffold", engine=engine, folder=tmp_path / engine, **settings)
        for engine in ("loop", "flower")
    )
    for name, value in plain.model.state_dict().items():
        np.testing.assert_allclose(nodes.model.state_dict()[name].numpy(), value.numpy(), rtol=1e-9, atol=1e-12)
    for name in ("train_loss", "test_accuracy", "bytes_up", "bytes_down", "clock"):
        np.testing.assert_allclose(nodes.rounds[name], plain.rounds[name], rtol=1e-9)
    files = {path.name for path in (tmp_path / "loop").iterdir()} - {"clients"}  # their state is with the nodes
    assert files <= {path.name for path in (tmp_path / "flower").iterdir()}
    assert fs.open_run(tmp_path / "flower").summary["test_accuracy_last"] == plain.summary["test_accuracy_last"]


def test_python_objects_cannot_be_made_elsewhere(fed: fs.Federation):
    from torch import nn

    with pytest.raises(FedskewError, match="engine=flower makes clients in other processes from names, and model is"):
        fs.train(fed, nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), engine="flower", rounds=1, folder=False)
