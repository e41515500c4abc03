"""Rows of tokens: whole numbers that a model looks up in an embedding, and does not calculate with."""

import torch
from torch import Tensor, nn

from fedskew.core.errors import FedskewError
from fedskew.models.parameters import copied_model

_TRIED = 2  # rows


def as_input(model: nn.Module, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Return rows as the model takes them: as tokens (int64) if it answers those alone, else in this precision.

    Data sets hold every feature as float32, which is exact for whole numbers up to 2 ** 24.

    >>> as_input(nn.Embedding(5, 2), torch.tensor([[0.0, 4.0]]), torch.float32)
    tensor([[0, 4]])
    """
    if takes_tokens(model, rows):
        return tokens(rows)
    return rows.to(dtype)


def takes_tokens(model: nn.Module, rows: Tensor) -> bool:
    """Return whether a model has an embedding, and answers whole numbers of an integer type alone."""
    if not any(isinstance(module, (nn.Embedding, nn.EmbeddingBag)) for module in model.modules()):
        return False
    tried = copied_model(model).eval()
    first = rows[:_TRIED].to(next(tried.parameters()).device)
    as_numbers = first.to(next(tried.parameters()).dtype)
    return not _answers(tried, as_numbers) and _answers(tried, first.round().abs().long())


def _answers(model: nn.Module, rows: Tensor) -> bool:
    """Return whether a model takes rows of this type; a token that it does not have says nothing of the type."""
    try:
        with torch.no_grad():
            model(rows.clone())
    except IndexError:
        return True
    except Exception:  # whatever a user's forward raises
        return False
    return True


def tokens(rows: Tensor) -> Tensor:
    """Return rows as whole numbers; an error where they are none."""
    whole = rows.long()
    wrong = (whole.to(rows.dtype) != rows).flatten(1).any(1).nonzero()
    if len(wrong):
        row = int(wrong[0])
        raise FedskewError(
            f"row {row} holds {_first_fraction(rows[row])}, and the model looks tokens up in an embedding: give whole "
            "numbers (of a file, load it with standardize=false), or a model that takes features"
        )
    return whole


def _first_fraction(row: Tensor) -> float:
    """Return the first number of a row that is not whole."""
    return float(row[row != row.round()][0])
