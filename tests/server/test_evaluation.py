"""Scores by hand: the global model, each client's rows, and clients' own models."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

from fedskew.core.streams import Stream
from fedskew.data.partition import Partition
from fedskew.engine import inference
from fedskew.engine.cost import measure_cost
from fedskew.server import evaluated_rows
from fedskew.server.evaluation import Evaluator, RoundModels
from fedskew.tasks.classification import Classification

TASK = Classification()
BATCH_NORM = "tabular:hidden=5"


def by_hand(training, tensors: dict, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the loss of every row and whether it is right, of the flat BatchNorm net above, in NumPy."""
    t = {name: value.detach().numpy() for name, value in tensors.items()}
    hidden = x.astype(np.float64) @ t["features.1.weight"].T
    spread = np.sqrt(t["features.2.running_var"] + 1e-5)
    hidden = (hidden - t["features.2.running_mean"]) / spread * t["features.2.weight"] + t[
        "features.2.bias"
    ]
    logits = np.maximum(hidden, 0) @ t["head.weight"].T + t["head.bias"]
    chance = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return -np.log(chance[np.arange(len(y)), y]), logits.argmax(1) == y


def test_rows_one_by_one(lab, monkeypatch):
    training = lab.run(2, None, "fedavg", BATCH_NORM)
    test, state = training.fed.test, training.state.model()
    losses, right = by_hand(training, state, test.x, test.y)
    for values_per_batch in (1 << 20, 6 * 7):  # in one go, and seven rows at a time
        monkeypatch.setitem(inference._VALUES_PER_BATCH, "cpu", values_per_batch)
        evaluator = Evaluator(training.fed, training.model.train(), training.job, None, 0)
        found = evaluator.scores(state)["test"]
        assert found["loss"] == pytest.approx(losses.mean(), abs=1e-12)
        assert found["accuracy"] == right.mean()
    assert training.model.training


def test_each_client_on_its_own_rows(lab):
    training = lab.run(1, None, "fedavg", BATCH_NORM)
    train = training.fed.train
    losses, right = by_hand(training, training.state.model(), train.x, train.y)
    pieces = [np.array([4, 5]), np.array([], dtype=np.int64), np.array([0, 9, 9])]
    split = Partition.from_lists(pieces)
    found = training.evaluator.on_own_rows(training.state.model(), None, np.arange(3), split)
    loss, accuracy = found["loss"], found["accuracy"]
    assert loss[[0, 2]].tolist() == pytest.approx(
        [losses[p].mean() for p in (pieces[0], pieces[2])], abs=1e-12
    )
    assert accuracy[[0, 2]].tolist() == pytest.approx(
        [right[p].mean() for p in (pieces[0], pieces[2])]
    )
    assert np.isnan(loss[1])
    assert np.isnan(accuracy[1])
    nothing = training.evaluator.on_own_rows(
        training.state.model(), training.client_model, np.array([1]), split
    )
    assert np.isnan(list(nothing.values())).all()


def test_the_table_of_rounds(lab):
    fed = lab.federation()
    fed = replace(fed, data=replace(fed.data, validation=lab.rows(11, (6,), 5)))
    training = lab.run(1, fed, "fedavg", BATCH_NORM)
    line, state = training.results[0].round, training.state.model()
    for part, rows in (("train", fed.train), ("test", fed.test), ("validation", fed.validation)):
        losses, right = by_hand(training, state, rows.x, rows.y)
        assert line[f"{part}_loss"] == pytest.approx(losses.mean(), abs=1e-12)
        assert line[f"{part}_accuracy"] == pytest.approx(right.mean())
    assert "own_test_accuracy" not in line
    assert "global_accuracy" not in training.results[0].clients[0]
    for client in training.results[0].clients:
        mine = fed.partition.of(client["client"])
        losses, right = by_hand(training, state, fed.train.x[mine], fed.train.y[mine])
        assert client["loss"] == pytest.approx(losses.mean(), abs=1e-12)
        assert client["accuracy"] == pytest.approx(right.mean())


