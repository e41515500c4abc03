"""A linear classifier of texts on frozen vectors of their tokens."""

from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from fedskew.core.errors import FedskewError
from fedskew.models.network import Network, Shape, models


class MeanOfTokens(nn.Module):
    """The mean of the vectors of a row's tokens, which are not trained.

    Args:
        vectors: one for each token
        padding: the token that does not count, or None
    """

    def __init__(self, vectors: Tensor, padding: int | None) -> None:
        super().__init__()
        self.embed = nn.Embedding.from_pretrained(vectors, freeze=True)  # type: ignore[no-untyped-call]
        self.padding = padding

    def forward(self, x: Tensor) -> Tensor:
        """Return one vector a row; 0 for a row of padding alone."""
        vectors: Tensor = self.embed(x)
        if self.padding is None:
            return vectors.mean(1)
        counts = (x != self.padding).unsqueeze(2).to(vectors.dtype)
        return (vectors * counts).sum(1) / counts.sum(1).clamp_min(1)


@models.register("text-linear")
def text_linear(
    shape: Shape,
    classes: int,
    /,
    *,
    embeddings: str,
    tensor: str | None = None,
    padding: int | None = None,
) -> Network:
    """A linear layer on the mean of frozen token vectors from a file: rows of tokens, such as a tokenizer makes.

    The vectors are not trained and never travel: clients send the linear layer alone.

    Args:
        embeddings: file of the vectors, one row a token: .safetensors, or .npy
        tensor: name of the matrix in a .safetensors file; by default its only one
        padding: token that fills up short rows, and does not count; by default all tokens count
    """
    if len(shape) != 1:
        raise FedskewError(
            f"model text-linear needs rows of shape (tokens,), got {shape}: reshape the data or choose logreg, which "
            "takes any shape"
        )
    vectors = read_vectors(Path(embeddings), tensor)
    if padding is not None and not 0 <= padding < len(vectors):
        raise FedskewError(
            f"model text-linear: padding={padding} is none of the {len(vectors)} tokens of {embeddings}: give its "
            "number"
        )
    return Network(MeanOfTokens(vectors, padding), vectors.shape[1], classes)


def read_vectors(path: Path, tensor: str | None) -> Tensor:
    """Return the matrix in a file in float32."""
    where = f"model text-linear: {path}"
    if not path.is_file():
        raise FedskewError(f"{where} is not there: give embeddings=, a .safetensors or .npy file")
    try:
        if path.suffix == ".npy":
            found = _of_npy(path, tensor, where)
        else:
            found = _of_safetensors(path, tensor, where)
    except FedskewError:
        raise
    except (OSError, ValueError, TypeError, EOFError, SafetensorError) as problem:
        raise FedskewError(f"{where} is not a .safetensors or .npy file: {problem}") from None
    if found.dim() != 2 or not found.numel() or not found.is_floating_point():
        raise FedskewError(
            f"{where} holds {found.dtype} of shape {tuple(found.shape)}, expected one row of floats for each token"
        )
    vectors = found.float()
    wrong = (~vectors.isfinite()).any(1).nonzero()
    if len(wrong):
        raise FedskewError(
            f"{where}: the vector of token {int(wrong[0])} has NaN or infinity: clean it"
        )
    return vectors


def _of_npy(path: Path, tensor: str | None, where: str) -> Tensor:
    """Return the array of a file, in the byte order of this machine."""
    if tensor is not None:
        raise FedskewError(f"{where} holds one array without a name: leave out tensor={tensor}")
    array = np.load(path, allow_pickle=False)
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))


def _of_safetensors(path: Path, tensor: str | None, where: str) -> Tensor:
    """Return one tensor of a file."""
    with safe_open(path, framework="pt", device="cpu") as file:
        names = sorted(file.keys())
        if not names:
            raise FedskewError(f"{where} holds no tensor: give a file with a matrix")
        if tensor is None and len(names) == 1:
            tensor = names[0]
        if tensor not in names:
            raise FedskewError(
                f"{where} has {', '.join(names)}: give tensor=, the name of one of them"
            )
        found: Tensor = file.get_tensor(tensor)
    return found
