"""FLoRA with clients of different ranks: against small factors in plain PyTorch, its bits, bytes, clock and errors."""

import numpy as np
import pytest
import torch

import fedskew as fs
from fedskew.algorithms import Cohort
from fedskew.algorithms.contract import resolve
from fedskew.core.errors import FedskewError
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked
from fedskew.models.low_rank import narrowed, plain_weights

ENGINES = pytest.mark.parametrize(
    "engine", [Loop(), Stacked(mode="stack")], ids=["loop", "stacked"]
)
RANKS = [3, 2, 1, 3, 2]  # of the five clients of the desk
RANKED = "flora:rank=3,alpha=6,ranks=3+2+1"
SGD = {"momentum": 0.9, "weight_decay": 0.1, "lr": 0.1}
ADAM = {"optimizer": "adam", "weight_decay": 0.1, "lr": 0.02}
MODEL = "mlp:hidden=6"
# Only sending takes time, 0.008 seconds a byte
FLEET = "uniform:latency=0,rows_per_second=1e12,seconds_per_step=0,mbit_per_second=0.001"


class ByHand:
    """The network with one adapted layer, where clients have factors of their own shapes, with PyTorch's optimisers."""

    def __init__(self, desk, training, settings, mu: float) -> None:
        self.desk, self.settings, self.mu = desk, settings, mu
        layer = dict(training.model.named_modules())["features.1"]
        self.w = layer.lora_fixed.detach().clone()
        self.bias = layer.bias.detach()
        self.head = [value.detach().clone() for value in training.model.head.parameters()]
        self.x = torch.from_numpy(desk.x).double()
        self.y = torch.from_numpy(desk.y)

    def train(self, a, round: int, client: int):
        rank = RANKS[client]
        begin = [a[:rank], torch.zeros(6, rank, dtype=torch.float64), *self.head]
        trained = [value.detach().clone().requires_grad_() for value in begin]
        kind = torch.optim.SGD
        options = {name: value for name, value in self.settings.items() if name != "optimizer"}
        if "optimizer" in self.settings:
            kind = torch.optim.Adam
        optimizer = kind(trained, **options)
        for rows in self.desk.batches(round, client):
            mine, other, weight, bias = trained
            hidden = torch.relu(self.x[rows] @ (self.w + 2 * other @ mine).T + self.bias)
            loss = torch.nn.functional.cross_entropy(hidden @ weight.T + bias, self.y[rows])
            for value, start in zip(trained, begin, strict=True):
                loss = loss + self.mu / 2 * (value - start).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return [value.detach() for value in trained]

    def round(self, a, round: int) -> None:
        shares = self.desk.sizes / self.desk.sizes.sum()
        ended = [self.train(a, round, client) for client in range(5)]
        self.w = self.w + sum(p * 2 * b @ a for p, (a, b, *_) in zip(shares, ended, strict=True))
        self.head = [sum(p * one[i] for p, one in zip(shares, ended, strict=True)) for i in (2, 3)]


@ENGINES
@pytest.mark.parametrize("base", ["fedavg", "fedprox:mu=0.3"])
@pytest.mark.parametrize("settings", [SGD, ADAM], ids=["sgd", "adam"])
def test_the_server_adds_the_mean_of_products_of_different_ranks(desk, engine, base, settings):
    training = desk.training(f"{base} + {RANKED}", engine, MODEL, **settings)
    mu = float(base.partition("=")[2] or 0)
    wanted = ByHand(desk, training, settings, mu)
    begun = wanted.w
    for round in range(3):
        wanted.round(training.state.params["features.1.lora_a"], round)
        training.advance()
        found = plain_weights(training.model, training.state.model())
        for name, value in (
            ("features.1.weight", wanted.w),
            ("head.weight", wanted.head[0]),
            ("head.bias", wanted.head[1]),
        ):
            torch.testing.assert_close(found[name], value, rtol=0, atol=1e-10)
    assert float((wanted.w - begun).abs().max()) > 0.05


@ENGINES
@pytest.mark.parametrize("settings", [SGD, ADAM], ids=["sgd", "adam"])
@pytest.mark.parametrize("method", ["fedavg", "fedprox:mu=0.3", "fedavg + quantize:bits=4"])
def test_what_a_client_lacks_stays_zero(desk, engine, method, settings):
    training = desk.training(f"{method} + {RANKED}", engine, MODEL, **settings)
    training.advance()
    invited = training.invite()
    seen = 0
    for updates in training.engine.train(training.job, invited.start, invited.plan):
        for i, client in enumerate(updates.report.clients.tolist()):
            rank = RANKS[client]
            for part in (updates.trained, updates.payload["delta"]):
                a = part["features.1.lora_a"][i]
                b = part["features.1.lora_b"][i]
                assert not a[rank:].any()
                assert not b[:, rank:].any()
                if client != 2:  # a single row moves little, and four bits may not say so
                    assert a[:rank].any(1).all()
                    assert b[:, :rank].any(0).all()
            assert updates.report.numbers["rank"][i] == rank
            seen += 1
    training.complete(invited)
    assert seen == 5