@pytest.mark.parametrize(
    ("name", "norm"),
    [("fedavg", "local"), ("fedavg", "silo"), ("ditto", "local")]
    + [(name, "aggregate") for name in ("local", "fedbn", "mfedbn:eta=0.3", "fedper", "ditto")],
)
def test_own_models(lab, name: str, norm: str):
    fed = lab.federation()
    training = lab.run(2, fed, name, BATCH_NORM, norm=norm, per_round=3)
    line, clients = training.results[-1].round, training.results[-1].clients
    own = [
        by_hand(training, training.client_model(c["client"]), fed.test.x, fed.test.y)
        for c in clients
    ]
    assert line["own_test_loss"] == pytest.approx(
        np.mean([losses.mean() for losses, _ in own]), abs=1e-12
    )
    assert line["own_test_accuracy"] == pytest.approx(np.mean([right.mean() for _, right in own]))
    for client in clients:
        mine = fed.partition.of(client["client"])
        losses, _ = by_hand(
            training, training.client_model(client["client"]), fed.train.x[mine], fed.train.y[mine]
        )
        assert client["loss"] == pytest.approx(losses.mean(), abs=1e-12)
        if (name, norm) != ("ditto", "aggregate"):  # no whole model is shared
            assert "global_loss" not in client
            continue
        losses, right = by_hand(
            training, training.state.model(), fed.train.x[mine], fed.train.y[mine]
        )
        assert client["global_loss"] == pytest.approx(losses.mean(), abs=1e-12) != client["loss"]
        assert client["global_accuracy"] == pytest.approx(right.mean())
    final = training.final_clients().table
    assert [line["client"] for line in final] == [0, 1, 2, 3, 4]
    assert [line["rows"] for line in final] == list(lab.sizes)
    for line in final:  # also clients never selected, which have the initial model
        losses, right = by_hand(
            training, training.client_model(line["client"]), fed.test.x, fed.test.y
        )
        assert line["own_test_accuracy"] == pytest.approx(right.mean())
        mine = fed.partition.of(line["client"])
        if (name, norm) != ("ditto", "aggregate"):
            assert "global_loss" not in line
            continue
        losses, right = by_hand(
            training, training.state.model(), fed.train.x[mine], fed.train.y[mine]
        )
        assert line["global_loss"] == pytest.approx(losses.mean(), abs=1e-12)
        assert line["global_accuracy"] == pytest.approx(right.mean())


@pytest.fixture
def passes(monkeypatch) -> list[int]:
    """Return a list that gets the number of rows of every pass of one model."""
    seen: list[int] = []
    plain = inference.Inference.outputs
    monkeypatch.setattr(
        inference.Inference,
        "outputs",
        lambda self, *args: seen.append(len(args[2])) or plain(self, *args),
    )
    return seen


@pytest.mark.parametrize(("eval_rows", "rows"), [(None, [27, 20, 0]), (10, [10, 20, 17])])
def test_no_row_is_scored_twice_by_the_global_model(lab, passes, eval_rows, rows):
    training = lab.run(2, None, "fedbn", BATCH_NORM, eval_rows=eval_rows)
    evaluator, state, split = training.evaluator, training.state.model(), training.fed.partition
    arguments = (state, training.client_model, np.arange(5), split)
    apart = evaluator.scores(state), evaluator.on_own_rows(*arguments)
    passes.clear()
    found = evaluator.evaluate(RoundModels(*arguments, trained={}))
    on_test = [20] * 5  # of clients' own models
    assert passes == rows + on_test
    assert {name: found.parts[name] for name in apart[0]} == apart[0]
    assert found.own.keys() == apart[1].keys()
    for name, values in found.own.items():
        np.testing.assert_allclose(values, apart[1][name], rtol=0, atol=1e-12)


