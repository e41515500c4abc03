"""The new head after the last round: over all clients' rows, in the model, the tables and the summary; its errors."""

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import fedskew as fs
from fedskew.algorithms.calibrator import Calibrator
from fedskew.algorithms.contract import Algorithm
from fedskew.core.errors import FedskewError, Interrupted
from fedskew.models.network import Network

SMALL: dict[str, Any] = {"rounds": 3, "batch_size": 16, "lr": 0.1, "threads": 1, "device": "cpu"}


@pytest.fixture(scope="module")
def fed() -> fs.Federation:
    return fs.split(fs.load("digits", validation=0.1), "classes:k=2", clients=5)


def trained(
    fed: fs.Federation, algorithm: Any = "ccvr", model: Any = "mlp:hidden=12", **settings: Any
) -> fs.Run:
    return fs.train(
        fed, model, algorithm, folder=settings.pop("folder", False), **{**SMALL, **settings}
    )


GIVEN: dict[str, Any] = {}


class NotingCalibrator(Calibrator):
    """Records its arguments, and sets every weight of the head to 7."""

    def class_statistics(self, features, labels, classes):
        return {
            "rows": {
                "features": features.sum(0),
                "labels": torch.bincount(labels, minlength=classes).double(),
            }
        }

    def calibrate(self, head, statistics, loss, stream):
        GIVEN.update(head=head, total=statistics, loss=loss)
        return {name: torch.full_like(value, 7.0) for name, value in head.items()}


@dataclass(frozen=True)
class Noting(Algorithm):
    calibrator = NotingCalibrator()


# -- what it sees ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["mlp:hidden=12", "tabular:hidden=12"])
def test_all_rows_of_all_clients_at_the_last_model_in_evaluation_mode(fed, model: str):
    run = trained(fed, Noting(), model, dtype="float64", per_round=2)
    plain = trained(fed, "fedavg", model, dtype="float64", per_round=2).model
    x = torch.from_numpy(fed.train.x[fed.partition.rows]).double()
    with torch.no_grad():
        features = plain.features(x)
    total = GIVEN["total"]["rows"]
    torch.testing.assert_close(total["features"], features.sum(0), rtol=0, atol=1e-9)
    assert (
        total["labels"].tolist()
        == np.bincount(fed.train.y[fed.partition.rows], minlength=10).tolist()
    )
    head = GIVEN["head"]
    assert sorted(head) == ["head.bias", "head.weight"]
    assert torch.equal(head["head.weight"], plain.head.weight)
    with torch.no_grad():
        labels = torch.from_numpy(fed.train.y[fed.partition.rows])
        wanted = torch.nn.functional.cross_entropy(plain(x), labels)
        torch.testing.assert_close(
            GIVEN["loss"](head, features, labels), wanted, rtol=0, atol=1e-12
        )
    assert (run.model.head.weight == 7).all()
    assert (run.model.head.bias == 7).all()
    assert all(
        torch.equal(a, b)
        for a, b in zip(run.model.features.parameters(), plain.features.parameters(), strict=True)
    )


def test_it_does_not_matter_how_many_rows_are_gathered(fed, monkeypatch):
    totals = []
    for rows in (4096, 7):
        monkeypatch.setattr("fedskew.server.calibration.ROWS_GATHERED", rows)
        trained(fed, Noting(), "cnn:width=2", dtype="float64", rounds=1)
        totals.append(GIVEN["total"]["rows"])
    for name, value in totals[0].items():
        torch.testing.assert_close(totals[1][name], value, rtol=1e-12, atol=1e-12)


def test_a_row_counts_for_every_client_that_holds_it():
    data = fs.load("digits")
    held = [np.arange(10), np.arange(5, 20), np.arange(5, 8)]
    fed = fs.Federation(data, fs.Partition.from_lists(held))
    trained(fed, Noting(), rounds=1)
    assert (
        GIVEN["total"]["rows"]["labels"].tolist()
        == np.bincount(data.train.y[np.concatenate(held)], minlength=10).tolist()
    )


def test_clients_that_keep_batch_norm_look_through_their_own(fed):
    run = trained(fed, Noting(), "tabular:hidden=12", norm="local", dtype="float64")
    own, total = copy.deepcopy(run.model), torch.zeros(12, dtype=torch.float64)
    for client in range(5):
        state = run.server.client_model(client)
        with torch.no_grad():
            for name, value in {
                **dict(own.named_parameters()),
                **dict(own.named_buffers()),
            }.items():
                value.copy_(state[name])
            total += own.features(
                torch.from_numpy(fed.train.x[fed.partition.of(client)]).double()
            ).sum(0)
    torch.testing.assert_close(GIVEN["total"]["rows"]["features"], total, rtol=0, atol=1e-9)


# -- what comes of it --------------------------------------------------------------------------------------------------


