"""Every method with every addition over 250 rounds on digits without attackers: which compositions diverge?"""

import fedskew as fs
from fedskew.algorithms.contract import algorithms
from fedskew.core.errors import FedskewError

RULES = (
    "median",
    "trimmed-mean",
    "krum:attackers=2,keep=5",
    "krum:attackers=2",
    "clip:norm=1",
    "ccvr",
)
ROUNDS, FALL = 250, 0.1  # divergence: so far below the best round


def main() -> None:
    fed = fs.split(fs.load("digits"), "dirichlet:alpha=0.5", clients=10, seed=0)
    methods = [name for name in algorithms if not algorithms.get(name).addition]
    print(
        "test accuracy in the last round (best round), digits, dirichlet:alpha=0.5, 10 clients, logreg, 250 rounds\n"
    )
    print("| method | alone |", " | ".join(RULES), "|")
    print("|---" * (len(RULES) + 2) + "|")
    fallen = []
    for method in methods:
        alone, cells = _train(fed, method), []
        for rule in RULES:
            found = _train(fed, f"{method} + {rule}")
            cells.append(_shown(found))
            if _fell(found) and not _fell(alone):
                fallen.append(f"{method} + {rule}")
        print(f"| {method} | {_shown(alone)} |", " | ".join(cells), "|", flush=True)
    print(
        f"\nfell by more than {FALL} from their best round while the method alone does not: "
        f"{', '.join(fallen) or 'none'}"
    )


def _train(fed: fs.Federation, spec: str) -> tuple[float, float] | str:
    try:
        settings = {"rounds": ROUNDS, "eval_every": 10, "folder": False, "device": "cpu"}
        run = fs.train(fed, "logreg", spec, **settings)
    except FedskewError as problem:
        return "refused" if "round" not in str(problem)[:6] else "aborted"
    part = "test" if "test_accuracy" in run.rounds else "own_test"
    return run.rounds[f"{part}_accuracy"].dropna().iloc[-1], run.rounds[f"{part}_accuracy"].max()


def _fell(found: tuple[float, float] | str) -> bool:
    return found == "aborted" if isinstance(found, str) else found[0] < found[1] - FALL


def _shown(found: tuple[float, float] | str) -> str:
    return found if isinstance(found, str) else f"{100 * found[0]:.1f} ({100 * found[1]:.1f})"
