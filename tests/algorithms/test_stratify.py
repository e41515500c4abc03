"""Stratify on clients of one class each, where averaging fails; its schedule in a run; and private labels."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import fedskew as fs
from fedskew.algorithms.contract import resolve
from fedskew.algorithms.selection import ClientPool
from fedskew.batchnorm.exact import Hub, step_bytes
from fedskew.core.config import Settings
from fedskew.core.errors import FedskewError, Interrupted
from fedskew.core.streams import Stream
from fedskew.data.dataset import Dataset, Rows
from fedskew.data.partition import Partition
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked
from fedskew.models.build import build
from fedskew.sample_schedules.holdings import Holdings
from fedskew.sample_schedules.sample_schedule import SampleSchedule
from fedskew.server.server import Server
from fedskew.topology.schedule_cost import with_several_clients
from fedskew.transport.frames import unpack

SETTINGS = {"model": "mlp", "folder": False, "device": "cpu", "threads": 1, "eval_every": 100}


@pytest.fixture(scope="module")
def apart() -> fs.Federation:
    """Return a federation of ten clients with one digit each."""
    return fs.split(fs.load("digits"), "classes:k=1", clients=10)


def accuracy(fed, method: str, **settings) -> float:
    return fs.train(fed, algorithm=method, **{**SETTINGS, "rounds": 5, **settings}).summary[
        "test_accuracy_last"
    ]


def test_where_averaging_fails_the_schedule_does_not(apart):
    plain = accuracy(apart, "fedavg", lr=0.1)
    batch, single = (
        accuracy(apart, "stratify-batch", lr=0.1),
        accuracy(apart, "stratify-single", lr=0.02),
    )
    assert plain < 0.7
    assert min(batch, single) > 0.94


@pytest.mark.parametrize(("method", "lr"), [("stratify-batch", 0.1), ("stratify-single", 0.02)])
def test_how_the_rows_are_cut_hardly_matters(apart, method: str, lr: float):
    alike = fs.split(fs.load("digits"), "iid", clients=10)
    assert abs(accuracy(apart, method, lr=lr) - accuracy(alike, method, lr=lr)) < 0.03


def test_hybrid_begins_as_batch_and_goes_on_as_single(apart):
    same = {**SETTINGS, "lr": 0.1}
    hybrid = fs.train(apart, algorithm="stratify-hybrid:batch_rounds=2", rounds=3, **same)
    batch = fs.train(apart, algorithm="stratify-batch", rounds=3, **same)
    assert hybrid.rounds["local_loss"].tolist()[:2] == batch.rounds["local_loss"].tolist()[:2]
    steps = hybrid.clients.groupby("round")["steps"].sum()
    samples = hybrid.clients.groupby("round")["samples"].sum()
    assert steps[2] < samples[2]
    assert steps[3] == samples[3]


@pytest.mark.parametrize(("single_lr", "factor"), [(None, 1 / 4), (0.5, 0.5)])
def test_learning_rate_of_single_samples(apart, single_lr: float | None, factor: float):
    """One round after the batches, with the same samples: the first step moves as far as the factor says."""
    method = fs.StratifyHybrid(batch_rounds=1, single_lr=single_lr)
    assert [method.topology(round).lr_scale for round in range(2)] == [1.0, single_lr]
    settings = Settings(rounds=2, batch_size=4, lr=0.1, threads=1, device="cpu", dtype="float64")
    seen: list[float] = []

    class Spy(Loop):
        def run_schedule(self, job, state, schedule, reset_optimizer):
            seen.append(state.lr)
            return super().run_schedule(job, state, schedule, reset_optimizer)

    server = Server(
        apart,
        build("logreg", apart.data.shape, len(apart.data.classes), seed=0),
        method,
        settings,
        Spy(),
    )
    for _ in range(2):
        server.advance()
    assert seen == pytest.approx([0.1, 0.1 * factor])


@pytest.mark.parametrize("method", ["stratify-batch", "stratify-single"])
def test_every_label_as_often_as_scheduled(apart, method: str):
    run = fs.train(apart, algorithm=f"{method}:per_label=30", rounds=2, lr=0.01, **SETTINGS)
    assert run.clients["samples"].tolist() == [30] * 20  # one label a client
    assert run.rounds["returned"].tolist() == [0, 0]


def test_few_retained_holders_make_more_visits():
    fed = fs.split(fs.load("digits"), "iid", clients=10)
    runs = [
        fs.train(fed, algorithm=f"stratify-single:retain={n}", rounds=1, lr=0.01, **SETTINGS)
        for n in ("all", 10, 3, 1)
    ]
    all_clients, ten, three, one = (run.rounds["transfers"].tolist() for run in runs)
    assert all_clients == ten < three < one
    with pytest.raises(FedskewError, match="retain=0 is out of range"):
        resolve("stratify-single:retain=0")
    with pytest.raises(FedskewError, match="retain=some is not one of all or a whole number"):
        resolve("stratify-single:retain=some")


def test_weighted_selection_follows_the_shares():
    rows = np.random.default_rng(0).normal(size=(400, 3)).astype(np.float32)
    owner = np.array([0] * 40 + [1] * 360)
    fed = fs.split((rows, np.arange(400) % 2, owner), "natural")

    def samples(selection: str) -> list[int]:
        settings = {**SETTINGS, "model": "logreg", "rounds": 1, "lr": 0.01}
        run = fs.train(
            fed, algorithm=f"stratify-batch:selection={selection},per_label=20", **settings
        )
        return run.clients["samples"].tolist()

    size = fed.partition.sizes
    assert samples("weighted")[0] == pytest.approx(40 * size[0] / size.sum(), abs=6)
    assert samples("uniform")[0] == pytest.approx(20, abs=7)


@pytest.mark.parametrize(
    "method",
    [
        "stratify-batch:",
        "stratify-single:",
        "stratify-batch:selection=weighted,per_label=40,",
    ],
)
def test_with_secret_labels(apart, method: str):
    pytest.importorskip("tenseal")
    fed = fs.split(fs.load("digits"), "classes:k=3", clients=10)
    settings = {**SETTINGS, "rounds": 3, "lr": 0.1 if "batch" in method else 0.02}
    open_run = fs.train(fed, algorithm=f"{method}secure=false", **settings)
    secret = fs.train(fed, algorithm=f"{method}secure=true", **settings)
    assert secret.summary["test_accuracy_last"] == pytest.approx(
        open_run.summary["test_accuracy_last"], abs=0.08
    )
    held = secret.server.labels.holdings()
    assert sorted(held.counts.sum(0)) == sorted(open_run.server.labels.holdings().counts.sum(0))
    assert (held.shares is not None) == ("weighted" in method)
    extra = secret.rounds["bytes_up"][0] - secret.rounds["bytes_up"][1]
    assert extra > 100_000  # ciphertexts
    assert secret.summary["label_protocol_bytes"] > 0


@pytest.fixture(scope="module")
def uneven() -> fs.Federation:
    """Return a federation of two clients, with labels of 40, 20 and 8 rows."""
    owner = np.arange(68) % 2
    label = np.repeat([0, 1, 2], [40, 20, 8])
    rows = Rows(np.random.default_rng(0).normal(size=(68, 3)).astype(np.float32), label)
    return fs.Federation(
        Dataset("made up", rows, rows, ("a", "b", "c")), Partition.from_owner(owner, 2)
    )


@pytest.mark.parametrize(
    "method", ["stratify-batch", "stratify-single", "stratify-hybrid:batch_rounds=1"]
)
def test_on_uneven_labels_uniform_is_uniform(uneven, method: str):
    settings = {**SETTINGS, "model": "logreg", "rounds": 2, "lr": 0.01}

    def each(options: str) -> list[int]:
        run = fs.train(
            uneven, algorithm=f"{method}{',' if ':' in method else ':'}{options}", **settings
        )
        return run.clients.groupby("round")["samples"].sum().tolist()

    assert each("selection=uniform") == [24, 24]
    assert each("per_label=5") == [15, 15]
    assert each("frequency=proportional") == [68, 68]
    assert each("frequency=proportional,cap=8") == [24, 24]
    assert each("per_label=30,reuse=true") == [90, 90]
    assert each("reuse=true") == [69, 69]


def test_more_of_a_label_than_there_is_is_refused_before_the_first_round(uneven, tmp_path):
    for method in ("stratify-batch", "stratify-single:chunk=2"):
        spec = f"{method}{',' if ':' in method else ':'}per_label=9"
        with pytest.raises(
            FedskewError,
            match=r"per_label=9 is more than the 8 rows of the rarest label.*reuse=true",
        ):
            fs.train(uneven, algorithm=spec, **{**SETTINGS, "folder": tmp_path / "run"})
        assert not (tmp_path / "run").exists()
    with pytest.raises(FedskewError, match="reuse=true with frequency=proportional"):
        resolve("stratify-batch:reuse=true,frequency=proportional")


def test_while_clients_are_away_labels_still_come_equally_often():
    holdings = Holdings(np.array([[4, 4, 0], [4, 1, 3]]), np.arange(16))
    method, stream = fs.StratifyBatch(per_label=3), Stream(0, "test")
    method.topology(0).check_labels(holdings)
    often = [
        np.bincount(
            method.label_schedule(holdings.without(np.array(away, dtype=int)), stream), minlength=3
        ).tolist()
        for away in ([], [0], [1])
    ]
    assert often == [[3, 3, 3], [1, 1, 1], [3, 3, 0]]


@pytest.mark.parametrize("secure", [False, True])
def test_reuse_with_shares_and_placeholders(uneven, secure: bool):
    if secure:
        pytest.importorskip("tenseal")
    settings = {**SETTINGS, "model": "logreg", "rounds": 1, "lr": 0.01}
    method = fs.StratifyBatch(secure=secure, per_label=12)
    for selection in ("weighted", "uniform"):
        again = replace(method, selection=selection, reuse=True)
        run = fs.train(uneven, algorithm=again, **settings)
        assert run.clients["samples"].sum() == 36
        assert run.rounds["returned"].tolist() == [0]
    once = replace(method, selection="weighted", per_label=8)
    run = fs.train(uneven, algorithm=once, **settings)
    assert run.clients["samples"].sum() == 24


def test_a_server_that_is_told_shares_does_not_count():
    counts, shares = (
        np.array([[3, 0, 0], [1, 2, 0]]),
        np.array([[0.75, 0.0, 0.0], [0.25, 1.0, 0.0]]),
    )
    told, known = (Holdings(counts, np.arange(6), shares=given) for given in (shares, None))
    method, stream = fs.StratifyBatch(selection="weighted", per_label=5), Stream(0, "test")
    assert np.bincount(method.label_schedule(told, stream), minlength=3).tolist() == [5, 5, 0]
    assert np.bincount(method.label_schedule(known, stream), minlength=3).tolist() == [2, 2, 0]
    path = method.topology(0).schedule_samples(
        told, ClientPool(0, counts.sum(1), batch_size=4), stream
    )
    assert sorted(path.rows.tolist()) == list(range(6))  # labels without samples are dropped


def test_a_secret_run_resumes_to_the_same_bits(tmp_path):
    pytest.importorskip("tenseal")
    fed = fs.split(fs.load("digits"), "classes:k=2", clients=5)
    settings = {
        "model": "logreg",
        "algorithm": "stratify-batch:secure=true",
        "device": "cpu",
        "threads": 1,
        "lr": 0.1,
    }
    whole = fs.train(fed, rounds=3, folder=tmp_path / "whole", **settings)

    def stop(result, rounds):
        if result.round["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="after round 1"):
        fs.train(fed, rounds=3, folder=tmp_path / "stopped", callbacks=stop, **settings)
    resumed = fs.resume(tmp_path / "stopped")
    assert all(
        value.equal(whole.server.state.params[name])
        for name, value in resumed.server.state.params.items()
    )
    assert json.loads((tmp_path / "stopped/summary.json").read_text())["label_protocol_bytes"] > 0


def test_without_tenseal_it_says_what_to_install(apart, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tenseal", None)
    with pytest.raises(FedskewError, match=r"fedskew\[he\]"):
        fs.train(apart, algorithm="stratify-batch:secure=true", **SETTINGS)


def test_a_secure_step_tells_the_server_sums_and_nothing_of_each_client(monkeypatch):
    pytest.importorskip("tenseal")
    heard = []
    finish = Hub.finish

    def listen(self, messages):
        heard.extend(frame for message in messages for frame in unpack(message))
        return finish(self, messages)

    monkeypatch.setattr(Hub, "finish", listen)
    fed = fs.split(fs.load("digits"), "classes:k=2", clients=5)
    settings = {
        **SETTINGS,
        "rounds": 1,
        "lr": 0.1,
        "model": "logreg",
        "algorithm": "stratify-batch:per_label=20,secure=true",
    }
    parties = fs.train(fed, engine="loop", **settings)
    assert {frame.values.dtype for frame in heard} == {torch.int64}
    at_once = fs.train(fed, engine="stacked", **settings)
    assert parties.rounds["bytes_up"].tolist() == at_once.rounds["bytes_up"].tolist()
    for name, value in parties.server.state.params.items():
        torch.testing.assert_close(value, at_once.server.state.params[name], rtol=0, atol=1e-5)
    columns = ["samples", "weight", "local_loss", "local_accuracy"]
    np.testing.assert_allclose(parties.clients[columns], at_once.clients[columns], atol=1e-5)


def test_secure_sums_cost_eight_bytes_a_number(apart):
    pytest.importorskip("tenseal")
    settings = {
        **SETTINGS,
        "rounds": 2,
        "lr": 0.1,
        "model": "logreg",
    }
    method = fs.StratifyBatch(per_label=32)
    plain = fs.train(apart, algorithm=method, **settings)
    secret = fs.train(apart, algorithm=replace(method, secure=True), **settings)
    up, _ = step_bytes(build("logreg", apart.train.x.shape[1:], 10, seed=0), torch.float32)
    # Weights and biases of ten classes
    for run, each in ((plain, up), (secret, up + 4 * (10 * 64 + 10))):
        assert run.rounds["bytes_up"][1] == each * run.rounds["transfers"][1] // 2


@pytest.mark.parametrize(("clients", "batch_size"), [(1, 8), (5, 1)])
def test_a_sum_over_one_client_is_no_secret(clients: int, batch_size: int):
    pytest.importorskip("tenseal")
    fed = fs.split(fs.load("digits"), "iid", clients=clients)
    settings = {**SETTINGS, "batch_size": batch_size}
    with pytest.raises(
        FedskewError, match="here every step has one: use at least 2 clients and batch_size=2"
    ):
        fs.train(fed, algorithm="stratify-batch:secure=true", **settings)


def test_steps_of_one_client_are_left_out_of_secure_training():
    path = SampleSchedule(
        np.arange(7),
        np.array([0, 1, 2, 2, 2, 1, 0]),
        np.array([2, 4, 5, 7]),
        np.array([2, 4, 5, 7]),
    )
    kept = with_several_clients(path)
    assert kept.rows.tolist() == [0, 1, 5, 6]
    assert kept.ends.tolist() == kept.visits.tolist() == [2, 4]
    assert with_several_clients(kept) is kept


# -- what the server schedules by --------------------------------------------------------------------------------------


def test_the_schedule_follows_from_what_was_disclosed_and_nothing_else():
    """Check with equal holdings and totals in both runs, and different rows of the present clients."""
    method, stream = fs.StratifyBatch(frequency="proportional"), Stream(0, "test")
    told = np.array([20, 30, 9])
    schedules = []
    for counts in (
        np.array([[5, 10, 0], [15, 0, 9], [0, 20, 0]]),
        np.array([[18, 29, 0], [2, 0, 9], [0, 1, 0]]),
    ):
        assert (counts.sum(0) == told).all()
        here = Holdings(counts, np.arange(counts.sum()), totals=told).without(np.array([1]))
        schedules.append(method.label_schedule(here, stream).tolist())
        path = method.topology(0).schedule_samples(
            here, ClientPool(0, counts.sum(1), batch_size=4), stream
        )
        # Labels that no present client holds are dropped
        assert len(path.rows) == here.counts.sum()
    assert schedules[0] == schedules[1]
    assert np.bincount(schedules[0], minlength=3).tolist() == [
        20,
        30,
        0,
    ]  # no present client holds the last label, which is known


@pytest.mark.parametrize("round_totals", [1, 50])
def test_secure_training_is_told_totals_over_all_clients(round_totals: int):
    pytest.importorskip("tenseal")
    fed = fs.split(fs.load("digits"), "classes:k=3", clients=10)
    settings = {
        **SETTINGS,
        "rounds": 1,
        "lr": 0.1,
        "per_round": 4,
    }
    method = fs.StratifyBatch(secure=True, round_totals=round_totals)
    held = fs.train(fed, algorithm=method, **settings).server.labels.holdings()
    rows = (
        held.counts
        if round_totals == 1
        else np.where(held.counts > 0, np.maximum(1, (held.counts + 25) // 50), 0) * 50
    )
    assert held.totals.tolist() == rows.sum(0).tolist()
    assert held.without(np.arange(9)).known.sum() <= held.totals.sum()


def test_rounding_without_secrets_is_refused():
    with pytest.raises(
        FedskewError, match="round_totals=50 rounds what secure=true tells of labels"
    ):
        fs.StratifyBatch(round_totals=50)


def test_the_label_protocol_takes_time_and_the_same_time_again():
    pytest.importorskip("tenseal")
    fed = fs.split(fs.load("digits"), "classes:k=2", clients=5)
    settings = {
        **SETTINGS,
        "model": "logreg",
        "algorithm": "stratify-single:per_label=5,secure=true",
        "rounds": 2,
        "fleet": "mixed:slow=5",
    }
    first, second = (fs.train(fed, **settings) for _ in range(2))
    names = ["bytes_down", "bytes_up", "simulated_seconds", "clock"]
    assert first.rounds[names].equals(second.rounds[names])
    lines = first.server.participation.fleet.machines(np.arange(5)).up
    # Every client sends its labels, one after the other
    one_by_one = float((8e-6 * 393_216 / lines).sum())
    assert first.rounds["simulated_seconds"][0] - first.rounds["simulated_seconds"][1] > one_by_one
    assert first.rounds["clock"][0] == first.rounds["simulated_seconds"][0]
    assert first.rounds["clock"][1] == pytest.approx(first.rounds["simulated_seconds"].sum())


@pytest.mark.parametrize("secure", [False, True])
def test_with_secure_sums_no_step_has_one_client_alone(apart, secure: bool):
    """A sum over one client would be its own gradient; without secure sums such steps are taken."""
    pytest.importorskip("tenseal")
    schedules: list[SampleSchedule] = []

    class Spy(Stacked):
        def run_schedule(self, job, state, schedule, reset_optimizer):
            schedules.append(schedule)
            return super().run_schedule(job, state, schedule, reset_optimizer)

    settings = Settings(rounds=1, batch_size=2, lr=0.01, threads=1, device="cpu")
    model = build("logreg", apart.data.shape, len(apart.data.classes), seed=0)
    method = fs.StratifyBatch(per_label=10, secure=secure)
    Server(apart, model, method, settings, Spy()).advance()
    [schedule] = schedules
    clients = [len(set(step.tolist())) for step in np.split(schedule.clients, schedule.ends[:-1])]
    assert (min(clients) > 1) == secure
    assert len(clients) > 10
