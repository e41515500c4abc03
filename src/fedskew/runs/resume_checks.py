"""Why a run cannot be resumed, as far as its folder tells: asked before PyTorch is imported and data are read."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from fedskew.core.config import Settings
from fedskew.core.errors import FedskewError
from fedskew.core.files import reading
from fedskew.core.lock import locked
from fedskew.core.plugins import Imported, digest_of
from fedskew.runs import folder as on_disk
from fedskew.runs.folder import ENVIRONMENT, Row, RunFolder, resume_command
from fedskew.runs.intact_checkpoints import intact_checkpoints
from fedskew.runs.recorded_config import from_python, read_config, settings_of

PARTS = ("data", "skew", "model", "algorithm", "task")  # that may be given as Python objects


def check_folder(disk: RunFolder, force: bool, workers: int | None) -> dict[str, Any]:
    """Return the configuration of a run that is to be resumed; raise an error if its folder says that it cannot be."""
    with locked(disk.path):
        start = check_start(disk, dict.fromkeys(PARTS), force, workers)
        intact_checkpoints(disk, force)
    return start.config


class Start(NamedTuple):
    """How a run began: its environment, its configuration, and the settings to resume it with."""

    environment: Row
    config: dict[str, Any]
    settings: Settings


def check_start(
    disk: RunFolder, given: Mapping[str, Any], force: bool, workers: int | None
) -> Start:
    """Return how a run began; raise an error for what in its folder keeps it from being resumed with these parts."""
    began = disk.environment()
    disk.verify_start(force)
    check_imports(disk.path, began, force)
    config = read_config(disk)
    _check_given(disk, config, given)
    return Start(began, config, _settings_to_resume(disk, config, began, workers))


def check_imports(folder: Path, began: Mapping[str, Any], force: bool) -> None:
    """Raise an error unless all code that a run imported when it began is imported here too, and unchanged.

    Nothing is imported: that would run code, and only the user may ask for that, by naming the file again.
    """
    with reading(folder / ENVIRONMENT):
        wanted = []
        for entry in began.get("imports", []):
            wanted.append(Imported(**{key: str(text) for key, text in entry.items()}))
    command = resume_command(folder, [code.source for code in wanted])
    for code in wanted:
        source = code.source
        digest = digest_of(code.module)
        if digest is None:
            gone = ""
            if source.endswith(".py") and not Path(source).exists():
                gone = " (which is not there any more)"
            raise FedskewError(
                f"{folder}: the run uses code of {source}{gone}: if you trust that code, import it again: {command}"
            )
        if digest != code.sha256 and not force:
            raise FedskewError(
                f"{folder}: the code of {source} is not that with which the run began: put it back, or resume "
                f"anyway: {command} --force"
            )


def _check_given(disk: RunFolder, config: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse to resume a run without its nodes, or without the Python objects that it was made of."""
    if given["data"] is None and (disk.path / on_disk.OF_NODES).exists():
        raise FedskewError(
            f"{disk.path}: its rows are with its nodes: go on with it by flwr run APP"
        )
    for name, part in given.items():
        if from_python(config.get(name)) and part is None:
            what = {"data": "fed", "skew": "fed"}.get(name, name)
            raise FedskewError(
                f"{disk.path}: its {name} was a Python object, resume it from Python: fedskew.resume(folder, "
                f"{what}=...)"
            )


def _settings_to_resume(
    disk: RunFolder, config: Mapping[str, Any], began: Row, workers: int | None
) -> Settings:
    """Return the settings of a run, with as many threads as it had and perhaps another number of workers."""
    settings = settings_of(config)
    if workers and settings.workers is None:
        raise FedskewError(
            f"{disk.path}: the run began without workers, which add up clients in another order: resume it without"
        )
    threads = settings.threads or began.get("threads")  # sums depend on how they are shared out
    return replace(settings, workers=workers or settings.workers, threads=threads)
