"""Several runs side by side: what they do not share, and their curves as means over seeds."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedskew.core.config import read_file
from fedskew.core.errors import FedskewError
from fedskew.core.registry import Choice, compose, parts_of
from fedskew.core.streams import Ints
from fedskew.core.units import SIZES, TIMES, unit_for
from fedskew.runs.folder import CONFIG, GROUP, RunFolder, resume_command
from fedskew.runs.recorded_config import from_python
from fedskew.runs.run import open_run
from fedskew.runs.summary_reading import mean_and_std
from fedskew.study.member import FAILED, read_members
from fedskew.study.overview import warnings_of
from fedskew.study.run_curves import CELLS, Columns
from fedskew.study.run_data import RunData, name_of
from fedskew.study.setting import Setting

_NOT_NAMED = {  # settings that are named otherwise, or do not change what a run finds
    "algorithm", "seed", "split_seed", "threads", "workers", "device", "engine", "memory", "checkpoint_every",
    "tensorboard", "mlflow", "wandb", "metric",
}  # fmt: skip
# Settings of the data and the clients, which a method does not choose
_CONDITIONS = {
    "data", "skew", "clients", "validation", "client_test", "client_validation", "unseen", "bins", "task", "fleet",
}  # fmt: skip
_TITLED = 4  # methods or data sets in a title
_SAID = 6  # methods in the sentence about a chart
_PARTS = {
    "test": "test",
    "client_test": "clients' held-out rows,",
    "client_validation": "clients' validation rows,",
    "own_test": "personal models, test",
    "validation": "validation",
    "train": "training",
}


@dataclass(frozen=True)
class FailedRun:
    """A run that diverged: its name, why, and what it was."""

    name: str
    reason: str
    setting: Setting

    @property
    def said(self) -> str:
        """Return its name and the reason, which may begin with the name already."""
        if self.reason.startswith(self.name):
            return self.reason
        return f"{self.name}: {self.reason}"


@dataclass(frozen=True)
class Compared:
    """Runs that are shown together; those that ``failed`` have no curves, but a reason."""

    runs: Sequence[RunData]
    failed: Sequence[FailedRun]
    twice: Sequence[str] = ()  # folders of runs that are here already
    # Names of numbers that were chosen for each method: they are no part of its label
    chosen: frozenset[str] = frozenset()

    @cached_property
    def settings(self) -> list[Setting]:
        """Return what every run was, and then every failed one."""
        return [*map(Setting.of_run, self.runs), *(run.setting for run in self.failed)]

    @cached_property
    def _different(self) -> dict[str, str | None]:
        """The settings in which runs differ, beside method and seed, with the value of most runs; None without one."""
        usual: dict[str, str | None] = {}
        for name in dict.fromkeys(name for setting in self.settings for name in setting.values):
            values = Counter(str(setting.values.get(name)) for setting in self.settings)
            if len(values) == 1 or name in _NOT_NAMED:
                continue
            usual[name] = None
            value, count = values.most_common(1)[0]
            if 2 * count > len(self.settings):
                usual[name] = value
        return usual

    @property
    def different_settings(self) -> list[str]:
        """Return the settings of the training in which runs differ."""
        return [name for name in self._different if name not in _CONDITIONS]

    @property
    def different_conditions(self) -> list[str]:
        """Return the conditions in which runs differ, such as the skew."""
        return [name for name in self._different if name in _CONDITIONS]

    def label_of(self, one: Setting, conditions: bool = True) -> str:
        """Return the method of a run, with the settings in which it differs from most runs; seeds have one label."""
        values = {}
        for name in self._different:
            if name not in self.chosen and (conditions or name not in _CONDITIONS):
                values[name] = str(one.values.get(name))
        named = []
        for name, value in values.items():
            if value != self._different[name]:
                named.append(f"{name}={value}")
        return ", ".join([self._algorithm(one), *named])

    def _algorithm(self, one: Setting) -> str:
        """Return the method of a run with every option that any run of that method was given."""
        options = {}
        for name in self._options[one.method]:
            if name not in self.chosen:
                options[name.removeprefix(f"{one.method}.")] = one.options.get(name)
        if None in options.values():
            return one.algorithm
        if " + " in one.method:
            return self._without_chosen(one.algorithm)
        return str(Choice(one.method, options))

    def _without_chosen(self, algorithm: str) -> str:
        """Return a method with additions without the numbers that were chosen for it."""
        parts = []
        for part in parts_of(algorithm, "algorithm"):
            options = {}
            for name, value in part.options.items():
                if name not in self.chosen and f"{part.name}.{name}" not in self.chosen:
                    options[name] = value
            parts.append(Choice(part.name, options))
        return str(compose(parts))

    @cached_property
    def _options(self) -> dict[str, list[str]]:
        """The names of the options that any run was given, by method."""
        given: dict[str, dict[str, None]] = {}
        for setting in self.settings:
            given.setdefault(setting.method, {}).update(dict.fromkeys(setting.given_options))
        return {method: list(names) for method, names in given.items()}

    @property
    def title(self) -> str:
        """Return which methods are compared, and on what data."""
        methods = list(dict.fromkeys(str(run.summary["algorithm"]) for run in self.runs))
        data = list(dict.fromkeys(name_of(run.summary["data"]) for run in self.runs))
        return f"{_some_of(methods)} on {_some_of(data)}"

    @cached_property
    def labels(self) -> dict[str, list[RunData]]:
        """Return the runs of every label."""
        result: dict[str, list[RunData]] = {}
        for run, setting in zip(self.runs, self.settings, strict=False):
            result.setdefault(self.label_of(setting), []).append(run)
        return result

    @cached_property
    def panels(self) -> dict[str, dict[str, str]]:
        """Return a panel for every set of conditions: the labels of its runs, each with its short form in the panel."""
        panels: dict[str, dict[str, str]] = {}
        for setting in self.settings[: len(self.runs)]:
            title = ", ".join(
                f"{name} {setting.values.get(name)}" for name in self.different_conditions
            )
            panel = panels.setdefault(title, {})
            panel[self.label_of(setting)] = self.label_of(setting, conditions=False)
        return panels

    @cached_property
    def _units(self) -> tuple[str, str]:
        """The units of bytes and of simulated time that suit all runs."""
        sent = max(run.summary["bytes_down"] + run.summary["bytes_up"] for run in self.runs)
        return unit_for(sent, SIZES), unit_for(
            max(run.rounds["clock"][-1] for run in self.runs), TIMES
        )

    @property
    def axes(self) -> dict[str, str]:
        """Return what the curves can be drawn against: column and title."""
        size, time = self._units
        return {
            "round": "round",
            "sent": f"sent so far, both ways ({size})",
            "clock": f"simulated time ({time})",
        }

    @cached_property
    def tables(self) -> dict[str, Columns]:
        """Return the curves of every label: means over its seeds, and mean ± standard deviation as low and high."""
        most = max(1, CELLS // (len(self.labels) * 3 * (len(self.columns()) + 1)))
        result: dict[str, Columns] = {}
        for label, runs in self.labels.items():
            result[label] = self._curves(runs, most)
        return result

    def _curves(self, runs: Sequence[RunData], most: int) -> Columns:
        """Return the means of runs that differ in their seeds, in at most so many rounds at even steps."""
        count = min(len(run.rounds["round"]) for run in runs)
        at = np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))
        size, time = self._units
        sent = []
        clock = []
        for run in runs:
            sent.append(np.cumsum(np.add(run.rounds["bytes_down"], run.rounds["bytes_up"]))[at])
            clock.append(np.array(run.rounds["clock"])[at])
        curves: Columns = {
            "round": [runs[0].rounds["round"][i] for i in at],
            "sent": (np.mean(sent, 0) / SIZES[size]).tolist(),
            "clock": (np.mean(clock, 0) / TIMES[time]).tolist(),
        }
        for name in self.columns():
            if all(name in run.rounds for run in runs):
                curves |= _over_seeds(name, [run.rounds[name] for run in runs], at)
        return curves

    def columns(self) -> dict[str, str]:
        """Return the curves that at least one run has: the metric that decides on test rows first."""
        found = {}
        for metric in dict.fromkeys([*(run.metric for run in self.runs), "loss"]):
            for part, title in _PARTS.items():
                name = f"{part}_{metric}"
                if any(run.has_curve(name) for run in self.runs):
                    found[name] = f"{title} {metric.replace('_', ' ')}"
        return found

    def metric_of(self, column: str) -> str:
        """Return the metric of a column."""
        for part in _PARTS:
            if column.startswith(f"{part}_"):
                return column.removeprefix(f"{part}_")
        raise KeyError(column)

    def ends(self, column: str, labels: Mapping[str, str], show: Callable[[float], str]) -> str:
        """Say where the curves of some labels end, the first ones if there are many."""
        ends = []
        for label, name in labels.items():
            values = []
            for value in self.tables[label].get(column, []):
                if value is not None:
                    values.append(value)
            if values:
                ends.append(f"{name} {show(values[-1])}")
        more = ""
        if len(ends) > _SAID:
            more = f"; and {len(ends) - _SAID} more"
        return f"At the end: {'; '.join(ends[:_SAID])}{more}."

    def warnings(self) -> list[str]:
        """Return warnings about the comparison and about its runs."""
        summaries = [run.summary for run in self.runs]
        found = warnings_of([str(row["algorithm"]) for row in summaries], summaries)
        found += [f"failed: {run.said}" for run in self.failed]
        found += self.counted_once()
        if len({run.own_metric for run in self.runs}) > 1:
            found.append("The runs go by different metrics; all are judged by that of the first.")
        about_data: dict[str, None] = {}
        for run in self.runs:
            about_data |= dict.fromkeys(run.data_warnings)
        return [*found, *about_data, *self._warnings_of_runs()]

    def _warnings_of_runs(self) -> list[str]:
        """Return what is said of single runs, beside what their summaries warn of."""
        found = []
        for run in self.runs:
            known = [*run.summary.get("warnings", []), *run.data_warnings]
            for text in run.warnings():
                if text not in known:
                    found.append(f"{run.disk.path.name}: {text}")
        return found

    def counted_once(self) -> list[str]:
        """Return a warning about runs that were given twice, if any was."""
        if not self.twice:
            return []
        names = ", ".join(self.twice[:_SAID])
        if len(self.twice) > _SAID:
            names += f" and {len(self.twice) - _SAID} more"
        return [f"{names}: the same method, settings and seed as another run, counted once"]

    def common(self) -> dict[str, Any]:
        """Return the settings that all runs share."""
        skipped = {*self._different, "algorithm", "seed"}
        configs = [run.record.config for run in self.runs]
        shared: dict[str, Any] = {}
        for name, value in configs[0].items():
            if name in skipped:
                continue
            if all(config.get(name) == value for config in configs):
                shared[name] = value
        return shared


def _some_of(names: Sequence[str]) -> str:
    """Return the first names in one line."""
    if len(names) > _TITLED:
        return ", ".join(names[:_TITLED]) + ", …"
    return ", ".join(names)


def _over_seeds(name: str, curves: Sequence[Sequence[float | None]], at: Ints) -> Columns:
    """Return the mean of a curve over seeds in the rounds ``at`` and, with several seeds, mean ± standard deviation."""
    means: list[float | None] = []
    low: list[float | None] = []
    high: list[float | None] = []
    for place in at:
        known = [curve[place] for curve in curves if curve[place] is not None]
        mean, std = None, None
        if len(known) == len(curves):
            mean, std = mean_and_std(known)
        means.append(mean)
        if mean is None or std is None:
            low.append(None)
            high.append(None)
        else:
            low.append(mean - std)
            high.append(mean + std)
    if len(curves) == 1:
        return {name: means}
    return {name: means, f"{name} low": low, f"{name} high": high}


def compared(folders: Sequence[Path], chosen: frozenset[str] = frozenset()) -> Compared:
    """Return the runs of these folders; the folder of a comparison stands for all its runs.

    ``chosen`` are names of numbers that were chosen for each method.
    """
    runs = dict[str, RunData]()
    failed = dict[str, FailedRun]()
    twice = []
    for place in _places_of_runs(folders):
        if (place / FAILED).is_file():
            reason = str(RunFolder(place).read_json(FAILED).get("failed"))
            broken = FailedRun(place.name, reason, Setting.of_config(read_file(place / CONFIG)))
            is_new = failed.setdefault(_identity(broken.setting), broken) is broken
        else:
            run = RunData(open_run(place))
            is_new = runs.setdefault(_identity(Setting.of_run(run), run), run) is run
        if not is_new:
            twice.append(str(place))
    if not runs:
        raise FedskewError("no run has finished: nothing to report")
    _refuse_several_tasks(runs.values())
    _refuse_other_rows(runs.values())
    first = next(iter(runs.values())).metric
    judged = [run.judged_by(first) for run in runs.values()]
    return Compared(judged, list(failed.values()), twice, chosen)


def _places_of_runs(folders: Sequence[Path]) -> list[Path]:
    """Return the folders of single runs; a comparison of which some have not begun is an error."""
    places = []
    for folder in folders:
        if not (folder / GROUP).is_file():
            places.append(folder)
            continue
        inside = [folder / member.name for member in read_members(folder)]
        if not all(place.exists() for place in inside):
            raise FedskewError(f"{folder} is not finished: resume it ({resume_command(folder)})")
        places += inside
    return places


def _refuse_several_tasks(runs: Iterable[RunData]) -> None:
    tasks = {}
    for run in runs:
        tasks[str(run.summary.get("task", "classification")).partition(":")[0]] = run
    if len(tasks) > 1:
        names = " and ".join(f"{run.record.folder} ({task})" for task, run in tasks.items())
        raise FedskewError(
            f"{names} have different tasks and no score in common: compare runs of one task"
        )


def _refuse_other_rows(runs: Iterable[RunData]) -> None:
    """Raise an error for runs of one block that were trained on other rows: their difference is no method's."""
    known: dict[str, RunData] = {}
    for run in runs:
        values = Setting.of_run(run).values
        conditions = [str(values.get(name)) for name in sorted(_CONDITIONS - {"task", "fleet"})]
        block = repr((conditions, values.get("seed"), values.get("split_seed")))
        other = known.setdefault(block, run)
        if other.environment.get("federation") != run.environment.get("federation"):
            raise FedskewError(
                f"{other.record.folder} and {run.record.folder} were trained on other rows, though their data and "
                "seeds have the same names: compare runs on the same rows"
            )


def _identity(setting: Setting, run: RunData | None = None) -> str:
    """Return a text that two runs have in common only if they are the same run, given twice.

    A configuration does not record a Python object whole, so runs with such an object must have equal curves as well.
    """
    values = {}
    for name, value in setting.values.items():
        if name not in _NOT_NAMED - {"seed", "split_seed"}:
            values[name] = value
    curves = None
    if run is not None and any(map(from_python, setting.config.values())):
        curves = run.rounds
    return repr((setting.method, setting.options, sorted(values.items()), curves))
