"""Recurrent models of text: LEAF's network for Shakespeare."""

from typing import Annotated

from torch import Tensor, nn

from fedskew.core.errors import FedskewError
from fedskew.core.registry import AtLeastOne
from fedskew.models.network import Network, Shape, models


class TokenStates(nn.Module):
    """Tokens through an embedding and an LSTM: what it has after the last token, or after each.

    Args:
        vocabulary: number of tokens
        embedding: width of a token's vector
        hidden: units of each layer
        layers: layers of the LSTM
        per_token: return a vector for each token, or (false) the one after the last token
    """

    def __init__(
        self, vocabulary: int, embedding: int, hidden: int, layers: int, per_token: bool
    ) -> None:
        super().__init__()
        self.per_token = per_token
        self.embed = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[rows, tokens, hidden]``, or ``[rows, hidden]``."""
        states: Tensor = self.lstm(self.embed(x))[0]
        if self.per_token:
            return states
        return states[:, -1]


@models.register("char-lstm")
def char_lstm(
    shape: Shape,
    classes: int,
    /,
    *,
    embedding: Annotated[int, AtLeastOne] = 8,
    hidden: Annotated[int, AtLeastOne] = 256,
    layers: Annotated[int, AtLeastOne] = 2,
    vocabulary: Annotated[int | None, AtLeastOne] = None,
    per_token: bool = False,
) -> Network:
    """LEAF's net for Shakespeare: an embedding of 8, two LSTM layers of 256, the next character after the last one.

    Caldas et al. 2018, ``models/shakespeare/stacked_lstm.py`` of their repository. Rows are tokens, such as those of
    the data set ``shakespeare``. With ``per_token`` it answers at each place, for task=next-token: the network of Reddi
    et al. 2021 for the same plays. PyTorch's LSTM has two vectors of biases a layer, TensorFlow's one: 2,048 more
    numbers here than there.

    >>> sum(p.numel() for p in char_lstm((80,), 80).parameters())
    819920

    Args:
        embedding: width of a token's vector
        hidden: units of each layer
        layers: layers of the LSTM
        vocabulary: number of tokens; by default as many as classes
        per_token: outputs at each place of a row, for task=next-token
    """
    if len(shape) != 1:
        raise FedskewError(
            f"model char-lstm needs rows of shape (tokens,), got {shape}: reshape the data or choose mlp, which takes "
            "any shape"
        )
    body = TokenStates(vocabulary or classes, embedding, hidden, layers, per_token)
    return Network(body, hidden, classes)
