"""From the tables of a run to the few numbers that sum it up; accuracy is always named: whose, on what, last or best."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fedskew.measures.fairness import gini, rounds_to_share, worst_share_mean

Row = dict[str, Any]


def summarise(rounds: Sequence[Row], clients: Iterable[Row], final: Sequence[Row], population: int, held_out: bool) -> Row:
    """The summary of a run that has at least one round; ``population`` is the number of clients that could be chosen."""
    result: Row = {"rounds": len(rounds)}
    for part in ("train", "validation", "test", "own_test", "trained_test"):
        result |= _last_and_best(rounds, part)
    result |= _until_90_percent(rounds)
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
        f"{part}_loss_last": last[f"{part}_loss"],
    }


def _until_90_percent(rounds: Sequence[Row]) -> Row:
    """What it took until the global model first had 90 % of its last test accuracy; bytes are those of both ways."""
    scored = [row for row in rounds if row.get("test_accuracy") is not None]
    place = rounds_to_share([row["test_accuracy"] for row in scored], 0.9)
    spent: Row = dict.fromkeys(("rounds", "simulated_seconds", "bytes"))
    if place is not None:
        reached = scored[place - 1]
        sent = sum(row["bytes_down"] + row["bytes_up"] for row in rounds if row["round"] <= reached["round"])
        spent = {"rounds": reached["round"], "simulated_seconds": reached["clock"], "bytes": sent}
    return {f"{what}_to_90_percent_of_last_test_accuracy": value for what, value in spent.items()}


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
    own = [row["own_test_accuracy"] for row in final if row.get("own_test_accuracy") is not None]
    if own:
        result["own_test_accuracy_mean"] = float(np.mean(own))
    return result


def _accumulated(clients: Iterable[Row], population: int) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Weight that each client had over all rounds, 0 for those never chosen."""
    total = np.zeros(population)
    for row in clients:
        total[row["client"]] += row["weight"]
    return total