@ENGINES
@pytest.mark.parametrize("ranks", ["3", "3+3"])
def test_equal_ranks_are_the_method_without_ranks(desk, engine, ranks: str):
    found = []
    for options in ("rank=3", f"rank=3,ranks={ranks}"):
        training = desk.training(f"fedavg + flora:{options}", engine, MODEL, per_round=3)
        results = [training.advance() for _ in range(3)]
        tables = []
        for result in results:
            for row in (result.round, *result.clients):
                tables.append({name: row[name] for name in row if name not in ("rank", "seconds")})
            assert all(row.get("rank", 3) == 3 for row in result.clients)
        found.append((training.state.model(), tables))
    (plain, plain_rows), (ranked, rows) = found
    assert all(torch.equal(value, ranked[name]) for name, value in plain.items())
    assert rows == plain_rows


def numbers_sent(rank: int) -> tuple[int, int]:
    """Return what a client of an mlp 5 -> 6 -> 3 sends and receives: A, B, the head, and the adapted weight as well."""
    up = rank * 5 + 6 * rank + 18 + 3
    return up, up + 30


def test_bytes_and_seconds_by_hand(desk):
    training = desk.training(f"fedavg + {RANKED}", Loop(), MODEL, fleet=FLEET)
    result = training.advance()
    ups, downs = zip(*map(numbers_sent, RANKS), strict=True)
    assert desk.column([result], "rank") == [RANKS]
    assert desk.column([result], "bytes_up") == [[8 * up for up in ups]]
    assert desk.column([result], "bytes_down") == [[8 * down for down in downs]]
    assert result.round["bytes_up"] == 8 * sum(ups) == 8 * 226
    assert result.round["bytes_down"] == 8 * sum(downs) == 8 * 376
    seconds = [0.008 * 8 * (up + down) for up, down in zip(ups, downs, strict=True)]
    np.testing.assert_allclose(desk.column([result], "seconds"), [seconds], atol=1e-9)
    assert result.round["simulated_seconds"] == pytest.approx(max(seconds))


