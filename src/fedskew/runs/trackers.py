"""Trackers: a run's settings, rounds and summary for TensorBoard, MLflow and Weights & Biases, in its own folder.

None of them reaches the network: MLflow writes a local database, Weights & Biases is in its offline mode, and what both
would send about their own use is switched off before they are imported.
"""

import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from fedskew.core.config import Settings, read_file
from fedskew.core.errors import FedskewError
from fedskew.runs import folder as on_disk
from fedskew.runs.callbacks import Callback
from fedskew.runs.folder import Row
from fedskew.runs.run import Run
from fedskew.server.scorer import RoundResult
from fedskew.server.server import Server

_PROJECT = "fedskew"


class Tracker(Protocol):
    """What is told of a run; it begins with the earlier rounds of a resumed one."""

    def log(self, row: Row) -> None:
        """Log the numbers of a round."""

    def finish(self, summary: Row) -> None:
        """Log the summary of the finished run."""

    def close(self, finished: bool) -> None:
        """Close it, whether or not the run is finished."""


class TensorBoard:
    """Every number of the table of rounds as an event; those after a killed run's checkpoint are purged."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], rows: Sequence[Row]) -> None:
        self.writer = _tensorboard()(str(folder / "tensorboard"), purge_step=len(rows) + 1)

    def log(self, row: Row) -> None:
        """Write the round's events."""
        for name, value in _numbers(row).items():
            self.writer.add_scalar(name, value, row["round"])
        self.writer.flush()

    def finish(self, summary: Row) -> None:
        """Write nothing: the summary has no place among events."""

    def close(self, finished: bool) -> None:
        """Close the file of events."""
        self.writer.close()


class MLflow:
    """One MLflow run in the database ``mlflow.db`` of the run folder; a resumed run goes on in the same one."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], rows: Sequence[Row]) -> None:
        self.client = _mlflow().MlflowClient(
            tracking_uri=f"sqlite:///{folder.absolute()}/mlflow.db"
        )
        experiment = self._experiment(folder)
        earlier = self.client.search_runs([experiment], max_results=1)
        # Rounds that were logged before an interruption stay: a resumed run would log the same bits
        self.logged = 0
        if earlier:
            self.run = earlier[0].info.run_id
            self.client.update_run(self.run, status="RUNNING")
            history = self.client.get_metric_history(self.run, "clients")  # a column of every round
            self.logged = max((entry.step for entry in history), default=0)
        else:
            self.run = self.client.create_run(experiment, run_name=folder.name).info.run_id
            for name, value in settings.items():
                self.client.log_param(self.run, name, value)
        self.client.set_tag(self.run, "folder", str(folder.absolute()))
        for row in rows:
            self.log(row)

    def _experiment(self, folder: Path) -> str:
        """Return the number of the experiment in the database, which is created if needed."""
        existing = self.client.get_experiment_by_name(_PROJECT)
        if existing:
            return str(existing.experiment_id)
        place = (folder.absolute() / "mlflow").as_uri()
        return str(self.client.create_experiment(_PROJECT, artifact_location=place))

    def log(self, row: Row) -> None:
        """Log the numbers of a round, unless they are there already."""
        if row["round"] > self.logged:
            self._metrics(_numbers(row), row["round"])

    def _metrics(self, numbers: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value in numbers.items()]
        self.client.log_batch(self.run, metrics=metrics)

    def finish(self, summary: Row) -> None:
        """Log the numbers of the summary, whose names begin with ``summary/``, at the last round."""
        self._metrics(_of_summary(summary), summary["rounds"])

    def close(self, finished: bool) -> None:
        """Say how the run ended."""
        status = "KILLED"
        if finished:
            status = "FINISHED"
        self.client.set_terminated(self.run, status)


class WandB:
    """One run of Weights & Biases in its offline mode; a resumed run begins a new one, with the earlier rounds too."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], rows: Sequence[Row]) -> None:
        wandb = _wandb()
        quiet = wandb.Settings(
            console="off", silent=True, disable_git=True, save_code=False, x_disable_stats=True
        )
        self.run = wandb.init(
            mode="offline", dir=str(folder), project=_PROJECT, name=folder.name, reinit="create_new", settings=quiet,
            config={**settings, "folder": str(folder.absolute())},
        )  # fmt: skip
        for row in rows:
            self.log(row)

    def log(self, row: Row) -> None:
        """Log the numbers of a round."""
        self.run.log(_numbers(row), step=row["round"])

    def finish(self, summary: Row) -> None:
        """Log the numbers of the summary."""
        self.run.summary.update(_of_summary(summary))

    def close(self, finished: bool) -> None:
        """Write what is left, and say how the run ended."""
        self.run.finish(exit_code=int(not finished))


