"""Sample schedules: the samples of one epoch in order, one by one, in synchronous batches, or client by client."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.streams import Ints, Stream, substream
from fedskew.sample_schedules.holdings import Holdings
from fedskew.sample_schedules.label_pools import Pools, RowSupply, Selection, shuffle_within


@dataclass(frozen=True, eq=False)
class SampleSchedule:
    """The samples of one epoch in order; sample i is row ``rows[i]`` of client ``clients[i]``.

    Args:
        rows: row number of each sample in the data
        clients: client of each sample
        ends: where each optimiser step ends, in samples
        visits: where each visit of the model at one client ends, in samples; in batch learning, where the model is at
            many clients at once, the same as ``ends``
        returned: number of placeholders that a client had no rows left for; they were put back, or given to another
        idle: clients that got the model and had no rows left, once for each time; that is not a visit
    """

    rows: Ints
    clients: Ints
    ends: Ints
    visits: Ints
    returned: int = 0
    idle: Ints = field(default_factory=lambda: _ints([]))


def schedule_singles(
    holdings: Holdings,
    schedule: Ints,
    *,
    selection: Selection,
    chunk: int,
    stream: Stream,
    retain: int | None = None,
    reuse: bool = False,
) -> SampleSchedule:
    """Return the schedule of single-sample learning, one step per sample (Stratify, Algorithms 1 and 3).

    The schedule is processed in chunks; within one, the model is sent to a client with the longest run of the next
    placeholders. A chunk is planned as soon as fewer than two tasks are queued, before their clients can report
    used-up placeholders. Such a placeholder goes back into the schedule at a random position; one of which no client
    has rows left is dropped. With ``reuse`` a client uses its rows again instead.

    "Update client pool by retaining clients using uniform or weighted client selection" (Algorithm 1, lines 3-4) does
    not say which are retained, nor how many. Two readings: all that may still have rows; or ``retain`` of them for
    each placeholder, drawn for every chunk. Of those with the longest run one is drawn. Both draws are uniform, or by
    the clients' shares of the global count of the placeholder (for a run, of its first).

    >>> both = Holdings(np.array([[2, 0], [1, 2]]), flat=np.arange(5))
    >>> schedule, stream = np.array([0, 1, 1, 0, 0]), Stream(0, "demo")
    >>> found = schedule_singles(both, schedule, selection="uniform", chunk=3, stream=stream)
    >>> found.clients.tolist(), found.visits.tolist()  # only client 1 has 0, 1, 1
    ([1, 1, 1, 0, 0], [3, 5])
    """
    _check(holdings, "chunk", chunk)
    if retain is not None:
        _check(holdings, "retain", retain)
    supply = RowSupply(holdings, substream(stream, 0), reuse)
    pools = Pools(holdings, selection, substream(stream, 1))
    todo: list[int] = schedule.tolist()
    planned = 0  # part of the schedule that is done or queued
    queue: deque[tuple[int, list[int]]] = deque()
    taken: list[int] = []
    stops: list[tuple[int, int]] = []  # each task's client, and the samples so far
    while planned < len(todo) or queue:
        if len(queue) < 2 and planned < len(todo):
            queue.extend(_tasks(todo[planned : planned + chunk], pools, retain))
            planned = min(planned + chunk, len(todo))
        if not queue:  # no client has rows left for this chunk
            continue
        client, wanted = queue.popleft()
        for placeholder in wanted:
            position = supply.take(client, placeholder)
            if position >= 0:
                taken.append(position)
            else:
                todo.insert(planned + pools.below(len(todo) - planned + 1), placeholder)
                pools.remove(client, placeholder)
        stops.append((client, len(taken)))
    return _passed_on(supply.rows(_ints(taken)), stops, returned=len(todo) - len(schedule))


def longest_run(pools: Mapping[int, int], placeholders: Sequence[int]) -> tuple[int, int]:
    """Return the clients with the longest run of placeholders from the first on, and its length (Algorithm 1, 6-22).

    Pools and result are bit sets of clients; the first pool must not be empty. The clients with the longest run are the
    intersection of the pools before the placeholder at which it would become empty.

    >>> longest_run({0: 0b011, 1: 0b110, 2: 0b001}, [0, 1, 1, 2])  # client 1 has the first three
    (2, 3)
    """
    candidates = pools[placeholders[0]]
    for length, placeholder in enumerate(placeholders):
        common = candidates & pools[placeholder]
        if not common:
            return candidates, length
        candidates = common
    return candidates, len(placeholders)


def _tasks(
    chunk: Sequence[int], pools: Pools, retain: int | None
) -> Iterator[tuple[int, list[int]]]:
    """Return clients and the placeholders that each should provide, in order."""
    left = [placeholder for placeholder in chunk if pools.sets[placeholder]]
    retained = {}
    for placeholder in dict.fromkeys(left):
        retained[placeholder] = pools.retained(placeholder, retain)
    while left:
        candidates, length = longest_run(retained, left)
        yield pools.draw(candidates, left[0]), left[:length]
        left = left[length:]


def _passed_on(rows: Ints, stops: list[tuple[int, int]], returned: int) -> SampleSchedule:
    """Return the schedule of a model that stops at these clients; consecutive stops at one client are one visit."""
    clients, samples = np.array(stops, dtype=np.int64).reshape(-1, 2).T
    leaves = np.append(clients[1:] != clients[:-1], True)[: len(clients)]
    stays = clients[leaves]
    visits = samples[leaves]
    trained = np.diff(visits, prepend=0)
    return SampleSchedule(
        rows=rows,
        clients=np.repeat(stays, trained),
        ends=np.arange(1, len(rows) + 1),
        visits=visits[trained > 0],
        returned=returned,
        idle=stays[trained == 0],
    )


def schedule_batches(
    holdings: Holdings,
    schedule: Ints,
    *,
    selection: Selection,
    batch_size: int,
    stream: Stream,
    reuse: bool = False,
) -> SampleSchedule:
    """Return the schedule of batch learning, one step per batch (Stratify, Algorithms 2 and 4).

    For every placeholder of a batch a client is drawn, with replacement, from those that may still have rows,
    uniformly or by their shares of its global count. Where a client has none left, another is drawn; a placeholder of
    which no client has rows left is dropped, and its batch is shorter. With ``reuse`` a client uses its rows again
    instead.

    >>> both = Holdings(np.array([[2, 0], [0, 2]]), flat=np.arange(4))
    >>> schedule, stream = np.array([0, 1, 1, 0, 0]), Stream(0, "demo")
    >>> found = schedule_batches(both, schedule, selection="uniform", batch_size=3, stream=stream)
    >>> found.clients.tolist(), found.ends.tolist(), found.returned  # client 0 has no third row
    ([0, 1, 1, 0], [3, 4], 1)
    """
    _check(holdings, "batch_size", batch_size)
    supply = RowSupply(holdings, substream(stream, 0), reuse)
    pools = Pools(holdings, selection, substream(stream, 1))
    todo: list[int] = schedule.tolist()
    served: list[tuple[int, int]] = []
    ends: list[int] = []
    returned = 0
    idle: list[int] = []
    for start in range(0, len(todo), batch_size):
        batch, vain = _provide(todo[start : start + batch_size], supply, pools)
        served += batch
        ends.append(len(served))
        returned += len(vain)
        if vain:
            idle += sorted(set(vain) - {client for client, _ in batch})
    clients, taken = _ints(served).reshape(-1, 2).T
    steps = np.unique(_ints(ends))
    return SampleSchedule(
        supply.rows(taken), clients, steps[steps > 0], steps[steps > 0], returned, _ints(idle)
    )


def _provide(
    batch: Sequence[int], supply: RowSupply, pools: Pools
) -> tuple[list[tuple[int, int]], list[int]]:
    """Return client and position of a row for every placeholder of a batch, and the clients that had none left."""
    found: dict[int, tuple[int, int]] = {}
    vain: list[int] = []
    waiting: Sequence[int] = range(len(batch))
    while waiting:
        refused = []
        for slot in waiting:
            placeholder = batch[slot]
            if not pools.sets[placeholder]:
                continue
            client = pools.draw(pools.sets[placeholder], placeholder)
            position = supply.take(client, placeholder)
            if position >= 0:
                found[slot] = client, position
            else:
                refused.append((slot, client))
        for slot, client in refused:  # only now: all requests of a batch are made at once
            pools.remove(client, batch[slot])
            vain.append(client)
        waiting = [slot for slot, _ in refused]
    return [found[slot] for slot in sorted(found)], vain


def schedule_clients(
    holdings: Holdings, *, epochs: int, batch_size: int, stream: Stream
) -> SampleSchedule:
    """Return the schedule of sequential federated learning (SFL): all clients in random order, all epochs at each.

    Every local epoch is a shuffle of all rows of the client, in batches of which the last may be short.

    >>> both = Holdings(np.array([[1, 2], [0, 1]]), flat=np.arange(4))
    >>> found = schedule_clients(both, epochs=2, batch_size=2, stream=Stream(0, "demo"))
    >>> found.clients.tolist(), found.ends.tolist(), found.visits.tolist()
    ([0, 0, 0, 0, 0, 0, 1, 1], [2, 3, 5, 6, 7, 8], [6, 8])
    """
    _check(holdings, "batch_size", batch_size)
    _check(holdings, "epochs", epochs)
    sizes = holdings.counts.sum(axis=1)
    order = substream(stream, 0).permutation(len(sizes))
    order = order[sizes[order] > 0]
    # One segment for each (client, epoch) in the order of the schedule.
    members = np.repeat(order, epochs)
    lengths = sizes[members]
    stops = np.cumsum(lengths)
    segments = np.repeat(np.arange(len(members)), lengths)
    starts = (np.cumsum(sizes) - sizes)[members] - (
        stops - lengths
    )  # from a place in the schedule to a place in ``flat``
    shuffled = shuffle_within(segments, substream(stream, 1))
    steps = -(-lengths // batch_size)
    step = np.arange(int(steps.sum())) - np.repeat(np.cumsum(steps) - steps, steps)
    ends = np.minimum(
        np.repeat(stops - lengths, steps) + (step + 1) * batch_size, np.repeat(stops, steps)
    )
    return SampleSchedule(
        holdings.flat[shuffled + starts[segments]],
        members[segments],
        ends,
        visits=stops[epochs - 1 :: epochs],
    )


def _check(holdings: Holdings, name: str, value: int) -> None:
    if value < 1:
        raise FedskewError(f"{name}={value} is too small: use 1 or more")
    if not len(holdings.flat):
        raise FedskewError("no client has any rows: an epoch needs at least one")


def _ints(values: Sequence[int] | Sequence[tuple[int, int]]) -> Ints:
    return np.array(values, dtype=np.int64)