@pytest.mark.parametrize(
    ("addition", "sent"),
    [
        ("quantize:bits=4", lambda rank: -(-rank * 5 // 2) + 3 * rank + 9 + 2 + 4 * 8),
        ("attack:kind=gaussian", lambda rank: 8 * numbers_sent(rank)[0]),
    ],
)
def test_bytes_of_what_is_sent_otherwise(desk, addition: str, sent):
    training = desk.training(f"fedavg + {addition} + {RANKED}", Loop(), MODEL)
    result = training.advance()
    assert desk.column([result], "bytes_up") == [[sent(rank) for rank in RANKS]]


def test_clients_that_only_measure_received_adapters_of_their_ranks(desk):
    method = f"fedavg + power-of-choice:candidates=5 + {RANKED}"
    lines = desk.training(method, Loop(), MODEL, per_round=2, fleet=FLEET).advance().clients
    assert len(lines) == 5
    assert sum(line["steps"] > 0 for line in lines) == 2
    slowest = 0.008 * (8 + 8 * numbers_sent(3)[1])  # the loss, after the model has arrived
    for line in lines:
        up, down = numbers_sent(RANKS[line["client"]])
        assert line["bytes_down"] == 8 * down
        if line["steps"]:
            assert line["bytes_up"] == 8 + 8 * up
            assert line["seconds"] == pytest.approx(slowest + 0.008 * 8 * up)
        else:
            assert line["bytes_up"] == 8
            assert line["seconds"] == pytest.approx(0.008 * (8 + 8 * down))


def test_the_server_takes_no_more_columns_than_a_client_has():
    """Hostile clients may send numbers in all of them."""
    draw = torch.Generator().manual_seed(0)
    weights = {"lora_a": torch.randn(3, 5, generator=draw), "lora_b": torch.zeros(4, 3)}
    delta = {
        "lora_a": torch.randn(2, 3, 5, generator=draw),
        "lora_b": torch.randn(2, 4, 3, generator=draw),
    }
    cohort = Cohort(np.array([1.0, 3.0]), 4.0, clients=np.array([1, 2]), updates={"delta": delta})
    mean = {"delta": {name: value[0] for name, value in delta.items()}}
    state = {"offset": {"lora_offset": torch.zeros(4, 5)}}
    moved, _ = resolve(f"fedavg + {RANKED}").server_update(weights, state, mean, cohort)
    a = weights["lora_a"] + delta["lora_a"]
    b = delta["lora_b"]
    wanted = 2 * (0.25 * b[0, :, :2] @ a[0, :2] + 0.75 * b[1, :, :1] @ a[1, :1])
    torch.testing.assert_close(moved["lora_offset"], wanted)


@pytest.fixture(scope="module")
def fed():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(90, 6)).astype(np.float32)
    return fs.split((x, (x[:, 0] > 0).astype(np.int64)), "dirichlet:alpha=0.5", clients=5)


def test_kill_and_resume_with_few_clients_a_round(fed, tmp_path):
    method = "fedavg + flora:rank=4,ranks=4+2+1"
    how = {"rounds": 5, "device": "cpu", "checkpoint_every": 1, "per_round": 2}

    def kill(result, rounds: int) -> None:
        if result.round["round"] == 3:
            raise KeyboardInterrupt

    whole = fs.train(fed, "mlp:hidden=5", method, folder=tmp_path / "whole", **how)
    with pytest.raises(KeyboardInterrupt):
        fs.train(fed, "mlp:hidden=5", method, folder=tmp_path / "cut", callbacks=kill, **how)
    again = fs.resume(tmp_path / "cut", fed=fed)
    for name, value in whole.weights.items():
        assert torch.equal(again.weights[name], value), name
    for column in ("client", "rank", "bytes_up", "bytes_down"):
        assert again.clients[column].tolist() == whole.clients[column].tolist()
    ranks = [[4, 2, 1][client % 3] for client in whole.clients["client"]]
    assert whole.clients["rank"].tolist() == ranks
    assert len(set(ranks)) == 3
    sent = [4 * (rank * 6 + 5 * rank + 5 * 2 + 2) for rank in ranks]
    assert whole.clients["bytes_up"].tolist() == sent
    assert whole.summary["bytes_up"] == whole.rounds["bytes_up"].sum() == sum(sent)
    # The model of the server has adapters of the largest rank, and what was added to the weight
    assert whole.summary["parameters"] == 4 * 6 + 5 * 4 + 12
    assert whole.summary["trained_bytes"] == 4 * (4 * 6 + 5 * 4 + 12 + 30)


def test_it_conforms():
    fs.check(f"fedavg + {RANKED}")


def test_a_rank_beyond_a_layer_is_that_of_the_layer(desk):
    """The layer has five inputs, so that its adapter has rank 5."""
    method = "fedavg + flora:rank=9,ranks=9+7+2"
    result = desk.training(method, Loop(), MODEL).advance()
    sent = [8 * numbers_sent(rank)[0] for rank in (5, 5, 2, 5, 5)]
    assert desk.column([result], "bytes_up") == [sent]


def test_narrowed_leaves_other_tensors_whole():
    tree = {
        "delta": {"x.lora_a": torch.ones(4, 3), "x.lora_b": torch.ones(2, 4), "w": torch.ones(4)}
    }
    shapes = {name: tuple(value.shape) for name, value in narrowed(tree, 2)["delta"].items()}
    assert shapes == {"x.lora_a": (2, 3), "x.lora_b": (2, 2), "w": (4,)}


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("fedavg + flora:ranks=4+2", "rank=8 is not the largest of ranks=4\\+2: use rank=4"),
        ("fedavg + flora:ranks=16+2", "rank=8 is not the largest of ranks=16\\+2: use rank=16"),
        ("fedavg + flora:ranks=8+0", "ranks=.* out of range"),
        (
            "fedavg + flora:ranks=8+1+1+1+1+1",
            "are those of 6 clients, and there are 5: leave some out",
        ),
        ("fedavg + finetune + flora:ranks=8+2", "leave ranks or the adaptation out"),
        ("lg-fedavg + flora:ranks=8+2", "lora_a stays with its client, .*: leave ranks out"),
        ("fedavg + lora:ranks=8+2", "unknown option of algorithm lora 'ranks'"),
        ("fedavg + fed-sb:ranks=8+2", "unknown option of algorithm fed-sb 'ranks'"),
        ("scaffold + flora:ranks=8+2", "clients of scaffold keep a state"),
    ],
)
def test_refusals(desk, method: str, message: str):
    with pytest.raises(FedskewError, match=message):
        desk.training(method, model=MODEL)


def test_nodes_are_refused(desk):
    from fedskew.core.config import Settings
    from fedskew.deploy.remote_server import refuse

    with pytest.raises(FedskewError, match="nodes send and receive adapters of the largest rank"):
        refuse(resolve(f"fedavg + {RANKED}"), Settings())
    refuse(resolve("fedavg + flora"), Settings())
