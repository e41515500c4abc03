"""Stratify: a schedule of labels decides what the model sees next, whoever holds it; and SFL, from client to client."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from fedskew.algorithms.contract import Algorithm, Labels, Roster, Topology, algorithms
from fedskew.core.errors import FedskewError
from fedskew.core.registry import AtLeastOne, Positive
from fedskew.core.streams import Ints, Stream
from fedskew.skew.deal import substream
from fedskew.topology.holdings import Holdings
from fedskew.topology.label_schedule import frequencies, label_schedule
from fedskew.topology.sample_schedule import Walk, walk_batch, walk_clients, walk_single


@dataclass(frozen=True)
class _Stratified(Algorithm):
    """One round is one epoch of the label schedule; the optimiser of the settings is the server's, and is never reset."""

    keeps_optimizer: ClassVar[bool] = True

    selection: Literal["uniform", "weighted"] = "uniform"
    frequency: Literal["uniform", "proportional"] = "uniform"
    per_label: Annotated[int | None, AtLeastOne] = None
    cap: Annotated[int | None, AtLeastOne] = None
    reuse: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reuse and self.frequency == "proportional":
            raise FedskewError(
                f"algorithm {self.label()}: reuse=true with frequency=proportional, where no label comes more often than it "
                "has samples: leave one of the two out"
            )

    def check(self, *, optimizer: str, per_round: int | None, secure: bool) -> None:
        """A server that is told shares cannot count."""
        if secure and self.reads() == "shares" and (self.per_label is None or self.frequency == "proportional"):
            raise FedskewError(
                "secure=true with selection=weighted tells the server shares of labels and no counts: use frequency=uniform "
                "and say with per_label= how often each label is to come"
            )

    def reads(self) -> Labels:
        """As the selection needs."""
        return "shares" if self.selection == "weighted" else "counts"

    def check_labels(self, holdings: Holdings) -> None:
        """A label cannot come more often than it has samples, unless these are used again; of shares nobody can tell."""
        if holdings.shares is None:
            self._frequencies(holdings, self.per_label)

    def schedule(self, holdings: Holdings, stream: Stream) -> Ints:
        """The label schedule of an epoch (section III-A); where clients are away, no label more often than all others can."""
        held = holdings.known
        if holdings.shares is not None:  # counts are not known: what nobody has any more is dropped on the way
            return label_schedule((held > 0) * (self.per_label or 0), stream)
        least = int(held[held > 0].min(initial=held.max()))
        often = self.per_label if self.reuse or self.per_label is None else min(self.per_label, least)
        return label_schedule(self._frequencies(holdings, often), stream)

    def _frequencies(self, holdings: Holdings, per_label: int | None) -> Ints:
        return frequencies(holdings.known, frequency=self.frequency, per_label=per_label, cap=self.cap, reuse=self.reuse)

    def in_batches(self, holdings: Holdings, roster: Roster, stream: Stream) -> Walk:
        """Algorithm 4, with Algorithm 2 for every batch."""
        schedule = self.schedule(holdings, substream(stream, 0))
        return walk_batch(
            holdings,
            schedule,
            selection=self.selection,
            batch_size=roster.batch_size,
            stream=substream(stream, 1),
            reuse=self.reuse,
        )


@algorithms.register("stratify-batch")
@dataclass(frozen=True)
class StratifyBatch(_Stratified):
    """Stratify, batch-data learning (Algorithms 2 and 4): every batch is drawn by label over all clients.

    The labels of an epoch, each ``f_l`` times, are shuffled and cut into batches of ``batch_size``. For each label of a batch
    a holder is drawn, gives one unused sample of it and the sum of its gradients; the server adds the sums up, divides once by
    the batch size and takes one step of the optimiser. All clients hold the same weights, and BatchNorm sees the whole batch
    (section III-E), so a round is an epoch of central SGD on the same samples.

    Args:
        selection: who serves a label: any of its holders (uniform), or by their shares of its samples (weighted)
        frequency: every label equally often (uniform), or as often as it has samples, up to cap (proportional)
        per_label: how often with uniform frequency; when left out, as often as the rarest label has samples (an epoch then
            takes 19,229 of Covertype's 581,012), with reuse the mean number of a label (an epoch takes as many as there are)
        cap: how often at most with proportional frequency
        reuse: a client's samples of a label come again within an epoch, in a new order, once all were used

    >>> StratifyBatch().topology(0)
    'lockstep'
    """

    def topology(self, round: int) -> Topology:
        """Gradients meet at every step."""
        return "lockstep"

    def walk(self, holdings: Holdings, roster: Roster, stream: Stream) -> Walk:
        """In batches, to the end of the schedule."""
        return self.in_batches(holdings, roster, stream)


