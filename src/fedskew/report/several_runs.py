"""Several runs side by side: their curves as means over seeds, and a table of their summaries."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.report.markup import Markup, shown, table
from fedskew.report.run_data import CELLS, Columns, RunData, spelled
from fedskew.runs import sweep
from fedskew.runs.figures import SIZES, TIMES, unit_for
from fedskew.runs.folder import RunFolder
from fedskew.runs.open_run import open_run
from fedskew.runs.summary import mean_and_std

_NOT_NAMED = {  # settings that are named otherwise, or do not change what a run finds
    "algorithm", "seed", "split_seed", "threads", "workers", "device", "engine", "memory", "checkpoint_every",
    "tensorboard", "mlflow", "wandb",
}  # fmt: skip
_SAID = 6  # methods in the sentence about a chart
_CHOICES = ("data", "skew", "model", "task", "fleet")
_PARTS = {"test": "test", "own_test": "personal models, test", "validation": "validation", "train": "training"}
_SHOWN = {  # of the summaries: title and factor
    "test_{metric}_last": ("test {metric}", 1),
    "test_{metric}_best": ("best", 1),
    "own_test_{metric}_mean": ("personal models", 1),
    "client_{metric}_mean": ("clients", 1),
    "client_{metric}_worst_10_percent": ("worst 10 %", 1),
    "gini_of_client_weights": ("Gini", 1),
    "bytes": ("MB", 1e-6),
    "simulated_seconds": ("simulated s", 1),
    "seconds": ("s", 1),
}


@dataclass(frozen=True)
class Compared:
    """Runs that are shown together; those that ``failed`` have no curves, but a reason."""

    runs: Sequence[RunData]
    failed: Mapping[str, str]

    @cached_property
    def _different(self) -> dict[str, str | None]:
        """The settings and choices in which runs differ, beside method and seed, with the value of most runs."""
        settings = [_settings(run) for run in self.runs]
        result: dict[str, str | None] = {}
        for name in dict.fromkeys(name for one in settings for name in one):
            (value, count), *others = Counter(str(one.get(name)) for one in settings).most_common()
            if others and name not in _NOT_NAMED:
                result[name] = value if 2 * count > len(settings) else None
        return result

    def label_of(self, run: RunData) -> str:
        """Return the method of a run, with the settings in which it differs from most runs; seeds have one label."""
        values = {name: str(_settings(run).get(name)) for name in self._different}
        named = [f"{name}={value}" for name, value in values.items() if value != self._different[name]]
        return ", ".join([str(run.summary["algorithm"]), *named])

    @property
    def title(self) -> str:
        """Return which methods are compared, and on what data."""
        methods = list(dict.fromkeys(str(run.summary["algorithm"]) for run in self.runs))
        data = list(dict.fromkeys(str(run.summary["data"]) for run in self.runs))
        return " on ".join(", ".join(names[:4]) + (", …" if len(names) > 4 else "") for names in (methods, data))

    @cached_property
    def labels(self) -> dict[str, list[RunData]]:
        """Return the runs of every label."""
        result: dict[str, list[RunData]] = {}
        for run in self.runs:
            result.setdefault(self.label_of(run), []).append(run)
        return result

    @cached_property
    def _units(self) -> tuple[str, str]:
        """The units of bytes and of simulated time that suit all runs."""
        sent = max(run.summary["bytes_down"] + run.summary["bytes_up"] for run in self.runs)
        return unit_for(sent, SIZES), unit_for(max(run.rounds["clock"][-1] for run in self.runs), TIMES)

    @property
    def axes(self) -> dict[str, str]:
        """Return what the curves can be drawn against: column and title."""
        size, time = self._units
        return {"round": "round", "sent": f"sent so far, both ways ({size})", "clock": f"simulated time ({time})"}

    @cached_property
    def tables(self) -> dict[str, Columns]:
        """Return the curves of every label: means over its seeds, and mean ± standard deviation as low and high."""
        most = max(1, CELLS // (len(self.labels) * 3 * (len(self.columns()) + 1)))
        return {label: self._curves(runs, most) for label, runs in self.labels.items()}

    def _curves(self, runs: Sequence[RunData], most: int) -> Columns:
        count = min(len(run.rounds["round"]) for run in runs)
        at = np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))
        size, time = self._units
        sent = [np.cumsum(np.add(run.rounds["bytes_down"], run.rounds["bytes_up"]))[at] for run in runs]
        clock = [np.array(run.rounds["clock"])[at] for run in runs]
        result: Columns = {
            "round": [runs[0].rounds["round"][i] for i in at],
            "sent": (np.mean(sent, 0) / SIZES[size]).tolist(),
            "clock": (np.mean(clock, 0) / TIMES[time]).tolist(),
        }
        for name in self.columns():
            if not all(name in run.rounds for run in runs):
                continue
            rows = [[run.rounds[name][i] for run in runs] for i in at]
            known = [mean_and_std(row) if None not in row else (None, None) for row in rows]
            result[name] = [mean for mean, _ in known]
            if len(runs) > 1:
                result[f"{name} low"] = [None if m is None or s is None else m - s for m, s in known]
                result[f"{name} high"] = [None if m is None or s is None else m + s for m, s in known]
        return result

    def columns(self) -> dict[str, str]:
        """Return the curves that at least one run has: the metric that decides on test rows first."""
        found = {}
        for metric in dict.fromkeys([*(run.metric for run in self.runs), "loss"]):
            for part, title in _PARTS.items():
                name = f"{part}_{metric}"
                if any(any(value is not None for value in run.rounds.get(name, [])) for run in self.runs):
                    found[name] = f"{title} {metric}"
        return found

    def metric_of(self, column: str) -> str:
        """Return the metric of a column."""
        return next(column.removeprefix(f"{part}_") for part in _PARTS if column.startswith(f"{part}_"))

    def ends(self, column: str) -> str:
        """Say where the curves end, the first ones if there are many."""
        known = {
            label: [value for value in self.tables[label].get(column, []) if value is not None] for label in self.labels
        }
        ends = [f"{label} {values[-1]:.4g}" for label, values in known.items() if values]
        more = f"; and {len(ends) - _SAID} more" if len(ends) > _SAID else ""
        return f"At the end: {'; '.join(ends[:_SAID])}{more}."

    def numbers(self, column: str) -> Markup:
        """Return the means of a column in up to 50 rounds, by label."""
        by_round = {
            label: dict(zip(columns["round"], columns[column], strict=True))
            for label, columns in self.tables.items()
            if column in columns
        }
        rounds = sorted({number for one in by_round.values() for number in one})
        some = rounds[:: -(-len(rounds) // 50)]
        rows = [[number, *(one.get(number) for one in by_round.values())] for number in some]
        return table(column, ["round", *by_round], rows)

    def summary_rows(self) -> tuple[list[str], list[list[Any]]]:
        """Return the titles and the rows of the table of summaries."""
        metric = self.runs[0].metric
        keys = {
            key.format(metric=metric): (title.format(metric=metric), scale) for key, (title, scale) in _SHOWN.items()
        }
        known = {
            label: [{**run.summary, "bytes": run.summary["bytes_down"] + run.summary["bytes_up"]} for run in runs]
            for label, runs in self.labels.items()
        }
        kept = [key for key in keys if any(row.get(key) is not None for rows in known.values() for row in rows)]
        lines = []
        for label, rows in known.items():
            cells = [_mean([row.get(key) for row in rows], keys[key][1]) for key in kept]
            lines.append([label, ", ".join(str(row["seed"]) for row in rows), *cells])
        lines += [[name, "failed", reason, *[""] * (len(kept) - 1)] for name, reason in self.failed.items()]
        return ["method", "seeds", *(keys[key][0] for key in kept)], lines

    def warnings(self) -> list[str]:
        """Return warnings about the comparison and about its runs."""
        summaries = [run.summary for run in self.runs]
        found = sweep.warnings_of([str(row["algorithm"]) for row in summaries], summaries)
        found += [f"{name} failed: {reason}" for name, reason in self.failed.items()]
        if len({run.metric for run in self.runs}) > 1:
            found.append("The runs go by different metrics; the table has that of the first.")
        for run in self.runs:
            own = run.summary.get("warnings", [])
            found += [f"{run.record.folder.name}: {text}" for text in run.warnings() if text not in own]
        return found

    def common(self) -> dict[str, Any]:
        """Return the settings that all runs share."""
        skipped = {*self._different, "algorithm", "seed"}
        first = self.runs[0].record.config
        return {
            name: value
            for name, value in first.items()
            if name not in skipped and all(run.record.config.get(name) == value for run in self.runs)
        }


def _settings(run: RunData) -> dict[str, Any]:
    """Return the settings of a run, with its choices in short."""
    config = {name: spelled(value) for name, value in run.record.config.items()}
    return {**config, **{kind: run.summary.get(kind) for kind in _CHOICES}}


def _mean(values: Sequence[float | None], scale: float) -> str:
    known = [scale * value for value in values if value is not None]
    if not known:
        return "–"
    mean, std = mean_and_std(known)
    return str(shown(mean)) if std is None else f"{mean:.4g} ± {std:.2g}"


def compared(folders: Sequence[Path]) -> Compared:
    """Return the runs of these folders; the folder of a comparison stands for all its runs."""
    runs, failed = [], {}
    for folder in folders:
        inside = (
            [folder / member.name for member in sweep.read(folder)] if (folder / sweep.GROUP).is_file() else [folder]
        )
        for place in inside:
            if (place / sweep.FAILED).is_file():
                failed[place.name] = str(RunFolder(place).read_json(sweep.FAILED).get("failed"))
            else:
                runs.append(RunData(open_run(place)))
    if not runs:
        raise FedskewError("no run has finished: nothing to report")
    return Compared(runs, failed)
