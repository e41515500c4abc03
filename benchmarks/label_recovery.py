"""Label recovery: how many of ten placeholders a curious server of synchronous Stratify can name, from what it sees."""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment

import fedskew as fs
from fedskew.batchnorm.exact import Hub, Party, SynchronousStep, presence
from fedskew.batchnorm.turns import in_turn
from fedskew.core.streams import Floats, Ints, Stream
from fedskew.label_privacy.protocol_client import rounded
from fedskew.label_privacy.secure_sum import Dealer, Masks
from fedskew.models.build import build
from fedskew.sample_schedules.holdings import Holdings
from fedskew.sample_schedules.label_schedule import frequencies, label_schedule
from fedskew.sample_schedules.sample_schedule import schedule_batches
from fedskew.transport.frames import unpack

SEEDS, STEPS, BATCH, LR = range(5), 150, 30, 0.1
TRIES = (5, 10, 15, 20, 30, 50, 100, 150)  # steps after which the server tries
MULTIPLES = (1, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
TIES = 1000  # ways to break ties between equal totals
UNLIKE = ("classes:k=2", "classes:k=2 + noise:sigma=1", "classes:k=5 + noise:sigma=2")
# Of the attack by who serves; steps over which the gradients' slow change is taken off
EPOCHS, TREND = 3, 50


class Seen(NamedTuple):
    """What a server knows of each step: the requests for each placeholder, and the head's bias gradient."""

    by_client: list[list[tuple[Ints, Floats]]]
    sums: list[list[tuple[Ints, Floats]]]  # one a step


def main() -> None:
    print(
        f"placeholders named rightly, of 10, after {STEPS} steps of {BATCH} samples: mean of {len(SEEDS)} seeds "
        "(least), and"
    )
    print("the steps after which all ten are right in every seed\n")
    heads = (
        "each client's gradient",
        "each client's masked message",
        "sums of a step",
        "sums, every batch composed alike",
    )
    print(f"| data, labels a client | {' | '.join(heads)} |\n|---|---|---|---|---|")
    for name in ("digits", "mnist"):
        data = fs.load(name)
        for k in (1, 2):
            runs = [list(_tried(data, k, seed)) for seed in SEEDS]
            cells = [
                _cell(np.array([[found[view] for found in run] for run in runs]))
                for view in range(len(heads))
            ]
            print(f"| {name}, {k} | {' | '.join(cells)} |", flush=True)
    _print_who_serves()
    _print_sizes()


def _cell(right: Ints) -> str:
    """Return a table cell over seeds x tries: the last try, and the first from which on all are right."""
    always = [steps for i, steps in enumerate(TRIES) if (right[:, i:] == 10).all()]
    return f"{right[:, -1].mean():.1f} ({right[:, -1].min()}), {f'{always[0]} steps' if always else 'never'}"


def _tried(data: fs.Dataset, k: int, seed: int) -> Iterator[list[int]]:
    """Return after each of so many steps how many placeholders are identified by each attack, in the table's order."""
    fed, label_of, held = _secret(data, f"classes:k={k}", seed)
    usual = label_schedule(
        frequencies(held.counts.sum(axis=0), frequency="uniform"), Stream(seed, "schedule")
    )
    open_, masked = (_observed(fed, held, usual, seed, secret) for secret in (False, True))
    level = _observed(fed, held, _alike(held, seed), seed, secret=True)
    views = (open_.by_client, masked.by_client, masked.sums, level.sums)
    for steps in TRIES:
        yield [_named([one for step in seen[:steps] for one in step], label_of) for seen in views]


def _secret(data: fs.Dataset, skew: str, seed: int) -> tuple[fs.Federation, Ints, Holdings]:
    """Return ten clients, the label behind each placeholder, and the label holdings."""
    fed = fs.split(data, skew, clients=10, seed=seed)
    label_of = Stream(seed, "placeholders").permutation(10)
    return fed, label_of, Holdings.of(fed.partition, np.argsort(label_of)[fed.train.y], 10)


def _alike(held: Holdings, *path: int) -> Ints:
    """Return a schedule whose batches all hold every placeholder equally often."""
    batches = int(held.counts.sum(axis=0).min()) * 10 // BATCH
    return np.concatenate(
        [
            Stream(path[0], "alike", *path[1:], step).permutation(BATCH) % 10
            for step in range(batches)
        ]
    )


def _observed(fed: fs.Federation, held: Holdings, schedule: Ints, seed: int, secret: bool) -> Seen:
    """Return what the server sees of the first steps; with secure sums only masked messages and totals."""
    path = schedule_batches(
        held, schedule, selection="uniform", batch_size=BATCH, stream=Stream(seed, "walk")
    )
    placeholder = _placeholders(fed, held)
    model = build("mlp:hidden=32", fed.train.x.shape[1:], 10, seed=seed)
    weights = {name: value.detach().clone() for name, value in model.named_parameters()}
    dealer = Dealer()
    ends = [Masks(me, dealer.seeds(me, fed.clients)) for me in range(fed.clients)]
    seen = Seen([], [])
    for step, (first, last) in enumerate(pairwise([0, *path.ends[:STEPS].tolist()])):
        there = np.unique(path.clients[first:last])
        mine = [path.rows[first:last][path.clients[first:last] == client] for client in there]
        batches = [
            (torch.from_numpy(fed.train.x[rows]), torch.from_numpy(fed.train.y[rows]))
            for rows in mine
        ]
        done, messages = _step(
            model, weights, batches, [ends[client] for client in there] if secret else None, step
        )
        asked = [np.bincount(placeholder[rows], minlength=10) for rows in mine]
        # The last gradient, before the score, is that of the head's bias.
        seen.by_client.append(
            [
                (asked[i], unpack(message)[-2].values.double().numpy())
                for i, message in enumerate(messages)
            ]
        )
        total = np.sum(asked, axis=0)
        seen.sums.append([(total, list(done.grads.values())[-1].double().numpy() * total.sum())])
        weights = {name: value - LR * done.grads[name] for name, value in weights.items()}
    return seen


def _placeholders(fed: fs.Federation, held: Holdings) -> Ints:
    """Return the placeholder of every row."""
    result = np.zeros(len(fed.train.y), dtype=np.int64)
    result[held.flat] = np.repeat(np.tile(np.arange(10), len(held.counts)), held.counts.ravel())
    return result


def _step(
    model: torch.nn.Module,
    weights: dict[str, torch.Tensor],
    batches: list,
    masks: list[Masks] | None,
    step: int,
) -> tuple[SynchronousStep, list[bytes]]:
    """Take one step of all parties, and return their last messages."""
    hub = Hub(
        model,
        weights,
        len(batches),
        step,
        presence([own.me for own in masks], masks[0].clients) if masks else None,
    )
    opening = hub.opening()
    work = [
        lambda ask, x=x, y=y, own=own: Party(model, ask, own).step(opening, x, y)
        for (x, y), own in zip(batches, masks or [None] * len(batches), strict=True)
    ]
    messages = in_turn(work, lambda given: hub.add([given[party] for party in sorted(given)]))
    return hub.finish(messages), messages


def _named(seen: list[tuple[Ints, Floats]], label_of: Ints) -> int:
    """Return how many are identified by least squares: a row's gradient softmax - onehot is negative at its label."""
    asked, gradients = (np.array(part, dtype=np.float64) for part in zip(*seen, strict=True))
    each = np.linalg.lstsq(asked, gradients, rcond=None)[0]
    return int((linear_sum_assignment(each)[1] == label_of).sum())


def _print_who_serves() -> None:
    """Print the attack on sums of equally composed batches by which clients served a placeholder."""
    data = fs.load("mnist")
    print(
        f"\nplaceholders named rightly by who serves them, of 10: MNIST, {EPOCHS} epochs, every batch composed alike\n"
    )
    print(f"| clients | seeds {', '.join(map(str, SEEDS))} |\n|---|---|")
    for skew in UNLIKE:
        print(
            f"| `{skew}` | {', '.join(str(_by_who_serves(data, skew, seed)) for seed in SEEDS)} |",
            flush=True,
        )


def _by_who_serves(data: fs.Dataset, skew: str, seed: int) -> int:
    """Return how many placeholders are identified by the label whose gradient varies most with the serving client."""
    fed, label_of, held = _secret(data, skew, seed)
    placeholder, served, gradients = _placeholders(fed, held), [], []
    model = build("mlp:hidden=32", fed.train.x.shape[1:], 10, seed=seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for epoch in range(EPOCHS):
        path = schedule_batches(
            held,
            _alike(held, seed, epoch),
            selection="uniform",
            batch_size=BATCH,
            stream=Stream(seed, "walk", epoch),
        )
        for first, last in pairwise([0, *path.ends.tolist()]):
            rows, clients = path.rows[first:last], path.clients[first:last]
            loss = F.cross_entropy(
                model(torch.from_numpy(fed.train.x[rows])), torch.from_numpy(fed.train.y[rows])
            )
            optimizer.zero_grad()
            loss.backward()
            gradients.append(list(model.parameters())[-1].grad.double().numpy() * len(rows))
            served.append(np.bincount(clients * 10 + placeholder[rows], minlength=100))
            optimizer.step()
    found, by = np.array(gradients), np.array(served, dtype=np.float64)
    found -= np.stack(
        [np.convolve(column, np.ones(TREND) / TREND, "same") for column in found.T], axis=1
    )
    cells = np.flatnonzero(by.any(axis=0))
    design = by[:, cells] - by[:, cells].mean(axis=0)
    effect = np.linalg.pinv(design) @ found
    # How much each label's gradient depends on the client that serves the placeholder: the sum over its holders of
    # squared effects, divided by their variances.
    size = effect**2 * (design**2).sum(axis=0)[:, None] / (found - design @ effect).var(axis=0)
    explained = np.stack([size[cells % 10 == kind].sum(axis=0) for kind in range(10)])
    return int((linear_sum_assignment(-explained)[1] == label_of).sum())


def _print_sizes() -> None:
    """Print totals beside the public class sizes of MNIST, exact and rounded."""
    data = fs.load("mnist")
    sizes = np.bincount(data.train.y, minlength=10)
    print(f"\nMNIST's class sizes: {', '.join(map(str, sizes))}")
    print(
        "placeholders named by their totals alone: different totals; named rightly, of 10 (mean over ways to break "
        "ties)\n"
    )
    print("| round_totals | 1 holder a label | 2 holders a label |\n|---|---|---|")
    feds = [fs.split(data, f"classes:k={k}", clients=10, seed=0) for k in (1, 2)]
    for multiple in MULTIPLES:
        cells = [
            f"{len(np.unique(totals))}; {_by_size(totals, sizes):.1f}"
            for totals in (_totals(fed, multiple) for fed in feds)
        ]
        print(f"| {multiple} | {' | '.join(cells)} |")


def _totals(fed: fs.Federation, multiple: int) -> Ints:
    counts = Holdings.of(fed.partition, fed.train.y, 10).counts
    return np.array(
        [sum(rounded(int(rows), multiple) for rows in column if rows) for column in counts.T]
    )


def _by_size(totals: Ints, sizes: Ints) -> float:
    """Return how many are identified by matching totals with class sizes in order; equal totals in any order."""
    draw = np.random.default_rng(0)
    right = [
        (np.lexsort((draw.random(10), totals)) == np.argsort(sizes)).sum() for _ in range(TIES)
    ]
    return float(np.mean(right))
