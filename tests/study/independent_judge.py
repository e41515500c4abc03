"""A judge of comparisons, written from docs/compare.md alone: it reads the run folders, and imports no fedskew."""

import json
import math
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats


def read_runs(folder: Path, goal: str, metric: str) -> pd.DataFrame:
    """One row per run: method, rate, seed, score on test rows and on validation rows, one test row as a share."""
    runs = []
    for entry in json.loads((folder / "group.json").read_text()):
        config = tomllib.loads((folder / entry["name"] / "config.toml").read_text())
        summary = json.loads((folder / entry["name"] / "summary.json").read_text())
        last = pd.read_csv(folder / entry["name"] / "rounds.csv").iloc[-1]
        clients = pd.read_csv(folder / entry["name"] / "clients_final.csv")
        run = {"method": entry["algorithm"], "lr": config["lr"], "seed": config["seed"]}
        if goal == "shared":
            score, validation = last[f"test_{metric}"], last[f"validation_{metric}"]
            row = 1 / summary["test_rows"]
        else:
            held_out = clients[clients["test_rows"] > 0]
            score, validation = held_out[metric].mean(), clients[f"validation_{metric}"].mean()
            row = 1 / held_out["test_rows"].median() / math.sqrt(len(held_out))
        runs.append({**run, "score": score, "validation": validation, "row": row})
    return pd.DataFrame(runs)


def interval(differences: np.ndarray, row: float, level: float) -> tuple[float, float]:
    """A paired t interval, with at least the deviation that rounding to whole rows hides."""
    n = len(differences)
    deviation = max(float(np.std(differences, ddof=1)), math.sqrt(1 / 6) * row)
    half = stats.t.ppf((1 + level) / 2, n - 1) * deviation / math.sqrt(n)
    return differences.mean() - half, differences.mean() + half


def judge(folder: Path, goal: str, methods: list[str], metric: str = "accuracy") -> dict[str, Any]:
    """For every method what was chosen and its scores; and for all but fedavg the difference, intervals and verdict."""
    runs = read_runs(folder, goal, metric)
    row = float(runs["row"].iloc[0])  # of the first block: frozen before the first run
    zone = max(0.005, 2 * row)
    chosen: dict[str, dict[str, Any]] = {}
    scores: dict[str, pd.Series] = {}
    for method, tries in runs.groupby("method"):
        rate = tries.groupby("lr")["validation"].mean().idxmax()
        scores[str(method)] = tries[tries["lr"] == rate].set_index("seed")["score"].sort_index()
        mean, std = scores[str(method)].mean(), scores[str(method)].std(ddof=1)
        best_on_test = tries.groupby("lr")["score"].mean().idxmax()
        chosen[str(method)] = {"lr": rate, "score": mean, "std": std, "on_test": best_on_test}
    contrasts: dict[str, dict[str, Any]] = {}
    rivals = [method for method in methods if method != "fedavg"]
    for method in rivals:
        differences = (scores[method] - scores["fedavg"]).to_numpy()
        low, high = interval(differences, row, 1 - 0.05 / len(rivals))
        low_90, high_90 = interval(differences, row, 0.90)
        if -zone <= low_90 and high_90 <= zone:
            verdict = "equal"
        elif low > 0 or high < 0:
            verdict = "better" if low > 0 else "worse"
        else:
            verdict = "undecided"
        numbers = {"difference": differences.mean(), "low": low, "high": high}
        contrasts[method] = numbers | {"low_90": low_90, "high_90": high_90, "verdict": verdict}
    return {"zone": zone, "chosen": chosen, "contrasts": contrasts}
