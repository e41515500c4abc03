"""What the bits of a run depend on beside its configuration: recorded at its start, compared when it is resumed."""

import copy
import math
import platform
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from fedskew.core.errors import FedskewError
from fedskew.core.plugins import imported, place
from fedskew.models.parameters import frozen
from fedskew.runs.folder import FORMAT, RunFolder
from fedskew.runs.recorded_config import how_to_resume
from fedskew.server.server import Server


def environment(server: Server) -> dict[str, Any]:
    """Return what the bits of a run depend on beside its configuration."""
    from fedskew import __version__

    versions = {
        "fedskew": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
    device = str(server.device)
    if server.device.type == "cuda":
        device += f" ({torch.cuda.get_device_name(server.device)})"
    method = server.algorithm
    return {
        "format": FORMAT,
        **versions,
        "platform": platform.platform(),
        "device": device,
        "threads": server.threads,
        "federation": server.fed.fingerprint,
        "shape": list(server.fed.data.shape),
        "outputs": server.job.task.width(len(server.fed.data.classes)),
        "algorithm": {
            "class": place(type(method)),
            "options": {k: str(v) for k, v in method.options().items()},
        },
        "model": {"class": place(type(server.model)), "answers": answers(server)},
        "frozen": frozen_sums(server),
        "imports": [asdict(one) for one in imported()],
    }


@torch.no_grad()
def answers(server: Server) -> list[float]:
    """Return the initial model's outputs for two fixed rows: other code or other weights give other outputs."""
    shape = server.fed.data.shape
    numbers = torch.arange(2 * math.prod(shape), dtype=torch.float64)
    rows = numbers.cos().view(2, *shape)
    fresh = copy.deepcopy(server.model).cpu().double().eval()
    if not server.job.x.is_floating_point():
        rows = rows.round().abs().long()
    outputs: list[float] = fresh(rows).flatten().tolist()
    return outputs


@torch.no_grad()
def frozen_sums(server: Server) -> list[float]:
    """Return a weighted sum of each tensor that is not trained: fixed rows may use a part of it alone."""
    sums = []
    for value in frozen(server.model).values():
        flat = value.detach().cpu().double().flatten()
        weights = torch.arange(1, len(flat) + 1, dtype=torch.float64).cos()
        sums.append(float(flat @ weights))
    return sums


def check_same(
    disk: RunFolder, began: Mapping[str, Any], now: Mapping[str, Any], force: bool
) -> None:
    """Raise an error if model or algorithm are not those of the run; warn of other changes."""
    for name in ("algorithm", "model"):
        if not _alike(began.get(name), now[name]) and not force:
            raise FedskewError(
                f"{disk.path}: the {name} is not the one that the run began with "
                f"({_first_change(began[name], now[name])}): "
                f"put it back, or resume anyway: {how_to_resume(disk, force=True)}"
            )
    # Runs of earlier versions did not record it
    if not force and not _alike(began.get("frozen", now["frozen"]), now["frozen"]):
        raise FedskewError(
            f"{disk.path}: weights that are not trained are others than those that the run began with: put the file "
            f"back that they came from, or resume anyway: {how_to_resume(disk, force=True)}"
        )
    changed = []
    for name in ("fedskew", "python", "torch", "numpy", "platform", "device"):
        if began.get(name) != now[name]:
            changed.append(f"{name} was {began[name]} and is {now[name]}")
    if changed:
        warnings.warn(
            f"{disk.path}: {'; '.join(changed)}: the bits may differ from here on", stacklevel=5
        )


def _alike(began: Any, now: Any) -> bool:
    """Return whether two values are equal, numbers up to rounding errors of another processor."""
    if isinstance(now, Mapping):
        return (
            isinstance(began, Mapping)
            and began.keys() == now.keys()
            and all(_alike(began[key], now[key]) for key in now)
        )
    if isinstance(now, list):
        return (
            isinstance(began, list)
            and len(began) == len(now)
            and bool(np.allclose(began, now, rtol=1e-6, atol=1e-9))
        )
    return bool(began == now)


def _first_change(began: Any, now: Mapping[str, Any]) -> str:
    before: Mapping[str, Any] = {}
    if isinstance(began, Mapping):
        before = began
    name = next(name for name in now if not _alike(before.get(name), now[name]))
    if name == "answers":
        return "it answers fixed rows otherwise"
    return f"{name} was {before.get(name)} and is {now[name]}"
