"""The configuration of a run as its folder has it; reading it imports nothing that trains."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from fedskew.core.config import Settings, read_file
from fedskew.core.errors import FedskewError
from fedskew.runs import folder as on_disk
from fedskew.runs.folder import RunFolder, resume_command

FROM_PYTHON = "from-python"  # placeholder in a configuration for a Python object


def read_config(disk: RunFolder) -> dict[str, Any]:
    """Return the configuration of a run."""
    path = disk.path / on_disk.CONFIG
    config = read_file(path)
    for name in ("data", "skew", "model", "algorithm"):
        if name not in config:
            raise FedskewError(
                f"{path} does not say which {name}: put the line back or start a new run"
            )
    return config


def how_to_resume(disk: RunFolder, force: bool = False) -> str:
    """Return the command that resumes a run, or the call where parts of the run were Python objects."""
    config = read_config(disk)
    given = {}
    for name in ("data", "skew", "model", "algorithm", "task"):
        if from_python(config.get(name)):
            given[{"data": "fed", "skew": "fed"}.get(name, name)] = "..."
    if not given or (disk.path / on_disk.OF_NODES).exists():
        command = resume_command(disk.path)
        if force:
            command += " --force"
        return command
    if force:
        given["force"] = "True"
    arguments = ", ".join(f"{name}={value}" for name, value in given.items())
    return f"fedskew.resume({str(disk.path)!r}, {arguments}) in Python"


def settings_of(config: Mapping[str, Any]) -> Settings:
    """Return the settings of a configuration."""
    names = [field.name for field in fields(Settings)]
    return Settings(**{name: config[name] for name in names if name in config})


def from_python(spec: Any) -> bool:
    """Return whether a choice in a configuration stands for a Python object."""
    if isinstance(spec, Mapping):
        return bool(spec.get("name") == FROM_PYTHON)
    return bool(spec == FROM_PYTHON)
