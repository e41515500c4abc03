"""Participation under a fleet: invitations, their cost in time and traffic, and the records of drop-outs."""

from dataclasses import dataclass

import numpy as np
import pytest

from fedskew.algorithms.contract import algorithms, resolve
from fedskew.algorithms.fedavg import FedAvg
from fedskew.algorithms.selection import Selection, TrainConfig
from fedskew.core.config import Settings
from fedskew.core.errors import FedskewError
from fedskew.data.dataset import Dataset, Rows
from fedskew.data.federation import Federation
from fedskew.data.partition import Partition
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked
from fedskew.models.build import build
from fedskew.server.server import Server

SIZES = np.array([6, 12, 3, 9, 5])
MODEL_BYTES = 8 * (4 * 3 + 3)  # float64: four features, three classes
TRACE = "client,rows_per_second,down_mbit,up_mbit,latency,dropout"


def federation() -> Federation:
    draw = np.random.default_rng(0)
    rows = Rows(
        draw.normal(size=(SIZES.sum(), 4)).astype(np.float32), draw.integers(0, 3, SIZES.sum())
    )
    parts = Partition.from_lists(np.split(np.arange(SIZES.sum()), np.cumsum(SIZES)[:-1]))
    return Federation(Dataset("made up", rows, rows, ("a", "b", "c")), parts)


def training(method="fedavg", engine=None, model="logreg", **settings) -> Server:
    usual = {
        "rounds": 4,
        "epochs": 3,
        "batch_size": 4,
        "lr": 0.1,
        "dtype": "float64",
        "device": "cpu",
        "threads": 1,
    }
    return Server(
        federation(),
        build(model, (4,), 3, seed=0),
        resolve(method),
        Settings(**{**usual, **settings}),
        engine,
    )


def flat(run: Server) -> np.ndarray:
    return np.concatenate([value.numpy().ravel() for value in run.state.params.values()])


def write(path, lines: list[str], header: str = TRACE) -> str:
    path.write_text("\n".join([header, *lines]) + "\n")
    return f"trace:file={path}"


def test_seconds_of_a_round_by_hand(tmp_path):
    fleet = write(tmp_path / "fleet.csv", [f"{k},{10 * (k + 1)},1,2,0.25,0" for k in range(5)])
    result = training(fleet=fleet).advance()
    expected = [
        0.5 + 3 * n / (10 * (k + 1)) + 8e-6 * MODEL_BYTES * (1 + 1 / 2) for k, n in enumerate(SIZES)
    ]
    assert [line["seconds"] for line in result.clients] == pytest.approx(expected)
    assert (
        result.round["simulated_seconds"] == result.round["clock"] == pytest.approx(max(expected))
    )


def test_the_clock_adds_up():
    run = training(fleet="mixed:slow=5")
    lines = [run.advance().round for _ in range(4)]
    assert [line["clock"] for line in lines] == pytest.approx(
        np.cumsum([line["simulated_seconds"] for line in lines])
    )


def test_the_late_and_the_lost_do_not_count(tmp_path):
    # Client 1 is too slow for the deadline, client 3 drops out nearly always.
    speeds, chances = [1000, 1, 1000, 1000, 1000], [0, 0, 0, 0.999999, 0]
    fleet = write(
        tmp_path / "fleet.csv", [f"{k},{speeds[k]},100,100,0.01,{chances[k]}" for k in range(5)]
    )
    run = training(fleet=f"{fleet},deadline=2")
    result = run.advance()
    assert {line["client"]: (line["dropped"], line["late"], line["weight"] > 0) for line in result.clients} == {
        0: (0, 0, True), 1: (0, 1, False), 2: (0, 0, True), 3: (1, 0, False), 4: (0, 0, True),
    }  # fmt: skip
    assert (
        result.round["clients"],
        result.round["dropped"],
        result.round["late"],
        result.round["excluded"],
    ) == (
        5,
        1,
        1,
        0,
    )
    assert result.round["simulated_seconds"] == 2.0
    assert result.round["bytes_down"] == 5 * MODEL_BYTES
    assert result.round["bytes_up"] == 3 * MODEL_BYTES
    assert [line["local_loss"] is None for line in result.clients] == [
        False,
        True,
        False,
        True,
        False,
    ]
    only = training()
    only.participation.invite = _inviting(only.participation, np.array([0, 2, 4]))
    only.advance()
    assert np.abs(flat(run) - flat(only)).max() < 1e-14


