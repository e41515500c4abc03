"""Survival analysis: Cox's partial likelihood and the concordance index against plain loops, in both engines."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.func import functional_call

import fedskew as fs
from fedskew.algorithms.contract import resolve
from fedskew.core.config import Settings
from fedskew.core.errors import FedskewError
from fedskew.data.dataset import Dataset, Rows
from fedskew.data.federation import Federation
from fedskew.data.partition import Partition
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked
from fedskew.models.build import build
from fedskew.server.server import Server
from fedskew.tasks.ranks import concordance
from fedskew.tasks.survival import Survival

TASK = Survival()
SIZES = (9, 5, 4, 7, 2)  # batches of 4 leave ends of 1, 1, 0, 3 and 2 rows


def drawn(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return risks and targets with ties in both."""
    draw = np.random.default_rng(seed)
    times = draw.integers(0, 6, rows)
    return draw.normal(size=rows).round(1), np.stack([times, draw.random(rows) < 0.6], 1)


def plain_losses(risks: np.ndarray, targets: np.ndarray) -> list[float]:
    """Return Breslow's terms, one row after the other."""
    losses = []
    for risk, (time, event) in zip(risks, targets, strict=True):
        at_risk = [
            math.exp(other)
            for other, (later, _) in zip(risks, targets, strict=True)
            if later >= time
        ]
        losses.append(event * (math.log(sum(at_risk)) - risk))
    return losses


def plain_concordance(risks: np.ndarray, targets: np.ndarray) -> float:
    """Return Harrell's index, one ordered pair of rows after the other."""
    won = pairs = 0.0
    for i, j in itertools.permutations(range(len(risks)), 2):
        (first, event), (second, other) = targets[i], targets[j]
        if event and (first < second or (first == second and not other)):
            pairs += 1
            won += 1.0 if risks[i] > risks[j] else 0.5 * (risks[i] == risks[j])
    return won / pairs if pairs else math.nan


def federation(sizes: tuple[int, ...] = SIZES, events: bool = True) -> Federation:
    def rows(count: int, seed: int) -> Rows:
        x = np.random.default_rng(seed).normal(size=(count, 6)).astype(np.float32)
        y = drawn(count, seed)[1].astype(np.float32)
        return Rows(x, y * np.float32([1, events]))

    owner = np.repeat(np.arange(len(sizes)), sizes)
    data = Dataset("made up", rows(sum(sizes), 0), rows(20, 1), ("time", "event"))
    return Federation(data, Partition.from_owner(owner, len(sizes)))


def trained(lab, method: str, engine, fed: Federation, rounds: int = 4) -> Server:
    settings = Settings(rounds=10, batch_size=4, lr=0.1, dtype="float64", device="cpu", threads=1)
    model = build("mlp:hidden=5", fed.data.shape, 1, seed=0)
    server = Server(fed, model, resolve(method), settings, engine, TASK)
    server.results = [server.advance() for _ in range(rounds)]
    return server


@pytest.mark.parametrize("seed", range(5))
def test_losses_are_breslow_s_terms(seed: int) -> None:
    risks, targets = drawn(12, seed)
    outputs, wanted = torch.from_numpy(risks)[:, None], torch.from_numpy(targets).double()
    found = TASK.losses(outputs, wanted, "none")
    assert found.tolist() == pytest.approx(plain_losses(risks, targets), abs=1e-12)
    assert TASK.losses(outputs, wanted).item() == pytest.approx(found.mean().item())
    assert TASK.losses(outputs, wanted, "sum").item() == pytest.approx(found.sum().item())


def test_by_hand() -> None:
    """Times 1, 1 and 2, of which the first two have events: both have all three rows in their risk set."""
    outputs = torch.tensor([[math.log(2)], [0.0], [0.0]], dtype=torch.float64)
    targets = torch.tensor([[1.0, 1], [1, 1], [2, 0]], dtype=torch.float64)
    found = TASK.losses(outputs, targets, "none")
    assert found.tolist() == pytest.approx([math.log(4 / 2), math.log(4), 0])


