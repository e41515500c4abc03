"""The mean score of the models that clients use, after every evaluation and after the last round."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedskew as fs
from fedskew.core.errors import FedskewError
from fedskew.runs import folder as on_disk
from fedskew.server import rows_of_clients
from fedskew.server.rows_of_clients import ClientRows
from fedskew.server.scorer import Scorer

SETTINGS: dict[str, Any] = {"rounds": 3, "batch_size": 32, "lr": 0.05, "device": "cpu"}
ENGINES = pytest.mark.parametrize("engine", ["loop", "stacked"])
METHODS = pytest.mark.parametrize("method", ["fedavg", "ditto", "fedper", "local", "central"])


@pytest.fixture(scope="module")
def digits() -> fs.Dataset:
    return fs.load("digits")


@pytest.fixture(scope="module")
def fed(digits: fs.Dataset) -> fs.Federation:
    return fs.split(digits, "classes:k=3", 6, client_test=0.2, client_validation=0.2)


@ENGINES
@METHODS
@pytest.mark.parametrize("metric", [None, "balanced_accuracy", "macro_f1"])
@pytest.mark.parametrize("per_round", [None, 2])
def test_the_last_round_is_the_last_table(
    fed: fs.Federation, method: str, metric: str | None, engine: str, per_round: int | None
) -> None:
    if method == "central":
        per_round = None
    run = fs.train(
        fed, "mlp:hidden=6", method, metric=metric, engine=engine, per_round=per_round,
        folder=False, **SETTINGS,
    )  # fmt: skip
    name = metric or "accuracy"
    last = run.rounds.iloc[-1]
    assert last[f"client_test_{name}"] == run.summary[f"client_{name}_mean"]
    assert last[f"client_test_{name}"] == run.summary[f"client_test_{name}_last"]
    assert last["client_test_loss"] == run.final_clients["loss"].mean()
    assert last[f"client_validation_{name}"] == run.summary[f"client_validation_{name}_mean"]
    assert last["client_validation_loss"] == run.final_clients["validation_loss"].mean()


@METHODS
def test_by_hand(fed: fs.Federation, method: str) -> None:
    """Score each client's model on its rows with NumPy alone."""
    run = fs.train(fed, "logreg", method, folder=False, **SETTINGS)
    parts = {"client_test": fed.held_out, "client_validation": fed.client_validation}
    for part, split in parts.items():
        right = []
        for client in range(fed.clients):
            weights = run.server.client_model(client)
            x = fed.train.x[split.of(client)].reshape(len(split.of(client)), -1)
            outputs = x @ weights["head.weight"].numpy().T + weights["head.bias"].numpy()
            right.append((outputs.argmax(1) == fed.train.y[split.of(client)]).mean())
        assert run.rounds[f"{part}_accuracy"].iloc[-1] == pytest.approx(np.mean(right), abs=1e-12)
    assert run.final_clients["test_rows"].tolist() == fed.held_out.sizes.tolist()


def test_without_held_out_rows_nothing_changes(digits: fs.Dataset) -> None:
    run = fs.train(fs.split(digits, "iid", 4), "logreg", folder=False, **SETTINGS)
    everything = [*run.rounds, *run.final_clients, *run.summary]
    for name in everything:
        assert not name.startswith(("client_test_", "client_validation_", "validation_"))
    assert "test_rows" not in run.final_clients


def test_rounds_without_an_evaluation_have_no_score(fed: fs.Federation) -> None:
    run = fs.train(fed, "logreg", eval_every=2, folder=False, **SETTINGS)
    scored = run.rounds["client_test_accuracy"].notna()
    assert scored.tolist() == [False, True, True]
    assert run.rounds["client_validation_loss"].notna().tolist() == [False, True, True]