def _inviting(participation, clients):
    """Return the invitation of exactly these clients."""
    invite = participation.invite
    absent = np.setdiff1d(np.arange(5), clients)
    return lambda *args: invite(*args[:-1], absent)


@pytest.mark.parametrize("engine", [Loop(), Stacked(mode="stack")], ids=["loop", "stacked"])
# Dp still adds noise
@pytest.mark.parametrize("method", sorted(set(algorithms) - {"central", "dp", "krum"}))
def test_everybody_is_lost(method: str, engine):
    # Some methods need layers before the head
    run = training(method, engine, "mlp", fleet="uniform:dropout=0.9999999999")
    before = flat(run)
    results = [run.advance() for _ in range(2)]
    assert np.array_equal(flat(run), before)
    for result in results:
        assert result.round["dropped"] == result.round["clients"] == len(result.clients)
        # Nothing is sent where everything is kept
        assert result.round["bytes_up"] < max(result.round["bytes_down"], 1)
        assert result.round["local_loss"] is None
        assert all(line["weight"] == 0 for line in result.clients)


def test_a_round_without_a_quorum_changes_nothing():
    run = training("fedavg + krum", fleet="mixed:slow=2,dropout=0.2")
    lost = []
    for _ in range(8):
        before = flat(run)
        line = run.advance().round
        # Of five clients krum needs all
        assert np.array_equal(flat(run), before) == (line["dropped"] > 0)
        lost.append(line["dropped"])
    assert 0 in lost
    assert max(lost) > 0


@pytest.mark.parametrize(
    "method", ["fedavg", "fedprox:mu=1", "scaffold", "fedpbs", "afl-cp", "ditto", "moon"]
)
def test_any_method_any_engine_same_numbers_under_a_fleet(method: str):
    settings = {"per_round": 4, "fleet": "mixed:slow=10,dropout=0.45,deadline=2,partial=true"}
    first, second = (
        training(method, Loop(), **settings),
        training(method, Stacked(mode="stack"), **settings),
    )
    lines = [(first.advance(), second.advance()) for _ in range(4)]
    assert np.abs(flat(first) - flat(second)).max() < 1e-12
    for one, other in lines:
        same = ("clients", "dropped", "late", "bytes_up", "bytes_down", "simulated_seconds")
        assert [one.round[name] for name in same] == [other.round[name] for name in same]
    assert sum(one.round["dropped"] for one, _ in lines) > 0, "the test shows nothing"


def test_partial_work(tmp_path):
    # An epoch takes 6, 12, 3, 9 and 5 seconds, and messages a little.
    fleet = write(tmp_path / "fleet.csv", [f"{k},1,1000,1000,0.001,0" for k in range(5)])
    run = training(fleet=f"{fleet},deadline=10,partial=true")
    result = run.advance()
    assert [line["steps"] for line in result.clients] == [
        2,
        0,
        3,
        3,
        2,
    ]  # 1, 0, 3, 1 and 1 epochs of 2, -, 1, 3 and 2 batches
    assert [line["late"] for line in result.clients] == [0, 1, 0, 0, 0]
    assert result.round["simulated_seconds"] == 10.0


def test_only_who_is_there_is_sent(tmp_path):
    header = TRACE + ",from,to"
    hours = [(0, 100), (50, 150), (200, 300), (250, 40), (400, 500)]
    fleet = write(
        tmp_path / "f.csv", [f"{k},1,1,1,0,0,{a},{b}" for k, (a, b) in enumerate(hours)], header
    )
    run = training(fleet=fleet)
    for clock, there in [(0.0, [0, 3]), (60.0, [0, 1]), (260.0, [2, 3]), (86_399.0, [3])]:
        run.participation.clock = clock
        assert [line["client"] for line in run.advance().clients] == there


