"""Trackers: what MLflow and Weights & Biases are told, offline, and that a run outlives their errors."""

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import fedskew as fs


@pytest.fixture(scope="module")
def fed() -> fs.Federation:
    return fs.split(fs.load("digits"), "iid", clients=3)


class InterruptError(Exception):
    pass


def after(round: int) -> Callable[[Any, int], None]:
    def crash(result: Any, rounds: int) -> None:
        if result.round["round"] == round:
            raise InterruptError

    return crash


class FakeClient:
    """MLflow's client, as far as it is used; databases are kept by their address."""

    stores: dict[str, dict[str, Any]] = {}  # noqa: RUF012

    def __init__(self, tracking_uri: str) -> None:
        assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
        self.store = self.stores.setdefault(
            tracking_uri, {"params": {}, "tags": {}, "metrics": [], "status": []}
        )

    def get_experiment_by_name(self, name: str) -> Any:
        return SimpleNamespace(experiment_id="1") if "name" in self.store else None

    def create_experiment(self, name: str, artifact_location: str) -> str:
        self.store |= {"artifacts": artifact_location}
        return "1"

    def search_runs(self, experiments: list[str], max_results: int) -> list[Any]:
        return [SimpleNamespace(info=SimpleNamespace(run_id="r"))] if "name" in self.store else []

    def create_run(self, experiment: str, run_name: str) -> Any:
        self.store["name"] = run_name
        return SimpleNamespace(info=SimpleNamespace(run_id="r"))

    def update_run(self, run: str, status: str) -> None:
        self.store["status"].append(status)

    def get_metric_history(self, run: str, name: str) -> list[Any]:
        return [metric for metric in self.store["metrics"] if metric.key == name]

    def log_param(self, run: str, name: str, value: Any) -> None:
        self.store["params"][name] = value

    def set_tag(self, run: str, name: str, value: str) -> None:
        self.store["tags"][name] = value

    def log_batch(self, run: str, metrics: list[Any]) -> None:
        self.store["metrics"] += metrics

    def set_terminated(self, run: str, status: str) -> None:
        self.store["status"].append(status)


class FakeRun:
    """An offline run of Weights & Biases, as far as it is used."""

    def __init__(self, **given: Any) -> None:
        assert os.environ["WANDB_ERROR_REPORTING"] == "false"
        self.given, self.rows, self.summary, self.exit = given, {}, {}, None

    def log(self, row: dict[str, float], step: int) -> None:
        assert step not in self.rows
        self.rows[step] = row

    def finish(self, exit_code: int) -> None:
        self.exit = exit_code


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> list[FakeRun]:
    """Put fake packages in the place of the real ones; return the runs of Weights & Biases that are begun."""
    begun: list[FakeRun] = []
    mlflow, entities, wandb = (
        ModuleType("mlflow"),
        ModuleType("mlflow.entities"),
        ModuleType("wandb"),
    )
    mlflow.MlflowClient = FakeClient  # type: ignore[attr-defined]
    entities.Metric = lambda key, value, timestamp, step: SimpleNamespace(
        key=key, value=value, step=step
    )  # type: ignore[attr-defined]
    wandb.Settings = dict  # type: ignore[attr-defined]
    wandb.init = lambda **given: begun.append(FakeRun(**given)) or begun[-1]  # type: ignore[attr-defined]
    for name in ("MLFLOW_DISABLE_TELEMETRY", "WANDB_ERROR_REPORTING"):
        monkeypatch.setenv(name, "")
    for module in (mlflow, entities, wandb, ModuleType("alembic"), ModuleType("sqlalchemy")):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(FakeClient, "stores", {})
    return begun


