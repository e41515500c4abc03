"""BatchNorm layers that are not trained: they stay as they are, travel nowhere, and are those of evaluation mode."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

import fedskew as fs
from fedskew.batchnorm.frozen import FrozenBatchNorm, freeze_batch_norms
from fedskew.core.errors import FedskewError
from fedskew.data.dataset import Dataset, Rows
from fedskew.data.federation import Federation
from fedskew.engine.cost import measure_cost
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked
from fedskew.engine.stacked_model import StackedModel
from fedskew.models.build import build

ENGINES = pytest.mark.parametrize(
    "engine", [Loop(), Stacked(mode="stack")], ids=["loop", "stacked"]
)
SHAPE = (2, 6, 6)


class Branches(nn.Module):
    """A backbone with a forward pass of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.0)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.norm(self.conv(x)).relu()).mean((2, 3)))


def sequence() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    )


def resnet() -> nn.Module:
    return build("resnet9:width=2", (2, 8, 8), 3, seed=0)


def pretrained(kind, rows: Tensor) -> nn.Module:
    """Return a model whose layers below the head are frozen, and whose statistics are those of some rows."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = kind()
        model.train()
        model(3 + rows)
    head = list(model.children())[-1]
    model.requires_grad_(False)
    head.requires_grad_(True)
    return model


def shape_of(kind) -> tuple[int, ...]:
    return (2, 8, 8) if kind is resnet else SHAPE


@ENGINES
@pytest.mark.parametrize("kind", [Branches, sequence, resnet])
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "fedbn", "local", "finetune", "moon"])
def test_nothing_frozen_changes_travels_or_is_kept(lab, engine, kind, algorithm):
    fed = lab.federation(shape=shape_of(kind))
    model = pretrained(kind, torch.randn(8, *shape_of(kind)))
    before = copy.deepcopy(model.state_dict())
    trained = {name for name, value in model.named_parameters() if value.requires_grad}
    training = lab.run(2, fed, algorithm, model, engine)
    after = training.model.state_dict()
    assert after.keys() == before.keys()
    for name, value in before.items():
        if name not in trained:
            assert torch.equal(after[name], value.to(after[name].dtype)), name
    assert set(training.state.model()) == trained
    for part, tensors in training.checkpoint().items():
        assert "running" not in part, tensors.shape
    sent = 8 * sum(model.get_parameter(name).numel() for name in trained)
    messages = {"local": 0, "scaffold": 2}.get(algorithm, 1)
    for result in training.results:
        assert result.round["bytes_up"] == 5 * sent * messages
        assert result.round["bytes_down"] == 5 * sent * messages


@pytest.mark.parametrize("kind", [Branches, sequence, resnet])
@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox:mu=0.1", "scaffold:option=I", "moon"])
def test_engines_agree(lab, kind, algorithm):
    fed = lab.federation(shape=shape_of(kind))
    model = pretrained(kind, torch.randn(8, *shape_of(kind)))
    found = []
    for engine in (Loop(), Stacked(mode="stack")):
        found.append(lab.run(2, fed, algorithm, model, engine))
    assert lab.gap(*found) < 1e-10


def test_training_is_that_of_a_model_in_evaluation_mode(lab):
    """The head is trained on the features of evaluation mode: as a softmax regression on them."""
    fed = lab.federation(shape=SHAPE)
    model = pretrained(sequence, torch.randn(8, *SHAPE))
    training = lab.run(2, fed, "fedavg", model, Loop())
    with torch.no_grad():
        x = copy.deepcopy(model).double().eval()[:5](torch.from_numpy(fed.train.x).double())
    rows = Rows(x.float().numpy(), fed.train.y)
    flat = Federation(Dataset("features", rows, rows, fed.data.classes), fed.partition)
    head = nn.Sequential(copy.deepcopy(model[5]))
    wanted = lab.run(2, flat, "fedavg", head, Loop())
    for name in ("weight", "bias"):
        torch.testing.assert_close(
            training.state.params[f"5.{name}"], wanted.state.params[f"0.{name}"], rtol=0, atol=1e-6
        )


@ENGINES
def test_the_policy_freezes_every_layer(lab, engine):
    fed = lab.federation(shape=SHAPE)
    model = pretrained(sequence, torch.randn(8, *SHAPE)).requires_grad_(True)
    before = copy.deepcopy(model.state_dict())
    training = lab.run(2, fed, "fedavg", model, engine, norm="frozen")
    assert set(training.state.model()) == {"0.weight", "0.bias", "5.weight", "5.bias"}
    for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
        assert torch.equal(
            training.model.state_dict()[f"1.{name}"],
            before[f"1.{name}"].to(training.model.state_dict()[f"1.{name}"].dtype),
        )
    assert float((training.state.params["0.weight"] - before["0.weight"]).abs().max()) > 1e-3
    assert training.results[0].round["bytes_up"] == 5 * 8 * (4 * 2 * 9 + 4 + 4 * 3 + 3)
    assert isinstance(model[1], nn.BatchNorm2d)  # what was given stays


def test_batches_of_one_row_are_no_problem_for_a_frozen_layer(lab):
    model = pretrained(sequence, torch.randn(8, *SHAPE))
    lab.run(1, lab.federation(shape=SHAPE), "fedavg", model, Loop(), batch_size=1)
    free = model.requires_grad_(True)
    with pytest.raises(FedskewError, match="batch_size=1 with BatchNorm has no spread"):
        lab.training(lab.federation(shape=SHAPE), "fedavg", free, Loop(), batch_size=1)


def test_a_layer_without_statistics_cannot_be_frozen(lab):
    model = nn.Sequential(
        nn.Flatten(), nn.BatchNorm1d(6, track_running_stats=False), nn.Linear(6, 3)
    )
    with pytest.raises(FedskewError, match="norm=frozen needs running statistics"):
        lab.training(model=model, norm="frozen")


def test_a_layer_that_is_trained_in_part_is_not_frozen():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3), nn.BatchNorm1d(3, affine=False))
    model[0].requires_grad_(False)
    model[1].weight.requires_grad_(False)
    found = freeze_batch_norms(model, every=False)
    assert [type(layer) for layer in found] == [FrozenBatchNorm, nn.BatchNorm1d, nn.BatchNorm1d]
    assert isinstance(
        freeze_batch_norms(nn.BatchNorm1d(3).requires_grad_(False), False), FrozenBatchNorm
    )


def test_the_frozen_layer_is_the_layer_in_evaluation_mode():
    layer = nn.BatchNorm2d(3).double()
    layer(2 + torch.randn(9, 3, 4, 4, dtype=torch.float64))
    layer.requires_grad_(False)
    x = torch.randn(5, 2, 3, 4, 4, dtype=torch.float64)
    frozen = freeze_batch_norms(copy.deepcopy(layer), every=False).train()
    wanted = torch.stack([layer.eval()(rows) for rows in x])
    torch.testing.assert_close(vmap(lambda rows: functional_call(frozen, {}, (rows,)))(x), wanted)
    torch.testing.assert_close(StackedModel(nn.Sequential(frozen), ()).forward({}, x), wanted)


def test_frozen_weights_take_room_once():
    """A stack is sized by what every client has for itself: 7 copies, and 3 of activations."""
    model = pretrained(sequence, torch.randn(8, *SHAPE))
    row = torch.randn(1, *SHAPE)
    whole = measure_cost(copy.deepcopy(model).requires_grad_(True), row, 4).bytes_per_client
    part = measure_cost(freeze_batch_norms(model, every=False), row, 4).bytes_per_client
    fixed = 4 * (4 * 2 * 9 + 4 + 4 * 4) + 8
    assert whole - part == 7 * fixed


def test_the_summary_says_what_is_frozen():
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(60, *SHAPE)).astype(np.float32)
    fed = fs.split((rows, draw.integers(0, 3, 60)), "iid", clients=3)
    model = pretrained(sequence, torch.randn(8, *SHAPE))
    run = fs.train(fed, model, "fedavg", rounds=2, folder=False, device="cpu")
    frozen = 4 * 2 * 9 + 4 + 4 + 4
    assert run.summary["parameters"] == 15
    assert run.summary["frozen_parameters"] == frozen + 4 + 4 + 1  # with the statistics
    assert run.summary["trained_bytes"] == 15 * 4
    assert run.summary["frozen_bytes"] == (frozen + 8) * 4 + 8
    assert (
        run.summary["bytes_up"] == run.summary["bytes_down"] == 2 * 3 * run.summary["trained_bytes"]
    )
    plain = fs.train(fed, "mlp", "fedavg", rounds=1, folder=False, device="cpu")
    assert "frozen_parameters" not in plain.summary


def test_kill_and_resume_gives_the_same_bits(tmp_path):
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(60, *SHAPE)).astype(np.float32)
    fed = fs.split((rows, draw.integers(0, 3, 60)), "iid", clients=3)
    model = pretrained(sequence, torch.randn(8, *SHAPE))
    how = {"rounds": 4, "device": "cpu", "checkpoint_every": 1}

    def kill(result, rounds: int) -> None:
        if result.round["round"] == 2:
            raise KeyboardInterrupt

    whole = fs.train(fed, model, "scaffold", folder=tmp_path / "whole", **how)
    with pytest.raises(KeyboardInterrupt):
        fs.train(fed, model, "scaffold", folder=tmp_path / "cut", callbacks=kill, **how)
    again = fs.resume(tmp_path / "cut", fed=fed, model=model)
    for name, value in whole.weights.items():
        assert torch.equal(again.weights[name], value), name
    moved = copy.deepcopy(model)
    with torch.no_grad():
        moved[1].running_mean += 1
    with pytest.raises(FedskewError, match="the model is not the one that the run began with"):
        fs.resume(tmp_path / "cut", fed=fed, model=moved)
