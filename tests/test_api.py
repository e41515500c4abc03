"""The Python interface: load, split, train, resume, with everything that may be passed in."""

import importlib
import inspect
import json
import pkgutil
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fedskew as fs
from fedskew.algorithms.contract import View
from fedskew.core.streams import Stream
from fedskew.core.trees import Tree


@pytest.fixture(scope="module")
def fed() -> fs.Federation:
    return fs.split(fs.load("digits"), "dirichlet:alpha=0.2", clients=10, seed=0)


def arrays(rows: int = 60, features: int = 3) -> tuple[Any, Any]:
    draw = np.random.default_rng(0)
    y = np.arange(rows) % 3
    return (draw.normal(size=(rows, features)) + y[:, None]).astype(np.float32), y


def mlp() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(64, 16),
            nn.BatchNorm1d(16),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(16, 10),
        )


def same_weights(left: nn.Module, right: nn.Module) -> bool:
    mine, theirs = left.state_dict(), right.state_dict()
    return mine.keys() == theirs.keys() and all(
        torch.equal(mine[name], theirs[name]) for name in mine
    )


# -- as the front page says --------------------------------------------------------------------------------------------


def test_the_front_page(
    fed: fs.Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = fs.train(fed, model="mlp", algorithm=fs.FedProx(mu=0.1), rounds=3)
    assert run.folder == Path("runs/fedprox-digits-dirichlet-s0")
    assert run.rounds["round"].tolist() == [1, 2, 3]
    assert {"test_accuracy_last", "test_accuracy_best"} <= set(run.summary)
    assert fed.train.x.shape == (1438, 1, 8, 8)
    assert fed.train.y.shape == (1438,)
    assert fed.test.x.shape == (359, 1, 8, 8)
    assert fed.partition.rows.shape == (1438,)
    assert fed.partition.offsets.shape == (11,)
    predicted = run.model.cpu()(torch.from_numpy(fed.test.x)).argmax(1).numpy()
    assert (predicted == fed.test.y).mean() == pytest.approx(run.summary["test_accuracy_last"])
    settings: dict[str, Any] = {
        "epochs": 3,
        "batch_size": 20,
        "lr": 0.03,
        "momentum": 0.9,
        "engine": "stacked",
        "device": "cpu",
    }
    other = fs.train(fed, "mlp", "fedavg", per_round=5, rounds=1, seed=0, folder=False, **settings)
    assert other.summary["clients_per_round"] == 5


def test_a_folder_holds_all_of_a_run_with_its_page(fed: fs.Federation, tmp_path: Path) -> None:
    run = fs.train(fed, "logreg", rounds=2, folder=tmp_path / "deep" / "run")
    assert run.folder == tmp_path / "deep" / "run"
    assert (run.folder / "report.html").read_text().startswith("<!DOCTYPE html>")
    stored = load_file(run.folder / "model.safetensors")
    assert stored.keys() == run.model.state_dict().keys()
    assert all(
        torch.equal(stored[name], value) for name, value in run.model.cpu().state_dict().items()
    )
    environment = json.loads((run.folder / "environment.json").read_text())
    assert environment["torch"] == torch.__version__
    assert environment["federation"] == fed.fingerprint


def test_without_a_folder_nothing_is_written(
    fed: fs.Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = fs.train(fed, "logreg", rounds=1, folder=False)
    assert run.folder is None
    assert list(tmp_path.iterdir()) == []


def test_a_callback_sees_every_round(fed: fs.Federation) -> None:
    seen: list[tuple[int, int, int]] = []
    fs.train(
        fed,
        "logreg",
        rounds=3,
        folder=False,
        callbacks=lambda result, of: seen.append((result.round["round"], of, len(result.clients))),
    )
    assert seen == [(1, 3, 10), (2, 3, 10), (3, 3, 10)]


def test_ctrl_c_in_python_is_still_a_keyboard_interrupt(fed: fs.Federation, tmp_path: Path) -> None:
    def stop(result: Any, of: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(
        KeyboardInterrupt,
        match=r"interrupted after round 1 of 4; resume with: fedskew resume .*run",
    ):
        fs.train(fed, "logreg", rounds=4, folder=tmp_path / "run", callbacks=stop)
    with pytest.raises(KeyboardInterrupt, match=r"interrupted after round 1 of 4$"):
        fs.train(fed, "logreg", rounds=4, folder=False, callbacks=stop)
    assert fs.resume(tmp_path / "run").summary["rounds"] == 4


def test_the_same_call_gives_the_same_bits(fed: fs.Federation) -> None:
    runs = [
        fs.train(fed, "mlp:hidden=8", "fedadam", rounds=2, per_round=4, seed=5, folder=False)
        for _ in range(2)
    ]
    assert same_weights(runs[0].model, runs[1].model)
    pd.testing.assert_frame_equal(*(run.clients for run in runs))
    other = fs.train(fed, "mlp:hidden=8", "fedadam", rounds=2, per_round=4, seed=6, folder=False)
    assert not same_weights(runs[0].model, other.model)


def test_the_global_generator_is_neither_read_nor_moved(fed: fs.Federation) -> None:
    torch.manual_seed(1)
    before, numpys = torch.get_rng_state(), np.random.get_state()[1]
    first = fs.train(fed, mlp(), rounds=1, folder=False)
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], numpys)
    torch.manual_seed(2)
    assert same_weights(first.model, fs.train(fed, mlp(), rounds=1, folder=False).model)


def test_the_signature_names_every_setting() -> None:
    parameters = inspect.signature(fs.train).parameters
    assert list(parameters)[:5] == ["fed", "model", "algorithm", "folder", "callbacks"]
    for field in fields(fs.Settings):
        assert parameters[field.name].default == field.default


def test_every_public_name_can_be_had() -> None:
    for name in fs.__all__:
        assert getattr(fs, name) is not None
    assert set(fs.__all__) <= set(dir(fs))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = fs.nothing


# -- data --------------------------------------------------------------------------------------------------------------


def test_numpy_torch_and_pandas_are_the_same_rows() -> None:
    x, y = arrays()
    frame = pd.DataFrame(x, columns=["a", "b", "c"])
    expected = fs.split((x, y), "dirichlet", clients=4, seed=2)
    for data in (
        (torch.from_numpy(x), torch.from_numpy(y)),
        (frame, pd.Series(y)),
        (x.tolist(), y.tolist()),
    ):
        found = fs.split(data, "dirichlet", clients=4, seed=2)
        assert found.fingerprint == expected.fingerprint
    found = fs.split(frame.assign(kind=y), "dirichlet", clients=4, seed=2, label="kind")
    assert found.fingerprint == expected.fingerprint
    assert found.data.features == ("a", "b", "c")


def test_labels_may_be_words_and_groups_may_be_clients() -> None:
    x, y = arrays()
    names = np.array(["red", "green", "blue"])[y]
    people = np.array(["ann", "bob", "cid", "dot"])[np.arange(60) % 4]
    fed = fs.split((x, names, people), "natural")
    assert fed.data.classes == ("blue", "green", "red")
    assert fed.clients == 4
    frame = pd.DataFrame(x).assign(colour=names, who=people)
    assert fs.split(frame, "natural", label="colour", group="who").fingerprint == fed.fingerprint
    assert fs.train(fed, "logreg", rounds=1, folder=False).summary["clients"] == 4


def test_clients_when_left_out() -> None:
    assert fs.split(arrays(), "iid").clients == 10
    assert fs.split((*arrays(), np.arange(60) % 3), "natural").clients == 3


def test_a_function_as_skew() -> None:
    streams: list[Stream] = []

    def odd_and_even(rows: Any, clients: int, stream: Stream) -> fs.Partition:
        streams.append(stream)
        return fs.Partition.from_owner(np.arange(len(rows)) % clients, clients)

    fed = fs.split(arrays(), odd_and_even, clients=2, seed=4)
    assert fed.partition.of(1).tolist() == list(range(1, 48, 2))
    assert streams[0].seed == 4
    assert fs.train(fed, "logreg", rounds=1, folder=False).summary["skew"] == "from-python"


def test_skews_as_text_and_as_table(fed: fs.Federation) -> None:
    table = {"name": "dirichlet", "alpha": 0.2}
    assert fs.split(fs.load("digits"), table, clients=10, seed=0).fingerprint == fed.fingerprint
    assert (
        fs.split(fs.load("digits"), "dirichlet:alpha=0.3", clients=10, seed=0).fingerprint
        != fed.fingerprint
    )


def test_fingerprints_see_every_part() -> None:
    x, y = arrays()
    base = fs.split((x, y), "iid", clients=3)
    other = x.copy()
    other[base.partition.of(0)[0], 0] += 1
    assert fs.split((other, y), "iid", clients=3).fingerprint != base.fingerprint
    assert fs.split((x, y), "iid", clients=3, seed=1).fingerprint != base.fingerprint


# -- models ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_a_users_module_is_the_start_and_is_not_changed(engine: str, fed: fs.Federation) -> None:
    module = mlp()
    module[2].eval()  # a mode of its own, which must survive
    before = {name: value.clone() for name, value in module.state_dict().items()}
    modes = [part.training for part in module.modules()]
    run = fs.train(fed, module, rounds=1, folder=False, engine=engine, lr=1e-12)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert [part.training for part in module.modules()] == modes
    assert all(value.grad is None and value.requires_grad for value in module.parameters())
    assert run.model is not module
    for mine, theirs in zip(run.model.cpu().parameters(), module.parameters(), strict=True):
        # With next to no learning rate the start is the end
        torch.testing.assert_close(mine, theirs)
    assert not any(part.training for part in run.model.modules())


def test_a_function_as_model_depends_on_the_seed_alone(fed: fs.Federation) -> None:
    def make(shape: tuple[int, ...], classes: int) -> nn.Module:
        assert (shape, classes) == ((1, 8, 8), 10)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))

    torch.manual_seed(0)
    first = fs.train(fed, make, rounds=1, folder=False, seed=3)
    torch.manual_seed(1)
    assert same_weights(first.model, fs.train(fed, make, rounds=1, folder=False, seed=3).model)
    assert not same_weights(first.model, fs.train(fed, make, rounds=1, folder=False, seed=4).model)


