"""Label holdings for a server that schedules samples: with labels, or with placeholders from a private protocol."""

import json
from dataclasses import astuple, replace

import numpy as np
import torch
from torch import Tensor

from fedskew.algorithms.topologies import Scheduled
from fedskew.core.streams import Stream
from fedskew.core.trees import Tensors
from fedskew.data.federation import Federation
from fedskew.data.partition import Partition
from fedskew.data.targets import Targets
from fedskew.fleet.clock import transfer_seconds
from fedskew.fleet.machines import Fleet
from fedskew.label_privacy.agreement import Agreement, Exchange, agree
from fedskew.sample_schedules.holdings import Holdings
from fedskew.topology.context import RoundContext
from fedskew.topology.outcome import RoundOutcome
from fedskew.topology.run_state import RunState

PROTOCOL = "protocol"  # name of the label protocol's result in a checkpoint


class LabelHolders:
    """Which client holds how many rows of each label, for a server that schedules samples; known once it is needed."""

    def __init__(
        self, fed: Federation, labels: Targets, context: RoundContext, state: RunState
    ) -> None:
        self.fed = fed
        self.labels = labels  # of the rows that are trained on, as the clients announce them
        self.context = context
        self.state = state
        self.agreement: Agreement | None = None  # the result of the label protocol
        self._holdings: Holdings | None = None

    def holdings(self) -> Holdings:
        """Return the label holdings of all clients, for topologies with a sample schedule."""
        self.find()
        assert self._holdings
        return self._holdings

    def find(self, agreed: Agreement | None = None) -> None:
        """Find the label holdings, if the topology has a sample schedule and they are not known yet.

        With ``secure`` that takes a protocol between all clients and the server; ``agreed`` is its result from a
        checkpoint, and then it is not run again.
        """
        topology = self.context.algorithm.topology(0)
        if not isinstance(topology, Scheduled) or self._holdings:
            return
        self._holdings, self.agreement = label_holdings(
            self.fed,
            self.labels,
            self.context.job.partition,
            topology,
            self.context.settings.seed,
            agreed,
        )
        topology.check_labels(self._holdings)
        participation = self.context.participation
        if self.agreement and self.state.round == 0:
            participation.clock = protocol_seconds(self.agreement, participation.fleet)

    def checkpoint(self) -> Tensors:
        """Return the result of the label protocol, if it was run."""
        if self.agreement:
            return {PROTOCOL: packed(self.agreement)}
        return {}

    def restore(self, flat: Tensors) -> None:
        """Restore what ``checkpoint`` returned."""
        if PROTOCOL in flat:
            self.find(unpacked(flat[PROTOCOL]))

    def with_protocol(self, outcome: RoundOutcome) -> RoundOutcome:
        """Return the outcome of the first round with the bytes of the label protocol before it."""
        if not self.agreement:
            return outcome
        down, up = protocol_bytes(self.agreement)
        return replace(
            outcome, bytes_down=outcome.bytes_down + down, bytes_up=outcome.bytes_up + up
        )


def label_holdings(
    fed: Federation,
    labels: Targets,
    trained_on: Partition,
    topology: Scheduled,
    seed: int,
    agreed: Agreement | None = None,
) -> tuple[Holdings, Agreement | None]:
    """Return the label holdings of all clients; with ``secure`` by placeholders, found without disclosing labels.

    ``agreed`` is the result of an earlier run of the protocol, if there is one.
    """
    classes = len(fed.data.classes)
    # Targets that are not classes: a method that uses labels was refused, and for others all rows are of one class
    if fed.data.target != "class":
        labels = np.zeros(len(labels), dtype=np.int64)
        classes = 1
    plain = Holdings.of(trained_on, labels, classes)
    if not topology.secure:
        return plain, None
    agreed = agreed or agree(
        _counts_of_clients(plain),
        label_range=classes,
        stream=Stream(seed, "placeholders"),
        weighted=topology.label_access == "shares",
        round_totals=topology.round_totals,
    )
    placeholder = np.zeros(classes, dtype=np.int64)  # labels that no client has are never looked up
    for held in agreed.placeholders:
        for label, name in held.items():
            placeholder[label] = name
    secret = Holdings.of(trained_on, placeholder[labels], len(agreed.holders))
    return _with_agreed_numbers(secret, agreed), agreed


def _with_agreed_numbers(secret: Holdings, agreed: Agreement) -> Holdings:
    """Return holdings by placeholders with the totals or shares of labels that the server has learnt."""
    if agreed.counts is not None:
        totals = np.array([agreed.counts[name] for name in range(len(agreed.counts))])
        return replace(secret, totals=totals)
    assert agreed.shares is not None
    shares = np.zeros(secret.counts.shape)
    for client, shares_of_client in enumerate(agreed.shares):
        shares[client, list(shares_of_client)] = list(shares_of_client.values())
    return replace(secret, shares=shares)


def _counts_of_clients(holdings: Holdings) -> list[dict[int, int]]:
    """Return how many rows of each of its labels every client has."""
    counts = []
    for row in holdings.counts:
        counts.append({int(label): int(row[label]) for label in np.flatnonzero(row)})
    return counts


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
    counts = plain["counts"]
    if counts is not None:
        counts = dict(counts)
    shares = plain["shares"]
    if shares is not None:
        shares = tuple(map(dict, shares))
    waves = []
    for wave in plain["waves"]:
        waves.append(tuple(Exchange(*exchange) for exchange in wave))
    return Agreement(
        tuple(map(dict, plain["placeholders"])),
        counts,
        shares,
        plain["seconds"],
        plain["bytes_sent"],
        tuple(waves),
    )


def protocol_bytes(agreed: Agreement) -> tuple[int, int]:
    """Return the bytes that the label protocol sends down to the clients and up to the server."""
    down = 0
    up = 0
    for wave in agreed.waves:
        for exchange in wave:
            down += exchange.bytes_down
            up += exchange.bytes_up
    return down, up


def protocol_seconds(agreed: Agreement, fleet: Fleet) -> float:
    """Return how long the label protocol takes on the virtual clock: the slowest client of each wave decides.

    Transfer times are the fleet's. Work is counted in vectors of a fixed cost each, and the server's own work is added;
    the same seed gives the same seconds.
    """
    total = 0.0
    for wave in agreed.waves:
        machines = fleet.machines(np.array([exchange.client for exchange in wave]))
        down = np.array([exchange.bytes_down for exchange in wave])
        up = np.array([exchange.bytes_up for exchange in wave])
        work = np.array([exchange.seconds for exchange in wave])
        taken = transfer_seconds(machines, down, up) + work
        total += float(taken.max()) + sum(exchange.then for exchange in wave)
    return total
