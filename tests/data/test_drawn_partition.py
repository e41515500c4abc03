"""Clients that are drawn from a few: their rows, their totals, training on them, and what is refused."""

import numpy as np
import pytest

from fedskew.algorithms.contract import resolve
from fedskew.core.config import Settings
from fedskew.core.errors import FedskewError
from fedskew.data.dataset import Dataset, Rows
from fedskew.data.drawn_partition import DrawnPartition
from fedskew.data.federation import Federation
from fedskew.data.partition import Partition
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked
from fedskew.models.build import build
from fedskew.server.server import Server

KNOWN = Partition.from_lists([np.arange(5), np.arange(5, 8), np.arange(8, 20)])
MANY = np.arange(300)


def written_out(count: int, seed: int) -> Partition:
    drawn = DrawnPartition.of_clients(KNOWN, count, seed)
    return Partition.from_lists([drawn.of(client) for client in range(count)])


def test_it_is_the_partition_that_is_written_out():
    drawn = DrawnPartition.of_clients(KNOWN, 300, seed=4)
    plain = written_out(300, 4)
    assert drawn.clients == plain.clients == len(drawn.sizes) == 300
    assert drawn.total == plain.total == len(plain.rows)
    np.testing.assert_array_equal(drawn.sizes[MANY], plain.sizes)
    np.testing.assert_array_equal(np.asarray(drawn.sizes), plain.sizes)
    assert (drawn.sizes.min(), drawn.sizes.max()) == (3, 12)
    some = np.array([7, 250, 3])
    labels = np.arange(20) % 3
    np.testing.assert_array_equal(drawn.counts(labels, 3, some), plain.counts(labels, 3, some))
    assert set(np.unique(drawn.sizes[MANY])) == {3, 5, 12}
    other = DrawnPartition.of_clients(KNOWN, 300, seed=5)
    assert drawn != other
    assert drawn == DrawnPartition.of_clients(KNOWN, 300, seed=4)


def server(partition: Partition, method: str, engine, **settings) -> Server:
    draw = np.random.default_rng(0)
    rows = Rows(draw.normal(size=(20, 4)).astype(np.float32), draw.integers(0, 3, 20))
    fed = Federation(Dataset("made up", rows, rows, ("a", "b", "c")), partition)
    usual = {"rounds": 4, "per_round": 6, "batch_size": 4, "dtype": "float64", "device": "cpu"}
    chosen = Settings(**{**usual, "threads": 1, **settings})
    return Server(fed, build("mlp:hidden=3", (4,), 3, seed=0), resolve(method), chosen, engine)


@pytest.mark.parametrize("engine", [Loop(), Stacked(mode="stack")], ids=["loop", "stacked"])
@pytest.mark.parametrize("method", ["fedavg", "fedbuff:buffer=3", "afl-cp", "scaffold", "fedpbs"])
def test_training_has_the_bits_of_the_partition_that_is_written_out(engine, method: str):
    fleet = {"fleet": "mixed:dropout=0.2"}
    one = server(DrawnPartition.of_clients(KNOWN, 300, seed=4), method, engine, **fleet)
    other = server(written_out(300, 4), method, engine, **fleet)
    for _ in range(4):
        rows = []
        for training in (one, other):
            row = training.advance().round
            # Training rows are scored once each, and not once for every client that has them
            rows.append({name: value for name, value in row.items() if "train_" not in name})
        assert repr(rows[0]) == repr(rows[1])
    for name, value in one.state.params.items():
        assert (value == other.state.params[name]).all()


def test_what_it_cannot_do_is_refused(tmp_path):
    drawn = DrawnPartition.of_clients(KNOWN, 10**8, seed=0)
    with pytest.raises(FedskewError, match="drawn for 100,000,000 clients is not written"):
        drawn.save(tmp_path / "partition.npz")
    with pytest.raises(FedskewError, match="would have the same noise: leave epsilon out"):
        server(DrawnPartition.of_clients(KNOWN, 300, 0), "afl-cp:epsilon=1", Loop())


@pytest.mark.parametrize(
    "method", ["fedbuff", "fedasync", "d-psgd", "sfl", "stratify-batch", "fedavg + hierarchical"]
)
def test_over_selection_is_for_a_server_that_waits(method: str):
    with pytest.raises(FedskewError, match=r"enough=0\.5 is for rounds in which a server waits"):
        server(KNOWN, method, Loop(), fleet="uniform:enough=0.5", per_round=3)


def test_over_selection_takes_the_first_answers():
    row = server(written_out(30, 0), "fedavg", Loop(), fleet="mixed:enough=0.5").advance().round
    assert (row["clients"], row["late"], row["dropped"]) == (6, 3, 0)


def test_a_round_among_a_hundred_million_takes_no_memory_for_them():
    import tracemalloc

    drawn = DrawnPartition.of_clients(KNOWN, 10**8, seed=0)
    one = server(drawn, "fedbuff:buffer=3", Stacked(), eval_every=10)
    one.advance()
    tracemalloc.start()
    one.advance()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4e6
