"""Cells of a table that need no training: properties of a partition, of a label schedule, of the label protocol."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

import numpy as np
import torch

from fedskew.algorithms.stratify import StratifySingle
from fedskew.core.streams import Stream, substream
from fedskew.data.dataset import Rows
from fedskew.heterogeneity.heterogeneity import levels
from fedskew.models.build import build
from fedskew.nodes.split_folder import read_origin
from fedskew.sample_schedules.holdings import Holdings
from fedskew.sample_schedules.label_pools import Selection
from fedskew.sample_schedules.sample_schedule import schedule_singles
from fedskew.skew.federate import load
from fedskew.skew.partitioning import partition_rows
from fedskew.tasks.classification import Classification

Numbers = dict[str, float]


def distribution(data: str, skew: str, clients: int, seed: int) -> Numbers:
    """Return how many rows of each class clients have, and what that comes to."""
    rows = load(data).train
    partition = partition_rows(skew, rows, clients, seed).partition
    counts = partition.counts(rows.y, int(rows.y.max()) + 1)
    shares = counts / counts.sum(axis=1, keepdims=True)
    found = {
        "largest_class": float(shares.max(axis=1).mean()),
        "two_largest_classes": float(np.sort(shares, axis=1)[:, -2:].sum(axis=1).mean()),
        "classes": float((counts > 0).sum(axis=1).mean()),
        "hellinger": levels(rows, partition, "labels")["hellinger"],
    }
    for (client, label), count in np.ndenumerate(counts):
        found[f"rows_{client}_{label}"] = float(count)
    return found


def heterogeneity(
    data: str, skew: str, clients: int, reading: Literal["mean", "largest", "fedartml"], seed: int
) -> Numbers:
    """Return Hellinger and Wasserstein distances between clients, of features and of labels, in one reading.

    Distances of features are their mean over features, those of the most skewed feature, or as in FedArtML.
    """
    rows = read_origin(data).data.train
    partition = partition_rows(skew, rows, clients, seed).partition
    convention: Literal["mean", "fedartml"] = "mean"
    if reading == "fedartml":
        convention = "fedartml"
    found = {}
    for view in ("features", "labels"):
        measured_rows = [rows]
        if (view, reading) == ("features", "largest"):
            measured_rows = _each_feature_alone(rows)
        hellinger, wasserstein = [], []
        for part in measured_rows:
            measured = levels(part, partition, view, convention=convention)
            hellinger.append(measured["hellinger"])
            wasserstein.append(measured["wasserstein"])
        found[f"{view}_hellinger"] = max(hellinger)
        # sqrt(100) times the distance of shares, which FedArtML clips at 1
        found[f"{view}_hellinger_of_percentages"] = min(10 * max(hellinger), 1.0)
        found[f"{view}_wasserstein"] = max(wasserstein)
    return found


def _each_feature_alone(rows: Rows) -> list[Rows]:
    """Return the rows with only one of their features, for each feature that varies."""
    varying = np.flatnonzero(np.ptp(rows.x, axis=0))
    return [replace(rows, x=rows.x[:, [column]]) for column in varying]


def encryption(classes: int, clients: int, seed: int) -> Numbers:
    """Return the seconds of the parts of the encrypted label protocol; each client holds half of the classes."""
    from fedskew.label_privacy.agreement import agree

    each = classes // 2
    held = []
    for client in range(clients):
        first = client * each
        labels = [label % classes for label in range(first, first + each)]
        held.append(dict.fromkeys(labels, 100 + client))
    seconds = agree(held, label_range=classes, stream=Stream(seed, "secret labels")).seconds
    return {
        "unique_seconds": seconds["unique list"],
        "mapping_seconds": seconds["mapping"],
        "counting_seconds": seconds["counts"],
    }


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
    weight, bias = [parameter.detach().clone() for parameter in model.parameters()]
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
    by_label, at_random = [], []
    for _ in range(batches):
        balanced = [draw.choice(pool, batch // len(pools)) for pool in pools]
        by_label.append(gradient(np.concatenate(balanced)))
    for _ in range(batches):
        at_random.append(gradient(draw.integers(0, len(x), batch)))
    mean_of_classes = torch.stack([gradient(pool) for pool in pools]).mean(0)
    mean_by_label = torch.stack(by_label).mean(0)
    variance_by_label = float(torch.stack(by_label).var(0).sum())
    variance_at_random = float(torch.stack(at_random).var(0).sum())
    standard_error = float(np.sqrt(variance_by_label / batches))
    return {
        "ratio": variance_by_label / variance_at_random,
        "bias": float((mean_by_label - mean_of_classes).norm()) / standard_error,
    }


def transfers(
    data: str, skew: str, clients: int, selection: Selection, chunk: int, retain: int, seed: int
) -> Numbers:
    """Return how often the model is passed on in an epoch of single-sample learning, and what that spares.

    Labels have equal frequency. ``retain`` is the number of holders that are searched for each label, 0 for all. Spared
    are transfers beside those where every label is planned alone.
    """
    rows = load(data).train
    partition = partition_rows(skew, rows, clients, seed).partition
    holdings = Holdings.of(partition, rows.y, int(rows.y.max()) + 1)
    stream = Stream(seed, "walk", 0)
    labels = StratifySingle().label_schedule(holdings, substream(stream, 0))

    def visits(planned_together: int, searched: int | None) -> int:
        found = schedule_singles(
            holdings,
            labels,
            selection=selection,
            chunk=planned_together,
            stream=substream(stream, 1),
            retain=searched,
        )
        return len(found.visits) + len(found.idle)

    count = visits(chunk, retain or None)
    return {"transfers": float(count), "transfers_spared": 1 - count / visits(1, None)}


MEASUREMENTS: Mapping[str, Callable[..., Numbers]] = {
    "distribution": distribution,
    "heterogeneity": heterogeneity,
    "encryption": encryption,
    "schedule": schedule,
    "transfers": transfers,
}