def test_clients_of_a_stack_have_risk_sets_of_their_own_without_its_padding() -> None:
    (one, first), (other, second) = drawn(8, 1), drawn(5, 2)
    outputs, targets = torch.full((2, 8, 1), 7.0), torch.ones(2, 8, 2)
    for place, (risks, own) in enumerate([(one, first), (other, second)]):
        outputs[place, : len(risks), 0] = torch.from_numpy(risks)
        targets[place, : len(risks)] = torch.from_numpy(own)
    real = torch.arange(8) < torch.tensor([[8], [5]])
    found = TASK.losses(outputs, TASK.padded(targets, real), "none")
    assert found[0].tolist() == pytest.approx(plain_losses(one, first), abs=1e-5)
    assert found[1, :5].tolist() == pytest.approx(plain_losses(other, second), abs=1e-5)
    assert not found[1, 5:].any()
    slopes = TASK.slopes(outputs, TASK.padded(targets, real), real / real.sum(1, keepdim=True))
    assert not slopes[1, 5:].any()
    assert slopes[1, :5].abs().sum() > 0.1


def test_without_events_there_is_nothing_to_learn() -> None:
    risks, targets = drawn(6, 0)
    targets[:, 1] = 0
    outputs, wanted = torch.from_numpy(risks)[:, None], torch.from_numpy(targets).double()
    assert TASK.losses(outputs, wanted).item() == 0
    assert not TASK.slopes(outputs, wanted).any()
    assert math.isnan(TASK.evaluate(risks, targets)["concordance"])


@pytest.mark.parametrize("rows", [1, 2, 7, 40])
@pytest.mark.parametrize("seed", range(4))
def test_concordance_is_that_of_all_pairs(rows: int, seed: int) -> None:
    risks, targets = drawn(rows, seed)
    found = TASK.evaluate(risks[:, None], targets)["concordance"]
    assert found == pytest.approx(plain_concordance(risks, targets), nan_ok=True)


def test_concordance_of_many_rows_is_found_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    risks, targets = drawn(50, 3)
    whole = concordance(risks, targets[:, 0], targets[:, 1] > 0)
    monkeypatch.setattr("fedskew.tasks.ranks._PAIRS", 120)
    assert concordance(risks, targets[:, 0], targets[:, 1] > 0) == whole
    risks[3] = math.nan
    assert math.isnan(concordance(risks, targets[:, 0], targets[:, 1] > 0))


@pytest.mark.parametrize(
    "method", ["fedavg", "fedprox:mu=0.1", "scaffold", "fedsam:rho=0.1", "fedadam", "ditto"]
)
def test_both_engines_agree(lab, method: str) -> None:
    fed = federation()
    plain, stack = (trained(lab, method, one, fed) for one in (Loop(), Stacked(mode="stack")))
    assert lab.gap(plain, stack) < 1e-8
    assert plain.results[0].round["train_loss"] > plain.results[-1].round["train_loss"]


def test_clients_without_events_keep_the_model(lab) -> None:
    server = trained(lab, "fedavg", Stacked(mode="stack"), federation(events=False), rounds=1)
    for name, value in server.state.params.items():
        assert torch.equal(value, dict(server.model.named_parameters())[name])
    assert math.isnan(server.results[0].round["test_concordance"])


def test_a_client_is_scored_on_risk_sets_of_its_own(lab) -> None:
    fed = federation()
    server = trained(lab, "fedavg", Loop(), fed, rounds=1)
    with torch.no_grad():
        for client, line in enumerate(server.results[0].clients):
            rows = fed.partition.of(client)
            x = torch.from_numpy(fed.train.x[rows]).double()
            risks = functional_call(server.model, server.state.params, (x,))[:, 0].numpy()
            own = plain_losses(risks, fed.train.y[rows])
            assert line["loss"] == pytest.approx(np.mean(own), rel=1e-6)


