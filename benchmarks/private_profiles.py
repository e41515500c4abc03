"""Profiles that keep their secret: what noise, totals and learnt weights cost AFL-CP, and a round by clients."""

import multiprocessing
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
from scipy.stats import spearmanr
from scipy.stats import t as student

import fedskew as fs
from benchmarks.workloads import peak_megabytes
from fedskew.algorithms.contract import resolve
from fedskew.core.config import Settings
from fedskew.core.streams import Floats
from fedskew.data.drawn_partition import DrawnPartition
from fedskew.data.federation import Federation
from fedskew.models.build import build
from fedskew.server.server import Server

BLOCKS = range(10)
ZONE = 0.5  # points of accuracy within which two methods are equal
ROUNDS = 60
LATE_ROUNDS = 10  # over which accuracy is averaged
REFRESH = "refresh=10"
NOISY = f"{REFRESH},tellings=6"
REFERENCE = "AFL-CP"
METHODS = {
    REFERENCE: "afl-cp",
    "FedAvg": "fedavg",
    "clients report every 10 rounds": f"afl-cp:{REFRESH}",
    "epsilon 10": f"afl-cp:{NOISY},longest={{longest}},epsilon=10",
    "epsilon 1": f"afl-cp:{NOISY},longest={{longest}},epsilon=1",
    "epsilon 0.1": f"afl-cp:{NOISY},longest={{longest}},epsilon=0.1",
    "moments": f"afl-cp:{REFRESH},normalise=moments",
    "moments, epsilon 10": f"afl-cp:{NOISY},normalise=moments,epsilon=10",
    "moments, epsilon 1": f"afl-cp:{NOISY},normalise=moments,epsilon=1",
    "moments, epsilon 0.1": f"afl-cp:{NOISY},normalise=moments,epsilon=0.1",
    "entropy alone, epsilon 1": "afl-cp:epsilon=1",
    "learnt": "afl-cp:score=learnt",
}


@dataclass(frozen=True)
class Case:
    """A data set with the settings of its runs."""

    data: str
    deadline: float  # simulated seconds, also the declared range of a reported time
    target: float


CASES = (Case("digits", 1.0, 0.85), Case("uci-har:part=train", 2.0, 0.75))
SIZES = (10_000, 1_000_000, 10_000_000)
AT_SCALE = {
    "all report once": "afl-cp",
    "1,000 candidates": "afl-cp:candidates=1000",
    "1,000 candidates, whole profile": "afl-cp:candidates=1000,refresh=10",
    "1,000 candidates, epsilon 1": "afl-cp:candidates=1000,refresh=10,tellings=6,longest=12,epsilon=1",
    "1,000 candidates, moments": "afl-cp:candidates=1000,refresh=10,normalise=moments",
}


def main() -> None:
    """Print the tables of accuracy, evenness and time of docs/private-profiles.md."""
    for case in CASES:
        data = fs.load(case.data)
        feds = []
        for block in BLOCKS:
            feds.append(fs.split(data, "dirichlet:alpha=0.3,min_size=5", clients=30, seed=block))
        found = {}
        for title, method in METHODS.items():
            found[title] = _runs(case, feds, method.format(longest=case.deadline))
        print(f"\n{case.data}, target {case.target:.0%}\n", flush=True)
        _print_table(found)


def costs() -> None:
    """Print the seconds and bytes of a round among 10,000, 1,000,000 and 10,000,000 clients."""
    data = fs.load("digits")
    known = fs.split(data, "dirichlet:alpha=0.3,min_size=2", clients=100).partition
    print(
        "| profiles | clients | first round, s | a round, ms | first round, kB up | a round, kB up | MB |"
    )
    print("|---|---|---|---|---|---|---|", flush=True)
    for title, method in AT_SCALE.items():
        for clients in SIZES:
            fed = Federation(data, DrawnPartition.of_clients(known, clients, seed=0))
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                pool.submit(_print_cost, title, method, fed).result()


def _runs(case: Case, feds: Sequence[fs.Federation], method: str) -> Floats:
    """Return a row for each block: accuracy in %, Gini coefficient, seconds to the target, updates too late in %."""
    found = []
    for block, fed in zip(BLOCKS, feds, strict=True):
        run = _run(case, fed, method, block)
        rounds = run.rounds
        reached = rounds[rounds["test_accuracy"] >= case.target]
        seconds = np.nan
        if len(reached):
            seconds = float(reached["clock"].iloc[0])
        accuracy = 100 * float(rounds["test_accuracy"].iloc[-LATE_ROUNDS:].mean())
        late = 100 * run.summary["late_updates"] / run.summary["updates"]
        found.append([accuracy, run.summary["gini_of_client_weights"], seconds, late])
    return np.array(found)


