"""Gradient inversion: which pictures a curious server of Stratify and FedAvg reconstructs from what it sees."""

from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.func import functional_call

from benchmarks.stratify_attacked import (
    BATCH,
    CLIENTS,
    PLANS,
    Defence,
    Poisoned,
    clip,
    clipped,
    gradients,
    interval,
    mean,
    named,
    noisy,
    poisoned,
    scores,
    some,
    steps,
    trained,
)
from fedskew.algorithms.selection import ClientPool
from fedskew.algorithms.stratify import StratifySingle
from fedskew.algorithms.topologies import Scheduled
from fedskew.core.streams import Ints, Stream
from fedskew.models.build import build
from fedskew.sample_schedules.holdings import Holdings

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "inverted-gradients.png"
ROWS = (1, 2, 4, 8)
MODELS = ("mlp:hidden=32", "cnn:width=8")
TRIES, MATCHES = 20, 4  # batches for the exact and the iterative attack
ROUNDS = 5  # after which weights count as trained
STEPS, RATE, SMOOTH = 600, 0.1, 1e-3  # of gradient matching
LR, LR_SINGLE = 0.1, 0.02
NOISES = (0.001, 0.01, 0.1, 1.0)
BEST = 60  # decibels that count as exact
SEEN, SUMS = 12, 3  # messages of a kind, and of sums over clients
LABELS = 200  # rows whose label is recovered


class Target(NamedTuple):
    """A model at some weights, and what a picture of its data can be."""

    model: torch.nn.Module
    weights: Tensor
    x: Tensor  # all training rows
    y: Tensor

    @property
    def low(self) -> float:
        """Return the smallest pixel."""
        return float(self.x.min())

    @property
    def high(self) -> float:
        """Return the largest pixel."""
        return float(self.x.max())

    def gradient(self, x: Tensor, y: Tensor, graph: bool = False) -> Tensor:
        """Return the gradient of the summed loss of these rows, as one vector."""
        leaf = self.weights.detach().requires_grad_()
        logits = functional_call(self.model, named(self.model, leaf), (x,))
        loss = F.cross_entropy(logits, y, reduction="sum")
        return torch.autograd.grad(loss, leaf, create_graph=graph)[0]


class Message(NamedTuple):
    """What a party sees, as a sum of gradients, and the rows behind it."""

    gradient: Tensor
    rows: Ints


# -- the attacks ------------------------------------------------------------------------------------------------------


def label_of(target: Target, gradient: Tensor) -> int:
    """Return the label of a single row (iDLG): the one entry of the head's bias whose gradient is negative."""
    return int(named(target.model, gradient)["head.bias"].argmin())


def exact_rows(target: Target, gradient: Tensor, count: int) -> Tensor:
    """Return so many rows from the gradient of the first linear layer, without any search.

    The gradient of a neuron's weights is the sum of its rows, each times that row's share in the gradient of its bias.
    So for one row their quotient is the row, at every active neuron. For several rows it is a row wherever one alone
    activates the neuron. Several neurons then give the same quotient, which a mixture of rows does not.
    """
    # Of the parameters the first two are those of the first layer
    weight, bias = list(named(target.model, gradient).values())[:2]
    if count == 1:
        found = (bias @ weight / bias.square().sum())[None]
    else:
        active = bias.abs() > 1e-6 * bias.abs().max()
        found = _distinct(weight[active] / bias[active][:, None], count, target)
    return found.view(-1, *target.x.shape[1:]).clamp(target.low, target.high)


def _distinct(rows: Tensor, count: int, target: Target) -> Tensor:
    """Return the rows that most others repeat, then those most like pictures; grey ones if there are too few."""
    scale = (target.high - target.low) * rows.shape[1] ** 0.5
    distance = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist") / scale
    same = distance < 1e-3
    outside = (rows - rows.clamp(target.low, target.high)).abs().mean(1)
    order = np.lexsort((outside.numpy(), -same.sum(1).numpy()))
    chosen: list[int] = []
    for place in order.tolist():
        if len(chosen) < count and not same[place, chosen].any():
            chosen.append(place)
    grey = rows.new_full((count, rows.shape[1]), (target.low + target.high) / 2)
    grey[: len(chosen)] = rows[chosen]
    return grey


def matched_rows(target: Target, gradient: Tensor, labels: Tensor, seed: int = 0) -> Tensor:
    """Return pictures whose gradient has the same direction (Geiping et al. 2020): signed Adam, smooth pictures."""
    draw = torch.Generator().manual_seed(seed)
    shape = (len(labels), *target.x.shape[1:])
    x = target.low + (target.high - target.low) * torch.rand(shape, generator=draw)
    x.requires_grad_()
    optimizer = torch.optim.Adam([x], lr=RATE)
    falls = [int(STEPS * share) for share in (0.4, 0.65, 0.85)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, falls)
    for _ in range(STEPS):
        found = target.gradient(x, labels, graph=True)
        edges = x.diff(dim=-1).abs().mean() + x.diff(dim=-2).abs().mean()
        loss = 1 - F.cosine_similarity(found, gradient, dim=0) + SMOOTH * edges
        x.grad = torch.autograd.grad(loss, x)[0].sign()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            x.clamp_(target.low, target.high)
    return x.detach()


