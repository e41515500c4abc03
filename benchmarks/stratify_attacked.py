"""Stratify under attack: accuracy and backdoors with flipped labels and triggers, and what defences cost."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import t as student
from torch import Tensor
from torch.func import functional_call

import fedskew as fs
from fedskew.algorithms.attack import Attack
from fedskew.algorithms.selection import ClientPool
from fedskew.algorithms.stratify import StratifyBatch
from fedskew.algorithms.topologies import Scheduled
from fedskew.core.streams import Floats, Ints, Stream
from fedskew.data.dataset import Dataset, Rows
from fedskew.data.partition import Partition
from fedskew.models.build import build
from fedskew.sample_schedules.holdings import Holdings

CLIENTS, MODEL, BATCH = 10, "mlp:hidden=32", 32
SHARES = (0.1, 0.2, 0.3)
KINDS = ("label-flip", "backdoor")
SUBSET = 6000  # first training rows of MNIST
METHODS = ("fedavg", "scaffold", "sfl", "stratify-batch")
SINGLE = (5, 0.02)  # rounds and learning rate of stratify-single
CLIP = 1.0  # largest norm of a client's gradient per row
NOISES = (0.01, 0.1)  # standard deviations, in units of the clip
TARGET = "0"

# From the summed gradients of a step's clients, in rows, and their numbers of rows to the mean gradient
Defence: TypeAlias = Callable[[Tensor, Tensor, torch.Generator], Tensor]


class Plan(NamedTuple):
    """Which methods a data set is trained with, and how long."""

    seeds: range
    rounds: int
    lr: float
    methods: tuple[str, ...]


PLANS = {
    "digits": Plan(range(10), 20, 0.1, (*METHODS, "stratify-single", "stratify-hybrid")),
    "mnist": Plan(range(5), 10, 0.1, METHODS),
}


class Poisoned(NamedTuple):
    """The rows that are trained on, and whose they are."""

    fed: fs.Federation
    rows: Rows
    partition: Partition
    attack: Attack


def main() -> None:
    """Print the tables of docs/stratify.md."""
    for name, plan in PLANS.items():
        data = some(name)
        for k in (1, 2):
            _print_attacks(data, plan, k)
    _print_defences(some("digits"), PLANS["digits"])


def some(name: str) -> Dataset:
    """Return the digits, or the first rows of MNIST."""
    data = fs.load(name)
    if name != "mnist":
        return data
    train = Rows(data.train.x[:SUBSET], data.train.y[:SUBSET])
    return Dataset(f"first {SUBSET:,} of mnist", train, data.test, data.classes)


def _print_attacks(data: Dataset, plan: Plan, k: int) -> None:
    """Print a table of methods and attacks: accuracy, difference to no attack, and how often a backdoor opens."""
    print(
        f"\n{data.name}, {k} labels a client, {len(plan.seeds)} seeds: test accuracy in per cent, mean and 95 % t "
        "interval of the\ndifference to no attack; of backdoors also the success in per cent\n"
    )
    heads = [f"{kind} {share:.0%}" for kind in KINDS for share in SHARES]
    print(f"| method | no attack | {' | '.join(heads)} | verdict |")
    print("|---|---|" + "---|" * (len(heads) + 1))
    for method in plan.methods:
        clean = np.array([_run(data, k, method, plan, seed)[0] for seed in plan.seeds])
        # How often the trigger alone leads to the target
        idle = np.array(
            [_run(data, k, method, plan, seed, "backdoor", 0)[1] for seed in plan.seeds]
        )
        cells = [f"{clean.mean():.1f}; {idle.mean():.0f}"]
        drops: dict[str, list[Floats]] = {kind: [] for kind in KINDS}
        opened = np.zeros(0)
        for kind in KINDS:
            for share in SHARES:
                found = [_run(data, k, method, plan, seed, kind, share) for seed in plan.seeds]
                scores, opened = np.array(found).T
                drops[kind].append(scores - clean)
                cell = f"{scores.mean():.1f} ({interval(scores - clean)})"
                if kind == "backdoor":
                    cell += f"; {opened.mean():.0f}"
                cells.append(cell)
        verdict = f"{_verdict(drops['label-flip'][-1])}; {_door(opened - idle)}"
        print(f"| `{method}` | {' | '.join(cells)} | {verdict} |", flush=True)


def _run(
    data: Dataset, k: int, method: str, plan: Plan, seed: int, kind: str = "", share: float = 0
) -> tuple[float, float]:
    """Return the last test accuracy, and how often the backdoor opens, in per cent."""
    fed = fs.split(data, f"classes:k={k}", clients=CLIENTS, seed=seed)
    rounds, lr = plan.rounds, plan.lr
    if method == "stratify-single":
        rounds, lr = SINGLE
    if method == "stratify-hybrid":
        method = f"stratify-hybrid:batch_rounds={plan.rounds - 2}"
    if kind:
        method = f"{method} + attack:kind={kind},share={share:g}"
    run = fs.train(
        fed,
        MODEL,
        method,
        rounds=rounds,
        lr=lr,
        batch_size=BATCH,
        seed=seed,
        eval_every=rounds,
        threads=1,
        device="cpu",
        folder=False,
    )
    opened = run.summary.get("backdoor_success_last", float("nan"))
    return 100 * run.summary["test_accuracy_last"], 100 * opened


def _verdict(drop: Floats) -> str:
    """Return in words what flipped labels at the largest share of hostile clients do."""
    half = half_width(drop)
    if drop.mean() + half < 0:
        return f"loses {-drop.mean():.0f} points to {SHARES[-1]:.0%} flippers"
    return f"no loss to {SHARES[-1]:.0%} flippers shown"


def _door(more: Floats) -> str:
    """Return in words what triggers at the largest share of hostile clients do."""
    if more.mean() - half_width(more) > 0:
        return f"the trigger works {more.mean():.0f} points more often"
    return "no backdoor shown"


def half_width(values: Floats) -> float:
    """Return half of the 95 % t interval of a mean."""
    return float(student.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5)


def interval(values: Floats) -> str:
    """Return a mean with its 95 % t interval."""
    return f"{values.mean():+.1f} ± {half_width(values):.1f}"


# -- defences: fedskew has none for synchronous steps, so these steps are taken here --


def _print_defences(data: Dataset, plan: Plan) -> None:
    """Print accuracy and success of ``stratify-batch`` with defences, without hostile clients and with 20 %."""
    print(
        f"\n{data.name}, stratify-batch, 20 % hostile: test accuracy in per cent, and how often the backdoor opens\n"
    )
    defences: dict[str, Defence] = {"none": mean, f"clip {CLIP:g}": clipped}
    for sigma in NOISES:
        defences[f"clip {CLIP:g}, noise {sigma:g}"] = noisy(sigma)
    defences["median of the clients"] = median
    heads = [f"{k} labels, {case}" for k in (1, 2) for case in ("no attack", *KINDS)]
    print(f"| defence | {' | '.join(heads)} |\n|---|" + "---|" * len(heads))
    for name, defence in defences.items():
        cells = []
        for k in (1, 2):
            for kind, share in (("label-flip", 0.0), ("label-flip", 0.2), ("backdoor", 0.2)):
                found = []
                for seed in list(plan.seeds)[:5]:
                    here = poisoned(data, k, seed, kind, share)
                    weights = trained(here, plan, seed, defence)
                    found.append(scores(here, weights, seed))
                accuracy, opened = np.array(found).mean(axis=0)
                cell = f"{accuracy:.1f}"
                if kind == "backdoor":
                    cell += f"; {opened:.0f}"
                cells.append(cell)
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def poisoned(data: Dataset, k: int, seed: int, kind: str, share: float) -> Poisoned:
    """Return the rows of ten clients, some of them hostile."""
    fed = fs.split(data, f"classes:k={k}", clients=CLIENTS, seed=seed)
    method = StratifyBatch() + Attack(kind=kind, share=share, target=TARGET)
    assert method.poison
    rows, partition = method.poison.poisoned(fed.train, fed.partition, data.classes, seed)
    return Poisoned(fed, rows, partition, method)


def steps(here: Poisoned, seed: int, round: int) -> Iterator[tuple[Ints, Ints]]:
    """Return the rows and the clients of every step of a round, as fedskew schedules them."""
    holdings = Holdings.of(here.partition, here.rows.y, len(here.fed.data.classes))
    topology = StratifyBatch().topology(round)
    assert isinstance(topology, Scheduled)
    pool = ClientPool(round, here.partition.sizes, batch_size=BATCH)
    schedule = topology.schedule_samples(holdings, pool, Stream(seed, "walk", round))
    for first, last in pairwise([0, *schedule.ends.tolist()]):
        yield schedule.rows[first:last], schedule.clients[first:last]


def trained(here: Poisoned, plan: Plan, seed: int, defence: Defence) -> Tensor:
    """Return the weights after all rounds of synchronous steps, as one vector."""
    model = build(MODEL, here.rows.x.shape[1:], 10, seed=seed)
    weights = torch.cat([value.detach().flatten() for value in model.parameters()])
    x, y = torch.from_numpy(here.rows.x), torch.from_numpy(here.rows.y)
    draw = torch.Generator().manual_seed(seed)
    for round in range(plan.rounds):
        for rows, clients in steps(here, seed, round):
            each, counts = gradients(model, weights, x[rows], y[rows], torch.from_numpy(clients))
            weights = weights - plan.lr * defence(each, counts, draw)
    return weights


def gradients(
    model: torch.nn.Module, weights: Tensor, x: Tensor, y: Tensor, clients: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the summed gradient of every client of a step, one a line, and how many rows each has."""
    present, counts = clients.unique(return_counts=True)
    each = []
    for client in present:
        mine = clients == client
        leaf = weights.clone().requires_grad_()
        logits = functional_call(model, named(model, leaf), (x[mine],))
        each.append(torch.autograd.grad(F.cross_entropy(logits, y[mine], reduction="sum"), leaf)[0])
    return torch.stack(each), counts


