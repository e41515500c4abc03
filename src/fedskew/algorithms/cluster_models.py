"""Several models on the server: clusters of clients by their updates, and the mean of each model's own updates."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedskew.aggregation.mean import Aggregator
from fedskew.algorithms.contract import Cohort, View
from fedskew.core.errors import FedskewError
from fedskew.core.streams import Stream
from fedskew.core.trees import Tensors, Tree

CHOICE = (
    "choice"  # the part of a payload with 1 for the model that the client trained, 0 for the others
)
_ITERATIONS = 20  # of k-means


@dataclass(frozen=True)
class ByModel(Aggregator):
    """The mean of each model's updates: an update is added up in the place of the model that it changes.

    Args:
        fewest: how many updates the first models are made of, at least
    """

    fewest: int = 1

    def check(self, updates: int) -> None:
        """Raise an error if so many updates can never make the first models."""
        if updates < self.fewest:
            raise FedskewError(
                f"ifca with start=updates makes models={self.fewest} of as many clusters of clients, and a round has "
                f"{updates} of these: use fewer models, more clients per round, or start=random"
            )

    def arrange(self, payloads: Tree) -> Tree:
        """Return the payloads with one place per model in every change of a weight."""
        choice = payloads[CHOICE]["model"]
        arranged: Tensors = {}
        for name, value in payloads["delta"].items():
            places = choice.to(value).view(*choice.shape, *[1] * (value.dim() - 1))
            arranged[name] = places * value[:, None]
        return {**payloads, "delta": arranged}


def first_models(weights: Tensors, cohort: Cohort, names: list[str], count: int) -> Tensors:
    """Return so many models for these names, stacked: the weights with the mean update of one cluster of clients each.

    The clients of the cohort are clustered by their updates of these tensors.
    """
    updates = cohort.updates["delta"]
    rows = torch.cat([updates[name].flatten(1).double() for name in names], 1)
    cluster = clusters_by_cosine(rows, count)
    counts = torch.from_numpy(cohort.weights).to(rows.device)
    models: Tensors = {}
    for name in names:
        every = []
        for number in range(count):
            own = counts * (cluster == number)
            every.append(weights[name] + weighted(own / own.sum(), updates[name]))
        models[name] = torch.stack(every)
    return models


def choice(view: View) -> Tensor:
    """Return 1 for the model with the least loss on the client's rows, 0 for the others; of equal ones the first."""
    losses = view.candidate_losses
    assert losses is not None
    return torch.nn.functional.one_hot(losses.argmin(), losses.shape[0]).to(losses)


def copies(weights: Tensors, names: list[str], count: int, shuffle: bool) -> Tensors:
    """Return so many copies of these weights, stacked; with ``shuffle`` each has the numbers in another order."""
    stacked: Tensors = {}
    for place, name in enumerate(names):
        value = weights[name]
        every = [value] * count
        if shuffle:
            every = [shuffled(value, Stream(model + 1, "ifca", place)) for model in range(count)]
        stacked[name] = torch.stack(every)
    if shuffle and all(bool((value == weights[name]).all()) for name, value in stacked.items()):
        raise FedskewError(
            "ifca with start=random needs models that differ at first, and here the numbers of every tensor are equal: "
            "use start=updates"
        )
    return stacked


def shuffled(value: Tensor, stream: Stream) -> Tensor:
    """Return the numbers of a tensor in another order."""
    order = torch.from_numpy(stream.permutation(value.numel())).to(value.device)
    return value.flatten()[order].view_as(value)


def weighted(shares: Tensor, stacked: Tensor) -> Tensor:
    """Return the sum of some tensors of one stack, each times its share."""
    result: Tensor = torch.tensordot(shares.to(stacked), stacked, dims=1)
    return result


def clusters_by_cosine(rows: Tensor, count: int) -> Tensor:
    """Return which of so many clusters each row belongs to, by spherical k-means; none of them is empty.

    The first centre is the first row, each further one the row that is least similar to all centres so far.

    >>> clusters_by_cosine(torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.1]]), 2).tolist()
    [0, 1, 0]
    """
    lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    unit = rows / torch.where(lengths > 0, lengths, 1.0)
    chosen = [0]
    for _ in range(1, count):
        nearest = (unit @ unit[chosen].T).amax(1)
        nearest[chosen] = torch.inf
        chosen.append(int(nearest.argmin()))
    centres = unit[chosen]
    for _ in range(_ITERATIONS):
        similar = unit @ centres.T
        similar[chosen, range(count)] = torch.inf  # so that no cluster is ever empty
        cluster = similar.argmax(1)
        centres = torch.stack([unit[cluster == i].mean(0) for i in range(count)])
        centres = torch.nn.functional.normalize(centres, dim=1)
    return cluster
