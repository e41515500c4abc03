"""The Python interface: load, split, train, compare, resume, open_run."""

import inspect
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedskew.algorithms.contract import Algorithm, resolve
from fedskew.core.config import Settings
from fedskew.core.errors import FedskewError, unknown
from fedskew.data.federation import Federation
from fedskew.models.build import ModelSpec
from fedskew.report.page import PageWriter
from fedskew.runs.callbacks import CallbackSpec, as_callbacks
from fedskew.runs.execute import resuming, starting
from fedskew.runs.recorded_config import FROM_PYTHON
from fedskew.runs.run import Run, open_run
from fedskew.runs.runner import Resumption, Watch, run_to_end
from fedskew.skew.federate import load, split
from fedskew.tasks.task import Task
from fedskew.tasks.task import resolve as resolve_task

if TYPE_CHECKING:
    import pandas as pd

    from fedskew.runs.goals import Goal
    from fedskew.study.judging import ChooseRule, ScoreRule

__all__ = ["Run", "compare", "load", "open_run", "resume", "split", "train"]


def train(
    fed: Federation,
    model: ModelSpec = "mlp",
    algorithm: "str | Mapping[str, Any] | type[Algorithm] | Algorithm" = "fedavg",
    *,
    folder: "str | os.PathLike[str] | bool | None" = None,
    callbacks: "CallbackSpec | Iterable[CallbackSpec]" = (),
    **settings: Any,
) -> Run:
    """Train one method on one federation and record it.

    Args:
        fed: what ``split`` returned
        model: a name with options, a function of (shape, classes), or any module (it is copied with its weights)
        algorithm: a name with options, or an algorithm such as ``FedProx(mu=0.1)``
        folder: the run folder; by default a new one under ``runs``, none for False
        callbacks: one or several, each a ``fedskew.Callback`` or a function that is called after every round with its
            result and the number of rounds; one that returns True stops the run
        settings: everything in ``fedskew.Settings``, by name; ``task`` may be a ``fedskew.Task``

    >>> run = train(split(load("digits"), "iid", clients=5), "logreg", rounds=3, folder=False)
    >>> run.summary["rounds"], run.summary["test_accuracy_last"] > 0.8
    (3, True)
    """
    known = {field.name for field in fields(Settings)}
    for name in settings:
        if name not in known:
            raise unknown("setting", name, known)
    own = None
    if isinstance(settings.get("task"), (Task, type)):
        own = resolve_task(settings["task"])
        settings["task"] = FROM_PYTHON
    watch = Watch([PageWriter(), *as_callbacks(callbacks)])
    return run_to_end(
        starting(fed, model, resolve(algorithm), Settings(**settings), folder, watch, own)
    )


def _signature_with_settings() -> inspect.Signature:
    """Return ``train``'s own parameters, then every setting with its default, so that help and notebooks show them."""
    own = []
    for parameter in inspect.signature(train).parameters.values():
        if parameter.name != "settings":
            own.append(parameter)
    extra = []
    for field in fields(Settings):
        extra.append(
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=field.type,
            )
        )
    return inspect.Signature([*own, *extra], return_annotation=Run)


train.__signature__ = _signature_with_settings()  # type: ignore[attr-defined]


def resume(
    folder: "str | os.PathLike[str]",
    *,
    fed: Federation | None = None,
    model: ModelSpec | None = None,
    algorithm: Algorithm | None = None,
    task: Task | None = None,
    callbacks: "CallbackSpec | Iterable[CallbackSpec]" = (),
    force: bool = False,
    workers: int | None = None,
) -> Run:
    """Resume a run that was killed, to the same bits as without the interruption.

    First it is verified that all files are intact, and that data, model and algorithm are those of the run.

    Args:
        folder: the run folder
        fed: the federation, if it was made from Python objects
        model: the model as it was passed to ``train``, if it was a Python object
        algorithm: the algorithm, if its class is not a registered one
        task: the task, if it was a ``fedskew.Task`` of your own
        callbacks: as for ``train``
        force: use the last intact checkpoint, and accept a changed configuration, model or algorithm
        workers: how many, if the run began with another number of them
    """
    how = Resumption(force, workers)
    watch = Watch([PageWriter(), *as_callbacks(callbacks)])
    return run_to_end(resuming(Path(folder), fed, model, algorithm, task, how=how, watch=watch))


