"""The model that a client uses is what the method's ``client_model`` makes: scored, predicting, exported, re-opened."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

import fedskew as fs
from fedskew.algorithms.contract import Algorithm, View, algorithms
from fedskew.algorithms.ditto import Ditto
from fedskew.algorithms.fedavg import FedAvg
from fedskew.core.errors import FedskewError
from fedskew.core.trees import Tensors, Tree
from fedskew.inference.exported_model import export_model

HEAD = ("head.weight", "head.bias")
MODEL = "mlp:hidden=6"
ENGINES = pytest.mark.parametrize("engine", ["loop", "stacked"])


@dataclass(frozen=True)
class HalfHead(Ditto):
    """A client uses the shared model, with a head half way between the shared one and that of its own model."""

    def client_model(self, shared: Tensors, kept: Tree) -> Tensors:
        """Return the shared model with the mean of two heads."""
        mixed = {name: (shared[name] + kept["local"][name]) / 2 for name in HEAD}
        return {**shared, **mixed}


@dataclass(frozen=True)
class Remembered(FedAvg):
    """Clients share everything, and each uses the weights that it had after its last local training."""

    def init_client_state(self, weights: Tensors) -> Tree:
        """Return the initial weights."""
        return {"last": weights}

    def client_state(self, view: View) -> Tree:
        """Return the weights after local training."""
        return {"last": view.params}

    def client_model(self, shared: Tensors, kept: Tree) -> Tensors:
        """Return the weights that the client remembers."""
        return {**shared, **kept["state.last"]}


@pytest.fixture(params=[HalfHead, Remembered], ids=["personal model", "client state"])
def method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[Algorithm]:
    """Register a method for one test, so that a run of it can be opened from its folder."""
    monkeypatch.setitem(algorithms.loaded(), "toy", request.param)
    return request.param


@pytest.fixture
def fed(digits: fs.Dataset) -> fs.Federation:
    return fs.split(digits, "dirichlet:alpha=0.5", 4, client_test=0.3)


@pytest.fixture(scope="module")
def digits() -> fs.Dataset:
    return fs.load("digits")


def pixels(fed: fs.Federation, client: int) -> np.ndarray:
    """Return the held-out rows of a client as they were before they became features."""
    scaling = fed.data.pipeline
    features = fed.train.x[fed.held_out.of(client)]
    return np.rint(features / scaling.factor[0] + scaling.offset[0]).astype(np.float32)


def by_hand(run: fs.Run, method: type[Algorithm], client: int) -> Tensors:
    """Return the model that a client uses, from what the server and the client have."""
    shared = run.server.state.model()
    stores = run.server.stores()
    if method is HalfHead:
        kept = stores["personal"].get(np.array([client]))["local"]
        mixed = {name: (shared[name] + kept[name][0]) / 2 for name in HEAD}
        return {**shared, **mixed}
    kept = stores["own"].get(np.array([client]))["state.last"]
    return {**shared, **{name: value[0] for name, value in kept.items()}}


@ENGINES
def test_it_is_scored_and_predicts_and_is_exported(
    method: type[Algorithm], engine: str, fed: fs.Federation, tmp_path: Path
) -> None:
    # One client never takes part
    run = fs.train(
        fed, MODEL, method(), rounds=2, per_round=1, seed=3, engine=engine, folder=tmp_path / "run"
    )
    opened = fs.open_run(tmp_path / "run")
    assert opened.personalised
    assert run.personalised
    assert len(set(run.clients["client"])) < fed.clients
    scores = run.final_clients.set_index("client")["accuracy"]
    for client in range(fed.clients):
        wanted = by_hand(run, method, client)
        labels = fed.train.y[fed.held_out.of(client)]
        rows = pixels(fed, client)
        for used in (run, opened):
            model = used.model_of(client)
            for name, value in model.named_parameters():
                assert torch.equal(value, wanted[name]), name
            found = used.predict(rows, client=client)["prediction"].astype(int)
            assert (found == labels).mean() == pytest.approx(scores[client], abs=1e-12)
        exported = tmp_path / f"{client}.pt2"
        export_model(opened, exported, "torch", client)
        outputs = torch.export.load(exported).module()(torch.from_numpy(rows))
        assert (outputs.argmax(1).numpy() == found.to_numpy()).all()


def test_every_setting_evaluates_the_same(method: type[Algorithm], fed: fs.Federation) -> None:
    one, other = (
        fs.train(
            fed, MODEL, method(), rounds=2, engine=engine, dtype="float64", folder=False
        ).final_clients
        for engine in ("loop", "stacked")
    )
    np.testing.assert_allclose(one["loss"], other["loss"], rtol=1e-10)


def test_a_class_that_is_not_registered_is_named_where_it_would_be_needed(
    fed: fs.Federation, tmp_path: Path
) -> None:
    run = fs.train(fed, MODEL, HalfHead(), rounds=1, folder=tmp_path / "run")
    opened = fs.open_run(tmp_path / "run")
    with pytest.raises(FedskewError, match=r"HalfHead\) was a Python object, and says itself"):
        opened.model_of(0)
    resumed = fs.resume(tmp_path / "run", algorithm=HalfHead())
    rows = pixels(fed, 0)
    assert resumed.predict(rows, client=0).equals(run.predict(rows, client=0))


def test_a_class_that_is_not_registered_and_leaves_the_rule_alone_is_not_needed(
    fed: fs.Federation, tmp_path: Path
) -> None:
    @dataclass(frozen=True)
    class Mine(Ditto):
        """Ditto under another name."""

    run = fs.train(fed, MODEL, Mine(), rounds=1, folder=tmp_path / "run")
    opened = fs.open_run(tmp_path / "run")
    rows = pixels(fed, 1)
    assert opened.predict(rows, client=1).equals(run.predict(rows, client=1))


@pytest.mark.parametrize("spec", ["apfl", "fedala", "fedrod", "fedproto"])
def test_a_folder_has_the_models_of_shipped_methods(fed: fs.Federation, tmp_path: Path, spec: str):
    """Check clients that took part, and those that never did."""
    settings = {"lr": 0.1, "per_round": 2, "device": "cpu", "threads": 1}
    run = fs.train(fed, MODEL, spec, folder=tmp_path / "a", rounds=1, **settings)
    opened = fs.open_run(tmp_path / "a")
    began = {line["client"] for line in run.clients.to_dict("records")}
    assert len(began) == 2
    for client in range(4):
        found = opened.model_of(client).state_dict()
        for name, value in run.model_of(client).state_dict().items():
            assert torch.equal(found[name], value)


@pytest.mark.parametrize("method", ["fedfomo:offers=2", "fedpac", "cfl", "fedamp", "d-psgd"])
def test_a_folder_has_the_models_that_a_server_keeps_for_each_client(
    tmp_path: Path, method: str
) -> None:
    fed = fs.split(fs.load("digits"), "classes:k=3", 5, seed=0)
    settings = {"rounds": 2, "lr": 0.1, "per_round": 3, "device": "cpu"}
    run = fs.train(fed, MODEL, method, folder=tmp_path / "run", **settings)
    opened = fs.open_run(tmp_path / "run")
    for client in range(5):
        expected = run.server.client_model(client)
        found = opened.model_of(client).state_dict()
        for name, value in expected.items():
            assert torch.equal(found[name], value)
