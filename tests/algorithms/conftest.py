"""Reference calculations for the tests of methods: small models in NumPy with explicit gradients, and trainings."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedskew as fs
from fedskew.algorithms.contract import Algorithm, resolve
from fedskew.core.config import Settings
from fedskew.core.trees import Tensors
from fedskew.data.dataset import Dataset, Rows
from fedskew.data.federation import Federation
from fedskew.data.partition import Partition
from fedskew.engine.job import Engine
from fedskew.engine.plan import Plan
from fedskew.models.build import ModelSpec, build
from fedskew.models.network import Network
from fedskew.server.scorer import RoundResult
from fedskew.server.server import Server

ROUNDS, EPOCHS, BATCH, LR, CLASSES, FEATURES = 3, 2, 4, 0.3, 3, 5


class Desk:
    """A federation of five clients, of which client 2 has a single row and client 3 a single class."""

    sizes = np.array([9, 5, 1, 6, 4])

    def __init__(self) -> None:
        draw = np.random.default_rng(3)
        self.x = draw.normal(size=(25, FEATURES)).astype(np.float32)
        self.y = draw.integers(0, CLASSES, 25)
        self.y[15:21] = 1
        self.held = np.split(np.arange(25), np.cumsum(self.sizes)[:-1])

    def federation(self) -> Federation:
        rows = Rows(self.x, self.y)
        return Federation(
            Dataset("made up", rows, rows, ("a", "b", "c")), Partition.from_lists(self.held)
        )

    def training(
        self,
        algorithm: str | Algorithm,
        engine: Engine | None = None,
        model: ModelSpec = "logreg",
        **settings: Any,
    ) -> Server:
        """Return a server before its first round."""
        usual = {
            "rounds": ROUNDS,
            "epochs": EPOCHS,
            "batch_size": BATCH,
            "lr": LR,
            "dtype": "float64",
            "device": "cpu",
        }
        chosen = Settings(**{**usual, "threads": 1, **settings})
        return Server(
            self.federation(),
            build(model, (FEATURES,), CLASSES, seed=0),
            resolve(algorithm),
            chosen,
            engine,
        )

    def train(
        self, algorithm: str | Algorithm, engine: Engine | None = None, **settings: Any
    ) -> tuple[np.ndarray, list]:
        """Return the weights after all rounds, and the result of every round."""
        training = self.training(algorithm, engine, **settings)
        results: list[RoundResult] = [training.advance() for _ in range(training.settings.rounds)]
        return self.flat(training.state.params), results

    @staticmethod
    def flat(weights: Tensors) -> np.ndarray:
        """Return the weights of the regression, or a stack of them, with the biases in the last column."""
        return (
            torch.cat([weights["head.weight"], weights["head.bias"][..., None]], -1)
            .detach()
            .numpy()
        )

    @staticmethod
    def column(results: list[RoundResult], name: str) -> list[list[float]]:
        """Return a column of the table of clients that were invited to train, one list for each round."""
        return [[line[name] for line in result.clients if line["steps"]] for result in results]

    @staticmethod
    def start() -> np.ndarray:
        head = build("logreg", (FEATURES,), CLASSES, seed=0).head
        return np.hstack(
            [head.weight.detach().double().numpy(), head.bias.detach().double().numpy()[:, None]]
        )

    def loss(self, w: np.ndarray, row: int) -> float:
        logits = w @ np.append(self.x[row].astype(np.float64), 1.0)
        return float(np.log(np.exp(logits).sum()) - logits[self.y[row]])

    def gradient(self, w: np.ndarray, row: int) -> np.ndarray:
        x = np.append(self.x[row].astype(np.float64), 1.0)
        chance = np.exp(w @ x) / np.exp(w @ x).sum()
        return np.outer(chance - np.eye(CLASSES)[self.y[row]], x)

    def loss_variance(self, w: np.ndarray, rows: np.ndarray) -> float:
        losses = [self.loss(w, row) for row in rows]
        return sum((loss - sum(losses) / len(losses)) ** 2 for loss in losses) / len(losses)

    def gradient_variance(self, w: np.ndarray, rows: np.ndarray) -> float:
        gradients = [self.gradient(w, row) for row in rows]
        mean = sum(gradients) / len(gradients)
        return sum(((gradient - mean) ** 2).sum() for gradient in gradients) / len(gradients)

    def mean_loss(self, w: np.ndarray, client: int) -> float:
        return sum(self.loss(w, row) for row in self.held[client]) / len(self.held[client])

    def _plan(
        self, round: int, client: int, batch: int, epochs: int, purpose: str = "batches"
    ) -> Plan:
        one = np.array([client])
        return Plan(
            0, round, one, self.sizes[one], np.array([batch]), np.array([epochs]), purpose=purpose
        )

    def probed(self, round: int, client: int, rows: int = BATCH) -> np.ndarray:
        """Return the rows on which a client measures before it is configured."""
        return self.held[client][self._plan(round, client, BATCH, 1, "probe").order[:rows]]

    def descend(
        self, w: np.ndarray, round: int, client: int, batch: int = BATCH, mu: float = 0.0
    ) -> np.ndarray:
        """Return a client's weights after plain SGD on its batches, with a proximal term of strength ``mu``."""
        mine = w.copy()
        for rows in self.batches(round, client, batch):
            mine = mine - LR * (self.mean_gradient(mine, rows) + mu * (mine - w))
        return mine

    def batches(self, round: int, client: int, batch: int = BATCH) -> list[np.ndarray]:
        """Return the rows of every local step."""
        positions, counts = self._plan(
            round, client, min(batch, self.sizes[client]), EPOCHS
        ).table()
        return [
            self.held[client][positions[step, 0, :count]] for step, count in enumerate(counts[:, 0])
        ]

    def mean_gradient(self, w: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return sum(self.gradient(w, row) for row in rows) / len(rows)

    def slope_at_the_end(self, algorithm: str | Algorithm, weights: str) -> float:
        """Return the gradient of the joint loss, which weight decay makes strongly convex, after many rounds."""
        usual = {
            "rounds": 40,
            "batch_size": 64,
            "epochs": 5,
            "lr": 0.2,
            "dtype": "float64",
            "device": "cpu",
            "threads": 1,
        }
        run = fs.train(
            self.federation(),
            "logreg",
            algorithm,
            eval_every=40,
            weight_decay=0.5,
            folder=False,
            **usual,
        )
        w = self.flat(dict(run.model.named_parameters()))
        share = self.sizes / self.sizes.sum() if weights == "size" else np.full(5, 0.2)
        joint = sum(
            p * self.mean_gradient(w, rows) for p, rows in zip(share, self.held, strict=True)
        )
        return float(np.abs(joint + 0.5 * w).max())


@pytest.fixture(scope="session")
def desk() -> Desk:
    return Desk()


Arrays = dict[str, np.ndarray]  # by the names that the tensors have in the module


class Net:
    """A tanh layer, with or without BatchNorm, with explicit gradient, and four clients, the last of one class."""

    sizes = np.array([9, 5, 6, 4])
    hidden_units, rounds = 4, 3

    def __init__(self, norm: bool) -> None:
        draw = np.random.default_rng(7)
        self.norm = norm
        self.x = draw.normal(size=(24, FEATURES)).astype(np.float32)
        self.y = draw.integers(0, CLASSES, 24)
        self.y[20:] = 2
        self.held = np.split(np.arange(24), np.cumsum(self.sizes)[:-1])
        self.share = self.sizes / self.sizes.sum()

    def module(self) -> nn.Module:
        def make(shape: tuple[int, ...], classes: int) -> nn.Module:
            norm = [nn.BatchNorm1d(self.hidden_units)] if self.norm else []
            return Network(
                nn.Sequential(nn.Linear(shape[0], self.hidden_units), *norm, nn.Tanh()),
                self.hidden_units,
                classes,
            )

        return build(make, (FEATURES,), CLASSES, seed=0)

    def training(
        self, algorithm: str | Algorithm, engine: Engine | None = None, **settings: Any
    ) -> Server:
        """Return a training after three rounds, or after ``rounds``; ``results`` are the results of its rounds."""
        usual = {
            "rounds": self.rounds,
            "epochs": EPOCHS,
            "batch_size": BATCH,
            "lr": LR,
            "dtype": "float64",
            "device": "cpu",
        }
        rows = Rows(self.x, self.y)
        fed = Federation(
            Dataset("made up", rows, rows, ("a", "b", "c")), Partition.from_lists(self.held)
        )
        chosen = Settings(**{**usual, "threads": 1, **settings})
        training = Server(fed, self.module(), resolve(algorithm), chosen, engine)
        training.results = [training.advance() for _ in range(chosen.rounds)]
        return training

    def start(self) -> Arrays:
        return {
            name: value.detach().numpy().astype(np.float64)
            for name, value in self.module().state_dict().items()
        }

    def represent(self, w: Arrays, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the hidden layer; with BatchNorm also the normalised sums and their standard deviation."""
        sums = x @ w["features.0.weight"].T + w["features.0.bias"]
        if not self.norm:
            return np.tanh(sums), sums, np.ones(1)
        spread = np.sqrt(sums.var(0) + 1e-5)
        unit = (sums - sums.mean(0)) / spread
        return np.tanh(unit * w["features.1.weight"] + w["features.1.bias"]), unit, spread

    def gradient(
        self, w: Arrays, x: np.ndarray, y: np.ndarray, push: Callable | None = None
    ) -> Arrays:
        """Return the gradient of the mean cross-entropy; ``push(z, x)`` is that of another term in the hidden layer."""
        z, unit, spread = self.represent(w, x)
        logits = z @ w["head.weight"].T + w["head.bias"]
        chance = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        d = (chance - np.eye(CLASSES)[y]) / len(y)
        found = {"head.weight": d.T @ z, "head.bias": d.sum(0)}
        d = (d @ w["head.weight"] + (push(z, x) if push else 0)) * (1 - z**2)
        if self.norm:
            found |= {"features.1.weight": (d * unit).sum(0), "features.1.bias": d.sum(0)}
            d = d * w["features.1.weight"]
            d = (d - d.mean(0) - unit * (d * unit).mean(0)) / spread
        return found | {"features.0.weight": d.T @ x, "features.0.bias": d.sum(0)}

    def descend(
        self,
        w: Arrays,
        round: int,
        client: int,
        push: Callable | None = None,
        anchor: Arrays | None = None,
        lam: float = 0.0,
    ) -> Arrays:
        """Return the result of plain SGD on a client's batches, with proximal term ``lam`` to ``anchor``."""
        one, least = np.array([client]), 2 if self.norm else 1
        batch = np.minimum(BATCH, self.sizes[one])
        positions, counts = Plan(
            0, round, one, self.sizes[one], batch, np.array([EPOCHS]), least
        ).table()
        w = dict(w)
        for step, count in enumerate(counts[:, 0]):
            rows = self.held[client][positions[step, 0, :count]]
            x = self.x[rows].astype(np.float64)
            if self.norm:
                sums = x @ w["features.0.weight"].T + w["features.0.bias"]
                for name, value in (("mean", sums.mean(0)), ("var", sums.var(0, ddof=1))):
                    w[f"features.1.running_{name}"] = (
                        0.9 * w[f"features.1.running_{name}"] + 0.1 * value
                    )
                w["features.1.num_batches_tracked"] = w["features.1.num_batches_tracked"] + 1
            grads = self.gradient(w, x, self.y[rows], push)
            for name in anchor or {}:
                grads[name] = grads[name] + lam * (w[name] - anchor[name])
            w |= {name: w[name] - LR * grad for name, grad in grads.items()}
        return w

    def mean(self, ended: list[Arrays], name: str) -> np.ndarray:
        """Return the mean weighted by the clients' rows."""
        return sum(share * w[name] for share, w in zip(self.share, ended, strict=True))

    def federate(self, kept: Sequence[str] = (), eta: float = 1.0) -> tuple[Arrays, list[Arrays]]:
        """Return the shared weights after all rounds, with server learning rate ``eta``, and what clients keep."""
        start = self.start()
        weights = [name for name in start if name.endswith(("weight", "bias"))]
        shared = {name: start[name] for name in weights if name not in kept}
        own = [{name: start[name] for name in kept} for _ in self.sizes]
        for round in range(self.rounds):
            ended = [
                self.descend({**start, **shared, **mine}, round, client)
                for client, mine in enumerate(own)
            ]
            shared = {
                name: value + eta * (self.mean(ended, name) - value)
                for name, value in shared.items()
            }
            own = [{name: w[name] for name in kept} for w in ended]
        return shared, own


@pytest.fixture(scope="session")
def plain_net() -> Net:
    return Net(norm=False)


@pytest.fixture(scope="session")
def norm_net() -> Net:
    return Net(norm=True)
