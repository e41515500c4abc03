"""What ``fedskew doctor`` looks at: versions, devices, extras, data sets, and whether training works here."""

import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any, Literal

import torch
from packaging.requirements import Requirement

from fedskew import __version__
from fedskew.data.catalogue import listing
from fedskew.data.source import root
from fedskew.engine.device import usable_cores
from fedskew.testing import CHECKS, check

Outcome = Literal["fine", "absent", "broken"]
_BASE = ("torch", "numpy", "scipy", "scikit-learn", "pandas", "safetensors", "typer", "rich")
_FOR_DEVELOPERS = ("dev", "docs")
_TRIED = ("engines", "seed", "checkpoint")  # checks of the self-test


@dataclass(frozen=True)
class Symptom:
    """One thing that was looked at; ``absent`` is no fault, as it is only needed for what it is named after."""

    part: Literal["version", "device", "extra", "data", "self-test"]
    name: str
    outcome: Outcome
    said: str


def examine() -> list[Symptom]:
    """Look at all of it."""
    devices = _devices()
    found = [*_versions(), *devices, *_extras(), *_data()]
    for device in devices:
        if device.outcome == "fine":
            found.append(_self_test(device.name))
    return found


def _versions() -> list[Symptom]:
    """Return the versions of what fedskew always needs; one out of its range is broken."""
    found = [
        Symptom("version", "fedskew", "fine", __version__),
        Symptom("version", "python", "fine", f"{platform.python_version()}, {platform.platform()}"),
    ]
    ranges = _requirements().get("", {})
    for name in _BASE:
        found.append(_package("version", name, ranges.get(name)))
    return found


def _requirements() -> dict[str, dict[str, Requirement]]:
    """Return what each extra needs, and under an empty name what is always needed, by package."""
    try:
        lines = requires("fedskew") or []
    except PackageNotFoundError:  # run from a source tree
        return {}
    needed: dict[str, dict[str, Requirement]] = {}
    for line in lines:
        requirement = Requirement(line)
        extra = ""
        if requirement.marker is not None:
            extra = str(requirement.marker).rpartition("extra == ")[2].strip("\"'")
        needed.setdefault(extra, {})[requirement.name] = requirement
    return needed


def _package(part: Any, name: str, needed: Requirement | None) -> Symptom:
    """Return whether a package is installed, in a version within the range."""
    try:
        installed = version(name)
    except PackageNotFoundError:
        return Symptom(part, name, "absent", "not installed")
    if needed is not None and not needed.specifier.contains(installed, prereleases=True):
        text = f"{installed}, and fedskew needs {needed.specifier}: pip install '{needed.name}{needed.specifier}'"
        return Symptom(part, name, "broken", text)
    return Symptom(part, name, "fine", installed)


def _devices() -> list[Symptom]:
    """Return where models can be trained."""
    found = [Symptom("device", "cpu", "fine", f"{usable_cores()} usable cores")]
    if not torch.cuda.is_available():
        found.append(Symptom("device", "cuda", "absent", "PyTorch sees no GPU"))
        return found
    for number in range(torch.cuda.device_count()):
        memory = torch.cuda.get_device_properties(number).total_memory / 2**30
        text = f"{torch.cuda.get_device_name(number)}, {memory:.0f} GiB"
        found.append(Symptom("device", f"cuda:{number}", "fine", text))
    return found


def _extras() -> list[Symptom]:
    """Return which extras are installed, whole and in the right versions."""
    found = []
    for extra, needed in sorted(_requirements().items()):
        if extra and extra not in _FOR_DEVELOPERS:
            found.append(_extra(extra, needed))
    return found


def _extra(extra: str, needed: dict[str, Requirement]) -> Symptom:
    """Return the worst of what the packages of an extra are."""
    said = []
    outcomes = set()
    for name, requirement in needed.items():
        package = _package("extra", name, requirement)
        said.append(f"{name} {package.said}")
        outcomes.add(package.outcome)
    words = ", ".join(said)
    if "absent" in outcomes:
        return Symptom("extra", extra, "absent", f"pip install 'fedskew[{extra}]' ({words})")
    if "broken" in outcomes:
        return Symptom("extra", extra, "broken", words)
    return Symptom("extra", extra, "fine", words)


def _data() -> list[Symptom]:
    """Return which of the known data sets are on this machine."""
    present = []
    others = 0
    for entry in listing():
        if entry.state == "present":
            present.append(entry.name)
        elif entry.state != "own":
            others += 1
    text = f"{len(present)} data sets: {', '.join(present)}; {others} more can be added (fedskew data list)"
    return [Symptom("data", str(root()), "fine", text)]


def _self_test(device: str) -> Symptom:
    """Train with both engines, twice, and from a checkpoint, and compare."""
    left_out = dict.fromkeys(CHECKS, "not part of the self-test")
    for name in _TRIED:
        del left_out[name]
    report = check("fedprox", raise_on_failure=False, skip=left_out, device=device)
    if report.failures:
        words = []
        for finding in report.failures:
            words.append(f"{finding.check}: {finding.detail}")
        return Symptom("self-test", device, "broken", "; ".join(words))
    seconds = 0.0
    for finding in report.findings:
        seconds += finding.seconds
    text = f"both engines agree, runs repeat and resume to the same bits ({seconds:.1f} s)"
    return Symptom("self-test", device, "fine", text)