def test_phones_are_drawn_among_those_that_are_there():
    run = training(fleet="phones:share=0.5", per_round=2, rounds=100, eval_every=100)
    windows, drawn = run.participation.fleet.windows, set()
    for hour in range(48):
        run.participation.clock = hour * 1800.0
        there = windows.open(windows.next_open(hour * 1800.0))
        clients = [line["client"] for line in run.advance().clients]
        assert there[clients].all()
        assert len(set(clients)) == min(2, there.sum())
        drawn.update(clients)
    assert drawn == set(range(5))


@pytest.mark.parametrize("method", ["fedavg", "afl-cp", "scaffold"])
def test_few_of_many_phones_are_found_without_looking_at_all(
    method: str, monkeypatch: pytest.MonkeyPatch
):
    def everybody(*_: object) -> None:
        raise AssertionError("looked at all clients")

    rows = Rows(np.zeros((1000, 4), dtype=np.float32), np.arange(1000) % 3)
    fed = Federation(
        Dataset("many", rows, rows, ("a", "b", "c")),
        Partition(np.arange(1000), np.arange(0, 1001, 2)),
    )
    settings = Settings(
        rounds=100, per_round=5, fleet="phones", eval_every=100, device="cpu", threads=1
    )
    run = Server(fed, build("logreg", (4,), 3, seed=0), resolve(method), settings)
    run.advance()
    monkeypatch.setattr("fedskew.fleet.availability.Windows.open", everybody)
    monkeypatch.setattr("fedskew.fleet.availability.Members.numbers", everybody)
    monkeypatch.setattr("fedskew.topology.records.AvailablePool.__getattr__", everybody)
    assert all(run.advance().round["clients"] == 5 for _ in range(5))


def test_nobody_there_and_the_server_waits(tmp_path):
    header = TRACE + ",from,to"
    fleet = write(
        tmp_path / "f.csv",
        [f"{k},100,100,100,0,0,{1000 + 10 * k},{2000}" for k in range(5)],
        header,
    )
    run = training(fleet=fleet)
    result = run.advance()
    assert [line["client"] for line in result.clients] == [0]
    assert result.round["simulated_seconds"] == pytest.approx(1000 + 18 / 100, abs=1e-3)


def test_central_is_always_there():
    run = training("central", fleet="phones:share=0.05")
    assert [run.advance().round["clients"] for _ in range(3)] == [1, 1, 1]


class ProbingSelection(Selection):
    """All clients measure, and two of them train, with a number each."""

    probe = ("loss", "loss_variance")

    def select(self, pool, count, stream):
        return np.arange(len(pool.sizes))

    def configure_training(self, pool, chosen, probed, count):
        members = chosen[np.argsort(probed["loss"])[:2]]
        return TrainConfig(
            members, np.array([2, 3]), np.array([1, 2]), {"rank": np.array([0.0, 1.0])}
        )


@dataclass(frozen=True)
class Probing(FedAvg):
    client_selection = ProbingSelection()


