"""Three small silos for tests of runs on nodes, and the same run with all of them in one place."""

import struct
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import fedskew as fs
from fedskew.data.schema import Schema
from fedskew.deploy import silo_node
from fedskew.runs.run import Run

PLANTED = 31337.4242
NAMES = ("hospital_A", "hospital_B", "hospital_C")
SETTINGS: dict[str, Any] = {
    "rounds": 3,
    "batch_size": 16,
    "dtype": "float64",
    "lr": 0.1,
    "threads": 1,
}
EQUAL = (
    "train_loss",
    "test_loss",
    "test_accuracy",
    "bytes_up",
    "bytes_down",
    "clock",
    "clients",
    "dropped",
)


def write_silos(folder: Path, numbers: bool = True) -> list[Path]:
    """Write a table of each silo; without columns of numbers, a schema takes two messages."""
    paths = []
    for number, name in enumerate(NAMES):
        rng = np.random.default_rng(number)
        rows = 50 + 10 * number
        colour, shape = (
            rng.choice(["red", "green", "blue"], rows),
            rng.choice(["round", "square"], rows),
        )
        age = rng.normal(50 + 5 * number, 10, rows).round(2)
        sick = (colour == "red") & (shape == "round") | (
            age > 65 if numbers else rng.random(rows) < 0.1
        )
        columns = {
            "colour": colour,
            "shape": shape,
            **({"age": age, "income": rng.normal(31000, 900, rows)} if numbers else {}),
        }
        paths.append(folder / f"{name}.csv")
        pd.DataFrame({**columns, "outcome": np.where(sick, "sick", "well")}).to_csv(
            paths[-1], index=False
        )
    return paths


def in_one_place(paths: Sequence[Path], algorithm: str, **settings: Any) -> Run:
    """Run a method in the loop engine, with the rows of all silos."""
    fed = fs.split(
        fs.load({"name": "silos", "paths": tuple(map(str, paths)), "label": "outcome"}), "natural"
    )
    with warnings.catch_warnings():
        # Tables without numbers have few different rows.
        warnings.filterwarnings("ignore", ".*equal an earlier one")
        return fs.train(
            fed, "logreg", algorithm, engine="loop", folder=False, **{**SETTINGS, **settings}
        )


def forms(value: float) -> list[bytes]:
    """Return how a number may be written."""
    binary = [
        struct.pack("<d", value),
        struct.pack("<f", value),
        struct.pack(">d", value),
        struct.pack(">f", value),
    ]
    return [*binary, *(one.hex().encode() for one in binary), repr(value).encode()]


def assert_same_run(found: Run, expected: Run) -> None:
    """Compare two runs: weights and what the tables say."""
    for name, value in expected.model.state_dict().items():
        np.testing.assert_allclose(
            found.model.state_dict()[name].numpy(), value.numpy(), rtol=1e-9, atol=1e-12
        )
    for name in EQUAL:
        mine, theirs = (run.rounds[name].astype(float) for run in (found, expected))
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, err_msg=name)


def plant(path: Path) -> float:
    """Write a value into a silo's table that is nowhere else, and return the largest one of its column."""
    frame = pd.read_csv(path)
    frame.loc[0, "income"] = PLANTED
    assert PLANTED not in frame["income"].quantile([0, 0.25, 0.5, 0.75, 1]).tolist()
    frame.to_csv(path, index=False)
    return float(frame["income"].max())


def assert_hidden(sent: bytes, largest: float, schema: Schema) -> None:
    """Look for the planted value, as in the file and as the model gets it; the largest one shows that it is found.

    The ends, the quartiles and the median of a column are told by design.
    """
    assert any(form in sent for form in forms(largest))
    column: Any = next(one for one in schema.columns if getattr(one, "name", "") == "income")
    inside = (PLANTED - column.mean) / column.deviation
    for value in (PLANTED, inside, float(np.float32(inside))):
        assert not any(form in sent for form in forms(value))


@dataclass
class SilosInProcess:
    """Carries requests to silos in this process, as Flower would to their machines; keeps all that is sent."""

    paths: list[Path]
    state: Path
    silent: set[int] = field(default_factory=set)
    own: dict[str, Any] = field(default_factory=dict)  # what the owner of the first file says of it
    sent: list[bytes] = field(default_factory=list)
    rounds: list[str] = field(default_factory=list)  # what was asked in each round of messages

    def renumber(self, clients: Sequence[int]) -> None:
        self.paths = [self.paths[old] for old in clients]

    def ask(
        self, requests: Mapping[int, bytes], about: Mapping[str, Any], *patience: Any
    ) -> dict[int, bytes]:
        kinds = {
            request[8:200].split(b'"object": ["')[1].split(b'"')[0].decode()
            for request in requests.values()
        }
        self.rounds.append("+".join(sorted(kinds)))
        answers = {}
        for client, request in requests.items():
            if client in self.silent:
                continue
            path = self.paths[client]
            own = {
                "data": str(path),
                "state": str(self.state / path.stem),
                **(self.own if client == 0 else {}),
            }
            answers[client] = silo_node.answer({**about, "client": client, "node": own}, request)
        self.sent += [*requests.values(), *answers.values(), repr(about).encode()]
        return answers