def named(model: torch.nn.Module, weights: Tensor) -> dict[str, Tensor]:
    """Return a vector of weights by the names of the model's parameters."""
    sizes = [value.numel() for value in model.parameters()]
    parts = zip(model.named_parameters(), torch.split(weights, sizes), strict=True)
    return {name: part.view_as(value) for (name, value), part in parts}


def mean(each: Tensor, counts: Tensor, draw: torch.Generator) -> Tensor:
    """Return the sum of all clients, divided once: Stratify itself."""
    return each.sum(0) / counts.sum()


def clip(each: Tensor, counts: Tensor) -> Tensor:
    """Return gradients whose norm is at most ``CLIP`` for every row that a client was asked for."""
    most = CLIP * counts / each.norm(dim=1)
    return each * most.clamp(max=1)[:, None]


def clipped(each: Tensor, counts: Tensor, draw: torch.Generator) -> Tensor:
    """Return the mean of clipped gradients."""
    return clip(each, counts).sum(0) / counts.sum()


def noisy(sigma: float) -> Defence:
    """Return the mean of clipped gradients to which every client has added noise."""

    def noised(each: Tensor, counts: Tensor, draw: torch.Generator) -> Tensor:
        noise = sigma * CLIP * torch.randn(each.shape, generator=draw)
        return (clip(each, counts) + noise).sum(0) / counts.sum()

    return noised


def median(each: Tensor, counts: Tensor, draw: torch.Generator) -> Tensor:
    """Return the median, coordinate by coordinate, of the clients' mean gradients."""
    return torch.quantile(each / counts[:, None], 0.5, dim=0)


@torch.no_grad()
def scores(here: Poisoned, weights: Tensor, seed: int) -> tuple[float, float]:
    """Return the test accuracy, and how often the backdoor opens, in per cent."""
    model = build(MODEL, here.rows.x.shape[1:], 10, seed=seed)
    test = here.fed.test

    def predicted(x: np.ndarray) -> Ints:
        logits = functional_call(model, named(model, weights), (torch.from_numpy(x),))
        return logits.argmax(1).numpy()

    right = 100 * float((predicted(test.x) == test.y).mean())
    door = Attack(kind="backdoor", target=TARGET).poison
    x = door.triggered(test, here.fed.train, here.fed.data.classes)
    return right, 100 * float((predicted(x) == door.target_of(here.fed.data.classes)).mean())
