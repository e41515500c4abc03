"""The task of predicting the token that follows, at each place of a row."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedskew.core.streams import Floats
from fedskew.data.targets import PADDING, Targets
from fedskew.tasks.losses import token_losses
from fedskew.tasks.scores import TOKEN_RANGES
from fedskew.tasks.task import BuiltIn, Reduction, reduced, tasks

_ROWS = 256  # that are summed up at a time


@tasks.register("next-token")
@dataclass(frozen=True)
class NextToken(BuiltIn):
    """Predict the token that follows, at each place of a row, by cross-entropy over the vocabulary.

    Targets are as many tokens as the row has places, -1 at places where there is none; outputs are
    ``[rows, tokens, vocabulary]``. The loss of a row is the mean over its tokens, so that rows count equally, whatever
    their length.

    Metrics: accuracy (share of all tokens that are predicted); perplexity (the exponential of the mean cross-entropy
    over all tokens). Both count tokens equally, and the loss counts rows, as does the accuracy of a client.

    >>> task = NextToken()
    >>> task.losses(torch.zeros(1, 3, 4), torch.tensor([[0, 2, -1]]), "none")
    tensor([1.3863])
    """

    target = "tokens"
    row_metric = "accuracy"
    names = ("accuracy", "perplexity")
    ranges = TOKEN_RANGES
    low_is_good = frozenset({"perplexity"})
    # Of the tokens of a row: the summed cross-entropy, how many are predicted, and how many there are
    row_sums = ("surprise", "right", "tokens")

    def row_scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the share of each row's tokens that are predicted."""
        real = targets != PADDING
        right = (outputs.argmax(-1) == targets) & real
        return right.sum(-1).to(outputs.dtype) / real.sum(-1).clamp_min(1)

    def kept(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the ``row_sums`` of every row."""
        real = targets != PADDING
        right = (outputs.argmax(-1) == targets) & real
        surprise = token_losses(outputs.double(), targets, PADDING)
        return torch.stack([surprise, right.double(), real.double()], -1).sum(-2)

    def kept_scores(self, kept: Tensor, targets: Tensor) -> Tensor:
        """Return the share of each row's tokens that are predicted."""
        _, right, tokens = kept.unbind(-1)
        return right / tokens.clamp_min(1)

    def _losses(self, outputs: Tensor, targets: Tensor, reduction: Reduction) -> Tensor:
        real = (targets != PADDING).sum(-1).clamp_min(1)
        return reduced(token_losses(outputs, targets, PADDING).sum(-1) / real, reduction)

    def _kept_of(self, outputs: Floats, targets: Targets) -> Floats:
        pieces = [np.zeros((0, len(self.row_sums)))]
        for first in range(0, len(targets), _ROWS):
            some = slice(first, first + _ROWS)
            kept = self.kept(torch.from_numpy(outputs[some]), torch.from_numpy(targets[some]))
            pieces.append(kept.numpy())
        return np.concatenate(pieces)

    def _measures(self, outputs: Floats, targets: Targets) -> Mapping[str, Callable[[], float]]:
        surprise, right, tokens = outputs.sum(0)
        return {
            "accuracy": lambda: float(right / tokens),
            "perplexity": lambda: float(np.exp(surprise / tokens)),
        }