@algorithms.register("stratify-single")
@dataclass(frozen=True)
class StratifySingle(_Stratified):
    """Stratify, single-sample learning (Algorithms 1 and 3): the model goes to whoever has the next label.

    The labels of an epoch, each ``f_l`` times, are shuffled and taken in chunks. Within a chunk the model always goes to a
    client that can serve the longest run of labels from there on, takes one step for each with one unused sample, and goes on.
    A label that a client has used up goes back into the schedule. Whom the paper's "retaining" keeps for that search
    (Algorithm 1, lines 3-4) it does not say: ``retain``.

    Args:
        selection: who serves a run: any of those with the longest (uniform), or by their shares of its first label (weighted)
        frequency: every label equally often (uniform), or as often as it has samples, up to cap (proportional)
        per_label: how often with uniform frequency; when left out, as often as the rarest label has samples (an epoch then
            takes 19,229 of Covertype's 581,012), with reuse the mean number of a label (an epoch takes as many as there are)
        cap: how often at most with proportional frequency
        reuse: a client's samples of a label come again within an epoch, in a new order, once all were used
        chunk: labels that are planned together; 1 is passing the model on at random
        retain: of which holders of each label the longest run is sought: all, or so many, drawn anew for every chunk

    >>> StratifySingle().topology(0)
    'chain'
    """

    one_by_one: ClassVar[bool] = True

    chunk: Annotated[int, AtLeastOne] = 5
    retain: Annotated[Literal["all"] | int, AtLeastOne] = "all"

    def topology(self, round: int) -> Topology:
        """The model is passed on."""
        return "chain"

    def walk(self, holdings: Holdings, roster: Roster, stream: Stream) -> Walk:
        """Algorithm 3, with Algorithm 1 for every chunk."""
        schedule = self.schedule(holdings, substream(stream, 0))
        return walk_single(
            holdings,
            schedule,
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

    A step on one sample takes ``lr / batch_size``, unless ``single_lr`` says otherwise: the step that the sample would have had
    in its batch.

    Args:
        batch_rounds: rounds of batch-data learning before single-sample learning begins
        single_lr: learning rate of single samples, as a multiple of lr; 1 / batch_size when left out

    >>> [StratifyHybrid(batch_rounds=1).topology(round) for round in range(2)]
    ['lockstep', 'chain']
    """

    batch_rounds: Annotated[int, AtLeastOne] = 5
    single_lr: Annotated[float | None, Positive] = None

    def topology(self, round: int) -> Topology:
        """Lock-step, then a chain."""
        return "lockstep" if round < self.batch_rounds else "chain"

    def pace(self, roster: Roster) -> float:
        """Smaller steps for single samples."""
        return 1.0 if self.topology(roster.round) == "lockstep" else self.single_lr or 1.0 / roster.batch_size

    def walk(self, holdings: Holdings, roster: Roster, stream: Stream) -> Walk:
        """One or the other."""
        if self.topology(roster.round) == "chain":
            return super().walk(holdings, roster, stream)
        return self.in_batches(holdings, roster, stream)


@algorithms.register("sfl")
@dataclass(frozen=True)
class SFL(Algorithm):
    """Sequential federated learning (a baseline of Stratify): one model through all clients in random order, each round anew.

    Every client trains it on all of its rows for ``epochs`` passes, with a fresh optimiser, and passes it on.

    >>> SFL().topology(0)
    'chain'
    """

    def topology(self, round: int) -> Topology:
        """The model is passed on."""
        return "chain"

    def walk(self, holdings: Holdings, roster: Roster, stream: Stream) -> Walk:
        """Client after client."""
        return walk_clients(holdings, epochs=roster.epochs, batch_size=roster.batch_size, stream=stream)
