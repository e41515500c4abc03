"""Stratify: a label schedule determines which sample the model sees next; and SFL, the sequential baseline."""

from dataclasses import dataclass
from typing import Annotated, Literal

from fedskew.algorithms.contract import Algorithm, algorithms
from fedskew.algorithms.selection import ClientPool
from fedskew.algorithms.topologies import LabelAccess, Sequential, Synchronous, Topology
from fedskew.core.errors import FedskewError
from fedskew.core.registry import AtLeastOne, Positive
from fedskew.core.streams import Ints, Stream, substream
from fedskew.sample_schedules.holdings import Holdings
from fedskew.sample_schedules.label_schedule import frequencies, label_schedule
from fedskew.sample_schedules.sample_schedule import (
    SampleSchedule,
    schedule_batches,
    schedule_clients,
    schedule_singles,
)


@dataclass(frozen=True)
class Stratified(Algorithm):
    """Base of the Stratify methods: a round is one epoch of the label schedule."""

    selection: Literal["uniform", "weighted"] = "uniform"
    frequency: Literal["uniform", "proportional"] = "uniform"
    per_label: Annotated[int | None, AtLeastOne] = None
    cap: Annotated[int | None, AtLeastOne] = None
    reuse: bool = False
    secure: bool = False
    round_totals: Annotated[int, AtLeastOne] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reuse and self.frequency == "proportional":
            raise FedskewError(
                f"algorithm {self.label()}: reuse=true with frequency=proportional, where no label occurs more often "
                "than it has samples: leave one of the two out"
            )
        if self.round_totals > 1 and not self.secure:
            raise FedskewError(
                f"algorithm {self.label()}: round_totals={self.round_totals} rounds what secure=true tells of labels: "
                "add it, or leave it at 1"
            )

    def _synchronous(self) -> Synchronous:
        return Synchronous(
            self._in_batches,
            self._label_access,
            self._check_labels,
            self._counts_labels,
            secure=self.secure,
            round_totals=self.round_totals,
        )

    @property
    def _counts_labels(self) -> bool:
        """Return whether the schedule depends on how often each label occurs."""
        return self.per_label is None or self.frequency == "proportional"

    @property
    def _label_access(self) -> LabelAccess:
        if self.selection == "weighted":
            return "shares"
        return "counts"

    def _check_labels(self, holdings: Holdings) -> None:
        """Raise an error if a label would be scheduled more often than it has samples, where counts are known."""
        if holdings.shares is None:
            self._frequencies(holdings, self.per_label)

    def label_schedule(self, holdings: Holdings, stream: Stream) -> Ints:
        """Return the labels of an epoch (section III-A).

        Where clients are unavailable, ``per_label`` is at most the number of samples of the rarest label, unless
        samples are reused.
        """
        held = holdings.known
        # Counts are not known: labels without samples are skipped later
        if holdings.shares is not None:
            return label_schedule((held > 0) * (self.per_label or 0), stream)
        least = int(held[held > 0].min(initial=held.max()))
        if self.reuse or self.per_label is None:
            often = self.per_label
        else:
            often = min(self.per_label, least)
        return label_schedule(self._frequencies(holdings, often), stream)

    def _frequencies(self, holdings: Holdings, per_label: int | None) -> Ints:
        return frequencies(
            holdings.known,
            frequency=self.frequency,
            per_label=per_label,
            cap=self.cap,
            reuse=self.reuse,
        )

    def _in_batches(self, holdings: Holdings, pool: ClientPool, stream: Stream) -> SampleSchedule:
        """Return the schedule of Algorithm 4, with Algorithm 2 for every batch."""
        labels = self.label_schedule(holdings, substream(stream, 0))
        return schedule_batches(
            holdings,
            labels,
            selection=self.selection,
            batch_size=pool.batch_size,
            stream=substream(stream, 1),
            reuse=self.reuse,
        )


@algorithms.register("stratify-batch")
@dataclass(frozen=True)
class StratifyBatch(Stratified):
    """Stratify, batch-data learning (Algorithms 2 and 4): every batch is drawn by label over all clients.

    The labels of an epoch, each ``f_l`` times, are shuffled and divided into batches of ``batch_size``. For each
    label of a batch a holder is drawn, which uses one unused sample of it. Each client sends the sum of its
    gradients; the server adds the sums, divides once by the batch size and takes one step of the optimiser. All
    clients hold the same weights, and BatchNorm normalises over the whole batch (section III-E), so a round is an
    epoch of central SGD on the same samples.

    Args:
        selection: how the client for a label is drawn: uniformly from its holders, or by their shares of its samples
            (weighted)
        frequency: every label equally often (uniform), or as often as it has samples, up to cap (proportional)
        per_label: how often with uniform frequency; when left out, as often as the rarest label has samples (an epoch
            then takes 19,229 of Covertype's 581,012), with reuse the mean number of a label (an epoch takes as many as
            there are)
        cap: how often at most with proportional frequency
        reuse: a client's samples of a label come again within an epoch, in a new order, once all were used
        secure: the server gets placeholders for labels, agreed on under encryption, and sums over the clients of a
            step (needs fedskew[he]); docs/threat-model.md says what these disclose
        round_totals: with secure, clients round their rows of each label to a multiple of this before these are added
            up

    >>> type(StratifyBatch().topology(0)).__name__
    'Synchronous'
    """

    requires = frozenset({"optimizer_state"})  # never reset

    def topology(self, round: int) -> Topology:
        """Return synchronous steps on batches of the label schedule."""
        return self._synchronous()


