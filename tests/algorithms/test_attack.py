"""Hostile clients by hand: who they are, what they send, that a rule does not know them, and what rules prevent."""

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm

import fedskew as fs
from fedskew.algorithms.attack import hostile_clients
from fedskew.core.errors import FedskewError
from fedskew.core.streams import bits, longer
from fedskew.engine.job import Engine
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked

ENGINES = [Loop(), Stacked(mode="stack")]
KINDS = ["sign-flip", "label-flip", "gaussian"]
BAD = hostile_clients(0, 5, 0.4).tolist()


def noise(round: int, client: int) -> np.ndarray:
    """Return the normal numbers of a client, with the streams of NumPy: weights, and biases in the last column."""
    key = bits(0, "attack", round, np.array([client])) >> np.uint64(40)

    def drawn(tensor: int, *shape: int) -> np.ndarray:
        words = longer(longer(key, tensor), np.arange(math.prod(shape))) >> np.uint64(40)
        return norm.ppf((words.astype(np.float64) + 0.5) / 2**24).reshape(shape)

    return np.hstack([drawn(1, 3, 5), drawn(0, 3, 1)])


@pytest.mark.parametrize("engine", ENGINES, ids=["loop", "stack"])
@pytest.mark.parametrize("kind", ["sign-flip", "gaussian"])
def test_what_hostile_clients_send(desk: Any, engine: Engine, kind: str):
    w = desk.start()
    for round in range(3):
        moved = np.zeros_like(w)
        for client in range(5):
            delta = desk.descend(w, round, client) - w
            if client in BAD:
                delta = 0.5 * (noise(round, client) if kind == "gaussian" else -delta)
            moved += desk.sizes[client] / 25 * delta
        w = w + moved
    found, _ = desk.train(f"fedavg + attack:kind={kind},share=0.4,strength=0.5", engine)
    np.testing.assert_allclose(found, w, rtol=0, atol=1e-10)


@pytest.mark.parametrize("engine", ENGINES, ids=["loop", "stack"])
@pytest.mark.parametrize("method", ["fedavg", "fedlc", "fedntd", "fedsam", "moon", "scaffold"])
def test_flipped_labels_are_those_of_clients_that_hold_them(desk: Any, engine: Engine, method: str):
    other = copy.copy(desk)
    other.y = desk.y.copy()
    for client in BAD:
        other.y[desk.held[client]] = 2 - desk.y[desk.held[client]]
    assert (other.y != desk.y).any()
    due, _ = other.train(method, engine)
    found, _ = desk.train(f"{method} + attack:kind=label-flip,share=0.4", engine)
    np.testing.assert_allclose(found, due, rtol=0, atol=1e-10)


def test_the_table_names_a_fixed_share_of_the_clients(desk: Any):
    _, results = desk.train("fedavg + attack:share=0.4", per_round=3)
    for result in results:
        assert {row["client"]: row["hostile"] for row in result.clients} == {
            row["client"]: float(row["client"] in BAD) for row in result.clients
        }
    assert len(BAD) == 2
    assert [len(hostile_clients(0, 10, share)) for share in (0.0, 0.04, 0.05, 0.29, 1.0)] == [0, 0, 1, 3, 10]
    assert len({tuple(hostile_clients(seed, 10, 0.2)) for seed in range(20)}) > 10


def test_a_rule_gets_updates_and_weights_alone(desk: Any, monkeypatch: pytest.MonkeyPatch):
    seen: list[Any] = []
    original = fs.Median().aggregator.combine.__func__  # type: ignore[attr-defined]

    def watch(self: Any, payloads: Any, weights: Any) -> Any:
        seen.append((payloads, weights))
        return original(self, payloads, weights)

    monkeypatch.setattr(type(fs.Median().aggregator), "combine", watch)
    desk.train("fedavg + attack:share=0.4 + median")
    assert len(seen) == 3
    for payloads, weights in seen:
        assert payloads.keys() == {"delta"}
        assert payloads["delta"].keys() == {"head.weight", "head.bias"}
        assert weights.tolist() == (desk.sizes / 25).tolist()


@pytest.mark.parametrize("engine", ENGINES, ids=["loop", "stack"])
@pytest.mark.parametrize("kind", KINDS)
def test_without_hostile_clients_it_is_the_method_itself(desk: Any, engine: Engine, kind: str):
    plain, _ = desk.train("fedavg", engine)
    found, results = desk.train(f"fedavg + attack:kind={kind},share=0", engine)
    np.testing.assert_allclose(found, plain, rtol=0, atol=1e-12)
    assert desk.column(results, "hostile") == [[0.0] * 5] * 3
    assert desk.column(results, "bytes_down") == desk.column(desk.train("fedavg")[1], "bytes_down")


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_stopped_run_goes_on_with_the_same_bits(desk: Any, tmp_path: Path, engine: str, kind: str):
    usual = {"rounds": 4, "per_round": 3, "engine": engine, "checkpoint_every": 1, "device": "cpu"}
    spec = f"fedavg + attack:kind={kind},share=0.4"
    whole = fs.train(desk.federation(), "logreg", spec, folder=tmp_path / "whole", **usual)

    def stop(result: Any, rounds: int) -> None:
        if result.round["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fs.train(desk.federation(), "logreg", spec, folder=tmp_path / "cut", callbacks=[stop], **usual)
    rest = fs.resume(tmp_path / "cut", fed=desk.federation())
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, rest.model.state_dict()[name])
    assert whole.clients["hostile"].tolist() == rest.clients["hostile"].tolist()


@pytest.mark.parametrize(
    ("attack", "spec"),
    [
        (kind, rule)
        for kind in ("sign-flip", "gaussian")
        for rule in ("median", "krum:attackers=3", "trimmed-mean:trim=0.3")
    ],
)
def test_robust_rules_defend_on_the_digits(attack: str, spec: str):
    fed = fs.split(fs.load("digits"), "iid", clients=10)
    hostile = f"attack:kind={attack},share=0.3,strength=3"

    def accuracy(algorithm: str) -> float:
        run = fs.train(fed, "mlp", algorithm, rounds=10, eval_every=10, folder=False, device="cpu", threads=1)
        return float(run.rounds["test_accuracy"].iloc[-1])

    undefended, defended = accuracy(f"fedavg + {hostile}"), accuracy(f"fedavg + {hostile} + {spec}")
    assert undefended < 0.4
    assert defended > 0.75


@pytest.mark.parametrize("addition", ["attack", "topk", "quantize"])
@pytest.mark.parametrize("method", ["sfl", "stratify-batch"])
def test_where_no_updates_are_sent_it_is_refused(desk: Any, addition: str, method: str):
    with pytest.raises(FedskewError, match="one model is trained by all clients, so no updates are sent"):
        desk.training(f"{method} + {addition}")


def test_labels_that_are_no_classes_cannot_be_flipped():
    fed = fs.split(fs.load("diabetes"), "iid", clients=5)
    with pytest.raises(FedskewError, match="attack looks at classes, and the targets of task regression are numbers"):
        fs.train(fed, "mlp", "fedavg + attack:kind=label-flip", rounds=1, folder=False)
    run = fs.train(fed, "mlp", "fedavg + attack:kind=sign-flip", rounds=1, folder=False, device="cpu")
    assert run.clients["hostile"].sum() == 1
