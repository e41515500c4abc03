"""Tokens: whole numbers reach a model that looks them up as integers, in both engines and wherever it is used."""

from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedskew as fs
from fedskew.core.errors import FedskewError
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked
from fedskew.inference.exported_model import export_model
from fedskew.models.tokens import as_input, takes_tokens

VOCABULARY, LENGTH = 11, 6


class Words(nn.Module):
    """The mean of embedded tokens; ``seen`` has the types of what it was given."""

    seen: ClassVar[set[torch.dtype]] = set()

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        Words.seen.add(x.dtype)
        return self.head(self.words(x).mean(1))


class Cast(Words):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.long())


class Places(nn.Module):
    """Features with an embedding of their places: no tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(LENGTH, 1)
        self.head = nn.Linear(LENGTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.places(torch.arange(LENGTH, device=x.device))[:, 0])


def made(kind) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind()


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    x = draw.integers(0, VOCABULARY, (120, LENGTH))
    return x, np.minimum(x[:, 0] // 4, 2)


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, np.float32])
@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_a_model_with_an_embedding_gets_integers(rows, engine: str, dtype):
    fed = fs.split((rows[0].astype(dtype), rows[1]), "dirichlet:alpha=0.5", clients=4)
    Words.seen.clear()
    how = {"rounds": 3, "engine": engine, "folder": False, "device": "cpu", "dtype": "float64"}
    run = fs.train(fed, made(Words), "fedprox:mu=0.1", **how)
    assert torch.int64 in Words.seen
    assert run.server.job.x.dtype == torch.int64
    by_hand = fs.train(fed, made(Cast), "fedprox:mu=0.1", **how)
    assert by_hand.server.job.x.dtype == torch.float64
    for name, value in run.weights.items():
        torch.testing.assert_close(value, by_hand.weights[name], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "algorithm", ["scaffold:option=I", "moon", "fedpac", "ditto", "stratify-batch"]
)
def test_engines_agree(rows, algorithm: str):
    fed = fs.split(rows, "dirichlet:alpha=0.5", clients=4)
    found = []
    for engine in ("loop", "stacked"):
        run = fs.train(
            fed, made(Words), algorithm, rounds=2, engine=engine, folder=False, device="cpu",
            dtype="float64",
        )  # fmt: skip
        found.append(run.weights)
    for name, value in found[0].items():
        torch.testing.assert_close(value, found[1][name], rtol=0, atol=1e-10)


def test_the_stacked_form_itself(lab):
    draw = np.random.default_rng(0)
    fed = lab.federation()
    fed.train.x[:] = draw.integers(0, VOCABULARY, fed.train.x.shape)
    fed.test.x[:] = draw.integers(0, VOCABULARY, fed.test.x.shape)
    found = [
        lab.run(2, fed, "fedavg", made(Words), engine) for engine in (Loop(), Stacked(mode="stack"))
    ]
    assert lab.gap(*found) < 1e-12


def test_what_is_trained_on_tokens_predicts_and_is_exported(rows, tmp_path):
    fed = fs.split(rows, "iid", clients=3)
    run = fs.train(fed, made(Words), rounds=2, folder=False, device="cpu")
    with pytest.raises(FedskewError, match="a row holds a token that the model does not have"):
        run.predict(np.arange(12).reshape(2, LENGTH))
    scores = run.predict(rows[0][:8], proba=True)
    model = run.model_in_use(None)
    wanted = model(torch.from_numpy(rows[0][:8])).double().softmax(1).detach().numpy()
    np.testing.assert_allclose(scores.iloc[:, 1:].to_numpy(dtype=float), wanted, atol=1e-6)
    assert export_model(run, tmp_path / "words.pt2", "torch").difference < 1e-5


def test_a_npz_file_of_tokens(rows, tmp_path):
    np.savez(tmp_path / "words.npz", x=rows[0], y=rows[1])
    fed = fs.split(fs.load(str(tmp_path / "words.npz"), standardize=False), "iid", clients=3)
    run = fs.train(fed, made(Words), rounds=1, folder=False, device="cpu")
    assert run.server.job.x.dtype == torch.int64
    again = fs.train(
        fed, made(Words), rounds=2, folder=tmp_path / "run", device="cpu", checkpoint_every=1
    )
    resumed = fs.resume(tmp_path / "run", model=made(Words))
    assert all(torch.equal(value, resumed.weights[name]) for name, value in again.weights.items())


def test_an_embedding_of_something_else_makes_no_tokens(rows):
    whole = torch.from_numpy(rows[0]).float()
    assert not takes_tokens(made(Places), whole)
    assert as_input(made(Places), whole, torch.float64).dtype == torch.float64
    assert takes_tokens(made(Words), whole)
    assert not takes_tokens(made(Cast), whole)
    assert not takes_tokens(nn.Linear(LENGTH, 3), whole)


@pytest.mark.parametrize("row", range(8))  # of the training and of the test rows
def test_fractions_are_no_tokens(rows, row: int):
    x = rows[0].astype(np.float32)
    x[row, 2] = 0.5
    fed = fs.split((x, rows[1]), "iid", clients=3)
    with pytest.raises(FedskewError, match=r"row \d+ holds 0\.5, and the model looks tokens up"):
        fs.train(fed, made(Words), rounds=1, folder=False, device="cpu")


@pytest.mark.parametrize(("token", "which"), [(VOCABULARY, "largest"), (-1, "smallest")])
@pytest.mark.parametrize("part", ["training", "test"])
def test_tokens_that_the_model_does_not_have_are_refused_before_training(
    part: str, token: int, which: str
):
    x = np.random.default_rng(0).integers(0, VOCABULARY, (60, LENGTH))
    y = np.arange(60) % 3
    fed = fs.split((x, y), "iid", clients=3)
    rows = {"training": fed.data.train, "test": fed.data.test}[part]
    rows.x[9, 2] = token
    with pytest.raises(FedskewError, match=f"{part} row 9, which has the {which} token, {token}"):
        fs.train(fed, Words(), rounds=1, folder=False, device="cpu")
