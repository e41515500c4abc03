"""The user's data is not changed: a model that writes to its input changes no row, and trains as any other."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedskew as fs
from fedskew.algorithms.contract import resolve
from fedskew.core.config import Settings
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked
from fedskew.runs.execute import prepare
from fedskew.server.server import Server

ROWS, CLASSES = 90, 3
ENGINES = pytest.mark.parametrize(
    "engine", [Loop(), Stacked(mode="stack"), Stacked()], ids=["loop", "stack", "auto"]
)
METHODS = [
    "fedavg", "moon", "scaffold:option=I", "fedga", "fedpbs", "fedbs", "ditto", "local", "fedavg + ccvr:every=1", "sfl",
    "stratify-batch", "stratify-single",
]  # fmt: skip


class Shifts(nn.Module):
    """Subtracts a mean from its input, in place or not."""

    def __init__(self, shape: tuple[int, ...], in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.register_buffer("mean", torch.full(shape, 0.7))
        body = (
            [nn.Conv2d(1, 3, 2), nn.Flatten(), nn.Linear(27, 5)]
            if len(shape) == 3
            else [nn.Linear(shape[0], 5)]
        )
        self.body, self.head = nn.Sequential(*body, nn.Tanh()), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = x.sub_(self.mean) if self.in_place else x - self.mean
        return self.head(self.body(x))


def arrays(shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(3)
    y = np.arange(ROWS) % CLASSES
    return (draw.normal(size=(ROWS, *shape)) + y.reshape(-1, *(1,) * len(shape))).astype(
        np.float32
    ), y


def trained(fed, shape: tuple[int, ...], in_place: bool, method: str, engine) -> Server:
    torch.manual_seed(0)
    settings = Settings(
        rounds=2, batch_size=4, threads=1, device="cpu", test_trained=method == "fedavg"
    )
    training, _ = prepare(fed, Shifts(shape, in_place), resolve(method), settings)
    context = replace(training.rounds.context, engine=engine)
    training.rounds.context = training.clients.context = context
    training.results = [training.advance() for _ in range(2)]
    training.calibrate()
    training.final = training.final_clients().table
    return training


@ENGINES
@pytest.mark.parametrize("method", METHODS)
def test_a_model_that_writes_to_its_input_changes_no_row_and_no_number(engine, method: str):
    x, y = arrays((6,))
    kept = x.copy()
    fed = fs.split((x, y), "dirichlet:alpha=1", clients=4, seed=0, client_test=0.2)
    before = [part.x.copy() for part in (fed.train, fed.test)]
    writes, twin = (trained(fed, (6,), in_place, method, engine) for in_place in (True, False))
    for part, old in zip((fed.train, fed.test), before, strict=True):
        np.testing.assert_array_equal(part.x, old)
    np.testing.assert_array_equal(x, kept)
    assert all(value.equal(twin.state.params[name]) for name, value in writes.state.params.items())
    assert writes.results == twin.results
    assert repr(writes.final) == repr(twin.final)  # NaN where a metric is not defined


@ENGINES
def test_nor_do_images_of_one_channel(engine):
    """Check images of one channel, for which both memory layouts are the same and conversion makes no copy."""
    fed = fs.split(arrays((1, 4, 4)), "iid", clients=3, seed=0)
    before = [part.x.copy() for part in (fed.train, fed.test)]
    writes, twin = (
        trained(fed, (1, 4, 4), in_place, "fedavg", engine) for in_place in (True, False)
    )
    for part, old in zip((fed.train, fed.test), before, strict=True):
        np.testing.assert_array_equal(part.x, old)
    assert writes.results == twin.results


@pytest.mark.parametrize("skew", ["noise:sigma=0.5", "relabel", "vop", "iid + noise:sigma=0.1"])
def test_a_cut_leaves_the_arrays_that_it_was_given(skew: str):
    x, y = arrays((6,))
    kept = x.copy(), y.copy()
    fs.split((x, y), skew, clients=3, seed=0)
    np.testing.assert_array_equal(x, kept[0])
    np.testing.assert_array_equal(y, kept[1])