def test_own_models_are_evaluated_in_stacks(lab, passes, monkeypatch):
    """Stacks of two models with three rows at a time, one stack of all, and one model after the other agree."""
    training = lab.run(2, None, "ditto", BATCH_NORM)
    state, clients = training.state.model(), np.array([4, 0, 3, 2, 1])
    found = []
    for stacked, bytes_, values_per_batch in (
        (False, 1, 1 << 20),
        (True, 1 << 30, 1 << 20),
        (True, None, 6 * 6),
    ):
        monkeypatch.setattr(evaluated_rows, "can_be_stacked", lambda *_, answer=stacked: answer)
        if bytes_ is None:
            bytes_ = 2 * measure_cost(training.model, training.job.x, 1).bytes_per_client
        monkeypatch.setattr(evaluated_rows, "STACKED_BYTES", bytes_)
        monkeypatch.setitem(inference._VALUES_PER_BATCH, "cpu", values_per_batch)
        evaluator = Evaluator(training.fed, training.model, training.job, None, 0)
        passes.clear()
        found.append(
            evaluator.on_own_rows(state, training.client_model, clients, training.fed.partition)
        )
        assert passes == ([27] if stacked else [27, 2, 9, 7, 4, 5])
    for other in found[1:]:
        for name, values in found[0].items():
            np.testing.assert_allclose(other[name], values, rtol=0, atol=1e-12)


def test_a_stack_has_as_many_models_as_there_is_room_for(lab, monkeypatch):
    training = lab.training(None, "fedavg", BATCH_NORM)
    runner = evaluated_rows.ModelRunner(training.model, training.job.x)
    each = measure_cost(training.model, training.job.x, 1).bytes_per_client
    for room, bytes_ in ((3, 3 * each + 1), (2, 3 * each - 1), (1, 1)):
        monkeypatch.setattr(evaluated_rows, "STACKED_BYTES", bytes_)
        assert runner.room == room


class LossesAlone:
    row_metric = None


def test_where_rows_have_no_score_there_are_losses_alone(monkeypatch):
    rows = evaluated_rows.EvaluatedRows(None, LossesAlone(), None, None)
    monkeypatch.setattr(rows, "of_own_models", lambda *_: (np.array([1.0]), np.array([2.0])))
    common = (np.array([3.0]), np.array([4.0]))
    found = rows.with_own(common, lambda client: {}, np.array([0]), [np.array([5])])
    assert {name: values.tolist() for name, values in found.items()} == {
        "loss": [1.0],
        "global_loss": [3.0],
    }


def test_convolutions_run_in_channels_last_layout(lab):
    """A layout changes the order of sums, and nothing else; the data and the given model stay as they are."""
    training = lab.run(1, lab.federation(shape=(2, 8, 8)), "fedavg", "cnn:width=4")
    seen: list[bool] = []
    model = copy.deepcopy(training.model)

    class Watched(type(model)):
        def forward(self, x):
            weight = next(value for value in self.parameters() if value.dim() == 4)
            seen.append(
                all(value.is_contiguous(memory_format=torch.channels_last) for value in (x, weight))
            )
            x.mul_(1)  # a model may write to its input
            return super().forward(x)

    model.__class__ = Watched
    before = training.job.x.clone()
    found = Evaluator(training.fed, model, training.job, None, 0).scores(training.state.model())
    assert seen[-2:] == [True, True]
    assert torch.equal(training.job.x, before)
    assert next(value for value in model.parameters() if value.dim() == 4).is_contiguous()
    outputs = functional_call(model.eval(), training.state.model(), (training.job.x.clone(),))
    assert found["train"]["loss"] == pytest.approx(
        float(TASK.losses(outputs, training.job.y)), abs=1e-12
    )


def test_held_out_rows_are_what_a_client_is_tested_on(lab):
    kept = [np.array([0, 1, 2]), np.array([5, 6])]
    fed = replace(
        lab.federation(rows=kept),
        held_out=Partition.from_lists([np.array([3, 4]), np.array([], dtype=np.int64)]),
    )
    training = lab.run(1, fed, "fedavg", BATCH_NORM)
    losses, _ = by_hand(training, training.state.model(), fed.train.x[3:5], fed.train.y[3:5])
    for lines in (training.results[0].clients, training.final_clients().table):
        assert lines[0]["loss"] == pytest.approx(losses.mean(), abs=1e-12)
        assert np.isnan(lines[1]["loss"])


