"""Fixtures for all tests: child processes import this source tree, the command line is a function, small trainings."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from fedskew.algorithms.contract import Algorithm, resolve
from fedskew.cli import app as cli
from fedskew.core import plugins
from fedskew.core.config import Settings
from fedskew.data.dataset import Dataset, Rows
from fedskew.data.federation import Federation
from fedskew.data.partition import Partition
from fedskew.engine.job import Engine, Start
from fedskew.engine.plan import Plan
from fedskew.models.build import build
from fedskew.runs.choices import REGISTRIES
from fedskew.server.server import Server
from fedskew.skew.skews import treatments

SOURCE = str(Path(__file__).parents[1] / "src")
os.environ["PYTHONPATH"] = os.pathsep.join([SOURCE, *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture
def fedskew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Return a function that runs the command line in an empty folder and returns its exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)

    def call(command: str) -> Any:
        monkeypatch.setattr(sys, "argv", ["fedskew", *command.split()])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code

    return call


@pytest.fixture
def hospitals(monkeypatch: pytest.MonkeyPatch) -> dict[str, pd.DataFrame]:
    """Return four made hospitals with gaps: B lacks a class, C a column, and D has creatinine in other units."""
    # So that every test is warned of their differences
    monkeypatch.setattr("fedskew.runs.execute._warned", set())
    rng, result = np.random.default_rng(0), {}
    for place, name in enumerate("ABCD"):
        n = 240 + 40 * place
        age, creatinine = (
            rng.normal(60 + 2 * place, 12, n).round(),
            rng.lognormal(0, 0.35, n).round(2),
        )
        sex, wards = (
            rng.choice(["f", "m"], n),
            ["icu", "surgery", "geriatrics" if name == "C" else "internal"],
        )
        frame = pd.DataFrame(
            {"age": age, "sex": sex, "creatinine": creatinine, "bmi": rng.normal(26, 4, n).round(1)}
        )
        frame["ward"] = rng.choice(wards, n)
        risk = 0.08 * (age - 60) + 2.5 * np.log(creatinine) + 0.5 * (sex == "m") - 1.5
        outcome = np.where(rng.random(n) < 1 / (1 + np.exp(-risk)), "died", "discharged")
        frame["outcome"] = np.where((rng.random(n) < 0.15) & (name != "B"), "transferred", outcome)
        frame.loc[rng.random(n) < 0.1, "bmi"] = np.nan
        frame.loc[rng.random(n) < 0.05, "ward"] = None
        result[f"hospital_{name}"] = frame
    result["hospital_C"] = result["hospital_C"].drop(columns="bmi")
    result["hospital_D"]["creatinine"] = (result["hospital_D"]["creatinine"] * 88.4).round(0)
    return result


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # more are many times slower on tensors this small
    yield
    torch.set_num_threads(before)


@pytest.fixture
def forget_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Return a function that forgets modules in the test's folder and what they registered, as a new process would."""
    registries = [*REGISTRIES.values(), treatments]
    built_in = [dict(registry.loaded()) for registry in registries]
    monkeypatch.setattr(sys, "path", list(sys.path))

    def forget() -> None:
        for registry, things in zip(registries, built_in, strict=True):
            monkeypatch.setattr(registry, "_things", dict(things))
            monkeypatch.setattr(registry, "_searched", False)
        monkeypatch.setattr(plugins, "_imported", {})
        plugins.OWN.clear()
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
                del sys.modules[name]

    forget()
    yield forget
    forget()


class Lab:
    """Trains in float64 on the CPU, unless a test says otherwise."""

    sizes = (9, 5, 4, 7, 2)  # batches of 4 leave ends of 1, 1, 0, 3 and 2 rows
    classes = 3

    def rows(self, count: int, shape: Sequence[int], seed: int) -> Rows:
        draw = np.random.default_rng(seed)
        return Rows(
            draw.normal(size=(count, *shape)).astype(np.float32),
            draw.integers(0, self.classes, count),
        )

    def federation(
        self,
        sizes: Sequence[int] = sizes,
        shape: Sequence[int] = (6,),
        seed: int = 0,
        rows: Sequence[Any] | None = None,
    ) -> Federation:
        """Return a federation with clients of these sizes, or (``rows``) with these rows of 30."""
        population = 30 if rows is not None else sum(sizes)
        owner = np.repeat(np.arange(len(sizes)), sizes)
        cut = (
            Partition.from_lists(list(rows))
            if rows is not None
            else Partition.from_owner(owner, len(sizes))
        )
        names = tuple(map(str, range(self.classes)))
        data = Dataset(
            "made up", self.rows(population, shape, seed), self.rows(20, shape, seed + 1), names
        )
        return Federation(data, cut)

    def training(
        self,
        fed: Federation | None = None,
        algorithm: str | Algorithm = "fedavg",
        model: str | nn.Module = "mlp:hidden=5",
        engine: Engine | None = None,
        **settings: Any,
    ) -> Server:
        fed = fed or self.federation()
        usual = {
            "rounds": 10,
            "batch_size": 4,
            "lr": 0.1,
            "dtype": "float64",
            "device": "cpu",
            "threads": 1,
        }
        network = build(model, fed.data.shape, self.classes, seed=0)
        return Server(fed, network, resolve(algorithm), Settings(**{**usual, **settings}), engine)

    def run(self, count: int, /, *args: Any, **kwargs: Any) -> Server:
        """Return a training after some rounds; ``results`` are the results of its rounds."""
        training = self.training(*args, **kwargs)
        training.results = [training.advance() for _ in range(count)]
        return training

    @staticmethod
    def outcome(training: Server) -> dict[str, torch.Tensor]:
        """Return all that training changes, as flat float64 tensors in an order that does not depend on the engine."""
        found = {
            name: value
            for name, value in training.checkpoint().items()
            if not name.startswith("store/")
        }
        for client in range(training.trained_on.clients) if training.clients.store else []:
            for part, tensors in training.clients.store.get(np.array([client])).items():
                found |= {
                    f"client {client} {part} {name}": value for name, value in tensors.items()
                }
        for result in getattr(training, "results", []):
            for line in (result.round, *result.clients):
                where = f"round {result.round['round']} client {line.get('client')}"
                found |= {
                    f"{where} {name}": torch.tensor(value)
                    for name, value in line.items()
                    if value is not None
                }
        return {name: value.detach().double() for name, value in found.items()}

    def gap(self, left: Server, right: Server) -> float:
        """Return the largest difference between two trainings: weights, buffers, server and client states, tables."""
        a, b = self.outcome(left), self.outcome(right)
        assert a.keys() == b.keys()
        assert any(name.startswith("params/") for name in a)
        return max(float((a[name] - b[name]).abs().max()) for name in a)

    @staticmethod
    def plan(training: Server, clients: Sequence[int] | None = None) -> Plan:
        """Return the plan of the training's next round, for some clients in some order."""
        s, chosen = (
            training.settings,
            np.arange(training.trained_on.clients) if clients is None else np.array(clients),
        )
        sizes, full = training.trained_on.sizes[chosen], np.full(len(chosen), 1)
        return Plan.draw(
            s.seed,
            training.round,
            chosen,
            sizes,
            full * s.batch_size,
            full * s.epochs,
            training.least,
        )

    @staticmethod
    def start(training: Server, plan: Plan) -> Start:
        own = training.clients.store.get(plan.clients)
        server = training.algorithm.broadcast(training.state.server_state)
        return Start(
            training.state.params, training.state.buffers, server, own, training.settings.lr
        )


@pytest.fixture(scope="session")
def lab() -> Lab:
    return Lab()
