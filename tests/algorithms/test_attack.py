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
from fedskew.algorithms.backdoor import Backdoor, stamped
from fedskew.core.errors import FedskewError
from fedskew.core.streams import Stream, bits, longer
from fedskew.engine.job import Engine
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked

ENGINES = [Loop(), Stacked(mode="stack")]
KINDS = ["sign-flip", "label-flip", "gaussian", "backdoor"]
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


@pytest.mark.parametrize("engine", ENGINES, ids=["loop", "stack"])
@pytest.mark.parametrize("method", ["fedavg", "fedlc", "scaffold"])
@pytest.mark.parametrize("strength", [1.0, 2.5])
def test_a_backdoor_by_hand(desk: Any, engine: Engine, method: str, strength: float):
    # Clients 1, 2, ... have 2 to 8 rows; of a hostile one's the half, rounded up, are stamped and given class 2.
    other = copy.copy(desk)
    other.x, other.y = desk.x.copy(), desk.y.copy()
    poisoned = {}
    for client in BAD:
        size = len(desk.held[client])
        chosen = Stream(0, "backdoor", client).sample(size, (size + 1) // 2)
        poisoned[client] = desk.held[client][chosen]
        other.x[poisoned[client], :3] = desk.x.max()
        other.y[poisoned[client]] = 2
    assert all((other.x[rows] != desk.x[rows]).any() for rows in poisoned.values())
    spec = f"{method} + attack:kind=backdoor,share=0.4,target=2,strength={strength}"
    found, results = desk.train(spec, engine)
    if strength == 1:
        due, _ = other.train(method, engine)
        np.testing.assert_allclose(found, due, rtol=0, atol=1e-10)
    elif method == "fedavg":
        w = other.start()
        for round in range(3):
            moves = [other.descend(w, round, client) - w for client in range(5)]
            w = w + sum(
                desk.sizes[k] / 25 * (strength if k in BAD else 1) * moves[k] for k in range(5)
            )
        np.testing.assert_allclose(found, w, rtol=0, atol=1e-10)
    test = desk.federation().test
    others = np.hstack(
        [stamped(test.x[test.y != 2], float(desk.x.max())), np.ones((int((test.y != 2).sum()), 1))]
    )
    assert results[-1].round["backdoor_success"] == pytest.approx(
        ((others @ found.T).argmax(1) == 2).mean(), abs=1e-12
    )


def test_the_trigger_and_the_rows_that_have_it():
    image = stamped(np.zeros((2, 3, 8, 8), np.float32), 1.0)
    assert image.sum() == 2 * 3 * 9
    assert image[:, :, :3, :3].min() == 1
    assert stamped(np.zeros((2, 4, 50), np.float32), 1.0)[..., :3].sum() == 2 * 4 * 3
    assert stamped(np.zeros((2, 2), np.float32), 1.0).min() == 1
    fed = fs.split(fs.load("digits"), "dirichlet:alpha=0.5", clients=4)
    one = np.array([2])
    poison = Backdoor(lambda seed, clients: one, 0.25, "seven")
    rows, partition = poison.poisoned(fed.train, fed.partition, (*"abcdefg", "seven"), 0)
    fresh = partition.rows[partition.rows >= len(fed.train)]
    assert len(fresh) == len(rows) - len(fed.train) == round(fed.partition.sizes[2] / 4)
    assert set(fresh) <= set(partition.of(2))
    assert (rows.y[fresh] == 7).all()
    assert (rows.x[fresh][:, 0, :3, :3] == fed.train.x.max()).all()
    for client in (0, 1, 3):
        assert partition.of(client).tolist() == fed.partition.of(client).tolist()
    assert (rows.x[: len(fed.train)] == fed.train.x).all()
    same = np.flatnonzero(partition.of(2) < len(fed.train))
    assert (partition.of(2)[same] == fed.partition.of(2)[same]).all()
    with pytest.raises(FedskewError, match="unknown class as target of attack:kind=backdoor 'x'"):
        Backdoor(lambda seed, clients: one, 0.25, "x").target_of(["a", "b"])
    # A name before a number
    assert Backdoor(lambda seed, clients: one, 0.25, "1").target_of(["1", "0"]) == 0


@pytest.mark.parametrize("task", ["classification", "binary"])
def test_a_backdoor_opens_and_rules_close_it(task: str):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(900, 6)).astype(np.float32)
    fed = fs.split((x, (x[:, 4] > 0).astype(int)), "iid", clients=10)
    usual = {
        "rounds": 8,
        "lr": 0.5,
        "eval_every": 4,
        "task": task,
        "folder": False,
        "device": "cpu",
        "threads": 1,
    }
    attack = "attack:kind=backdoor,share=0.2,target=1,strength=2"
    plain = fs.train(fed, "mlp", "fedavg + attack:kind=backdoor,share=0,target=1", **usual)
    open_door = fs.train(fed, "mlp", f"fedavg + {attack}", **usual)
    closed = fs.train(fed, "mlp", f"fedavg + {attack} + median", **usual)
    assert open_door.rounds["backdoor_success"].notna().tolist() == [False, False, False, True] * 2
    assert plain.summary["backdoor_success_last"] < 0.75
    assert open_door.summary["backdoor_success_last"] > 0.95
    assert (
        closed.summary["backdoor_success_last"] < open_door.summary["backdoor_success_last"] - 0.1
    )
    # Nobody notices
    assert open_door.summary["test_accuracy_last"] > plain.summary["test_accuracy_last"] - 0.1
    # Of clean rows
    assert open_door.summary["train_majority_rate"] == plain.summary["train_majority_rate"]