def compare(
    *folders: "str | os.PathLike[str] | Run | Sequence[str | os.PathLike[str] | Run]",
    algorithm: "str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] | None" = None,
    skew: "str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] | None" = None,
    seeds: "str | Iterable[int] | None" = None,
    grid: "Mapping[str, Sequence[float]] | None" = None,
    target: "str | float | None" = None,
    goal: "Goal | None" = None,
    score: "ScoreRule | None" = None,
    control: "str | None" = None,
    equal: "float | None" = None,
    pool: bool = False,
    choose: "ChooseRule | None" = None,
    choose_seeds: "str | Iterable[int] | None" = None,
    jobs: int = 1,
    budget: "str | float | None" = None,
    shard: "str | None" = None,
    out: "str | os.PathLike[str] | None" = None,
    or_resume: bool = False,
    **settings: Any,
) -> "pd.DataFrame":
    """Compare methods x hyper-parameters x skews x seeds: return one row per configuration, write tables and figures.

    Columns are hyper-parameters, means, standard deviations, the difference to the control with its interval, and the
    verdict: better, equal, worse or undecided. ``attrs`` has the goal, the verdicts in words, warnings and the folder.

    Args:
        folders: finished runs or comparisons, as folders or as ``Run``, to compare as they are: nothing is trained
        algorithm: one or several methods, by name and options
        skew: one or several skews
        seeds: such as ``range(5)`` or ``"0-4"``; an interval needs at least 3
        grid: numbers of methods' options, or of lr, momentum, weight_decay and clip_norm: ``{"mu": [0.01, 0.1]}``
        target: a score on test rows, such as 0.9 or ``"balanced_accuracy=0.9"``; by default 90 % of the best
        goal: ``"shared"``, the shared model on the common test rows, or ``"own"``, the model that each client uses on
            its held-out rows; by default own with ``client_test``, and shared if all methods share a model
        score: ``"last"`` round, or ``"validation-best"``, the round that is best on validation rows
        control: the method that all others are compared with; by default fedavg if it is there, else all pairs
        equal: differences up to this are of no interest; by default half a point, or two test rows
        pool: judge also the mean over the skews
        choose: ``"validation"`` chooses the numbers of the grid on validation rows, ``"none"`` compares all of them
        choose_seeds: seeds of the runs by which numbers are chosen; by default ``seeds``
        jobs: processes for what cannot be trained in one stack
        budget: time of this call, such as ``"9m"``: then it raises ``BudgetSpentError``, and the next one goes on
        shard: share of the runs, such as ``"2/8"``; the frame is empty, ``attrs["left"]`` counts those of other shards
        out: the folder; by default a new one under ``runs``, and none for finished runs
        or_resume: continue the comparison in ``out``, if it is the same
        settings: everything in ``fedskew.Experiment``, by name
    """
    from fedskew.report.comparison_files import write_comparison
    from fedskew.study.compare import compare as compare_methods
    from fedskew.study.compare import compare_finished, folders_of

    own: dict[str, Any] = {"algorithm": algorithm, "skew": skew, "seeds": seeds, "grid": grid}
    own |= {"choose": choose, "choose_seeds": choose_seeds}
    own |= {"budget": budget, "shard": shard}
    judged_by = {"goal": goal, "score": score, "control": control, "equal": equal}
    judged_by["pool"] = pool or None
    given = {name: value for name, value in own.items() if value is not None}
    values: dict[str, Any] = {**settings, **given}
    place = None
    if out is not None:
        place = Path(out)
    if folders:
        if values:
            raise FedskewError(
                f"{next(iter(values))}: finished runs are compared as they are, leave it out"
            )
        outcome = compare_finished(
            folders_of(folders), write_comparison, target=target, out=place, judged_by=judged_by
        )
    else:
        values |= {**judged_by, "target": target, "jobs": jobs}
        outcome = compare_methods(values, write_comparison, out=place, or_resume=or_resume)
    return outcome.frame()