def test_training_rows_are_a_fixed_sample(lab):
    fed = lab.federation()
    sampled, again, whole = (lab.run(2, fed, engine=None, eval_rows=rows) for rows in (10, 10, 27))
    outputs = functional_call(sampled.model, sampled.state.model(), (sampled.job.x,))
    loss = float(TASK.losses(outputs, sampled.job.y))
    assert whole.results[-1].round["train_loss"] == pytest.approx(loss, abs=1e-12)
    assert sampled.results[-1].round["train_loss"] != pytest.approx(loss, abs=1e-6)
    assert sampled.results[-1].round["train_loss"] == again.results[-1].round["train_loss"]


def test_the_sample_is_of_the_rows_that_clients_have(lab):
    rows = [np.array([20, 3, 11]), np.array([29, 8]), np.array([15, 1, 6, 25])]
    fed = lab.federation(rows=rows)
    training = lab.run(1, fed, "fedavg", BATCH_NORM, eval_rows=4, seed=5)
    owned = np.concatenate(rows)
    places = np.sort(Stream(5, "evaluation").sample(9, 4))
    x, y = fed.train.x[owned[places]], fed.train.y[owned[places]]
    losses, right = by_hand(training, training.state.model(), x, y)
    line = training.results[0].round
    assert line["train_loss"] == pytest.approx(losses.mean(), abs=1e-12)
    assert line["train_accuracy"] == pytest.approx(right.mean())


def test_bytes_of_clients_that_have_no_row_are_counted(lab, monkeypatch):
    plain = lab.training().advance().round
    training = lab.training()
    monkeypatch.setattr(
        training.labels,
        "with_protocol",
        lambda outcome: replace(outcome, bytes_down=70, bytes_up=900),
    )
    line = training.advance().round
    assert line["bytes_down"] == plain["bytes_down"] + 70
    assert line["bytes_up"] == plain["bytes_up"] + 900


def test_the_confusion_of_the_test_rows(lab):
    training = lab.run(1, None, "fedavg", BATCH_NORM)
    outputs = functional_call(
        training.model.eval(),
        training.state.model(),
        (torch.from_numpy(training.fed.test.x).double(),),
    )
    expected = np.zeros((3, 3), dtype=int)
    for true, predicted in zip(training.fed.test.y, outputs.argmax(1).tolist(), strict=True):
        expected[true, predicted] += 1
    assert training.scorer.confusion().tolist() == expected.tolist()


def test_clients_have_their_names_at_the_end_and_in_every_round(lab):
    fed = lab.federation((4, 3))
    group = np.repeat([1, 0], [4, 3])
    rows = replace(fed.train, group=group)
    named = replace(fed, data=replace(fed.data, train=rows, groups=("north", "south")))
    training = lab.run(1, named, "fedavg", BATCH_NORM)
    final = training.final_clients().table
    assert [(line["client"], line["name"]) for line in final] == [(0, "south"), (1, "north")]
    assert [line["name"] for line in training.results[0].clients] == ["south", "north"]
    plain = lab.run(1, fed, "fedavg", BATCH_NORM)
    assert "name" not in plain.final_clients().table[0]
    assert "name" not in plain.results[0].clients[0]


def test_evaluation_is_only_due_every_so_often_and_at_the_end(lab):
    training = lab.run(5, None, "fedavg", nn.Sequential(nn.Linear(6, 3)), rounds=5, eval_every=2)
    scored = [line.round["test_accuracy"] is not None for line in training.results]
    assert scored == [False, True, False, True, True]
    assert [line.clients[0]["loss"] is not None for line in training.results] == scored
    assert all(line.round["local_loss"] > 0 for line in training.results)
    assert all(line.round.keys() == training.results[0].round.keys() for line in training.results)