@algorithms.register("stratify-single")
@dataclass(frozen=True)
class StratifySingle(Stratified):
    """Stratify, single-sample learning (Algorithms 1 and 3): the model is sent to a client that holds the next labels.

    The labels of an epoch, each ``f_l`` times, are shuffled and divided into chunks. Within a chunk the model is
    always sent to a client that has samples for the longest run of the next labels, takes one step for each with one
    unused sample, and is passed on. A label whose samples a client has used up returns to the schedule. Which clients
    the paper's "retaining" keeps for that search (Algorithm 1, lines 3-4) is not stated: see ``retain``.

    Args:
        selection: how the client for a run is drawn: uniformly from those with the longest, or by their shares of its
            first label (weighted)
        frequency: every label equally often (uniform), or as often as it has samples, up to cap (proportional)
        per_label: how often with uniform frequency; when left out, as often as the rarest label has samples (an epoch
            then takes 19,229 of Covertype's 581,012), with reuse the mean number of a label (an epoch takes as many as
            there are)
        cap: how often at most with proportional frequency
        reuse: a client's samples of a label come again within an epoch, in a new order, once all were used
        secure: the server gets placeholders for labels, agreed on under encryption, and sums over the clients of a
            step (needs fedskew[he]); docs/threat-model.md says what these disclose
        round_totals: with secure, clients round their rows of each label to a multiple of this before these are added
            up
        chunk: labels that are planned together; with 1 the model is passed on at random
        retain: how many holders of each label are searched for the longest run: all, or a number drawn for every chunk

    >>> type(StratifySingle().topology(0)).__name__
    'Sequential'
    """

    requires = frozenset({"optimizer_state"})  # never reset

    chunk: Annotated[int, AtLeastOne] = 5
    retain: Annotated[Literal["all"] | int, AtLeastOne] = "all"

    def topology(self, round: int) -> Topology:
        """Return the topology in which one model is passed between clients, with one step for each sample."""
        return self._sequential()

    def _sequential(self, lr_scale: float | None = 1.0) -> Sequential:
        return Sequential(
            self._single_samples,
            self._label_access,
            self._check_labels,
            self._counts_labels,
            lr_scale=lr_scale,
            secure=self.secure,
            round_totals=self.round_totals,
            single_samples=True,
        )

    def _single_samples(
        self, holdings: Holdings, pool: ClientPool, stream: Stream
    ) -> SampleSchedule:
        """Return the schedule of Algorithm 3, with Algorithm 1 for every chunk."""
        labels = self.label_schedule(holdings, substream(stream, 0))
        return schedule_singles(
            holdings,
            labels,
            selection=self.selection,
            chunk=self.chunk,
            stream=substream(stream, 1),
            retain=None if self.retain == "all" else self.retain,
            reuse=self.reuse,
        )


@algorithms.register("stratify-hybrid")
@dataclass(frozen=True)
class StratifyHybrid(StratifySingle):
    """Stratify, batches first and single samples afterwards (end of section III-D).

    A step on one sample takes ``lr / batch_size``, unless ``single_lr`` says otherwise: the step that the sample
    would have had in its batch.

    Args:
        batch_rounds: rounds of batch-data learning before single-sample learning begins
        single_lr: learning rate of single samples, as a multiple of lr; 1 / batch_size when left out

    >>> [type(StratifyHybrid(batch_rounds=1).topology(round)).__name__ for round in range(2)]
    ['Synchronous', 'Sequential']
    """

    batch_rounds: Annotated[int, AtLeastOne] = 5
    single_lr: Annotated[float | None, Positive] = None

    def topology(self, round: int) -> Topology:
        """Return synchronous steps in the first rounds, then single-sample steps with a smaller learning rate."""
        if round < self.batch_rounds:
            return self._synchronous()
        return self._sequential(self.single_lr)


@algorithms.register("sfl")
@dataclass(frozen=True)
class SFL(Algorithm):
    """Sequential federated learning (a baseline of Stratify): one model visits all clients, in random order per round.

    Every client trains it on all of its rows for ``epochs`` passes, with a fresh optimiser, and passes it on.

    >>> type(SFL().topology(0)).__name__
    'Sequential'
    """

    def topology(self, round: int) -> Topology:
        """Return one model that is passed from client to client."""
        return Sequential(_all_clients)


def _all_clients(holdings: Holdings, pool: ClientPool, stream: Stream) -> SampleSchedule:
    return schedule_clients(holdings, epochs=pool.epochs, batch_size=pool.batch_size, stream=stream)
