"""Every method against a calculation in NumPy: softmax regression, three clients, several local steps, three rounds."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from fedskew.algorithms.contract import algorithms, resolve
from fedskew.core.config import Settings
from fedskew.data.dataset import Dataset, Rows
from fedskew.data.federation import Federation
from fedskew.data.partition import Partition
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked
from fedskew.models.build import build
from fedskew.server.server import Server

ROUNDS, EPOCHS, BATCH, LR, CLASSES = 3, 2, 4, 0.3, 3
# One row eight times over makes two equal batches whatever the shuffle is; the others are one full batch.
HELD = [np.full(8, 7), np.array([0, 1, 2, 3]), np.array([4, 5, 6])]
SIZES, STEPS = np.array([8, 4, 3]), [4, 2, 2]


def federation() -> Federation:
    draw = np.random.default_rng(3)
    rows = Rows(draw.normal(size=(8, 5)).astype(np.float32), np.array([0, 1, 2, 0, 1, 1, 2, 0]))
    return Federation(Dataset("made up", rows, rows, ("a", "b", "c")), Partition.from_lists(HELD))


def gradient(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the gradient of the mean softmax cross-entropy; ``w`` has the bias in its last column."""
    x = np.hstack([x.astype(np.float64), np.ones((len(x), 1))])
    logits = x @ w.T
    chance = np.exp(logits - logits.max(1, keepdims=True))
    chance /= chance.sum(1, keepdims=True)
    return (chance - np.eye(CLASSES)[y]).T @ x / len(x)


def changes(w: np.ndarray, momentum: float, mu: float = 0.0) -> list[np.ndarray]:
    """Return each client's update from ``w``."""
    fed, result = federation(), []
    for rows, steps in zip(HELD, STEPS, strict=True):
        mine, velocity = w.copy(), np.zeros_like(w)
        for _ in range(steps):
            velocity = (
                momentum * velocity
                + gradient(mine, fed.train.x[rows], fed.train.y[rows])
                + mu * (mine - w)
            )
            mine = mine - LR * velocity
        result.append(mine - w)
    return result


def start() -> np.ndarray:
    head = build("logreg", (5,), CLASSES, seed=0).head
    return np.hstack(
        [head.weight.detach().double().numpy(), head.bias.detach().double().numpy()[:, None]]
    )


def averaged(momentum: float, mu: float = 0.0, weights: np.ndarray = SIZES) -> np.ndarray:
    w = start()
    for _ in range(ROUNDS):
        w = w + np.tensordot(weights / weights.sum(), changes(w, momentum, mu), 1)
    return w


def served(
    momentum: float, rule: Callable[[dict, np.ndarray], np.ndarray], state: dict
) -> np.ndarray:
    """Return the weights after the weighted mean update and a server rule for the step."""
    w = start()
    for _ in range(ROUNDS):
        w = w + rule(state, np.tensordot(SIZES / SIZES.sum(), changes(w, momentum), 1))
    return w


def heavy_ball(state: dict, delta: np.ndarray) -> np.ndarray:
    state["m"] = 0.6 * state["m"] + delta
    return 0.8 * state["m"]


def adaptive(
    second: Callable[[np.ndarray, np.ndarray], np.ndarray], beta1: float
) -> Callable[[dict, np.ndarray], np.ndarray]:
    def rule(state: dict, delta: np.ndarray) -> np.ndarray:
        state["m"] = beta1 * state["m"] + (1 - beta1) * delta
        state["v"] = second(state["v"], delta**2)
        return 0.05 * state["m"] / (np.sqrt(state["v"]) + 0.01)

    return rule


def normalised(momentum: float) -> np.ndarray:
    # How much of each of its gradients ends in a client's change: now, and through momentum in every later step.
    carried = np.array(
        [sum(momentum ** (j - i) for i in range(s) for j in range(i, s)) for s in STEPS]
    )
    w, p = start(), SIZES / SIZES.sum()
    for _ in range(ROUNDS):
        w = w + (p @ carried) * np.tensordot(p / carried, changes(w, momentum), 1)
    return w