def test_the_run_has_the_calibrated_model_and_tells_both_accuracies(fed, tmp_path: Path):
    run, plain = trained(fed, folder=tmp_path / "run"), trained(fed, "fedavg")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    x, y = torch.from_numpy(fed.test.x), torch.from_numpy(fed.test.y)
    for model, name in (
        (plain.model, "test_accuracy_last"),
        (run.model, "calibrated_test_accuracy"),
    ):
        with torch.no_grad():
            assert summary[name] == pytest.approx(
                (model(x).argmax(1) == y).double().mean().item(), abs=1e-9
            )
    with torch.no_grad():
        loss = nn.functional.cross_entropy(run.model(x), y).item()
    assert summary["calibrated_test_loss"] == pytest.approx(loss, abs=1e-5)
    assert 0 < summary["calibrated_validation_accuracy"] < 1
    assert summary["test_accuracy_last"] == plain.summary["test_accuracy_last"]
    assert (
        summary["calibrated_test_accuracy"] > summary["test_accuracy_last"] + 0.1
    )  # two classes a client bias the head
    stored = load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(value, stored[name]) for name, value in run.model.state_dict().items())
    mine = fed.partition.of(2)
    with torch.no_grad():
        right = run.model(torch.from_numpy(fed.train.x[mine])).argmax(1) == torch.from_numpy(
            fed.train.y[mine]
        )
    assert run.final_clients["accuracy"][2] == pytest.approx(right.double().mean().item(), abs=1e-9)


def test_bytes_of_the_tallies_and_of_the_last_model_are_counted(fed):
    run, plain = trained(fed), trained(fed, "fedavg")
    numbers = 10 + 10 * 12 + 10 * 12 * 12  # rows, sums and outer products of each class
    assert run.summary["calibration_bytes_up"] == 5 * numbers * 8
    assert run.summary["calibration_bytes_down"] == 5 * sum(
        value.nbytes for value in plain.server.state.params.values()
    )
    for name in ("bytes_up", "bytes_down"):
        assert run.summary[name] - plain.summary[name] == run.summary[f"calibration_{name}"]


def test_methods_without_a_calibrator_do_none_of_it(fed):
    assert not [name for name in trained(fed, "fedavg").summary if name.startswith("calibrat")]


def test_no_epochs_are_the_method_without_it(fed):
    run, plain = trained(fed, "fedprox:mu=0.3 + ccvr:head_epochs=0"), trained(fed, "fedprox:mu=0.3")
    assert all(
        torch.equal(value, plain.server.state.params[name])
        for name, value in run.server.state.params.items()
    )
    assert run.summary["calibrated_test_accuracy"] == run.summary["test_accuracy_last"]


def test_the_closing_table_shows_it_beside_the_other(fedskew, capsys: pytest.CaptureFixture[str]):
    assert fedskew("run --model mlp:hidden=8 --rounds 1 --clients 3 --algorithm ccvr") == 0
    shown = capsys.readouterr().out
    assert "calibrated" in shown
    assert "fedskew list columns" in shown
    assert fedskew("list columns") == 0
    explained = " ".join(capsys.readouterr().out.split())
    assert "accuracy of the calibrated model after the last round, in %" in explained


# -- to disk and back --------------------------------------------------------------------------------------------------


def bits(run: fs.Run) -> tuple[bytes, bytes, dict[str, Any]]:
    assert run.folder
    summary = {name: value for name, value in run.summary.items() if name != "seconds"}
    return (
        (run.folder / "model.safetensors").read_bytes(),
        (run.folder / "clients_final.csv").read_bytes(),
        summary,
    )


@pytest.mark.parametrize(
    ("model", "norm"), [("mlp:hidden=12", "aggregate"), ("tabular:hidden=12", "local")]
)
def test_resumed_after_the_end_or_after_the_last_round_the_bits_are_the_same(
    fed, tmp_path: Path, model: str, norm: str
):
    whole = trained(fed, "fedavg + ccvr", model, norm=norm, folder=tmp_path / "whole")
    again = fs.resume(tmp_path / "whole", fed=fed)
    assert again.summary == whole.summary
    for name, value in whole.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], value), name

    def stop(result: Any, rounds: int) -> None:
        if result.round["round"] == rounds:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="interrupted after round 3 of 3"):
        fs.train(
            fed, model, "fedavg + ccvr", folder=tmp_path / "cut", callbacks=stop, norm=norm, **SMALL
        )
    assert not (tmp_path / "cut" / "summary.json").exists()
    assert bits(fs.resume(tmp_path / "cut", fed=fed)) == bits(whole)


# -- refusals ----------------------------------------------------------------------------------------------------------


class Scaled(nn.Module):
    """A model with another operation after its head."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.head(x.flatten(1))


def headless(shape: Any, classes: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, classes, 8), nn.Flatten())


def frozen(shape: Any, classes: int) -> nn.Module:
    model = Network(nn.Sequential(nn.Flatten(), nn.Linear(64, 5)), 5, classes)
    model.head.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("algorithm", "model", "says"),
    [
        (
            "fedper + ccvr",
            "mlp:hidden=12",
            "fedper [+] ccvr: each client has a head of its own, .* leave the addition out",
        ),
        ("local + ccvr", "mlp:hidden=12", "local [+] ccvr: each client has a head of its own"),
        ("ditto + ccvr", "mlp:hidden=12", "ditto [+] ccvr: each client has a head of its own"),
        (
            "ccvr",
            headless,
            "Sequential has no attribute 'head' and no nn.Linear: name its last layer 'head'",
        ),
        ("ccvr", frozen, "ccvr: the head of Network is frozen: set requires_grad=True"),
        ("ccvr", Scaled(), "ccvr: Scaled must end in its head, .* name that layer 'head'"),
    ],
)
def test_what_has_no_common_head_is_refused_before_training(
    fed, tmp_path: Path, algorithm: str, model: Any, says: str
):
    with pytest.raises(FedskewError, match=says):
        trained(fed, algorithm, model, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_same_models_are_fine_without_it(fed):
    for model in (headless, frozen, Scaled()):
        assert trained(fed, "fedavg", model, rounds=1).summary["rounds"] == 1
