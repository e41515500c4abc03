"""Models that are not in the zoo: frozen layers, and layers that cannot be stacked."""

import pytest
import torch
from torch import Tensor, nn

from fedskew.core.errors import FedskewError
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked, can_be_stacked


def frozen_first() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))
    for value in model[0].parameters():
        value.requires_grad_(False)
    return model


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(3, 4, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x.view(len(x), 2, 3))[0][:, -1])


@pytest.mark.parametrize("settings", [{}, {"norm": "local"}, {"optimizer": "adam", "lr": 0.01}])
@pytest.mark.parametrize("algorithm", ["fedprox:mu=0.1", "fedadam", "local", "central"])
def test_frozen_parameters_stay_and_are_never_sent(lab, algorithm, settings):
    plain, stack = (
        lab.run(3, None, algorithm, frozen_first(), engine, **settings)
        for engine in (Loop(), Stacked(mode="stack"))
    )
    assert lab.gap(plain, stack) < 1e-8
    assert set(plain.state.params) == {"1.weight", "1.bias", "3.weight", "3.bias"}
    for training in (plain, stack):
        torch.testing.assert_close(
            training.model[0].weight, frozen_first()[0].weight.double(), rtol=0, atol=0
        )
        if algorithm != "local":
            assert (
                float(
                    (training.state.params["3.weight"] - frozen_first()[3].weight.detach())
                    .abs()
                    .max()
                )
                > 1e-3
            )
    if (
        algorithm == "fedadam" and not settings
    ):  # 5 clients, 8 bytes a number: 2 x 5 of BatchNorm, 5 x 3 + 3, statistics, counter
        assert plain.results[0].round["bytes_up"] == 5 * 8 * (10 + 18 + 10 + 1)


def test_a_model_with_nothing_to_train_is_refused(lab):
    model = nn.Linear(6, 3).requires_grad_(False)
    with pytest.raises(
        FedskewError, match="Linear has nothing to train: no parameter has requires_grad=True"
    ):
        lab.training(model=model)


def test_a_model_that_cannot_be_stacked_is_looped(lab):
    torch.manual_seed(0)
    model = Recurrent()
    training = lab.training(model=model)
    assert not can_be_stacked(training.model, training.job.x)
    plain, auto = (lab.run(2, None, "fedavg", model, engine) for engine in (Loop(), Stacked()))
    assert lab.gap(plain, auto) < 1e-12
    assert can_be_stacked(frozen_first().double(), training.job.x)


@pytest.mark.parametrize(
    ("model", "threads"), [("mlp:hidden=5", 3), ("mlp:hidden=5,dropout=0.5", 1)]
)
def test_layers_that_draw_random_numbers_take_turns(lab, monkeypatch, model: str, threads: int):
    seen = []

    def counted(part, count: int, at_once: int):
        seen.append(at_once)
        return map(part, range(count))

    monkeypatch.setattr("fedskew.engine.stacked.in_threads", counted)
    lab.run(1, lab.federation(), "fedavg", model, Stacked(mode="loop"), threads=3)
    assert seen == [threads]
