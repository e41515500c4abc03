"""A transformer of text that sees no token after the present one."""

import math
from typing import Annotated

import torch
from torch import Tensor, nn

from fedskew.core.errors import FedskewError
from fedskew.core.registry import AtLeastOne
from fedskew.models.network import Network, Shape, models

_WIDER = 4  # times as wide as the model is the hidden layer of its blocks


class CausalAttention(nn.Module):
    """Attention of several heads, in which a place sees itself and the places before it.

    Args:
        width: of a token's vector
        heads: parts into which the width is divided
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return as many vectors as it gets: ``[rows, tokens, width]``."""
        query = self._by_head(self.query(x))
        key = self._by_head(self.key(x))
        value = self._by_head(self.value(x))
        alike = query @ key.mT / math.sqrt(query.shape[-1])
        later = torch.ones(alike.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        shares = alike.masked_fill(later, -math.inf).softmax(-1)
        together: Tensor = self.out((shares @ value).transpose(1, 2).flatten(2))
        return together

    def _by_head(self, x: Tensor) -> Tensor:
        """Return ``[rows, heads, tokens, width of a head]``."""
        rows, length, width = x.shape
        return x.view(rows, length, self.heads, width // self.heads).transpose(1, 2)


class Block(nn.Module):
    """Attention, then a layer of each place for itself, each added to what it gets and normalised before (pre-norm)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = CausalAttention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.inner = nn.Linear(width, _WIDER * width)
        self.outer = nn.Linear(_WIDER * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return as many vectors as it gets."""
        x = x + self.attention(self.norm1(x))
        hidden = nn.functional.gelu(self.inner(self.norm2(x)))
        added: Tensor = x + self.outer(hidden)
        return added


class CausalTransformer(nn.Module):
    """Tokens through an embedding with learned positions, blocks and a last normalisation.

    Args:
        vocabulary: number of tokens
        length: tokens of a row
        width: of a token's vector
        heads: of the attention
        layers: number of blocks
        per_token: return a vector for each token, or (false) the one after the last token
    """

    def __init__(
        self, vocabulary: int, length: int, width: int, heads: int, layers: int, per_token: bool
    ) -> None:
        super().__init__()
        self.per_token = per_token
        self.embed = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(length, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[rows, tokens, width]``, or ``[rows, width]``."""
        states: Tensor = self.norm(self.blocks(self.embed(x) + self.positions))
        if self.per_token:
            return states
        return states[:, -1]


@models.register("char-transformer")
def char_transformer(
    shape: Shape,
    classes: int,
    /,
    *,
    width: Annotated[int, AtLeastOne] = 64,
    heads: Annotated[int, AtLeastOne] = 4,
    layers: Annotated[int, AtLeastOne] = 2,
    vocabulary: Annotated[int | None, AtLeastOne] = None,
    per_token: bool = False,
) -> Network:
    """A causal transformer of characters: an embedding, learned positions, pre-norm blocks with attention and GELU.

    Rows are tokens, such as those of the data set ``shakespeare``. With ``per_token`` it answers at each place, for
    task=next-token; without, after the last one, for the next character as a class. Clients are trained in stacks as
    with other models.

    >>> sum(p.numel() for p in char_transformer((80,), 80).parameters())
    115536

    Args:
        width: width of a token's vector
        heads: heads of the attention
        layers: number of blocks
        vocabulary: number of tokens; by default as many as classes
        per_token: outputs at each place of a row, for task=next-token
    """
    if len(shape) != 1:
        raise FedskewError(
            f"model char-transformer needs rows of shape (tokens,), got {shape}: reshape the data or choose mlp, which "
            "takes any shape"
        )
    if width % heads:
        raise FedskewError(
            f"model char-transformer: width={width} is not a multiple of heads={heads}: choose another of them"
        )
    body = CausalTransformer(vocabulary or classes, shape[0], width, heads, layers, per_token)
    return Network(body, width, classes)
