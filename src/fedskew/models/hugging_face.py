"""Models in a folder of Hugging Face's layout: ``config.json`` and weights in safetensors."""

import json
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from fedskew.core.errors import FedskewError
from fedskew.core.files import read_text
from fedskew.models.network import Shape, models

_MAKERS = {
    "text": "AutoModelForSequenceClassification",
    "images": "AutoModelForImageClassification",
}


class Answers(nn.Module):
    """A model of transformers that returns its logits alone."""

    def __init__(self, model: nn.Module, padding: int | None) -> None:
        super().__init__()
        self.model = model
        self.padding = padding


class OfTokens(Answers):
    """One for rows of tokens; those that are padding are not attended to."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch."""
        seen = None
        if self.padding is not None:
            seen = (x != self.padding).long()
        logits: Tensor = self.model(input_ids=x, attention_mask=seen).logits
        return logits


class OfImages(Answers):
    """One for images."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch."""
        logits: Tensor = self.model(pixel_values=x).logits
        return logits


@models.register("hf")
def hf(
    shape: Shape, classes: int, /, *, path: str, train: Literal["all", "head"] = "all"
) -> nn.Module:
    """A pretrained classifier of texts or images in a folder of Hugging Face's layout (needs fedskew[hf]).

    The folder has config.json and *.safetensors, as ``save_pretrained`` writes them. Nothing is downloaded, no code of
    the folder is run, and pickled weights are refused. Rows of tokens go to a model for sequence classification, images
    (channels, height, width) to one for image classification. A head for another number of classes is new.

    Args:
        path: the folder
        train: what is trained: all weights, or the last linear layer alone
    """
    folder = Path(path)
    config = _config(folder)
    kind: Literal["text", "images"] = "text"
    if "vocab_size" not in config:
        kind = "images"
    needed = {"text": 1, "images": 3}[kind]
    if len(shape) != needed:
        raise FedskewError(
            f"model hf: {folder} has a model of {kind} ({config.get('model_type')}), and rows have the shape {shape}: "
            "text needs rows of tokens, and images need (channels, height, width)"
        )
    made = _made(folder, _MAKERS[kind], classes)
    model: Answers
    if kind == "text":
        _check_batches(folder, made)
        model = OfTokens(made, config.get("pad_token_id"))
    else:
        model = OfImages(made, None)
    if train == "head":
        _freeze_all_but_the_last(model)
    return model


def _config(folder: Path) -> dict[str, Any]:
    """Return the configuration of the model; an error for a folder that has none, or no weights to be read safely."""
    path = folder / "config.json"
    if not path.is_file():
        raise FedskewError(
            f"model hf: {folder} has no config.json: give the folder that save_pretrained wrote"
        )
    if not list(folder.glob("*.safetensors")):
        raise FedskewError(
            f"model hf: {folder} has no *.safetensors, and pickled weights are not read: save the model again with "
            "save_pretrained"
        )
    try:
        config = json.loads(read_text(path))
    except json.JSONDecodeError as problem:
        raise FedskewError(f"model hf: {path} is not JSON: {problem}") from None
    if not isinstance(config, dict):
        raise FedskewError(f"model hf: {path} is not a table of settings: save the model again")
    return config


def _made(folder: Path, maker: str, classes: int) -> nn.Module:
    """Return the model with its weights; without them where only its sizes are asked for."""
    try:
        import transformers
    except ImportError:
        raise FedskewError("model hf needs transformers: pip install 'fedskew[hf]'") from None
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    kind = getattr(transformers, maker)
    try:
        config = transformers.AutoConfig.from_pretrained(
            folder, num_labels=classes, local_files_only=True
        )
        if torch.get_default_device().type == "meta":
            made: nn.Module = kind.from_config(config)
        else:
            made = kind.from_pretrained(
                folder,
                config=config,
                local_files_only=True,
                use_safetensors=True,
                ignore_mismatched_sizes=True,
                dtype=torch.float32,
            )
    except (ValueError, OSError, KeyError, RuntimeError, SafetensorError) as problem:
        reason = str(problem).strip().splitlines()[0]
        raise FedskewError(f"model hf: {folder} cannot be read as {maker}: {reason}") from problem
    return made


def _check_batches(folder: Path, made: nn.Module) -> None:
    """Raise an error for a model that takes texts one by one alone, as those of the GPT family do without padding."""
    if torch.get_default_device().type == "meta":
        return
    two_texts = torch.zeros((2, 1), dtype=torch.int64)
    try:
        with torch.no_grad():
            made(input_ids=two_texts)
    except ValueError as problem:
        raise FedskewError(
            f"model hf: {folder} answers no batch of texts: {problem} Set pad_token_id in its config.json"
        ) from problem


def _freeze_all_but_the_last(model: nn.Module) -> None:
    """Freeze all weights but those of the last linear layer."""
    model.requires_grad_(False)
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    linear[-1].requires_grad_(True)
