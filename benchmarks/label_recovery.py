"""Label recovery: how many of ten placeholders a curious server of synchronous Stratify can name, from what it sees."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

import fedskew as fs
from fedskew.engine.exact_norm import Hub, Party
from fedskew.engine.frames import unpack
from fedskew.engine.turns import in_turn
from fedskew.models.build import build
from fedskew.stratify.holdings import Holdings
from fedskew.stratify.labels import frequencies, label_schedule
from fedskew.stratify.walk import walk_batch
from fedskew.streams import Floats, Ints, Stream

SEEDS, STEPS, BATCH, LR = range(5), 150, 30, 0.1
TRIES = (5, 10, 15, 20, 30, 50, 100, 150)  # steps after which the server tries


class Curious(Hub):
    """A server that keeps what every client sends last in a step."""

    heard: list[bytes]

    def finish(self, messages):
        """Remember, and go on as told."""
        self.heard = list(messages)
        return super().finish(messages)


def main() -> None:
    print(f"placeholders named rightly, of 10, after {STEPS} steps of {BATCH} samples: mean of {len(SEEDS)} seeds (least), and")
    print("the steps after which all ten are right in every seed\n")
    print("| data, labels a client | each client's gradient | sums of a step | sums, every batch composed alike |")
    print("|---|---|---|---|")
    for name in ("digits", "mnist"):
        data = fs.load(name)
        for k in (1, 2):
            runs = [list(_tried(data, k, seed)) for seed in SEEDS]
            cells = [_cell(np.array([[found[view] for found in run] for run in runs])) for view in range(3)]
            print(f"| {name}, {k} | {' | '.join(cells)} |", flush=True)
    _print_sizes()


def _cell(right: Ints) -> str:
    """Of seeds x tries: the last try, and the first from which on all are right."""
    always = [steps for i, steps in enumerate(TRIES) if (right[:, i:] == 10).all()]
    return f"{right[:, -1].mean():.1f} ({right[:, -1].min()}), {f'{always[0]} steps' if always else 'never'}"


def _tried(data: fs.Dataset, k: int, seed: int) -> Iterator[tuple[int, int, int]]:
    """After each of so many steps: how many placeholders are named from single gradients, from sums, from sums alike."""
    fed = fs.split(data, f"classes:k={k}", clients=10, seed=seed)
    label_of = Stream(seed, "placeholders").permutation(10)
    held = Holdings.of(fed.partition, np.argsort(label_of)[fed.train.y], 10)
    counts = held.counts.sum(axis=0)
    usual = label_schedule(frequencies(counts, frequency="uniform"), Stream(seed, "schedule"))
    alike = np.concatenate(
        [Stream(seed, "alike", step).permutation(BATCH) % 10 for step in range(int(counts.min()) * 10 // BATCH)]
    )
    singles, sums = _observed(fed, held, usual, seed)
    _, level = _observed(fed, held, alike, seed)
    for steps in TRIES:
        parts = [one for step in singles[:steps] for one in step]
        yield tuple(_named(some, label_of) for some in (parts, sums[:steps], level[:steps]))


def _observed(fed: fs.Federation, held: Holdings, schedule: Ints, seed: int):
    """Of every step what the server asked for (of each placeholder how many) and the head's bias gradient: by client, in sum."""
    path = walk_batch(held, schedule, selection="uniform", batch_size=BATCH, stream=Stream(seed, "walk"))
    kinds = np.repeat(np.tile(np.arange(10), len(held.counts)), held.counts.ravel())
    placeholder = np.zeros(len(fed.train.y), dtype=np.int64)
    placeholder[held.flat] = kinds
    shape = fed.train.x.shape[1:]
    model = build("mlp:hidden=32", shape, 10, seed=seed)
    weights = {name: value.detach().clone() for name, value in model.named_parameters()}
    singles, sums = [], []
    for first, last in pairwise([0, *path.ends[:STEPS].tolist()]):
        clients = path.clients[first:last]
        mine = [path.rows[first:last][clients == client] for client in np.unique(clients)]
        batches = [(torch.from_numpy(fed.train.x[rows]), torch.from_numpy(fed.train.y[rows])) for rows in mine]
        hub = Curious(model, weights, len(batches))
        opening = hub.opening()
        work = [lambda ask, x=x, y=y: Party(model, ask).step(opening, x, y) for x, y in batches]
        done = hub.finish(in_turn(work, lambda given: hub.add([given[party] for party in sorted(given)])))
        asked = [np.bincount(placeholder[rows], minlength=10) for rows in mine]
        singles.append([(n, unpack(message)[-2].values.double().numpy()) for n, message in zip(asked, hub.heard, strict=True)])
        total = np.sum(asked, axis=0)
        sums.append((total, list(done.grads.values())[-1].double().numpy() * total.sum()))
        weights = {name: value - LR * done.grads[name] for name, value in weights.items()}
    return singles, sums


def _named(seen: list[tuple[Ints, Floats]], label_of: Ints) -> int:
    """Least squares: a row of a placeholder adds softmax - onehot to the gradient, which is negative at its label alone."""
    asked, gradients = (np.array(part, dtype=np.float64) for part in zip(*seen, strict=True))
    each = np.linalg.lstsq(asked, gradients, rcond=None)[0]
    return int((linear_sum_assignment(each)[1] == label_of).sum())


def _print_sizes() -> None:
    """Totals beside the class sizes of MNIST, which everybody knows."""
    sizes = np.bincount(fs.load("mnist").train.y, minlength=10)
    print(
        f"\nMNIST's class sizes: {', '.join(map(str, sizes))}: {len(np.unique(sizes))} different totals name all 10 placeholders"
    )
