"""Reading ahead: the same bits, one piece ahead, errors where the rows are used, and no thread that is left over."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

import fedskew as fs
from fedskew.core.errors import FedskewError
from fedskew.data.stored_rows import stored
from fedskew.engine import read_ahead as ahead
from fedskew.engine.input_rows import InputRows

ROWS = 240
RNG = np.random.default_rng(0)
X = RNG.standard_normal((ROWS, 6)).astype(np.float32)
Y = np.arange(ROWS) % 3
TRAINING = {"rounds": 2, "device": "cpu", "folder": False, "eval_rows": 50, "batch_size": 8}


class Source:
    """Rows that remember what was asked for, and by which thread; one of them may be bad."""

    def __init__(self, bad: int | None = None) -> None:
        self.shape = X.shape
        self.dtype = X.dtype
        self.bad = bad
        self.asked: list[list[int]] = []
        self.threads: set[str] = set()
        self.came = threading.Condition()

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: np.ndarray) -> np.ndarray:
        rows = X[index]
        if self.bad is not None:
            rows[index == self.bad] = np.nan
        with self.came:
            self.asked.append(index.tolist())
            self.threads.add(threading.current_thread().name)
            self.came.notify_all()
        return rows


def inputs(source: Source) -> InputRows:
    return InputRows(stored("mine", source), torch.float32, torch.device("cpu"))


def requests(count: int, rows: int = 4) -> list[torch.Tensor]:
    order = torch.from_numpy(np.random.default_rng(1).permutation(ROWS))
    return list(torch.split(order, rows))[:count]


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(ahead.THREAD)]


def test_rows_come_in_the_order_of_the_requests_one_piece_ahead():
    source = Source()
    wanted = requests(16)  # eight pieces of two
    with ahead.read_ahead(inputs(source), wanted) as rows:
        for number, request in enumerate(wanted):
            np.testing.assert_array_equal(rows.index_select(0, request), X[request])
            begun = min(8, number // 2 + 2)  # the piece of this request and the next one
            with source.came:
                assert source.came.wait_for(lambda least=begun: len(source.asked) >= least, 5)
                assert len(source.asked) == begun
    assert source.asked[0] == sorted(torch.cat(wanted[:2]).tolist())
    assert all(name.startswith(ahead.THREAD) for name in source.threads)
    assert not readers()


def test_rows_are_given_while_the_next_ones_are_read():
    class Waiting(Source):
        def __getitem__(self, index: np.ndarray) -> np.ndarray:
            if self.asked:
                assert given.wait(5)
            return super().__getitem__(index)

    given = threading.Event()
    source = Waiting()
    with ahead.read_ahead(inputs(source), requests(8)) as rows:
        rows.index_select(0, requests(8)[0])
        given.set()
        rows.index_select(0, requests(8)[1])


def test_pieces_are_no_larger_than_they_may_be(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ahead, "_BYTES", 5 * X[0].nbytes)
    source = Source()
    wanted = requests(40)
    with ahead.read_ahead(inputs(source), wanted) as rows:
        for request in wanted:
            rows.index_select(0, request)
    assert {len(asked) for asked in source.asked} == {4}
    assert ahead.rows_of_piece(inputs(source), 100) == 5
    assert ahead.rows_of_piece(torch.zeros(3, 2), 100) == 100


def test_a_row_in_two_requests_of_a_piece_is_read_once():
    source = Source()
    twice = [torch.tensor([3, 5, 3]), torch.tensor([5, 7])] * 8
    with ahead.read_ahead(inputs(source), twice) as rows:
        for request in twice:
            np.testing.assert_array_equal(rows.index_select(0, request), X[request])
    assert source.asked == [[3, 5, 7]] * 8


def test_rows_in_memory_and_single_requests_need_no_thread():
    source = inputs(Source())
    with ahead.read_ahead(source, requests(1)) as rows:
        assert rows is source
    held = torch.zeros(3, 2)
    with ahead.read_ahead(held, iter(())) as rows:
        assert rows is held


class Dropping(torch.nn.Sequential):
    """A model that draws random numbers."""

    def __init__(self) -> None:
        super().__init__(
            torch.nn.Linear(6, 8), torch.nn.Dropout(0.5), torch.nn.ReLU(), torch.nn.Linear(8, 3)
        )


@pytest.mark.parametrize("engine", ["stacked", "loop"])
@pytest.mark.parametrize(
    ("algorithm", "dropout"),
    [("fedavg", True), ("per-fedavg", False), ("sfl", False), ("stratify-batch", False)],
)
def test_methods_get_the_bits_of_rows_in_memory(
    monkeypatch: pytest.MonkeyPatch, engine: str, algorithm: str, dropout: bool
):
    monkeypatch.setattr(ahead, "_BYTES", 30 * X[0].nbytes)
    model: Any = "mlp:hidden=8"
    if dropout:
        torch.manual_seed(0)
        model = Dropping()
    found = []
    for x in (X, Source()):
        fed = fs.split((x, Y), "dirichlet:alpha=0.5", 4, client_test=0.2)
        run = fs.train(fed, model, algorithm=algorithm, engine=engine, **TRAINING)
        found.append(run.model.state_dict())
    apart = algorithm == "stratify-batch" and engine == "loop"  # which sends sums, step by step
    assert any(name.startswith(ahead.THREAD) for name in x.threads) != apart
    for name, value in found[0].items():
        assert torch.equal(value, found[1][name]), name


@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_what_goes_wrong_while_reading_ahead_is_the_error_of_the_run(engine: str):
    fed = fs.split((Source(bad=100), Y), "iid", 1)
    bad = int(fed.train.x.chosen[fed.partition.of(0)][-1])
    fed = fs.split((Source(bad), Y), "iid", 1)
    with pytest.raises(FedskewError, match=f"row {bad} holds NaN"):
        fs.train(fed, "logreg", engine=engine, **{**TRAINING, "eval_rows": 1})
    assert not readers()


@pytest.mark.parametrize("problem", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_no_thread_outlives_a_run_that_is_interrupted(engine: str, problem: type[BaseException]):
    class Interrupted(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if readers() and self.training:
                raise problem
            return super().forward(x)

    model = torch.nn.Sequential(Interrupted(6, 3))
    fed = fs.split((Source(), Y), "iid", 2)
    with pytest.raises(problem):
        fs.train(fed, model, engine=engine, **TRAINING)
    assert not readers()


def test_a_generator_of_outputs_that_is_left_early_ends_its_thread():
    source = inputs(Source())

    def outputs():
        with ahead.read_ahead(source, requests(8)) as rows:
            for request in requests(8):
                yield rows.index_select(0, request)

    def fail():
        for _ in outputs():
            assert readers()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not readers()


def test_sources_are_asked_by_one_thread_at_a_time_while_clients_train_in_several():
    inside = []

    class Watched(Source):
        def __getitem__(self, index: np.ndarray) -> np.ndarray:
            inside.append(1)
            assert len(inside) == 1
            found = super().__getitem__(index)
            inside.pop()
            return found

    wanted = requests(20)
    shared = inputs(Watched())

    def read(_: int) -> None:
        with ahead.read_ahead(shared, wanted) as rows:
            for request in wanted:
                rows.index_select(0, request)

    with ThreadPoolExecutor(4) as threads:
        for done in threads.map(read, range(4)):
            assert done is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="rows that are read for a GPU: needs one")
@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox:mu=0.1", "scaffold", "fedpbs"])
def test_rows_that_are_read_train_on_a_gpu(algorithm: str):
    settings = {**TRAINING, "dtype": "float64"}
    found = []
    for x, device in ((X, "cpu"), (Source(), "cuda")):
        fed = fs.split((x, Y), "dirichlet:alpha=0.5", clients=5, seed=0)
        run = fs.train(fed, "mlp:hidden=4", algorithm, **{**settings, "device": device})
        found.append(run.weights)
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name].cpu(), value, rtol=0, atol=1e-8)