def _run(case: Case, fed: fs.Federation, method: str, block: int) -> fs.Run:
    return fs.train(
        fed,
        "mlp:hidden=32",
        method,
        seed=block,
        rounds=ROUNDS,
        per_round=8,
        lr=0.05,
        fleet=f"mixed:slow=10,dropout=0.2,deadline={case.deadline:g}",
        threads=1,
        folder=False,
        device="cpu",
    )


def attack() -> None:
    """Print how well a server knows who is slow: by reported times with noise, and by its own clock."""
    print("| data | epsilon | true and reported times | true times and those of answers |")
    print("|---|---|---|---|")
    for case in CASES:
        data = fs.load(case.data)
        for epsilon in (10, 0.1):
            method = METHODS[f"epsilon {epsilon}"].format(longest=case.deadline)
            found = []
            for block in BLOCKS:
                fed = fs.split(data, "dirichlet:alpha=0.3,min_size=5", clients=30, seed=block)
                found.append(_rank_correlations(_run(case, fed, method, block)))
            cells = [_interval(values, ".2f") for values in np.array(found).T]
            print(f"| {case.data} | {epsilon:g} | {' | '.join(cells)} |", flush=True)


def _rank_correlations(run: fs.Run) -> tuple[float, float]:
    """Return those of clients' mean training times with the last reported ones, and with the times of their answers."""
    answered = run.clients[(run.clients["dropped"] == 0) & (run.clients["late"] == 0)]
    times = answered.groupby("client")[["training_seconds", "seconds"]].mean()
    profiles = run.server.participation.told
    assert profiles, "clients report in rounds"
    reported = profiles.of(times.index.to_numpy())["seconds"]
    known = np.isfinite(reported)
    true = times["training_seconds"]
    told = spearmanr(true[known], reported[known]).statistic
    return float(told), float(spearmanr(true, times["seconds"]).statistic)


def _print_table(found: Mapping[str, Floats]) -> None:
    print(
        "| method | accuracy, % | difference | verdict | Gini | difference | simulated s to target | late, % |"
    )
    print("|---|---|---|---|---|---|---|---|")
    reference = found[REFERENCE]
    for title, values in found.items():
        cells = [f"{values[:, 0].mean():.1f}"]
        gaps = values - reference
        difference = "-"
        verdict = "-"
        evenness = "-"
        if title != REFERENCE:
            difference = _interval(gaps[:, 0], "+.2f")
            verdict = _verdict(gaps[:, 0])
            evenness = _interval(gaps[:, 1], "+.3f")
        cells += [difference, verdict, f"{values[:, 1].mean():.3f}", evenness]
        cells += [_time(values[:, 2]), f"{values[:, 3].mean():.0f}"]
        print(f"| {title} | {' | '.join(cells)} |", flush=True)


def _time(seconds: Floats) -> str:
    """Return the mean time with its interval, or by how many blocks the target is reached."""
    reached = seconds[~np.isnan(seconds)]
    if len(reached) < len(seconds):
        return f"reached by {len(reached)} of {len(seconds)}"
    return _interval(seconds, ".0f")


def _half(values: Floats) -> float:
    return float(student.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5)


def _interval(values: Floats, style: str) -> str:
    """Return the mean with its 95 % t interval."""
    return f"{values.mean():{style}} ± {_half(values):{style.removeprefix('+')}}"


def _verdict(gaps: Floats) -> str:
    """Return whether a difference is better, equal, worse or undecided, by its interval and the zone."""
    low = gaps.mean() - _half(gaps)
    high = gaps.mean() + _half(gaps)
    if low >= -ZONE and high <= ZONE:
        return "equal"
    if low > 0:
        return "better"
    if high < 0:
        return "worse"
    return "undecided"


def _print_cost(title: str, method: str, fed: Federation) -> None:
    settings = Settings(
        rounds=10**6,
        per_round=100,
        batch_size=16,
        eval_every=10**6,
        fleet="mixed:slow=10,dropout=0.1",
        threads=1,
        device="cpu",
    )
    model = build("logreg", fed.data.shape, 10, seed=0)
    server = Server(fed, model, resolve(method), settings)
    seconds: list[float] = []
    sent: list[int] = []
    for _ in range(22):
        began = time.process_time()
        row = server.advance().round
        seconds.append(time.process_time() - began)
        sent.append(row["bytes_up"])
    updates = _sizes(sent)
    print(
        f"| {title} | {fed.clients:,} | {seconds[0]:.2f} | {1e3 * np.median(seconds[2:]):.0f} "
        f"| {updates[0]} | {updates[1]} | {peak_megabytes():.0f} |",
        flush=True,
    )


def _sizes(sent: Sequence[int]) -> tuple[str, str]:
    return f"{sent[0] / 1e3:,.0f}", f"{np.median(sent[2:]) / 1e3:,.0f}"
