"""A server without rows, whose nodes answer, gives the numbers and the weights of a server with all rows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tests.deploy.conftest import CLIENTS, Pair
from tests.runs.test_client_model import Remembered

import fedskew as fs
from fedskew.algorithms.contract import Algorithm, algorithms
from fedskew.core.errors import FedskewError
from fedskew.core.trees import Tensors, Tree
from fedskew.deploy.deployment import check_experiment
from fedskew.deploy.rowless_federation import positions_of

METHODS = [
    name
    for name in algorithms
    if not getattr(algorithms.get(name), "addition", False)
    and name not in ("central", "d-psgd", "gossip")  # refused
]
# One row at a time, or several models, so no BatchNorm
ALONE = dict.fromkeys(
    ("stratify-single", "stratify-hybrid", "ifca", "cfl", "fedamp", "fedfomo"), "mlp:hidden=6"
)
OF_ALL_ROWS = ("auc", "average_precision", "ece")  # metrics that do not follow from sums
MORE = [
    ("fedavg + ccvr", {}),
    ("fedper + finetune:tune_steps=3", {}),
    ("scaffold + finetune + ccvr", {}),
    ("fedavg + power-of-choice", {"per_round": 2}),
    ("fedavg + norm-test:bound=0.3,fewest=2", {}),
    ("fedbn + ccvr", {}),
    ("scaffold + krum:attackers=1", {"momentum": 0.9}),
    ("fedavg + median", {}),
    ("fedavg + topk", {}),
    ("fedavg + quantize", {}),
    ("fedprox + lora:rank=2", {}),
    ("fedavg + flora:rank=2", {"model": "mlp:hidden=6"}),
    ("scaffold + fedsa-lora:rank=2", {"model": "mlp:hidden=6", "per_round": 2}),
    ("fedavg + dp:noise=0.5,clip=1.0", {"per_round": 3, "norm": "local"}),
    ("scaffold", {"per_round": 2}),
    ("ditto", {"per_round": 2}),
    ("fedavg", {"optimizer": "adam"}),
    ("fedavg", {"fleet": "mixed:slow=10,dropout=0.3,deadline=5"}),
    ("fedbuff:buffer=2", {"fleet": "mixed:slow=10"}),
    ("fedpbs:variant=section4", {"fleet": "mixed:slow=10"}),
    ("fedavg", {"norm": "local"}),
    ("fedavg", {"norm": "frozen"}),
    ("ifca:models=3", {"norm": "local", "per_round": 2}),
    ("ifca:start=updates", {"model": "mlp:hidden=6"}),
    ("ifca:part=head", {"fleet": "mixed:slow=10,dropout=0.3,deadline=5"}),
    ("cfl:eps1=2,eps2=0.01,wait=0", {"model": "mlp:hidden=6"}),
    ("fedfomo:offers=2", {"model": "mlp:hidden=6", "per_round": 2}),
    ("fedamp + topk", {"model": "mlp:hidden=6"}),
    ("fedpac", {"per_round": 2}),
]


@pytest.mark.parametrize("method", ["d-psgd", "gossip"])
def test_nodes_do_not_talk_to_each_other(pair: Callable[..., Pair], method: str):
    with pytest.raises(FedskewError, match="has no server, and nodes do not talk to each other"):
        pair(method, model="mlp:hidden=6")


def same(plain: dict[str, Any], remote: dict[str, Any]) -> None:
    """Compare two rows of a table: numbers to the last digits, everything else exactly."""
    assert plain.keys() <= remote.keys()
    for name, value in plain.items():
        if isinstance(value, float):
            np.testing.assert_allclose(remote[name], value, rtol=1e-9, atol=1e-12, err_msg=name)
        else:
            assert remote[name] == value, name


def compare(both: Pair) -> None:
    for _ in range(both.plain.settings.rounds):
        plain, remote = both.plain.advance(), both.remote.advance()
        same(plain.round, remote.round)
        for name, column in plain.clients.columns.items():
            if name != "name":
                np.testing.assert_allclose(
                    remote.clients.columns[name].values.astype(float),
                    column.values.astype(float),
                    rtol=1e-9,
                    atol=1e-12,
                )
    calibrated = both.plain.calibrate()
    same(
        {k: v for k, v in calibrated.items() if not k.endswith(OF_ALL_ROWS)},
        both.remote.calibrate(),
    )
    for name, value in both.plain.state.model().items():
        np.testing.assert_allclose(
            both.remote.state.model()[name].numpy(),
            value.numpy(),
            rtol=1e-9,
            atol=1e-12,
            err_msg=name,
        )
    plain, remote = both.plain.final_clients(), both.remote.final_clients()
    for mine, theirs in zip(plain.table, remote.table, strict=True):
        same({name: value for name, value in mine.items() if name != "name"}, theirs)
    for mine, theirs in (
        (plain.confusion, remote.confusion),
        (both.plain.confusion(), both.remote.confusion()),
    ):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("method", METHODS)
def test_every_method(pair: Callable[..., Pair], method: str):
    compare(pair(method, **({"model": ALONE[method]} if method in ALONE else {})))


@pytest.mark.parametrize(
    ("method", "settings"), MORE, ids=[f"{spec} {settings}" for spec, settings in MORE]
)
def test_additions_and_settings(pair: Callable[..., Pair], method: str, settings: dict[str, Any]):
    compare(pair(method, **settings))


@dataclass(frozen=True)
class BetweenHeads(fs.FedPer):
    """FedPer, whose clients use a head half way between the initial one and their own."""

    def client_model(self, shared: Tensors, kept: Tree) -> Tensors:
        """Return the shared model with the mean of two heads."""
        mixed = {name: (shared[name] + own) / 2 for name, own in kept["local"].items()}
        return {**shared, **mixed}


@pytest.mark.parametrize("method", [BetweenHeads(), Remembered()], ids=["heads", "last"])
def test_nodes_use_the_model_that_the_method_makes(pair: Callable[..., Pair], method: Algorithm):
    compare(pair(method, per_round=2))


def test_numbers_to_predict(pair: Callable[..., Pair]):
    fed = fs.split(fs.load("diabetes"), "dirichlet:alpha=0.5", clients=CLIENTS, seed=0, bins=4)
    compare(pair("scaffold", "logreg", fed, lr=0.1))


@pytest.mark.parametrize("method", ["fedavg", "fedper"])
def test_tokens(pair: Callable[..., Pair], method: str):
    draw = np.random.default_rng(0)
    text = draw.integers(0, 3, (90, 7)).cumsum(1) % 6
    targets = text[:, 1:].copy()
    targets[np.arange(6) >= draw.integers(1, 7, (90, 1))] = -1
    data = (text[:, :-1], targets)
    fed = fs.split(data, "quantity", clients=CLIENTS, seed=0, task="next-token", classes=6)
    model = "char-transformer:width=8,heads=2,layers=1,per_token=true"
    both = pair(method, model, fed, batch_size=8, lr=0.3)
    compare(both)
    mine, theirs = both.plain.last_scores(), both.remote.last_scores()
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        assert theirs[name] == pytest.approx(value, rel=1e-12), name
    if method == "fedavg":
        assert 1 < mine["test_perplexity_last"] < 6


def test_files_of_tokens_are_refused():
    values = {"data": "silos:label=y,target=tokens,standardize=false", "algorithm": "fedavg"}
    with pytest.raises(FedskewError, match="they agree on no vocabulary"):
        check_experiment(values, 3)


def test_what_needs_all_rows_is_refused(pair: Callable[..., Pair]):
    for spec, settings, reason in (
        ("central", {}, "central trains on all rows in one place"),
        ("fedavg + attack:kind=backdoor", {}, "hostile clients are simulated"),
        (
            "fedavg",
            {"test_trained": True},
            "test_trained=true evaluates clients' models on the server",
        ),
        ("fedavg", {"metric": "auc"}, "metric auc needs the predictions for all rows in one place"),
    ):
        with pytest.raises(FedskewError, match=reason):
            pair(spec, **settings)


def test_no_row_is_sent(pair: Callable[..., Pair]):
    """Features and the order of labels stay with the nodes; what is sent is looked through for every row."""
    both = pair("stratify-batch", rounds=1)
    both.remote.advance()
    sent = b"".join(both.transport.seen)
    fed = both.plain.fed
    for row in fed.train.x[fed.partition.rows[::7]]:
        assert row.tobytes() not in sent
        assert row.astype(np.float64).tobytes() not in sent
    assert fed.train.y[fed.partition.of(0)].tobytes() not in sent
    shared = both.remote.state.shared(both.remote.job.unsent)
    assert shared[next(iter(shared))].numpy().tobytes() != b""


def test_server_and_node_number_rows_alike():
    """A server that has seen the rows, as in a simulation, numbers them by label too, in whatever order they are."""
    fed = fs.split(fs.load("digits"), "dirichlet:alpha=0.5", clients=3, seed=0)
    positions = positions_of(fed)
    for client in range(fed.clients):
        rows = fed.partition.of(client)
        by_label = rows[np.argsort(fed.train.y[rows], kind="stable")]
        np.testing.assert_array_equal(by_label[positions[rows]], rows)