@pytest.mark.parametrize(
    ("row", "value", "said"),
    [
        (1, [-2, 1], "row 1 has the time -2"),
        (2, [2, 0.5], "row 2 has the event 0.5"),
        (3, [math.nan, 1], "is missing in 1 rows .first: row 3"),
    ],
)
def test_bad_targets_are_refused_with_their_row(row: int, value: list[float], said: str) -> None:
    x, y = np.zeros((8, 2)), np.tile([3.0, 1.0], (8, 1))
    y[row] = value
    with pytest.raises(FedskewError, match=said):
        train_on(x, y)


def train_on(x: np.ndarray, y: np.ndarray, method: str = "fedavg") -> fs.Run:
    fed = fs.split((x, y), "iid", clients=2, task="survival")
    part = Rows(x.astype(np.float32), y.astype(np.float32))
    fed = Federation(
        Dataset("mine", part, part, fed.data.classes),
        Partition.from_owner(np.arange(len(x)) % 2, 2),
    )
    return fs.train(fed, "logreg", method, task="survival", rounds=1, folder=False)


def test_other_columns_and_methods_are_refused() -> None:
    x, y = np.zeros((8, 2)), np.ones((8, 3))
    with pytest.raises(FedskewError, match="these data have 3"):
        train_on(x, y)
    for method in ("q-fedavg", "fedfomo", "fedavg + power-of-choice", "stratify-batch"):
        with pytest.raises(FedskewError, match=r"the loss of a row depends|schedules samples"):
            train_on(x, y[:, :2], method)
    with pytest.raises(FedskewError, match="skew dirichlet deals out classes"):
        fs.split((x, y), "dirichlet", clients=2, task="survival")
    with pytest.raises(FedskewError, match="bins=3: the targets of arrays are several numbers"):
        fs.split((x, y), "dirichlet", clients=2, task="survival", bins=3)


def test_columns_of_a_file_and_predictions(tmp_path: Path) -> None:
    lines = ["age,time,event"]
    for number in range(40):
        lines.append(f"{30 + number // 2},{100 - number},{number % 2}")
    (tmp_path / "patients.csv").write_text("\n".join(lines))
    data = fs.load(f"{tmp_path}/patients.csv:label=time+event,target=numbers")
    assert data.classes == ("time", "event")
    fed = fs.split(data, "iid", clients=2)
    run = fs.train(fed, "logreg", task="survival", rounds=5, lr=0.5, folder=False)
    assert run.summary["test_concordance_last"] > 0.9, "who is older has the event first"
    import pandas as pd

    predicted = run.predict(pd.DataFrame({"age": [30.0, 60.0]}))["prediction"]
    assert predicted[1] > predicted[0]


def test_fed_tcga_brca_has_flamby_s_regions_and_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSKEW_DATA", str(tmp_path))
    folder = tmp_path / "tcga-brca"
    folder.mkdir()
    patients, folds = ["pid,age,E,T"], ["pid,fold,fold2"]
    for number in range(24):
        patients.append(f"P{number},{30 + number},{float(number % 2)},{float(number)}")
        part = ("train", "train", "test")[number % 3]
        folds.append(f"P{number},{part},{part}_{number % 6}")
    (folder / "brca.csv").write_text("\n".join([*patients, "P24,1,0.0,1.0"]))
    (folder / "train_test_split.csv").write_text("\n".join(folds))
    data = fs.load("tcga-brca")
    assert data.classes == ("time", "event")
    assert (len(data.train), len(data.test)) == (16, 8), "a patient without a region is left out"
    assert data.train.y[1].tolist() == [1, 1]
    assert data.train.group[:2].tolist() == [0, 1]
    assert fs.split(data, "natural").client_names[:2] == ("northeast", "south")
    (folder / "brca.csv").write_text("pid,age\nP1,3")
    with pytest.raises(FedskewError, match=r"brca.csv has no column 'T'"):
        fs.load("tcga-brca")
