"""How good: loss and accuracy of the global model and of each client's own, on all rows, on a sample, on a client's rows."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from fedskew.core.streams import Floats, Ints, Stream
from fedskew.core.trees import Tensors
from fedskew.data.dataset import Rows
from fedskew.data.federation import Federation
from fedskew.data.partition import Partition
from fedskew.engine.inference import row_scores

OWN_TESTED = 20  # clients of a round whose own models are tried on the whole test set
FINAL_TESTED = 200  # likewise after the last round
FINAL_CLIENTS = 10_000  # clients scored on their own rows after the last round

OwnModel: TypeAlias = Callable[[int], Tensors]

@dataclass(frozen=True)
class Score:
    """Mean loss and accuracy over some rows, and the mean over the classes among them of the accuracy on each."""

    loss: float
    accuracy: float
    balanced_accuracy: float


SCORES = tuple(field.name for field in fields(Score))


def score(model: nn.Module, tensors: Tensors, x: Tensor, y: Tensor, rows: Tensor | None = None) -> Score:
    """Means over the rows."""
    losses, right = row_scores(model, tensors, x, y, rows)
    labels = (y if rows is None else y[rows]).cpu().numpy()
    counts = np.bincount(labels)
    recall = np.bincount(labels, weights=right)[counts > 0] / counts[counts > 0]
    return Score(float(losses.mean()), float(right.mean()), float(recall.mean()))


def client_scores(
    model: nn.Module, tensors: Tensors, x: Tensor, y: Tensor, rows_by_client: Iterable[Ints]
) -> tuple[Floats, Floats]:
    """Mean loss and accuracy of one model on each client's rows; NaN for a client without rows."""
    pieces = list(rows_by_client)
    sizes = np.array([len(piece) for piece in pieces])
    if sizes.sum() == 0:
        return np.full(len(pieces), np.nan), np.full(len(pieces), np.nan)
    losses, right = row_scores(model, tensors, x, y, torch.from_numpy(np.concatenate(pieces)).to(y.device))
    owner = np.repeat(np.arange(len(pieces)), sizes)
    with np.errstate(invalid="ignore"):
        mean_loss, accuracy = (np.bincount(owner, weights=values, minlength=len(pieces)) / sizes for values in (losses, right))
    return mean_loss, accuracy


def own_columns(personal: bool, common: bool) -> tuple[str, ...]:
    """What is said of a client's own rows: the model that it uses, then the global one where there is one and it is another."""
    return ("loss", "accuracy", "global_loss", "global_accuracy") if personal and common else ("loss", "accuracy")


class Evaluator:
    """The data on the device and a model to put weights into; ``own`` gives a client's model where clients keep parts of it."""

    def __init__(self, fed: Federation, model: nn.Module, x: Tensor, y: Tensor, eval_rows: int | None, seed: int) -> None:
        self.fed, self.model, self.x, self.y, self.seed = fed, model, x, y, seed
        parts = (("validation", fed.validation), ("test", fed.test))
        self._parts = {name: self._place(rows) for name, rows in parts if rows is not None and len(rows)}
        held = fed.partition.rows
        if eval_rows is not None and eval_rows < len(held):
            held = held[np.sort(Stream(seed, "evaluation").sample(len(held), eval_rows))]
        self._train_rows = torch.from_numpy(held).to(y.device)

    def _place(self, rows: Rows) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(rows.x).to(self.x), torch.from_numpy(rows.y).to(self.y.device)

    def parts(self, common: bool, personal: bool, trained: bool) -> list[str]:
        """Whose scores the table of rounds has: a common model's on up to three parts, clients' models' on the test rows."""
        clients = [name for name, wanted in (("own_test", personal), ("trained_test", trained)) if wanted]
        return [*(["train", *self._parts] if common else []), *(clients if "test" in self._parts else [])]

    def scores(self, state: Tensors) -> dict[str, Score]:
        """The scores of the global model, by part."""
        result = {"train": score(self.model, state, self.x, self.y, self._train_rows)}
        return result | {name: score(self.model, state, x, y) for name, (x, y) in self._parts.items()}

    def mean_on_test(self, own: OwnModel, clients: Ints) -> Score | None:
        """The mean score of up to 20 clients' models on the test rows; None without clients or test rows."""
        if "test" not in self._parts or not len(clients):
            return None
        tested = [self._own_test(own, int(client)) for client in clients[:OWN_TESTED]]
        return Score(*(float(np.mean([getattr(one, name) for one in tested])) for name in SCORES))

    def _own_test(self, own: OwnModel, client: int) -> Score:
        return score(self.model, own(client), *self._parts["test"])

    def on_own_rows(self, state: Tensors | None, own: OwnModel | None, clients: Ints, split: Partition) -> dict[str, Floats]:
        """The ``own_columns``: scores of the model that each client uses, on its rows in ``split``.

        ``state`` is the global model; None where clients share nothing, and each has its ``own``.
        """
        rows = [split.of(int(client)) for client in clients]
        scores: tuple[Floats, ...] = client_scores(self.model, state, self.x, self.y, rows) if state else ()
        if own:
            each = [
                client_scores(self.model, own(int(client)), self.x, self.y, [mine])
                for client, mine in zip(clients, rows, strict=True)
            ]
            scores = (*np.array(each).reshape(-1, 2).T, *scores)
        return dict(zip(own_columns(own is not None, state is not None), scores, strict=True))

    def final(self, state: Tensors | None, own: OwnModel | None) -> list[dict[str, Any]]:
        """One line a client (a random sample above 10,000) about the model it ends with; arguments as in ``on_own_rows``."""
        clients = np.arange(self.fed.clients)
        if len(clients) > FINAL_CLIENTS:
            clients = np.sort(Stream(self.seed, "final").sample(len(clients), FINAL_CLIENTS))
        found = self.on_own_rows(state, own, clients, self.fed.held_out or self.fed.partition)
        lines: list[dict[str, Any]] = [
            {"client": int(c), "rows": int(self.fed.partition.sizes[c])} | {name: float(of[i]) for name, of in found.items()}
            for i, c in enumerate(clients)
        ]
        if own and "test" in self._parts:
            tested = lines if len(lines) <= FINAL_TESTED else lines[:: -(-len(lines) // FINAL_TESTED)]
            for line in tested:
                score = self._own_test(own, line["client"])
                line |= {f"own_test_{name}": getattr(score, name) for name in ("accuracy", "balanced_accuracy")}
        return lines
