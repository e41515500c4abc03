"""A sample schedule equals central SGD on the same samples in the same order, BatchNorm included; its cost by hand."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedskew.algorithms.contract import resolve
from fedskew.core.config import Settings
from fedskew.core.errors import FedskewError
from fedskew.core.streams import Stream
from fedskew.data.dataset import Dataset, Rows
from fedskew.data.federation import Federation
from fedskew.data.partition import Partition
from fedskew.engine.augment import augment, moves_of
from fedskew.engine.job import ModelState
from fedskew.engine.loop import Loop
from fedskew.engine.scheduled import _Trainer
from fedskew.engine.stacked import Stacked
from fedskew.fleet.machines import fleets
from fedskew.label_privacy.agreement import Agreement, Exchange
from fedskew.models.build import build
from fedskew.sample_schedules.sample_schedule import SampleSchedule
from fedskew.server.label_holders import protocol_bytes, protocol_seconds
from fedskew.server.server import Server
from fedskew.topology.schedule_cost import NO_SAMPLES, VisitBytes, with_rows
from fedskew.topology.sequential import sequential_cost, with_broadcast
from fedskew.topology.synchronous import synchronous_cost

ENGINES = pytest.mark.parametrize("engine", [Loop(), Stacked()], ids=["loop", "stacked"])
SIZES = (14, 9, 3, 12)
METHODS = (
    "stratify-batch",
    "stratify-batch:selection=weighted,frequency=proportional",
    "sfl",
    "stratify-single",
)


def federation(shape: tuple[int, ...] = (5,)) -> Federation:
    draw = np.random.default_rng(1)
    rows = Rows(
        draw.normal(size=(sum(SIZES), *shape)).astype(np.float32), draw.integers(0, 3, sum(SIZES))
    )
    parts = Partition.from_lists(np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1]))
    return Federation(Dataset("made up", rows, rows, ("a", "b", "c")), parts)


class Spy:
    """An engine that records the schedules it gets."""

    def __init__(self, engine) -> None:
        self.engine, self.paths = engine, []

    def run_schedule(self, job, state, schedule, reset_optimizer):
        self.paths.append(schedule)
        return self.engine.run_schedule(job, state, schedule, reset_optimizer)


def training(
    method: str, engine, model: str = "mlp:hidden=6", shape: tuple[int, ...] = (5,), **settings
) -> Server:
    usual = {
        "rounds": 4,
        "epochs": 2,
        "batch_size": 4,
        "lr": 0.05,
        "dtype": "float64",
        "device": "cpu",
        "threads": 1,
    }
    chosen = Settings(**{**usual, **settings})
    return Server(
        federation(shape), build(model, shape, 3, seed=0), resolve(method), chosen, engine
    )


@ENGINES
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(
    ("method", "model", "shape"),
    [
        *((method, "mlp:hidden=6", (5,)) for method in METHODS),
        ("stratify-batch", "tabular:hidden=6", (5,)),
        ("stratify-batch", "resnet9:width=2", (1, 16, 16)),
        ("sfl", "tabular:hidden=6", (5,)),
        ("stratify-single", "cnn:width=2", (1, 8, 8)),
    ],
)
def test_it_is_central_sgd_on_the_same_samples(
    engine, method: str, model: str, shape, momentum: float
):
    spy = Spy(engine)
    run = training(method, spy, model, shape, momentum=momentum)
    central = copy.deepcopy(run.model).train()
    optimizer = torch.optim.SGD(central.parameters(), lr=0.05, momentum=momentum)
    for _ in range(2):
        result = run.advance()
        [path] = spy.paths[-1:]
        losses = []
        for step, rows in enumerate(np.split(path.rows, path.ends[:-1])):
            if method == "sfl" and (step == 0 or path.ends[step - 1] in path.visits):
                optimizer = torch.optim.SGD(central.parameters(), lr=0.05, momentum=momentum)
            optimizer.zero_grad()
            loss = F.cross_entropy(central(run.job.x[rows]), run.job.y[rows])
            loss.backward()
            optimizer.step()
            losses.append(loss.item() * len(rows))
        for name, value in {
            **dict(central.named_parameters()),
            **dict(central.named_buffers()),
        }.items():
            torch.testing.assert_close(run.state.model()[name], value.detach(), rtol=0, atol=1e-10)
        assert result.round["local_loss"] == pytest.approx(sum(losses) / len(path.rows), abs=1e-10)


@ENGINES
@pytest.mark.parametrize(
    ("method", "model"),
    [
        ("stratify-batch", "cnn:width=2"),
        ("stratify-batch", "resnet9:width=2"),
        ("stratify-single", "cnn:width=2"),
    ],
)
def test_images_are_moved_by_their_place_in_the_schedule(engine, method: str, model: str):
    spy = Spy(engine)
    run = training(method, spy, model, (1, 16, 16), augment="crop+flip", seed=5)
    central = copy.deepcopy(run.model).train()
    optimizer = torch.optim.SGD(central.parameters(), lr=0.05)
    for number in range(2):
        run.advance()
        [path] = spy.paths[-1:]
        words = torch.from_numpy(Stream(5, "augment", number).bits(len(path.rows)).view(np.int64))
        moves = moves_of(words, "crop+flip")
        for places in np.split(np.arange(len(path.rows)), path.ends[:-1]):
            rows = path.rows[places]
            optimizer.zero_grad()
            images = [
                augment(run.job.x[row], *moves[:, place])
                for row, place in zip(rows, places, strict=True)
            ]
            F.cross_entropy(central(torch.stack(images)), run.job.y[rows]).backward()
            optimizer.step()
        for name, value in {
            **dict(central.named_parameters()),
            **dict(central.named_buffers()),
        }.items():
            torch.testing.assert_close(run.state.model()[name], value.detach(), rtol=0, atol=1e-10)


@ENGINES
def test_lines_of_clients_by_hand(engine):
    spy = Spy(engine)
    result = training("stratify-batch", spy).advance()
    [path] = spy.paths
    steps = np.split(path.clients, path.ends[:-1])
    for line in result.clients:
        client = line["client"]
        assert line["samples"] == (path.clients == client).sum()
        assert line["steps"] == line["visits"] == sum(client in step for step in steps)
        assert line["weight"] == pytest.approx(line["samples"] / len(path.rows))
        assert line["rows"] == SIZES[client]
    assert result.round["transfers"] == 2 * sum(len(set(step.tolist())) for step in steps)
    assert result.round["clients"] == 4
    assert result.round["excluded"] == 0


@pytest.mark.parametrize(
    "method", ["stratify-batch", "stratify-single", "stratify-hybrid:batch_rounds=1", "sfl"]
)
def test_resumed_it_is_the_same(method: str):
    settings = {"momentum": 0.9, "fleet": "mixed:slow=5,dropout=0.2"}
    whole = training(method, Stacked(), **settings)
    results = [whole.advance() for _ in range(4)]
    stopped = training(method, Stacked(), **settings)
    for _ in range(2):
        stopped.advance()
    resumed = training(method, Stacked(), **settings)
    resumed.restore(stopped.checkpoint())
    assert [resumed.advance() for _ in range(2)] == results[2:]
    assert all(
        value.equal(whole.state.params[name]) for name, value in resumed.state.params.items()
    )


def path_of(
    clients: list[int], ends: list[int], visits: list[int], idle: tuple[int, ...] = ()
) -> SampleSchedule:
    arrays = (
        np.array(values, dtype=np.int64) for values in (range(len(clients)), clients, ends, visits)
    )
    return SampleSchedule(*arrays, idle=np.array(idle, dtype=np.int64))


def machines(tmp_path, deadline: str = "none"):
    lines = [
        "client,rows_per_second,down_mbit,up_mbit,latency,dropout",
        "0,10,8,8,0.5,0",
        "1,5,4,8,0.25,0",
        "2,1,1,1,0,0",
    ]
    (tmp_path / "fleet.csv").write_text("\n".join(lines) + "\n")
    choice = fleets.choose(f"trace:file={tmp_path / 'fleet.csv'},deadline={deadline}")
    return fleets.get(choice.name)(3, 0, **choice.options)


def test_a_chain_by_hand(tmp_path):
    path = path_of([0, 0, 1, 0], [1, 2, 3, 4], [2, 3, 4], idle=(2,))
    cost = sequential_cost(
        path, 3, machines(tmp_path), VisitBytes(down=1_000_000, up=500_000, request=8)
    )
    at_0 = 2 * 0.5 + 8 / 8 + 4 / 8
    at_1 = 2 * 0.25 + 8 / 4 + 4 / 8 + 1 / 5
    idle = 8 / 1 + 4 / 1
    assert cost.duration == pytest.approx((at_0 + 2 / 10) + at_1 + (at_0 + 1 / 10) + idle)
    assert cost.visits.tolist() == [2, 1, 1]
    assert cost.run_length == 1.0
    # No samples, but transfers
    assert cost.busy.tolist() == pytest.approx([2 * at_0 + 3 / 10, at_1, idle])
    assert cost.transfers == 4
    assert cost.bytes_down.tolist() == [2_000_000 + 3 * 8, 1_000_000 + 8, 1_000_000]
    assert cost.bytes_up.tolist() == [1_000_000, 500_000, 500_000]
    assert cost.computing.tolist() == pytest.approx([3 / 10, 1 / 5, 0.0])


def test_a_broadcast_by_hand(tmp_path):
    fleet = machines(tmp_path)
    cost = sequential_cost(
        path_of([0, 0, 1], [1, 2, 3], [2, 3]), 3, fleet, VisitBytes(1_000_000, 500_000, 8)
    )
    after = with_broadcast(cost, np.array([0, 1]), fleet, 2_000_000)
    assert after.duration - cost.duration == pytest.approx(max(0.5 + 16 / 8, 0.25 + 16 / 4))
    assert after.transfers == 4
    assert after.bytes_down.tolist() == [1_000_000 + 16 + 2_000_000, 1_000_000 + 8 + 2_000_000, 0]
    assert after.bytes_up.tolist() == [500_000, 500_000, 0]
    nowhere = replace(cost, schedule=NO_SAMPLES)
    assert with_broadcast(nowhere, np.array([0]), fleet, 9) is nowhere


def test_the_final_model_goes_to_all_who_are_there():
    """Check that the model is sent once for each visit and once more to all clients: Fig. 1 of Stratify, step a7."""
    run, other = (
        training(method, Stacked(), dtype="float32") for method in ("stratify-single", "sfl")
    )
    size = sum(4 * value.numel() for value in run.state.params.values())
    for walked, all_clients in ((run, 4), (other, 0)):
        line = walked.advance()
        visits = sum(client["visits"] for client in line.clients)
        orders = 8 * sum(client["samples"] for client in line.clients) if all_clients else 0
        assert line.round["transfers"] == visits + all_clients
        assert line.round["bytes_down"] == size * (visits + all_clients) + orders
        assert line.round["bytes_up"] == size * visits
        for client in line.clients:
            mine = size * (client["visits"] + bool(all_clients)) + (
                8 * client["samples"] if all_clients else 0
            )
            assert client["bytes_down"] == mine


def test_the_label_protocol_on_the_clock_by_hand(tmp_path):
    first = (Exchange(0, 1_000_000, 500_000, 0.25, 0.5),)
    second = (Exchange(0, 0, 0, 0.0, 0.0), Exchange(2, 1_000_000, 250_000, 2.0, 0.125))
    agreed = Agreement((), None, None, {}, {}, (first, second))
    wanted = (1.0 + 8 / 8 + 4 / 8 + 0.25) + 0.5 + max(1.0, 8 / 1 + 2 / 1 + 2.0) + 0.125
    assert protocol_seconds(agreed, machines(tmp_path)) == pytest.approx(wanted)
    assert protocol_bytes(agreed) == (2_000_000, 750_000)


def test_lockstep_by_hand(tmp_path):
    path = path_of([0, 1, 0, 2, 1], [3, 5], [3, 5])
    cost = synchronous_cost(
        path, 3, machines(tmp_path), VisitBytes(down=1_000_000, up=1_000_000, request=8)
    )
    first = max(1.0 + 2.0 + 2 / 10, 0.5 + 3.0 + 1 / 5)
    second = max(8 + 8 + 1 / 1, 0.5 + 3.0 + 1 / 5)
    assert cost.duration == pytest.approx(first + second)
    assert cost.visits.tolist() == [1, 2, 1]
    assert cost.run_length == 5 / 4
    assert cost.transfers == 8
    assert cost.bytes_down.tolist() == [1_000_000 + 2 * 8, 2_000_000 + 2 * 8, 1_000_000 + 8]
    assert cost.bytes_up.tolist() == [1_000_000, 2_000_000, 1_000_000]


@pytest.mark.parametrize(("deadline", "samples"), [("1", 0), ("4", 3), ("30", 5)])
def test_the_deadline_ends_a_walk(tmp_path, deadline: str, samples: int):
    path = path_of([0, 1, 0, 2, 1], [3, 5], [3, 5])
    cost = synchronous_cost(
        path, 3, machines(tmp_path, deadline), VisitBytes(1_000_000, 1_000_000, 0)
    )
    assert len(cost.schedule.rows) == samples
    assert cost.duration == (pytest.approx(3.7 + 17) if samples == 5 else float(deadline))


def test_steps_that_batchnorm_cannot_take_are_left_out():
    path = with_rows(path_of([0, 0, 0, 1, 1, 2], [2, 3, 5, 6], [3, 5, 6]), 2)
    assert path.rows.tolist() == [0, 1, 3, 4]
    assert path.ends.tolist() == path.visits.tolist() == [2, 4]
    assert with_rows(path, 2) is path


@ENGINES
@pytest.mark.parametrize("method", METHODS)
def test_everybody_is_lost(engine, method: str):
    run = training(method, engine, fleet="uniform:dropout=0.9999999999")
    before = {name: value.clone() for name, value in run.state.params.items()}
    result = run.advance()
    assert result.round["dropped"] == result.round["clients"] == 4
    assert result.round["local_loss"] is None
    assert all(value.equal(run.state.params[name]) for name, value in before.items())


def test_who_is_not_there_is_not_visited():
    run = training("stratify-single", Stacked(), fleet="mixed:dropout=0.45")
    results = [run.advance() for _ in range(4)]
    lost = [line for result in results for line in result.clients if line["dropped"]]
    assert lost
    assert all(line["samples"] == line["visits"] == line["weight"] == 0 for line in lost)


def test_a_model_that_breaks_is_reported_and_nothing_changes():
    run = training("stratify-batch:frequency=proportional", Stacked())  # with every row
    run.job.x[3] = np.nan
    before = {name: value.clone() for name, value in run.checkpoint().items()}
    with pytest.raises(FedskewError, match="became NaN or infinite"):
        run.advance()
    after = run.checkpoint()
    assert before.keys() == after.keys()
    assert all(value.equal(after[name]) for name, value in before.items())


@pytest.mark.parametrize(
    ("method", "settings", "words"),
    [
        ("stratify-single", {"model": "tabular:hidden=4"}, "one sample at a time.*norm=group"),
        ("stratify-hybrid", {"model": "tabular:hidden=4"}, "one sample at a time.*norm=group"),
        (
            "stratify-batch",
            {"model": "tabular:hidden=4", "norm": "local"},
            "has one model for all: use norm=aggregate",
        ),
        ("stratify-batch:selection=weighted,secure=true", {}, "per_label="),
        (
            "stratify-batch:selection=weighted,per_label=3,frequency=proportional,secure=true",
            {},
            "use frequency=uniform",
        ),
        ("stratify-batch", {"test_trained": True}, "test_trained=true"),
        ("fedbuff", {"test_trained": True}, "test_trained=true"),
        ("stratify-single:chunk=0", {}, "chunk=0 is out of range"),
    ],
)
def test_refused_before_the_first_round(method: str, settings: dict, words: str):
    with pytest.raises(FedskewError, match=words):
        training(method, Stacked(), **settings)


def test_no_rows_are_no_step():
    run = training("stratify-batch", Stacked(), momentum=0.9)
    run.advance()
    trainer = _Trainer(
        run.job,
        ModelState(run.state.params, run.state.buffers, run.rounds.optimizer, 0.05, 1),
        reset_optimizer=False,
    )
    assert trainer._eager(torch.zeros((0, 4), dtype=torch.int64), 0, set()) == []
    assert all(value.equal(run.state.params[name]) for name, value in trainer.params.items())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="replays CUDA graphs: needs a GPU")
@pytest.mark.parametrize(
    ("method", "model", "shape", "augment"),
    [
        ("stratify-single", "cnn:width=4", (1, 8, 8), "none"),
        ("stratify-single", "cnn:width=4", (1, 8, 8), "crop+flip"),
        ("stratify-batch", "tabular:hidden=6", (5,), "none"),
    ],
)
def test_replayed_graphs_are_single_steps(
    monkeypatch, method: str, model: str, shape, augment: str
):
    ends = []
    for steps in (4, 4, 10**9):  # captured twice, and never enough steps for a graph
        monkeypatch.setattr("fedskew.engine.scheduled._STEPS_AT_ONCE", steps)
        run = training(
            method,
            Stacked(),
            model,
            shape,
            device="cuda",
            momentum=0.9,
            batch_size=2,
            augment=augment,
        )
        for _ in range(2):
            run.advance()
        ends.append(run.state.model())
    replayed, again, single = ends
    for name, value in replayed.items():
        assert torch.equal(value, again[name])
        torch.testing.assert_close(value, single[name], rtol=0, atol=1e-10)
