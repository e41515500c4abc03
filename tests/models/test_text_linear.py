"""The linear classifier on frozen token vectors: by hand, in both engines, and what it refuses."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import fedskew as fs
from fedskew.core.errors import FedskewError
from fedskew.models.build import build
from fedskew.models.text_linear import MeanOfTokens, read_vectors

VECTORS = torch.tensor([[9.0, 9.0], [1.0, 0.0], [0.0, 2.0], [4.0, 4.0]])


def written(folder: Path, **tensors: torch.Tensor) -> str:
    path = folder / "vectors.safetensors"
    save_file(tensors or {"words": VECTORS}, path)
    return str(path)


def test_means_by_hand():
    rows = torch.tensor([[1, 2, 0], [3, 0, 0], [0, 0, 0]])
    padded = MeanOfTokens(VECTORS, padding=0)(rows)
    assert padded.tolist() == [[0.5, 1.0], [4.0, 4.0], [0.0, 0.0]]
    every = MeanOfTokens(VECTORS, padding=None)(rows[:1])
    torch.testing.assert_close(every, torch.tensor([[10 / 3, 11 / 3]]))


def test_engines_agree_and_the_head_alone_travels(tmp_path: Path):
    draw = np.random.default_rng(0)
    vectors = torch.from_numpy(draw.normal(size=(30, 4)).astype(np.float16))
    model = f"text-linear:embeddings={written(tmp_path, words=vectors)},padding=0"
    x = draw.integers(0, 30, (90, 5))
    fed = fs.split((x, x[:, 0] % 3), "dirichlet:alpha=0.5", clients=4, seed=0)
    runs = []
    for engine in ("loop", "stacked"):
        run = fs.train(
            fed, model, rounds=3, lr=0.5, engine=engine, folder=False, device="cpu", dtype="float64"
        )
        runs.append(run)
    for name, value in runs[0].weights.items():
        assert float((value - runs[1].weights[name]).abs().max()) < 1e-10
    summary = runs[0].summary
    assert (summary["parameters"], summary["frozen_parameters"]) == (4 * 3 + 3, 30 * 4)
    assert summary["bytes_up"] == 3 * 4 * 8 * (4 * 3 + 3)  # rounds, clients, bytes a number
    torch.testing.assert_close(
        runs[1].weights["features.embed.weight"], vectors.double(), rtol=0, atol=0
    )


def test_an_opened_run_predicts_the_same(tmp_path: Path):
    np.save(tmp_path / "vectors.npy", VECTORS.numpy())
    x = np.random.default_rng(1).integers(0, 4, (60, 3))
    fed = fs.split((x, x[:, 0] % 2), "iid", clients=3)
    model = f"text-linear:embeddings={tmp_path / 'vectors.npy'}"
    run = fs.train(fed, model, rounds=2, lr=0.5, device="cpu", folder=tmp_path / "run")
    expected = run.predict(x[:9], proba=True)
    assert fs.open_run(tmp_path / "run").predict(x[:9], proba=True).equals(expected)
    np.save(tmp_path / "vectors.npy", VECTORS.flip(0).numpy())  # the run has its own
    assert fs.open_run(tmp_path / "run").predict(x[:9], proba=True).equals(expected)
    np.save(tmp_path / "vectors.npy", VECTORS[:3].numpy())
    with pytest.raises(FedskewError, match=r"shape \(3, 2\), and model.safetensors holds another"):
        fs.open_run(tmp_path / "run").predict(x[:9])


def test_big_endian_vectors(tmp_path: Path):
    np.save(tmp_path / "vectors.npy", VECTORS.numpy().astype(">f8"))
    assert torch.equal(read_vectors(tmp_path / "vectors.npy", None), VECTORS)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ({}, "vectors.safetensors has a, b: give tensor=, the name of one of them"),
        ({"tensor": "c"}, "has a, b: give tensor=, the name of one of them"),
        ({"tensor": "b"}, r"holds torch.int64 of shape \(3, 2\), expected one row of floats"),
        ({"tensor": "a", "padding": 4}, "padding=4 is none of the 4 tokens"),
    ],
)
def test_refused_tensors(tmp_path: Path, file: dict, message: str):
    path = written(tmp_path, a=VECTORS, b=torch.zeros(3, 2, dtype=torch.int64))
    with pytest.raises(FedskewError, match=message):
        build({"name": "text-linear", "embeddings": path, **file}, (3,), 2, 0)


def test_refused_files(tmp_path: Path):
    def read(name: str, content: bytes | None) -> None:
        if content is not None:
            (tmp_path / name).write_bytes(content)
        read_vectors(tmp_path / name, None)

    with pytest.raises(FedskewError, match=r"vectors.npy is not there: give embeddings="):
        read("vectors.npy", None)
    with pytest.raises(FedskewError, match=r"is not a .safetensors or .npy file"):
        read("vectors.safetensors", b"nothing")
    np.save(tmp_path / "objects.npy", np.array([[None]]))
    with pytest.raises(FedskewError, match=r"is not a .safetensors or .npy file"):
        read("objects.npy", None)
    np.save(tmp_path / "missing.npy", np.array([[1.0], [np.nan]]))
    with pytest.raises(FedskewError, match="the vector of token 1 has NaN or infinity"):
        read("missing.npy", None)
    with pytest.raises(FedskewError, match="one array without a name: leave out tensor=words"):
        read_vectors(tmp_path / "missing.npy", "words")
    save_file({}, tmp_path / "empty.safetensors")
    with pytest.raises(FedskewError, match="holds no tensor"):
        read_vectors(tmp_path / "empty.safetensors", None)
    with pytest.raises(FedskewError, match=r"needs rows of shape \(tokens,\), got \(3, 3\)"):
        build(f"text-linear:embeddings={written(tmp_path)}", (3, 3), 2, 0)
