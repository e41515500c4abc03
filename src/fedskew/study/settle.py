"""From what was asked to a plan: the goal, the control, the runs that the goal needs, and the rows to choose by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedskew.algorithms.contract import algorithms as methods
from fedskew.algorithms.contract import resolve
from fedskew.core.errors import FedskewError, unknown
from fedskew.core.registry import parts_of
from fedskew.engine.sharing import WHOLE
from fedskew.runs.choices import spell
from fedskew.runs.execute import prepare
from fedskew.runs.goals import Goal
from fedskew.study.judging import ALONE, CONTROL
from fedskew.study.partitions import Partitions
from fedskew.study.study_folder import named_in_errors
from fedskew.study.study_plan import Asked, Plan, asked_of

SET_ASIDE = 0.2  # share of the training rows to choose by, where none was given


def plan_of(given: Mapping[str, Any], partitions: Partitions | None = None) -> Plan:
    """Return the plan of settings by name (``asked_of`` has their names); what cannot be is an error.

    ``partitions`` are those that the study's check and runs use too.
    """
    asked = asked_of(given)
    if asked.judging.pool and len(asked.skews) < 2:
        raise FedskewError(
            "pool needs several skews to take the mean over: give them, or leave it out"
        )
    partitions = partitions or Partitions()
    goal = asked.judging.goal
    if goal is None:
        goal = _usual_goal(asked, partitions)
    elif goal == "own":
        _check_held_out(asked, partitions)
    judging = replace(asked.judging, goal=goal)
    asked = replace(asked, judging=judging)
    if goal == "own":
        asked = _with_local(asked)
    asked = _with_control(_with_rows_to_choose_by(asked))
    return Plan(asked.members(), asked.target, asked.jobs, asked.judging)


# -- the goal ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Probe:
    """Of a method on the first partition: what clients share, and whether they hold out rows."""

    method: str
    shared_model: str
    holds_out: bool


def _probe(asked: Asked, algorithm: str, partitions: Partitions) -> _Probe:
    member = asked.first_of(algorithm)
    with named_in_errors(member):
        experiment = member.experiment()
        fed = partitions.of(experiment)
        method = resolve(experiment.algorithm)
        server, _ = prepare(fed, experiment.model, method, experiment.settings())
        return _Probe(algorithm, server.job.shared_model, server.evaluator.holds_out)


def _usual_goal(asked: Asked, partitions: Partitions) -> Goal:
    """Return the goal of a study that was given none; an error if nothing says what the models are for."""
    if asked.settings.get("client_test"):
        return "own"
    without: list[_Probe] = []
    for algorithm in asked.algorithms:
        probe = _probe(asked, algorithm, partitions)
        if probe.shared_model != WHOLE:
            without.append(probe)
    if not without:
        return "shared"
    if without[0].holds_out:
        # The data come with test rows of every client: nothing more has to be set aside
        return "own"
    names = ", ".join(probe.method for probe in without)
    raise FedskewError(
        f"{names}: {without[0].shared_model}, and so there is no shared model to judge. Say what the models are for: "
        "client_test=0.2 (fedskew compare ... --client-test 0.2) judges the model that each client uses, on rows "
        "that are set aside from its training; goal=shared (fedskew compare ... --goal shared) judges the shared "
        "models alone, and leaves the cells of the others empty"
    )


def _check_held_out(asked: Asked, partitions: Partitions) -> None:
    """Refuse the goal own where clients hold out no rows."""
    if asked.settings.get("client_test"):
        return
    if not _probe(asked, asked.algorithms[0], partitions).holds_out:
        raise FedskewError(
            "goal=own needs rows of every client that it does not train on: set some aside with client_test=0.2"
        )


def _with_local(asked: Asked) -> Asked:
    """Add every client alone, which is beside the methods as a reference, if it is not one of them."""
    if ALONE in _names(asked.algorithms):
        return asked
    judging = replace(asked.judging, references=(ALONE,))
    return replace(asked, algorithms=[*asked.algorithms, ALONE], judging=judging)


def _names(algorithms: Sequence[str]) -> dict[str, str]:
    """Return the methods by their names without options."""
    by_name: dict[str, str] = {}
    for algorithm in algorithms:
        parts = parts_of(methods.choose(algorithm), methods.kind)
        by_name.setdefault(" + ".join(part.name for part in parts), algorithm)
    return by_name


# -- rows to choose by -------------------------------------------------------------------------------------------------


def _with_rows_to_choose_by(asked: Asked) -> Asked:
    """Set validation rows aside where numbers are chosen, or a round is: pooled, or those of each client."""
    judging = asked.judging
    if not asked.chooses:
        if judging.choose_seeds:
            raise FedskewError(
                "choose_seeds needs a grid with several numbers to choose from: give one, or leave it out"
            )
        judging = replace(judging, choose="none")
    asked = replace(asked, judging=judging)
    if judging.choose == "none" and judging.score == "last":
        return asked
    name = "validation"
    if judging.goal == "own":
        name = "client_validation"
    settings = dict(asked.settings)
    if settings.get(name):
        return asked
    share = settings.get("validation") or SET_ASIDE
    if name == "client_validation" and not settings.get("thresholds"):
        settings.pop("validation", None)  # the rows of each client stand in for pooled ones
    settings[name] = share
    judging = replace(judging, set_aside={name: float(share)})
    return replace(asked, settings=settings, judging=judging)


# -- the control -------------------------------------------------------------------------------------------------------


def _with_control(asked: Asked) -> Asked:
    """Settle with which method all others are compared; None for all pairs."""
    given = asked.judging.control
    if given is None:
        control = _names(asked.algorithms).get(CONTROL)
    else:
        control = _given_control(given, asked.algorithms)
    if control is not None and asked.judging.choose == "none" and asked.tries[control] > 1:
        if given is not None:
            raise FedskewError(
                f"control={given} is run with {asked.tries[control]} numbers, and with choose=none none is chosen: "
                "leave control out to compare all pairs"
            )
        control = None
    return replace(asked, judging=replace(asked.judging, control=control))


def _given_control(given: str, algorithms: Sequence[str]) -> str:
    """Return the method that a control names, with or without its options."""
    spelled = spell("algorithm", given)
    if spelled in algorithms:
        return spelled
    matching = []
    for algorithm in algorithms:
        if given in _names([algorithm]):
            matching.append(algorithm)
    if len(matching) != 1:
        raise unknown("control", given, algorithms, "; it is one of the methods that are compared")
    return matching[0]
