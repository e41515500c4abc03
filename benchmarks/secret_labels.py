"""The label protocol: seconds of its parts beside Table IV of Stratify, and the traffic of each party."""

import os
import statistics
import time

from fedskew.core.streams import Stream
from fedskew.label_privacy.agreement import Agreement, agree
from fedskew.label_privacy.bfv import SLOTS, make_context, times
from fedskew.label_privacy.blinding import uniform

CLIENTS = (5, 10, 20)
CLASSES = {2: 1, 10: 5, 100: 50}  # labels of a client
PARTS = ("unique list", "mapping", "counts")
PAPER = {  # seconds, in the order of PARTS
    (2, 5): (0.02, 0.8, 0.008), (2, 10): (0.02, 0.8, 0.009), (2, 20): (0.009, 0.9, 0.01),
    (10, 5): (0.4, 1.3, 0.04), (10, 10): (0.5, 1.7, 0.04), (10, 20): (0.6, 2.0, 0.05),
    (100, 5): (63, 19, 0.4), (100, 10): (90, 22, 0.5), (100, 20): (102, 27, 0.6),
}  # fmt: skip
REPEATS = 5


def main() -> None:
    print(
        f"median of {REPEATS}; load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, one of them "
        "used\n"
    )
    heads = (
        "classes",
        "clients",
        "paper: list + mapping + counts",
        "ours",
        "ours, weighted",
        "times faster",
        "MB a client",
        "MB server",
    )
    print(f"| {' | '.join(heads)} |")
    print("|---|---|---|---|---|---|---|---|")
    for classes, each in CLASSES.items():
        for clients in CLIENTS:
            _print_line(classes, each, clients)
    _print_vectors()
    _print_one_by_one()
    print(f"\nload after: {os.getloadavg()[0]:.1f}")


def _print_line(classes: int, each: int, clients: int) -> None:
    plain, weighted = (_repeat(classes, each, clients, weighted) for weighted in (False, True))
    paper = PAPER[classes, clients]
    ours = _medians(plain)
    sent = plain[0].bytes_sent
    megabytes = (sum(sent.values()) - sent["server"]) / clients / 1e6
    print(
        f"| {classes} | {clients} | {_added(paper)} | {_added(ours)} | {_added(_medians(weighted))} | "
        f"{sum(paper) / sum(ours):.0f} | {megabytes:.1f} | {sent['server'] / 1e6:.1f} |",
        flush=True,
    )


def _repeat(classes: int, each: int, clients: int, weighted: bool) -> list[Agreement]:
    """Return clients of which client k holds the k-th ``each`` labels, cyclically."""
    held = [{(k * each + j) % classes: 100 + k for j in range(each)} for k in range(clients)]
    stream = Stream(0, "secret labels")
    return [
        agree(held, label_range=classes, stream=stream, weighted=weighted) for _ in range(REPEATS)
    ]


def _medians(runs: list[Agreement]) -> tuple[float, ...]:
    return tuple(statistics.median(run.seconds[part] for run in runs) for part in PARTS)


def _added(seconds: tuple[float, ...]) -> str:
    return f"{' + '.join(f'{round(value, 3):g}' for value in seconds)} s"


def _print_vectors() -> None:
    """Print the cost of one vector; the virtual clock counts vectors at fixed costs like these."""
    context, numbers = make_context(), uniform(SLOTS)
    data = context.encrypt(numbers).serialize()
    parts = {
        "encrypt": lambda: context.encrypt(numbers).serialize(),
        "decrypt": lambda: context.decrypt(data, "benchmark"),
        "blind": lambda: (
            context.cover(numbers) + times(context.load(data, "benchmark"), numbers)
        ).serialize(),
    }
    found = []
    for name, work in parts.items():
        began = time.perf_counter()
        for _ in range(50):
            work()
        found.append(f"{name} {20 * (time.perf_counter() - began):.1f} ms")
    print(f"\nOne vector: {', '.join(found)}")


def _print_one_by_one() -> None:
    """Print the estimated time of the protocol as printed, with a ciphertext for each label, from one comparison."""
    import tenseal as ts

    secret = ts.context(
        ts.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=[60, 40, 40, 60], n_threads=1
    )
    secret.global_scale = 2.0**40
    public = ts.context_from(secret.serialize(), 1)
    one, other = (
        ts.ckks_vector_from(public, ts.ckks_vector(secret, [label]).serialize())
        for label in (3.0, 5.0)
    )
    times = []
    for _ in range(50):
        began = time.perf_counter()
        ts.ckks_vector_from(secret, (one - other).serialize()).decrypt()
        times.append(time.perf_counter() - began)
    each, clients, classes = 50, 20, 100
    comparisons = (
        each * each + (clients - 2) * each * classes + clients * each * classes
    )  # for the list, then for the mapping
    print(
        f"\nAs printed, {classes} classes and {clients} clients: {comparisons:,} comparisons of "
        f"{1000 * statistics.median(times):.1f} ms, {comparisons * statistics.median(times):.0f} s on one core"
    )
