"""Who holds which label, as the server of a walk knows it: the labels themselves, or placeholders agreed on in secret."""

from dataclasses import replace

import numpy as np

from fedskew.algorithms.base import Algorithm
from fedskew.config import Settings
from fedskew.engine.dispatch import Call
from fedskew.privacy.agreement import Agreement, agree
from fedskew.skew.federation import Federation
from fedskew.skew.partition import Partition
from fedskew.stratify.holdings import Holdings
from fedskew.streams import Stream


def who_holds_what(
    fed: Federation, trained_on: Partition, algorithm: Algorithm, settings: Settings
) -> tuple[Holdings, Agreement | None]:
    """The holdings of all clients; with ``secure`` by placeholders, which the parties find without telling their labels."""
    labels, classes = fed.train.y, len(fed.data.classes)
    plain = Holdings.of(trained_on, labels, classes)
    if not settings.secure:
        return plain, None
    counts = [{int(k): int(row[k]) for k in np.flatnonzero(row)} for row in plain.counts]
    agreed = agree(
        counts,
        label_range=classes,
        stream=Stream(settings.seed, "placeholders"),
        weighted=algorithm.reads() == "shares",
        round_totals=settings.round_totals,
    )
    placeholder = np.zeros(classes, dtype=np.int64)  # labels that nobody has are never looked up
    for held in agreed.placeholders:
        for label, name in held.items():
            placeholder[label] = name
    secret = Holdings.of(trained_on, placeholder[labels], len(agreed.holders))
    if agreed.counts is not None:
        return replace(secret, totals=np.array([agreed.counts[name] for name in range(len(agreed.counts))])), agreed
    assert agreed.shares is not None
    shares = np.zeros(secret.counts.shape)
    for client, told in enumerate(agreed.shares):
        shares[client, list(told)] = list(told.values())
    return replace(secret, shares=shares), agreed


def with_protocol(call: Call, agreed: Agreement) -> Call:
    """The traffic of the label protocol on top of a call's."""
    down = agreed.bytes_sent.get("server", 0)
    up = sum(agreed.bytes_sent.values()) - down
    return replace(call, others_down=call.others_down + down, others_up=call.others_up + up)
