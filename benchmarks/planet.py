"""A planet of phones: 100,000,000 clients of MNIST, with over-selection, asynchronously, and by profiles."""

import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

import fedskew as fs
from benchmarks.workloads import peak_megabytes
from fedskew.algorithms.contract import resolve
from fedskew.core.config import Settings
from fedskew.core.streams import Floats
from fedskew.data.drawn_partition import DrawnPartition
from fedskew.data.federation import Federation
from fedskew.fleet.ai_benchmark import measured_phones
from fedskew.models.build import build
from fedskew.server.server import Server

PHONES = 100_000_000
SIZES = (10_000, 1_000_000, PHONES)
AT_ONCE = 130  # phones that train at any time
TARGETS = (0.90,)  # in rising order
SEEDS = range(5)
TUNING_SEED = 100
RATES = (0.03, 0.1, 0.3, 1.0)
DAY = 86_400
LATER, MEASURED = 1000, 1000  # steps of FedBuff before shares are measured, and while they are
PHONE = "phones:source=ai-benchmark"


@dataclass(frozen=True)
class Contender:
    """A method with its fleet; it is evaluated after every ``every`` of its rounds, at most ``most`` times."""

    title: str
    method: str
    fleet: str
    every: int = 1
    most: int = 150


OVER = f"{PHONE},enough=0.7693"  # 100 of 130
CONTENDERS = (
    Contender("FedAvg, 100 of 130", "fedavg", OVER),
    Contender("AFL-CP, 100 of 130", "afl-cp", OVER),
    Contender("FedAvg, waits for 130", "fedavg", PHONE),
    Contender("FedBuff, 10 at a time", "fedbuff:buffer=10", PHONE, every=5, most=400),
)


def server_of(one: Contender, phones: int, seed: int, lr: float = 0.1) -> Server:
    """Return a server of so many phones, each with the rows of one of 1,000 clients of MNIST."""
    data = fs.load("mnist")
    known = fs.split(data, "dirichlet:alpha=0.3,min_size=8", clients=1000, seed=seed)
    fed = Federation(data, DrawnPartition.of_clients(known.partition, phones, seed))
    settings = Settings(
        rounds=10**6,
        per_round=AT_ONCE,
        epochs=2,
        batch_size=16,
        lr=lr,
        seed=seed,
        eval_every=one.every,
        fleet=one.fleet,
        device="cpu",
        threads=1,
    )
    model = build("mlp:hidden=32", data.shape, 10, seed=seed)
    return Server(fed, model, resolve(one.method), settings)


def costs() -> None:
    """What a round costs among 10,000, 1,000,000 and 100,000,000 phones, and a simulated day."""
    print("| method | phones | CPU ms a round | MB | simulated s a round | CPU s a simulated day |")
    print("|---|---|---|---|---|---|", flush=True)
    for one in CONTENDERS:
        for phones in SIZES:
            _apart(_cost, one, phones)


def main() -> None:
    """Print what methods need to the target, and whose updates they take."""
    rates = {}
    for one in CONTENDERS:
        hours = [_race(one, TUNING_SEED, lr, TARGETS[:1])[0, 0] for lr in RATES]
        rates[one] = RATES[int(np.nanargmin(hours))]
        print(f"{one.title}: lr {rates[one]:g}, hours {hours}", file=sys.stderr, flush=True)
    print(
        "| method | target | simulated minutes | updates | GB | share of the slowest quarter | of the fastest |"
    )
    print("|---|---|---|---|---|---|---|")
    results = {}
    for one in CONTENDERS:
        found = [_race(one, seed, rates[one], TARGETS) for seed in SEEDS]
        results[one] = np.array(found)  # seed x target x number
        for place, target in enumerate(TARGETS):
            cells = [_interval(values) for values in (results[one][:, place] * _UNITS).T]
            print(f"| {one.title} | {target:.2f} | {' | '.join(cells)} |", flush=True)
    for place, target in enumerate(TARGETS):
        ratios = results[CONTENDERS[0]][:, place] / results[CONTENDERS[-1]][:, place]
        for name, values in zip(("time", "updates", "bytes"), ratios.T, strict=False):
            print(f"over-selection over FedBuff, {name} to {target:.2f}: {_ratio(values)}")