def test_data_that_come_with_their_clients_and_test_rows(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    for name in "ABC":
        x = draw.normal(size=(60, 2))
        frame = pd.DataFrame(x, columns=["p", "q"]).assign(y=np.where(x[:, 0] > 0, "u", "v"))
        frame[:40].to_csv(tmp_path / f"{name}.csv", index=False)
        frame[40 : 50 + ord(name) % 3].to_csv(tmp_path / f"{name}-test.csv", index=False)
    run = fs.train(
        fs.split(fs.load(f"{tmp_path}:label=y")), "logreg", "local", folder=False, **SETTINGS
    )
    last = run.rounds["client_test_accuracy"].iloc[-1]
    assert last == run.summary["client_accuracy_mean"]
    assert run.final_clients["test_rows"].tolist() == [12, 10, 11]


def test_clients_without_rows_do_not_count() -> None:
    x = np.arange(12.0).reshape(6, 2)
    y = np.array([0, 1, 0, 1, 0, 1])

    def uneven(rows: Any, clients: int, stream: Any) -> fs.Partition:
        return fs.Partition.from_lists([np.array([0]), np.arange(1, len(rows))])

    fed = fs.split((x, y), uneven, 2, client_test=0.5)
    run = fs.train(fed, "logreg", folder=False, **SETTINGS)
    assert run.final_clients["test_rows"].tolist()[0] == 0
    assert run.rounds["client_test_accuracy"].iloc[-1] == run.final_clients["accuracy"][1]


def test_a_sample_of_very_many_clients(digits: fs.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_of_clients, "FINAL_CLIENTS", 7)
    monkeypatch.setattr(rows_of_clients, "FINAL_TESTED", 3)
    fed = fs.split(digits, "iid", 20, client_test=0.2)
    for metric in ("accuracy", "macro_f1"):
        run = fs.train(fed, "logreg", "local", metric=metric, folder=False, **SETTINGS)
        assert len(run.final_clients) == 7
        found = run.rounds[f"client_test_{metric}"].iloc[-1]
        assert found == run.summary[f"client_{metric}_mean"]


def test_no_row_is_scored_twice_where_all_clients_take_part(
    digits: fs.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    used = ClientRows.used

    def counted(self: ClientRows, *given: Any) -> Any:
        calls.append(1)
        return used(self, *given)

    monkeypatch.setattr(ClientRows, "used", counted)
    fed = fs.split(digits, "iid", 5, client_test=0.2)
    fs.train(fed, "logreg", "ditto", folder=False, **SETTINGS)
    assert not calls
    fs.train(fed, "logreg", "ditto", per_round=2, folder=False, **SETTINGS)
    assert len(calls) == SETTINGS["rounds"]


def test_a_folder_without_these_columns_is_not_continued(
    fed: fs.Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(result: Any, rounds: int) -> None:
        if result.round["round"] == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as older:
        older.setattr(Scorer, "_client_score_columns", lambda self, scores: {})
        with pytest.raises(BaseException, match="resume with"):
            fs.train(
                fed, "logreg", folder=tmp_path / "run", callbacks=interrupt, checkpoint_every=1,
                **SETTINGS,
            )  # fmt: skip
    before = (tmp_path / "run" / on_disk.ROUNDS).read_bytes()
    with pytest.raises(FedskewError, match="has other columns than this version of fedskew writes"):
        fs.resume(tmp_path / "run")
    assert (tmp_path / "run" / on_disk.ROUNDS).read_bytes() == before


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_early_stopping_goes_by_the_models_that_clients_use(
    digits: fs.Dataset, method: str
) -> None:
    fed = fs.split(digits, "classes:k=2", 5, client_validation=0.3)
    run = fs.train(fed, "logreg", method, rounds=40, lr=0.5, stop_after=3, folder=False)
    values = run.rounds["client_validation_accuracy"].tolist()
    assert len(values) < 40
    best = values.index(max(values))
    assert len(values) == best + 1 + 3


def test_early_stopping_names_both_kinds_of_rows(digits: fs.Dataset) -> None:
    fed = fs.split(digits, "iid", 4)
    with pytest.raises(FedskewError, match=r"validation=0\.2 .* or client_validation=0\.2"):
        fs.train(fed, "logreg", stop_after=3, folder=False)
