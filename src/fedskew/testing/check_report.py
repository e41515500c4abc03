"""The findings of the conformance suite: one row for each check, and failures that name the hook and the fix."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedskew.aggregation.mean import Aggregator
from fedskew.algorithms.calibrator import Calibrator
from fedskew.algorithms.contract import Algorithm
from fedskew.algorithms.selection import Selection
from fedskew.algorithms.topologies import Scheduled
from fedskew.core.errors import FedskewError


class ContractError(Exception):
    """A failed check; the message says what is wrong and what would be right."""


class VacuousError(Exception):
    """A method that does nothing where it is tested; the message says what to give."""


class NotApplicableError(Exception):
    """A check that does not apply to this algorithm; the message says why."""


@dataclass(frozen=True)
class Passed:
    """What was compared, and the largest difference if numbers were compared."""

    detail: str
    worst: float | None = None


@dataclass(frozen=True)
class Finding:
    """The outcome of one check."""

    check: str
    outcome: Literal["passed", "failed", "not applicable", "vacuous"]
    detail: str  # what was compared, what is wrong, or why it does not apply
    # Largest difference, relative to the size of the values where that is above 1
    worst: float | None
    seconds: float

    def __str__(self) -> str:
        if self.outcome == "not applicable":
            return f"{self.check:<11}-       not applicable: {self.detail}"
        worst = ""
        if self.worst is not None:
            worst = f" (largest difference {self.worst:.1g})"
        return f"{self.check:<11}{self.outcome:<8}{self.detail}{worst}"


@dataclass(frozen=True)
class Conformance:
    """All findings about one algorithm; prints as a table."""

    algorithm: str
    engines: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def failures(self) -> tuple[Finding, ...]:
        """Return the checks that failed."""
        return tuple(finding for finding in self.findings if finding.outcome == "failed")

    @property
    def vacuous(self) -> bool:
        """Return whether the method does nothing where it was tested."""
        return any(finding.outcome == "vacuous" for finding in self.findings)

    @property
    def passed(self) -> bool:
        """Return whether no check failed."""
        return not self.failures

    def __getitem__(self, check: str) -> Finding:
        return next(finding for finding in self.findings if finding.check == check)

    def __str__(self) -> str:
        verdict = "conforms"
        if self.vacuous:
            verdict = "vacuous, its hooks change nothing here"
        if self.failures:
            verdict = f"fails {len(self.failures)} checks"
        seconds = sum(finding.seconds for finding in self.findings)
        lines = [f"{self.algorithm} on {', '.join(self.engines)}: {verdict} ({seconds:.1f} s)"]
        for finding in self.findings:
            lines.append(f"  {finding}")
        return "\n".join(lines)


class ConformanceError(FedskewError):
    """An algorithm failed ``fedskew.check``; ``report`` holds every finding."""

    def __init__(self, report: Conformance) -> None:
        self.report = report
        failed = "; ".join(f"[{finding.check}] {finding.detail}" for finding in report.failures)
        super().__init__(
            f"{report.algorithm} fails {len(report.failures)} of {len(report.findings)} checks: {failed}"
        )


def _hooks_of_algorithm() -> list[str]:
    others = ("options", "label", "topology")
    hooks = []
    for name, value in vars(Algorithm).items():
        if callable(value) and not name.startswith("_") and name not in others:
            hooks.append(name)
    return hooks


# The hooks of a method by name, each with the class whose signature it has.
HOOKS: dict[str, type[Any]] = {
    **dict.fromkeys(_hooks_of_algorithm(), Algorithm),
    "client_profile": Selection,
    "select": Selection,
    "probe_rows": Selection,
    "configure_training": Selection,
    "combine": Aggregator,
    "class_statistics": Calibrator,
    "calibrate": Calibrator,
    "schedule_samples": Scheduled,
}
PARTS = ("client_selection", "aggregator", "calibrator")  # objects of a method that have hooks


def hook_of(algorithm: Algorithm, hook: str, round: int = 0) -> Callable[..., Any]:
    """Return a hook of a method, or of the object that has it."""
    kind = HOOKS[hook]
    owner: Any = algorithm
    if kind is Selection:
        owner = algorithm.client_selection
    elif kind is Aggregator:
        owner = algorithm.aggregator
    elif kind is Calibrator:
        owner = algorithm.calibrator
    elif kind is Scheduled:
        owner = algorithm.topology(round)
    found: Callable[..., Any] = getattr(owner, hook)
    return found


_ADVICE = (
    ("data-dependent control flow", "hooks must not branch on tensor values: use torch.where"),
    (
        ".item()",
        "hooks must not turn tensors into Python numbers (.item(), float(), int()): compute with the tensor",
    ),
    (
        "data pointer",
        "hooks must not turn tensors into arrays or lists (.numpy(), .tolist()): compute with the tensor",
    ),
    (
        "dynamic shape",
        "hooks must not pick entries by a mask, the result has no fixed shape: use torch.where",
    ),
    ("inplace", "hooks must not change tensors in place: make a new one"),
    ("in-place", "hooks must not change tensors in place: make a new one"),
    ("random operation", "hooks must not draw random numbers"),
)


def explain(problem: BaseException, algorithm: type[Algorithm]) -> str:
    """Return an exception on one line: the hook that raised it and where, the message, and what to do about it."""
    text = " ".join(str(problem).split())
    advice = _advice(text)
    if len(text) > 120:
        text = text[:117] + "..."
    said = f"{type(problem).__name__}: {text}{advice}"
    owners = (algorithm, Selection, Aggregator, Calibrator)
    for frame, line in traceback.walk_tb(problem.__traceback__):
        hook = frame.f_code.co_name
        if hook in HOOKS and isinstance(frame.f_locals.get("self"), owners):
            file = Path(frame.f_code.co_filename).name
            return f"{hook} ({file}, line {line}) raised {said}"
    return said


def _advice(text: str) -> str:
    """Return what to do about an error with this text, if that is known."""
    for symptom, remedy in _ADVICE:
        if symptom in text:
            return f"; {remedy}"
    return ""