class Tied(nn.Module):
    """Has weights that are used twice, and a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)
        self.second.weight = self.first.weight
        self.register_buffer("scale", torch.ones(1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.head(
            self.second(self.first(x.flatten(1)).relu()).relu() * self.scale
        )
        return answer


def test_tied_weights_and_temporary_buffers(fed: fs.Federation, tmp_path: Path) -> None:
    module = Tied()
    run = fs.train(fed, module, rounds=2, folder=tmp_path / "run")
    assert isinstance(run.model, Tied)
    assert run.model.second.weight is run.model.first.weight
    assert not torch.equal(run.model.cpu().first.weight, module.first.weight)
    (tmp_path / "run" / "summary.json").unlink()
    assert same_weights(fs.resume(tmp_path / "run", model=module).model.cpu(), run.model)


def test_a_module_in_double_precision(fed: fs.Federation) -> None:
    run = fs.train(fed, mlp().double(), rounds=1, folder=False, dtype="float64")
    assert next(run.model.parameters()).dtype == torch.float64


# -- algorithms --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "algorithm", ["fedprox:mu=0.5", {"name": "fedprox", "mu": 0.5}, fs.FedProx(mu=0.5)]
)
def test_an_algorithm_as_text_table_and_object(algorithm: Any, fed: fs.Federation) -> None:
    run = fs.train(fed, "logreg", algorithm, rounds=1, folder=False)
    assert run.summary["algorithm"] == "fedprox:mu=0.5"
    assert (
        fs.train(fed, "logreg", fs.FedProx, rounds=1, folder=False).summary["algorithm"]
        == "fedprox"
    )


@dataclass(frozen=True)
class Half(fs.FedAvg):
    """Half of every change."""

    factor: float = 0.5

    def payload(self, view: View) -> Tree:
        return {
            "delta": {
                name: self.factor * value for name, value in super().payload(view)["delta"].items()
            }
        }


def test_an_algorithm_of_ones_own(fed: fs.Federation, tmp_path: Path) -> None:
    run = fs.train(fed, "logreg", Half(), rounds=2, folder=tmp_path / "run")
    assert run.summary["algorithm"] == f"{__name__}.Half:weights=none,factor=0.5"
    assert not same_weights(run.model, fs.train(fed, "logreg", rounds=2, folder=False).model)
    (tmp_path / "run" / "summary.json").unlink()
    with pytest.raises(
        fs.FedskewError,
        match=r"its algorithm was a Python object, .*fedskew.resume\(folder, algorithm=\.\.\.\)",
    ):
        fs.resume(tmp_path / "run")
    assert same_weights(fs.resume(tmp_path / "run", algorithm=Half()).model, run.model)


# -- resume with what only Python has ----------------------------------------------------------------------------------


class Crash(BaseException):
    """An exception that no code catches."""


def crash_after_two(result: Any, of: int) -> None:
    if result.round["round"] == 2:
        raise Crash


def test_resume_with_data_and_model_given_back(tmp_path: Path) -> None:
    x, y = arrays(features=64)
    fed = fs.split((x, y), "iid", clients=4)
    module = nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    expected = fs.train(fed, module, "fedavgm", rounds=4, folder=tmp_path / "whole")
    with pytest.raises(Crash):
        fs.train(
            fed, module, "fedavgm", rounds=4, folder=tmp_path / "run", callbacks=crash_after_two
        )
    with pytest.raises(
        fs.FedskewError,
        match=r"its data was a Python object, .*fedskew.resume\(folder, fed=\.\.\.\)",
    ):
        fs.resume(tmp_path / "run")
    with pytest.raises(
        fs.FedskewError,
        match=r"its model was a Python object, .*fedskew.resume\(folder, model=\.\.\.\)",
    ):
        fs.resume(tmp_path / "run", fed=fed)
    with pytest.raises(fs.FedskewError, match="hold other rows than when the run began"):
        fs.resume(tmp_path / "run", fed=fs.split((x + 1, y), "iid", clients=4), model=module)
    run = fs.resume(tmp_path / "run", fed=fed, model=module)
    assert same_weights(run.model, expected.model)
    pd.testing.assert_frame_equal(run.clients, expected.clients)
    for name in ("rounds.csv", "clients.csv", "clients_final.csv", "model.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_data_held_out_with_another_seed_cannot_be_loaded_again_by_itself(tmp_path: Path) -> None:
    """Check that a configuration, which has one seed for both, names the data only if split and held-out seed agree."""
    data = fs.load("digits", validation=0.1, seed=1)
    other = fs.train(
        fs.split(data, "iid", clients=3, seed=2), "logreg", rounds=1, folder=tmp_path / "other"
    )
    same = fs.train(
        fs.split(data, "iid", clients=3, seed=1), "logreg", rounds=1, folder=tmp_path / "same"
    )
    assert other.summary["data"] == "from-python"
    assert same.summary["data"] == "digits"
    configuration = tomllib.loads((tmp_path / "same" / "config.toml").read_text())
    assert (configuration["split_seed"], configuration["seed"], configuration["validation"]) == (
        1,
        0,
        0.1,
    )
    (tmp_path / "same" / "summary.json").unlink()
    assert (
        fs.resume(tmp_path / "same").summary["validation_accuracy_last"]
        == same.summary["validation_accuracy_last"]
    )


# -- TensorBoard -------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_events(fed: fs.Federation, tmp_path: Path) -> None:
    event_accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    with pytest.raises(Crash):
        fs.train(
            fed,
            "logreg",
            rounds=4,
            folder=tmp_path / "run",
            tensorboard=True,
            checkpoint_every=3,
            eval_every=2,
            callbacks=crash_after_two,
        )
    run = fs.resume(tmp_path / "run")
    events = event_accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert set(events.Tags()["scalars"]) == set(run.rounds.columns) - {"round", "seconds"}
    losses = events.Scalars("local_loss")
    # What was written before the crash is there once
    assert [event.step for event in losses] == [1, 2, 3, 4]
    np.testing.assert_allclose(
        [event.value for event in losses], run.rounds["local_loss"], rtol=1e-6
    )
    assert [event.step for event in events.Scalars("test_accuracy")] == [2, 4]


def test_no_public_name_is_hidden_by_a_module():
    """Check names of modules, which importing sets on the package: none may be that of a public function."""
    for module in pkgutil.walk_packages(fs.__path__, "fedskew."):
        if module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as missing:
            if missing.name not in ("triton", "flwr"):  # which not every machine has
                raise
    for name in fs.__all__:
        assert not isinstance(getattr(fs, name), ModuleType), name
    assert (
        fs.measure(fs.split(fs.load("digits"), "iid", 3), chance=False)
        .views["labels"]["hellinger"]
        .mean
        < 0.2
    )