def paired(target: Target, found: Tensor, rows: Ints) -> Tensor:
    """Return the found pictures in the order of the rows to which they belong at best."""
    wanted = target.x[rows]
    cost = (found[:, None] - wanted[None]).square().flatten(2).mean(2)
    places, order = linear_sum_assignment(cost.numpy())
    return found[places[np.argsort(order)]]


def quality(target: Target, found: Tensor, rows: Ints) -> tuple[float, float]:
    """Return the mean decibels (PSNR), and the share of pictures whose nearest training row is the right one."""
    found = paired(target, found, rows)
    error = (found - target.x[rows]).square().flatten(1).mean(1) / (target.high - target.low) ** 2
    decibels = (-10 * torch.log10(error.clamp(min=10 ** (-BEST / 10)))).mean()
    nearest = torch.cdist(found.flatten(1), target.x.flatten(1)).argmin(1).numpy()
    return float(decibels), float((nearest == rows).mean())


# -- the tables -------------------------------------------------------------------------------------------------------


def main() -> None:
    """Print the tables of docs/secret-labels.md, and draw its picture."""
    for name in PLANS:
        _print_rows(name)
    for name in PLANS:
        _print_methods(name)
    for name in PLANS:
        _print_defences(name)
    draw()


def _target(here: Poisoned, spec: str, seed: int, weights: Tensor | None = None) -> Target:
    model = build(spec, here.rows.x.shape[1:], 10, seed=seed)
    if weights is None:
        weights = torch.cat([value.detach().flatten() for value in model.parameters()])
    return Target(model, weights, torch.from_numpy(here.rows.x), torch.from_numpy(here.rows.y))


def _honest(name: str, k: int = 1, seed: int = 0) -> Poisoned:
    return poisoned(some(name), k, seed, "label-flip", 0.0)


def _print_rows(name: str) -> None:
    """Print how well the rows of a client's gradient are recovered, by their number."""
    here = _honest(name)
    plan = PLANS[name]._replace(rounds=ROUNDS)
    after = trained(here, plan, 0, mean)
    print(
        f"\n{name}, rows of one client with one label, from their gradient: decibels and right pictures; the label of "
        "one row\n"
    )
    heads = [f"{count} rows" for count in ROWS]
    print(f"| model, attack | {' | '.join(heads)} | label of a row |")
    print("|---|" + "---|" * (len(heads) + 1))
    cases = {
        f"{MODELS[0]}, exact": (_target(here, MODELS[0], 0), True),
        f"{MODELS[0]}, matched": (_target(here, MODELS[0], 0), False),
        f"{MODELS[0]} after {ROUNDS} rounds, exact": (_target(here, MODELS[0], 0, after), True),
        f"{MODELS[0]} after {ROUNDS} rounds, matched": (_target(here, MODELS[0], 0, after), False),
        f"{MODELS[1]}, matched": (_target(here, MODELS[1], 0), False),
    }
    for case, (target, exact) in cases.items():
        cells = []
        for count in ROWS:
            tries = TRIES if exact else MATCHES
            drawn = [_rows_of_a_client(here, count, attempt) for attempt in range(tries)]
            messages = [
                Message(target.gradient(target.x[rows], target.y[rows]), rows) for rows in drawn
            ]
            cells.append(_cell(target, messages, exact))
        print(f"| {case} | {' | '.join(cells)} | {_labels(target):.0%} |", flush=True)


def _rows_of_a_client(here: Poisoned, count: int, attempt: int) -> Ints:
    held = here.partition.of(attempt % CLIENTS)
    return held[Stream(attempt, "inversion", count).sample(len(held), count)]


def _labels(target: Target) -> float:
    """Return the share of single rows whose label is recovered."""
    right = 0
    for row in Stream(0, "labels").sample(len(target.y), LABELS).tolist():
        gradient = target.gradient(target.x[[row]], target.y[[row]])
        right += label_of(target, gradient) == int(target.y[row])
    return right / LABELS


def _cell(target: Target, messages: list[Message], exact: bool) -> str:
    """Return the quality of an attack on these messages; every row of them counts equally."""
    found, sizes = [], []
    for message in messages:
        if exact:
            pictures = exact_rows(target, message.gradient, len(message.rows))
        else:
            pictures = matched_rows(target, message.gradient, target.y[message.rows])
        found.append(quality(target, pictures, message.rows))
        sizes.append(len(message.rows))
    decibels, right = np.average(np.array(found), axis=0, weights=sizes)
    return f"{decibels:.0f} dB, {right:.0%}"