BY_HAND: dict[str, Callable[[float], np.ndarray]] = {
    "fedavg": averaged,
    "fedavg:weights=uniform": lambda m: averaged(m, weights=np.ones(3)),
    "fedprox:mu=0.7": lambda m: averaged(m, mu=0.7),
    "fedprox:mu=0.7,weights=uniform": lambda m: averaged(m, mu=0.7, weights=np.ones(3)),
    "fedavgm:beta=0.6,server_lr=0.8": lambda m: served(m, heavy_ball, {"m": 0.0}),
    "fedadam:server_lr=0.05,tau=0.01,beta1=0.7,beta2=0.8": lambda m: served(
        m, adaptive(lambda v, d: 0.8 * v + 0.2 * d, 0.7), {"m": 0.0, "v": 1e-4}
    ),
    "fedyogi:server_lr=0.05,tau=0.01,beta1=0.7,beta2=0.8": lambda m: served(
        m, adaptive(lambda v, d: v - 0.2 * d * np.sign(v - d), 0.7), {"m": 0.0, "v": 1e-4}
    ),
    "fedadagrad:server_lr=0.05,tau=0.01": lambda m: served(
        m, adaptive(lambda v, d: v + d, 0.0), {"m": 0.0, "v": 1e-4}
    ),
    "fednova": normalised,
}


@pytest.mark.parametrize("engine", [Loop(), Stacked(mode="stack")], ids=["loop", "stacked"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("spec", list(BY_HAND))
def test_by_hand(spec: str, momentum: float, engine):
    settings = Settings(
        rounds=ROUNDS,
        epochs=EPOCHS,
        batch_size=BATCH,
        lr=LR,
        momentum=momentum,
        dtype="float64",
        device="cpu",
        threads=1,
    )
    training = Server(
        federation(), build("logreg", (5,), CLASSES, seed=0), resolve(spec), settings, engine
    )
    for _ in range(ROUNDS):
        result = training.advance()
    assert [line["steps"] for line in result.clients] == STEPS
    found = torch.hstack(
        [training.state.params["head.weight"], training.state.params["head.bias"][:, None]]
    ).numpy()
    np.testing.assert_allclose(found, BY_HAND[spec](momentum), rtol=0, atol=1e-10)


def test_every_method_is_calculated_by_hand_somewhere():
    elsewhere = {"central", "local"}  # tests/engine/test_identities.py
    elsewhere |= {"fedbs", "fedga", "fedpbs"}  # beside this file
    elsewhere |= {"feddyn", "fedprox-layers", "fedtan", "scaffold"}  # likewise
    elsewhere |= {"ditto", "fedbn", "fedper", "mfedbn", "moon"}  # likewise
    elsewhere |= {"afl-cp", "ccvr", "fedasync", "fedbuff"}  # likewise
    elsewhere |= {
        "sfl",
        "stratify-batch",
        "stratify-hybrid",
        "stratify-single",
    }  # tests/engine/test_scheduled.py, tests/schedules
    elsewhere |= {"clip", "krum", "median", "trimmed-mean"}  # tests/algorithms/test_robust.py
    elsewhere |= {"dp", "quantize", "topk"}  # tests/algorithms/test_privacy.py, test_compression.py
    elsewhere |= {
        "apfl",
        "fedala",
        "fedbabu",
        "fedproto",
        "fedrod",
        "per-fedavg",
        "pfedme",
        "fedexp",
        "fedrs",
        "finetune",
        "power-of-choice",
        "hierarchical",
        "norm-test",
    }  # files of their names
    elsewhere |= {"ifca", "cfl", "fedamp", "fedfomo", "fedpac"}  # test_several_models.py
    elsewhere |= {"d-psgd", "gossip"}  # test_graph.py
    elsewhere |= {"stratify-rounds"}  # test_stratify_rounds.py
    elsewhere |= {"lora", "ffa-lora", "flora", "fedex-lora", "fedsa-lora"}  # test_lora.py
    elsewhere |= {"fed-sb"}  # test_fed_sb.py
    elsewhere |= {"attack"}  # tests/algorithms/test_attack.py
    elsewhere |= {
        "fedlc",
        "fedrep",
        "fedsam",
        "lg-fedavg",
        "q-fedavg",
    }  # tests/algorithms/test_more_methods.py
    elsewhere |= {"fedntd"} & set(algorithms)  # tests/algorithms/test_fedntd.py
    assert {spec.partition(":")[0] for spec in BY_HAND} | elsewhere == set(algorithms)