def test_seeds_with_a_backdoor_run_as_on_their_own(fedskew: Any):
    spec = "fedavg+attack:kind=backdoor,target=3".replace("+", " + ")
    fed = {seed: fs.split(fs.load("digits"), "iid", clients=5, seed=seed) for seed in (0, 1)}
    alone = {
        seed: fs.train(fed[seed], "logreg", spec, rounds=2, seed=seed, folder=False)
        for seed in (0, 1)
    }
    Path("e.toml").write_text(
        f'algorithm = "{spec}"\nskew = "iid"\nclients = 5\nmodel = "logreg"\nrounds = 2\n'
    )
    assert fedskew("compare e.toml --seeds 0-1 --out g") == 0
    for place in Path("g").glob("*-s?"):
        run = fs.open_run(place)
        due = alone[run.summary["seed"]].rounds["backdoor_success"].tolist()
        assert run.rounds["backdoor_success"].tolist() == pytest.approx(due)


def test_workers_train_on_the_poisoned_rows():
    fed = fs.split(fs.load("digits"), "iid", clients=5)
    usual = {"rounds": 2, "device": "cpu", "folder": False}
    spec = "fedavg + attack:kind=backdoor,share=0.4,target=3"
    one, two = (fs.train(fed, "logreg", spec, workers=workers, **usual) for workers in (1, 2))
    for name, value in one.model.state_dict().items():
        assert torch.equal(value, two.model.state_dict()[name])
    assert one.rounds["backdoor_success"].tolist() == two.rounds["backdoor_success"].tolist()


def test_the_table_names_a_fixed_share_of_the_clients(desk: Any):
    _, results = desk.train("fedavg + attack:share=0.4", per_round=3)
    for result in results:
        assert {row["client"]: row["hostile"] for row in result.clients} == {
            row["client"]: float(row["client"] in BAD) for row in result.clients
        }
    assert len(BAD) == 2
    assert [len(hostile_clients(0, 10, share)) for share in (0.0, 0.04, 0.05, 0.29, 1.0)] == [
        0,
        0,
        1,
        3,
        10,
    ]
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
def test_a_stopped_run_goes_on_with_the_same_bits(
    desk: Any, tmp_path: Path, engine: str, kind: str
):
    usual = {"rounds": 4, "per_round": 3, "engine": engine, "checkpoint_every": 1, "device": "cpu"}
    spec = f"fedavg + attack:kind={kind},share=0.4"
    whole = fs.train(desk.federation(), "logreg", spec, folder=tmp_path / "whole", **usual)

    def stop(result: Any, rounds: int) -> None:
        if result.round["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fs.train(
            desk.federation(), "logreg", spec, folder=tmp_path / "cut", callbacks=[stop], **usual
        )
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
        run = fs.train(
            fed, "mlp", algorithm, rounds=10, eval_every=10, folder=False, device="cpu", threads=1
        )
        return float(run.rounds["test_accuracy"].iloc[-1])

    undefended, defended = accuracy(f"fedavg + {hostile}"), accuracy(f"fedavg + {hostile} + {spec}")
    assert undefended < 0.4
    assert defended > 0.75


@pytest.mark.parametrize("addition", ["attack", "topk", "quantize"])
@pytest.mark.parametrize("method", ["sfl", "stratify-batch"])
def test_where_no_updates_are_sent_it_is_refused(desk: Any, addition: str, method: str):
    with pytest.raises(
        FedskewError, match="one model is trained by all clients, so no updates are sent"
    ):
        desk.training(f"{method} + {addition}")


def test_labels_that_are_no_classes_cannot_be_flipped():
    fed = fs.split(fs.load("diabetes"), "iid", clients=5)
    with pytest.raises(
        FedskewError,
        match="attack looks at classes, and the targets of task regression are numbers",
    ):
        fs.train(fed, "mlp", "fedavg + attack:kind=label-flip", rounds=1, folder=False)
    with pytest.raises(
        FedskewError, match="attack:kind=backdoor gives rows a class, and the targets are none"
    ):
        fs.train(fed, "mlp", "fedavg + attack:kind=backdoor", rounds=1, folder=False)
    run = fs.train(
        fed, "mlp", "fedavg + attack:kind=sign-flip", rounds=1, folder=False, device="cpu"
    )
    assert run.clients["hostile"].sum() == 1
