"""``fedskew.check``: tests of the contract of an algorithm, on which engines, checkpoints and comparisons rely."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from fedskew.algorithms.contract import Algorithm, resolve
from fedskew.core.errors import FedskewError, unknown
from fedskew.core.registry import Choice
from fedskew.data.dataset import Dataset
from fedskew.engine.job import Engine
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked
from fedskew.models.build import ModelSpec
from fedskew.testing.check_report import (
    Conformance,
    ConformanceError,
    ContractError,
    Finding,
    NotApplicableError,
    Passed,
    VacuousError,
    explain,
)
from fedskew.testing.effect import method_has_effect
from fedskew.testing.equalities import (
    clients_in_any_order,
    engines_agree,
    identical_clients,
    one_seed_one_result,
)
from fedskew.testing.hook_checks import (
    hooks_are_functions,
    hooks_are_pure,
    hooks_keep_shapes,
    runs_everywhere,
)
from fedskew.testing.independence import clients_are_independent
from fedskew.testing.lab import Lab
from fedskew.testing.option_checks import options_are_guarded
from fedskew.testing.record_checks import (
    bytes_are_counted,
    checkpoint_resumes,
    nan_client_is_left_out,
)

Check: TypeAlias = Callable[[Lab], Passed]

# In this order, because the first failure is most likely the cause of the later ones.
CHECKS: dict[str, Check] = {
    "options": options_are_guarded,
    "shapes": hooks_keep_shapes,
    "purity": hooks_are_pure,
    "functions": hooks_are_functions,
    "alone": clients_are_independent,
    "runs": runs_everywhere,
    "engines": engines_agree,
    "seed": one_seed_one_result,
    "order": clients_in_any_order,
    "identical": identical_clients,
    "checkpoint": checkpoint_resumes,
    "bytes": bytes_are_counted,
    "nan": nan_client_is_left_out,
    "effect": method_has_effect,
}


def check(
    algorithm: "str | Mapping[str, Any] | Choice | type[Algorithm] | Algorithm",
    raise_on_failure: bool = True,
    *,
    engines: Iterable[Engine] | None = None,
    skip: Mapping[str, str] | None = None,
    device: str = "cpu",
    model: ModelSpec | None = None,
    data: Dataset | None = None,
) -> Conformance:
    """Run every check on an algorithm, on a tiny federation made in memory; takes a few seconds.

    Args:
        algorithm: an instance, a class with defaults for all options, or a spelling such as ``"fedprox:mu=0.1"``
        raise_on_failure: raise ``ConformanceError``, which holds the report, when a check fails
        engines: those that must give the same results, the reference first; loop and stacked when left out
        skip: checks that do not apply to the method, each with the reason, which the report repeats
        device: where the engines compute
        model: a model in place of the suite's own, with layers that the method needs: a name, a function or a module
        data: a data set of which a few rows are used, in place of made-up ones

    A method whose models are those of FedAvg wherever it was tried is *vacuous*: no check has failed, and none has
    seen its hooks act.

    >>> check("fedavg").passed
    True
    """
    leave_out = dict(skip or {})
    for name in leave_out:
        if name not in CHECKS:
            raise unknown("check", name, CHECKS)
    used: tuple[Engine, ...] = (Loop(), Stacked(mode="stack"))
    if engines is not None:
        used = tuple(engines)
    if not used:
        raise FedskewError("engines is empty: give at least one, two to see whether they agree")
    lab = Lab(resolve(algorithm), used, device, model, data)
    findings = []
    for name, function in CHECKS.items():
        findings.append(_try(name, function, lab, leave_out.get(name)))
    names = tuple(type(engine).__name__ for engine in used)
    report = Conformance(str(lab.algorithm), names, tuple(findings))
    if raise_on_failure and not report.passed:
        raise ConformanceError(report)
    return report


def _try(name: str, function: Check, lab: Lab, reason: str | None) -> Finding:
    began = time.perf_counter()

    def found(outcome: Any, detail: str, worst: float | None = None) -> Finding:
        return Finding(name, outcome, detail, worst, time.perf_counter() - began)

    if reason is not None:
        return found("not applicable", reason)
    if not lab.engines:
        return found("not applicable", "no engine can run it, see runs")
    try:
        result = function(lab)
    except NotApplicableError as why:
        return found("not applicable", str(why))
    except ContractError as problem:
        return found("failed", str(problem))
    except VacuousError as problem:
        return found("vacuous", str(problem))
    except Exception as problem:  # any exception of a hook is a finding about that hook
        return found("failed", explain(problem, type(lab.algorithm)))
    return found("passed", result.detail, result.worst)


__all__ = ["CHECKS", "Conformance", "ConformanceError", "Finding", "check"]