def test_both_are_told_of_settings_rounds_summary_and_folder(
    fed: fs.Federation, tmp_path: Path, fakes: list[FakeRun]
) -> None:
    place = tmp_path / "run"
    with pytest.raises(InterruptError):
        fs.train(
            fed, "logreg", "fedprox:mu=0.5", rounds=4, folder=place, mlflow=True, wandb=True, checkpoint_every=2,
            eval_every=2, callbacks=after(3),
        )  # fmt: skip
    run = fs.resume(place)
    (store,) = FakeClient.stores.values()
    assert [FakeClient.stores[f"sqlite:///{place}/mlflow.db"]] == [store]
    assert (store["name"], store["tags"]["folder"]) == ("run", str(place))
    assert (
        store["params"]["algorithm.name"],
        store["params"]["algorithm.mu"],
        store["params"]["rounds"],
    ) == (
        "fedprox",
        0.5,
        4,
    )
    losses = [
        (metric.step, metric.value) for metric in store["metrics"] if metric.key == "local_loss"
    ]
    # Once, also what was run again
    assert losses == list(zip([1, 2, 3, 4], run.rounds["local_loss"], strict=True))
    assert [metric.step for metric in store["metrics"] if metric.key == "test_accuracy"] == [2, 4]
    numbers = {metric.key: metric.value for metric in store["metrics"]}
    assert numbers["summary/test_accuracy_last"] == run.summary["test_accuracy_last"]
    assert store["status"] == ["KILLED", "RUNNING", "FINISHED"]
    stopped, whole = fakes
    assert (stopped.exit, whole.exit) == (1, 0)
    assert whole.given["mode"] == "offline"
    assert (whole.given["dir"], whole.given["config"]["folder"]) == (str(place), str(place))
    assert whole.given["config"]["algorithm.mu"] == 0.5
    assert {step: row["local_loss"] for step, row in whole.rows.items()} == dict(losses)
    assert whole.summary["summary/test_accuracy_last"] == run.summary["test_accuracy_last"]


@pytest.mark.parametrize("where", ["init", "log", "finish"])
def test_a_run_outlives_an_error_of_a_tracker(
    fed: fs.Federation,
    tmp_path: Path,
    fakes: list[FakeRun],
    monkeypatch: pytest.MonkeyPatch,
    where: str,
) -> None:
    def full(*args: Any, **given: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(
        *((sys.modules["wandb"], "init") if where == "init" else (FakeRun, where)), full
    )
    with pytest.warns(
        UserWarning, match=r"wandb failed and is left out.*OSError: no space left.*the run goes on"
    ):
        run = fs.train(fed, "logreg", rounds=3, folder=tmp_path / "run", mlflow=True, wandb=True)
    same = fs.train(fed, "logreg", rounds=3, folder=False)
    assert run.rounds["local_loss"].tolist() == same.rounds["local_loss"].tolist()
    assert fs.open_run(tmp_path / "run").summary["rounds"] == 3
    (store,) = FakeClient.stores.values()
    assert store["status"] == ["FINISHED"]  # the other goes on


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_what_cannot_be_done_is_refused_before_anything_is_written(
    fed: fs.Federation,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fakes: list[FakeRun],
    name: str,
) -> None:
    with pytest.raises(fs.FedskewError, match=f"{name}=true needs a run folder"):
        fs.train(fed, "logreg", folder=False, **{name: True})
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        fs.FedskewError, match=rf"{name}=true needs the package: pip install 'fedskew\[{name}\]'"
    ):
        fs.train(fed, "logreg", folder=tmp_path / "run", **{name: True})
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what MLflow imports
def test_the_real_mlflow(fed: fs.Federation, tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="needs fedskew[mlflow]")
    pytest.importorskip("sqlalchemy", reason="needs fedskew[mlflow]")
    place = tmp_path / "run"
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "mlflow failed")
        with pytest.raises(InterruptError):
            fs.train(
                fed,
                "logreg",
                rounds=4,
                folder=place,
                mlflow=True,
                checkpoint_every=2,
                callbacks=after(3),
            )
        run = fs.resume(place)
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{place}/mlflow.db")
    (found,) = client.search_runs([client.get_experiment_by_name("fedskew").experiment_id])
    assert (found.info.status, found.data.tags["folder"]) == ("FINISHED", str(place))
    assert found.data.params["lr"] == "0.1"
    losses = client.get_metric_history(found.info.run_id, "local_loss")
    assert [entry.step for entry in losses] == [1, 2, 3, 4]
    assert [entry.value for entry in losses] == pytest.approx(run.rounds["local_loss"].tolist())
    assert found.data.metrics["summary/test_accuracy_last"] == pytest.approx(
        run.summary["test_accuracy_last"]
    )


def test_the_real_wandb(fed: fs.Federation, tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="needs fedskew[wandb]")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "wandb failed")
        fs.train(fed, "logreg", rounds=3, folder=tmp_path / "run", wandb=True)
    (file,) = (tmp_path / "run/wandb/latest-run/").glob("*.wandb")
    content = file.read_bytes()
    assert content.count(b"local_loss") >= 3
    assert b"summary/test_accuracy_last" in content