def later_shares() -> None:
    """Whose updates FedBuff takes once every phone that began has had time to end."""
    one = CONTENDERS[-1]
    server = server_of(Contender(one.title, one.method, one.fleet, every=10**6), PHONES, 0)
    quarter = _Quarters(0)
    for step in range(LATER + MEASURED):
        result = server.advance()
        if step >= LATER:
            quarter.add(result)
    shares = [f"{quarter.share(number):.3f}" for number in range(4)]
    print(f"{one.title}, after {LATER:,} steps, slowest to fastest quarter: {', '.join(shares)}")


def _apart(what: object, *args: object) -> None:
    """Call a function in a process of its own, whose peak of memory is that of one server."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        pool.submit(what, *args).result()  # type: ignore[arg-type]


def _cost(one: Contender, phones: int) -> None:
    """Print what rounds of one method cost among so many phones."""
    server = server_of(Contender(one.title, one.method, one.fleet, every=10**6), phones, 0)
    seconds = []
    clocks = []
    for _ in range(60):
        began = time.process_time()  # of one thread: other work on the machine does not count
        clocks.append(server.advance().round["clock"])
        seconds.append(time.process_time() - began)
    usual = float(np.median(seconds[10:]))
    simulated = (clocks[-1] - clocks[9]) / 50
    print(
        f"| {one.title} | {phones:,} | {usual * 1e3:.1f} | {peak_megabytes():.0f} | {simulated:.1f} "
        f"| {usual * DAY / simulated:.0f} |",
        flush=True,
    )


# Hours in minutes, bytes in GB
_UNITS = np.array([60.0, 1.0, 1e-9, 1.0, 1.0])


def _race(one: Contender, seed: int, lr: float, targets: tuple[float, ...]) -> Floats:
    """Return a row for each target: hours, updates and bytes to it, and shares of the slowest and fastest quarter."""
    server = server_of(one, PHONES, seed, lr)
    quarter = _Quarters(seed)
    used = 0
    size = 0
    found: list[list[float]] = []
    for _ in range(one.most * one.every):
        result = server.advance()
        row = result.round
        used += row["clients"] - row["dropped"] - row["late"]
        size += row["bytes_up"] + row["bytes_down"]
        quarter.add(result)
        while len(found) < len(targets) and (row["test_accuracy"] or 0.0) >= targets[len(found)]:
            found.append([row["clock"] / 3600, used, size, quarter.share(0), quarter.share(3)])
        if len(found) == len(targets):
            break
    found += [[np.nan] * 5] * (len(targets) - len(found))
    return np.array(found)


class _Quarters:
    """The shares in the model of phones by quarters of the scores."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.phones = measured_phones()
        self.cuts = np.quantile(self.phones.scores, [0.25, 0.5, 0.75])
        self.weights = np.zeros(4)

    def add(self, result: object) -> None:
        """Add the weights of a round, each round counting equally."""
        columns = result.clients.columns  # type: ignore[attr-defined]
        clients = columns["client"].values
        scores = self.phones.scores[self.phones.model_of(clients, self.seed)]
        place = np.searchsorted(self.cuts, scores)
        self.weights += np.bincount(place, weights=columns["weight"].values, minlength=4)

    def share(self, quarter: int) -> float:
        """Return the share of a quarter, 0 the slowest."""
        return float(self.weights[quarter] / self.weights.sum())


def _interval(values: Floats) -> str:
    """Return the mean with its 95 % t interval."""
    known = values[~np.isnan(values)]
    if len(known) < len(values):
        return f"reached by {len(known)} of {len(values)}"
    half = student.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    return f"{values.mean():.3g} ± {half:.2g}"


def _ratio(values: Floats) -> str:
    """Return the geometric mean of paired ratios with its 95 % t interval."""
    logs = np.log(values)
    half = student.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / len(logs) ** 0.5
    low, middle, high = np.exp([logs.mean() - half, logs.mean(), logs.mean() + half])
    return f"{middle:.2f} times ({low:.2f} to {high:.2f})"