def _print_methods(name: str) -> None:
    """Print what is recovered from what each method shows to its server."""
    print(
        f"\n{name}, {MODELS[0]}, first round: rows behind a message, and what each attack recovers; decibels, right "
        "pictures\n"
    )
    heads = ("who sees what", "labels a client", "rows behind it", "exact", "matched", "guessed")
    print(f"| {' | '.join(heads)} |\n|" + "---|" * len(heads))
    plan = PLANS[name]._replace(rounds=ROUNDS)
    for k in (1, 2):
        here = _honest(name, k)
        target = _target(here, MODELS[0], 0)
        later = target._replace(weights=trained(here, plan, 0, mean))
        views = {
            "`stratify-batch`: a client's gradient of a step": (target, by_client),
            "`stratify-batch:secure=true`: the sum of a step": (target, by_step),
            f"the same after {ROUNDS} rounds": (later, by_step),
            "`stratify-single`: the model before and after a visit": (target, by_visit),
            "`fedavg`: a client's update, one epoch": (target, by_update),
        }
        for view, (at, seen) in views.items():
            messages = seen(here, at)[:SEEN]
            behind = np.mean([len(message.rows) for message in messages])
            exact, matched = (_cell(at, messages, way) for way in (True, False))
            guessed = _cell(at, [_decoy(here, at, one) for one in messages], exact=False)
            print(f"| {view} | {k} | {behind:.1f} | {exact} | {matched} | {guessed} |", flush=True)


def _decoy(here: Poisoned, target: Target, message: Message) -> Message:
    """Return the gradient of test rows of the same labels in place of a message's: what is known without it."""
    test = here.fed.test
    draw = np.random.default_rng(0)
    others = [
        draw.choice(np.flatnonzero(test.y == label)) for label in here.rows.y[message.rows].tolist()
    ]
    x, y = torch.from_numpy(test.x[others]), torch.from_numpy(test.y[others])
    return Message(target.gradient(x, y), message.rows)


def by_client(here: Poisoned, target: Target) -> list[Message]:
    """Return each client's gradient in the first steps of ``stratify-batch``, all at the first weights."""
    messages = []
    for rows, clients in list(steps(here, 0, 0))[:5]:
        x, y = target.x[rows], target.y[rows]
        each, _ = gradients(target.model, target.weights, x, y, torch.from_numpy(clients))
        for client, gradient in zip(np.unique(clients), each, strict=True):
            messages.append(Message(gradient, rows[clients == client]))
    return messages


def by_step(here: Poisoned, target: Target) -> list[Message]:
    """Return the sums over all clients of the first steps, all at the first weights."""
    messages = []
    for rows, _ in list(steps(here, 0, 0))[:SUMS]:
        messages.append(Message(target.gradient(target.x[rows], target.y[rows]), rows))
    return messages


def by_visit(here: Poisoned, target: Target) -> list[Message]:
    """Return what the first visits of ``stratify-single`` change in the model, over the learning rate."""
    holdings = Holdings.of(here.partition, here.rows.y, 10)
    topology = StratifySingle().topology(0)
    assert isinstance(topology, Scheduled)
    pool = ClientPool(0, here.partition.sizes, batch_size=BATCH)
    schedule = topology.schedule_samples(holdings, pool, Stream(0, "walk", 0))
    starts = [0, *schedule.visits.tolist()]
    messages = []
    for first, last in pairwise(sorted(set(starts))):
        rows = schedule.rows[first:last]
        before = target.weights
        for row in rows:
            gradient = target.gradient(target.x[[row]], target.y[[row]])
            target = target._replace(weights=target.weights - LR_SINGLE * gradient)
        messages.append(Message((before - target.weights) / LR_SINGLE, rows))
        if len(messages) == SEEN:
            break
    return messages


def by_update(here: Poisoned, target: Target) -> list[Message]:
    """Return the update of a client of FedAvg after an epoch, over the learning rate, as a sum over its rows."""
    held = here.partition.of(0)
    rows = held[Stream(0, "epoch").permutation(len(held))]
    local = target
    for first in range(0, len(rows), BATCH):
        batch = rows[first : first + BATCH]
        gradient = local.gradient(local.x[batch], local.y[batch]) / len(batch)
        local = local._replace(weights=local.weights - LR * gradient)
    return [Message((target.weights - local.weights) / LR * BATCH, rows)]


