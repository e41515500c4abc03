"""Models in folders of Hugging Face's layout."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedskew as fs
from fedskew.core.errors import FedskewError
from fedskew.models.build import build

CLASSES = 3


def text_folder(folder: Path) -> Path:
    transformers = pytest.importorskip("transformers", reason="needs fedskew[hf]")
    config = transformers.BertConfig(
        vocab_size=60,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=20,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=CLASSES,
    )
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def image_folder(folder: Path) -> Path:
    transformers = pytest.importorskip("transformers", reason="needs fedskew[hf]")
    config = transformers.ViTConfig(
        image_size=8,
        patch_size=4,
        num_channels=1,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=5,
    )
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    return folder


def texts() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.integers(1, 60, (60, 12))
    x[:20, 8:] = 0  # padding
    return x, x[:, 0] % CLASSES


def test_the_weights_are_those_of_the_folder_and_padding_is_not_seen(tmp_path: Path):
    folder = text_folder(tmp_path)
    model = build(f"hf:path={folder}", (12,), CLASSES, seed=0).eval()
    transformers = pytest.importorskip("transformers")
    other = transformers.BertForSequenceClassification.from_pretrained(folder).eval()
    x = torch.from_numpy(texts()[0][:4])
    short = other(input_ids=x[:, :8]).logits
    torch.testing.assert_close(model(x), short, rtol=0, atol=1e-6)


def losses_of(folder: Path, algorithm: str, engine: str) -> np.ndarray:
    """Return the losses of local training in two rounds."""
    run = fs.train(
        fs.split(texts(), "iid", clients=3),
        f"hf:path={folder}",
        algorithm,
        rounds=2,
        engine=engine,
        dtype="float64",
        device="cpu",
        folder=False,
    )
    return run.rounds["local_loss"].to_numpy()


# moon runs the model in a hook, fed-sb on all rows, and transformers branches on a mask
@pytest.mark.parametrize(
    "algorithm", ["fedavg", "moon:mu=1", "fedavg + fed-sb:rank=2,target=query"]
)
def test_both_engines_train_it_and_agree(tmp_path: Path, algorithm: str):
    folder = text_folder(tmp_path)
    plain, stacked = (losses_of(folder, algorithm, engine) for engine in ("loop", "stacked"))
    np.testing.assert_allclose(stacked, plain, rtol=1e-9)


def test_a_head_for_other_classes_is_new_and_trained_alone(tmp_path: Path):
    folder = image_folder(tmp_path)
    x = np.random.default_rng(0).normal(size=(30, 1, 8, 8)).astype(np.float32)
    run = fs.train(
        fs.split((x, np.arange(30) % CLASSES), "iid", clients=2),
        f"hf:path={folder},train=head",
        rounds=1,
        device="cpu",
        folder=False,
    )
    assert run.summary["parameters"] == 16 * CLASSES + CLASSES
    before = build(f"hf:path={folder}", (1, 8, 8), CLASSES, seed=0).state_dict()
    for name, value in run.model.state_dict().items():
        assert ("classifier" in name) != torch.equal(value, before[name]), name


def test_rows_of_another_shape_are_refused(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"model_type": "bert", "vocab_size": 60}')
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(fs.FedskewError, match=r"model of text .bert., and rows have the shape"):
        build(f"hf:path={tmp_path}", (1, 8, 8), CLASSES, seed=0)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "has no config.json"),
        ({"config.json": "{}", "pytorch_model.bin": "x"}, "pickled weights are not read"),
        ({"config.json": "{", "model.safetensors": ""}, "is not JSON"),
        ({"config.json": "[]", "model.safetensors": ""}, "is not a table of settings"),
    ],
)
def test_folders_without_a_model_are_refused(tmp_path: Path, files: dict[str, str], words: str):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(fs.FedskewError, match=words):
        build(f"hf:path={tmp_path}", (12,), CLASSES, seed=0)


def test_a_damaged_file_of_weights_is_refused(tmp_path: Path):
    folder = text_folder(tmp_path)
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-50])
    with pytest.raises(fs.FedskewError, match="cannot be read"):
        build(f"hf:path={folder}", (12,), CLASSES, seed=0)


def test_a_model_without_padding_is_refused_by_the_name_of_its_setting(tmp_path: Path):
    transformers = pytest.importorskip("transformers", reason="needs fedskew[hf]")
    sizes = {"vocab_size": 60, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 20}
    for padding in (None, 0):
        config = transformers.GPT2Config(**sizes, num_labels=CLASSES, pad_token_id=padding)
        transformers.GPT2ForSequenceClassification(config).save_pretrained(tmp_path / str(padding))
    with pytest.raises(FedskewError, match="Set pad_token_id in its config"):
        build(f"hf:path={tmp_path / 'None'}", (12,), CLASSES, seed=0)
    build(f"hf:path={tmp_path / '0'}", (12,), CLASSES, seed=0)
