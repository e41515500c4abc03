"""Several numbers a row: metrics are scikit-learn's, losses are means over the numbers, both engines agree."""

import numpy as np
import pytest
import torch
from sklearn import metrics as sk

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
from fedskew.tasks.sequence_regression import SequenceRegression
from fedskew.tasks.task import resolve as task_of

STEPS = 3


def drawn(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return features and the next steps of a line through them."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(rows, 6)).astype(np.float32)
    steps = np.stack([x[:, 0], x[:, 0] + x[:, 1], 2 * x[:, 2]], 1)
    return x, (steps + draw.normal(size=steps.shape)).astype(np.float32)


def federation(sizes: tuple[int, ...] = (9, 5, 4, 7, 2)) -> Federation:
    owner = np.repeat(np.arange(len(sizes)), sizes)
    parts = [Rows(*drawn(sum(sizes), 0)), Rows(*drawn(20, 1))]
    data = Dataset("made up", *parts, ("a", "b", "c"))
    return Federation(data, Partition.from_owner(owner, len(sizes)))


@pytest.mark.parametrize("rows", [2, 30])
def test_metrics_are_scikit_learn_s(rows: int) -> None:
    _, y = drawn(rows, 0)
    _, outputs = drawn(rows, 1)
    found = SequenceRegression(steps=STEPS).evaluate(outputs, y)
    errors = sk.mean_absolute_error(y, outputs, multioutput="raw_values")
    assert found == pytest.approx(
        {
            "mae": sk.mean_absolute_error(y, outputs),
            "rmse": sk.root_mean_squared_error(y, outputs),
            "r2": sk.r2_score(y, outputs, multioutput="uniform_average"),
            "mae_1": errors[0],
            "mae_2": errors[1],
            "mae_3": errors[2],
        },
        rel=1e-6,
    )


@pytest.mark.parametrize("loss", ["mse", "mae"])
def test_the_loss_of_a_row_is_the_mean_over_its_numbers(loss: str) -> None:
    task = SequenceRegression(loss=loss)
    outputs, y = (torch.from_numpy(drawn(8, seed)[1]) for seed in (0, 1))
    power = {"mse": 2, "mae": 1}[loss]
    expected = ((outputs - y).abs() ** power).sum(1) / STEPS
    torch.testing.assert_close(task.losses(outputs, y, "none"), expected)
    torch.testing.assert_close(task.losses(outputs, y), expected.mean())
    stack, targets = outputs.view(2, 4, STEPS), y.view(2, 4, STEPS)
    assert torch.equal(
        task.losses(stack, targets, "none").flatten(), task.losses(outputs, y, "none")
    )
    assert task.slopes(stack, targets, torch.ones(2, 4)).shape == stack.shape


@pytest.mark.parametrize("method", ["fedavg", "fedprox:mu=0.1", "q-fedavg"])
@pytest.mark.parametrize("loss", ["mse", "mae"])
def test_both_engines_agree(lab, method: str, loss: str) -> None:
    fed = federation()
    settings = Settings(rounds=10, batch_size=4, lr=0.05, dtype="float64", device="cpu", threads=1)
    found = []
    for engine in (Loop(), Stacked(mode="stack")):
        model = build("mlp:hidden=5", fed.data.shape, STEPS, seed=0)
        task = SequenceRegression(loss, steps=STEPS)
        server = Server(fed, model, resolve(method), settings, engine, task)
        server.results = [server.advance() for _ in range(3)]
        found.append(server)
    assert lab.gap(*found) < 1e-8
    assert found[0].results[0].round["train_loss"] > found[0].results[-1].round["train_loss"]


def test_arrays_are_trained_predicted_and_judged_by_one_step() -> None:
    x, y = drawn(80, 2)
    fed = fs.split((x, y), "iid", clients=4, task="sequence-regression")
    run = fs.train(fed, "logreg", rounds=30, lr=0.1, metric="mae_3", folder=False)
    assert run.summary["metric"] == "mae_3"
    assert run.summary["test_mae_3_last"] < np.abs(y[:, 2]).mean()
    predicted = run.predict(x[:5])
    assert list(predicted.columns) == ["0", "1", "2"]
    assert np.abs(predicted["2"] - 2 * x[:5, 2]).mean() < 1


def test_what_cannot_be_is_refused() -> None:
    x, y = drawn(20, 0)
    fed = fs.split((x, y), "iid", clients=2, task="sequence-regression")
    with pytest.raises(FedskewError, match="steps=2, and the targets of these data are 3 numbers"):
        fs.train(fed, "logreg", task="sequence-regression:steps=2", rounds=1, folder=False)
    with pytest.raises(FedskewError, match="unknown metric of task sequence-regression 'mae_4'"):
        fs.train(fed, "logreg", metric="mae_4", rounds=1, folder=False)
    with pytest.raises(FedskewError, match="task regression learns numbers, and the targets"):
        fs.train(fed, "logreg", task="regression", rounds=1, folder=False)
    with pytest.raises(FedskewError, match="expected the same count of numbers in every row"):
        fs.split((x, y[:, 0]), "iid", clients=2, task="sequence-regression")
    broken = np.where(np.arange(20)[:, None] == 7, np.inf, y)
    whole = Rows(x, broken.astype(np.float32))
    with pytest.raises(FedskewError, match="the target of row 7 is inf"):
        Dataset("d", whole, whole, ("a", "b", "c"))
    assert task_of("sequence-regression").headline("r2").sign == 1
    assert task_of("sequence-regression").headline().sign == -1