def _tensorboard() -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter


def _mlflow() -> Any:
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    import alembic  # noqa: F401 - of the database, which MLflow imports late
    import mlflow
    import sqlalchemy  # noqa: F401

    # MLflow logs every new table of its database
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
    return mlflow


def _wandb() -> Any:
    os.environ["WANDB_ERROR_REPORTING"] = "false"
    import wandb

    return wandb


# By the name of the setting: the tracker, and what imports its package
TRACKERS: "dict[str, tuple[Callable[..., Tracker], Callable[[], Any]]]" = {
    "tensorboard": (TensorBoard, _tensorboard),
    "mlflow": (MLflow, _mlflow),
    "wandb": (WandB, _wandb),
}


def _wanted(settings: Settings) -> list[str]:
    return [name for name in TRACKERS if getattr(settings, name)]


def check_trackers(settings: Settings, folder: bool = True) -> None:
    """Raise an error for a tracker whose package is missing, and for one without a run folder."""
    for name in _wanted(settings):
        if not folder:
            raise FedskewError(f"{name}=true needs a run folder: leave folder=False out")
        _, import_package = TRACKERS[name]
        try:
            import_package()
        except ImportError:
            raise FedskewError(
                f"{name}=true needs the package: pip install 'fedskew[{name}]'"
            ) from None


class Tracking(Callback):
    """The trackers of a run. The first error of one is a warning, and the run goes on without it."""

    def __init__(self) -> None:
        self.trackers: dict[str, Tracker] = {}
        self.finished = False

    def on_run_start(self, server: Server, folder: Path | None, rows: Sequence[Row]) -> None:
        """Begin what the settings ask for."""
        if folder is None:
            return
        for name in _wanted(server.settings):
            with self._warned(name):
                settings = dict(_flat(read_file(folder / on_disk.CONFIG)))
                tracker, _ = TRACKERS[name]
                self.trackers[name] = tracker(folder, settings, rows)

    def on_round_end(self, result: RoundResult, rounds: int) -> None:
        """Log a round."""
        for name in list(self.trackers):
            with self._warned(name):
                self.trackers[name].log(result.round)

    def on_run_end(self, run: Run) -> None:
        """Log the summary."""
        self.finished = True
        for name in list(self.trackers):
            with self._warned(name):
                self.trackers[name].finish(run.summary)

    def close(self) -> None:
        """Close all trackers that are left."""
        for name in list(self.trackers):
            with self._warned(name):
                self.trackers[name].close(self.finished)

    @contextmanager
    def _warned(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as problem:  # any error of such a package
            self.trackers.pop(name, None)
            reason = " ".join(f"{type(problem).__name__}: {problem}".split())[:200]
            warnings.warn(
                f"{name} failed and is left out from here on ({reason}); the run goes on",
                stacklevel=4,
            )


@contextmanager
def tracking() -> Iterator[Tracking]:
    """Yield the trackers of a run as a callback, and close them whatever happens."""
    trackers = Tracking()
    try:
        yield trackers
    finally:
        trackers.close()


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield settings by name; those of a choice are ``algorithm.mu``."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a row, without its round and without gaps."""
    numbers: dict[str, float] = {}
    for name, value in row.items():
        if name != "round" and isinstance(value, (int, float)) and not isinstance(value, bool):
            numbers[name] = value
    return numbers


def _of_summary(summary: Row) -> dict[str, float]:
    """Return the numbers of a summary by names that tell them from those of a round."""
    return {f"summary/{name}": value for name, value in _numbers(summary).items()}
