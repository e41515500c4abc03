"""Rows that clients set aside to choose numbers by: nobody trains on them, and they change no other draw."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedskew as fs
from fedskew.core.config import Experiment
from fedskew.core.errors import FedskewError
from fedskew.runs import folder as on_disk
from fedskew.skew.federate import federate


@pytest.fixture(scope="module")
def digits() -> fs.Dataset:
    return fs.load("digits")


def test_every_row_is_trained_on_or_set_aside_once(digits: fs.Dataset) -> None:
    fed = fs.split(digits, "dirichlet:alpha=0.5", 6, client_test=0.2, client_validation=0.25)
    whole = fs.split(digits, "dirichlet:alpha=0.5", 6)
    assert fed.held_out is not None
    assert fed.client_validation is not None
    for client in range(6):
        parts = [part.of(client) for part in (fed.partition, fed.held_out, fed.client_validation)]
        together = np.sort(np.concatenate(parts))
        assert np.array_equal(together, np.sort(whole.partition.of(client)))
        left = len(parts[0]) + len(parts[2])
        assert len(parts[2]) == max(1, round(left * 0.25))


def test_other_draws_stay_as_they_are(digits: fs.Dataset) -> None:
    plain = fs.split(digits, "dirichlet:alpha=0.5", 6, client_test=0.2)
    fed = fs.split(digits, "dirichlet:alpha=0.5", 6, client_test=0.2, client_validation=0.25)
    assert fed.held_out == plain.held_out
    assert plain.client_validation is None
    # Another draw than that of the test rows, which would be of the same places
    alone = fs.split(digits, "dirichlet:alpha=0.5", 6, client_validation=0.2)
    assert alone.client_validation != plain.held_out
    assert fed.fingerprint != plain.fingerprint


def test_a_run_is_made_again_by_its_settings(digits: fs.Dataset) -> None:
    fed = fs.split(digits, "iid", 4, client_test=0.1, client_validation=0.3, seed=2)
    again = federate(
        Experiment(skew="iid", clients=4, client_test=0.1, client_validation=0.3, split_seed=2)
    )
    assert fed.recipe["client_validation"] == 0.3
    assert again.client_validation == fed.client_validation
    assert again.fingerprint == fed.fingerprint


def test_a_resumed_run_has_the_same_rows(digits: fs.Dataset, tmp_path: Path) -> None:
    fed = fs.split(digits, "iid", 4, client_validation=0.3)
    settings = {"rounds": 3, "checkpoint_every": 1, "lr": 0.05}
    whole = fs.train(fed, "logreg", folder=tmp_path / "whole", **settings)

    def interrupt(result: object, rounds: int) -> None:
        if result.round["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(BaseException, match="resume with"):
        fs.train(fed, "logreg", folder=tmp_path / "cut", callbacks=interrupt, **settings)
    resumed = fs.resume(tmp_path / "cut")
    assert resumed.server.fed.client_validation == fed.client_validation
    for name in (on_disk.ROUNDS, on_disk.FINAL_CLIENTS, on_disk.MODEL):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert whole.config["client_validation"] == 0.3


def test_nobody_trains_on_rows_that_are_set_aside(digits: fs.Dataset) -> None:
    fed = fs.split(digits, "iid", 4, client_test=0.1, client_validation=0.3)
    server = fs.train(fed, "logreg", rounds=1, folder=False).server
    trained = server.job.partition.rows
    assert not np.isin(fed.client_validation.rows, trained).any()
    pooled = fs.train(fed, "logreg", "central", rounds=1, folder=False).server
    assert not np.isin(fed.client_validation.rows, pooled.trained_on.rows).any()


@pytest.mark.parametrize("form", ["arrays", "frame"])
def test_arrays_and_frames_have_validation_rows(form: str) -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(100, 3))
    y = np.repeat(["a", "b"], 50)
    frame = pd.DataFrame(x, columns=["p", "q", "r"]).assign(y=y)
    if form == "arrays":
        fed = fs.split((x, y), "iid", 4, validation=0.2)
        plain = fs.split((x, y), "iid", 4)
    else:
        fed = fs.split(frame, "iid", 4, label="y", validation=0.2)
        plain = fs.split(frame, "iid", 4, label="y")
    assert plain.validation is None
    assert fed.validation is not None
    assert len(fed.validation) == 16
    assert len(fed.train) == len(plain.train) - 16
    assert "validation_accuracy_last" in fs.train(fed, "logreg", rounds=1, folder=False).summary
    loaded = fs.load(frame, label="y", validation=0.2)
    assert loaded.validation is not None
    assert len(loaded.validation) == 16


def test_what_was_loaded_has_them_by_load(digits: fs.Dataset) -> None:
    with pytest.raises(FedskewError, match=r"validation=0.2: digits was loaded.*load\(\.\.\., val"):
        fs.split(digits, "iid", 4, validation=0.2)


def test_shares_are_checked(digits: fs.Dataset) -> None:
    with pytest.raises(FedskewError, match="client_validation=1 is out of range"):
        fs.split(digits, "iid", 4, client_validation=1)
    with pytest.raises(FedskewError, match=r"client_validation=-0\.5 is out of range"):
        Experiment(client_validation=-0.5)


def test_nodes_refuse_them(digits: fs.Dataset) -> None:
    fed = fs.split(digits, "iid", 4, client_validation=0.3)
    pytest.importorskip("flwr")
    with pytest.raises(FedskewError, match="client_validation sets rows of clients aside"):
        fs.train(fed, "logreg", engine="flower", rounds=1, folder=False)
