"""Cells of a table that need no training: properties of a partition, of a label schedule, of the label protocol."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

import numpy as np
import torch

from fedskew.core.streams import Stream
from fedskew.data.dataset import Rows
from fedskew.heterogeneity.heterogeneity import levels
from fedskew.models.build import build
from fedskew.nodes.split_folder import read_origin
from fedskew.runs.federate import load
from fedskew.skew.partitioning import partition_rows
from fedskew.tasks.classification import Classification

Numbers = dict[str, float]


def distribution(data: str, skew: str, clients: int, seed: int) -> Numbers:
    """Return how many rows of each class clients have, and what that comes to."""
    rows = load(data).train
    partition = partition_rows(skew, rows, clients, seed).partition
    counts = partition.counts(rows.y, int(rows.y.max()) + 1)
    shares = counts / counts.sum(axis=1, keepdims=True)
    return {
        "largest_class": float(shares.max(axis=1).mean()),
        "two_largest_classes": float(np.sort(shares, axis=1)[:, -2:].sum(axis=1).mean()),
        "classes": float((counts > 0).sum(axis=1).mean()),
        "hellinger": levels(rows, partition, "labels")["hellinger"],
        **{f"rows_{client}_{label}": float(n) for (client, label), n in np.ndenumerate(counts)},
    }


def heterogeneity(
    data: str, skew: str, clients: int, reading: Literal["mean", "largest", "fedartml"], seed: int
) -> Numbers:
    """Return Hellinger and Wasserstein distances between clients, of features and of labels, in one reading.

    Distances of features are their mean over features, those of the most skewed feature, or as in FedArtML.
    """
    rows = read_origin(data).data.train
    partition = partition_rows(skew, rows, clients, seed).partition
    if reading == "fedartml":
        convention: Literal["mean", "fedartml"] = "fedartml"
    else:
        convention = "mean"
    found = {}
    for of in ("features", "labels"):
        if (of, reading) == ("features", "largest"):
            parts = _columns(rows)
        else:
            parts = [rows]
        all_levels = [levels(part, partition, of, convention=convention) for part in parts]
        for name in ("hellinger", "wasserstein"):
            found[f"{of}_{name}"] = max(level[name] for level in all_levels)
    return found


def _columns(rows: Rows) -> list[Rows]:
    """Return the rows with each feature that varies alone."""
    result: list[Rows] = []
    for column in np.flatnonzero(np.ptp(rows.x, axis=0)):
        result.append(replace(rows, x=rows.x[:, [column]]))
    return result


def encryption(classes: int, clients: int, seed: int) -> Numbers:
    """Return the seconds of the parts of the encrypted label protocol; each client holds half of the classes."""
    from fedskew.label_privacy.agreement import agree

    each = classes // 2
    held = []
    for k in range(clients):
        held.append({(k * each + j) % classes: 100 + k for j in range(each)})
    seconds = agree(held, label_range=classes, stream=Stream(seed, "secret labels")).seconds
    names = {
        "unique list": "unique_seconds",
        "mapping": "mapping_seconds",
        "counts": "counting_seconds",
    }
    return {name: seconds[part] for part, name in names.items()}


def schedule(data: str, batch: int, batches: int, steps: int, seed: int) -> Numbers:
    """Return the variance of gradients of batches drawn by label, and whether their mean is that of balanced classes.

    Logistic regression, after some steps of SGD on random batches. ``ratio`` is the trace of the covariance of the
    gradients of batches with equally many rows of every class, over that of random batches. ``bias`` is the distance
    of the mean of the former from the mean of the classes' gradients, in standard errors.
    """
    loaded = load(data)
    x = torch.from_numpy(loaded.train.x).flatten(1)
    y = torch.from_numpy(loaded.train.y)
    model = build("logreg", loaded.shape, len(loaded.classes), seed=seed)
    task = Classification()
    weight, bias = (parameter.detach().clone() for parameter in model.parameters())
    draw = np.random.default_rng(seed)

    def gradient(rows: "np.ndarray[tuple[int, ...], np.dtype[np.int64]]") -> torch.Tensor:
        inputs = x[rows]
        targets = y[rows]
        slopes = task.slopes(inputs @ weight.T + bias, targets, 1 / len(rows))
        return torch.cat([(slopes.T @ inputs).flatten(), slopes.sum(0)])

    size = weight.numel()
    for _ in range(steps):
        step = gradient(draw.integers(0, len(x), batch))
        weight -= 0.1 * step[:size].view_as(weight)
        bias -= 0.1 * step[size:]
    pools = []
    for label in range(len(loaded.classes)):
        pools.append(np.flatnonzero(loaded.train.y == label))
    by_label = []
    for _ in range(batches):
        by_label.append(
            gradient(np.concatenate([draw.choice(pool, batch // len(pools)) for pool in pools]))
        )
    at_random = [gradient(draw.integers(0, len(x), batch)) for _ in range(batches)]
    means = torch.stack([gradient(pool) for pool in pools]).mean(0)
    variances = []
    for found in (by_label, at_random):
        variances.append(float(torch.stack(found).var(0).sum()))
    apart = float((torch.stack(by_label).mean(0) - means).norm())
    return {
        "ratio": variances[0] / variances[1],
        "bias": apart / float(np.sqrt(variances[0] / batches)),
    }


MEASUREMENTS: Mapping[str, Callable[..., Numbers]] = {
    "distribution": distribution,
    "heterogeneity": heterogeneity,
    "encryption": encryption,
    "schedule": schedule,
}
