"""From the tables of a run to the few numbers that sum it up; accuracy is always named: whose, on what, last or best."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fedskew.heterogeneity.fairness import gini, rounds_to_share, worst_share_mean

Row = dict[str, Any]

LATE_ROUNDS = 15  # over which late oscillation is measured


def summarise(rounds: Sequence[Row], clients: Iterable[Row], final: Sequence[Row], population: int, held_out: bool) -> Row:
    """The summary of a run that has at least one round; ``population`` is the number of clients that could be chosen."""
    result: Row = {"rounds": len(rounds)}
    for part in ("train", "validation", "test", "own_test", "trained_test", "calibrated_test"):
        result |= _last_and_best(rounds, part)
    result |= _late_oscillation(rounds)
    for part in ("test", "calibrated_test"):
        result |= _until_90_percent(rounds, part)
    result |= _over_clients(final, held_out)
    result["gini_of_client_weights"] = float(gini(_accumulated(clients, population)))
    result["updates"] = sum(row["clients"] for row in rounds)
    result |= {f"{fate}_updates": sum(row[fate] for row in rounds) for fate in ("excluded", "dropped", "late")}
    result |= {name: sum(row[name] for row in rounds) for name in ("bytes_down", "bytes_up")}
    result["simulated_seconds"] = rounds[-1]["clock"]
    return result


def _last_and_best(rounds: Sequence[Row], part: str) -> Row:
    scored = [row for row in rounds if row.get(f"{part}_accuracy") is not None]
    if not scored:
        return {}
    last, best = scored[-1], max(scored, key=lambda row: float(row[f"{part}_accuracy"]))
    return {
        f"{part}_accuracy_last": last[f"{part}_accuracy"],
        f"{part}_accuracy_best": best[f"{part}_accuracy"],
        f"{part}_accuracy_best_round": best["round"],
        f"{part}_balanced_accuracy_last": last[f"{part}_balanced_accuracy"],
        f"{part}_loss_last": last[f"{part}_loss"],
    }


def _late_oscillation(rounds: Sequence[Row]) -> Row:
    """The standard deviation (n - 1) of the test accuracy over the last rounds; None where too few of them were scored."""
    late = [row["test_accuracy"] for row in rounds[-LATE_ROUNDS:] if row.get("test_accuracy") is not None]
    return {f"test_accuracy_std_of_last_{LATE_ROUNDS}_rounds": float(np.std(late, ddof=1)) if len(late) > 2 else None}


def _until_90_percent(rounds: Sequence[Row], part: str) -> Row:
    """What it took until the global model first had 90 % of its last, and of its best, accuracy; bytes are both ways."""
    scored = [row for row in rounds if row.get(f"{part}_accuracy") is not None]
    accuracy = [row[f"{part}_accuracy"] for row in scored]
    result: Row = {}
    if not scored and part != "test":
        return result
    for which, goal in (("last", accuracy[-1:]), ("best", [max(accuracy)] if accuracy else [])):
        place = rounds_to_share(accuracy, 0.9, *goal)
        spent: Row = dict.fromkeys(("rounds", "simulated_seconds", "bytes"))
        if place is not None:
            reached = scored[place - 1]
            sent = sum(row["bytes_down"] + row["bytes_up"] for row in rounds if row["round"] <= reached["round"])
            spent = {"rounds": reached["round"], "simulated_seconds": reached["clock"], "bytes": sent}
        result |= {f"{what}_to_90_percent_of_{which}_{part}_accuracy": value for what, value in spent.items()}
    return result


def _over_clients(final: Sequence[Row], held_out: bool) -> Row:
    """Means over the clients, and over the worst of them, at the end."""
    result: Row = {}
    accuracy = np.array([row["accuracy"] for row in final], dtype=np.float64)
    known = accuracy[np.isfinite(accuracy)]
    if len(known):
        result["client_accuracy_mean"] = float(known.mean())
        result["client_accuracy_worst_10_percent"] = float(worst_share_mean(known, 0.1))
        result["client_accuracy_rows"] = "held-out rows of each client" if held_out else "training rows of each client"
    shared = np.array([row["global_accuracy"] for row in final if row.get("global_accuracy") is not None], dtype=np.float64)
    if np.isfinite(shared).any():
        result["client_accuracy_of_global_model_mean"] = float(np.nanmean(shared))
    for name in ("own_test_accuracy", "own_test_balanced_accuracy"):
        own = [row[name] for row in final if row.get(name) is not None]
        if own:
            result[f"{name}_mean"] = float(np.mean(own))
    return result


def _accumulated(clients: Iterable[Row], population: int) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Weight that each client had over all rounds, 0 for those never chosen."""
    total = np.zeros(population)
    for row in clients:
        total[row["client"]] += row["weight"]
    return total