def test_probes_are_paid_for(tmp_path):
    speed = 10.0
    fleet = write(tmp_path / "fleet.csv", [f"{k},{speed},1,1,0.5,0" for k in range(5)])
    run = training(Probing(), fleet=fleet, per_round=2)
    result = run.advance()
    assert (result.round["clients"], result.round["measured"]) == (2, 5)
    # The model to all, a number to those that are sent
    assert result.round["bytes_down"] == 5 * MODEL_BYTES + 2 * 8
    # Two answers from all, then the updates
    assert result.round["bytes_up"] == 5 * 2 * 8 + 2 * MODEL_BYTES
    batch = {line["client"]: min(4, line["rows"]) for line in result.clients}
    alone = {
        k: 2 * 0.5 + rows / 3 / speed + 8e-6 * (MODEL_BYTES + 16) for k, rows in batch.items()
    }  # a look is a third
    probing = max(alone.values())
    line = 8e-6 * (8 + MODEL_BYTES)
    rows = {
        c["client"]: c["rows"] * epochs for c, epochs in zip(_by_rank(result), (1, 2), strict=True)
    }
    training_time = max(2 * 0.5 + n / speed + line for n in rows.values())
    assert result.round["simulated_seconds"] == pytest.approx(probing + training_time)
    steps = {
        c["client"]: -(-c["rows"] // batch) * epochs
        for c, batch, epochs in zip(_by_rank(result), (2, 3), (1, 2), strict=True)
    }
    assert {c["client"]: c["steps"] for c in result.clients if c["steps"]} == steps
    for c in result.clients:  # every client that took part has a complete row
        sent = c["client"] in rows
        assert c["bytes_down"] == MODEL_BYTES + 8 * sent
        assert c["bytes_up"] == 2 * 8 + MODEL_BYTES * sent
        took = probing + 2 * 0.5 + rows[c["client"]] / speed + line if sent else alone[c["client"]]
        assert c["seconds"] == pytest.approx(took)
        assert c["training_seconds"] == pytest.approx(rows[c["client"]] / speed if sent else 0.0)
        assert (c["weight"] > 0) == (c["rank"] is not None) == (c["accuracy"] is not None) == sent
    assert {c["client"] for c in result.clients} == set(range(5))


class MoreRows(ProbingSelection):
    """Measures on two rows of the first client, three of the second, and so on."""

    def probe_rows(self, pool, chosen):
        return 2 + chosen


@dataclass(frozen=True)
class ProbingMore(FedAvg):
    client_selection = MoreRows()


def test_a_method_says_on_how_many_rows_clients_measure():
    plans = []

    class Listening(Stacked):
        def probe(self, job, start, plan, what):
            plans.append(plan)
            return super().probe(job, start, plan, what)

    run = training(ProbingMore(), Listening())
    run.advance()
    assert plans[0].batch.tolist() == np.minimum([2, 3, 4, 5, 6], run.trained_on.sizes).tolist()


def test_clients_measure_on_other_batches_than_they_train_on():
    plans = {}

    class Listening(Stacked):
        def probe(self, job, start, plan, what):
            plans["probe"] = plan
            return super().probe(job, start, plan, what)

        def train(self, job, start, plan):
            plans["training"] = plan
            return super().train(job, start, plan)

    training(ProbingMore(), Listening()).advance()
    trained = plans["training"]
    measured = plans["probe"].only(trained.clients)  # all five measure, in order
    assert measured.clients.tolist() == trained.clients.tolist()
    for place, size in enumerate(trained.sizes):
        of_probe = measured.only(np.array([place])).order
        of_training = trained.only(np.array([place])).order[:size]
        assert of_probe.tolist() != of_training.tolist()
        assert sorted(of_probe) == sorted(of_training)


def _by_rank(result) -> list:
    return sorted((line for line in result.clients if line["steps"]), key=lambda line: line["rank"])


@pytest.mark.parametrize("deadline", [1.5, 4.0, 40.0])
def test_a_deadline_bounds_rounds_in_which_clients_measure_first(tmp_path, deadline: float):
    fleet = write(
        tmp_path / "fleet.csv",
        [f"{k},{speed},1,1,0.3,0" for k, speed in enumerate((1, 3, 10, 30, 100))],
    )
    run = training(Probing(), fleet=f"{fleet},deadline={deadline}", per_round=2)
    result = run.advance()
    assert result.round["simulated_seconds"] <= deadline
    ends = [
        2 * 0.3 + min(4, rows) / 3 / speed
        for rows, speed in zip((6, 12, 3, 9, 5), (1, 3, 10, 30, 100), strict=True)
    ]
    missed = {k for k, end in enumerate(ends) if end > deadline / 2}
    assert {
        line["client"] for line in result.clients if line["late"] and not line["steps"]
    } == missed
    assert len(missed) == {1.5: 2, 4.0: 0, 40.0: 0}[deadline]
    assert result.round["clients"] == 2 + len(missed)
    assert result.round["late"] >= len(missed)
    assert run.participation.records.arrays["selected"].sum() == result.round["clients"]


def test_a_round_in_which_nobody_measures_in_time_is_lost_and_recorded(tmp_path):
    fleet = write(tmp_path / "fleet.csv", [f"{k},1,1,1,9,0" for k in range(5)])
    for method in ("fedpbs", "fedbs"):
        run = training(method, fleet=f"{fleet},deadline=2")
        before = flat(run)
        lines = [run.advance() for _ in range(2)]
        assert np.array_equal(flat(run), before)
        for result in lines:
            assert result.round["late"] == result.round["clients"] == result.round["measured"] == 5
            assert result.round["simulated_seconds"] == 1.0
            assert all(line["late"] and line["bytes_down"] > 0 for line in result.clients)
        usual = training(method).advance()
        # The same columns, or the tables would be torn
        assert list(usual.clients[0]) == list(lines[0].clients[0])
        assert list(usual.round) == list(lines[0].round)


@pytest.mark.parametrize(
    ("method", "rows", "steps", "up"),
    [
        ("fedavg", 1, 1, 0),
        ("ditto", 2, 2, 0),  # a model of its own on the same batches
        ("moon", 1 + 2 / 3, 1, 0),  # two other models look at every row
        ("fedga", 1 + 2 / 3, 3, 16),  # the loss before and after, and both are sent
        ("scaffold:option=I", 2, 2, MODEL_BYTES),  # one more pass with a gradient, and the control
    ],
)
def test_whatever_a_client_does_is_on_the_clock(
    tmp_path, method: str, rows: float, steps: float, up: int
):
    fleet = write(
        tmp_path / "fleet.csv",
        [f"{k},10,1,1,0.5,0,0.25" for k in range(5)],
        TRACE + ",seconds_per_step",
    )
    for line in training(method, fleet=fleet, epochs=1).advance().clients:
        plain = -(-line["rows"] // 4)
        assert line["training_seconds"] == pytest.approx(
            rows * line["rows"] / 10 + steps * plain * 0.25
        ), line
        assert line["bytes_up"] == MODEL_BYTES + up
        lines = 2 * 0.5 + 8e-6 * (line["bytes_down"] + line["bytes_up"])
        assert line["seconds"] == pytest.approx(line["training_seconds"] + lines)


@pytest.mark.parametrize(("steps", "meetings"), [("first", 1), ("all", 3)])
def test_meetings_of_clients_are_on_the_clock(tmp_path, steps: str, meetings: int):
    fleet = write(tmp_path / "fleet.csv", [f"{k},10,1,1,0.5,0" for k in range(5)])
    method = f"fedtan:steps={steps}"
    # One step an epoch, three epochs
    run = training(method, model="tabular:hidden=4", fleet=fleet, batch_size=12)
    for line in run.advance().clients:
        on_the_line = 8e-6 * (line["bytes_down"] + line["bytes_up"])
        waited = line["seconds"] - line["training_seconds"] - on_the_line
        # The model there and back; at a meeting mean, variance and the gradients of both, each there and back
        assert waited == pytest.approx(2 * 0.5 * (1 + 4 * meetings))


def test_smaller_batches_cost_more(tmp_path):
    """Check that resource-aware batches have a cost: a slow machine with half the batch takes twice the steps."""
    large, small = (
        training(fleet="uniform:seconds_per_step=0.1", batch_size=b).advance() for b in (6, 2)
    )
    for one, other in zip(large.clients, small.clients, strict=True):
        assert other["training_seconds"] - one["training_seconds"] == pytest.approx(
            0.1 * (other["steps"] - one["steps"])
        )
        assert other["steps"] > one["steps"]


def test_history_counts_who_came_back():
    run = training(fleet="mixed:slow=4,dropout=0.4", per_round=3)
    results = [run.advance() for _ in range(6)]
    sent, came, spent = np.zeros(5), np.zeros(5), np.zeros(5)
    for result in results:
        for line in result.clients:
            sent[line["client"]] += 1
            came[line["client"]] += 1 - line["dropped"]
            spent[line["client"]] += line["training_seconds"] * (1 - line["dropped"])
    assert run.participation.records.arrays["selected"].tolist() == sent.tolist()
    assert run.participation.records.arrays["completed"].tolist() == came.tolist()
    assert run.participation.records.arrays["seconds"].tolist() == pytest.approx(spent.tolist())
    assert 0 < came.sum() < sent.sum()


def test_history_survives_a_stop():
    settings = {"fleet": "mixed:slow=4,dropout=0.4", "per_round": 3}
    whole = training("afl-cp", **settings)
    results = [whole.advance() for _ in range(4)]
    stopped = training("afl-cp", **settings)
    for _ in range(2):
        stopped.advance()
    resumed = training("afl-cp", **settings)
    resumed.restore(stopped.checkpoint())
    assert [resumed.advance() for _ in range(2)] == results[2:]
    assert np.array_equal(flat(resumed), flat(whole))


def test_a_broken_round_changes_nothing():
    run = training(fleet="mixed:slow=4")
    run.job.x[:] = np.nan
    before = {name: value.clone() for name, value in run.checkpoint().items()}
    with pytest.raises(FedskewError, match="NaN or infinite"):
        run.advance()
    after = run.checkpoint()
    assert before.keys() == after.keys()
    assert all(value.equal(after[name]) for name, value in before.items())


def test_models_right_after_local_training():
    """Check one client per round, where FedAvg's global model is that model; with a small server step they differ."""
    settings = {"per_round": 1, "test_trained": True}
    alone = training("fedavg", **settings).advance()
    assert alone.round["trained_test_loss"] == pytest.approx(alone.round["test_loss"], abs=1e-12)
    [line] = alone.clients
    assert line["trained_loss"] == pytest.approx(line["loss"], abs=1e-12)
    assert line["trained_accuracy"] == line["accuracy"]
    usual = training("fedavg", **settings)
    start = usual.evaluator.scores(usual.state.model())["test"]["loss"]
    slow = training("mfedbn:eta=1e-9", **settings).advance()
    assert slow.round["test_loss"] == pytest.approx(start, abs=1e-6)
    assert slow.round["trained_test_loss"] == pytest.approx(alone.round["test_loss"], abs=1e-12)


@pytest.mark.parametrize(
    ("method", "model"),
    [("fedper", "mlp:hidden=4"), ("fedbn", "tabular:hidden=4"), ("local", "tabular:hidden=4")],
)
def test_models_after_local_training_have_what_their_clients_keep(method: str, model: str):
    run = training(method, model=model, test_trained=True, per_round=1)
    [line] = run.advance().clients
    # With one client per round, the global model and what it kept are its own model: running statistics too.
    assert line["trained_loss"] == pytest.approx(line["loss"], abs=1e-12)
    if run.has_common_model:
        assert abs(line["trained_loss"] - line["global_loss"]) > 1e-3
    else:
        assert "global_loss" not in line


def test_scores_after_local_training_only_when_due():
    run = training("fedavg", test_trained=True, eval_every=2)
    first, second = run.advance(), run.advance()
    assert [first.round["trained_test_loss"], first.clients[0]["trained_loss"]] == [None, None]
    assert second.round["trained_test_loss"] is not None
    lost = training("fedavg", test_trained=True, fleet="uniform:dropout=0.9999999999").advance()
    assert lost.round["trained_test_loss"] is None


@pytest.mark.parametrize(
    ("method", "settings", "words"),
    [
        ("fedavg", {"per_round": 6}, "per_round=6 is more than the 5 clients"),
        ("fedbs", {"per_round": 6}, "per_round=6 is more than the 5 clients"),
        ("fedavg + krum:attackers=2", {}, "needs 7 updates per round, got 5"),
        ("fedavg", {"fleet": "mixed:partial=true"}, "partial=true needs a deadline"),
        ("fedavg", {"fleet": "mixed:slow=0.5"}, "slow=0.5 is out of range"),
        ("fedavg", {"fleet": "phone"}, "did you mean 'phones'"),
    ],
)
def test_refused_before_the_first_round(method: str, settings: dict, words: str):
    with pytest.raises(FedskewError, match=words):
        training(method, **settings)