def _print_defences(name: str) -> None:
    """Print what clipping and noise do to the attacks on ``stratify-batch``, and to its accuracy."""
    here = _honest(name)
    target = _target(here, MODELS[0], 0)
    print(
        f"\n{name}, {MODELS[0]}, one label a client, defences of a client's gradient in stratify-batch; accuracy of "
        f"{ROUNDS} rounds\n"
    )
    print(
        "| defence | one row, exact | one row, matched | its gradient of a step, exact | accuracy |"
    )
    print("|---|---|---|---|---|")
    cases: dict[str, tuple[float | None, Defence]] = {
        "none": (None, mean),
        "clip 1": (0.0, clipped),
    }
    for sigma in NOISES:
        cases[f"clip 1, noise {sigma:g}"] = (sigma, noisy(sigma))
    before = np.zeros(0)
    drawn = [_rows_of_a_client(here, 1, attempt) for attempt in range(TRIES)]
    single = [Message(target.gradient(target.x[rows], target.y[rows]), rows) for rows in drawn]
    for case, (sigma, defence) in cases.items():
        one = _protected(single, sigma)
        several = _protected(by_client(here, target), sigma)
        accuracy = np.array([_accuracy(name, seed, defence) for seed in range(5)])
        if sigma is None:
            before = accuracy
        cells = [
            _cell(target, one, exact=True),
            _cell(target, one[:10], exact=False),
            _cell(target, several, exact=True),
            f"{np.mean(accuracy):.1f} ({interval(accuracy - before)})",
        ]
        print(f"| {case} | {' | '.join(cells)} |", flush=True)


def _protected(messages: list[Message], sigma: float | None) -> list[Message]:
    """Return the messages clipped, with noise; None leaves them as they are."""
    if sigma is None:
        return messages
    draw = torch.Generator().manual_seed(0)
    sent = []
    for gradient, rows in messages:
        within = clip(gradient[None], torch.tensor([len(rows)]))[0]
        noise = sigma * torch.randn(within.shape, generator=draw)
        sent.append(Message(within + noise, rows))
    return sent


def _accuracy(name: str, seed: int, defence: Defence) -> float:
    here = _honest(name, seed=seed)
    plan = PLANS[name]._replace(rounds=ROUNDS)
    return scores(here, trained(here, plan, seed, defence), seed)[0]


# -- the picture ------------------------------------------------------------------------------------------------------


def draw() -> None:
    """Draw four rows of a client beside what is reconstructed from what a server sees."""
    here = _honest("mnist", 2)
    target = _target(here, MODELS[0], 0)
    steps_rows, clients = next(iter(steps(here, 0, 0)))
    sizes = np.bincount(clients, minlength=CLIENTS)
    rows = steps_rows[clients == int(sizes.argmax())][:4]
    labels = target.y[rows]
    whole = Message(target.gradient(target.x[rows], labels), rows)
    alone = [
        Message(target.gradient(target.x[[row]], target.y[[row]]), np.array([row])) for row in rows
    ]

    def one_by_one(sigma: float | None) -> Tensor:
        return torch.cat(
            [exact_rows(target, sent.gradient, 1) for sent in _protected(alone, sigma)]
        )

    total = target.gradient(target.x[steps_rows], target.y[steps_rows])
    of_sum = paired(target, matched_rows(target, total, target.y[steps_rows]), steps_rows)
    among = [int(np.flatnonzero(steps_rows == row)[0]) for row in rows]
    lines = {
        "the rows of a client": target.x[rows],
        "one row at a time, exact": one_by_one(None),
        "four rows together, exact": paired(target, exact_rows(target, whole.gradient, 4), rows),
        "four rows together, matched": paired(
            target, matched_rows(target, whole.gradient, labels), rows
        ),
        "one row, clip 1, noise 0.01": one_by_one(0.01),
        "one row, clip 1, noise 0.1": one_by_one(0.1),
        f"in a secure sum of {len(steps_rows)} rows, matched": of_sum[among],
    }
    _save(lines)


def _save(lines: dict[str, Tensor]) -> None:
    figure = Figure(figsize=(5.2, 0.8 * len(lines)), dpi=80)
    FigureCanvasAgg(figure)
    across = 1 + len(next(iter(lines.values())))
    grid = figure.add_gridspec(
        len(lines), across, width_ratios=[2.2] + [1] * (across - 1), wspace=0.05, hspace=0.08
    )
    for down, (name, pictures) in enumerate(lines.items()):
        title = figure.add_subplot(grid[down, 0])
        title.axis("off")
        title.text(1, 0.5, name, ha="right", va="center", fontsize=8, wrap=True)
        for place, picture in enumerate(pictures):
            axes = figure.add_subplot(grid[down, place + 1])
            axes.imshow(picture[0].numpy(), cmap="gray_r")
            axes.axis("off")
    figure.savefig(PICTURE, bbox_inches="tight")
