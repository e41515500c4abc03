"""Label holdings for a server that schedules samples: with labels, or with placeholders from a private protocol."""

import json
from dataclasses import astuple, replace

import numpy as np
import torch
from torch import Tensor

from fedskew.algorithms.topologies import Scheduled
from fedskew.core.config import Settings
from fedskew.core.streams import Stream
from fedskew.data.federation import Federation
from fedskew.data.partition import Partition
from fedskew.fleet.clock import transfer_seconds
from fedskew.fleet.machines import Fleet
from fedskew.label_privacy.agreement import Agreement, Exchange, agree
from fedskew.sample_schedules.holdings import Holdings


def label_holdings(
    fed: Federation,
    trained_on: Partition,
    topology: Scheduled,
    settings: Settings,
    agreed: Agreement | None = None,
) -> tuple[Holdings, Agreement | None]:
    """Return the label holdings of all clients; with ``secure`` by placeholders, found without disclosing labels.

    ``agreed`` is the result of an earlier run of the protocol, if there is one.
    """
    labels = fed.train.y
    classes = len(fed.data.classes)
    # No method that uses labels gets here; to the others all rows are of one class
    if fed.data.target != "class":
        labels = np.zeros(len(fed.train), dtype=np.int64)
        classes = 1
    plain = Holdings.of(trained_on, labels, classes)
    if not settings.secure:
        return plain, None
    counts = []
    for row in plain.counts:
        counts.append({int(k): int(row[k]) for k in np.flatnonzero(row)})
    agreed = agreed or agree(
        counts,
        label_range=classes,
        stream=Stream(settings.seed, "placeholders"),
        weighted=topology.label_access == "shares",
        round_totals=settings.round_totals,
    )
    placeholder = np.zeros(classes, dtype=np.int64)  # labels that no client has are never looked up
    for held in agreed.placeholders:
        for label, name in held.items():
            placeholder[label] = name
    secret = Holdings.of(trained_on, placeholder[labels], len(agreed.holders))
    if agreed.counts is not None:
        return replace(
            secret, totals=np.array([agreed.counts[name] for name in range(len(agreed.counts))])
        ), agreed
    assert agreed.shares is not None
    shares = np.zeros(secret.counts.shape)
    for client, shares_of in enumerate(agreed.shares):
        shares[client, list(shares_of)] = list(shares_of.values())
    return replace(secret, shares=shares), agreed


def packed(agreed: Agreement) -> Tensor:
    """Return an agreement as bytes, for a checkpoint."""
    plain = vars(agreed) | {
        "placeholders": [list(held.items()) for held in agreed.placeholders],
        "counts": agreed.counts and list(agreed.counts.items()),
        "shares": agreed.shares and [list(shares_of.items()) for shares_of in agreed.shares],
        "waves": [[astuple(exchange) for exchange in wave] for wave in agreed.waves],
    }
    return torch.from_numpy(np.frombuffer(json.dumps(plain).encode(), dtype=np.uint8).copy())


def unpacked(content: Tensor) -> Agreement:
    """Return the agreement that ``packed`` turned into bytes.

    >>> wave = (Exchange(1, 2, 3, 0.5, 0.25),)
    >>> agreed = Agreement(({7: 0}, {7: 0, 3: 1}), {0: 9, 1: 4}, None, {"keys": 0.1}, {"server": 5}, (wave,))
    >>> unpacked(packed(agreed)) == agreed
    True
    """
    plain = json.loads(content.cpu().numpy().tobytes())
    placeholders, counts, shares, waves = (
        plain[name] for name in ("placeholders", "counts", "shares", "waves")
    )
    return Agreement(
        tuple(map(dict, placeholders)),
        None if counts is None else dict(counts),
        None if shares is None else tuple(map(dict, shares)),
        plain["seconds"],
        plain["bytes_sent"],
        tuple(tuple(Exchange(*exchange) for exchange in wave) for wave in waves),
    )


def protocol_bytes(agreed: Agreement) -> tuple[int, int]:
    """Return the bytes that the label protocol sends down to the clients and up to the server."""
    exchanges = []
    for wave in agreed.waves:
        for exchange in wave:
            exchanges.append(exchange)
    return sum(exchange.bytes_down for exchange in exchanges), sum(
        exchange.bytes_up for exchange in exchanges
    )


def protocol_seconds(agreed: Agreement, fleet: Fleet) -> float:
    """Return how long the label protocol takes on the virtual clock: the slowest client of each wave decides.

    Transfer times are the fleet's. Work is counted in vectors of a fixed cost each, and the server's own work is added;
    the same seed gives the same seconds.
    """
    total = 0.0
    for wave in agreed.waves:
        machines = fleet.machines(np.array([exchange.client for exchange in wave]))
        down, up, work = (
            np.array([getattr(exchange, name) for exchange in wave])
            for name in ("bytes_down", "bytes_up", "seconds")
        )
        taken = transfer_seconds(machines, down, up) + work
        total += float(taken.max()) + sum(exchange.then for exchange in wave)
    return total
